/* SPDX-License-Identifier: MIT
 *
 * kafka: records to a topic (the drawing is in kafka.h). Worker only, but for prepare. This file opens, closes, keeps
 * the account and holds back with overflow: block. librdkafka's functions are called in kafka_producer.c.
 */
#include "kafka.h"

#include <errno.h>
#include <string.h>

#include "types.h"

enum {
	TRIM_MS = 500,
	TRIM_MORE_MS = 20,
	SERVE_US = 250000,        /* close: for the last reports */
	END_US = 150000,          /* close: for librdkafka's threads */
	WINDOW_MESSAGES = 100000, /* librdkafka's own default of queue.buffering.max.messages */
	PURGE_ALL = RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT | RD_KAFKA_PURGE_F_NON_BLOCKING,
	WINDOW_SHARE = 4, /* part of the memory that librdkafka's own needs may take */
	OLDEST_SHARE = 4, /* part of the pool that it may hold with drop_oldest */
};

/* -- account ------------------------------------------------------------------------------------------------------ */

static uint64_t flight_messages(const struct kafka *k)
{
	return k->producer != NULL ? k->producer->flight_messages : 0;
}

static uint64_t queued_records(const struct kafka *k)
{
	return k->waiting.records + k->back.records + k->refused.records + k->parked.records + k->open_records;
}

static uint64_t message_overhead(const struct kafka *k)
{
	return KAFKA_MESSAGE_BYTES + (k->origin.is_wanted ? KAFKA_HEADERS_BYTES : 0);
}

void kafka_account(struct kafka *k)
{
	struct output *out = k->out;
	uint64_t flight = flight_messages(k), flight_bytes = k->producer != NULL ? k->producer->flight_bytes : 0;
	k->backend->queued_records = queued_records(k);
	k->backend->in_flight_records = k->flight_records;
	k->stats->queued_messages = k->waiting.messages + k->back.messages + k->refused.messages +
				   k->parked.messages;
	k->stats->queued_bytes = k->waiting.bytes + k->back.bytes + k->refused.bytes + k->parked.bytes;
	k->backend->queued_bytes = k->stats->queued_bytes + flight_bytes;
	k->stats->in_flight_messages = flight;
	k->stats->in_flight_bytes = flight_bytes;
	k->draft->memory_bytes = k->pool.used_bytes + k->pool.outside_bytes + flight * message_overhead(k);
	stats_touch(out->page, STATS_OUTPUT, out->index);
	stats_touch(out->page, STATS_BACKEND, out->blocks[0]);
	stats_touch(out->page, STATS_KAFKA, out->index);
}

/* Worth trying again after a hold: an eighth is free, so that it does not stop at the next datagram. */
static bool has_room(const struct kafka *k)
{
	return pool_free_slabs(&k->pool) >= MAX(pool_limit_slabs(&k->pool) / 8, 1);
}

void kafka_after_event(struct kafka *k)
{
	kafka_account(k);
	if (UNLIKELY(k->is_stuck) && has_room(k))
		ev_feed_event(k->out->loop, &k->room_event, EV_CUSTOM);
	if (UNLIKELY(pool_is_fat(&k->pool)) && !ev_is_active(&k->trim_timer)) {
		ev_timer_set(&k->trim_timer, TRIM_MS / 1e3, 0.);
		ev_timer_start(k->out->loop, &k->trim_timer);
	}
}

/* -- what the worker calls ---------------------------------------------------------------------------------------- */

/* Records among items: empty datagrams are none. */
static unsigned records(const struct kafka *k, const struct batch *b, unsigned from, unsigned to)
{
	unsigned n = 0;
	if (k->out->wants == OUTPUT_WANTS_LINES || kafka_takes_packets(k->out->cf))
		return to - from;
	for (unsigned i = from; i < to; i++)
		n += b->items[i].original_len > 0;
	return n;
}

static void kafka_send(struct output *out, struct batch *b)
{
	struct kafka *k = out->impl;
	unsigned *taken = &b->taken[out->index], first = *taken;
	bool is_lines = out->wants == OUTPUT_WANTS_LINES;
	unsigned n = is_lines ? b->n_lines : b->n_items;
	uint64_t bit = UINT64_C(1) << out->index;
	if (!(b->offered & bit)) { /* the same batch comes again after it was held back */
		b->offered |= bit;
		unsigned all = records(k, b, first, n);
		k->draft->offered_records += all;
		k->draft->held_records += all;
	}
	k->pool.is_unlimited = out->takes_all;
	*taken = is_lines ? kafka_put_lines(k, b, first) : kafka_put_items(k, b, first);
	unsigned put = records(k, b, first, *taken);
	k->draft->held_records -= put;
	k->draft->taken_records += put;
	k->backend->offered_records += put;
	k->is_stuck |= *taken < n;
	if (k->waiting.messages >= (uint64_t)KAFKA_BURST * MIN(MAX(k->n_targets, 1), KAFKA_STAGE / KAFKA_BURST))
		producer_hand_over(k);
	kafka_account(k);
}

