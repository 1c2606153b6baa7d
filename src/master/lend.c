/* SPDX-License-Identifier: MIT
 *
 * lend: a sibling reads the sockets of a slot that has no worker, until it has one again. Master only.
 */
#include "master.h"

static struct slot *find_sibling(struct slot *s)
{
	struct master *m = s->m;
	for (unsigned i = 1; i < m->n_slots; i++) {
		struct slot *sibling = &m->slots[(s->number + i) % m->n_slots];
		if (sibling->restart.state == RESTART_READY)
			return sibling;
	}
	return NULL;
}

void lend_begin(struct slot *s)
{
	struct master *m = s->m;
	struct slot *to = find_sibling(s);
	struct link_message msg = {.version = LINK_VERSION, .type = LINK_LEND, .slot = s->number};
	if (!to)
		return;
	for (size_t i = 0; i < m->n_inputs; i++)
		for (unsigned k = 0; k < m->inputs[i].n_endpoints; k++) {
			const struct endpoint *ep = m->inputs[i].endpoints[k];
			if (ep->n_fds == 1 || s->number >= ep->n_fds || ep->ops->is_device)
				continue; /* all workers read it anyway, or nobody else can */
			snprintf(msg.name, sizeof(msg.name), "%s", m->inputs[i].cf->name);
			worker_send(to->now, &msg, endpoint_fd(ep, s->number));
		}
	s->lent_to = to;
	log_info("worker %u reads the sockets of worker %u meanwhile", to->number, s->number);
	slot_publish(s);
}

void lend_end(struct slot *s)
{
	struct link_message msg = {.version = LINK_VERSION, .type = LINK_LEND, .slot = s->number};
	if (s->lent_to)
		worker_send(s->lent_to->now, &msg, -1);
	s->lent_to = NULL;
}

void lend_reader_gone(struct slot *s)
{
	for (unsigned i = 0; i < s->m->n_slots; i++)
		if (s->m->slots[i].lent_to == s)
			s->m->slots[i].lent_to = NULL;
}
