/* SPDX-License-Identifier: MIT
 *
 * Slots and their workers: starts them, hears what they say, starts them again, lends the sockets of a slot without a
 * worker to a sibling. Processes and links are child.c's, what to do and when is decided by restart.c. Master only.
 */
#include "master.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static void publish(struct slot *s)
{
	struct stats_slot *st = stats_slot(s->m->page, s->number);
	st->pid = (uint64_t)s->now.child.process.pid;
	st->state = s->restart.state;
	st->lent = s->lent_to != NULL;
	if (s->restart.state != RESTART_READY)
		st->ready_us = 0;
	stats_touch(s->m->page, STATS_SLOT, s->number);
	stats_publish(s->m->page);
	notify_status(s->m);
}

int slot_send(struct slot *s, const void *msg, size_t len, int fd)
{
	return child_send(&s->now.child, msg, len, fd);
}

static void tell(struct slot *s, const struct link_message *msg, int fd)
{
	int r = child_is_there(&s->now.child) ? slot_send(s, msg, sizeof(*msg), fd) : 0;
	if (r != 0)
		log_error("worker %u cannot be told (message %u): %s", s->number, msg->type, strerror(-r));
}

void slots_tell_all(struct master *m, enum link_type type, uint64_t value)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		tell(&m->slots[i], &(struct link_message){.type = type, .slot = i, .value = value}, -1);
}

void slots_tell_file(struct master *m, unsigned which, int fd)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		tell(&m->slots[i], &(struct link_message){.type = LINK_REOPEN, .slot = i, .input = which}, fd);
}

/* -- lending ----------------------------------------------------------------------------------------------------- */

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

static void lend(struct slot *s)
{
	struct master *m = s->m;
	struct slot *to = find_sibling(s);
	if (!to)
		return;
	for (size_t i = 0; i < m->n_inputs; i++)
		for (unsigned k = 0; k < m->inputs[i].n_endpoints; k++) {
			const struct endpoint *ep = &m->inputs[i].endpoints[k];
			struct link_message msg = {
			    .type = LINK_ADOPT, .slot = s->number, .input = m->inputs[i].index};
			if (ep->n_fds == 1 || s->number >= ep->n_fds ||
			    m->inputs[i].type->stays_in_slot) /* all workers read it anyway, or nobody else can */
				continue;
			if (slot_send(to, &msg, sizeof(msg), input_slot_fd(ep, s->number)) != 0)
				return;
		}
	s->lent_to = to;
	log_info("worker %u reads the sockets of worker %u meanwhile", to->number, s->number);
	publish(s);
}

static void take_back(struct slot *s)
{
	struct link_message msg = {.type = LINK_RELEASE, .slot = s->number};
	if (s->lent_to)
		tell(s->lent_to, &msg, -1);
	s->lent_to = NULL;
}

/* -- a worker comes ---------------------------------------------------------------------------------------------- */

static void became_ready(struct slot *s)
{
	restart_ready(&s->restart, clock_us());
	s->was_ready = true;
	stats_slot(s->m->page, s->number)->ready_us = clock_real_us();
	take_back(s);
	publish(s);
	kept_give(s, s);
	for (unsigned i = 0; i < s->m->n_slots; i++) /* of slots that ended while nobody served */
		if (s->m->slots[i].restart.state == RESTART_REMOVED)
			kept_give(&s->m->slots[i], s);
	master_ready(s->m);
	s->is_rolling = false;
	reload_look(s->m);
	upgrade_look(s->m);
	slots_look(s->m);
	master_look_at_drain(s->m);
}

/* What only it could read. */
static uint64_t inputs_died(struct slot *s, bool for_good)
{
	struct master *m = s->m;
	uint64_t unread = 0;
	for (size_t i = 0; i < m->n_inputs; i++)
		unread += input_died(&m->inputs[i], s->number, m->is_draining || for_good, m->page);
	stats_publish(m->page);
	return unread;
}

static void hear_ready(struct slot *s, const struct link_message *msg)
{
	(void)msg;
	if (s->restart.state == RESTART_STARTING)
		became_ready(s);
}

static void hear_fatal(struct slot *s, const struct link_message *msg)
{
	snprintf(s->now.why, sizeof(s->now.why), "%.*s", (int)sizeof(s->now.why) - 1, msg->text);
	log_error("worker %u cannot work: %s", s->number, s->now.why);
}

static void hear_done(struct slot *s, const struct link_message *msg)
{
	master_input_done(s->m, msg->input);
}

