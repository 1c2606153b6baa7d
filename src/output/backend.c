/* SPDX-License-Identifier: MIT
 *
 * backend: the life of one remote in one worker (states in statsite.h), what a full queue means, its part of the
 * account and its log lines: one for each change of state, not one for each attempt. Worker only. What is particular to
 * TCP and UDP is in backend_tcp.c and backend_udp.c.
 */
#include "statsite.h"
#include "types.h"

#include <errno.h>
#include <event.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { LOG_WINDOW_US = 1000000, LOG_WINDOW_LINES = 20, DROP_PAUSE_US = 1000000 };

/* -- log ----------------------------------------------------------------------------------------------------------- */

const char *backend_label(const struct backend *be, char *buf, size_t size)
{
	char label[LABEL_BYTES];
	conf_backend_label(be->cf, label, sizeof(label));
	return text_escape(buf, size, label, strlen(label));
}

/* A cut cable may take a thousand backends down at once: the first of each second are named, the others counted. */
bool backend_may_log(struct statsite *st, uint64_t now_us)
{
	if (now_us - st->log_window_us >= LOG_WINDOW_US) {
		if (st->log_held > 0)
			log_warn("output %s: %llu more backends changed their state", st->out->cf->name,
				 (unsigned long long)st->log_held);
		st->log_window_us = now_us;
		st->log_lines = st->log_held = 0;
	}
	if (++st->log_lines <= LOG_WINDOW_LINES)
		return true;
	st->log_held++;
	return false;
}

uint64_t backend_dropped_lines(const struct backend *be)
{
	return be->draft->dropped_queue_full_records + be->draft->dropped_memory_records;
}

static void log_down(struct backend *be, const char *why)
{
	char name[LABEL_BYTES], limit[32];
	uint64_t now_us = clock_us();
	if (be->down_us != 0)
		return;
	be->down_us = now_us;
	be->dropped_at_down = backend_dropped_lines(be);
	be->is_down_logged = backend_may_log(be->st, now_us);
	if (be->is_down_logged)
		log_warn("backend %s down: %s; holding up to %s", backend_label(be, name, sizeof(name)), why,
			 text_format_bytes(limit, sizeof(limit), be->queue.limit_bytes));
}

static void log_up(struct backend *be)
{
	char name[LABEL_BYTES], away[32];
	if (be->down_us == 0)
		log_debug("backend %s up", backend_label(be, name, sizeof(name)));
	else if (be->is_down_logged)
		log_info("backend %s up after %s, %llu dropped", backend_label(be, name, sizeof(name)),
			 text_format_time(away, sizeof(away), clock_us() - be->down_us),
			 (unsigned long long)(backend_dropped_lines(be) - be->dropped_at_down));
	be->down_us = 0;
}

static void log_dropping(struct backend *be, enum queue_room room, uint64_t dropped_before)
{
	struct statsite *st = be->st;
	const struct conf_output *cf = st->out->cf;
	char name[LABEL_BYTES], limit[32];
	be->last_drop_us = st->now_us;
	if (be->is_dropping)
		return;
	be->is_dropping = true;
	be->dropping_since_us = st->now_us;
	be->dropped_before = dropped_before;
	if (backend_may_log(st, clock_us()))
		log_warn("backend %s %s: %s of %s is reached, the %s lines are dropped",
			 backend_label(be, name, sizeof(name)), be->state == BACKEND_UP ? "is too slow" : "is away",
			 room == QUEUE_FULL ? "queue_limit" : "memory_limit",
			 text_format_bytes(limit, sizeof(limit), room == QUEUE_FULL ? cf->queue_limit : cf->memory_limit),
			 st->out->overflow == CONF_OVERFLOW_DROP_OLDEST ? "oldest" : "newest");
}

/* A queue at its limit has room for some lines each moment: only a half empty one, and a second, end it. */
static void log_dropping_end(struct backend *be)
{
	struct statsite *st = be->st;
	char name[LABEL_BYTES], lasted[32];
	if (st->now_us < be->last_drop_us + DROP_PAUSE_US || queue_held_bytes(&be->queue) > be->queue.limit_bytes / 2)
		return;
	be->is_dropping = false;
	if (backend_may_log(st, clock_us()))
		log_info("backend %s has room again: %llu lines were dropped in %s", backend_label(be, name, sizeof(name)),
			 (unsigned long long)(backend_dropped_lines(be) - be->dropped_before),
			 text_format_time(lasted, sizeof(lasted), be->last_drop_us - be->dropping_since_us));
}

/* -- account ------------------------------------------------------------------------------------------------------- */

