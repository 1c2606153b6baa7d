/* SPDX-License-Identifier: MIT
 *
 * Slots and their tenants: forks, listens to their links, reaps, starts again, lends the sockets of a slot without a
 * tenant to a sibling. What to do and when is decided by life.c. Master only.
 */
#include "master.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A worker that has not left so long after its own deadline is killed. */
enum { LATE_US = 700000 };

static void publish(struct slot *s)
{
	struct stats_slot *st = stats_slot(s->m->page, s->number);
	st->pid = (uint64_t)s->pid;
	st->state = s->life.state;
	st->lent = s->lent_to != NULL;
	if (s->life.state != LIFE_READY)
		st->ready_us = 0;
	stats_touch(s->m->page, STATS_SLOT, s->number);
	stats_publish(s->m->page);
	notify_status(s->m);
}

static int tell(struct slot *s, enum link_type type, uint64_t value)
{
	struct link_message msg = {.type = type, .slot = s->number, .value = value};
	return post_send(s, &msg, sizeof msg, -1);
}

void slots_tell_all(struct master *m, enum link_type type, uint64_t value)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		tell(&m->slots[i], type, value);
}

void slots_tell_file(struct master *m, unsigned which, int fd)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct link_message msg = {.type = LINK_REOPEN, .slot = i, .input = which};
		if (m->slots[i].link != -1)
			net_send_fd(m->slots[i].link, &msg, sizeof msg, fd);
	}
}

/* -- lending ----------------------------------------------------------------------------------------------------- */

static struct slot *find_sibling(struct slot *s)
{
	struct master *m = s->m;
	for (unsigned i = 1; i < m->n_slots; i++) {
		struct slot *sibling = &m->slots[(s->number + i) % m->n_slots];
		if (sibling->life.state == LIFE_READY)
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
			const struct endpoint *ep = m->inputs[i].endpoints[k];
			struct link_message msg = {
			    .type = LINK_ADOPT, .slot = s->number, .input = m->inputs[i].index};
			if (ep->n_fds == 1 || s->number >= ep->n_fds ||
			    ep->ops->is_device) /* all workers read it anyway, or nobody else can */
				continue;
			if (post_send(to, &msg, sizeof msg, endpoint_fd(ep, s->number)) != 0)
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
		post_send(s->lent_to, &msg, sizeof msg, -1);
	s->lent_to = NULL;
}

/* -- a tenant comes -------------------------------------------------------------------------------------------- */

static void unlink_tenant(struct slot *s)
{
	if (s->link == -1)
		return;
	ev_io_stop(s->m->loop, &s->io);
	post_close(s);
	close(s->link);
	s->link = -1;
}

static void became_ready(struct slot *s)
{
	life_ready(&s->life, clock_us());
	s->was_ready = true;
	stats_slot(s->m->page, s->number)->ready_us = clock_real_us();
	take_back(s);
	publish(s);
	post_give_connections(s, s);
	for (unsigned i = 0; i < s->m->n_slots; i++) /* of slots that ended while nobody served */
		if (s->m->slots[i].life.state == LIFE_REMOVED)
			post_give_connections(&s->m->slots[i], s);
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
	uint64_t unread = registry_died(&m->registry, s->number, m->is_draining || for_good);
	stats_publish(m->page);
	return unread;
}

static void hear(struct slot *s, const struct link_message *msg)
{
	struct master *m = s->m;
	if (msg->type == LINK_READY && s->life.state == LIFE_STARTING)
		became_ready(s);
	if (msg->type == LINK_FATAL) {
		snprintf(s->why, sizeof s->why, "%.*s", (int)sizeof s->why - 1, msg->text);
		log_error("worker %u cannot work: %s", s->number, s->why);
	}
	if (msg->type == LINK_DONE)
		master_input_done(m, msg->input);
	if (msg->type == LINK_TERM && s->life.state == LIFE_READY && !m->is_draining && !m->drain_at_us) {
		s->was_told = true;
		slots_leave(s, false);
	}
	if (msg->type == LINK_APPLIED)
		reload_applied(s, msg->value);
	if (msg->type == LINK_LEFT && !s->has_left) {
		/* its rings are closed at once, so that others get their share */
		s->has_left = true;
		s->unread_packets = inputs_died(s, s->is_ending || upgrade_is_leaving(m));
		upgrade_look(m);
	}
	if (msg->type == LINK_PEERS)
		registry_exclude(&m->registry, msg->text);
}

static void linked(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	struct slot *s = io->data;
	static struct link_connection msg; /* large */
	int fd;
	ssize_t n;
	while ((n = net_recv_fd(io->fd, &msg, sizeof msg, &fd)) >= (ssize_t)sizeof msg.head) {
		if (fd != -1 && (msg.head.type == LINK_CONNECTION || msg.head.type == LINK_LINES))
			post_keep_connection(s, &msg, (size_t)n, fd);
		else if (fd != -1)
			close(fd);
		msg.head.text[sizeof msg.head.text - 1] = '\0';
		hear(s, &msg.head);
	}
	if (n == -EAGAIN || n == -EINTR)
		return;
	unlink_tenant(s); /* SIGCHLD tells the rest */
}

static void start(struct slot *s)
{
	struct master *m = s->m;
	int pair[2];
	life_started(&s->life, clock_us());
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == -1) {
		log_error("cannot start worker %u: socketpair: %s; trying again", s->number, strerror(errno));
		life_died(&s->life, clock_us(), false);
		return;
	}
	registry_renew(&m->registry, s->number);
	if (s->marking != m->marking)
		generation_mark_page(m, s->page);
	s->marking = m->marking;
	s->generation = m->generation;
	s->has_left = false;
	pid_t pid = fork();
	if (pid == 0) {
		struct worker_setup setup = {
		    .cf = m->cf,
		    .args = m->args,
		    .slot = s->number,
		    .which = s->which,
		    .n_slots = m->n_slots_wanted,
		    .stats = m->stats,
		    .registry = &m->registry,
		    .receive = m->receive,
		    .inputs = m->inputs,
		    .outputs = m->outputs,
		    .holds = m->holds,
		    .link = pair[1],
		    .identity = &m->identity,
		};
		worker_run(&setup);
	}
	close(pair[1]);
	if (pid == -1) {
		log_error("cannot start worker %u: fork: %s; trying again", s->number, strerror(errno));
		close(pair[0]);
		life_died(&s->life, clock_us(), false);
		return;
	}
	s->pid = pid;
	s->link = pair[0];
	ev_io_init(&s->io, linked, s->link, EV_READ);
	s->io.data = s;
	ev_io_start(m->loop, &s->io);
	post_open(s);
	stats_slot(m->page, s->number)->starts++;
	publish(s);
}

