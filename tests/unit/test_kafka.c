/* SPDX-License-Identifier: MIT
 *
 * The kafka output: each way in which a message can fail has its counter; brokers that are away, slow or gone; a fatal
 * producer; full memory; the end. Against librdkafka's mock. The account is proved after every step (kafka_rig.h).
 */
#include <malloc.h>
#include <unistd.h>

#include "kafka_rig.h"

#define DATAGRAMS "format: datagram"
#define LINES     "format: lines, batch_delay: 20ms"

/* -- delivery --------------------------------------------------------------------------------------------------------
 */

START_TEST(datagrams_arrive)
{
	struct rig *r = rig_start(4, DATAGRAMS, "");
	for (unsigned i = 0; i < 100; i++)
		ck_assert_uint_eq(rig_datagrams(r, 64, 100), 64);
	RIG_UNTIL(r, r->be->delivered_records == 6400);
	ck_assert_uint_eq(r->st->delivered_messages, 6400);
	ck_assert_uint_eq(r->st->delivered_bytes, 640000);
	ck_assert_uint_eq(r->be->up, 1);
	ck_assert_uint_eq(r->out.type->pending(&r->out), 0);
	RIG_UNTIL(r, r->st->brokers_up == 1 && r->st->brokers == 1 && r->st->partitions == 4);
	ck_assert_uint_eq(stats_broker(r->page, 0)->state, 2);
	rig_stop(r);
}
END_TEST

struct seen {
	uint64_t lines, messages, next[8];
	uint32_t partitions; /* bits */
	bool has_key, has_headers;
};

static void see_lines(void *arg, rd_kafka_message_t *m)
{
	struct seen *seen = arg;
	const char *at = m->payload, *end = at + m->len;
	seen->messages++;
	seen->partitions |= 1u << m->partition;
	for (const char *newline; at < end; at = newline + 1) {
		newline = memchr(at, '\n', (size_t)(end - at));
		ck_assert_msg(newline != NULL, "a message ends within a line");
		unsigned key;
		unsigned long long number;
		ck_assert_int_eq(sscanf(at, "key%u:%llu|c\n", &key, &number), 2);
		/* in order within each partition */
		ck_assert_uint_ge(number, seen->next[m->partition]);
		seen->next[m->partition] = number + 1;
		seen->lines++;
	}
}

START_TEST(lines_are_packed)
{
	struct rig *r = rig_start(1, LINES, "");
	struct seen seen = {0};
	RIG_UNTIL(r, r->k->n_targets == 1);
	for (unsigned i = 0; i < 100; i++)
		ck_assert_uint_eq(rig_lines(r, 500), 500);
	RIG_UNTIL(r, r->be->delivered_records == 50000);
	ck_assert_uint_lt(r->st->delivered_messages, 15); /* 700 KB in messages of 64 KiB */
	rig_read(r, (unsigned)r->st->delivered_messages, see_lines, &seen);
	ck_assert_uint_eq(seen.lines, 50000);
	rig_stop(r);
}
END_TEST

START_TEST(lines_by_key)
{
	struct rig *r = rig_start(4, LINES ", partition: key, batch_bytes: 4KiB", "");
	struct seen seen = {0};
	ck_assert_uint_eq(rig_lines(r, 100), 100); /* before the partitions are known: a message each */
	ck_assert_uint_eq(r->st->offered_messages, 100);
	RIG_UNTIL(r, r->k->n_targets == 4);
	for (unsigned i = 0; i < 20; i++)
		ck_assert_uint_eq(rig_lines(r, 500), 500);
	RIG_UNTIL(r, r->be->delivered_records == 10100);
	ck_assert_uint_lt(r->st->delivered_messages, 100 + 60);
	rig_read(r, (unsigned)r->st->delivered_messages, see_lines, &seen);
	ck_assert_uint_eq(seen.lines, 10100);
	ck_assert_uint_eq(seen.partitions, 15);
	rig_stop(r);
}
END_TEST

