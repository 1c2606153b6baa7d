/* SPDX-License-Identifier: MIT
 *
 * The kafka output: what is held behind the first message to a partition, and what goes again with a new producer.
 * Against librdkafka's mock; the account is proved after every step (kafka_rig.h).
 */
#include <unistd.h>

#include "kafka_rig.h"

#define DATAGRAMS "format: datagram"

static void see_numbers(void *arg, rd_kafka_message_t *m)
{
	uint64_t *seen = arg;
	unsigned long long number;
	ck_assert_int_eq(sscanf(m->payload, "k%llu:", &number), 1);
	ck_assert_uint_lt(number, 64);
	ck_assert_uint_eq(*seen >> number & 1, 0);
	*seen |= UINT64_C(1) << number;
}

/* A broker takes the second batch of a producer, when it refused the first: librdkafka would report both as delivered.
 */
START_TEST(the_first_goes_alone)
{
	struct rig *r = rig_start(1, DATAGRAMS, "linger.ms: 0, retry.backoff.ms: 10");
	uint64_t seen = 0;
	RIG_UNTIL(r, r->k->n_targets == 1);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 100);
	rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 1, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION);
	for (unsigned i = 0; i < 20; i++, usleep(5000)) {
		rig_datagrams(r, 3, 100);
		rig_turn(r);
		if (r->be->delivered_records == 0)
			ck_assert_uint_le(r->st->in_flight_messages, 1);
	}
	RIG_UNTIL(r, r->be->delivered_records == 60);
	rig_read(r, 60, see_numbers, &seen);
	ck_assert_uint_eq(seen, (UINT64_C(1) << 60) - 1);
	rig_stop(r);
}
END_TEST

/* Records of one partition wait for its first report, those of the others do not; the end finds all. */
START_TEST(what_is_parked_is_counted)
{
	struct rig *r = rig_start(2, "format: datagram, partition: key", "");
	RIG_UNTIL(r, r->k->n_targets == 2);
	rd_kafka_mock_partition_set_leader(r->mock, "t", 0, -1);
	for (unsigned i = 0; i < 10; i++)
		rig_datagrams(r, 64, 100);
	RIG_UNTIL(r, r->be->delivered_records > 200 && r->st->in_flight_messages <= 1);
	uint64_t left = 640 - r->be->delivered_records;
	ck_assert_uint_eq(r->out.type->pending(&r->out), left);
	ck_assert_uint_ge(r->st->queued_messages, left - 1);
	r->out.type->close(&r->out);
	rig_check(r);
	ck_assert_uint_eq(r->be->dropped_shutdown_records + r->be->unconfirmed_records, left);
	rig_stop(r);
}
END_TEST

/* Batches of more than one message are made smaller until only what is too large by itself fails. */
START_TEST(too_large_for_the_topic)
{
	struct rig *r = rig_start(1, DATAGRAMS, "");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
	rig_datagrams(r, 64, 100);
	RIG_UNTIL(r, r->st->producer_restarts == 1);
	ck_assert_uint_eq(r->be->failed_records, 0);
	ck_assert_uint_eq(r->k->batch_bytes, 3200);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 84);
	ck_assert_uint_eq(r->st->failed_messages, 0);
	rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
	rig_datagrams(r, 1, 5000);
	RIG_UNTIL(r, r->be->failed_records == 1);
	ck_assert_uint_eq(r->st->failed_too_large_records, 1);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 94);
	ck_assert_uint_eq(r->st->producer_restarts, 1);
	rig_stop(r);
}
END_TEST

/* The end comes between the refusal and the new producer. */
START_TEST(too_large_at_the_end)
{
	struct rig *r = rig_start(1, DATAGRAMS, "");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 1, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
	rig_datagrams(r, 64, 100);
	RIG_UNTIL(r, r->k->refused.messages == 64);
	r->out.type->close(&r->out);
	rig_check(r);
	ck_assert_uint_eq(r->be->dropped_shutdown_records, 64);
	rig_stop(r);
}
END_TEST

