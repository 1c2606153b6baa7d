/* SPDX-License-Identifier: MIT
 *
 * statsite: lines to the backend of their key. Worker only, but for prepare. This file routes, decides when a queue is
 * sent and when acknowledgements are looked at, and holds back with overflow: block. Only backends on a list are looked
 * at: a thousand idle or stalled ones cost nothing. Does not talk to sockets.
 */
#include "statsite.h"

#include <errno.h>

#include "types.h"

enum {
	/* Under dense traffic what is due is sent at the worker's turns (src/input/coalesce.c); the timer is for when these
	 * stop, and must not add wake-ups of its own. A little early is no reason to wait for the next turn. */
	FLUSH_SLACK_US = 1000,
	FLUSH_EARLY_US = 500,
};
enum { TRIM_MS = 500, TRIM_MORE_MS = 10, ROUTE_LINES = 32 };

uint64_t statsite_random(struct statsite *st, uint64_t below)
{
	st->random ^= st->random << 13;
	st->random ^= st->random >> 7;
	st->random ^= st->random << 17;
	return st->random % below;
}

/* -- lists ------------------------------------------------------------------------------------------------------- */

void statsite_due(struct backend *be)
{
	if (be->is_due || !backend_can_send(be) || queue_unsent_bytes(&be->queue) == 0)
		return;
	be->is_due = true;
	be->due_since_us = be->st->now_us;
	TAILQ_INSERT_TAIL(&be->st->due, be, due);
}

void statsite_not_due(struct backend *be)
{
	if (!be->is_due)
		return;
	be->is_due = false;
	TAILQ_REMOVE(&be->st->due, be, due);
}

void statsite_unsettled(struct backend *be)
{
	struct statsite *st = be->st;
	if (be->is_unsettled)
		return;
	be->is_unsettled = true;
	be->poll_after_us = st->is_draining ? DRAIN_TICK_US : ACK_TICK_US;
	be->poll_us = 0;
	TAILQ_INSERT_TAIL(&st->unsettled, be, unsettled);
	if (!ev_is_active(&st->ack_timer))
		ev_timer_again(st->out->loop, &st->ack_timer);
}

void statsite_settled(struct backend *be)
{
	if (!be->is_unsettled)
		return;
	be->is_unsettled = false;
	TAILQ_REMOVE(&be->st->unsettled, be, unsettled);
}

void statsite_after_event(struct statsite *st)
{
	struct output *out = st->out;
	if (st->draft->memory_bytes != st->pool.used_bytes) {
		st->draft->memory_bytes = st->pool.used_bytes;
		stats_touch(out->page, STATS_OUTPUT, out->index);
	}
	struct backend *be;
	TAILQ_FOREACH(be, &st->stuck, stuck)
	{
		if (backend_has_room(be, be->stuck_len))
			ev_feed_event(out->loop, &st->room_event, EV_CUSTOM);
	}
	if (UNLIKELY(pool_is_fat(&st->pool)) && !ev_is_active(&st->trim_timer)) {
		ev_timer_set(&st->trim_timer, TRIM_MS / 1e3, 0.);
		ev_timer_start(out->loop, &st->trim_timer);
	}
}

/* -- what the worker calls ----------------------------------------------------------------------------------------- */

void statsite_account_changed(struct statsite *st)
{
	for (size_t i = 0; i < st->n_changed; i++) {
		struct backend *be = st->changed[i];
		be->queue.is_marked = false;
		statsite_due(be);
		backend_account(be);
	}
	st->n_changed = 0;
}

static void wait_for_room(struct backend *be, uint32_t len)
{
	if (be->stuck_len == 0)
		TAILQ_INSERT_TAIL(&be->st->stuck, be, stuck);
	be->stuck_len = MAX(be->stuck_len, len);
}

/* Puts lines into the queues of their backends, up to the first that must wait; returns how many. The map is looked up
 * some lines ahead: it is 128 KiB, and a miss between two copies would hold both up (measured: 2 ns a line). */
