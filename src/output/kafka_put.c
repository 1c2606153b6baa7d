/* SPDX-License-Identifier: MIT
 *
 * kafka_put: what inputs hand over becomes messages: a datagram each, or lines packed until batch_bytes or batch_delay.
 * Decides by which hash a message finds its partition, and what happens when memory is full. Worker only; does not talk
 * to librdkafka.
 */
#include "kafka.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "queue.h" /* queue_copy_line */

enum {
	STICKY_US = 10000,
	MANY_BUILDERS_SHARE =
	    8, /* builders may pin this part of the pool with large chunks, else they take small ones */
};

/* -- hashes ----------------------------------------------------------------------------------------------------------
 */

uint32_t kafka_flow_hash(const struct sockaddr_storage *from)
{
	const struct sockaddr_in *in4 = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
	const struct sockaddr_un *un = (const struct sockaddr_un *)from;
	if (from == NULL)
		return 0;
	switch (from->ss_family) {
	case AF_INET:
		return hash_murmur3_32(&in4->sin_addr, sizeof(in4->sin_addr), in4->sin_port);
	case AF_INET6:
		return hash_murmur3_32(&in6->sin6_addr, sizeof(in6->sin6_addr), in6->sin6_port);
	case AF_UNIX:
		return hash_murmur3_32(un->sun_path, strnlen(un->sun_path, sizeof(un->sun_path)), 0);
	default:
		return 0;
	}
}

enum conf_words kafka_partition(const struct conf_output *cf)
{
	if (cf->partition != CONF_PARTITION_AUTO)
		return cf->partition;
	return cf->format == CONF_FORMAT_LINES ? CONF_PARTITION_RANDOM : CONF_PARTITION_FLOW;
}

static bool goes_by_flow(const struct kafka *k)
{
	return k->partition == CONF_PARTITION_FLOW || k->partition == CONF_PARTITION_WORKER;
}

static void set_sender(struct kafka *k, const struct item *item, uint64_t now_us)
{
	struct origin *o = &k->origin.is;
	const struct sockaddr_in *in4 = (const struct sockaddr_in *)item->from;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)item->from;
	memset(o, 0, sizeof(*o));
	o->time_us = item->time_ns ? item->time_ns / 1000 : now_us;
	if (item->from != NULL && item->from->ss_family == AF_INET) {
		o->from.family = AF_INET;
		o->from.port = in4->sin_port;
		memcpy(o->from.address, &in4->sin_addr, sizeof(in4->sin_addr));
	} else if (item->from != NULL && item->from->ss_family == AF_INET6) {
		o->from.family = AF_INET6;
		o->from.port = in6->sin6_port;
		memcpy(o->from.address, &in6->sin6_addr, sizeof(in6->sin6_addr));
	}
}

/* -- memory ------------------------------------------------------------------------------------------------------- */

/* What was not handed to librdkafka yet is dropped from the oldest on, until a chunk is free. */
static bool drop_oldest(struct kafka *k)
{
	struct message *m;
	while (pool_free_slabs(&k->pool) == 0 &&
	       ((m = kafka_parked_take(k)) != NULL || (m = message_list_take(&k->waiting)) != NULL)) {
		k->backend->dropped_memory_records += m->records;
		k->stats->dropped_messages++;
		message_free(&k->pool, m);
	}
	return pool_free_slabs(&k->pool) > 0;
}

/* As builder_new_message, with the overflow policy. NULL: there is no room. */
struct message *kafka_new_message(struct kafka *k, struct builder *b, uint32_t len, uint32_t want)
{
	struct message *m = builder_new_message(b, &k->pool, len, want, k->has_large, &k->origin);
	if (LIKELY(m != NULL))
		return m;
	producer_serve(k->producer); /* reports that wait give memory back */
	m = builder_new_message(b, &k->pool, len, want, k->has_large, &k->origin);
	if (m == NULL && k->out->overflow == CONF_OVERFLOW_DROP_OLDEST && drop_oldest(k))
		m = builder_new_message(b, &k->pool, len, want, k->has_large, &k->origin);
	return m;
}

/* No room: true when the record is dropped and counted, false when it is held back. */
bool kafka_refuse(struct kafka *k)
{
	if (k->out->overflow == CONF_OVERFLOW_BLOCK)
		return false;
	k->backend->dropped_memory_records++;
	return true;
}

