/* SPDX-License-Identifier: MIT
 *
 * link: see net_link.h. A message is received only when memory and a descriptor for it are there, since the kernel throws
 * away a descriptor that finds no room (MSG_CTRUNC) and keeps the message.
 */
#include <errno.h>
#include <event.h>
#include <fcntl.h>
#include <limits.h>
#include <net_link.h>
#include <net.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const double again_seconds = 0.001;
/* In one turn; the loop comes back for the rest. From ROOM_MESSAGES on it is worth a look at once for all. */
enum { TURN_MESSAGES = 64, ROOM_MESSAGES = 4 };

struct net_message *net_message_new(const void *bytes, size_t len, int fd)
{
	int copy = fd == -1 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	struct net_message *m = fd != -1 && copy == -1 ? NULL : malloc(sizeof(*m) + len);
	if (m == NULL) {
		if (copy != -1)
			close(copy);
		return NULL;
	}
	m->fd = copy;
	m->len = len;
	memcpy(m->bytes, bytes, len);
	return m;
}

void net_message_free(struct net_message *m)
{
	if (m->fd != -1)
		close(m->fd);
	free(m);
}

int net_link_pair(int pair[2])
{
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == -1 ? -errno : 0;
}

/* -- sending --------------------------------------------------------------------------------------------------------- */

static void wait_for_room(struct net_link *l, int r)
{
	if (r == -EAGAIN)
		ev_io_start(l->loop, &l->writable);
	else
		ev_timer_again(l->loop, &l->again);
}

static int send_queued(struct net_link *l)
{
	struct net_message *m;
	int r = 0;
	while (r == 0 && (m = STAILQ_FIRST(&l->outbox)) != NULL) {
		r = net_send_fd(l->fd, m->bytes, m->len, m->fd);
		if (r != 0)
			break; /* for later, or the link is broken: then it will be closed */
		STAILQ_REMOVE_HEAD(&l->outbox, next);
		net_message_free(m);
	}
	return r;
}

static void send_on(struct net_link *l)
{
	ev_io_stop(l->loop, &l->writable);
	int r = send_queued(l);
	if (net_is_for_later(r))
		wait_for_room(l, r);
}

static void writable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	send_on(io->data);
}

static int send_now(struct net_link *l, const void *msg, size_t len, int fd)
{
	if (l->fd == -1)
		return -EPIPE;
	return STAILQ_EMPTY(&l->outbox) ? net_send_fd(l->fd, msg, len, fd) : -EAGAIN;
}

int net_link_send(struct net_link *l, const void *msg, size_t len, int fd)
{
	int r = send_now(l, msg, len, fd);
	if (!net_is_for_later(r))
		return r;
	struct net_message *m = net_message_new(msg, len, fd);
	if (m == NULL)
		return -ENOMEM;
	if (STAILQ_EMPTY(&l->outbox))
		wait_for_room(l, r);
	STAILQ_INSERT_TAIL(&l->outbox, m, next);
	return 0;
}

bool net_link_flush(struct net_link *l, uint64_t until_us)
{
	while (l->fd != -1) {
		int r = send_queued(l);
		uint64_t now_us = clock_us();
		if (!net_is_for_later(r) || now_us >= until_us)
			return r == 0;
		net_wait_to_send(l->fd, r, until_us - now_us);
	}
	return STAILQ_EMPTY(&l->outbox);
}

/* -- receiving ------------------------------------------------------------------------------------------------------- */

int net_link_recover(int fd, size_t size, struct net_message **m)
{
	struct net_message *room = malloc(sizeof(*room) + size);
	if (room == NULL)
		return -ENOMEM;
	ssize_t n = net_recv_fd(fd, room->bytes, size, &room->fd);
	if (n <= 0) {
		free(room);
		return (int)n;
	}
	room->len = (size_t)n;
	*m = realloc(room, sizeof(*room) + room->len);
	if (*m == NULL)
		*m = room;
	return 1;
}

static bool take_reserve(struct net_link *l)
{
	if (l->reserve == -1)
		l->reserve = fcntl(l->fd, F_DUPFD_CLOEXEC, 0);
	return l->reserve != -1;
}

/* So many descriptors are free, and as many for other threads: the last ones are (man 2 poll: POLLNVAL). */
static bool are_free(unsigned n)
{
	struct pollfd last[2 * TURN_MESSAGES];
	struct rlimit limit;
	n *= 2;
	if (getrlimit(RLIMIT_NOFILE, &limit) == -1 || limit.rlim_cur < n || limit.rlim_cur > INT_MAX)
		return false;
	for (unsigned i = 0; i < n; i++)
		last[i] = (struct pollfd){.fd = (int)(limit.rlim_cur - 1 - i)};
	return poll(last, n, 0) == (int)n;
}

static int hear_one(struct net_link *l, bool have_room)
{
	struct net_message *m = NULL;
	char byte;
	if (!take_reserve(l)) /* the end needs no descriptor */
		return recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ? 0 : -EMFILE;
	if (!have_room) {
		close(l->reserve);
		l->reserve = -1;
	}
	int r = net_link_recover(l->fd, l->size, &m);
	take_reserve(l);
	if (r == 1 && !l->on_message(l, m))
		net_message_free(m);
	return r;
}

static void hear(struct net_link *l)
{
	int r = 1;
	bool have_room = false;
	for (unsigned n = 0; r == 1 && n < TURN_MESSAGES; n++) {
		if (n == ROOM_MESSAGES)
			have_room = are_free(TURN_MESSAGES - n);
		r = hear_one(l, have_room);
		if (l->fd == -1)
			return;
	}
	if (r == 1 || r == -EAGAIN || r == -EINTR)
		return;
	ev_io_stop(l->loop, &l->readable);
	l->has_ended = r != -ENOMEM && r != -EMFILE;
	if (l->has_ended)
		l->on_end(l);
	else
		ev_timer_again(l->loop, &l->again);
}

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	hear(io->data);
}

void net_link_hear_out(struct net_link *l)
{
	while (l->fd != -1 && hear_one(l, false) == 1)
		;
}

/* -- both ------------------------------------------------------------------------------------------------------------ */

static void try_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)events;
	struct net_link *l = timer->data;
	ev_timer_stop(loop, timer);
	if (!l->has_ended)
		ev_io_start(loop, &l->readable);
	send_on(l);
}

void net_link_open(struct net_link *l, struct ev_loop *loop, int fd, size_t size)
{
	l->loop = loop;
	l->fd = fd;
	l->reserve = -1;
	l->size = size;
	l->has_ended = false;
	STAILQ_INIT(&l->outbox);
	ev_io_init(&l->readable, readable, fd, EV_READ);
	ev_io_init(&l->writable, writable, fd, EV_WRITE);
	ev_timer_init(&l->again, try_again, 0, again_seconds);
	l->readable.data = l->writable.data = l->again.data = l;
	ev_io_start(loop, &l->readable);
	take_reserve(l);
}

void net_link_close(struct net_link *l)
{
	struct net_message *m;
	if (l->fd == -1)
		return;
	ev_io_stop(l->loop, &l->readable);
	ev_io_stop(l->loop, &l->writable);
	ev_timer_stop(l->loop, &l->again);
	if (l->reserve != -1)
		close(l->reserve);
	close(l->fd);
	l->fd = l->reserve = -1;
	while ((m = STAILQ_FIRST(&l->outbox)) != NULL) {
		STAILQ_REMOVE_HEAD(&l->outbox, next);
		net_message_free(m);
	}
}