void backend_account(struct backend *be)
{
	struct statsite *st = be->st;
	struct stats_backend *d = be->draft;
	const struct queue *q = &be->queue;
	uint64_t unsent_lines = queue_unsent_lines(q), flight_lines = queue_flight_lines(q),
		 held_bytes = queue_held_bytes(q);

	/* Differences, since a connection that is finished here is in the same account as the backend's own. */
	d->offered_records += q->put_lines - be->counted_lines;
	be->counted_lines = q->put_lines;
	d->queued_records += unsent_lines - be->counted_unsent_lines;
	d->in_flight_records += flight_lines - be->counted_flight_lines;
	d->queued_bytes += held_bytes - be->counted_held_bytes;
	st->pending_lines += unsent_lines - be->counted_unsent_lines + flight_lines - be->counted_flight_lines;
	be->counted_unsent_lines = unsent_lines;
	be->counted_flight_lines = flight_lines;
	be->counted_held_bytes = held_bytes;
	if (UNLIKELY(be->is_dropping))
		log_dropping_end(be);
	stats_touch(st->out->page, STATS_BACKEND, be->block);
}

/* -- connecting ---------------------------------------------------------------------------------------------------- */

void backend_hurry(struct backend *be)
{
	be->delay_us = 0;
	if (be->state != BACKEND_WAITING || be->is_finishing)
		return;
	ev_timer_stop(be->st->out->loop, &be->timer);
	backend_start(be);
}

static void on_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct backend *be = w->data;
	if (be->state == BACKEND_WAITING)
		backend_start(be);
	else if (backend_is_tcp(be))
		backend_lost(be, strerror(ETIMEDOUT));
	else
		backend_up(be); /* nobody refused */
	statsite_after_event(be->st);
}

static void on_io(struct ev_loop *loop, ev_io *w, int revents)
{
	event_keep(loop, w, revents);
	if (revents & EV_ERROR)
		return; /* whether it is connected is not known */
	struct backend *be = w->data;
	be->st->now_us = clock_us();
	if (be->state == BACKEND_CONNECTING && backend_is_tcp(be)) {
		backend_tcp_connected(be);
	} else {
		if (revents & EV_READ)
			(backend_is_tcp(be) ? backend_tcp_read : backend_udp_read)(be);
		if (revents & EV_WRITE && be->state == BACKEND_UP && be->is_blocked) {
			backend_set_blocked(be, false);
			backend_send(be);
		}
	}
	backend_account(be);
	statsite_after_event(be->st);
}

void backend_watch(struct backend *be)
{
	struct ev_loop *loop = be->st->out->loop;
	bool is_tcp_connecting = be->state == BACKEND_CONNECTING && backend_is_tcp(be);
	bool wants_write = is_tcp_connecting || (be->is_blocked && !be->is_short);
	int events = (is_tcp_connecting ? 0 : EV_READ) | (wants_write ? EV_WRITE : 0);
	if (ev_is_active(&be->io) && (be->io.events & (EV_READ | EV_WRITE)) == events)
		return;
	ev_io_stop(loop, &be->io);
	ev_io_set(&be->io, be->fd, events);
	ev_io_start(loop, &be->io);
}

void backend_set_blocked(struct backend *be, bool is_blocked)
{
	be->is_blocked = is_blocked;
	queue_set_watermark(&be->queue, is_blocked ? UINT64_MAX : SEND_BYTES);
	backend_watch(be);
}

int backend_socket(struct backend *be, int family, int type)
{
	if (be->place_fd != -1)
		close(be->place_fd);
	be->place_fd = -1;
	be->fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	return be->fd == -1 ? -1 : 0;
}

/* The backend of the configuration tells, not a connection that is finished here. */
static void mark_up(struct backend *be, bool is_up)
{
	if (!be->is_finishing)
		output_mark_up(be->draft, is_up);
}

void backend_up_again(struct backend *be)
{
	be->state = BACKEND_UP;
	mark_up(be, true);
	be->is_short = false;
	backend_set_blocked(be, false);
	statsite_due(be);
	backend_ask_later(be);
}

void backend_up(struct backend *be)
{
	be->state = BACKEND_UP;
	be->connected_us = clock_us();
	ev_timer_stop(be->st->out->loop, &be->timer);
	mark_up(be, true);
	be->draft->connects++;
	be->is_avoided = be->is_refused = false;
	be->is_short = false;
	backend_set_blocked(be, false);
	log_up(be);
	backend_ask_later(be);
	backend_send(be);
	backend_account(be);
}

/* -- losing -------------------------------------------------------------------------------------------------------- */

static void close_socket(struct backend *be)
{
	struct ev_loop *loop = be->st->out->loop;
	ev_io_stop(loop, &be->io);
	ev_timer_stop(loop, &be->timer);
	ev_timer_stop(loop, &be->ask_timer);
	be->leave_us = be->refused_since_us = be->unrefused_us = 0;
	be->is_leaving = false;
	if (be->query != NULL)
		net_query_cancel(be->query);
	be->query = NULL;
	if (be->fd != -1)
		close(be->fd);
	be->fd = -1;
	statsite_not_due(be);
	statsite_settled(be);
	mark_up(be, false);
}

