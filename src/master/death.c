/* SPDX-License-Identifier: MIT
 *
 * What a killed worker took with it: an upper bound, computed from its own receive batches and its own queues, never as
 * the difference that would make the account balance. Master only, when the process has ended.
 */
#include "master.h"

static uint64_t account_backend(struct stats_page *page, unsigned index)
{
	struct stats_backend *be = stats_backend(page, index);
	uint64_t lost = be->queued_records + be->in_flight_records;
	if (lost == 0)
		return 0;
	be->lost_at_death_records += lost;
	be->queued_records = be->in_flight_records = 0;
	stats_touch(page, STATS_BACKEND, index);
	return lost;
}

/* The same in messages. */
static void account_kafka(struct stats_page *page, unsigned index)
{
	struct stats_kafka *st = stats_kafka(page, index);
	st->lost_at_death_messages += st->queued_messages + st->in_flight_messages;
	st->queued_messages = st->in_flight_messages = 0;
	stats_touch(page, STATS_KAFKA, index);
}

static uint64_t account_output(struct stats_page *page, unsigned index)
{
	struct stats_output *st = stats_output(page, index);
	uint64_t lost = st->held_records;
	st->lost_at_death_records += lost;
	st->held_records = 0;
	stats_touch(page, STATS_OUTPUT, index);
	return lost;
}

/* Those of outputs that were removed, too. */
uint64_t death_account_page(struct stats_page *page)
{
	uint64_t queued = 0;
	for (unsigned i = 0; i < stats_page_used(page, STATS_OUTPUT); i++)
		queued += account_output(page, i);
	for (unsigned i = 0; i < stats_page_used(page, STATS_KAFKA); i++)
		account_kafka(page, i);
	for (unsigned i = 0; i < stats_page_used(page, STATS_BACKEND); i++)
		queued += account_backend(page, i);
	return queued;
}

static void count_unbelievable(const struct slot *s)
{
	stats_slot(s->m->page, s->number)->unbelievable_ends++;
	stats_touch(s->m->page, STATS_SLOT, s->number);
	stats_publish(s->m->page);
}

void death_in_hand_unknown(const struct slot *s)
{
	log_error("worker %u's numbers are not to be believed: what it had read and not handed over is not known",
		  s->number);
	count_unbelievable(s);
}

/* Whether its numbers can be believed; else what stands in the page now is of a moment before. */
static bool take_page(struct master *m, const struct worker_process *p)
{
	struct text why = {0};
	uint64_t age_us;
	bool is_believable = stats_belief_adopt(m->belief, p->slot->number, p->which, clock_us(), &age_us, &why);
	if (!is_believable) {
		log_error("worker %u's numbers are not to be believed (%s): its counters are those of %.1f s before, "
			  "and what it did since then is not known",
			  p->slot->number, why.s ? why.s : "no memory", (double)age_us / 1e6);
		count_unbelievable(p->slot);
	}
	text_free(&why);
	return is_believable;
}

/* What was read and not published; its batches are cleared in any case. */
static uint64_t account_inputs(struct master *m, const struct worker_process *p, bool is_believable)
{
	uint64_t in_hand = 0;
	bool can_be = true;
	for (size_t i = 0; i < m->n_inputs; i++) {
		struct receive_batch *r = receive_batch(m->receive, p->slot->number, p->which, m->inputs[i].index);
		if (!is_believable)
			receive_clear(r);
		in_hand += input_lost_at_death(&m->inputs[i], r, p->page, &can_be);
	}
	if (!can_be)
		death_in_hand_unknown(p->slot);
	return in_hand;
}

static void count_lost(struct master *m, const struct worker_process *p, bool is_believable, struct text *t)
{
	uint64_t connections = 0;
	bool is_lines = true;
	for (size_t i = 0; i < m->n_inputs; i++) {
		connections += stats_input(p->page, m->inputs[i].index)->open_connections;
		is_lines &= !m->inputs[i].wants_items;
	}
	uint64_t in_hand = account_inputs(m, p, is_believable);
	uint64_t queued = death_account_page(p->page);
	text_add(t, "; lost at most %llu %s (%llu read and not yet handed over, %llu queued or not acknowledged)",
		 (unsigned long long)(in_hand + queued), is_lines ? "lines" : "records", (unsigned long long)in_hand,
		 (unsigned long long)queued);
	if (connections)
		text_add(t, " and what %llu open connections had sent and nobody read",
			 (unsigned long long)connections);
}

void death_account(struct master *m, const struct worker_process *p, bool left_clean, struct text *t)
{
	bool is_believable = take_page(m, p);
	if (!left_clean || !is_believable)
		count_lost(m, p, is_believable, t);
	stats_vacate(p->page);
	stats_belief_note(m->belief, p->slot->number, p->which, clock_us());
}