void kafka_add_waiting(struct kafka *k, struct message *m)
{
	message_list_add(&k->waiting, m);
	k->stats->offered_messages++;
	k->stats->offered_bytes += m->len;
}

/* -- datagrams ---------------------------------------------------------------------------------------------------- */

/* Random, but the same for a while: messages to one partition share a request. What librdkafka's own partitioner does
 * (sticky.partitioning.linger.ms), and for the same reason. */
uint32_t kafka_sticky(struct kafka *k)
{
	if (k->now_us - k->sticky_us >= STICKY_US) {
		k->sticky_us = k->now_us;
		k->sticky_hash = kafka_random(k);
	}
	return k->sticky_hash;
}

static uint32_t item_hash(struct kafka *k, const struct item *item, uint32_t key_len)
{
	if (goes_by_flow(k))
		return kafka_flow_hash(item->from);
	if (k->partition == CONF_PARTITION_KEY)
		return hash_murmur3_32(item->bytes, key_len, HASH_STATSRELAY_SEED);
	return kafka_sticky(k);
}

/* False: held back. */
static bool put_item(struct kafka *k, const struct item *item, uint64_t now_us)
{
	struct builder *b = &k->builders[0];
	uint32_t key_len = 0;
	if (UNLIKELY(item->len == 0 || item->len > builder_room(true, k->origin.is_wanted))) {
		k->backend->dropped_too_long_records++; /* nothing is left of a cut one, or it fits nowhere */
		return true;
	}
	if (k->origin.is_wanted)
		set_sender(k, item, now_us);
	struct message *m = kafka_new_message(k, b, item->len, 0);
	if (UNLIKELY(m == NULL))
		return kafka_refuse(k);
	if (k->partition == CONF_PARTITION_KEY) {
		const char *colon = memchr(item->bytes, ':', MIN(item->len, UINT16_MAX));
		key_len = colon != NULL ? (uint32_t)(colon - item->bytes) : 0;
	}
	m->records = 1;
	m->key_len = (uint16_t)key_len;
	m->hash = item_hash(k, item, key_len);
	memcpy(message_bytes(m), item->bytes, item->len);
	builder_end_message(b, m, item->len);
	kafka_add_waiting(k, m);
	return true;
}

unsigned kafka_put_items(struct kafka *k, const struct batch *b, unsigned first)
{
	uint64_t now_us = k->origin.is_wanted ? clock_real_us() : 0;
	unsigned i;
	if (kafka_takes_packets(k->out->cf))
		return kafka_put_packets(k, b, first);
	for (i = first; i < b->n_items; i++)
		if (b->items[i].original_len > 0 && !put_item(k, &b->items[i], now_us))
			break;
	return i;
}

/* -- lines -------------------------------------------------------------------------------------------------------- */

void kafka_end_open(struct kafka *k, struct builder *b)
{
	struct message *m = b->open;
	TAILQ_REMOVE(&k->opened, b, opened);
	b->open = NULL;
	m->records = (uint16_t)b->records;
	k->open_records -= b->records;
	builder_end_message(b, m, (uint32_t)(b->at - message_bytes(m)));
	b->at = b->limit = NULL;
	kafka_add_waiting(k, m);
}

void kafka_end_all(struct kafka *k)
{
	while (!TAILQ_EMPTY(&k->opened))
		kafka_end_open(k, TAILQ_FIRST(&k->opened));
}

void kafka_end_old(struct kafka *k)
{
	struct builder *b;
	while ((b = TAILQ_FIRST(&k->opened)) != NULL &&
	       (k->is_draining || k->now_us >= b->since_us + k->out->cf->batch_delay))
		kafka_end_open(k, b);
	if (b == NULL || ev_is_active(&k->delay_timer))
		return;
	ev_timer_set(&k->delay_timer, (double)(b->since_us + k->out->cf->batch_delay - k->now_us) / 1e6, 0.);
	ev_timer_start(k->out->loop, &k->delay_timer);
}

