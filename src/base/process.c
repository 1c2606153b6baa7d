/* SPDX-License-Identifier: MIT
 *
 * process: see process.h. Who is in the list has not been reaped, so its number is nobody else's.
 */
#include <errno.h>
#include <event.h>
#include <limits.h>
#include <poll.h>
#include <process.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static LIST_HEAD(, process) known = LIST_HEAD_INITIALIZER(known);

/* The system calls themselves: glibc has names for them since 2.36. */
static int open_pidfd(pid_t pid)
{
	int fd = (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec (man 2 pidfd_open) */
	return fd == -1 ? -errno : fd;
}

static void fill(struct process *p, pid_t pid, int pidfd)
{
	*p = (struct process){.pid = pid,
			      .last_pid = pid,
			      .pidfd = pidfd,
			      .started_us = clock_us(),
			      .on_exit = p->on_exit,
			      .owner = p->owner};
	LIST_INSERT_HEAD(&known, p, siblings);
}

int process_adopt(struct process *p, pid_t pid, int pidfd)
{
	int fd = pidfd != -1 ? pidfd : open_pidfd(pid);
	if (fd >= 0)
		fill(p, pid, fd);
	return MIN(fd, 0);
}

pid_t process_fork(struct process *p)
{
	pid_t pid = fork();
	if (pid == 0)
		return 0;
	if (pid == -1)
		return -errno;
	int r = process_adopt(p, pid, -1);
	if (r == 0)
		return pid;
	kill(pid, SIGKILL); /* not reaped yet: it is the one */
	while (waitpid(pid, NULL, 0) == -1 && errno == EINTR)
		;
	return r;
}

void process_forget(struct process *p)
{
	if (p->pid == 0)
		return;
	if (p->loop != NULL)
		ev_io_stop(p->loop, &p->io);
	LIST_REMOVE(p, siblings);
	close(p->pidfd);
	p->pid = 0;
	p->pidfd = -1;
	p->loop = NULL;
}

/* False: it goes on. */
static bool reap(struct process *p, int *status)
{
	pid_t r;
	do
		r = waitpid(p->pid, status, WNOHANG);
	while (r == -1 && errno == EINTR);
	if (r == 0)
		return false;
	if (r == -1)
		*status = W_EXITCODE(UCHAR_MAX, 0); /* never our child: nobody can know how it ended */
	process_forget(p);
	return true;
}

static void ended(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct process *p = io->data;
	int status;
	if (reap(p, &status))
		p->on_exit(p, status);
}

void process_watch(struct process *p, struct ev_loop *loop)
{
	p->loop = loop;
	ev_io_init(&p->io, ended, p->pidfd, EV_READ);
	p->io.data = p;
	ev_io_start(loop, &p->io);
}

void process_signal(struct process *p, int signal)
{
	if (p->pid != 0)
		syscall(SYS_pidfd_send_signal, p->pidfd, signal, NULL, 0);
}

bool process_wait(struct process *p, uint64_t until_us, int *status)
{
	while (!reap(p, status)) {
		struct pollfd end = {.fd = p->pidfd, .events = POLLIN};
		uint64_t now_us = clock_us();
		if (now_us >= until_us)
			return false;
		poll(&end, 1, (int)MIN((until_us - now_us) / 1000 + 1, INT_MAX));
	}
	return true;
}

static struct process *find(pid_t pid)
{
	struct process *p;
	LIST_FOREACH (p, &known, siblings)
		if (p->pid == pid)
			return p;
	return NULL;
}

void process_reap_strangers(void)
{
	siginfo_t info;
	for (;;) {
		info.si_pid = 0;
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == -1 || info.si_pid == 0)
			return;
		struct process *p = find(info.si_pid);
		if (p == NULL)
			waitpid(info.si_pid, NULL, WNOHANG);
		else if (p->loop == NULL)
			return; /* somebody waits for it, and comes by again */
		else
			ended(p->loop, &p->io, EV_READ);
	}
}

void process_report(const struct process *p, const char *name, int status, struct text *t)
{
	char uptime[32];
	text_add(t, "%s (pid %d) ", name, (int)p->last_pid);
	if (WIFSIGNALED(status))
		text_add(t, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		text_add(t, "left with exit code %d", WEXITSTATUS(status));
	text_add(t, " after %s", text_format_time(uptime, sizeof(uptime), clock_us() - p->started_us));
}
