/* SPDX-License-Identifier: MIT
 *
 * Slots and their workers: starts them, hears what they say, starts them again. Processes and links are child.c's, what to
 * do and when after a death is decided by restart.c, how one worker follows another is in roll.c. Master only.
 */
#include "master.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* The page has the state as a number. */
_Static_assert((int)RESTART_VACANT == STATS_SLOT_VACANT && (int)RESTART_READY == STATS_SLOT_READY &&
		   (int)RESTART_REMOVED == STATS_SLOT_REMOVED,
	       "states of a slot");

void slot_publish(struct slot *s)
{
	struct stats_slot *st = stats_slot(s->m->page, s->number);
	st->pid = (uint64_t)s->now->child.process.pid;
	st->state = s->restart.state;
	if (s->restart.state == RESTART_READY && s->now->is_leaving)
		st->state = RESTART_DRAINING;
	st->lent = s->lent_to != NULL;
	if (st->state != RESTART_READY)
		st->ready_us = 0;
	stats_touch(s->m->page, STATS_SLOT, s->number);
	stats_publish(s->m->page);
	notify_status(s->m);
}

void worker_tell(struct worker_process *p, enum link_type type, uint64_t value, const char *name, const char *text, int fd)
{
	struct link_message msg = {.version = LINK_VERSION, .type = type, .slot = p->slot->number, .value = value};
	snprintf(msg.name, sizeof(msg.name), "%s", name);
	snprintf(msg.text, sizeof(msg.text), "%s", text);
	worker_send(p, &msg, fd);
}

void worker_send(struct worker_process *p, const struct link_message *msg, int fd)
{
	int r = child_is_there(&p->child) ? child_send(&p->child, msg, sizeof(*msg), fd) : 0;
	if (r != 0 && r != -EPIPE) /* else it is dying, as its exit will tell */
		log_error("worker %u cannot be told (message %u): %s", p->slot->number, msg->type, strerror(-r));
}

void slots_tell_all(struct master *m, enum link_type type, uint64_t value, const char *name, const char *text, int fd)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		for (unsigned k = 0; k < ARRAY_LEN(m->slots[i].processes); k++)
			worker_tell(&m->slots[i].processes[k], type, value, name, text, fd);
}

/* -- a worker comes ---------------------------------------------------------------------------------------------- */

static void became_ready(struct slot *s)
{
	restart_ready(&s->restart, clock_us());
	s->was_ready = true;
	stats_slot(s->m->page, s->number)->ready_us = clock_real_us();
	lend_end(s);
	slot_publish(s);
	master_ready(s->m);
}

static void hear_ready(struct worker_process *p, const struct link_message *msg)
{
	struct slot *s = p->slot;
	(void)msg;
	if (p->is_ready)
		return;
	p->is_ready = true;
	if (p == s->now && s->restart.state == RESTART_STARTING)
		became_ready(s);
	else if (p == s->next)
		roll_ready(s);
	master_look(s->m);
}

static void hear_fatal(struct worker_process *p, const struct link_message *msg)
{
	snprintf(p->why, sizeof(p->why), "%.*s", (int)sizeof(p->why) - 1, msg->text);
	log_error("worker %u cannot work: %s", p->slot->number, p->why);
}

static void hear_done(struct worker_process *p, const struct link_message *msg)
{
	master_input_done(p->slot->m, msg->name);
}

/* The same signal may be on its way to us: then it is the end of all. */
static void hear_term(struct worker_process *p, const struct link_message *msg)
{
	struct slot *s = p->slot;
	(void)msg;
	if (p != s->now || s->restart.state != RESTART_READY || s->m->is_draining || s->told_at_us != 0)
		return;
	s->told_at_us = clock_us() + SLOT_TOLD_US;
	slots_look(s->m);
}

static void hear_left(struct worker_process *p, const struct link_message *msg)
{
	(void)msg;
	if (p->has_left || !p->is_leaving)
		return;
	p->has_left = true;
	roll_left(p);
	master_look(p->slot->m);
}

