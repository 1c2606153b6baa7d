/* SPDX-License-Identifier: MIT
 *
 * ctl_control: the control socket as millracectl uses it: one line there, one line back, perhaps with a descriptor of
 * the counter pages. Never keeps the master waiting, and waits 10 s for it at most.
 */
#include "ctl.h"
#include <errno.h>
#include <net.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Workers that are rolled deliver first, one after the other. */
enum { ASK_SECONDS = 10, RELOAD_SECONDS = 600 };

static int control_connect(const char *path, int seconds, struct err *err)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(sa.sun_path))
		return err_set(err, -ENAMETOOLONG, "The path %s is too long for a socket (%zu bytes at most).", path,
			       sizeof(sa.sun_path) - 1);
	memcpy(sa.sun_path, path, strlen(path));
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return err_set(err, -errno, "Cannot make a socket: %s.", strerror(errno));
	struct timeval limit = {.tv_sec = seconds};
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
		return fd;
	int e = errno;
	close(fd);
	if (e == EACCES)
		return err_set(err, -e,
			       "You may not use %s: run millracectl as root, or let the option control_group name a "
			       "group that you are in.",
			       path);
	return err_set(err, -e,
		       "No millrace answers at %s (%s): start one with --control %s, or say with -s where its control "
		       "socket is.",
		       path, strerror(e), path);
}

/* Reads up to the newline; a descriptor comes with the first bytes or not at all. */
static int answer_read(int sock, char *answer, size_t size, int *fd)
{
	size_t len = 0;
	while (len + 1 < size) {
		int more = -1;
		ssize_t n = net_recv_fd(sock, answer + len, size - 1 - len, &more);
		if (more != -1) {
			if (*fd != -1)
				close(*fd);
			*fd = more;
		}
		if (n <= 0)
			return n == 0 ? -EPIPE : (int)n;
		len += (size_t)n;
		char *end = memchr(answer, '\n', len);
		if (end) {
			*end = '\0';
			return 0;
		}
	}
	return -EMSGSIZE;
}

int ctl_ask(const char *socket_path, const char *line, char *answer, size_t size, int *fd, struct err *err)
{
	char ask[512];
	*fd = -1;
	int n = snprintf(ask, sizeof(ask), "%s\n", line);
	if ((size_t)n >= sizeof(ask) || strchr(line, '\n'))
		return err_set(err, -EINVAL, "The command is too long, or not one line.");
	int seconds = strcmp(line, "reload") == 0 || strcmp(line, "upgrade") == 0 ? RELOAD_SECONDS : ASK_SECONDS;
	int sock = control_connect(socket_path, seconds, err);
	if (sock < 0)
		return sock;
	int rc = net_send_fd(sock, ask, (size_t)n, -1);
	if (rc == 0)
		rc = answer_read(sock, answer, size, fd);
	close(sock);
	if (rc == 0)
		return 0;
	if (*fd != -1)
		close(*fd);
	*fd = -1;
	const char *why = rc == -EAGAIN ? "it takes too long" : rc == -EPIPE ? "it closed the connection" : strerror(-rc);
	return err_set(err, rc, "The millrace at %s does not answer to \"%s\" (%s): is its master stopped?",
		       socket_path, line, why);
}

/* "ok VERSION PID" with the descriptor. */
static int pages_ask(struct ctl *ctl, int *fd, struct err *err)
{
	char answer[512];
	long long pid;
	int rc = ctl_ask(ctl->socket, "pages", answer, sizeof(answer), fd, err);
	if (rc != 0)
		return rc;
	if (*fd != -1 && sscanf(answer, "ok %63s %lld", ctl->version, &pid) == 2) {
		ctl->pid = pid;
		return 0;
	}
	if (*fd != -1)
		close(*fd);
	*fd = -1;
	char shown[256];
	text_escape(shown, sizeof(shown), answer, strlen(answer));
	return err_set(err, -EPROTO, "What listens at %s gave no counter pages but \"%s\": is it a millrace?",
		       ctl->socket, shown);
}

/* The files of the counter pages from number `file` on, as many as there are. Returns how many came. */
static size_t more_ask(const struct ctl *ctl, unsigned file, int *fds, size_t n_max)
{
	char line[32], answer[512], version[64];
	struct err err;
	size_t n = 0;
	long long pid;
	for (int fd = -1; n < n_max; n++) {
		snprintf(line, sizeof(line), "page %u", file + (unsigned)n);
		if (ctl_ask(ctl->socket, line, answer, sizeof(answer), &fd, &err) != 0 || fd == -1)
			break;
		fds[n] = fd;
		if (sscanf(answer, "ok %63s %lld", version, &pid) == 2 && pid == ctl->pid)
			continue;
		close(fd); /* another millrace has taken its place meanwhile */
		break;
	}
	return n;
}

int ctl_attach(struct ctl *ctl)
{
	static int fds[STATS_SLOTS_MAX * STATS_SLOT_PAGES + 2];
	struct err err;
	if (pages_ask(ctl, &fds[0], &err) != 0)
		return ctl_usage("%s", err.text);
	size_t n = 1 + more_ask(ctl, 1, fds + 1, ARRAY_LEN(fds) - 1);
	ctl->st = stats_open(fds, n, &err);
	while (n > 0)
		close(fds[--n]);
	if (!ctl->st)
		return ctl_usage("%s", err.text);
	ctl->copy = stats_copy_new(ctl->st);
	if (!ctl->copy)
		return ctl_usage("No memory for a copy of the counter pages.");
	return ctl_take(ctl, ctl->copy);
}

void ctl_detach(struct ctl *ctl)
{
	stats_copy_free(ctl->copy);
	stats_free(ctl->st);
	ctl->copy = NULL;
	ctl->st = NULL;
}

/* A reload has added a worker: its pages are two more files. */
static void more_open(struct ctl *ctl)
{
	int fd;
	while (more_ask(ctl, stats_files(ctl->st), &fd, 1) == 1) {
		int rc = stats_open_next(ctl->st, fd, NULL);
		close(fd);
		if (rc != 0)
			return;
	}
}

int ctl_take(struct ctl *ctl, struct stats_copy *c)
{
	struct err err;
	bool has_asked = false;
	for (int tries = 0; tries < 10; tries++) {
		int rc = stats_copy_take(c, &err);
		if (rc == 0 && (has_asked || !stats_copy_lacks_pages(c)))
			return CTL_OK;
		if (rc == 0)
			more_open(ctl);
		else
			nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
		has_asked |= rc == 0;
	}
	return ctl_usage("%s", err.text);
}

bool ctl_has_ended(const struct ctl *ctl)
{
	char answer[256];
	struct err err;
	int fd = -1;
	if (kill((pid_t)ctl->pid, 0) == 0 || errno != ESRCH)
		return false;
	bool gone = ctl_ask(ctl->socket, "pages", answer, sizeof(answer), &fd, &err) != 0;
	if (fd != -1)
		close(fd);
	return gone;
}
