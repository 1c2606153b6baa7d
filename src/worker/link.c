/* SPDX-License-Identifier: MIT
 *
 * A worker's end of the link: does what the master says, and takes the master's death (EOF) as the word to drain.
 */
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

void link_send(struct worker *w, enum link_type type, const char *text)
{
	struct link_message m = {.type = type, .slot = w->slot};
	snprintf(m.text, sizeof m.text, "%s", text);
	net_send_fd(w->setup->link, &m, sizeof m, -1); /* a dead master shows as EOF */
}

static void adopt(struct worker *w, const struct link_message *m, int fd)
{
	bool may = fd != -1 && m->input < w->n_inputs && w->stage == WORKER_SERVING;
	if (!may && fd != -1)
		close(fd);
	if (!may || input_adopt(&w->inputs[m->input], fd, m->slot) != 0)
		log_warn("cannot read the socket of worker %u for input %u; it waits for its next worker", m->slot,
			 m->input);
	else
		log_info("reading input \"%s\" for worker %u, too", w->inputs[m->input].cf->name, m->slot);
}

/* The master has opened it: we may not. */
static void reopen(struct worker *w, const struct link_message *m, int fd)
{
	if (fd == -1)
		return;
	if (m->input == LINK_FILE_LOG)
		log_file_take(fd);
	else if (m->input < w->n_outputs)
		output_take_file(&w->outputs[m->input], fd);
	else
		close(fd);
}

static void obey(struct worker *w, const struct link_message *m, int fd)
{
	switch ((enum link_type)m->type) {
	case LINK_DRAIN:
		worker_drain(w, m->value, true);
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
		break;
	}
}

static void linked(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)events;
	struct worker *w = io->data;
	struct link_message m;
	int fd;
	for (;;) {
		ssize_t n = net_recv_fd(io->fd, &m, sizeof m, &fd);
		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n != sizeof m)
			break;
		obey(w, &m, fd);
	}
	ev_io_stop(loop, io);
	log_warn("the master is gone: draining");
	worker_drain(w, w->setup->cf->drain_timeout, true);
}

void link_init(struct worker *w)
{
	ev_io_init(&w->link, linked, w->setup->link, EV_READ);
	w->link.data = w;
	ev_io_start(w->loop, &w->link);
}