static void see_headers(void *arg, rd_kafka_message_t *m)
{
	struct seen *seen = arg;
	rd_kafka_headers_t *headers;
	const void *value;
	size_t len;
	ck_assert_int_eq(rd_kafka_message_headers(m, &headers), 0);
	ck_assert_int_eq(rd_kafka_header_get_last(headers, "sender", &value, &len), 0);
	ck_assert_uint_eq(len, 14);
	ck_assert_mem_eq(value, "127.0.0.1:4711", 14);
	ck_assert_int_eq(rd_kafka_header_get_last(headers, "received_us", &value, &len), 0);
	ck_assert_uint_eq(len, 16);
	ck_assert_mem_eq(m->key, m->payload, m->key_len);
	ck_assert_int_eq(((const char *)m->payload)[m->key_len], ':');
	seen->messages++;
}

START_TEST(headers_and_keys)
{
	struct rig *r = rig_start(2, DATAGRAMS ", headers: true, partition: key", "");
	struct seen seen = {0};
	ck_assert_uint_eq(rig_datagrams(r, 64, 50), 64);
	RIG_UNTIL(r, r->be->delivered_records == 64);
	rig_read(r, 64, see_headers, &seen);
	ck_assert_uint_eq(seen.messages, 64);
	rig_stop(r);
}
END_TEST

START_TEST(empty_and_cut_datagrams)
{
	struct rig *r = rig_start(1, DATAGRAMS, "");
	r->items[0] = (struct item){.bytes = r->bytes, .len = 0, .original_len = 0};     /* no record */
	r->items[1] = (struct item){.bytes = r->bytes, .len = 0, .original_len = 70000}; /* nothing is left of it */
	r->items[2] = (struct item){.bytes = r->bytes, .len = 65507, .original_len = 65507};
	r->batch.n_items = 3;
	r->in->received_datagrams = 3;
	r->in->empty_datagrams = 1;
	r->in->to_outputs_datagrams = 2;
	r->out.type->send(&r->out, &r->batch);
	ck_assert_uint_eq(r->batch.taken[0], 3);
	rig_check(r);
	RIG_UNTIL(r, r->be->delivered_records == 1);
	ck_assert_uint_eq(r->be->dropped_too_long_records, 1);
	rig_stop(r);
}
END_TEST

/* -- failures ---------------------------------------------------------------------------------------------------------
 */

static const struct {
	rd_kafka_resp_err_t error;
	size_t counter;
} refusals[] = {
    {RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, offsetof(struct stats_kafka, failed_authorization_records)},
    {RD_KAFKA_RESP_ERR_POLICY_VIOLATION, offsetof(struct stats_kafka, failed_policy_records)},
    {RD_KAFKA_RESP_ERR_INVALID_RECORD, offsetof(struct stats_kafka, failed_policy_records)},
    {RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS, offsetof(struct stats_kafka, failed_broker_records)},
    {RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION, offsetof(struct stats_kafka, failed_unknown_topic_records)},
    {RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, offsetof(struct stats_kafka, failed_fatal_records)},
};

START_TEST(refused_by_the_broker)
{
	struct rig *r = rig_start(1, DATAGRAMS, "");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 1, refusals[_i].error);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->failed_records == 10);
	ck_assert_uint_eq(*(uint64_t *)((char *)r->st + refusals[_i].counter), 10);
	ck_assert_uint_eq(r->st->failed_messages, 10);
	rig_datagrams(r, 10, 100); /* the next ones arrive */
	RIG_UNTIL(r, r->be->delivered_records == 20);
	rig_stop(r);
}
END_TEST

START_TEST(too_large_for_the_producer)
{
	struct rig *r = rig_start(1, DATAGRAMS, "message.max.bytes: 1000");
	rig_datagrams(r, 10, 100);
	rig_datagrams(r, 3, 2000);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 20);
	ck_assert_uint_eq(r->be->failed_records, 3);
	ck_assert_uint_eq(r->st->failed_too_large_records, 3);
	rig_stop(r);
}
END_TEST

START_TEST(retried_without_doubles)
{
	struct rig *r = rig_start(1, LINES, "retry.backoff.ms: 20");
	struct seen seen = {0};
	rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 3, RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
					  RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
					  RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT);
	for (unsigned i = 0; i < 20; i++)
		rig_lines(r, 500);
	RIG_UNTIL(r, r->be->delivered_records == 10000);
	rig_read(r, (unsigned)r->st->delivered_messages, see_lines, &seen);
	ck_assert_uint_eq(seen.lines, 10000);
	rig_stop(r);
}
END_TEST

