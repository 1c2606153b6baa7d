/* SPDX-License-Identifier: MIT
 *
 * A worker's end of the link: does what the master says, and takes the master's death (EOF) as the word to drain.
 */
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void link_send(struct worker *w, const struct link_message *msg)
{
	struct link_message m = *msg;
	m.version = LINK_VERSION;
	int r = net_link_send(&w->link, &m, sizeof(m), -1);
	if (r != 0 && r != -EPIPE) /* a master that died is seen by the end of the link */
		log_error("the master cannot be told (message %u): %s", m.type, strerror(-r));
}

void link_fatal(struct worker *w, const char *text)
{
	struct link_message m = {.version = LINK_VERSION, .type = LINK_FATAL, .slot = w->slot};
	snprintf(m.text, sizeof(m.text), "%s", text);
	if (w->link.fd == -1) { /* there is no loop yet */
		net_send_fd(w->setup->link, &m, sizeof(m), -1);
	} else {
		link_send(w, &m);
		net_link_flush(&w->link, UINT64_MAX);
	}
	_exit(WORKER_EXIT_FATAL);
}

void link_say(struct worker *w, enum link_type type, const char *text)
{
	struct link_message m = {.type = type, .slot = w->slot};
	snprintf(m.text, sizeof(m.text), "%s", text);
	link_send(w, &m);
}

/* What comes after us will not have it. */
static void gone(struct worker *w, const struct link_message *m)
{
	struct input *in = input_named(w->inputs, w->n_inputs, m->name);
	struct output *out = output_named(w->outputs, w->n_outputs, m->name);
	switch ((enum link_gone)m->value) {
	case LINK_GONE_INPUT:
		if (in != NULL)
			in->is_removed = true;
		break;
	case LINK_GONE_ENDPOINT:
		for (unsigned k = 0; in != NULL && k < in->n_endpoints; k++)
			if (strcmp(in->endpoints[k]->name, m->text) == 0)
				in->endpoints[k]->ends = in->endpoints[k]->is_retired = true;
		break;
	case LINK_GONE_OUTPUT:
		if (out != NULL)
			out->ends = true;
		break;
	case LINK_GONE_NAME:
		if (in != NULL && in->next_name == NULL)
			in->next_name = strdup(m->text);
		break;
	}
}

static void lend(struct worker *w, const struct link_message *m, int fd)
{
	struct input *in = input_named(w->inputs, w->n_inputs, m->name);
	if (fd == -1) {
		for (size_t i = 0; i < w->n_inputs; i++)
			input_release(&w->inputs[i], m->slot);
		return;
	}
	bool may = in != NULL && w->stage == WORKER_SERVING;
	if (!may)
		close(fd);
	if (!may || input_adopt(in, fd, m->slot) != 0)
		log_warn("cannot read the socket of worker %u for input \"%s\"; it waits for its next worker", m->slot,
			 m->name);
	else
		log_info("reading input \"%s\" for worker %u, too", in->cf->name, m->slot);
}

/* The master has opened it: we may not. */
static void reopen(struct worker *w, const struct link_message *m, int fd)
{
	struct output *out = output_named(w->outputs, w->n_outputs, m->name);
	if (m->name[0] == '\0')
		log_turn_to((enum log_target)m->value, fd);
	else if (fd != -1 && out != NULL)
		output_take_file(out, fd);
	else if (fd != -1)
		close(fd);
}

static void leave(struct worker *w, const struct link_message *m, int fd)
{
	if (m->name[0] == '\0') {
		worker_drain(w, m->value, INPUT_ALL_END);
	} else if (w->stage == WORKER_SERVING) {
		w->channel = fd; /* -1: it was lost on the way; what it was for is delivered here */
		worker_drain(w, m->value, m->slot == w->slot ? INPUT_SLOT_STAYS : INPUT_SLOT_ENDS);
	} else if (fd != -1) {
		close(fd); /* a drain of all is under way */
	}
}

static void obey(struct worker *w, const struct link_message *m, int fd)
{
	switch ((int)m->type) { /* what a later master says that we do not know passes */
	case LINK_GONE:
		gone(w, m);
		break;
	case LINK_LOG:
		log_set_level((enum log_level)m->value);
		break;
	case LINK_LEAVE:
		leave(w, m, fd);
		return;
	case LINK_TAKE:
		if (fd != -1 && handover_open(w, fd, m->slot) != 0)
			log_error("no memory to take over from worker %u", m->slot);
		return;
	case LINK_LEND:
		lend(w, m, fd);
		return;
	case LINK_REOPEN:
		reopen(w, m, fd);
		return;
	}
	if (fd != -1)
		close(fd);
}

static bool on_message(struct net_link *l, struct net_message *m)
{
	struct worker *w = l->owner;
	struct link_message *msg = (void *)m->bytes;
	if (m->len != sizeof(*msg)) {
		log_error("the master says what no master says");
		return false;
	}
	int fd = m->fd;
	m->fd = -1;
	msg->name[sizeof(msg->name) - 1] = msg->text[sizeof(msg->text) - 1] = '\0';
	obey(w, msg, fd);
	return false;
}

static void on_end(struct net_link *l)
{
	struct worker *w = l->owner;
	log_warn("the master is gone: draining");
	worker_drain(w, w->cf->drain_timeout, w->setup->are_stored ? INPUT_STORED : INPUT_ALL_END);
}

void link_init(struct worker *w)
{
	w->link.on_message = on_message;
	w->link.on_end = on_end;
	w->link.owner = w;
	net_link_open(&w->link, w->loop, w->setup->link, sizeof(struct link_message));
}
