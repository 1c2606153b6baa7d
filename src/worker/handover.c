/* SPDX-License-Identifier: MIT
 *
 * handover: what this worker holds goes to its successor, or comes from its predecessor, over a channel that the master
 * made and does not read. Giving waits for the channel, since there is nothing else to do any more; taking never does.
 */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { TURN_MESSAGES = 64, PATIENCE_TIMES = 100 };
static const double no_descriptor_seconds = 0.001;

/* HANDOVER_CONNECTION. Its length says how much of `kept` there is. */
struct connection_message {
	struct handover head;
	uint32_t is_skipping;
	uint32_t kept_bytes;
	char kept[LINE_MAX_BYTES + 1];
};

/* One channel that we take over from. */
struct takeover {
	LIST_ENTRY(takeover) next;
	struct worker *w;
	unsigned slot;
	struct ev_io io;
	struct ev_timer pause; /* while no descriptor is free */
	unsigned n_pauses;
};

union message {
	struct handover head;
	struct connection_message connection;
	char bytes[HANDOVER_BYTES_MAX];
};

/* -- giving ---------------------------------------------------------------------------------------------------------- */

bool handover_give_connection(struct source *s, const struct input_passed *p)
{
	static struct connection_message c;
	struct worker *w = s->in->worker;
	if (w->channel == -1 || p->kept_bytes > sizeof(c.kept))
		return false;
	c.head = (struct handover){.version = HANDOVER_VERSION, .type = HANDOVER_CONNECTION, .records = p->kept_bytes > 0};
	snprintf(c.head.name, sizeof(c.head.name), "%s", s->in->next_name ? s->in->next_name : s->in->cf->name);
	c.is_skipping = p->is_skipping;
	c.kept_bytes = p->kept_bytes;
	memcpy(c.kept, p->kept, p->kept_bytes);
	size_t len = offsetof(struct connection_message, kept) + p->kept_bytes;
	return handover_send(w->channel, &c, len, s->fd, w->deadline_at_us) == 0;
}

void handover_give(struct worker *w)
{
	const struct handover end = {.version = HANDOVER_VERSION, .type = HANDOVER_END};
	if (w->channel == -1)
		return;
	for (size_t i = 0; i < w->n_outputs; i++) {
		struct output *out = &w->outputs[i];
		if (out->type->hand_over && !out->ends)
			out->type->hand_over(out, w->channel, w->deadline_at_us);
	}
	int r = handover_send(w->channel, &end, sizeof(end), -1, w->deadline_at_us);
	if (r != 0)
		log_warn("cannot hand all over to the next worker: %s", strerror(-r));
	close(w->channel);
	w->channel = -1;
}

/* -- taking ---------------------------------------------------------------------------------------------------------- */

static struct input *input_named(struct worker *w, const char *name)
{
	for (size_t i = 0; i < w->n_inputs; i++)
		if (strcmp(w->inputs[i].cf->name, name) == 0)
			return &w->inputs[i];
	return NULL;
}

static struct output *output_named(struct worker *w, const char *name)
{
	for (size_t i = 0; i < w->n_outputs; i++)
		if (strcmp(w->outputs[i].cf->name, name) == 0)
			return &w->outputs[i];
	return NULL;
}

/* Its input is no more, or its descriptor did not come: what is known of it is counted. */
static void lose_connection(struct worker *w, struct input *in, const struct connection_message *c, int fd)
{
	int unread = 0;
	if (in == NULL)
		in = &w->inputs[0];
	if (fd != -1 && ioctl(fd, FIONREAD, &unread) == 0 && unread > 0)
		in->stats->dropped_stream_bytes += (unsigned)unread;
	in->stats->received_lines += c->kept_bytes > 0;
	in->stats->dropped_shutdown_lines += c->kept_bytes > 0;
	log_warn("input \"%s\": a connection of the worker before is closed: %s", c->head.name,
		 fd == -1 ? "no descriptor was free for it" : "nobody has an input of this name");
	if (fd != -1)
		close(fd);
}

