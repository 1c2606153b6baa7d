/* SPDX-License-Identifier: MIT
 *
 * reload_apply: a configuration that was checked comes into effect: workers make place one by one for successors that have
 * it. From here on there is only forward. Master only.
 */
#include "reload.h"

#include <errno.h>
#include <string.h>

static void enter(struct reload *r)
{
	struct master *m = r->m;
	const struct conf *old = m->cf;
	r->cf = NULL; /* the generation's */
	generation_enter(m, &r->next, &r->gone);
	reload_own_enter(r, old);
	if (m->cf->log_level != old->log_level)
		master_set_log_level(m, conf_log_level(m->cf));
	m->table_us = m->cf->packet_table == old->packet_table ? m->table_us : 0;
}

void reload_apply_at_once(struct reload *r)
{
	struct master *m = r->m;
	struct err err = {""};
	if (reload_own_open(r, &err) != 0) {
		reload_give_up(r, err.text, NULL);
		return;
	}
	enter(r);
	for (unsigned i = 0; i < m->n_slots; i++)
		m->slots[i].now->generation = m->generation;
	generation_close(m, &r->gone);
	reload_finish(r, conf_reload_word(CONF_RELOAD_AT_ONCE));
}

static int add_slots(struct master *m, unsigned n, struct err *err)
{
	if (n > m->n_slots && !resume_is_done()) /* the page behind the last one is its */
		return err_set(err, -EBUSY, "No more workers now: some of the program before have not ended; try again.");
	int r = receive_reach(m->receive, n, err);
	for (unsigned i = m->n_slots; r == 0 && i < n; i++)
		if (i >= stats_slots(m->stats))
			r = stats_add_slot(m->stats, err);
	return r;
}

static void name_slot(struct master *m, unsigned number)
{
	char name[16];
	snprintf(name, sizeof name, "%u", number);
	stats_name(m->stats, STATS_WORKER, number, name, 0, 0, "");
	stats_name(m->stats, STATS_SLOT, number, name, 0, 0, "");
	stats_name(m->stats, STATS_PROCESS, number, name, 0, 0, "");
}

void reload_apply_rolling(struct reload *r)
{
	struct master *m = r->m;
	struct err err = {""};
	unsigned n = r->next.n_slots = master_workers(r->cf);
	int code = generation_inputs(m, r->cf, &r->next, &err);
	if (code == 0)
		code = add_slots(m, n, &err);
	if (code == 0)
		code = rights_find(r->cf, &m->identity, &err);
	if (code == 0)
		code = reload_own_open(r, &err);
	if (code == 0 && (strcmp(r->cf->control, m->cf->control) != 0 ||
			  strcmp(r->cf->control_group, m->cf->control_group) != 0))
		code = control_move(m, r->cf, &err);
	if (code != 0) {
		reload_give_up(r, err.text, NULL);
		return;
	}
	enter(r);
	r->has_moved = true;
	m->n_slots_wanted = n;
	for (; m->n_slots < n; m->n_slots++) {
		name_slot(m, m->n_slots);
		slot_init(m, m->n_slots);
	}
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].restart.state == RESTART_FAILED)
			restart_init(&m->slots[i].restart, clock_us());
	r->stage = RELOAD_ROLLING;
	slots_look(m);
	reload_look(m);
}

static void remove_last_slot(struct master *m)
{
	struct slot *s = &m->slots[m->n_slots - 1];
	struct stats_slot *st = stats_slot(m->page, s->number);
	roll_count_untaken(s);
	roll_close(s);
	st->state = RESTART_REMOVED;
	stats_touch(m->page, STATS_SLOT, s->number);
	stats_retire(m->stats, STATS_SLOT, s->number);
	stats_retire(m->stats, STATS_WORKER, s->number);
	stats_retire(m->stats, STATS_PROCESS, s->number);
	registry_close_slot(&m->registry, s->number);
	stats_publish(m->page);
	generation_name(m); /* of two, "slot 0" may be left as "all slots" */
	m->n_slots--;
}

static bool is_steady(const struct slot *s)
{
	bool serves = s->restart.state == RESTART_READY && !s->now->is_leaving;
	return s->next == NULL && s->taking == -1 && (serves || s->restart.state == RESTART_REMOVED);
}

/* The first slot whose worker has an older configuration; NULL: none. */
static struct slot *find_older(struct master *m)
{
	for (unsigned i = 0; i < MIN(m->n_slots, m->n_slots_wanted); i++)
		if (m->slots[i].now->generation < m->generation)
			return &m->slots[i];
	return NULL;
}

/* One step; the next comes with the event that it leads to. */
static void look_at_rolling(struct reload *r)
{
	struct master *m = r->m;
	if (r->failure[0]) {
		reload_give_up(r, r->failure, NULL);
		return;
	}
	for (unsigned i = 0; i < m->n_slots; i++)
		if (!is_steady(&m->slots[i]))
			return;
	struct slot *older = find_older(m);
	if (older) {
		/* its last process may still wait for what is in flight */
		if (roll_can_begin(older) && roll_begin(older) != 0) {
			reload_failed_worker(older, "it cannot be started.");
			reload_give_up(r, r->failure, NULL);
		}
		return;
	}
	while (m->n_slots > m->n_slots_wanted) {
		struct slot *s = &m->slots[m->n_slots - 1];
		if (s->restart.state != RESTART_REMOVED) {
			int code = roll_end(s);
			if (code != 0 && code != -EBUSY)
				reload_give_up(r, "No worker can be made to end: no descriptor is free; reload again.",
					       NULL);
			return;
		}
		remove_last_slot(m);
	}
	reload_finish(r, conf_reload_word(MAX(r->class, CONF_RELOAD_RESPAWN)));
}

void reload_failed_worker(struct slot *s, const char *why)
{
	struct reload *r = s->m->reload;
	if (!r || r->stage != RELOAD_ROLLING || r->failure[0])
		return;
	snprintf(r->failure, sizeof(r->failure),
		 "Worker %u cannot work with the new configuration: %.150s It goes on with the old one, and so do those "
		 "behind it; reload again.",
		 s->number, why);
}

void reload_look(struct master *m)
{
	struct reload *r = m->reload;
	if (r && !m->is_draining && r->stage == RELOAD_ROLLING)
		look_at_rolling(r);
}