static void kafka_pump(struct output *out, uint64_t now_us)
{
	struct kafka *k = out->impl;
	k->now_us = MAX(k->now_us, now_us);
	producer_serve(k->producer);
	message_list_prepend(&k->waiting, &k->back);
	kafka_end_old(k);
	if (k->is_giving_up)
		kafka_give_up_waiting(k);
	producer_hand_over(k);
	kafka_after_event(k);
}

static void kafka_drain(struct output *out)
{
	struct kafka *k = out->impl;
	k->is_draining = true;
	if (k->producer != NULL)
		producer_flush(k->producer);
	kafka_pump(out, clock_us());
}

static uint64_t kafka_pending(const struct output *out)
{
	const struct kafka *k = out->impl;
	return queued_records(k) + k->flight_records + k->draft->held_records;
}

/* -- timers ------------------------------------------------------------------------------------------------------- */

static void on_delay(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct kafka *k = w->data;
	kafka_pump(k->out, clock_us());
}

static void on_trim(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)revents;
	struct kafka *k = w->data;
	uint32_t dry = k->pool.n_dry;
	if (!pool_trim(&k->pool))
		return;
	ev_timer_set(w, (k->pool.n_dry - dry >= POOL_TRIM_MAX ? TRIM_MORE_MS : TRIM_MS) / 1e3, 0.);
	ev_timer_start(loop, w);
}

static void on_room(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct kafka *k = w->data;
	if (!k->is_stuck)
		return;
	k->is_stuck = false;
	k->out->on_room(k->out);
}

static void make_producer(struct kafka *k)
{
	struct err err;
	uint64_t held;
	k->producer = producer_new(k, &err);
	if (k->producer != NULL && k->is_draining)
		producer_flush(k->producer);
	if (k->producer == NULL && log_limit_pass(&k->log_limits[0], clock_us(), 10000, &held))
		log_error("output \"%s\": cannot make a producer: %s; trying again each second", k->out->cf->name,
			  err.text);
}

/* The topic refused whole batches that its max.message.bytes does not allow. Each was larger than that, so half of the
 * smallest is not far below. Those sent after them have arrived by now: the order is lost, the records are not. */
static void shrink_batches(struct kafka *k)
{
	char topic[200];
	k->batch_bytes = MAX(k->refused_bytes / 2, 1);
	log_warn(
	    "output \"%s\": topic %s refuses large batches: sending %llu messages again, in batches of at most %llu "
	    "bytes; "
	    "give the topic's max.message.bytes as the property message.max.bytes",
	    k->out->cf->name, text_escape(topic, sizeof(topic), k->out->cf->topic, strlen(k->out->cf->topic)),
	    (unsigned long long)k->refused.messages, (unsigned long long)k->batch_bytes);
	k->refused_bytes = 0;
}

/* When all that it had is reported. */
static void replace_producer(struct kafka *k)
{
	producer_serve(k->producer);
	if (k->producer->is_fatal)
		rd_kafka_purge(k->producer->rk, PURGE_ALL);
	if (k->producer->flight_messages > 0 || k->dying != NULL)
		return;
	k->dying = k->producer;
	producer_try_end(k->dying);
	k->producer = NULL;
	k->stats->producer_restarts++;
	if (k->refused_bytes > 0)
		shrink_batches(k);
	kafka_probe_restart(k);
	message_list_prepend(&k->waiting, &k->refused);
}

/* What changes slowly. */
static void on_second(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct kafka *k = w->data;
	if (k->dying != NULL && producer_try_end(k->dying))
		k->dying = NULL;
	if (k->producer != NULL && (k->producer->is_fatal || k->producer->is_coarse))
		replace_producer(k);
	if (k->producer == NULL)
		make_producer(k);
	kafka_pump(k->out, clock_us());
}

/* -- open and close ----------------------------------------------------------------------------------------------- */

static void timer_init(struct kafka *k, ev_timer *w, void (*cb)(struct ev_loop *, ev_timer *, int), double repeat)
{
	ev_timer_init(w, cb, repeat, repeat);
	w->data = k;
}

static uint64_t number_property(const struct conf_output *cf, const char *name, uint64_t otherwise)
{
	uint64_t n;
	const char *value = kafka_property(cf, name, NULL);
	return value != NULL && text_parse_uint(value, &n) == 0 && n > 0 ? n : otherwise;
}