static void hear_term(struct slot *s, const struct link_message *msg)
{
	(void)msg;
	if (s->restart.state != RESTART_READY || s->m->is_draining || s->m->drain_at_us)
		return;
	s->now.was_told = true;
	slots_leave(s, false);
}

static void hear_applied(struct slot *s, const struct link_message *msg)
{
	reload_applied(s, msg->value);
}

/* Its rings are closed at once, so that others get their share. */
static void hear_left(struct slot *s, const struct link_message *msg)
{
	(void)msg;
	if (s->now.has_left)
		return;
	s->now.has_left = true;
	s->now.unread_packets = inputs_died(s, s->is_ending || upgrade_is_leaving(s->m));
	upgrade_look(s->m);
}

static void hear_peers(struct slot *s, const struct link_message *msg)
{
	for (size_t i = 0; i < s->m->n_inputs; i++)
		if (s->m->inputs[i].type->exclude)
			s->m->inputs[i].type->exclude(&s->m->inputs[i], msg->text);
}

static const struct {
	void (*hear)(struct slot *s, const struct link_message *msg);
	bool is_kept; /* for who comes after it */
} from_workers[] = {
    [LINK_READY] = {.hear = hear_ready},
    [LINK_FATAL] = {.hear = hear_fatal},
    [LINK_DONE] = {.hear = hear_done},
    [LINK_PEERS] = {.hear = hear_peers},
    [LINK_APPLIED] = {.hear = hear_applied},
    [LINK_TERM] = {.hear = hear_term},
    [LINK_LEFT] = {.hear = hear_left},
    [LINK_LINES] = {.is_kept = true},
    [LINK_CONNECTION] = {.is_kept = true},
};

static bool on_message(struct child *c, struct net_message *m)
{
	struct slot *s = ((struct worker_process *)c->owner)->slot;
	struct link_message *msg = (void *)m->bytes;
	bool is_known = m->len >= sizeof(*msg) && msg->type < ARRAY_LEN(from_workers);
	if (is_known && from_workers[msg->type].is_kept) {
		STAILQ_INSERT_TAIL(&s->kept, m, next);
		return true;
	}
	if (!is_known || from_workers[msg->type].hear == NULL) {
		log_error("worker %u says what no worker says: killing it", s->number);
		process_signal(&c->process, SIGKILL);
		return false;
	}
	msg->text[sizeof(msg->text) - 1] = '\0';
	from_workers[msg->type].hear(s, msg);
	return false;
}

/* What was on its way to it is for its successor. */
static bool on_undelivered(struct child *c, struct net_message *m)
{
	struct slot *s = ((struct worker_process *)c->owner)->slot;
	const struct link_message *msg = (void *)m->bytes;
	if (msg->type != LINK_CONNECTION && msg->type != LINK_LINES)
		return false;
	STAILQ_INSERT_TAIL(&s->kept, m, next);
	return true;
}

static _Noreturn void run(void *owner, int link)
{
	struct slot *s = ((struct worker_process *)owner)->slot;
	struct master *m = s->m;
	struct worker_setup setup = {
	    .cf = m->cf,
	    .args = m->args,
	    .slot = s->number,
	    .n_slots = m->n_slots_wanted,
	    .stats = m->stats,
	    .inputs = m->inputs,
	    .outputs = m->outputs,
	    .holds = m->holds,
	    .link = link,
	    .identity = &m->identity,
	};
	worker_run(&setup);
}

static void on_exit_of_worker(struct child *c, int status);
static const struct child_type worker_type = {
    .message_bytes = sizeof(struct link_connection),
    .run = run,
    .on_message = on_message,
    .on_undelivered = on_undelivered,
    .on_exit = on_exit_of_worker,
};

/* Marking makes the page's equations hold, whatever they were: what is wrong must be said before. */
static void mark_page(struct slot *s)
{
	struct master *m = s->m;
	struct text t = {0};
	if (s->now.marking == m->marking)
		return;
	if (s->now.marking != 0 && stats_copy_take(m->copy, NULL) == 0 && stats_check(m->copy, &t) > 0)
		log_error("the counters do not balance: %s", t.s ? t.s : "");
	text_free(&t);
	world_mark_page(m, s->now.page);
	s->now.marking = m->marking;
}

