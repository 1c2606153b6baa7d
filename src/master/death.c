/* SPDX-License-Identifier: MIT
 *
 * What a killed worker took with it: an upper bound, computed from its own batch in hand and its own queues, never as
 * the difference that would make the account balance. Master only, while the slot has no worker.
 */
#include "master.h"

static uint64_t account_backend(struct stats_page *page, unsigned index)
{
	struct stats_backend *be = stats_backend(page, index);
	uint64_t lost = be->queued_records + be->in_flight_records;
	if (lost == 0 && be->up == 0)
		return 0;
	be->lost_at_death_records += lost;
	be->queued_records = be->in_flight_records = be->queued_bytes = be->up = 0;
	stats_touch(page, STATS_BACKEND, index);
	return lost;
}

/* The same in messages; which brokers it had, it has no more. */
static void account_kafka(struct stats_page *page, unsigned index)
{
	struct stats_kafka *st = stats_kafka(page, index);
	st->lost_at_death_messages += st->queued_messages + st->in_flight_messages;
	st->queued_messages = st->in_flight_messages = st->queued_bytes = st->in_flight_bytes = 0;
	st->brokers = st->brokers_up = st->partitions = 0;
	stats_touch(page, STATS_KAFKA, index);
	for (unsigned i = index * STATS_BROKERS_MAX; i < (index + 1) * STATS_BROKERS_MAX; i++) {
		if (!stats_broker(page, i)->is_known)
			break;
		stats_broker(page, i)->is_known = stats_broker(page, i)->state = 0;
		stats_touch(page, STATS_BROKER, i);
	}
}

static uint64_t account_output(struct stats_page *page, const struct output *out)
{
	struct stats_output *st = stats_output(page, out->index);
	uint64_t lost = st->held_records;
	st->lost_at_death_records += st->held_records;
	st->held_records = st->memory_bytes = 0;
	stats_touch(page, STATS_OUTPUT, out->index);
	if (out->cf->type == CONF_OUTPUT_TYPE_KAFKA)
		account_kafka(page, out->index);
	return lost;
}

uint64_t death_account_page(struct master *m, struct stats_page *page)
{
	uint64_t queued = 0;
	for (size_t i = 0; i < m->n_outputs; i++)
		queued += account_output(page, &m->outputs[i]);
	for (unsigned i = 0; i < stats_page_used(page, STATS_BACKEND); i++) /* those that were removed, too */
		queued += account_backend(page, i);
	stats_publish(page);
	return queued;
}

void death_account(struct master *m, const struct worker_process *p, struct text *t)
{
	struct stats_page *page = p->page;
	stats_adopt(page);
	uint64_t in_hand = 0, queued, connections = 0;
	bool is_lines = true, is_believable = true;
	for (size_t i = 0; i < m->n_inputs; i++) {
		connections += stats_input(page, m->inputs[i].index)->open_connections;
		is_lines &= !m->inputs[i].wants_items;
		struct receive_batch *r = receive_batch(m->receive, p->slot->number, p->which, m->inputs[i].index);
		in_hand += input_lost_at_death(&m->inputs[i], r, page, &is_believable);
	}
	queued = death_account_page(m, page);
	struct stats_worker *w = stats_worker(page);
	w->dense = w->memory_bytes = 0;
	stats_touch(page, STATS_WORKER, 0);
	stats_publish(page);
	text_add(t, "; lost at most %llu %s (%llu read and not yet handed over, %llu queued or not acknowledged)",
		 (unsigned long long)(in_hand + queued), is_lines ? "lines" : "records", (unsigned long long)in_hand,
		 (unsigned long long)queued);
	if (connections)
		text_add(t, " and what %llu open connections had sent and nobody read",
			 (unsigned long long)connections);
}