/* A connection that held for a while earns a quick retry; one that breaks at once, or never came, waits longer each
 * time. Half of the wait is random, so that a thousand workers do not return to a restarted backend in step. */
static void wait_for_retry(struct backend *be, bool was_up)
{
	struct statsite *st = be->st;
	const struct conf_output *cf = st->out->cf;
	bool has_lasted = was_up && clock_us() - be->connected_us >= 4 * cf->reconnect_min;
	if (be->delay_us == 0 || has_lasted || st->is_draining)
		be->delay_us = cf->reconnect_min;
	else
		be->delay_us = MIN(be->delay_us * 2, MAX(cf->reconnect_max, cf->reconnect_min));
	be->is_avoided = was_up && (be->is_refused || !has_lasted);
	if (!was_up)
		be->address = (struct net_address){0}; /* all were tried: the next round begins with the first */
	uint64_t half_us = be->delay_us / 2;
	backend_wait(be, half_us + statsite_random(st, half_us + 1));
}

/* A descriptor, or clients that wait to be accepted would take its place, and keep the backend away. */
static void keep_place(struct backend *be)
{
	if (be->place_fd == -1)
		be->place_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
}

void backend_wait(struct backend *be, uint64_t wait_us)
{
	be->state = BACKEND_WAITING;
	keep_place(be);
	ev_timer_set(&be->timer, (double)wait_us / 1e6, 0.);
	ev_timer_start(be->st->out->loop, &be->timer);
}

/* Its lines begin anew in the queues of those who have their keys (statsite_look_at_finishing). */
static void log_unfinished(struct backend *be, const char *why)
{
	char name[LABEL_BYTES];
	if (backend_may_log(be->st, clock_us()))
		log_warn("backend %s: a connection that another worker left to be finished is lost: %s",
			 backend_label(be, name, sizeof(name)), why);
}

static void log_attempt(struct backend *be, const char *why)
{
	char name[LABEL_BYTES], address[128];
	if (be->address.len > 0)
		log_debug("backend %s: %s: %s", backend_label(be, name, sizeof(name)),
			  net_address_format(&be->address.sa, address, sizeof(address)), why);
}

void backend_lost(struct backend *be, const char *why)
{
	bool was_up = be->state == BACKEND_UP;
	if (was_up && backend_is_tcp(be)) {
		backend_tcp_settle(be);
		be->draft->at_risk_records += risk_lines(&be->risk);
	}
	be->state = BACKEND_WAITING;
	close_socket(be);
	be->is_blocked = be->is_short = false;
	if (was_up) {
		be->draft->disconnects++;
		be->draft->resent_records += queue_rewind(&be->queue);
	} else {
		be->draft->connect_failures++;
		log_attempt(be, why);
	}
	queue_set_watermark(&be->queue, UINT64_MAX);
	if (be->is_finishing) {
		log_unfinished(be, why);
	} else if (!was_up && be->n_tried < be->n_addresses) {
		backend_try_next(be);
	} else {
		log_down(be, why);
		wait_for_retry(be, was_up);
	}
	backend_account(be);
}

void backend_leave(struct backend *be, const char *why)
{
	char name[LABEL_BYTES], address[128] = "its connection";
	struct net_address from = {0};
	socklen_t len = sizeof(from.sa);
	if (getpeername(be->fd, (struct sockaddr *)&from.sa, &len) == 0)
		net_address_format(&from.sa, address, sizeof(address));
	if (backend_may_log(be->st, clock_us()))
		log_info("backend %s leaves %s: %s", backend_label(be, name, sizeof(name)), address, why);
	be->draft->moves++;
	be->is_leaving = true;
	statsite_not_due(be);
	if (backend_is_tcp(be) && !be->is_blocked)
		backend_tcp_send(be);
	if (be->is_leaving && be->sent_bytes != be->acked_bytes)
		statsite_unsettled(be);
	backend_leave_if_done(be);
	backend_account(be);
}

void backend_leave_if_done(struct backend *be)
{
	if (!be->is_leaving || be->sent_bytes != be->acked_bytes || queue_flight_lines(&be->queue) > 0)
		return;
	if (backend_is_tcp(be))
		backend_tcp_close(be);
	close_socket(be);
	keep_place(be);
	be->is_blocked = be->is_short = false;
	queue_set_watermark(&be->queue, UINT64_MAX);
	backend_start(be);
	backend_account(be);
}

