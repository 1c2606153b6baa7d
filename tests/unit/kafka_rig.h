/* SPDX-License-Identifier: MIT
 *
 * A kafka output as a worker drives it, on a loop of its own, against librdkafka's mock cluster in this process. After
 * each step the whole account must balance, as millracectl check sees it.
 */
#ifndef KAFKA_RIG_H
#define KAFKA_RIG_H

#include "suite.h"

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "kafka.h"

enum { RIG_PRODUCE = 0, RIG_METADATA = 3 }; /* numbers of requests in Kafka's protocol */

struct rig {
	rd_kafka_t *mock_rk;
	rd_kafka_mock_cluster_t *mock;
	struct conf *cf;
	struct stats *stats;
	struct stats_copy *copy;
	struct stats_page *page;
	struct output out;
	struct kafka *k;
	struct stats_backend *be;
	struct stats_kafka *st;
	struct stats_output *so;
	struct stats_input *in;
	struct batch batch;
	struct item items[BATCH_ITEMS];
	struct line lines[BATCH_LINES];
	struct sockaddr_storage from;
	char *bytes;
	unsigned rooms; /* times that on_room was called */
	uint64_t sent;
};

static struct rig *rig_now;
static struct rig *rig_beside; /* whose cluster the next one has, too; it is stopped last */
static const char *rig_input = "type: udp, bind: \"127.0.0.1:1\"";
static unsigned rig_slot, rig_slots = 1; /* which worker the output believes to be in */

static void rig_on_room(struct output *out)
{
	(void)out;
	rig_now->rooms++;
}

static void rig_check(struct rig *r)
{
	struct text t = {0};
	stats_touch(r->page, STATS_INPUT, 0);
	stats_publish(r->page);
	ck_assert_int_eq(stats_copy_take(r->copy, NULL), 0);
	unsigned wrong = stats_check(r->copy, &t);
	ck_assert_msg(wrong == 0, "the account does not balance: %s", t.s);
	text_free(&t);
}