static void hear_taken(struct worker_process *p, const struct link_message *msg)
{
	struct master *m = p->slot->m;
	if (msg->slot < m->n_slots)
		roll_taken(&m->slots[msg->slot], p);
	master_look(m);
}

static void hear_peers(struct worker_process *p, const struct link_message *msg)
{
	registry_exclude(&p->slot->m->registry, msg->text);
}

static void (*const from_workers[])(struct worker_process *p, const struct link_message *msg) = {
    [LINK_READY] = hear_ready, [LINK_FATAL] = hear_fatal, [LINK_DONE] = hear_done,   [LINK_PEERS] = hear_peers,
    [LINK_TERM] = hear_term,   [LINK_LEFT] = hear_left,	  [LINK_TAKEN] = hear_taken,
};

static bool on_message(struct child *c, struct net_message *m)
{
	struct worker_process *p = c->owner;
	struct link_message *msg = (void *)m->bytes;
	bool is_known = m->len == sizeof(*msg) && msg->type < ARRAY_LEN(from_workers) && from_workers[msg->type] != NULL;
	if (!is_known) {
		log_error("worker %u says what no worker says: killing it", p->slot->number);
		process_signal(&c->process, SIGKILL);
		return false;
	}
	msg->name[sizeof(msg->name) - 1] = msg->text[sizeof(msg->text) - 1] = '\0';
	from_workers[msg->type](p, msg);
	return false;
}

static _Noreturn void run(void *owner, int link)
{
	struct worker_process *p = owner;
	struct master *m = p->slot->m;
	struct worker_setup setup = {
	    .cf = m->cf,
	    .slot = p->slot->number,
	    .which = p->which,
	    .n_slots = m->n_slots_wanted,
	    .are_stored = store_is_there(),
	    .stats = m->stats,
	    .registry = &m->registry,
	    .receive = m->receive,
	    .inputs = m->inputs,
	    .outputs = m->outputs,
	    .channel = p->slot->taking,
	    .link = link,
	    .identity = &m->identity,
	};
	worker_run(&setup);
}

static void on_exit_of_worker(struct child *c, int status);
const struct child_type worker_type = {
    .message_bytes = sizeof(struct link_message),
    .run = run,
    .on_message = on_message,
    .on_exit = on_exit_of_worker,
};

/* Marking makes the page's equations hold, whatever they were: what is wrong must be said before. */
static void mark_page(struct worker_process *p)
{
	struct master *m = p->slot->m;
	struct text t = {0};
	if (p->marking == m->marking)
		return;
	if (p->marking != 0 && stats_copy_take(m->copy, NULL) == 0 && stats_check(m->copy, &t) > 0)
		log_error("the counters do not balance: %s", t.s ? t.s : "");
	text_free(&t);
	generation_mark_page(m, p->page);
	p->marking = m->marking;
}

int worker_start(struct worker_process *p)
{
	struct slot *s = p->slot;
	struct master *m = s->m;
	const char *what;
	mark_page(p);
	stats_belief_note(m->belief, s->number, p->which, clock_us());
	p->generation = m->generation;
	p->is_foreign = false;
	p->is_ready = p->is_leaving = p->has_left = p->was_told = p->is_stopped = false;
	p->kill_at_us = 0;
	p->why[0] = '\0';
	int r = child_start(&p->child, m->loop, &what);
	if (r == 0)
		stats_slot(m->page, s->number)->starts++;
	else
		log_error("cannot start worker %u: %s: %s; trying again", s->number, what, strerror(-r));
	return r;
}

static void start(struct slot *s)
{
	struct master *m = s->m;
	restart_started(&s->restart, clock_us());
	registry_renew(&m->registry, s->number);
	if (worker_start(s->now) != 0)
		restart_died(&s->restart, clock_us(), false);
	else
		slot_publish(s);
}

/* -- a worker goes ----------------------------------------------------------------------------------------------- */