/* memory_limit is for all workers together, and for librdkafka's needs too. */
static int divide_memory(struct kafka *k, struct err *err)
{
	const struct conf_output *cf = k->out->cf;
	uint64_t share = cf->memory_limit / MAX(k->out->n_slots, 1);
	k->window = number_property(cf, "queue.buffering.max.messages", WINDOW_MESSAGES);
	k->window = MAX(MIN(k->window, share / WINDOW_SHARE / message_overhead(k)), KAFKA_BURST);
	k->flight_limit_bytes = number_property(cf, "queue.buffering.max.kbytes", 1048576) * KIB;
	/* queue.c has the same longest line, with a newline more */
	_Static_assert(CHUNK_LARGE_ROOM >= BATCH_ITEM_BYTES + sizeof(struct message) + sizeof(struct origin),
		       "chunk too small");
	uint64_t overhead = k->window * message_overhead(k);
	uint64_t spare_bytes = (uint64_t)POOL_SPARE_SLABS * POOL_SLAB_BYTES;
	int r = pool_init(&k->pool, MAX(share > overhead ? share - overhead : 0, 2 * POOL_SLAB_BYTES) + spare_bytes, err);
	pool_set_spare(&k->pool, POOL_SPARE_SLABS);
	k->pool.reserve = 0; /* it has one queue: what was taken over leaves no part for others */
	/* What librdkafka has cannot be dropped any more: the oldest must not be all there. */
	if (r == 0 && k->out->overflow == CONF_OVERFLOW_DROP_OLDEST)
		k->flight_limit_bytes =
		    MIN(k->flight_limit_bytes, (uint64_t)pool_limit_slabs(&k->pool) * POOL_SLAB_BYTES / OLDEST_SHARE);
	return r;
}

static void kafka_free(struct kafka *k)
{
	while (!LIST_EMPTY(&k->taken))
		taken_free(&k->pool, LIST_FIRST(&k->taken));
	pool_fini(&k->pool);
	free(k->builders);
	free(k->targets);
	free(k->times_us);
	free(k);
}

static int kafka_open(struct output *out, struct err *err)
{
	const char *acks = kafka_property(out->cf, "acks", "request.required.acks");
	struct kafka *k = calloc(1, sizeof(*k));
	if (k == NULL)
		return err_set(err, -ENOMEM, "Output \"%s\": no memory.", out->cf->name);
	*k = (struct kafka){.magic = KAFKA_MAGIC, .out = out, .shared = out->shared, .now_us = clock_us()};
	k->draft = stats_output(out->page, out->index);
	k->backend = stats_backend(out->page, out->blocks[0]);
	k->stats = stats_kafka(out->page, out->index);
	k->random = ((uint32_t)k->now_us * 2654435761u + out->slot) | 1;
	k->origin.is_wanted = out->cf->headers;
	k->partition = kafka_partition(out->cf);
	k->opened_us = k->now_us;
	k->has_offsets = strcmp(acks != NULL ? acks : "all", "0") != 0;
	k->grace_us = number_property(out->cf, "topic.metadata.propagation.max.ms", 30000) * 1000;
	k->stats->brokers = k->stats->brokers_up = k->stats->partitions = 0;
	output_mark_up(k->backend, false);
	message_list_init(&k->waiting);
	message_list_init(&k->back);
	message_list_init(&k->refused);
	TAILQ_INIT(&k->opened);
	int r = divide_memory(k, err);
	if (r == 0 && (kafka_builders_init(k, 1) != 0 || kafka_times_init(k, 1) != 0))
		r = err_set(err, -ENOMEM, "Output \"%s\": no memory.", out->cf->name);
	out->impl = k;
	if (r == 0) {
		k->producer = producer_new(k, err);
		r = k->producer == NULL ? -EINVAL : 0;
	}
	if (r != 0) {
		kafka_free(k);
		out->impl = NULL;
		return r;
	}
	timer_init(k, &k->delay_timer, on_delay, 0.);
	timer_init(k, &k->trim_timer, on_trim, 0.);
	timer_init(k, &k->room_event, on_room, 0.);
	timer_init(k, &k->second_timer, on_second, 1.);
	ev_timer_start(out->loop, &k->second_timer);
	kafka_account(k);
	return 0;
}

static void kafka_reopen(struct output *out)
{
	struct kafka *k = out->impl;
	k->is_statistics_broken = false;
}