void backend_given(struct backend *be)
{
	struct queue *q = &be->queue;
	be->draft->passed_records += queue_unsent_lines(q) + queue_flight_lines(q);
	queue_forget(q);
	queue_set_watermark(q, UINT64_MAX);
	close_socket(be);
	if (be->place_fd != -1)
		close(be->place_fd);
	be->place_fd = -1;
	be->state = BACKEND_ELSEWHERE;
	be->address = (struct net_address){0};
	be->sent_bytes = be->acked_bytes = be->delay_us = 0;
	be->is_blocked = be->is_short = be->is_dropping = false;
	if (!be->is_finishing)
		be->draft->down_us = 0; /* whether it is, its next worker says */
	backend_account(be);
}

/* -- putting and sending ------------------------------------------------------------------------------------------- */

void backend_send(struct backend *be)
{
	if (!backend_can_send(be))
		return;
	statsite_not_due(be);
	(backend_is_tcp(be) ? backend_tcp_send : backend_udp_send)(be);
	backend_leave_if_done(be);
}

static void refuse(struct backend *be, uint64_t *reason)
{
	be->draft->offered_records++;
	++*reason;
}

bool backend_put_slowly(struct backend *be, const struct line *l)
{
	struct statsite *st = be->st;
	struct queue *q = &be->queue;
	if (backend_can_send(be) && queue_unsent_bytes(q) + l->len + 1 > SEND_BYTES)
		backend_send(be);
	for (;;) {
		enum queue_room room = queue_reserve(q, l->len);
		if (room == QUEUE_ROOM) {
			queue_put(q, l->bytes, l->len);
			return true;
		}
		/* What was acknowledged since the last look makes room; asked at most once a tick, not once a line. */
		if (be->is_unsettled && backend_is_tcp(be) && st->now_us >= be->poll_us) {
			be->poll_us = st->now_us + ACK_TICK_US;
			if (backend_tcp_settle(be))
				continue;
		}
		if (st->out->takes_all) {
			st->pool.is_unlimited = true;
			if (!queue_put_beyond(q, l->bytes, l->len))
				refuse(be, &be->draft->dropped_memory_records);
			return true;
		}
		if (st->out->overflow == CONF_OVERFLOW_BLOCK)
			return false;
		uint64_t *reason =
		    room == QUEUE_FULL ? &be->draft->dropped_queue_full_records : &be->draft->dropped_memory_records;
		uint64_t dropped = 0, dropped_before = backend_dropped_lines(be);
		if (st->out->overflow == CONF_OVERFLOW_DROP_OLDEST)
			dropped = queue_drop_oldest(q, room == QUEUE_FULL ? l->len + 1 : CHUNK_SMALL_ROOM);
		*reason += dropped;
		if (dropped == 0)
			refuse(be, reason);
		log_dropping(be, room, dropped_before);
		if (dropped == 0)
			return true;
	}
}

bool backend_has_room(const struct backend *be, uint32_t len)
{
	const struct queue *q = &be->queue;
	uint64_t held_bytes = queue_held_bytes(q), need_bytes = MAX(q->limit_bytes / 4, len + UINT64_C(1));
	return held_bytes + need_bytes <= q->limit_bytes && pool_has_chunk(q->pool, len + 1, q->n_chunks < 2);
}

/* -- beginning and end --------------------------------------------------------------------------------------------- */

void backend_init(struct backend *be, struct statsite *st, const struct conf_backend *cf, struct stats_backend *draft)
{
	*be = (struct backend){.st = st, .cf = cf, .draft = draft, .fd = -1, .place_fd = -1};
	queue_init(&be->queue, &st->pool, st->out->cf->queue_limit);
	ev_init(&be->io, on_io);
	ev_init(&be->timer, on_timer);
	backend_address_init(be);
	be->io.data = be->timer.data = be;
}

void backend_free(struct backend *be)
{
	if (be != NULL)
		free(be->addresses);
	free(be);
}

void backend_close(struct backend *be)
{
	char name[LABEL_BYTES];
	struct queue *q = &be->queue;
	bool is_connected = be->state == BACKEND_UP && backend_is_tcp(be);
	if (is_connected)
		backend_tcp_settle(be);
	uint64_t unsent = queue_unsent_lines(q), flight = queue_flight_lines(q);
	be->draft->dropped_shutdown_records += unsent;
	be->draft->unconfirmed_records += flight;
	if (unsent + flight > 0)
		log_warn("backend %s: %llu lines not sent, %llu sent and not acknowledged at the end",
			 backend_label(be, name, sizeof(name)), (unsigned long long)unsent, (unsigned long long)flight);
	if (is_connected)
		backend_tcp_close(be);
	close_socket(be);
	if (be->place_fd != -1)
		close(be->place_fd);
	if (be->is_dropping)
		log_warn("backend %s: %llu lines were dropped, until the end", backend_label(be, name, sizeof(name)),
			 (unsigned long long)(backend_dropped_lines(be) - be->dropped_before));
	be->is_dropping = false; /* what is cleared now is no room for anybody */
	queue_clear(q);
	backend_account(be);
}