/* Begins a message that has room for a line of `len` bytes. False: no memory. */
bool kafka_begin_open(struct kafka *k, struct builder *b, uint32_t len, uint32_t hash)
{
	uint32_t batch = (uint32_t)MIN(k->out->cf->batch_bytes, builder_room(k->has_large, k->origin.is_wanted));
	/* A quarter of a batch at the end of a chunk is worth a message of its own, less is not. */
	struct message *m = kafka_new_message(k, b, len + 1, batch / 4);
	if (m == NULL)
		return false;
	m->hash = hash;
	b->open = m;
	b->records = 0;
	b->at = message_bytes(m);
	uint32_t left = (uint32_t)(b->chunk->bytes + b->chunk->room - b->at);
	b->limit = b->at + MAX(len + 1, MIN(batch, left));
	b->since_us = k->now_us;
	TAILQ_INSERT_TAIL(&k->opened, b, opened);
	return true;
}

/* Which item the line was cut from: lines come in the order of the items. */
static const struct item *item_of(const struct batch *b, const struct line *l, unsigned *at)
{
	while (*at + 1 < b->n_items &&
	       !(l->bytes >= b->items[*at].bytes && l->bytes <= b->items[*at].bytes + b->items[*at].len))
		++*at;
	return &b->items[*at];
}

static bool same_sender(const struct kafka *k, const struct message *m)
{
	return memcmp(&message_origin(m)->from, &k->origin.is.from, sizeof(k->origin.is.from)) == 0;
}

static uint32_t line_hash(struct kafka *k, const struct line *l, const struct item *item)
{
	if (k->partition == CONF_PARTITION_KEY)
		return l->hash;
	return goes_by_flow(k) ? kafka_flow_hash(item->from) : 0;
}

/* The line goes the slow way: into a new message. False: held back. */
static bool put_slowly(struct kafka *k, struct builder *b, const struct line *l, uint32_t hash)
{
	if (b->open != NULL)
		kafka_end_open(k, b);
	if (k->partition == CONF_PARTITION_RANDOM)
		hash = kafka_random(k);
	if (!kafka_begin_open(k, b, l->len, hash))
		return kafka_refuse(k);
	queue_copy_line(b->at, l->bytes, l->len);
	b->at += l->len + 1;
	b->records++;
	k->open_records++;
	/* By which of several partitions is not known before their number is: then each line is a message. */
	if (k->n_targets == 0 && k->partition != CONF_PARTITION_RANDOM)
		kafka_end_open(k, b);
	return true;
}

unsigned kafka_put_lines(struct kafka *k, const struct batch *b, unsigned first)
{
	bool is_one = k->n_builders == 1 && !k->origin.is_wanted && k->partition == CONF_PARTITION_RANDOM;
	uint64_t now_us = k->origin.is_wanted ? clock_real_us() : 0;
	unsigned i, item_at = 0;
	for (i = first; i < b->n_lines; i++) {
		const struct line *l = &b->lines[i];
		struct builder *to = k->builders;
		uint32_t hash = 0;
		if (!is_one) {
			const struct item *item = item_of(b, l, &item_at);
			hash = line_hash(k, l, item);
			to = &k->builders[k->n_builders > 1 ? hash % k->n_builders : 0];
			if (k->origin.is_wanted)
				set_sender(k, item, now_us);
			if (k->origin.is_wanted && to->open != NULL && !same_sender(k, to->open))
				kafka_end_open(k, to);
		}
		if (UNLIKELY((size_t)(to->limit - to->at) <= l->len)) {
			if (!put_slowly(k, to, l, hash))
				break;
			continue;
		}
		queue_copy_line(to->at, l->bytes, l->len);
		to->at += l->len + 1;
		to->records++;
		k->open_records++;
	}
	return i;
}

/* -- builders ----------------------------------------------------------------------------------------------------- */

void kafka_builders_fini(struct kafka *k)
{
	kafka_end_all(k);
	for (unsigned i = 0; i < k->n_builders; i++)
		builder_fini(&k->builders[i], &k->pool);
	free(k->builders);
	k->builders = NULL;
	k->n_builders = 0;
}

int kafka_builders_init(struct kafka *k, unsigned n)
{
	struct builder *builders = calloc(n, sizeof(*builders));
	if (builders == NULL)
		return -1;
	kafka_builders_fini(k);
	k->builders = builders;
	k->n_builders = n;
	k->has_large = n == 1 || n <= pool_limit_slabs(&k->pool) / MANY_BUILDERS_SHARE;
	return 0;
}