static void start(struct slot *s)
{
	struct master *m = s->m;
	const char *what;
	restart_started(&s->restart, clock_us());
	for (size_t i = 0; i < m->n_inputs; i++)
		input_renew(&m->inputs[i], s->number, m->page);
	mark_page(s);
	s->now.generation = m->generation;
	s->now.has_left = false;
	int r = child_start(&s->now.child, m->loop, &what);
	if (r != 0) {
		log_error("cannot start worker %u: %s: %s; trying again", s->number, what, strerror(-r));
		restart_died(&s->restart, clock_us(), false);
		return;
	}
	stats_slot(m->page, s->number)->starts++;
	publish(s);
}

/* -- a worker goes ----------------------------------------------------------------------------------------------- */

/* As it was asked to. */
static void left(struct slot *s)
{
	restart_left(&s->restart, clock_us(), s->is_ending);
	struct slot *to = s->is_ending ? slots_serving(s->m) : NULL;
	if (to)
		kept_give(s, to);
}

static bool is_exit(int status, int code)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/* The exit report, one line, and what it took with it. */
static void report(struct slot *s, int status, bool left_clean, bool is_last, bool is_news)
{
	struct master *m = s->m;
	struct text t = {0};
	char name[32];
	snprintf(name, sizeof(name), "worker %u", s->number);
	process_report(&s->now.child.process, name, status, &t);
	uint64_t unread = s->now.has_left ? s->now.unread_packets : inputs_died(s, is_last);
	if (left_clean)
		stats_adopt(s->now.page); /* it has counted what it left */
	else
		death_account(m, s, &t);
	if (unread)
		text_add(&t, "; %llu packets waited unread in its ring", (unsigned long long)unread);
	if (is_news)
		log_warn("%s", t.s ? t.s : "a worker died");
	text_free(&t);
}

static void died(struct slot *s, int status)
{
	struct master *m = s->m;
	bool left_clean = is_exit(status, WORKER_EXIT_CLEAN) || is_exit(status, WORKER_EXIT_LEFT);
	bool is_fatal = is_exit(status, WORKER_EXIT_FATAL);
	bool for_good = is_fatal && !m->reload && !m->reload_failed; /* of a reload there may be a better one */
	bool was_asked = (m->is_draining || s->now.is_leaving) && left_clean;
	report(s, status, left_clean, for_good || s->is_ending || upgrade_is_leaving(m),
	       !was_asked || (s->now.was_told && !m->is_draining));
	if (!was_asked)
		stats_slot(m->page, s->number)->deaths++;
	/* what a rolled worker gave up was counted and logged then: the exit code speaks of the end */
	if (m->is_draining && !is_exit(status, WORKER_EXIT_CLEAN))
		m->has_left = true;
	s->is_rolling &= was_asked && !s->is_ending;
	if (was_asked && !m->is_draining)
		left(s);
	else
		restart_died(&s->restart, clock_us(), for_good);
	s->now.is_leaving = s->now.was_told = false;
	for (unsigned i = 0; i < m->n_slots; i++) /* it read for others, too: they need another reader */
		if (m->slots[i].lent_to == s)
			m->slots[i].lent_to = NULL;
	publish(s);
	if (is_fatal)
		reload_failed_worker(s);
	if (for_good && !m->has_started && !m->is_draining)
		master_stop(m, MASTER_EXIT_ERROR); /* it has said why */
}

static void on_exit_of_worker(struct child *c, int status)
{
	struct slot *s = ((struct worker_process *)c->owner)->slot;
	struct master *m = s->m;
	died(s, status);
	reload_look(m);
	upgrade_look(m);
	slots_look(m);
	master_look_at_drain(m);
}

/* -- all of them ------------------------------------------------------------------------------------------------- */

struct slot *slots_serving(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].restart.state == RESTART_READY)
			return &m->slots[i];
	return NULL;
}

void slots_leave(struct slot *s, bool ends)
{
	struct master *m = s->m;
	struct link_message msg = {.type = LINK_LEAVE, .slot = s->number, .value = m->cf->drain_timeout};
	uint64_t now_us = clock_us();
	for (size_t i = 0; !ends && !upgrade_is_leaving(m) && i < m->n_inputs; i++)
		if (m->inputs[i].type->prepare_successor)
			m->inputs[i].type->prepare_successor(&m->inputs[i], s->number);
	if (ends)
		snprintf(msg.text, sizeof msg.text, "ends");
	s->now.is_leaving = s->is_rolling = true;
	s->is_ending = ends;
	restart_leaving(&s->restart, now_us, now_us + m->cf->drain_timeout + MASTER_LATE_US);
	tell(s, &msg, -1);
	publish(s);
}

