/* SPDX-License-Identifier: MIT
 *
 * handover: what this worker holds goes to its successor, or comes from its predecessor, over a channel that the master
 * made and does not read. Giving waits for the channel, since there is nothing else to do any more; taking never does.
 */
#include "worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* HANDOVER_CONNECTION. Its length says how much of `kept` there is. */
struct connection_message {
	struct handover head;
	uint32_t is_skipping;
	uint32_t kept_bytes;
	uint64_t framing;
	char kept[LINE_MAX_BYTES + 1];
};

/* One channel that we take over from. */
struct takeover {
	LIST_ENTRY(takeover) next;
	struct worker *w;
	unsigned slot;
	struct net_link link; /* closed: it is over */
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
	c.framing = p->framing;
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
	struct input *in = input_named(w->inputs, w->n_inputs, c->head.name);
	if (len < offsetof(struct connection_message, kept) || c->kept_bytes > sizeof(c->kept) ||
	    len < offsetof(struct connection_message, kept) + c->kept_bytes) {
		log_error("a connection was handed over in a form that this millrace does not know: it is closed");
		if (fd != -1)
			close(fd);
		return;
	}
	const struct input_passed p = {
	    .is_skipping = c->is_skipping != 0, .framing = c->framing, .kept = c->kept, .kept_bytes = c->kept_bytes};
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
	struct output *out = output_named(w->outputs, w->n_outputs, msg->name);
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
	net_link_close(&t->link);
	link_send(w, &msg);
	if (t->slot == w->slot && w->stage == WORKER_AWAITING)
		worker_go(w);
}

static void on_end(struct net_link *l)
{
	takeover_end(l->owner);
}

static bool on_message(struct net_link *l, struct net_message *m)
{
	struct takeover *t = l->owner;
	struct handover *msg = (void *)m->bytes;
	int fd = m->fd;
	m->fd = -1;
	if (m->len < sizeof(*msg) || msg->type == HANDOVER_END) {
		if (fd != -1)
			close(fd);
		takeover_end(t);
		return false;
	}
	msg->name[sizeof(msg->name) - 1] = '\0';
	if (msg->type == HANDOVER_CONNECTION)
		take_connection(t->w, (const void *)msg, m->len, fd);
	else /* those of outputs; what a later version adds has `records`, too */
		take_records(t->w, msg, m->len, fd);
	return false;
}

void handover_leave(struct worker *w)
{
	struct takeover *t;
	LIST_FOREACH(t, &w->takeovers, next)
	{
		net_link_close(&t->link);
	}
}

int handover_open(struct worker *w, int channel, unsigned slot)
{
	struct takeover *t;
	LIST_FOREACH(t, &w->takeovers, next)
	{
		if (t->link.fd == -1)
			break;
	}
	if (t == NULL && (t = calloc(1, sizeof(*t))) != NULL)
		LIST_INSERT_HEAD(&w->takeovers, t, next);
	if (t == NULL) {
		close(channel);
		return -ENOMEM;
	}
	t->w = w;
	t->slot = slot;
	t->link.owner = t;
	t->link.on_message = on_message;
	t->link.on_end = on_end;
	net_link_open(&t->link, w->loop, channel, HANDOVER_BYTES_MAX);
	return 0;
}