static bool is_exit(int status, int code)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/* The exit report, one line, and what it took with it. */
static void report(struct worker_process *p, int status, bool left_clean, bool is_news)
{
	struct slot *s = p->slot;
	struct text t = {0};
	char name[32];
	snprintf(name, sizeof(name), "worker %u", s->number);
	process_report(&p->child.process, name, status, &t);
	if (p->is_foreign)
		resume_died(p, left_clean, &t);
	else
		death_account(s->m, p, left_clean, &t);
	if (is_news)
		log_warn("%s", t.s ? t.s : "a worker died");
	text_free(&t);
}

static void on_exit_of_worker(struct child *c, int status)
{
	struct worker_process *p = c->owner;
	struct slot *s = p->slot;
	struct master *m = s->m;
	bool left_clean = p->is_stopped || is_exit(status, WORKER_EXIT_CLEAN) || is_exit(status, WORKER_EXIT_LEFT);
	bool is_fatal = is_exit(status, WORKER_EXIT_FATAL);
	bool was_asked = (m->is_draining || p->is_leaving) && left_clean;
	report(p, status, left_clean, !was_asked || (p->was_told && !m->is_draining));
	if (!was_asked)
		stats_slot(m->page, s->number)->deaths++;
	/* what a rolled worker gave up was counted and logged then: the exit code speaks of the end */
	if (m->is_draining && !p->is_stopped && !is_exit(status, WORKER_EXIT_CLEAN))
		m->has_left = true;
	lend_reader_gone(s);
	if (!roll_exited(p)) {
		registry_died(&m->registry, s->number, m->is_draining);
		/* where one has worked another one will: what this one could not get may be there later */
		restart_died(&s->restart, clock_us(), is_fatal && !s->was_ready && !m->reload && !m->reload_failed);
		if (is_fatal && !m->has_started && !m->is_draining)
			master_stop(m, MASTER_EXIT_ERROR); /* it has said why */
	}
	slot_publish(s);
	resume_look(m);
	master_look(m);
}

/* -- all of them ------------------------------------------------------------------------------------------------- */

struct slot *slots_serving(struct master *m, const struct slot *but)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		if (s != but && s->restart.state == RESTART_READY && s->next == NULL && s->taking == -1)
			return s;
	}
	return NULL;
}

static bool all_failed(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].restart.state != RESTART_FAILED)
			return false;
	return true;
}

static const char *what_it_was_to_do(const struct worker_process *p)
{
	if (p->is_leaving)
		return "leave in time";
	return p->is_ready ? "take over in time" : "become ready within start_timeout";
}

/* A process that does not do what it was asked to in time. Returns when to look again. */
static uint64_t look_at_process(struct worker_process *p, uint64_t now_us)
{
	if (p->kill_at_us == 0 || !child_is_there(&p->child))
		return UINT64_MAX;
	if (now_us < p->kill_at_us)
		return p->kill_at_us;
	log_error("worker %u did not %s: killing it", p->slot->number, what_it_was_to_do(p));
	process_signal(&p->child.process, SIGKILL);
	p->kill_at_us = now_us + p->slot->m->cf->start_timeout;
	return p->kill_at_us;
}

