/* SPDX-License-Identifier: MIT
 *
 * try: what may hang, take long, start threads or end the process runs in a child: see process.h. Its text comes through
 * a pipe, its end is told by its pidfd.
 */
#include <errno.h>
#include <event.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <process.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void child(const struct try *t, try_function *f, void *arg, int fd)
{
	struct text said = {0};
	int keep[ARRAY_LEN(t->keep) + 1];
	memcpy(keep, t->keep, sizeof(t->keep));
	keep[t->n_keep] = fd;
	proc_close_others(keep, t->n_keep + 1);
	if (t->takes_output) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
	}
	signal(SIGPIPE, SIG_IGN); /* nobody listens: it ends all the same */
	int code = f(arg, &said);
	proc_write(fd, said.s, said.len);
	_exit(said.failed && code == 0 ? EXIT_FAILURE : code); /* without waiting for a library's threads */
}

static int begin(struct try *t, try_function *f, void *arg)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) == -1)
		return -errno;
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	fflush(NULL);
	pid_t pid = process_fork(&t->process);
	if (pid == 0)
		child(t, f, arg, ends[1]);
	close(ends[1]);
	if (pid < 0) {
		close(ends[0]);
		return pid;
	}
	t->fd = ends[0];
	return 0;
}

/* False: its end of the pipe is closed. */
static bool read_on(struct try *t)
{
	char buf[4096];
	ssize_t n;
	while ((n = read(t->fd, buf, sizeof(buf))) > 0)
		text_add_bytes(&t->said, buf, (size_t)n);
	return n == -1 && (errno == EAGAIN || errno == EINTR);
}

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	if (!read_on(io->data))
		ev_io_stop(loop, io);
}

static void late(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	struct try *t = timer->data;
	t->is_late = true;
	process_signal(&t->process, SIGKILL);
}

static void close_all(struct try *t)
{
	if (t->loop != NULL) {
		ev_io_stop(t->loop, &t->io);
		ev_timer_stop(t->loop, &t->deadline);
	}
	close(t->fd);
	t->fd = -1;
}

static void ended(struct process *p, int status)
{
	struct try *t = p->owner;
	read_on(t);
	close_all(t);
	t->on_end(t, status);
}

int try_start(struct try *t, struct ev_loop *loop, try_function *f, void *arg, uint64_t limit_us)
{
	t->process.owner = t;
	t->process.on_exit = ended;
	int r = begin(t, f, arg);
	if (r != 0)
		return r;
	t->loop = loop;
	ev_io_init(&t->io, readable, t->fd, EV_READ);
	ev_timer_init(&t->deadline, late, (double)limit_us / 1e6, 0);
	t->io.data = t->deadline.data = t;
	ev_io_start(loop, &t->io);
	ev_timer_start(loop, &t->deadline);
	process_watch(&t->process, loop);
	return 0;
}

int try_now(struct try *t, try_function *f, void *arg, uint64_t limit_us, int *status)
{
	uint64_t until_us = clock_us() + limit_us;
	int r = begin(t, f, arg);
	if (r != 0)
		return r;
	/* its text first: a pipe that is full would keep it from ending */
	for (bool is_open = true; is_open && !t->is_late;) {
		struct pollfd ends[] = {{.fd = t->fd, .events = POLLIN}, {.fd = t->process.pidfd, .events = POLLIN}};
		uint64_t now_us = clock_us();
		t->is_late = now_us >= until_us;
		poll(ends, ARRAY_LEN(ends), t->is_late ? 0 : (int)MIN((until_us - now_us) / 1000 + 1, INT_MAX));
		is_open = read_on(t) && ends[1].revents == 0;
	}
	if (!process_wait(&t->process, until_us, status)) {
		t->is_late = true;
		process_signal(&t->process, SIGKILL);
		process_wait(&t->process, UINT64_MAX, status);
	}
	read_on(t);
	close_all(t);
	return 0;
}

void try_free(struct try *t)
{
	int status;
	if (t->process.pid != 0) {
		process_signal(&t->process, SIGKILL);
		process_wait(&t->process, UINT64_MAX, &status);
		close_all(t);
	}
	text_free(&t->said);
}
