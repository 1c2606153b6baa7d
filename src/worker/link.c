/* SPDX-License-Identifier: MIT
 *
 * A worker's end of the link: does what the master says, and takes the master's death (EOF) as the word to drain.
 */
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void link_send(struct worker *w, enum link_type type, const char *text)
{
	struct link_message m = {.type = type, .slot = w->slot};
	snprintf(m.text, sizeof m.text, "%s", text);
	net_send_fd(w->setup->link, &m, sizeof m, -1); /* a dead master shows as EOF */
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
				       .value = p->framing << 1 | p->is_skipping};
	BUG_ON(p->kept_bytes > sizeof c.kept);
	memcpy(c.kept, p->kept, p->kept_bytes);
	return net_send_fd(w->setup->link, &c, link_connection_bytes(p->kept_bytes), s->fd) == 0;
}

/* While we leave ourselves, too: it is handed on. */
static void take(struct worker *w, const struct link_connection *c, size_t bytes, int fd)
{
	struct input *in = input_numbered(w, c->head.input);
	for (size_t i = 0; !in && i < w->n_inputs; i++)
		if (w->inputs[i].is_renamed && w->inputs[i].renamed_to == c->head.input)
			in = &w->inputs[i]; /* a sibling's, and both know the former name */
	const struct input_passed p = {.is_skipping = c->head.value & 1,
				       .framing = c->head.value >> 1,
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

static void linked(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)events;
	struct worker *w = io->data;
	static struct link_connection m;
	int fd;
	for (;;) {
		ssize_t n = net_recv_fd(io->fd, &m, sizeof m, &fd);
		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n < (ssize_t)sizeof m.head)
			break;
		m.head.text[sizeof m.head.text - 1] = '\0';
		if (m.head.type == LINK_CONNECTION)
			take(w, &m, (size_t)n, fd);
		else
			obey(w, &m.head, fd);
	}
	ev_io_stop(loop, io);
	log_warn("the master is gone: draining");
	worker_drain(w, w->cf->drain_timeout, INPUT_ALL_END);
}

static void writable(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	drain_pass_on(io->data);
}

void link_init(struct worker *w)
{
	ev_io_init(&w->link_writable, writable, w->setup->link, EV_WRITE);
	w->link_writable.data = w;
	ev_io_init(&w->link, linked, w->setup->link, EV_READ);
	w->link.data = w;
	ev_io_start(w->loop, &w->link);
}