static unsigned put_lines(struct statsite *st, const struct line *lines, unsigned n)
{
	struct backend *to[ROUTE_LINES];
	n = MIN(n, ROUTE_LINES);
	for (unsigned i = 0; i < n; i++)
		to[i] = st->backends[shards_backend(st->shards, lines[i].hash)];
	for (unsigned i = 0; i < n; i++) {
		const struct line *l = &lines[i];
		struct backend *be = to[i];
		statsite_changed(be);
		if (UNLIKELY(!queue_put(&be->queue, l->bytes, l->len)) && !backend_put_slowly(be, l)) {
			wait_for_room(be, l->len);
			return i;
		}
	}
	return n;
}

static void statsite_send(struct output *out, struct batch *b)
{
	struct statsite *st = out->impl;
	unsigned first = b->taken[out->index], i = first, put;
	uint64_t bit = UINT64_C(1) << out->index;

	/* The same batch comes again after it was held back: it was counted the first time. */
	if (!(b->offered & bit)) {
		b->offered |= bit;
		st->draft->offered_records += b->n_lines - first;
		st->draft->held_records += b->n_lines - first;
	}
	for (; i < b->n_lines; i += put) {
		put = put_lines(st, b->lines + i, b->n_lines - i);
		if (put < MIN(b->n_lines - i, ROUTE_LINES)) {
			i += put;
			break;
		}
	}
	b->taken[out->index] = i;
	st->draft->taken_records += i - first;
	st->draft->held_records -= i - first;
	st->draft->memory_bytes = st->pool.used_bytes;
	stats_touch(out->page, STATS_OUTPUT, out->index);
	statsite_account_changed(st);
}

static bool may_wait(const struct statsite *st, const struct backend *be)
{
	const struct output *out = st->out;
	return !st->is_draining && st->now_us + FLUSH_EARLY_US < be->due_since_us + out->hold_us &&
	       queue_unsent_bytes(&be->queue) < SEND_BYTES;
}

static void statsite_pump(struct output *out, uint64_t now_us)
{
	struct statsite *st = out->impl;
	struct backend *be;
	st->now_us = MAX(st->now_us, now_us);
	/* in the order of their oldest unsent byte: the first that may wait ends it */
	while ((be = TAILQ_FIRST(&st->due)) != NULL && !may_wait(st, be)) {
		statsite_not_due(be);
		backend_send(be);
		backend_account(be);
	}
	if (be != NULL && !ev_is_active(&st->flush_timer)) {
		double wait_us = (double)(be->due_since_us + out->hold_us + out->turn_us + FLUSH_SLACK_US - st->now_us);
		ev_timer_set(&st->flush_timer, wait_us / 1e6, 0.);
		ev_timer_start(out->loop, &st->flush_timer);
	}
	statsite_after_event(st);
}

static void statsite_drain(struct output *out)
{
	struct statsite *st = out->impl;
	if (out->awaits)
		statsite_go(out);
	st->is_draining = true;
	st->ack_timer.repeat = DRAIN_TICK_US / 1e6;
	if (ev_is_active(&st->ack_timer))
		ev_timer_again(out->loop, &st->ack_timer);
	for (size_t i = 0; i < st->n_backends; i++)
		backend_hurry(st->backends[i]);
	struct backend *be;
	TAILQ_FOREACH(be, &st->finishing, finishing)
	{
		backend_hurry(be);
	}
	statsite_pump(out, clock_us());
}

static uint64_t statsite_pending(const struct output *out)
{
	const struct statsite *st = out->impl;
	return st->pending_lines + st->draft->held_records;
}

/* -- timers -------------------------------------------------------------------------------------------------------- */

static void on_flush(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct statsite *st = w->data;
	statsite_pump(st->out, clock_us());
}