START_TEST(timed_out)
{
	struct rig *r = rig_start(1, DATAGRAMS, "message.timeout.ms: 1000, reconnect.backoff.max.ms: 100");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rd_kafka_mock_broker_set_down(r->mock, 1);
	RIG_UNTIL(r, r->be->up == 0);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->failed_records + r->be->unconfirmed_records == 10);
	ck_assert_uint_eq(r->st->failed_timed_out_records, r->be->failed_records);
	rd_kafka_mock_broker_set_up(r->mock, 1);
	RIG_UNTIL(r, r->be->up == 1);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 20);
	rig_stop(r);
}
END_TEST

START_TEST(topic_does_not_exist)
{
	struct rig *r = rig_start(0, DATAGRAMS, "topic.metadata.propagation.max.ms: 600");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->failed_records == 10);
	ck_assert_uint_eq(r->st->failed_unknown_topic_records, 10);
	rig_datagrams(r, 10, 100); /* from then on at once */
	RIG_UNTIL(r, r->be->failed_records == 20);
	rd_kafka_mock_topic_set_error(r->mock, "t", RD_KAFKA_RESP_ERR_NO_ERROR);
	RIG_UNTIL(r, r->k->n_targets > 0);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rig_stop(r);
}
END_TEST

/* The partitions of slot 5 of 6 are those whose number modulo 6 is 5: of 4 there is none. */
START_TEST(too_few_partitions_for_the_worker)
{
	rig_slot = 5;
	rig_slots = 6;
	struct rig *r = rig_start(4, DATAGRAMS ", partition: worker", "topic.metadata.propagation.max.ms: 300");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->failed_records == 10);
	ck_assert_uint_eq(r->st->failed_unknown_topic_records, 10);
	rig_stop(r);
}
END_TEST

static void see_partition(void *arg, rd_kafka_message_t *m)
{
	*(uint32_t *)arg |= 1u << m->partition;
}

START_TEST(a_worker_keeps_to_its_partitions)
{
	uint32_t seen = 0;
	rig_slot = 1;
	rig_slots = 3;
	struct rig *r = rig_start(8, DATAGRAMS ", partition: worker", "");
	for (unsigned i = 0; i < 100; i++) {
		((struct sockaddr_in *)&r->from)->sin_port = (uint16_t)i;
		rig_datagrams(r, 4, 100);
	}
	RIG_UNTIL(r, r->be->delivered_records == 400);
	rig_read(r, 400, see_partition, &seen);
	ck_assert_uint_eq(seen, 1u << 1 | 1u << 4 | 1u << 7);
	rig_stop(r);
}
END_TEST

/* -- memory ------------------------------------------------------------------------------------------------------- */

/* Until it takes no more, or `most` batches. */
static unsigned fill(struct rig *r, unsigned most)
{
	for (unsigned i = 0; i < most; i++)
		if (rig_datagrams(r, 64, 1000) < 64)
			return i;
	return most;
}

START_TEST(block_holds_and_goes_on)
{
	struct rig *r = rig_start(1, DATAGRAMS ", memory_limit: 1MiB, overflow: block", "");
	RIG_UNTIL(r, r->k->n_targets == 1);
	rd_kafka_mock_broker_set_down(r->mock, 1);
	unsigned batches = fill(r, 100);
	ck_assert_uint_lt(batches, 20);
	ck_assert_uint_gt(r->so->held_records, 0);
	ck_assert_uint_le(r->so->memory_bytes, MIB);
	uint64_t held = r->so->held_records;
	rig_turn(r);
	r->out.type->send(&r->out, &r->batch); /* the same batch again changes nothing */
	rig_check(r);
	ck_assert_uint_eq(r->so->held_records, held);
	ck_assert_uint_eq(r->rooms, 0);
	rd_kafka_mock_broker_set_up(r->mock, 1);
	RIG_UNTIL(r, r->rooms > 0);
	r->out.type->send(&r->out, &r->batch);
	ck_assert_uint_eq(r->batch.taken[0], 64);
	ck_assert_uint_eq(r->so->held_records, 0);
	RIG_UNTIL(r, r->be->delivered_records == (batches + 1) * 64);
	rig_stop(r);
}
END_TEST