static uint64_t look(struct slot *s, uint64_t now_us)
{
	struct master *m = s->m;
	uint64_t again_us, lend_us = UINT64_MAX, told_us = UINT64_MAX;
	switch (restart_next(&s->restart, now_us, m->cf->start_timeout, &again_us)) {
	case RESTART_START:
		start(s);
		again_us = now_us;
		break;
	case RESTART_KILL:
		log_error("worker %u did not become ready within start_timeout: killing it", s->number);
		process_signal(&s->now->child.process, SIGKILL);
		again_us = now_us + m->cf->start_timeout;
		break;
	case RESTART_WAIT:
		break;
	}
	for (unsigned k = 0; k < ARRAY_LEN(s->processes); k++)
		again_us = MIN(again_us, look_at_process(&s->processes[k], now_us));
	again_us = MIN(again_us, roll_look(s, now_us));
	if (s->told_at_us != 0 && now_us >= s->told_at_us) {
		/* the one before may still wait for Kafka, or nothing is to be had: later */
		s->told_at_us = roll_begin(s) == 0 ? 0 : now_us + SLOT_TOLD_US;
		if (s->told_at_us == 0) {
			log_info("worker %u was told to end: another one takes over", s->number);
			s->now->was_told = true;
		}
	}
	if (s->told_at_us != 0)
		told_us = s->told_at_us;
	if (!s->lent_to && m->has_started && restart_should_lend(&s->restart, now_us, &lend_us))
		lend_begin(s); /* no sibling is ready: one that becomes it makes us look again */
	return MIN(MIN(again_us, told_us), lend_us);
}

void slots_look(struct master *m)
{
	if (m->is_draining) {
		if (slots_are_gone(m))
			ev_break(m->loop, EVBREAK_ALL);
		return;
	}
	if (all_failed(m)) {
		log_error("no worker can work: ending");
		master_stop(m, MASTER_EXIT_ERROR);
		return;
	}
	roll_find_takers(m);
	uint64_t now_us = clock_us(), again_us = UINT64_MAX;
	for (unsigned i = 0; i < m->n_slots; i++)
		again_us = MIN(again_us, look(&m->slots[i], now_us));
	ev_timer_stop(m->loop, &m->slots_timer);
	if (again_us == UINT64_MAX)
		return;
	ev_timer_set(&m->slots_timer, again_us > now_us ? (double)(again_us - now_us) / 1e6 : 0.001, 0);
	ev_timer_start(m->loop, &m->slots_timer);
}

bool slots_are_gone(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		for (unsigned k = 0; k < ARRAY_LEN(m->slots[i].processes); k++)
			if (child_is_there(&m->slots[i].processes[k].child))
				return false;
	return true;
}

void slots_drain(struct master *m, uint64_t deadline_us)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		roll_stop(s);
		/* what waits for a slot without a worker is read by a sibling before that drains */
		if (!child_is_there(&s->now->child) && !s->lent_to && s->restart.state != RESTART_REMOVED)
			lend_begin(s);
	}
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		if (s->restart.state == RESTART_READY)
			s->restart.state = RESTART_DRAINING;
		slot_publish(s);
	}
	slots_tell_all(m, LINK_LEAVE, deadline_us, "", "", -1);
	if (slots_are_gone(m))
		ev_break(m->loop, EVBREAK_ALL);
}

void slots_kill(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		for (unsigned k = 0; k < ARRAY_LEN(m->slots[i].processes); k++)
			process_signal(&m->slots[i].processes[k].child.process, SIGKILL);
}

int slots_init(struct master *m, struct err *err)
{
	m->slots = calloc(stats_room(m->stats), sizeof(*m->slots));
	if (!m->slots)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	for (unsigned i = 0; i < m->n_slots; i++)
		slot_init(m, i);
	return 0;
}

void slot_init(struct master *m, unsigned number)
{
	struct slot *s = &m->slots[number];
	memset(s, 0, sizeof(*s));
	s->m = m;
	s->number = number;
	s->now = &s->processes[0];
	s->giving = s->taking = -1;
	for (unsigned k = 0; k < ARRAY_LEN(s->processes); k++) {
		struct worker_process *p = &s->processes[k];
		p->slot = s;
		p->which = k;
		p->page = stats_slot_page(m->stats, number, k);
		child_init(&p->child, &worker_type, p);
	}
	restart_init(&s->restart, clock_us());
}

void slots_fini(struct master *m)
{
	for (unsigned i = 0; m->slots && i < m->n_slots; i++) {
		roll_close(&m->slots[i]);
		for (unsigned k = 0; k < ARRAY_LEN(m->slots[i].processes); k++)
			child_fini(&m->slots[i].processes[k].child);
	}
	free(m->slots);
}
