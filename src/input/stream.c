/* SPDX-License-Identifier: MIT
 *
 * Stream inputs: tcp and unix. All workers accept from one listening socket. A read goes behind what the connection
 * kept of an unfinished line; whole lines are cut there, the rest is kept again. Messages behind their lengths become
 * lines on the way (framing.c). A line longer than LINE_MAX_BYTES is skipped to its newline. A connection is never closed
 * for what it sent.
 */
#include "stream.h"

#include <errno.h>
#include <event.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	/* A line that begins in a read and ends in it is never too long. */
	READ_BYTES = LINE_MAX_BYTES + 1,
	/* The longest unfinished line: its CR may be there, its newline not. */
	KEEP_BYTES = LINE_MAX_BYTES + 1,
	/* Connections accepted in one turn, so that the other workers get theirs. */
	ACCEPT_AT_ONCE = 8,
	/* Descriptors that connections leave free: whoever takes over from us needs some more than we have. */
	SPARE_FDS = 64,
};
static const double accept_pause_seconds = 0.1;

/* -- worker: accepting ----------------------------------------------------------------------------------------- */

static void listen_stop(struct stream *st)
{
	for (unsigned i = 0; i < st->n_listeners; i++)
		ev_io_stop(st->in->loop, &st->listeners[i].io);
}

static void listen_start(struct stream *st)
{
	for (unsigned i = 0; i < st->n_listeners; i++)
		ev_io_start(st->in->loop, &st->listeners[i].io);
}

static void accept_pause(struct stream *st, int code)
{
	st->in->stats->accept_pauses++;
	listen_stop(st);
	ev_timer_again(st->in->loop, &st->pause);
	uint64_t held;
	if (log_limit_pass(&st->pause_log, clock_us(), 10000, &held))
		log_warn("input \"%s\": accepting pauses: %s; it goes on as soon as it can%s", st->in->cf->name,
			 code ? strerror(code) : "max_connections is reached",
			 code == EMFILE ? " (raise the limit of open files: LimitNOFILE, ulimit -n)" : "");
}

static void accept_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)events;
	struct stream *st = timer->data;
	ev_timer_stop(loop, timer);
	if (!st->in->draining)
		listen_start(st);
}

static struct connection *connection_new(struct stream *st, int fd)
{
	struct connection *c = (struct connection *)source_new(st->in, NULL, fd, sizeof *c);
	if (!c)
		return NULL;
	c->stream = st;
	/* what comes from a sibling is taken even beyond max_connections */
	c->keep = st->n_free > 0 ? st->free_keeps[--st->n_free] : malloc(KEEP_BYTES);
	if (!c->keep) {
		source_free(&c->source);
		return NULL;
	}
	c->last_us = clock_us();
	if (st->in->type != &input_unix || st->in->cf->framing == CONF_FRAMING_LINES)
		c->framing.mode = FRAMING_LINES;
	else if (st->in->cf->framing == CONF_FRAMING_DOGSTATSD)
		c->framing.mode = FRAMING_MESSAGES;
	if (st->in->wants_from && getpeername(fd, (struct sockaddr *)&c->from, &(socklen_t){sizeof c->from}) == -1)
		c->from.ss_family = AF_UNSPEC;
	st->in->stats->open_connections++;
	return c;
}

/* The lowest free descriptor tells how many are in use. */
static bool has_descriptors(const struct listener *l)
{
	int fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 0);
	if (fd != -1)
		close(fd);
	return fd != -1 && fd < l->stream->most_fds;
}

/* Takes up to `most` connections. False: accepting has paused or nothing waits. */
static bool accept_some(struct listener *l, unsigned most)
{
	struct stream *st = l->stream;
	for (; most; most--) {
		if (st->n_free == 0) {
			accept_pause(st, 0);
			return false;
		}
		if (!has_descriptors(l)) {
			accept_pause(st, EMFILE);
			return false;
		}
		int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd == -1) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
				accept_pause(st, errno);
			else if (errno == ECONNABORTED || errno == EINTR)
				continue;
			return false;
		}
		int unread = 0;
		ioctl(fd, FIONREAD, &unread); /* before connection_new, which closes it when there is no memory */
		if (!connection_new(st, fd)) {
			st->in->stats->dropped_stream_bytes += (unsigned)unread;
			accept_pause(st, ENOMEM);
			return false;
		}
		st->in->stats->accepted_connections++;
	}
	return true;
}