static bool all_failed(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].restart.state != RESTART_FAILED)
			return false;
	return true;
}

static uint64_t look(struct slot *s, uint64_t now_us)
{
	struct master *m = s->m;
	uint64_t again_us, lend_us = UINT64_MAX;
	switch (restart_next(&s->restart, now_us, m->cf->start_timeout, &again_us)) {
	case RESTART_START:
		if (upgrade_is_leaving(m)) /* its successor is another program's */
			break;
		start(s);
		again_us = now_us;
		break;
	case RESTART_KILL:
		log_error("worker %u did not %s: killing it", s->number,
			  s->restart.state == RESTART_DRAINING ? "leave in time" : "become ready within start_timeout");
		s->restart.kill_at_us = now_us + m->cf->start_timeout;
		process_signal(&s->now.child.process, SIGKILL);
		again_us = now_us + m->cf->start_timeout;
		break;
	case RESTART_WAIT:
		break;
	}
	if (!s->lent_to && m->has_started && !s->is_ending && restart_should_lend(&s->restart, now_us, &lend_us)) {
		lend(s);
		/* no sibling is ready: one that becomes it makes us look again */
	}
	return MIN(again_us, lend_us);
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
	uint64_t now_us = clock_us(), again_us = UINT64_MAX;
	for (unsigned i = 0; i < m->n_slots; i++)
		again_us = MIN(again_us, look(&m->slots[i], now_us));
	ev_timer_stop(m->loop, &m->slots_timer);
	if (again_us == UINT64_MAX)
		return;
	ev_timer_set(&m->slots_timer, again_us > now_us ? (double)(again_us - now_us) / 1e6 : 0.001, 0);
	ev_timer_start(m->loop, &m->slots_timer);
}

/* One at a time, so that the others go on meanwhile. */
void slots_renew_stale(struct master *m)
{
	struct slot *stale = NULL;
	if (m->reload || m->upgrade)
		return;
	for (unsigned k = m->n_slots; k-- > 0;) {
		if (m->slots[k].restart.state != RESTART_READY)
			return;
		for (size_t i = 0; i < m->n_inputs; i++)
			if (m->inputs[i].type->is_stale && m->inputs[i].type->is_stale(&m->inputs[i], k))
				stale = &m->slots[k];
	}
	if (stale && !m->is_draining)
		slots_leave(stale, false); /* the next one gets a new handle */
}

bool slots_are_rolling(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].is_rolling)
			return true;
	return false;
}

bool slots_are_gone(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (child_is_there(&m->slots[i].now.child))
			return false;
	return true;
}

void slots_drain(struct master *m, uint64_t deadline_us)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		/* what waits for a slot without a worker, or whose worker reads no more, is read by a sibling before that
		 * drains */
		bool is_away = !child_is_there(&s->now.child) || (s->now.is_leaving && !s->is_ending);
		if (is_away && !s->lent_to && s->restart.state != RESTART_REMOVED)
			lend(s);
		struct slot *to = is_away ? slots_serving(m) : NULL;
		if (to)
			kept_give(s, to);
	}
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		if (s->restart.state == RESTART_READY)
			s->restart.state = RESTART_DRAINING;
		tell(s, &(struct link_message){.type = LINK_DRAIN, .slot = i, .value = deadline_us}, -1);
		publish(s);
	}
	if (slots_are_gone(m))
		ev_break(m->loop, EVBREAK_ALL);
}

void slots_kill(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		process_signal(&m->slots[i].now.child.process, SIGKILL);
}

int slots_init(struct master *m, struct err *err)
{
	m->slots = calloc(stats_room(m->stats), sizeof *m->slots);
	if (!m->slots)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	for (unsigned i = 0; i < m->n_slots; i++)
		slot_init(m, i);
	return 0;
}

void slot_init(struct master *m, unsigned number)
{
	struct slot *s = &m->slots[number];
	memset(s, 0, sizeof *s);
	s->m = m;
	s->number = number;
	s->now.slot = s;
	s->now.page = stats_slot_page(m->stats, number);
	child_init(&s->now.child, &worker_type, &s->now);
	STAILQ_INIT(&s->kept);
	restart_init(&s->restart, clock_us());
}

void slots_fini(struct master *m)
{
	for (unsigned i = 0; m->slots && i < m->n_slots; i++)
		child_fini(&m->slots[i].now.child);
	free(m->slots);
}