START_TEST(fatal_producer)
{
	struct rig *r = rig_start(2, DATAGRAMS, "");
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->be->delivered_records == 10);
	struct producer *first = r->k->producer;
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 400);
	rig_datagrams(r, 10, 100);
	rig_turn(r);
	rd_kafka_test_fatal_error(first->rk, RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, "a test");
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 0);
	for (unsigned i = 0; i < 10; i++)
		rig_datagrams(r, 64, 100);
	RIG_UNTIL(r, r->k->producer != NULL && r->k->producer != first && r->st->producer_restarts == 1);
	rig_datagrams(r, 10, 100);
	RIG_UNTIL(r, r->out.type->pending(&r->out) == 0);
	/* what the old one had not sent goes to the new one; what it had sent is counted by its status */
	ck_assert_uint_eq(r->be->failed_records, 0);
	ck_assert_uint_ge(r->be->delivered_records, 20);
	ck_assert_uint_eq(r->be->delivered_records + r->be->unconfirmed_records, 670);
	ck_assert_uint_le(r->be->unconfirmed_records, 10);
	rig_stop(r);
}
END_TEST

/* librdkafka reports 30 as delivered, of which the topic has 28: those that it cannot place are not counted so. */
START_TEST(delivered_without_offset)
{
	static const rd_kafka_resp_err_t not_leader = RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION;
	static const char *const properties[] = {
	    "linger.ms: 0, retry.backoff.ms: 10",
	    "linger.ms: 0, retry.backoff.ms: 10, acks: 0, enable.idempotence: false",
	};
	struct rig *r = rig_start(1, DATAGRAMS, properties[_i]);
	int64_t low, high;
	rig_datagrams(r, 1, 100);
	RIG_UNTIL(r, r->be->delivered_records == 1);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 100);
	if (_i == 0)
		rd_kafka_mock_push_request_errors(r->mock, RIG_PRODUCE, 3, not_leader, not_leader, not_leader);
	for (unsigned i = 0; i < 30; i++, usleep(5000)) {
		rig_datagrams(r, 1, 100);
		rig_turn(r);
	}
	RIG_UNTIL(r, r->out.type->pending(&r->out) == 0);
	ck_assert_int_eq(rd_kafka_query_watermark_offsets(r->k->producer->rk, "t", 0, &low, &high, 5000), 0);
	ck_assert_uint_eq(r->be->delivered_records + r->be->unconfirmed_records, 31);
	ck_assert_uint_le(r->be->delivered_records, (uint64_t)high);
	ck_assert_uint_eq(r->be->unconfirmed_records == 0, _i == 1);
	ck_assert_uint_eq(r->st->unconfirmed_messages, r->be->unconfirmed_records);
	rig_stop(r);
}
END_TEST

/* A topic is deleted and made again while librdkafka holds messages for it: they wait with the others. If it does not
 * come, all fail when the time is over. */
START_TEST(the_topic_goes_and_comes)
{
	struct rig *r = rig_start(2, DATAGRAMS, "topic.metadata.propagation.max.ms: 3000, linger.ms: 2000");
	rig_datagrams(r, 64, 100);
	RIG_UNTIL(r, r->be->delivered_records == 64);
	rd_kafka_mock_broker_set_rtt(r->mock, 1, 10);
	for (unsigned i = 0; i < 80; i++)
		rig_datagrams(r, 64, 100);
	ck_assert_uint_gt(r->st->in_flight_messages, 4000);
	rd_kafka_mock_topic_set_error(r->mock, "t", RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART);
	producer_ask(r->k->producer);
	RIG_UNTIL(r, r->k->n_partitions == 0);
	RIG_UNTIL(r, r->st->in_flight_messages < 1000);
	ck_assert_uint_eq(r->be->failed_records, 0);
	if (_i == 0)
		rd_kafka_mock_topic_set_error(r->mock, "t", RD_KAFKA_RESP_ERR_NO_ERROR);
	RIG_UNTIL(r, r->out.type->pending(&r->out) == 0);
	ck_assert_uint_eq(r->be->delivered_records + r->be->failed_records, 81 * 64);
	ck_assert_uint_eq(r->be->failed_records == 0, _i == 0);
	ck_assert_uint_eq(r->be->failed_records, r->st->failed_unknown_topic_records);
	rig_stop(r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kafka_again");
	TCase *tc = tcase_create("kafka_again");
	log_open("test", false, getenv("VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, the_first_goes_alone);
	tcase_add_test(tc, what_is_parked_is_counted);
	tcase_add_test(tc, too_large_for_the_topic);
	tcase_add_test(tc, too_large_at_the_end);
	tcase_add_test(tc, fatal_producer);
	tcase_add_loop_test(tc, delivered_without_offset, 0, 2);
	tcase_add_loop_test(tc, the_topic_goes_and_comes, 0, 2);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