static void acceptable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	accept_some(io->data, ACCEPT_AT_ONCE);
}

/* -- worker: connections --------------------------------------------------------------------------------------- */

static void set_kept(struct connection *c, size_t bytes)
{
	c->source.in->stats->unfinished_lines += (bytes > 0) - (c->keep_bytes > 0);
	c->keep_bytes = bytes;
}

/* The end of this line will never come. */
static void drop_unfinished(struct connection *c)
{
	if (c->keep_bytes == 0)
		return;
	c->source.in->stats->received_lines++;
	c->source.in->stats->dropped_truncated_lines++;
	set_kept(c, 0);
}

static void close_idle(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	struct stream *st = timer->data;
	struct input *in = st->in;
	uint64_t now = clock_us();
	for (struct source *s = in->sources, *next; s; s = next) {
		next = s->next;
		struct connection *c = (struct connection *)s;
		int unread = 0;
		if (now < c->last_us + in->cf->idle_timeout || in->reading == s)
			continue;
		/* it is not idle when we are: with its input held, or when the worker was busy for long */
		if (in->held || (ioctl(s->fd, FIONREAD, &unread) == 0 && unread > 0))
			continue;
		drop_unfinished(c);
		in->stats->idle_connections++;
		in->type->end(s);
	}
}

static void watch_idle(struct stream *st)
{
	uint64_t limit_us = st->in->cf->idle_timeout;
	ev_timer_stop(st->in->loop, &st->idle);
	if (limit_us == 0 || st->in->draining)
		return;
	st->idle.repeat = MIN(1.0, (double)limit_us / 1e6 / 4);
	ev_timer_again(st->in->loop, &st->idle);
}