START_TEST(drops_are_counted)
{
	const char *options = _i ? DATAGRAMS ", memory_limit: 2MiB, overflow: drop_oldest"
				 : DATAGRAMS ", memory_limit: 2MiB, overflow: drop_newest";
	struct rig *r = rig_start(1, options, "queue.buffering.max.messages: 200");
	rig_datagrams(r, 1, 100);
	RIG_UNTIL(r, r->be->delivered_records == 1);
	rd_kafka_mock_broker_set_down(r->mock, 1);
	ck_assert_uint_eq(fill(r, 100), 100);
	ck_assert_uint_gt(r->be->dropped_memory_records, 1000);
	ck_assert_uint_le(r->so->memory_bytes, 2 * MIB);
	ck_assert_uint_eq(r->st->dropped_messages, _i ? r->be->dropped_memory_records : 0);
	/* the newest is there, or not */
	struct message *last = NULL;
	for (struct message *m = r->k->waiting.first; m != NULL; m = m->next)
		last = m;
	ck_assert_int_eq(memcmp(message_value(last), "k6400:", 6) == 0, _i);
	rd_kafka_mock_broker_set_up(r->mock, 1);
	RIG_UNTIL(r, r->out.type->pending(&r->out) == 0);
	ck_assert_uint_eq(r->be->delivered_records + r->be->dropped_memory_records, 6401);
	rig_stop(r);
}
END_TEST

static uint64_t resident(void)
{
	unsigned long pages = 0, all = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	ck_assert_int_eq(fscanf(f, "%lu %lu", &all, &pages), 2);
	fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

START_TEST(the_oldest_can_be_dropped)
{
	struct rig *r = rig_start(1, "format: lines, batch_delay: 0ms, memory_limit: 2MiB, overflow: drop_oldest", "");
	rig_lines(r, 1);
	RIG_UNTIL(r, r->be->delivered_records == 1);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 3000);
	for (unsigned i = 0; i < 400; i++) {
		ck_assert_uint_eq(rig_lines(r, 500), 500);
		rig_turn(r);
	}
	ck_assert_uint_gt(r->be->dropped_memory_records, 10000);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 0);
	const struct message *last = NULL;
	char newest[32];
	for (struct message *m = r->k->waiting.first; m != NULL; m = m->next)
		last = m;
	int len = snprintf(newest, sizeof(newest), ":%llu|c\n", (unsigned long long)r->sent - 1);
	ck_assert_ptr_nonnull(last);
	ck_assert_mem_eq(message_value(last) + last->len - len, newest, (size_t)len);
	RIG_UNTIL(r, r->out.type->pending(&r->out) == 0);
	ck_assert_uint_eq(r->be->delivered_records + r->be->dropped_memory_records, r->sent);
	rig_stop(r);
}
END_TEST

/* A message is larger than what librdkafka may hold: then it has that one. */
START_TEST(a_tiny_queue_of_librdkafka)
{
	struct rig *r = rig_start(1, DATAGRAMS, "queue.buffering.max.kbytes: 1");
	rig_datagrams(r, 10, 60000);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rig_stop(r);
}
END_TEST

START_TEST(memory_of_a_backlog)
{
	struct rig *r = rig_start(1, _i ? DATAGRAMS ", headers: true" : DATAGRAMS, "");
	rig_datagrams(r, 64, 100);
	RIG_UNTIL(r, r->be->delivered_records == 64);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 20000); /* it takes what comes, and does not answer */
	uint64_t before = resident();
	for (unsigned i = 0; i < 240000 / 64; i++) {
		ck_assert_uint_eq(rig_datagrams(r, 64, 100), 64);
		if (i % 16 == 0)
			rig_turn(r);
	}
	for (unsigned i = 0; i < 200; i++, usleep(5000))
		rig_turn(r);
	uint64_t used = resident() - before;
	printf("240,000 datagrams of 100 bytes%s: %.1f MiB resident, %.1f MiB published\n", _i ? " with headers" : "",
	       (double)used / MIB, (double)r->so->memory_bytes / MIB);
	ck_assert_uint_eq(r->out.type->pending(&r->out), 240000);
	ck_assert_uint_le(r->so->memory_bytes, (_i ? 130 : 100) * MIB);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	ck_assert_uint_le(used, r->so->memory_bytes + 6 * MIB); /* librdkafka's requests: at most five of a megabyte */
