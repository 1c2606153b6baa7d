/* SPDX-License-Identifier: MIT
 *
 * daemon: going to the background. The command that was typed stays in the foreground until all workers are ready, and
 * its exit code says whether they are; what goes wrong until then stands on its stderr. Master only.
 */
#include "master.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t the_child;

/* Who gives up waiting wants no daemon. */
static void pass_on(int sig)
{
	if (the_child > 0)
		kill((pid_t)the_child, sig);
}

/* Until the child writes a byte (it is ready) or is gone. */
static int wait_for(pid_t child, int fd)
{
	char byte;
	ssize_t n;
	int status;
	the_child = child;
	signal(SIGINT, pass_on);
	signal(SIGTERM, pass_on);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	while ((n = read(fd, &byte, 1)) == -1 && errno == EINTR)
		;
	if (n == 1)
		return MASTER_EXIT_DELIVERED;
	while (waitpid(child, &status, 0) == -1 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		fprintf(stderr, "millrace: the daemon was killed by signal %d (%s) while it started\n",
			WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) != MASTER_EXIT_ERROR) /* else it has said why */
		fprintf(stderr, "millrace: the daemon was told to end while it started\n");
	return MASTER_EXIT_ERROR;
}

int daemon_begin(struct master *m, bool *is_parent, struct err *err)
{
	int ends[2];
	*is_parent = false;
	if (!m->cf->daemon || master_resumes())
		return 0; /* it is there already */
	if (m->cf->path && m->cf->path[0] != '/')
		return err_set(
		    err, -EINVAL,
		    "Cannot become a daemon: the configuration's path \"%s\" is not absolute, and a daemon's folder is "
		    "/, from where it must find it again; begin it with /.",
		    m->cf->path);
	if (pipe2(ends, O_CLOEXEC) == -1)
		return err_set(err, -errno, "Cannot become a daemon: pipe: %s.", strerror(errno));
	fflush(NULL);
	pid_t child = fork();
	if (child == -1) {
		int code = errno;
		close(ends[0]);
		close(ends[1]);
		return err_set(err, -code, "Cannot become a daemon: fork: %s.", strerror(code));
	}
	if (child > 0) {
		*is_parent = true;
		close(ends[1]);
		m->exit_code = wait_for(child, ends[0]);
		return 0;
	}
	close(ends[0]);
	m->ready_fd = ends[1];
	setsid(); /* nobody's terminal; all that we open says O_NOCTTY */
	umask(S_IWGRP | S_IWOTH);
	return chdir("/") == 0 ? 0 : err_set(err, -errno, "Cannot become a daemon: chdir /: %s.", strerror(errno));
}

void daemon_ready(struct master *m)
{
	log_copy_to_stderr(false);
	if (m->ready_fd == -1)
		return;
	proc_leave_terminal();
	while (write(m->ready_fd, "", 1) == -1 && errno == EINTR)
		;
	close(m->ready_fd);
	m->ready_fd = -1;
}