/* -- a tenant goes --------------------------------------------------------------------------------------------- */

void slots_describe_end(struct text *t, int status)
{
	if (WIFSIGNALED(status))
		text_add(t, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		text_add(t, "left with exit code %d", WEXITSTATUS(status));
}

/* As it was asked to. */
static void left(struct slot *s)
{
	life_left(&s->life, clock_us(), s->is_ending);
	struct slot *to = s->is_ending ? slots_serving(s->m) : NULL;
	if (to)
		post_give_connections(s, to);
}

/* The obituary: one line. */
static void died(struct slot *s, int status)
{
	struct master *m = s->m;
	bool left_clean =
	    WIFEXITED(status) && (WEXITSTATUS(status) == WORKER_EXIT_CLEAN || WEXITSTATUS(status) == WORKER_EXIT_LEFT);
	bool is_fatal = WIFEXITED(status) && WEXITSTATUS(status) == WORKER_EXIT_FATAL;
	bool for_good = is_fatal && !m->reload && !m->reload_failed; /* of a reload there may be a better one */
	bool was_asked = (m->is_draining || s->is_leaving) && left_clean;
	struct text t = {0};
	char uptime[32];
	text_add(&t, "worker %u (pid %d) ", s->number, (int)s->pid);
	slots_describe_end(&t, status);
	text_add(&t, " after %s", text_format_time(uptime, sizeof uptime, clock_us() - s->life.since_us));
	bool is_last = for_good || s->is_ending || upgrade_is_leaving(m);
	uint64_t unread = s->has_left ? s->unread_packets : inputs_died(s, is_last);
	if (left_clean)
		stats_adopt(s->page); /* it has counted what it left */
	else
		death_account(m, s, &t);
	if (unread)
		text_add(&t, "; %llu packets waited unread in its ring", (unsigned long long)unread);
	if (!was_asked || (s->was_told && !m->is_draining))
		log_warn("%s", t.s ? t.s : "a worker died");
	if (!was_asked)
		stats_slot(m->page, s->number)->deaths++;
	text_free(&t);
	/* what a rolled worker gave up was counted and logged then: the exit code speaks of the end */
	if (m->is_draining && (!left_clean || WEXITSTATUS(status) == WORKER_EXIT_LEFT))
		m->has_left = true;
	s->pid = 0;
	unlink_tenant(s);
	s->is_rolling &= was_asked && !s->is_ending;
	if (was_asked && !m->is_draining)
		left(s);
	else
		life_died(&s->life, clock_us(), for_good);
	s->is_leaving = s->was_told = false;
	for (unsigned i = 0; i < m->n_slots; i++) /* it read for others, too: they need another reader */
		if (m->slots[i].lent_to == s)
			m->slots[i].lent_to = NULL;
	publish(s);
	if (is_fatal)
		reload_failed_worker(s);
	if (for_good && !m->has_started && !m->is_draining)
		master_stop(m, MASTER_EXIT_ERROR); /* it has said why */
}

void slots_reap(struct master *m)
{
	int status;
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		if (s->pid == 0 || waitpid(s->pid, &status, WNOHANG) != s->pid)
			continue;
		if (s->link != -1)
			ev_invoke(m->loop, &s->io, EV_READ); /* its last words */
		died(s, status);
	}
	reload_look(m);
	upgrade_look(m);
	slots_look(m);
	master_look_at_drain(m);
}

