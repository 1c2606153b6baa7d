/* SPDX-License-Identifier: MIT
 *
 * kept: what a worker gave back and the next one is not there for: stream connections, and lines that its outputs held.
 * Master only.
 */
#include "master.h"

#include <sys/ioctl.h>

/* Lines that no worker will have: they were passed, and are lost here. In the account of their output's first backend. */
static void count_lines(struct slot *s, const struct net_message *k)
{
	struct master *m = s->m;
	const struct link_message *msg = (const void *)k->bytes;
	uint64_t lines = msg->value;
	for (size_t i = 0; i < m->n_outputs; i++) {
		if (m->outputs[i].index != msg->input)
			continue;
		struct stats_backend *be = stats_backend(s->now.page, m->outputs[i].blocks[0]);
		be->taken_over_records += lines;
		be->dropped_shutdown_records += lines;
		stats_touch(s->now.page, STATS_BACKEND, m->outputs[i].blocks[0]);
	}
	m->has_left |= lines > 0;
	log_warn("%llu lines that worker %u had handed over are lost", (unsigned long long)lines, s->number);
}

static void count(struct slot *s, const struct net_message *k)
{
	const struct link_message *msg = (const void *)k->bytes;
	struct stats_input *st;
	int unread = 0;
	if (msg->input >= stats_page_used(s->now.page, STATS_INPUT))
		return; /* nobody's: it came from a worker */
	st = stats_input(s->now.page, msg->input);
	if (ioctl(k->fd, FIONREAD, &unread) == 0 && unread > 0)
		st->dropped_stream_bytes += (unsigned)unread;
	if (k->len > sizeof(*msg)) {
		st->received_lines++;
		st->dropped_shutdown_lines++;
	}
	stats_touch(s->now.page, STATS_INPUT, msg->input);
}

void kept_give(struct slot *from, struct slot *to)
{
	struct net_message *k;
	while ((k = STAILQ_FIRST(&from->kept)) != NULL) {
		if (slot_send(to, k->bytes, k->len, k->fd) != 0)
			return;
		STAILQ_REMOVE_HEAD(&from->kept, next);
		net_message_free(k);
	}
}

void kept_count(struct slot *s)
{
	struct net_message *k;
	while ((k = STAILQ_FIRST(&s->kept)) != NULL) {
		const struct link_message *msg = (const void *)k->bytes;
		STAILQ_REMOVE_HEAD(&s->kept, next);
		if (msg->type == LINK_LINES)
			count_lines(s, k);
		else
			count(s, k);
		net_message_free(k);
	}
	stats_publish(s->now.page);
}