static int stream_open(struct input *in, struct err *err)
{
	struct stream *st = calloc(1, sizeof *st);
	struct rlimit limit = {.rlim_cur = INT_MAX};
	if (!st)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	in->impl = st;
	st->in = in;
	getrlimit(RLIMIT_NOFILE, &limit);
	st->most_fds = (int)(MIN(limit.rlim_cur, INT_MAX) - MIN(limit.rlim_cur / 8, SPARE_FDS));
	stream_answers_init(st);
	size_t n = in->cf->max_connections;
	st->pool_bytes = n * KEEP_BYTES;
	st->pool =
	    mmap(NULL, n * KEEP_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	st->free_keeps = calloc(n, sizeof *st->free_keeps);
	st->listeners = calloc(in->n_endpoints, sizeof *st->listeners);
	if (st->pool == MAP_FAILED || !st->free_keeps || !st->listeners)
		return err_set(err, -ENOMEM,
			       "Cannot start: no memory for max_connections %zu of input \"%s\"; lower it.", n,
			       in->cf->name);
	for (st->n_free = 0; st->n_free < n; st->n_free++)
		st->free_keeps[st->n_free] = st->pool + (n - 1 - st->n_free) * KEEP_BYTES;
	for (unsigned i = 0; i < in->n_endpoints; i++) {
		struct listener *l = &st->listeners[st->n_listeners++];
		*l = (struct listener){
		    .stream = st, .ep = in->endpoints[i], .fd = endpoint_fd(in->endpoints[i], in->slot)};
		ev_io_init(&l->io, acceptable, l->fd, EV_READ);
		l->io.data = l;
	}
	ev_init(&st->pause, accept_again);
	st->pause.repeat = accept_pause_seconds;
	st->pause.data = st;
	ev_init(&st->idle, close_idle);
	st->idle.data = st;
	watch_idle(st);
	listen_start(st);
	return 0;
}

static void stream_drain(struct input *in)
{
	struct stream *st = in->impl;
	in->draining = true;
	for (unsigned i = 0; i < st->n_listeners; i++) {
		struct listener *l = &st->listeners[i];
		/* who has connected is served, then the socket listens no more, for any worker */
		bool ends = in->leave == INPUT_ALL_END || l->ep->ends;
		if (ends || st->n_free > 0)
			accept_some(l, UINT32_MAX);
		if (ends)
			shutdown(l->fd, SHUT_RDWR);
		ev_io_stop(in->loop, &l->io);
	}
	ev_timer_stop(in->loop, &st->pause);
	ev_timer_stop(in->loop, &st->idle);
}

static void drop_too_long(struct input *in)
{
	in->stats->received_lines++;
	in->stats->dropped_too_long_lines++;
}

/* A CR before the newline is not of the line. */
static bool is_too_long(const char *line, size_t len)
{
	return len > LINE_MAX_BYTES + 1u || (len == LINE_MAX_BYTES + 1u && line[len - 1] != '\r');
}

/* Where the whole lines of base[0..kept+fresh) begin, after what is too long. */
static char *skip_too_long(struct connection *c, char *base, size_t kept, size_t fresh)
{
	char *end = base + kept + fresh;
	if (!c->is_skipping && kept == 0)
		return base;
	char *newline = memchr(base + kept, '\n', fresh);
	if (!c->is_skipping) {
		size_t len = (size_t)((newline ? newline : end) - base);
		if (!is_too_long(base, len))
			return base;
		drop_too_long(c->source.in);
		c->is_skipping = true;
	}
	if (!newline)
		return end;
	c->is_skipping = false;
	return newline + 1;
}

static unsigned no_more(struct connection *c, struct batch *b, char *base)
{
	struct input *in = c->source.in;
	if (c->framing.left > 0)
		drop_unfinished(c); /* the rest of its message never came */
	size_t kept = c->keep_bytes;
	c->source.ended = c->source.drained = true;
	if (kept == 0)
		return 0;
	set_kept(c, 0);
	if (is_too_long(base, kept)) {
		drop_too_long(in);
		kept = 0;
	}
	b->items[0] =
		(struct item){.bytes = base, .len = (uint32_t)kept, .original_len = (uint32_t)kept, .from = &c->from};
	return b->n_items = 1;
}

static void lost_connection(struct connection *c)
{
	c->source.in->stats->reset_connections++;
	drop_unfinished(c);
	c->source.ended = c->source.drained = true;
}

/* Of a connection that is not known to bring plain lines: the fresh bytes behind the kept ones become lines. False: there
 * are too few to know what it brings; they are kept. */
static bool unwrap(struct connection *c, char *base, size_t *kept, size_t *fresh)
{
	struct receive_batch *r = c->source.in->receive;
	if (c->framing.mode == FRAMING_UNKNOWN) {
		size_t all = *kept + *fresh;
		c->framing.mode = framing_recognise(base, all);
		if (c->framing.mode == FRAMING_UNKNOWN) {
			memcpy(c->keep, base, all);
			set_kept(c, all);
			r->used = 0;
			return false;
		}
		if (c->framing.mode == FRAMING_LINES)
			return true;
		*kept = 0; /* they are of a length */
		*fresh = all;
		r->iovecs[0].iov_base = base;
	}
	*fresh = framing_unwrap(&c->framing, base + *kept, *fresh);
	r->iovecs[0].iov_len = *fresh; /* a newline more than was read, perhaps: the master believes no length beyond it */
	r->messages[0].msg_len = (unsigned)*fresh;
	if (c->framing.mode == FRAMING_LINES) {
		c->source.in->stats->received_lines++;
		c->source.in->stats->invalid_lines++;
	}
	return true;
}

static unsigned stream_read(struct source *s, struct batch *b)
{
	struct connection *c = (struct connection *)s;
	struct input *in = s->in;
	struct receive_batch *r = in->receive;
	char *base = r->slab[0];
	size_t kept = c->keep_bytes;
	memcpy(base, c->keep, kept);
	r->iovecs[0] = (struct iovec){base + kept, READ_BYTES};
	r->messages[0] = (struct mmsghdr){.msg_hdr = {.msg_iov = &r->iovecs[0], .msg_iovlen = 1}};
	r->used = 1;
	/* recvmmsg also for a stream: the kernel writes the length into the batch itself */
	int n = recvmmsg(s->fd, r->messages, 1, MSG_DONTWAIT, NULL);
	if (n == -1) {
		r->used = 0;
		if (errno != EAGAIN && errno != EINTR)
			lost_connection(c);
		s->drained = true;
		return 0;
	}
	size_t fresh = r->messages[0].msg_len;
	if (fresh == 0)
		return no_more(c, b, base);
	s->drained = fresh < READ_BYTES;
	c->last_us = clock_us();
	in->stats->reads++;
	in->stats->received_bytes += fresh;
	if (UNLIKELY(c->framing.mode != FRAMING_LINES) && !unwrap(c, base, &kept, &fresh))
		return 0;
	set_kept(c, 0);
	char *from = skip_too_long(c, base, kept, fresh);
	uint32_t len = (uint32_t)(base + kept + fresh - from);
	b->items[0] = (struct item){.bytes = from, .len = len, .original_len = len, .from = &c->from};
	return b->n_items = 1;
}

static void stream_after(struct source *s, char *rest, size_t rest_bytes)
{
	struct connection *c = (struct connection *)s;
	if (is_too_long(rest, rest_bytes)) {
		drop_too_long(s->in);
		c->is_skipping = true;
		rest_bytes = 0;
	}
	memcpy(c->keep, rest, rest_bytes);
	set_kept(c, rest_bytes);
	if (c->asked)
		stream_answer(c);
}

static void connection_free(struct connection *c)
{
	struct stream *st = c->stream;
	c->source.in->stats->open_connections--;
	if (c->keep >= st->pool && c->keep < st->pool + st->pool_bytes)
		st->free_keeps[st->n_free++] = c->keep;
	else
		free(c->keep);
	stream_answer_detach(c);
	source_free(&c->source);
}

static void stream_end(struct source *s)
{
	struct connection *c = (struct connection *)s;
	struct input *in = s->in;
	if (c->keep_bytes) { /* only at a shutdown: elsewhere the end of the stream ends the line */
		in->stats->received_lines++;
		in->stats->dropped_shutdown_lines++;
		set_kept(c, 0);
	}
	int unread = 0;
	if (!s->ended && ioctl(s->fd, FIONREAD, &unread) == 0 && unread > 0)
		in->stats->dropped_stream_bytes += (unsigned)unread;
	connection_free(c);
}

static bool stream_pass(struct source *s)
{
	struct connection *c = (struct connection *)s;
	struct input *in = s->in;
	const struct input_passed p = {
	    .is_skipping = c->is_skipping, .framing = framing_pack(&c->framing), .kept = c->keep,
	    .kept_bytes = (uint32_t)c->keep_bytes};
	if (!in->on_pass(s, &p))
		return false;
	set_kept(c, 0);
	in->stats->passed_connections++;
	connection_free(c);
	return true;
}

static void stream_take(struct input *in, int fd, const struct input_passed *p)
{
	struct stream *st = in->impl;
	int unread = 0;
	ioctl(fd, FIONREAD, &unread); /* before connection_new, which closes it when there is no memory */
	struct connection *c = connection_new(st, fd);
	in->stats->taken_connections++;
	if (c) {
		memcpy(c->keep, p->kept, p->kept_bytes);
		set_kept(c, p->kept_bytes);
		c->is_skipping = p->is_skipping;
		c->framing = framing_unpack(p->framing);
		return;
	}
	in->stats->dropped_stream_bytes += (unsigned)unread;
	if (p->kept_bytes) {
		in->stats->received_lines++;
		in->stats->dropped_shutdown_lines++;
	}
}

const struct input_type input_tcp = {
    .name = "tcp",
    .is_stream = true,
    .endpoint = &endpoint_tcp,
    .open = stream_open,
    .drain = stream_drain,
    .read = stream_read,
    .after = stream_after,
    .end = stream_end,
    .pass = stream_pass,
    .take = stream_take,
};

const struct input_type input_unix = {
    .name = "unix",
    .is_stream = true,
    .endpoint = &endpoint_unix,
    .open = stream_open,
    .drain = stream_drain,
    .read = stream_read,
    .after = stream_after,
    .end = stream_end,
    .pass = stream_pass,
    .take = stream_take,
};
