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
	return s->link == -1 ? -EPIPE : net_send_fd(s->link, &msg, sizeof msg, -1);
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
			const struct endpoint *ep = &m->inputs[i].endpoints[k];
			struct link_message msg = {.type = LINK_ADOPT, .slot = s->number, .input = (uint32_t)i};
			if (ep->n_fds == 1 ||
			    m->inputs[i].type->stays_in_slot) /* all workers read it anyway, or nobody else can */
				continue;
			if (net_send_fd(to->link, &msg, sizeof msg, input_slot_fd(ep, s->number)) != 0)
				return;
		}
	s->lent_to = to;
	log_info("worker %u reads the sockets of worker %u meanwhile", to->number, s->number);
	publish(s);
}

static void take_back(struct slot *s)
{
	struct link_message msg = {.type = LINK_RELEASE, .slot = s->number};
	if (s->lent_to && s->lent_to->link != -1)
		net_send_fd(s->lent_to->link, &msg, sizeof msg, -1);
	s->lent_to = NULL;
}

/* -- a tenant comes -------------------------------------------------------------------------------------------- */

static void unlink_tenant(struct slot *s)
{
	if (s->link == -1)
		return;
	ev_io_stop(s->m->loop, &s->io);
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
	master_ready(s->m);
	slots_look(s->m);
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
	if (msg->type == LINK_DONE && msg->input < m->n_inputs)
		master_input_done(m, msg->input);
	for (size_t i = 0; msg->type == LINK_PEERS && i < m->n_inputs; i++)
		if (m->inputs[i].type->exclude)
			m->inputs[i].type->exclude(&m->inputs[i], msg->text);
}

static void linked(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	struct slot *s = io->data;
	struct link_message msg;
	int fd;
	ssize_t n;
	while ((n = net_recv_fd(io->fd, &msg, sizeof msg, &fd)) == sizeof msg) {
		if (fd != -1)
			close(fd);
		msg.text[sizeof msg.text - 1] = '\0';
		hear(s, &msg);
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
	for (size_t i = 0; i < m->n_inputs; i++)
		input_renew(&m->inputs[i], s->number, m->page);
	pid_t pid = fork();
	if (pid == 0) {
		struct worker_setup setup = {
		    .cf = m->cf,
		    .slot = s->number,
		    .n_slots = m->n_slots,
		    .stats = m->stats,
		    .inputs = m->inputs,
		    .outputs = m->outputs,
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

/* The obituary: one line. */
static void died(struct slot *s, int status)
{
	struct master *m = s->m;
	bool left_clean =
	    WIFEXITED(status) && (WEXITSTATUS(status) == WORKER_EXIT_CLEAN || WEXITSTATUS(status) == WORKER_EXIT_LEFT);
	bool for_good = WIFEXITED(status) && WEXITSTATUS(status) == WORKER_EXIT_FATAL;
	bool was_asked = m->is_draining && left_clean;
	struct text t = {0};
	char uptime[32];
	text_add(&t, "worker %u (pid %d) ", s->number, (int)s->pid);
	slots_describe_end(&t, status);
	text_add(&t, " after %s", text_format_time(uptime, sizeof uptime, clock_us() - s->life.since_us));
	uint64_t unread = inputs_died(s, for_good);
	if (left_clean)
		stats_adopt(s->page); /* it has counted what it left */
	else
		death_account(m, s, &t);
	if (unread)
		text_add(&t, "; %llu packets waited unread in its ring", (unsigned long long)unread);
	if (!was_asked) {
		log_warn("%s", t.s ? t.s : "a worker died");
		stats_slot(m->page, s->number)->deaths++;
	}
	text_free(&t);
	if (WIFEXITED(status) && WEXITSTATUS(status) == WORKER_EXIT_LEFT)
		m->has_left = true;
	if (!left_clean && m->is_draining)
		m->has_left = true;
	s->pid = 0;
	unlink_tenant(s);
	life_died(&s->life, clock_us(), for_good);
	for (unsigned i = 0; i < m->n_slots; i++) /* it read for others, too: they need another reader */
		if (m->slots[i].lent_to == s)
			m->slots[i].lent_to = NULL;
	publish(s);
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
	slots_look(m);
}

/* -- all of them ------------------------------------------------------------------------------------------------- */

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
		start(s);
		again_us = now_us;
		break;
	case LIFE_KILL:
		log_error("worker %u did not become ready within start_timeout: killing it", s->number);
		kill(s->pid, SIGKILL);
		again_us = now_us + m->cf->start_timeout;
		break;
	case LIFE_WAIT:
		break;
	}
	if (!s->lent_to && m->has_started && life_should_lend(&s->life, now_us, &lend_us)) {
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
	for (unsigned k = m->n_slots; k-- > 0;) {
		if (m->slots[k].life.state != LIFE_READY)
			return;
		for (size_t i = 0; i < m->n_inputs; i++)
			if (m->inputs[i].type->is_stale && m->inputs[i].type->is_stale(&m->inputs[i], k))
				stale = &m->slots[k];
	}
	if (stale && !m->is_draining)
		kill(stale->pid, SIGTERM); /* it drains, and the next one gets a new handle */
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
		/* what waits for a slot without a tenant is read by a sibling before that drains */
		if (s->pid == 0 && !s->lent_to)
			lend(s);
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
	m->slots = calloc(m->n_slots, sizeof *m->slots);
	if (!m->slots)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		s->m = m;
		s->number = i;
		s->link = -1;
		s->page = stats_slot_page(m->stats, i);
		life_init(&s->life, clock_us());
	}
	return 0;
}

void slots_fini(struct master *m)
{
	for (unsigned i = 0; m->slots && i < m->n_slots; i++)
		unlink_tenant(&m->slots[i]);
	free(m->slots);
}
