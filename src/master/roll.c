/* SPDX-License-Identifier: MIT
 *
 * roll: one worker of a slot follows another, and goes on with what that one held; or a slot ends, and a sibling goes on
 * with it. What is handed over goes through a channel between the two, of which the master keeps the receiving end until
 * all is taken over, so that a successor that dies leaves the rest for the next. Master only.
 *
 *      now: A serves            now: A leaves, hands over         now: B serves, A waits for Kafka
 *      next: B starts  ──READY──▶ next: B takes over   ──LEFT──▶  next: none             ──exit of A──▶ done
 *         │ B dies                   │ B dies: C takes the rest        taking is closed at TAKEN
 *         ▼
 *      A goes on, nothing has happened
 */
#include "master.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* 1,000 backends take 3 MiB of the kernel's memory: so who gives writes all at once, and does not wait for its turn again
 * each time that the other has read 90. */
static const uint64_t channel_bytes = 8 << 20;

static void close_end(int *fd)
{
	if (*fd != -1)
		close(*fd);
	*fd = -1;
}

void roll_close(struct slot *s)
{
	close_end(&s->giving);
	close_end(&s->taking);
}

static struct worker_process *other(struct slot *s)
{
	return &s->processes[s->now == &s->processes[0]];
}

bool roll_can_begin(const struct slot *s)
{
	const struct worker_process *p = &s->processes[s->now == &s->processes[0]];
	return s->restart.state == RESTART_READY && s->next == NULL && s->taking == -1 && !s->now->is_leaving &&
	       !child_is_there(&p->child);
}

static int open_channel(struct slot *s)
{
	int pair[2];
	int r = net_link_pair(pair);
	if (r != 0)
		return r;
	net_send_buffer(pair[0], channel_bytes);
	s->giving = pair[0];
	s->taking = pair[1];
	return 0;
}

static int start_next(struct slot *s, struct worker_process *p)
{
	registry_prepare_successor(&s->m->registry, s->number);
	int r = worker_start(p);
	if (r == 0)
		p->kill_at_us = clock_us() + s->m->cf->start_timeout;
	return r;
}

int roll_begin(struct slot *s)
{
	struct worker_process *p = other(s);
	if (!roll_can_begin(s))
		return -EBUSY;
	int r = open_channel(s);
	if (r == 0)
		r = start_next(s, p);
	if (r != 0) {
		roll_close(s);
		return r;
	}
	s->next = p;
	slots_look(s->m);
	return 0;
}

static void tell_to_leave(struct slot *s, unsigned to)
{
	struct link_message msg = {
	    .version = LINK_VERSION, .type = LINK_LEAVE, .slot = to, .value = s->m->cf->drain_timeout, .name = "channel"};
	s->now->is_leaving = true;
	s->now->kill_at_us = clock_us() + s->m->cf->drain_timeout + MASTER_LATE_US;
	s->take_by_us = s->now->kill_at_us;
	worker_send(s->now, &msg, s->giving);
	close_end(&s->giving);
	slot_publish(s);
}

void roll_ready(struct slot *s)
{
	s->next->kill_at_us = 0;
	if (!s->now->is_leaving)
		tell_to_leave(s, s->number);
	slots_look(s->m);
}

/* The slot is its successor's. */
static void follow(struct slot *s)
{
	struct worker_process *p = s->next;
	s->next = NULL;
	s->now = p;
	s->told_at_us = 0; /* that one has gone */
	registry_died(&s->m->registry, s->number, false); /* what only the one before read */
	if (!child_is_there(&p->child)) {
		restart_died(&s->restart, clock_us(), false); /* it has died meanwhile; what it did not take waits */
	} else if (p->is_ready) {
		restart_started(&s->restart, clock_us());
		restart_ready(&s->restart, clock_us());
		stats_slot(s->m->page, s->number)->ready_us = clock_real_us();
	} else {
		restart_started(&s->restart, clock_us());
		p->kill_at_us = 0;
	}
	slot_publish(s);
}

/* What it was to take over is for somebody else. */
static void taker_gone(struct master *m, const struct worker_process *p)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].taker == p)
			m->slots[i].taker = NULL;
}

void roll_left(struct worker_process *p)
{
	struct slot *s = p->slot;
	taker_gone(s->m, p);
	if (p == s->now && s->next != NULL)
		follow(s);
	else if (s->is_ending) /* at once, so that others get the share of its rings */
		registry_died(&s->m->registry, s->number, true);
}

void roll_taken(struct slot *s, const struct worker_process *by)
{
	if (by == s->now && !s->now->is_leaving)
		s->now->kill_at_us = 0; /* roll_look */
	if (by == s->now || by == s->next || by == s->taker) {
		close_end(&s->taking);
		s->taker = NULL;
	}
}

/* -- a slot ends --------------------------------------------------------------------------------------------------- */

static void give_to(struct slot *s, struct slot *to)
{
	struct link_message msg = {.version = LINK_VERSION, .type = LINK_TAKE, .slot = s->number};
	s->taker = to->now;
	worker_send(to->now, &msg, s->taking);
}

int roll_end(struct slot *s)
{
	struct slot *to = slots_serving(s->m, s);
	if (!roll_can_begin(s) || to == NULL)
		return -EBUSY;
	int r = open_channel(s);
	if (r != 0)
		return r;
	s->is_ending = true;
	give_to(s, to);
	restart_leaving(&s->restart, clock_us());
	tell_to_leave(s, to->number);
	return 0;
}