/* -- all of them ------------------------------------------------------------------------------------------------- */

struct slot *slots_serving(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].life.state == LIFE_READY)
			return &m->slots[i];
	return NULL;
}

void slots_leave(struct slot *s, bool ends)
{
	struct master *m = s->m;
	struct link_message msg = {.type = LINK_LEAVE, .slot = s->number, .value = m->cf->drain_timeout};
	uint64_t now_us = clock_us();
	if (!ends && !upgrade_is_leaving(m))
		registry_prepare_successor(&m->registry, s->number);
	if (ends)
		snprintf(msg.text, sizeof msg.text, "ends");
	s->is_leaving = s->is_rolling = true;
	s->is_ending = ends;
	life_leaving(&s->life, now_us, now_us + m->cf->drain_timeout + LATE_US);
	post_send(s, &msg, sizeof msg, -1);
	publish(s);
}

static bool all_failed(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].life.state != LIFE_FAILED)
			return false;
	return true;
}

static uint64_t look(struct slot *s, uint64_t now_us)
{
	struct master *m = s->m;
	uint64_t again_us, lend_us = UINT64_MAX;
	switch (life_next(&s->life, now_us, m->cf->start_timeout, &again_us)) {
	case LIFE_START:
		if (upgrade_is_leaving(m)) /* its successor is another program's */
			break;
		start(s);
		again_us = now_us;
		break;
	case LIFE_KILL:
		log_error("worker %u did not %s: killing it", s->number,
			  s->life.state == LIFE_DRAINING ? "leave in time" : "become ready within start_timeout");
		s->life.kill_at_us = now_us + m->cf->start_timeout;
		kill(s->pid, SIGKILL);
		again_us = now_us + m->cf->start_timeout;
		break;
	case LIFE_WAIT:
		break;
	}
	if (!s->lent_to && m->has_started && !s->is_ending && life_should_lend(&s->life, now_us, &lend_us)) {
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
		if (m->slots[k].life.state != LIFE_READY)
			return;
		if (registry_is_stale(&m->registry, k))
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
		if (m->slots[i].pid != 0)
			return false;
	return true;
}

void slots_drain(struct master *m, uint64_t deadline_us)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		/* what waits for a slot without a tenant, or whose tenant reads no more, is read by a sibling before that
		 * drains */
		bool is_away = s->pid == 0 || (s->is_leaving && !s->is_ending);
		if (is_away && !s->lent_to && s->life.state != LIFE_REMOVED)
			lend(s);
		struct slot *to = is_away ? slots_serving(m) : NULL;
		if (to)
			post_give_connections(s, to);
	}
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		if (s->life.state == LIFE_READY)
			s->life.state = LIFE_DRAINING;
		tell(s, LINK_DRAIN, deadline_us);
		publish(s);
	}
	if (slots_are_gone(m))
		ev_break(m->loop, EVBREAK_ALL);
}

void slots_kill(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].pid != 0)
			kill(m->slots[i].pid, SIGKILL);
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
	s->link = -1;
	s->page = stats_slot_page(m->stats, number);
	STAILQ_INIT(&s->outbox);
	STAILQ_INIT(&s->connections);
	life_init(&s->life, clock_us());
}

void slots_fini(struct master *m)
{
	for (unsigned i = 0; m->slots && i < m->n_slots; i++)
		unlink_tenant(&m->slots[i]);
	free(m->slots);
}