static void rig_mock(struct rig *r, int partitions)
{
	char why[512];
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_conf_set(conf, "log_level", "3", NULL, 0); /* it has no brokers of its own, and need not say so */
	r->mock_rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
	ck_assert_ptr_nonnull(r->mock_rk);
	r->mock = rd_kafka_mock_cluster_new(r->mock_rk, 1);
	ck_assert_ptr_nonnull(r->mock);
	if (partitions > 0)
		rd_kafka_mock_topic_create(r->mock, "t", partitions, 1);
	else
		rd_kafka_mock_topic_set_error(r->mock, "t", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
}

/* `partitions` 0: the topic does not exist. `options` and `properties`: lines of YAML, "a: b, c: d". */
static struct rig *rig_start(int partitions, const char *options, const char *properties)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct text yaml = {0};
	struct conf_errors errors;
	struct err err = {""};
	rig_now = r;
	if (rig_beside == NULL)
		rig_mock(r, partitions);
	else
		r->mock = rig_beside->mock;
	text_add(&yaml,
		 "inputs: { in: { %s, to: out } }\n"
		 "outputs: { out: { type: kafka, topic: t, %s, properties: { bootstrap.servers: \"%s\"%s%s } } }\n",
		 rig_input, options, rd_kafka_mock_cluster_bootstraps(r->mock), properties[0] ? ", " : "", properties);
	r->cf = conf_load_bytes("test", yaml.s, yaml.len, NULL, &errors);
	ck_assert_msg(r->cf != NULL, "%s%s", errors.text.s, yaml.s);
	text_free(&yaml);
	r->stats = stats_new(1, 0, &err);
	ck_assert_int_eq(output_init(&r->out, r->cf, 0, &err), 0);
	const char *unit = r->out.wants == OUTPUT_WANTS_LINES ? "lines" : "datagrams";
	stats_name(r->stats, STATS_INPUT, 0, "in", 0, 1, "udp");
	stats_name(r->stats, STATS_OUTPUT, 0, "out", 0, 0, unit);
	stats_name(r->stats, STATS_BACKEND, 0, "t", 0, 0, "kafka");
	stats_name(r->stats, STATS_KAFKA, 0, "out", 0, 0, "messages");
	r->copy = stats_copy_new(r->stats);
	r->page = stats_slot_page(r->stats, 0, 0);
	r->out.loop = ev_loop_new(EVBACKEND_EPOLL);
	r->out.page = r->page;
	r->out.slot = rig_slot;
	r->out.n_slots = rig_slots;
	r->out.on_room = rig_on_room;
	ck_assert_msg(r->out.type->open(&r->out, &err) == 0, "%s", err.text);
	r->k = r->out.impl;
	r->be = stats_backend(r->page, 0);
	r->st = stats_kafka(r->page, 0);
	r->so = stats_output(r->page, 0);
	r->in = stats_input(r->page, 0);
	r->batch.items = r->items;
	r->batch.lines = r->lines;
	r->bytes = calloc(BATCH_ITEMS, BATCH_ITEM_BYTES + BATCH_SLACK);
	struct sockaddr_in *in4 = (struct sockaddr_in *)&r->from;
	*in4 =
	    (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(4711), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	rig_check(r);
	return r;
}

static void rig_turn(struct rig *r)
{
	ev_run(r->out.loop, EVRUN_NOWAIT);
	r->out.type->pump(&r->out, clock_us());
	rig_check(r);
}

/* Turns until the condition holds. */
#define RIG_UNTIL(r, condition)                                                                                        \
	do {                                                                                                           \
		uint64_t until_us = clock_us() + 15000000;                                                             \
		while (!(condition)) {                                                                                 \
			rig_turn(r);                                                                                   \
			usleep(1000);                                                                                  \
			ck_assert_msg(clock_us() < until_us, "waited for " #condition);                                \
		}                                                                                                      \
	} while (0)

/* A batch of n datagrams of `len` bytes that begin with their number. */
static void rig_fill_datagrams(struct rig *r, unsigned n, uint32_t len)
{
	struct batch *b = &r->batch;
	b->n_items = n;
	b->taken[0] = 0;
	b->offered = 0;
	for (unsigned i = 0; i < n; i++) {
		char *bytes = r->bytes + i * (size_t)(BATCH_ITEM_BYTES + BATCH_SLACK);
		int head = snprintf(bytes, 64, "k%llu:", (unsigned long long)r->sent++);
		memset(bytes + head, 'x', len > (uint32_t)head ? len - (uint32_t)head : 0);
		r->items[i] = (struct item){.bytes = bytes, .len = len, .original_len = len, .from = &r->from};
	}
	r->in->received_datagrams += n;
	r->in->to_outputs_datagrams += n;
}

/* Returns how many were taken. */
static inline unsigned rig_datagrams(struct rig *r, unsigned n, uint32_t len)
{
	rig_fill_datagrams(r, n, len);
	r->out.type->send(&r->out, &r->batch);
	rig_check(r);
	return r->batch.taken[0];
}

static inline unsigned rig_lines(struct rig *r, unsigned n)
{
	struct batch *b = &r->batch;
	char *at = r->bytes;
	b->n_lines = n;
	b->n_items = 1;
	b->taken[0] = 0;
	b->offered = 0;
	for (unsigned i = 0; i < n; i++) {
		int len =
		    snprintf(at, 64, "key%llu:%llu|c", (unsigned long long)r->sent % 50, (unsigned long long)r->sent);
		uint32_t key_len = (uint32_t)(strchr(at, ':') - at);
		r->sent++;
		r->lines[i] = (struct line){.bytes = at,
					    .len = (uint32_t)len,
					    .key_len = key_len,
					    .hash = hash_murmur3_32(at, key_len, HASH_STATSRELAY_SEED)};
		at += len + 1;
	}
	r->items[0] =
	    (struct item){.bytes = r->bytes, .len = (uint32_t)(at - r->bytes), .original_len = 1, .from = &r->from};
	r->in->received_lines += n;
	r->in->to_outputs_lines += n;
	r->out.type->send(&r->out, b);
	rig_check(r);
	return b->taken[0];
}

static void rig_stop(struct rig *r)
{
	r->out.type->close(&r->out);
	rig_check(r);
	ck_assert_uint_eq(r->be->queued_records + r->be->in_flight_records + r->so->held_records, 0);
	ev_loop_destroy(r->out.loop);
	output_fini(&r->out);
	if (r->mock_rk != NULL) {
		rd_kafka_mock_cluster_destroy(r->mock);
		rd_kafka_destroy(r->mock_rk);
	}
	stats_copy_free(r->copy);
	stats_free(r->stats);
	conf_free(r->cf);
	free(r->bytes);
	free(r);
}

/* What is in the topic. Calls back for each message, until `n` are read. */
typedef void rig_message_cb(void *arg, rd_kafka_message_t *m);
static void rig_read(struct rig *r, unsigned n, rig_message_cb *cb, void *arg)
{
	char why[512];
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_conf_set(conf, "bootstrap.servers", rd_kafka_mock_cluster_bootstraps(r->mock), NULL, 0);
	rd_kafka_conf_set(conf, "group.id", "rig", NULL, 0);
	rd_kafka_conf_set(conf, "auto.offset.reset", "earliest", NULL, 0);
	rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, sizeof(why));
	rd_kafka_topic_partition_list_t *parts = rd_kafka_topic_partition_list_new(8);
	for (int p = 0; p < (int)r->k->n_partitions; p++)
		rd_kafka_topic_partition_list_add(parts, "t", p)->offset = RD_KAFKA_OFFSET_BEGINNING;
	rd_kafka_assign(rk, parts);
	rd_kafka_topic_partition_list_destroy(parts);
	uint64_t until_us = clock_us() + 15000000;
	while (n > 0) {
		rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, 100);
		ck_assert_msg(clock_us() < until_us, "%u messages are missing", n);
		if (m != NULL && m->err == 0) {
			cb(arg, m);
			n--;
		}
		if (m != NULL)
			rd_kafka_message_destroy(m);
	}
	rd_kafka_consumer_close(rk);
	rd_kafka_destroy(rk);
}

#endif