static void take_connection(struct worker *w, const struct connection_message *c, size_t len, int fd)
{
	struct input *in = input_named(w, c->head.name);
	if (len < offsetof(struct connection_message, kept) || c->kept_bytes > sizeof(c->kept) ||
	    len < offsetof(struct connection_message, kept) + c->kept_bytes) {
		log_error("a connection was handed over in a form that this millrace does not know: it is closed");
		if (fd != -1)
			close(fd);
		return;
	}
	const struct input_passed p = {
	    .is_skipping = c->is_skipping != 0, .kept = c->kept, .kept_bytes = c->kept_bytes};
	if (in != NULL && in->type->take && fd != -1)
		in->type->take(in, fd, &p);
	else
		lose_connection(w, in, c, fd);
}

/* Of an output that this configuration does not have, or in a form that we do not know: in the account of the first. */
static void lose_records(struct worker *w, const struct handover *msg)
{
	struct output *out = &w->outputs[0];
	struct stats_backend *be = stats_backend(w->page, out->blocks[0]);
	be->taken_over_records += msg->records;
	be->dropped_shutdown_records += msg->records;
	stats_touch(w->page, STATS_BACKEND, out->blocks[0]);
	if (msg->records > 0)
		log_error("output \"%s\": %llu records of the worker before are lost: there is no such output any more",
			  msg->name, (unsigned long long)msg->records);
}

static void take_records(struct worker *w, const struct handover *msg, size_t len, int fd)
{
	struct output *out = output_named(w, msg->name);
	if (out != NULL && out->type->take_over) {
		out->type->take_over(out, msg, len, fd);
		return;
	}
	lose_records(w, msg);
	if (fd != -1)
		close(fd);
}

static void takeover_end(struct takeover *t)
{
	struct worker *w = t->w;
	struct link_message msg = {.type = LINK_TAKEN, .slot = t->slot};
	bool was_own = t->slot == w->slot;
	ev_io_stop(w->loop, &t->io);
	ev_timer_stop(w->loop, &t->pause);
	close(t->io.fd);
	LIST_REMOVE(t, next);
	free(t);
	link_send(w, &msg);
	if (was_own && w->stage == WORKER_AWAITING)
		worker_go(w);
}

/* False: that was the last. */
static bool take(struct worker *w, union message *m, size_t len, int fd)
{
	m->head.name[sizeof(m->head.name) - 1] = '\0';
	switch (m->head.type) {
	case HANDOVER_CONNECTION:
		take_connection(w, &m->connection, len, fd);
		return true;
	case HANDOVER_END:
		if (fd != -1)
			close(fd);
		return false;
	default: /* those of outputs; what a later version adds has `records`, too */
		take_records(w, &m->head, len, fd);
		return true;
	}
}

/* A descriptor that comes when none is free is gone (MSG_CTRUNC), and a look beforehand (MSG_PEEK) takes one, too. */
static bool has_free_descriptor(void)
{
	int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
	if (fd != -1)
		close(fd);
	return fd != -1;
}

static void takeover_read(struct takeover *t)
{
	static union message m;
	struct worker *w = t->w;
	for (unsigned n = 0; n < TURN_MESSAGES; n++) {
		int fd;
		if (!has_free_descriptor() && t->n_pauses++ < PATIENCE_TIMES) {
			ev_io_stop(w->loop, &t->io);
			ev_timer_again(w->loop, &t->pause);
			return;
		}
		ssize_t len = net_recv_fd(t->io.fd, &m, sizeof(m), &fd);
		if (len == -EAGAIN || len == -EINTR)
			return;
		if (len < (ssize_t)sizeof(m.head) || !take(w, &m, (size_t)len, fd)) {
			takeover_end(t);
			return;
		}
	}
}

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	takeover_read(io->data);
}

static void paused(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)events;
	struct takeover *t = timer->data;
	ev_timer_stop(loop, timer);
	ev_io_start(loop, &t->io);
	takeover_read(t);
}

int handover_open(struct worker *w, int channel, unsigned slot)
{
	struct takeover *t = calloc(1, sizeof(*t));
	if (t == NULL) {
		close(channel);
		return -ENOMEM;
	}
	t->w = w;
	t->slot = slot;
	ev_io_init(&t->io, readable, channel, EV_READ);
	ev_init(&t->pause, paused);
	t->pause.repeat = no_descriptor_seconds;
	t->io.data = t->pause.data = t;
	LIST_INSERT_HEAD(&w->takeovers, t, next);
	ev_io_start(w->loop, &t->io);
	return 0;
}
