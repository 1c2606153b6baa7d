/* SPDX-License-Identifier: MIT
 *
 * A worker's end of the link: does what the master says, and takes the master's death (EOF) as the word to drain.
 */
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void link_tell(struct worker *w, const struct link_message *msg, int fd)
{
	int r = net_link_send(&w->link, msg, sizeof(*msg), fd);
	if (r != 0 && r != -EPIPE) /* a master that died is seen by the end of the link */
		log_error("the master cannot be told (message %u): %s", msg->type, strerror(-r));
}

void link_send(struct worker *w, enum link_type type, const char *text)
{
	struct link_message m = {.type = type, .slot = w->slot};
	snprintf(m.text, sizeof(m.text), "%s", text);
	link_tell(w, &m, -1);
}

void link_fatal(struct worker *w, const char *text)
{
	struct link_message m = {.type = LINK_FATAL, .slot = w->slot};
	snprintf(m.text, sizeof(m.text), "%s", text);
	if (w->link.fd == -1) { /* there is no loop yet */
		net_send_fd(w->setup->link, &m, sizeof(m), -1);
	} else {
		link_tell(w, &m, -1);
		net_link_flush(&w->link, UINT64_MAX);
	}
	_exit(WORKER_EXIT_FATAL);
}

static struct input *input_numbered(struct worker *w, unsigned index)
{
	for (size_t i = 0; i < w->n_inputs; i++)
		if (w->inputs[i].index == index)
			return &w->inputs[i];
	return NULL;
}

bool link_pass(struct source *s, const struct input_passed *p)
{
	static struct link_connection c;
	struct worker *w = s->in->worker;
	c.head = (struct link_message){.type = LINK_CONNECTION,
				       .slot = w->slot,
				       .input = s->in->is_renamed ? s->in->renamed_to : s->in->index,
				       .value = p->is_skipping};
	BUG_ON(p->kept_bytes > sizeof c.kept);
	memcpy(c.kept, p->kept, p->kept_bytes);
	return net_link_offer(&w->link, &c, link_connection_bytes(p->kept_bytes), s->fd);
}

/* While we leave ourselves, too: it is handed on. */
static void take(struct worker *w, const struct link_connection *c, size_t bytes, int fd)
{
	struct input *in = input_numbered(w, c->head.input);
	for (size_t i = 0; !in && i < w->n_inputs; i++)
		if (w->inputs[i].is_renamed && w->inputs[i].renamed_to == c->head.input)
			in = &w->inputs[i]; /* a sibling's, and both know the former name */
	const struct input_passed p = {.is_skipping = c->head.value != 0,
				       .kept = c->kept,
				       .kept_bytes = (uint32_t)(bytes - sizeof c->head)};
	if (in && in->type->take && fd != -1)
		in->type->take(in, fd, &p);
	else if (fd != -1)
		close(fd);
}

static void end_of(struct worker *w, const struct link_message *m)
{
	struct input *in = input_numbered(w, m->input);
	if (!in)
		return;
	in->is_removed |= m->value == LINK_WHOLE;
	for (unsigned k = 0; k < in->n_endpoints; k++)
		in->endpoints[k].ends |= m->value == k; /* of an input that ends, too, some may go on in another one */
}

static void rename_input(struct worker *w, const struct link_message *m)
{
	struct input *in = input_numbered(w, m->input);
	if (!in)
		return;
	in->is_renamed = true;
	in->renamed_to = (unsigned)m->value;
}

static void adopt(struct worker *w, const struct link_message *m, int fd)
{
	struct input *in = input_numbered(w, m->input);
	bool may = fd != -1 && in && w->stage == WORKER_SERVING;
	if (!may && fd != -1)
		close(fd);
	if (!may || input_adopt(in, fd, m->slot) != 0)
		log_warn("cannot read the socket of worker %u for input %u; it waits for its next worker", m->slot,
			 m->input);
	else
		log_info("reading input \"%s\" for worker %u, too", in->cf->name, m->slot);
}

/* The master has opened it: we may not. */
static void reopen(struct worker *w, const struct link_message *m, int fd)
{
	if (fd == -1)
		return;
	if (m->input == LINK_FILE_LOG) {
		log_file_take(fd);
		return;
	}
	for (size_t i = 0; i < w->n_outputs; i++)
		if (w->outputs[i].index == m->input) {
			output_take_file(&w->outputs[i], fd);
			return;
		}
	close(fd);
}

static void obey(struct worker *w, const struct link_message *m, int fd)
{
	switch ((enum link_type)m->type) {
	case LINK_DRAIN:
		worker_drain(w, m->value, INPUT_ALL_END);
		break;
	case LINK_LEAVE:
		worker_drain(w, m->value, m->text[0] ? INPUT_SLOT_ENDS : INPUT_SLOT_STAYS);
		break;
	case LINK_GO:
		worker_go(w);
		break;
	case LINK_LINES:
		for (size_t i = 0; fd != -1 && i < w->n_outputs; i++)
			if (w->outputs[i].index == m->input && w->outputs[i].type->take)
				w->outputs[i].type->take(&w->outputs[i], fd, m->value);
		if (fd != -1)
			close(fd);
		break;
	case LINK_END:
		end_of(w, m);
		break;
	case LINK_OUTPUT_ENDS:
		for (size_t i = 0; i < w->n_outputs; i++)
			w->outputs[i].ends |= w->outputs[i].index == m->input;
		break;
	case LINK_RENAMED:
		rename_input(w, m);
		break;
	case LINK_SHARED:
		reload_shared(w, m, fd);
		break;
	case LINK_RELOAD:
		reload_apply(w, m, fd);
		break;
	case LINK_ADOPT:
		adopt(w, m, fd);
		break;
	case LINK_RELEASE:
		for (size_t i = 0; i < w->n_inputs; i++)
			input_release(&w->inputs[i], m->slot);
		break;
	case LINK_LOG:
		log_set_level((enum log_level)m->value);
		break;
	case LINK_REOPEN:
		reopen(w, m, fd);
		break;
	case LINK_READY:
	case LINK_FATAL:
	case LINK_DONE:
	case LINK_PEERS:
	case LINK_APPLIED:
	case LINK_TERM:
	case LINK_LEFT:
	case LINK_CONNECTION:
		break;
	}
}

static bool on_message(struct net_link *l, struct net_message *m)
{
	struct worker *w = l->owner;
	struct link_connection *c = (void *)m->bytes;
	if (m->len < sizeof(c->head)) {
		log_error("the master says what no master says");
		return false;
	}
	int fd = m->fd;
	m->fd = -1;
	c->head.text[sizeof(c->head.text) - 1] = '\0';
	if (c->head.type == LINK_CONNECTION)
		take(w, c, m->len, fd);
	else
		obey(w, &c->head, fd);
	return false;
}

static void on_end(struct net_link *l)
{
	struct worker *w = l->owner;
	log_warn("the master is gone: draining");
	worker_drain(w, w->cf->drain_timeout, INPUT_ALL_END);
}

static void on_room(struct net_link *l)
{
	drain_pass_on(l->owner);
}

void link_init(struct worker *w)
{
	w->link.on_message = on_message;
	w->link.on_end = on_end;
	w->link.on_room = on_room;
	w->link.owner = w;
	net_link_open(&w->link, w->loop, w->setup->link, sizeof(struct link_connection));
}