static void look_again(struct backend *be)
{
	struct statsite *st = be->st;
	uint64_t least_us = st->is_draining ? DRAIN_TICK_US : ACK_TICK_US;
	bool has_new = backend_is_tcp(be) && backend_tcp_settle(be);
	if (be->is_short) {
		be->is_short = false;
		backend_set_blocked(be, false);
		backend_send(be);
	}
	if (be->sent_bytes == be->acked_bytes && !be->is_short)
		statsite_settled(be);
	backend_leave_if_done(be);
	be->poll_after_us = has_new ? least_us : MIN(be->poll_after_us * 2, ACK_TICK_MAX_US);
	be->poll_us = st->now_us + be->poll_after_us;
	backend_account(be);
}

static void on_ack_tick(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)revents;
	struct statsite *st = w->data;
	struct backend *be = TAILQ_FIRST(&st->unsettled), *next;
	st->now_us = clock_us();
	for (; be != NULL; be = next) {
		next = TAILQ_NEXT(be, unsettled);
		/* A tick may come a little early; half of one is no reason to wait for the next. */
		if (st->now_us + DRAIN_TICK_US / 2 >= be->poll_us)
			look_again(be);
	}
	if (TAILQ_EMPTY(&st->unsettled))
		ev_timer_stop(loop, w);
	statsite_after_event(st);
}

static void on_trim(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)revents;
	struct statsite *st = w->data;
	uint32_t dry = st->pool.n_dry;
	if (!pool_trim(&st->pool))
		return;
	/* A large backlog is given back piece by piece: 96 slabs are about 1.4 ms (14 us each; 8 before they lay
	 * in a memfd). */
	ev_timer_set(w, (st->pool.n_dry - dry >= POOL_TRIM_MAX ? TRIM_MORE_MS : TRIM_MS) / 1e3, 0.);
	ev_timer_start(loop, w);
}

static void on_room(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct statsite *st = w->data;
	struct backend *be;
	/* Every batch that is held back is tried again; what still does not fit comes back to the list. */
	while ((be = TAILQ_FIRST(&st->stuck)) != NULL) {
		be->stuck_len = 0;
		TAILQ_REMOVE(&st->stuck, be, stuck);
	}
	st->out->on_room(st->out);
}

/* -- open and close ------------------------------------------------------------------------------------------------ */

static int statsite_prepare(struct output *out, struct err *err)
{
	out->shared = shards_make(out->cf, out->blocks, &out->shared_fd);
	if (out->shared == NULL)
		return err_set(err, -ENOMEM, "Output \"%s\": no memory for the shard map.", out->cf->name);
	return 0;
}

static int statsite_fill(struct output *out, const struct output *like, struct err *err)
{
	const struct shards *map = like != NULL ? like->shared : NULL;
	if (shards_fill(out->shared, out->cf, map, map != NULL ? like->cf : NULL))
		return 0;
	return err_set(err, -ENOMEM, "Output \"%s\": no memory for the shard map.", out->cf->name);
}

static void statsite_unprepare(struct output *out)
{
	shards_free(out->shared);
	out->shared = NULL;
}

static void statsite_free(struct statsite *st)
{
	if (st == NULL)
		return;
	pool_fini(&st->pool);
	for (size_t i = 0; st->backends != NULL && i < st->n_backends; i++)
		backend_free(st->backends[i]);
	free(st->backends);
	free(st->changed);
	free(st);
}

static void timer_init(struct statsite *st, ev_timer *w, void (*cb)(struct ev_loop *, ev_timer *, int), double repeat)
{
	ev_timer_init(w, cb, 0., repeat);
	w->data = st;
}

struct backend *statsite_backend_new(struct statsite *st, const struct conf_backend *cf, uint32_t block)
{
	struct backend *be = aligned_alloc(64, sizeof(*be));
	if (be == NULL)
		return NULL;
	backend_init(be, st, cf, stats_backend(st->out->page, block));
	be->block = block;
	if (st->out->awaits) {
		be->state = BACKEND_ELSEWHERE;
		be->draft->up = be->draft->down_us = 0;
	} else {
		output_mark_up(be->draft, false);
	}
	backend_account(be);
	return be;
}

static void on_finish(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct statsite *st = w->data;
	st->now_us = clock_us();
	statsite_look_at_finishing(st);
	statsite_after_event(st);
}