void roll_find_takers(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i], *to = slots_serving(m, s);
		if (s->is_ending && s->taking != -1 && s->taker == NULL && to != NULL)
			give_to(s, to);
	}
}

/* -- the end of a process ------------------------------------------------------------------------------------------- */

/* The successor was not to be. */
static void next_died(struct slot *s)
{
	if (s->now->is_leaving && child_is_there(&s->now->child)) {
		/* what is handed over waits for another one: now, since the channel may be full, or when it has left */
		if (s->next->is_ready)
			start_next(s, s->next);
		return;
	}
	s->next = NULL;
	roll_close(s);
	log_error("worker %u: its successor could not start%s%s; it goes on itself", s->number,
		  other(s)->why[0] ? ": " : "", other(s)->why);
	reload_failed_worker(s, other(s)->why);
}

bool roll_exited(struct worker_process *p)
{
	struct slot *s = p->slot;
	taker_gone(s->m, p);
	if (p == s->next) {
		next_died(s);
		return true;
	}
	if (p != s->now)
		return true; /* it had left, and its successor serves */
	if (s->next != NULL) { /* it died before it had left; its successor meets the end of the channel */
		close_end(&s->giving);
		follow(s);
		return true;
	}
	close_end(&s->giving);
	if (!s->is_ending || s->m->is_draining)
		return false;
	restart_left(&s->restart, clock_us());
	registry_died(&s->m->registry, s->number, true);
	return true;
}

void roll_stop(struct slot *s)
{
	s->told_at_us = 0;
	if (s->next == NULL || s->now->is_leaving)
		return;
	s->next->is_stopped = true;
	process_signal(&s->next->child.process, SIGKILL);
	s->next = NULL;
	roll_close(s);
}

/* -- what nobody takes over ------------------------------------------------------------------------------------------ */

static void count_records(struct master *m, struct stats_page *page, const struct handover *msg)
{
	const struct output *out = output_named(m->outputs, m->n_outputs, msg->name);
	/* which backend's they were is in their queues, which nobody reads any more */
	uint32_t block = (out != NULL ? out : &m->outputs[0])->blocks[0];
	struct stats_backend *be = stats_backend(page, block);
	be->taken_over_records += msg->records;
	be->dropped_shutdown_records += msg->records;
	stats_touch(page, STATS_BACKEND, block);
}

static void count_connection(struct master *m, struct stats_page *page, const struct handover *msg, int fd)
{
	const struct input *in = input_named(m->inputs, m->n_inputs, msg->name);
	int unread = 0;
	if (in == NULL)
		in = &m->inputs[0];
	struct stats_input *st = stats_input(page, in->index);
	if (fd != -1 && ioctl(fd, FIONREAD, &unread) == 0 && unread > 0)
		st->dropped_stream_bytes += (unsigned)unread;
	st->received_lines += msg->records;
	st->dropped_shutdown_lines += msg->records;
	stats_touch(page, STATS_INPUT, in->index);
}

/* A page has one writer. NULL: both have a process. */
static struct stats_page *page_without_process(struct slot *s)
{
	for (unsigned k = 0; k < ARRAY_LEN(s->processes); k++)
		if (!child_is_there(&s->processes[k].child))
			return s->processes[k].page;
	return NULL;
}

void roll_count_untaken(struct slot *s)
{
	struct net_message *k;
	uint64_t n = 0;
	struct stats_page *page = page_without_process(s);
	if (s->taking == -1 || page == NULL)
		return;
	while (net_link_recover(s->taking, HANDOVER_BYTES_MAX, &k) == 1) {
		struct handover *msg = (void *)k->bytes;
		if (k->len >= sizeof(*msg)) {
			msg->name[sizeof(msg->name) - 1] = '\0';
			if (msg->type == HANDOVER_CONNECTION)
				count_connection(s->m, page, msg, k->fd);
			else
				count_records(s->m, page, msg);
			n += msg->records;
		}
		net_message_free(k);
	}
	if (n > 0)
		log_warn("%llu lines that worker %u had handed over are lost: nobody was there to take them over, or who "
			 "was had no descriptors left",
			 (unsigned long long)n, s->number);
	s->m->has_left |= s->m->is_draining && n > 0;
	stats_publish(page);
	close_end(&s->taking);
}

/* Who takes over lives and works, and still has not: it has no descriptors. Returns when to look again. */
uint64_t roll_look(struct slot *s, uint64_t now_us)
{
	const struct worker_process *by = s->is_ending ? s->taker : s->now;
	if (s->taking == -1 || s->next != NULL || by == NULL || !by->is_ready || by->is_leaving)
		return UINT64_MAX;
	if (now_us < s->take_by_us)
		return s->take_by_us;
	if (page_without_process(s) != NULL)
		roll_count_untaken(s);
	if (!s->is_ending) /* it reads nothing before it has seen the end: is it there at all? */
		s->now->kill_at_us = now_us + MASTER_LATE_US;
	return s->is_ending ? UINT64_MAX : s->now->kill_at_us;
}

/* One at a time, so that the others go on meanwhile. */
void slots_renew_stale(struct master *m)
{
	struct slot *stale = NULL;
	if (m->reload)
		return;
	for (unsigned k = m->n_slots; k-- > 0;) {
		if (!roll_can_begin(&m->slots[k]))
			return;
		if (registry_is_stale(&m->registry, k))
			stale = &m->slots[k];
	}
	if (stale && !m->is_draining)
		roll_begin(stale); /* the next one gets a new handle */
}
