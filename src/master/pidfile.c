/* SPDX-License-Identifier: MIT
 *
 * pidfile: the master's process id in a file, for init scripts. The lock on it, not the number in it, says whether it
 * is alive: a file that a killed master left is taken over, one that is locked is not. Master only.
 */
#include "master.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int say(const char *path, int code, const char *what, struct err *err)
{
	char shown[300];
	return err_set(err, -code, "pid_file: \"%s\" %s: %s; give a path in a folder that is there, and writable.",
		       text_escape(shown, sizeof shown, path, strlen(path)), what, strerror(code));
}

static int say_locked(const char *path, int fd, struct err *err)
{
	char number[16] = "", shown[300];
	ssize_t n = pread(fd, number, sizeof number - 1, 0);
	number[n > 0 ? strspn(number, "0123456789") : 0] = '\0';
	return err_set(err, -EEXIST,
		       "pid_file: \"%s\" belongs to a millrace that runs%s%s; stop it, or give this one another.",
		       text_escape(shown, sizeof shown, path, strlen(path)), number[0] ? " as process " : "", number);
}

bool pidfile_is(const char *path, int fd)
{
	struct stat now, ours;
	return lstat(path, &now) == 0 && fstat(fd, &ours) == 0 && now.st_ino == ours.st_ino && now.st_dev == ours.st_dev;
}

static int write_number(int fd)
{
	char number[16];
	int len = snprintf(number, sizeof number, "%d\n", (int)getpid());
	return ftruncate(fd, 0) == 0 && pwrite(fd, number, (size_t)len, 0) == len ? 0 : -1;
}

int pidfile_open(const char *path, struct err *err)
{
	for (;;) {
		int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0644);
		if (fd == -1)
			return say(path, errno, "cannot be opened", err);
		int r = 0;
		if (flock(fd, LOCK_EX | LOCK_NB) == -1)
			r = errno == EWOULDBLOCK ? say_locked(path, fd, err)
						 : say(path, errno, "cannot be locked", err);
		else if (!pidfile_is(path, fd)) {
			close(fd);
			continue;
		} else if (write_number(fd) == -1)
			r = say(path, errno, "cannot be written", err);
		if (r == 0)
			return fd;
		close(fd);
		return r;
	}
}

void pidfile_close(const char *path, int *fd)
{
	if (*fd == -1)
		return;
	if (pidfile_is(path, *fd))
		unlink(path);
	close(*fd);
	*fd = -1;
}