static int statsite_open(struct output *out, struct err *err)
{
	const struct conf_output *cf = out->cf;
	size_t n = cf->n_backends;
	struct statsite *st = calloc(1, sizeof(*st));
	if (st != NULL) {
		st->backends = calloc(n, sizeof(struct backend *));
		st->changed = calloc(n, sizeof(struct backend *));
	}
	if (st == NULL || st->backends == NULL || st->changed == NULL) {
		statsite_free(st);
		return err_set(err, -ENOMEM, "Output \"%s\": no memory for %zu backends.", cf->name, n);
	}
	st->magic = STATSITE_MAGIC;
	st->out = out;
	st->shards = out->shared;
	st->n_backends = n;
	st->draft = stats_output(out->page, out->index);
	st->now_us = clock_us();
	st->random = st->now_us * 2654435761u + out->slot + 1;
	TAILQ_INIT(&st->due);
	TAILQ_INIT(&st->unsettled);
	TAILQ_INIT(&st->stuck);
	TAILQ_INIT(&st->finishing);
	uint64_t spare_bytes = (uint64_t)POOL_SPARE_SLABS * POOL_SLAB_BYTES;
	int r = pool_init(&st->pool, cf->memory_limit / MAX(out->n_slots, 1) + spare_bytes, err);
	pool_set_spare(&st->pool, POOL_SPARE_SLABS);
	if (r < 0) {
		statsite_free(st);
		return r;
	}
	timer_init(st, &st->flush_timer, on_flush, 0.);
	timer_init(st, &st->ack_timer, on_ack_tick, ACK_TICK_US / 1e6);
	timer_init(st, &st->trim_timer, on_trim, 0.);
	timer_init(st, &st->finish_timer, on_finish, FINISH_TICK_US / 1e6);
	timer_init(st, &st->room_event, on_room, 0.);
	for (size_t i = 0; i < n; i++) {
		st->backends[i] = statsite_backend_new(st, &cf->backends[i], shards_blocks(out->shared)[i]);
		if (st->backends[i] == NULL) {
			statsite_free(st);
			return err_set(err, -ENOMEM, "Output \"%s\": no memory for %zu backends.", cf->name, n);
		}
		/* changed by differences from here on */
		struct stats_backend *d = st->backends[i]->draft;
		d->queued_records = d->in_flight_records = d->queued_bytes = 0;
	}
	out->impl = st;
	for (size_t i = 0; i < n && !out->awaits; i++)
		backend_start(st->backends[i]);
	return 0;
}

static void statsite_close(struct output *out)
{
	struct statsite *st = out->impl;
	if (st == NULL)
		return;
	BUG_ON(st->magic != STATSITE_MAGIC);
	st->draft->dropped_shutdown_records += st->draft->held_records;
	if (st->draft->held_records > 0)
		log_warn("output %s: %llu lines that were held back are dropped", out->cf->name,
			 (unsigned long long)st->draft->held_records);
	st->draft->held_records = 0;
	for (size_t i = 0; i < st->n_backends; i++)
		backend_close(st->backends[i]);
	statsite_close_finishing(st);
	st->draft->memory_bytes = 0;
	stats_touch(out->page, STATS_OUTPUT, out->index);
	ev_timer_stop(out->loop, &st->flush_timer);
	ev_timer_stop(out->loop, &st->ack_timer);
	ev_timer_stop(out->loop, &st->trim_timer);
	ev_timer_stop(out->loop, &st->finish_timer);
	ev_clear_pending(out->loop, &st->room_event);
	st->magic = 0;
	statsite_free(st);
	out->impl = NULL;
}

const struct output_type output_statsite = {
    .name = "statsite",
    .prepare = statsite_prepare,
    .fill = statsite_fill,
    .unprepare = statsite_unprepare,
    .hand_over = statsite_hand_over,
    .take_over = statsite_take_over,
    .go = statsite_go,
    .open = statsite_open,
    .send = statsite_send,
    .pump = statsite_pump,
    .drain = statsite_drain,
    .pending = statsite_pending,
    .close = statsite_close,
};
