/* SPDX-License-Identifier: MIT
 *
 * post: what the master has for a worker and could not hand over yet: messages for a link that is full, and stream
 * connections whose worker has left and whose next one is not there. Master only.
 */
#include "master.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct letter *letter_new(const void *bytes, size_t len, int fd)
{
	struct letter *l = malloc(sizeof *l + len);
	if (!l)
		return NULL;
	l->fd = fd;
	l->len = len;
	memcpy(l->bytes, bytes, len);
	return l;
}

static void letter_free(struct letter *l)
{
	if (l->fd != -1)
		close(l->fd);
	free(l);
}

static void send_on(struct slot *s)
{
	struct letter *l;
	while ((l = STAILQ_FIRST(&s->outbox)) != NULL) {
		int r = net_send_fd(s->link, l->bytes, l->len, l->fd);
		if (r == -EAGAIN)
			return;
		/* a link that is broken is seen by its reader */
		STAILQ_REMOVE_HEAD(&s->outbox, next);
		letter_free(l);
	}
	ev_io_stop(s->m->loop, &s->writable);
}

static void writable(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	send_on(io->data);
}

void post_open(struct slot *s)
{
	ev_io_init(&s->writable, writable, s->link, EV_WRITE);
	s->writable.data = s;
}

int post_send(struct slot *s, const void *msg, size_t len, int fd)
{
	if (s->link == -1)
		return -EPIPE;
	int r = STAILQ_EMPTY(&s->outbox) ? net_send_fd(s->link, msg, len, fd) : -EAGAIN;
	if (r != -EAGAIN)
		return r;
	int copy = fd == -1 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	struct letter *l = fd != -1 && copy == -1 ? NULL : letter_new(msg, len, copy);
	if (!l) {
		if (copy != -1)
			close(copy);
		return -ENOMEM;
	}
	STAILQ_INSERT_TAIL(&s->outbox, l, next);
	ev_io_start(s->m->loop, &s->writable);
	return 0;
}

static enum link_type type_of(const struct letter *l)
{
	return ((const struct link_message *)(const void *)l->bytes)->type;
}

static bool is_connection(const struct letter *l)
{
	return type_of(l) == LINK_CONNECTION || type_of(l) == LINK_LINES;
}

void post_close(struct slot *s)
{
	struct letter *l;
	ev_io_stop(s->m->loop, &s->writable);
	while ((l = STAILQ_FIRST(&s->outbox)) != NULL) {
		STAILQ_REMOVE_HEAD(&s->outbox, next);
		if (is_connection(l))
			STAILQ_INSERT_TAIL(&s->connections, l, next);
		else
			letter_free(l);
	}
}

/* -- connections --------------------------------------------------------------------------------------------------- */

/* Lines that no worker will have: they were passed, and are lost here. In the account of their output's first backend. */
static void count_lines(struct slot *s, const struct letter *l)
{
	struct master *m = s->m;
	const struct link_message *msg = (const void *)l->bytes;
	uint64_t lines = msg->value;
	for (size_t i = 0; i < m->n_outputs; i++) {
		if (m->outputs[i].index != msg->input)
			continue;
		struct stats_backend *be = stats_backend(s->page, m->outputs[i].blocks[0]);
		be->taken_over_records += lines;
		be->dropped_shutdown_records += lines;
		stats_touch(s->page, STATS_BACKEND, m->outputs[i].blocks[0]);
	}
	m->has_left |= lines > 0;
	log_warn("%llu lines that worker %u had handed over are lost", (unsigned long long)lines, s->number);
}

static void count(struct slot *s, const struct letter *l)
{
	const struct link_message *msg = (const void *)l->bytes;
	struct stats_input *st = stats_input(s->page, msg->input);
	int unread = 0;
	if (ioctl(l->fd, FIONREAD, &unread) == 0 && unread > 0)
		st->dropped_stream_bytes += (unsigned)unread;
	if (l->len > sizeof *msg) {
		st->received_lines++;
		st->dropped_shutdown_lines++;
	}
	stats_touch(s->page, STATS_INPUT, msg->input);
}

void post_keep_connection(struct slot *s, const void *msg, size_t len, int fd)
{
	struct letter *l = letter_new(msg, len, fd);
	if (l) {
		STAILQ_INSERT_TAIL(&s->connections, l, next);
		return;
	}
	log_error("no memory for a connection of worker %u: it is closed", s->number);
	close(fd);
}

void post_give_connections(struct slot *from, struct slot *to)
{
	struct letter *l;
	while ((l = STAILQ_FIRST(&from->connections)) != NULL) {
		if (post_send(to, l->bytes, l->len, l->fd) != 0)
			return;
		STAILQ_REMOVE_HEAD(&from->connections, next);
		letter_free(l);
	}
}

void post_count_connections(struct slot *s)
{
	struct letter *l;
	while ((l = STAILQ_FIRST(&s->connections)) != NULL) {
		STAILQ_REMOVE_HEAD(&s->connections, next);
		if (type_of(l) == LINK_LINES)
			count_lines(s, l);
		else
			count(s, l);
		letter_free(l);
	}
	stats_publish(s->page);
}
