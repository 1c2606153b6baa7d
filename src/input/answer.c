/* SPDX-License-Identifier: MIT
 *
 * The "status" command of stream inputs: statsrelay's answer, for all workers together. An answer has its own copy of
 * the descriptor, so that a client which closes its side after the command ("echo status | nc") gets all of it, and one
 * that resets or does not read harms nobody.
 */
#include "invalid.h"
#include "stream.h"

#include <errno.h>
#include <event.h>
#include <string.h>
#include <unistd.h>

static const double answer_timeout_seconds = 30; /* without progress */

struct answer {
	struct ev_io io;
	struct ev_timer timeout;
	struct input *in;
	struct connection *c; /* NULL: it has ended */
	unsigned asked;       /* commands that are still to be answered, one at a time */
	struct text text;
	size_t sent_bytes;
	int fd;
};

static bool is_command(void *arg, const char *bytes, size_t len)
{
	struct input *in = arg;
	if (len != 6 || memcmp(bytes, "status", 6) != 0) {
		invalid_note(in, bytes, len);
		return false;
	}
	((struct connection *)in->reading)->asked++;
	return true;
}

void stream_answers_init(struct stream *st)
{
	st->in->lines->on_invalid = is_command;
	st->in->lines->on_invalid_arg = st->in;
}

static void answer_free(struct answer *a)
{
	ev_io_stop(a->in->loop, &a->io);
	ev_timer_stop(a->in->loop, &a->timeout);
	if (a->c)
		a->c->answer = NULL;
	close(a->fd);
	text_free(&a->text);
	free(a);
}

/* At most one answer a turn: a client may ask 9,000 times in one read, and a thousand backends fill 250 KB. */
static void answer_go_on(struct answer *a)
{
	if (a->sent_bytes == a->text.len) {
		a->asked--;
		a->sent_bytes = a->text.len = 0;
		a->in->on_status(a->in, &a->text);
	}
	while (a->sent_bytes < a->text.len) {
		ssize_t n =
		    send(a->fd, a->text.s + a->sent_bytes, a->text.len - a->sent_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n == -1 && errno == EAGAIN)
			break;
		if (n == -1) { /* the peer is gone: it misses its answer, nobody else does */
			answer_free(a);
			return;
		}
		a->sent_bytes += (size_t)n;
		ev_timer_again(a->in->loop, &a->timeout);
	}
	if (a->sent_bytes == a->text.len && a->asked == 0)
		answer_free(a);
	else
		ev_io_start(a->in->loop, &a->io);
}

static void writable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	answer_go_on(io->data);
}

static void timed_out(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	answer_free(timer->data);
}

static struct answer *answer_new(struct connection *c)
{
	int fd = dup(c->source.fd);
	struct answer *a = fd == -1 ? NULL : calloc(1, sizeof *a);
	if (!a) {
		if (fd != -1)
			close(fd);
		return NULL;
	}
	a->fd = fd;
	a->c = c;
	a->in = c->source.in;
	ev_io_init(&a->io, writable, fd, EV_WRITE);
	ev_init(&a->timeout, timed_out);
	a->timeout.repeat = answer_timeout_seconds;
	a->io.data = a->timeout.data = a;
	ev_timer_again(a->in->loop, &a->timeout);
	return c->answer = a;
}

void stream_answer(struct connection *c)
{
	struct answer *a = c->answer;
	unsigned asked = c->asked;
	c->asked = 0;
	if (a) {
		a->asked += asked; /* it goes on when the peer takes it */
		return;
	}
	a = answer_new(c);
	if (!a)
		return;
	a->asked = asked;
	answer_go_on(a);
}

void stream_answer_detach(struct connection *c)
{
	if (c->answer)
		c->answer->c = NULL;
}