/* Our own queue is given up, then librdkafka's; what reports do not come in time was sent, perhaps. */
static void give_up(struct kafka *k)
{
	struct message *m;
	kafka_end_all(k);
	kafka_probe_restart(k);
	message_list_prepend(&k->waiting, &k->back);
	message_list_prepend(&k->waiting, &k->refused);
	k->backend->dropped_shutdown_records += k->waiting.records;
	k->stats->dropped_messages += k->waiting.messages;
	while ((m = message_list_take(&k->waiting)) != NULL)
		message_free(&k->pool, m);
	struct producer *p = k->producer;
	if (p == NULL)
		return;
	uint64_t until_us = clock_us() + SERVE_US;
	/* not waiting for each broker's thread: one may sit in getaddrinfo */
	if (p->flight_messages > 0)
		rd_kafka_purge(p->rk, PURGE_ALL);
	producer_serve(p);
	while (p->flight_messages > 0 && clock_us() < until_us) {
		rd_kafka_event_t *event = rd_kafka_queue_poll(p->events, 10);
		if (event != NULL)
			producer_event(p, event);
	}
	k->backend->unconfirmed_records += k->flight_records;
	k->stats->unconfirmed_messages += p->flight_messages;
	k->flight_records = p->flight_messages = p->flight_bytes = 0;
}

static const char *record_word(const struct output *out)
{
	return out->wants == OUTPUT_WANTS_LINES ? "lines" : kafka_takes_packets(out->cf) ? "packets" : "datagrams";
}

static void say_left(const struct kafka *k, uint64_t dropped, uint64_t unconfirmed)
{
	dropped = k->backend->dropped_shutdown_records - dropped;
	unconfirmed = k->backend->unconfirmed_records - unconfirmed;
	if (dropped + unconfirmed > 0)
		log_warn("output \"%s\": %llu %s not sent, %llu sent and not acknowledged at the end", k->out->cf->name,
			 (unsigned long long)dropped, record_word(k->out),
			 (unsigned long long)unconfirmed);
}

static void kafka_close(struct output *out)
{
	struct kafka *k = out->impl;
	if (k == NULL)
		return;
	BUG_ON(k->magic != KAFKA_MAGIC);
	uint64_t dropped = k->backend->dropped_shutdown_records, unconfirmed = k->backend->unconfirmed_records;
	k->is_closing = true;
	k->draft->dropped_shutdown_records += k->draft->held_records;
	if (k->draft->held_records > 0)
		log_warn("output \"%s\": %llu records that were held back are dropped", out->cf->name,
			 (unsigned long long)k->draft->held_records);
	k->draft->held_records = 0;
	give_up(k);
	say_left(k, dropped, unconfirmed);
	k->stats->brokers_up = 0;
	output_mark_up(k->backend, false);
	bool is_gone = true;
	uint64_t until_us = clock_us() + END_US;
	if (k->producer != NULL)
		is_gone = producer_end(k->producer, until_us);
	if (k->dying != NULL)
		is_gone &= producer_end(k->dying, until_us);
	k->producer = k->dying = NULL;
	ev_timer_stop(out->loop, &k->delay_timer);
	ev_timer_stop(out->loop, &k->trim_timer);
	ev_timer_stop(out->loop, &k->second_timer);
	ev_clear_pending(out->loop, &k->room_event);
	kafka_builders_fini(k);
	kafka_account(k);
	k->draft->memory_bytes = 0;
	if (is_gone) /* else librdkafka may still read the payloads; the process is about to end */
		kafka_free(k);
	out->impl = NULL;
}

static int kafka_prepare(struct output *out, struct err *err)
{
	struct text errors = {0};
	struct kafka_shared *sh = calloc(1, sizeof(*sh));
	if (sh == NULL)
		return err_set(err, -ENOMEM, "Output \"%s\": no memory.", out->cf->name);
	sh->gives_way_to = kafka_excludes_idempotence(out->cf);
	if (kafka_files_read(sh, out->cf, "", &errors) > 0) {
		int r = err_set(err, -EINVAL, "Output \"%s\": %s", out->cf->name, errors.s ? errors.s : "no memory");
		text_free(&errors);
		kafka_shared_free(sh);
		return r;
	}
	if (sh->gives_way_to != NULL)
		log_info("output \"%s\": without idempotence, which %s excludes: messages may arrive twice or out of "
			 "order after a "
			 "broker's failure",
			 out->cf->name, sh->gives_way_to);
	out->shared = sh;
	return 0;
}

static void kafka_unprepare(struct output *out)
{
	kafka_shared_free(out->shared);
	out->shared = NULL;
}

const struct output_type output_kafka = {
    .name = "kafka",
    .check = kafka_check,
    .prepare = kafka_prepare,
    .unprepare = kafka_unprepare,
    .open = kafka_open,
    .send = kafka_send,
    .pump = kafka_pump,
    .drain = kafka_drain,
    .pending = kafka_pending,
    .hand_over = kafka_hand_over,
    .take_over = kafka_take_over,
    .reopen = kafka_reopen,
    .close = kafka_close,
};
