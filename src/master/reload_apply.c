/* SPDX-License-Identifier: MIT
 *
 * reload_apply: a configuration that was checked comes into effect: workers take it on as they are, or make place one by
 * one for successors that have it. From here on there is only forward. Master only.
 */
#include "reload.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* -- LIVE ---------------------------------------------------------------------------------------------------------- */

static int bytes_fd(const struct reload *r)
{
	int fd = memfd_create("millrace-configuration", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	for (size_t at = 0; fd != -1 && at < r->len;) {
		ssize_t n = write(fd, r->bytes + at, r->len - at);
		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0) {
			close(fd);
			return -1;
		}
		at += (size_t)n;
	}
	if (fd != -1)
		fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	return fd;
}

static void tell(struct slot *s, const bool *is_new, int fd)
{
	struct master *m = s->m;
	for (size_t i = 0; i < m->n_outputs; i++) {
		struct link_message msg = {.type = LINK_SHARED, .slot = s->number, .input = (uint32_t)i};
		if (is_new[i])
			post_send(s, &msg, sizeof msg, m->outputs[i].shared_fd);
	}
	struct link_message msg = {.type = LINK_RELOAD, .slot = s->number, .value = m->generation};
	post_send(s, &msg, sizeof msg, fd);
}

/* What the master itself has of the top options. */
static void change_top(struct master *m, const struct conf *old)
{
	enum log_level level = (enum log_level)(m->cf->log_level - CONF_LOG_LEVEL_ERROR);
	if (m->cf->log_level != old->log_level) {
		log_set_level(level);
		slots_tell_all(m, LINK_LOG, level);
		keeper_tell(m, MONITOR_LOG, level, -1);
	}
	m->table_us = m->cf->packet_table == old->packet_table ? m->table_us : 0;
}

void reload_apply_live(struct reload *r)
{
	struct master *m = r->m;
	int fd = bytes_fd(r);
	if (fd == -1) {
		reload_give_up(r, "Nothing has changed: no memory to hand the configuration to the workers.", NULL);
		return;
	}
	bool is_new[CONF_OUTPUTS_MAX];
	for (size_t i = 0; i < r->next.n_outputs; i++)
		is_new[i] = r->next.outputs[i].shared_fd != m->outputs[i].shared_fd;
	r->cf = NULL; /* the generation's */
	generation_enter(m, &r->next, &r->gone);
	change_top(m, r->gone.cf);
	for (unsigned i = 0; i < m->n_slots; i++)
		tell(&m->slots[i], is_new, fd);
	close(fd);
	generation_close(m, &r->gone);
	r->stage = RELOAD_APPLYING;
	ev_timer_set(&r->patience, (double)m->cf->start_timeout / 1e6, 0);
	ev_timer_start(m->loop, &r->patience);
	reload_look(m);
}

void reload_patience_over(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	struct reload *r = timer->data;
	struct master *m = r->m;
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].pid && m->slots[i].generation < m->generation)
			log_warn("reload: worker %u has not said that it has the new configuration; it will have it when "
				 "it comes to that",
				 i);
	reload_finish(r, "live, but not by all workers yet");
}

void reload_applied(struct slot *s, uint64_t generation)
{
	s->generation = MAX(s->generation, generation);
	reload_look(s->m);
}

static void look_at_applying(struct reload *r)
{
	struct master *m = r->m;
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].pid && m->slots[i].generation < m->generation)
			return;
	reload_finish(r, conf_reload_word(CONF_RELOAD_LIVE));
}

/* -- RESPAWN and REBIND -------------------------------------------------------------------------------------------- */

static int add_slots(struct master *m, unsigned n, struct err *err)
{
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
	if (code == 0 && (strcmp(r->cf->control, m->cf->control) != 0 ||
			  strcmp(r->cf->control_group, m->cf->control_group) != 0))
		code = control_move(m, r->cf, &err);
	if (code != 0) {
		reload_give_up(r, err.text, NULL);
		return;
	}
	r->cf = NULL; /* the generation's */
	generation_enter(m, &r->next, &r->gone);
	r->has_moved = true;
	change_top(m, r->gone.cf);
	m->n_slots_wanted = n;
	for (; m->n_slots < n; m->n_slots++) {
		name_slot(m, m->n_slots);
		slot_init(m, m->n_slots);
	}
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].life.state == LIFE_FAILED)
			life_init(&m->slots[i].life, clock_us());
	r->stage = RELOAD_ROLLING;
	slots_look(m);
	reload_look(m);
}

static void remove_last_slot(struct master *m)
{
	struct slot *s = &m->slots[m->n_slots - 1];
	struct slot *to = slots_serving(m);
	struct stats_slot *st = stats_slot(m->page, s->number);
	if (to)
		post_give_connections(s, to);
	post_count_connections(s);
	st->state = LIFE_REMOVED;
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
	return !s->is_leaving && (s->life.state == LIFE_READY || s->life.state == LIFE_REMOVED);
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
	for (unsigned i = 0; i < MIN(m->n_slots, m->n_slots_wanted); i++)
		if (m->slots[i].generation < m->generation) {
			slots_leave(&m->slots[i], false);
			return;
		}
	while (m->n_slots > m->n_slots_wanted) {
		struct slot *s = &m->slots[m->n_slots - 1];
		if (s->life.state != LIFE_REMOVED) {
			slots_leave(s, true);
			return;
		}
		remove_last_slot(m);
	}
	reload_finish(r, conf_reload_word(MAX(r->class, CONF_RELOAD_RESPAWN)));
}

void reload_failed_worker(struct slot *s)
{
	struct reload *r = s->m->reload;
	if (!r || r->stage != RELOAD_ROLLING || r->failure[0])
		return;
	snprintf(r->failure, sizeof r->failure,
		 "Worker %u cannot work with the new configuration: %.180s It is tried again; the workers behind it have "
		 "the old one.",
		 s->number, s->why);
}

void reload_look(struct master *m)
{
	struct reload *r = m->reload;
	if (!r || m->is_draining)
		return;
	if (r->stage == RELOAD_APPLYING)
		look_at_applying(r);
	else if (r->stage == RELOAD_ROLLING)
		look_at_rolling(r);
}