#endif
	rig_stop(r);
	ck_assert_int_eq(malloc_trim(0) >= 0, 1);
}
END_TEST

/* -- the end ------------------------------------------------------------------------------------------------------ */

START_TEST(close_counts_what_is_left)
{
	struct rig *r = rig_start(1, DATAGRAMS, "queue.buffering.max.messages: 128");
	struct stats_backend *be = r->be;
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, be->delivered_records == 10);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 5000);
	for (unsigned i = 0; i < 10; i++)
		rig_datagrams(r, 64, 100);
	for (unsigned i = 0; i < 30; i++, usleep(1000))
		rig_turn(r);
	r->out.type->drain(&r->out);
	ck_assert_uint_eq(r->out.type->pending(&r->out), 640);
	r->out.type->close(&r->out);
	rig_check(r);
	ck_assert_uint_eq(be->delivered_records, 10);
	ck_assert_uint_gt(be->unconfirmed_records, 0);
	ck_assert_uint_ge(be->dropped_shutdown_records, 640 - 128);
	ck_assert_uint_eq(be->unconfirmed_records + be->dropped_shutdown_records, 640);
	ck_assert_uint_eq(be->failed_records, 0);
	rig_stop(r);
}
END_TEST

START_TEST(drain_does_not_linger)
{
	struct rig *r = rig_start(1, "format: lines, batch_delay: 60s", "linger.ms: 60000");
	RIG_UNTIL(r, r->k->n_targets == 1);
	rig_lines(r, 10);
	for (unsigned i = 0; i < 20; i++, usleep(1000))
		rig_turn(r);
	ck_assert_uint_eq(r->out.type->pending(&r->out), 10);
	uint64_t begin_us = clock_us();
	r->out.type->drain(&r->out);
	RIG_UNTIL(r, r->out.type->pending(&r->out) == 0);
	ck_assert_uint_lt(clock_us() - begin_us, 10000000);
	ck_assert_uint_eq(r->be->delivered_records, 10);
	rig_stop(r);
}
END_TEST

START_TEST(no_broker_at_the_start)
{
	struct rig *r = rig_start(1, DATAGRAMS, "reconnect.backoff.max.ms: 200");
	rd_kafka_mock_broker_set_down(r->mock, 1);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->k->is_down_said || r->be->delivered_records == 10);
	rd_kafka_mock_broker_set_up(r->mock, 1);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rig_stop(r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kafka");
	TCase *tc = tcase_create("kafka");
	log_open("test", false, getenv("VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, datagrams_arrive);
	tcase_add_test(tc, lines_are_packed);
	tcase_add_test(tc, lines_by_key);
	tcase_add_test(tc, headers_and_keys);
	tcase_add_test(tc, empty_and_cut_datagrams);
	tcase_add_loop_test(tc, refused_by_the_broker, 0, (int)ARRAY_LEN(refusals));
	tcase_add_test(tc, too_large_for_the_producer);
	tcase_add_test(tc, retried_without_doubles);
	tcase_add_test(tc, timed_out);
	tcase_add_test(tc, topic_does_not_exist);
	tcase_add_test(tc, too_few_partitions_for_the_worker);
	tcase_add_test(tc, a_worker_keeps_to_its_partitions);
	tcase_add_test(tc, block_holds_and_goes_on);
	tcase_add_loop_test(tc, drops_are_counted, 0, 2);
	tcase_add_test(tc, the_oldest_can_be_dropped);
	tcase_add_test(tc, a_tiny_queue_of_librdkafka);
	tcase_add_loop_test(tc, memory_of_a_backlog, 0, 2);
	tcase_add_test(tc, close_counts_what_is_left);
	tcase_add_test(tc, drain_does_not_linger);
	tcase_add_test(tc, no_broker_at_the_start);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
