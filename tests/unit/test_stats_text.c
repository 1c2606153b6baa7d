/* SPDX-License-Identifier: MIT
 *
 * test_stats_text: what is computed from a copy of the counter pages: the ledger, statsrelay's status, rows, JSON.
 */
#include "suite.h"
#include "../../src/stats/stats_private.h"
#include <report.h>
#include <string.h>

static struct err err;
static struct stats *st;
static struct stats_copy *c;
static struct text t;

static void setup(void)
{
	st = stats_new(2, 0, &err);
	c = stats_copy_new(st);
	stats_name(st, STATS_INPUT, 0, "metrics", 0, 1, "udp");
	stats_name(st, STATS_INPUT, 1, "metrics_tcp", 0, 3, "tcp");
	stats_name(st, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	stats_name(st, STATS_OUTPUT, 1, "raw", 0, 0, "datagrams");
	stats_name(st, STATS_BACKEND, 0, "10.0.0.1:8125", 0, 0, "tcp");
	stats_name(st, STATS_BACKEND, 1, "[::1]:8126", 0, 0, "udp");
	stats_name(st, STATS_BACKEND, 2, "k1:9092", 1, 0, "kafka");
	stats_name(st, STATS_ENDPOINT, 0, "0.0.0.0:8125", 1, 0, "slot 0");
	memset(&t, 0, sizeof(t));
}

static void teardown(void)
{
	text_free(&t);
	stats_copy_free(c);
	stats_free(st);
}

/* Worker `slot` read 10 lines on each input, one datagram on the second; everything is delivered but what the test
 * says. */
static void balanced_make(unsigned slot)
{
	struct stats_page *p = stats_slot_page(st, slot, 0);
	struct stats_input *udp = stats_input(p, 0), *tcp = stats_input(p, 1);
	*udp = (struct stats_input){.received_datagrams = 4,
				    .to_outputs_datagrams = 3,
				    .empty_datagrams = 1,
				    .received_lines = 10,
				    .to_outputs_lines = 8,
				    .invalid_lines = 2,
				    .received_bytes = 100};
	*tcp = (struct stats_input){.received_datagrams = 1,
				    .to_outputs_datagrams = 1,
				    .received_lines = 10,
				    .to_outputs_lines = 10,
				    .received_bytes = 50,
				    .accepted_connections = 3};
	*stats_output(p, 0) = (struct stats_output){.offered_records = 18, .taken_records = 17, .held_records = 1};
	*stats_output(p, 1) = (struct stats_output){.offered_records = 1, .taken_records = 1};
	*stats_backend(p, 0) = (struct stats_backend){.offered_records = 10,
						      .delivered_records = 6,
						      .queued_records = 2,
						      .dropped_queue_full_records = 1,
						      .unconfirmed_records = 1,
						      .sent_bytes = 70,
						      .delivered_bytes = 60,
						      .queued_bytes = 20,
						      .up = 1};
	*stats_backend(p, 1) = (struct stats_backend){.offered_records = 7, .delivered_records = 7};
	*stats_backend(p, 2) = (struct stats_backend){.offered_records = 1, .in_flight_records = 1};
}

static void publish(void)
{
	for (unsigned slot = 0; slot < 2; slot++) {
		struct stats_page *p = stats_slot_page(st, slot, 0);
		for (unsigned i = 0; i < 3; i++) {
			if (i < 2) {
				stats_touch(p, STATS_INPUT, i);
				stats_touch(p, STATS_OUTPUT, i);
			}
			stats_touch(p, STATS_BACKEND, i);
		}
		stats_publish(p);
		stats_touch(stats_master_page(st), STATS_SLOT, slot);
	}
	stats_touch(stats_master_page(st), STATS_MASTER, 0);
	stats_touch(stats_master_page(st), STATS_ENDPOINT, 0);
	stats_publish(stats_master_page(st));
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
}

static void assert_contains(const char *part)
{
	ck_assert_msg(t.s && strstr(t.s, part), "\"%.2000s\" lacks \"%s\"", t.s ? t.s : "", part);
}

START_TEST(test_check_balanced)
{
	publish(); /* all zero */
	ck_assert_uint_eq(stats_check(c, &t), 0);
	balanced_make(0);
	balanced_make(1);
	publish();
	ck_assert_uint_eq(stats_check(c, &t), 0);
	ck_assert_uint_eq(t.len, 0);
}
END_TEST

START_TEST(test_check_texts)
{
	balanced_make(1);
	stats_input(stats_slot_page(st, 1, 0), 0)->received_lines = 11;
	stats_output(stats_slot_page(st, 1, 0), 1)->taken_records = 0;
	stats_backend(stats_slot_page(st, 1, 0), 1)->delivered_records = 0;
	publish();
	ck_assert_uint_eq(stats_check(c, &t), 4);
	assert_contains("worker 1 input metrics: received_lines 11 ≠ to_outputs_lines 8 + invalid_lines 2\n");
	assert_contains("worker 1 output raw: offered_records 1 ≠ taken_records 0\n");
	assert_contains("worker 1 output raw: taken_records 0 ≠ 1 that its backends were offered\n");
	assert_contains("worker 1 backend shards/[::1]:8126: offered_records 7 ≠ delivered_records 0\n");
}
END_TEST

/* Every counter that stands in an equation makes it fail when it alone changes: no row is left out, none is trivial. */
START_TEST(test_check_every_counter)
{
	unsigned tested = 0;
	publish();
	for (unsigned i = 0; i < stats_table_rows(); i++) {
		const struct stats_field *f = &stats_table[i];
		struct stats_page *p = stats_slot_page(st, 1, 0);
		if (f->ledger == STATS_LEDGER_NONE || f->ledger == STATS_LEDGER_BETWEEN)
			continue;
		const struct stats_scope_layout *l = &p->head->scopes[f->scope];
		stats_touch(p, f->scope, 1);
		uint64_t *block = (uint64_t *)(p->draft + l->half_offset + l->block_bytes);
		block[f->index] = 1;
		publish();
		ck_assert_msg(stats_check(c, &t) >= 1, "%s may be anything", f->name);
		assert_contains(f->name);
		block[f->index] = 0;
		stats_touch(p, f->scope, 1);
		publish();
		text_free(&t);
		ck_assert_uint_eq(stats_check(c, &t), 0);
		tested++;
	}
	ck_assert_uint_ge(tested, 30);
}
END_TEST

START_TEST(test_statsrelay)
{
	struct stats_page *m = stats_master_page(st);
	balanced_make(0);
	balanced_make(1);
	stats_master(m)->started_us = 5000000;
	stats_master(m)->loaded_us = 5000000;
	stats_slot(m, 0)->state = 2;
	stats_slot(m, 1)->state = 1;
	publish();
	report_statsrelay(c, &t);
	ck_assert_str_eq(t.s, "global bytes_recv_udp gauge 200\n"
			      "global bytes_recv_tcp gauge 100\n"
			      "global total_connections gauge 6\n"
			      "global last_reload timestamp 0\n"
			      "global malformed_lines gauge 4\n"
			      "backend:10.0.0.1:8125:tcp bytes_queued gauge 160\n"
			      "backend:10.0.0.1:8125:tcp bytes_sent gauge 140\n"
			      "backend:10.0.0.1:8125:tcp relayed_lines gauge 16\n"
			      "backend:10.0.0.1:8125:tcp dropped_lines gauge 4\n"
			      "backend:10.0.0.1:8125:tcp failing boolean 0\n"
			      "backend:[::1]:8126:udp bytes_queued gauge 0\n"
			      "backend:[::1]:8126:udp bytes_sent gauge 0\n"
			      "backend:[::1]:8126:udp relayed_lines gauge 14\n"
			      "backend:[::1]:8126:udp dropped_lines gauge 0\n"
			      "backend:[::1]:8126:udp failing boolean 1\n"
			      "backend:k1:9092:kafka bytes_queued gauge 0\n"
			      "backend:k1:9092:kafka bytes_sent gauge 0\n"
			      "backend:k1:9092:kafka relayed_lines gauge 2\n"
			      "backend:k1:9092:kafka dropped_lines gauge 0\n"
			      "backend:k1:9092:kafka failing boolean 1\n"
			      "\n");
	text_free(&t);
	stats_slot(m, 0)->state = 3; /* up, but not ready any more */
	stats_master(m)->loaded_us = 7500000;
	stats_name(st, STATS_BACKEND, 2, NULL, 0, 0, NULL); /* a reload took it away */
	stats_name(st, STATS_INPUT, 0, "metrics", 0, 1, "unixgram");
	stats_name(st, STATS_INPUT, 1, "metrics_tcp", 0, 3, "unix");
	publish();
	report_statsrelay(c, &t);
	assert_contains("global bytes_recv_udp gauge 200\nglobal bytes_recv_tcp gauge 100\n");
	assert_contains("global last_reload timestamp 7\n");
	assert_contains("backend:10.0.0.1:8125:tcp failing boolean 1\n");
	ck_assert_ptr_null(strstr(t.s, "kafka"));
}
END_TEST

START_TEST(test_statsrelay_many)
{
	enum { MANY = 10000 };
	char name[32];
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "10.1.%u.%u:8125", i / 256, i % 256);
		stats_name(st, STATS_BACKEND, i, name, 0, 0, "tcp");
	}
	stats_backend(stats_slot_page(st, 1, 0), MANY - 1)->sent_bytes = 77;
	stats_touch(stats_slot_page(st, 1, 0), STATS_BACKEND, MANY - 1);
	publish();
	uint64_t before = clock_us();
	report_statsrelay(c, &t);
	printf("status of 10,000 backends: %zu bytes in %llu us\n", t.len, (unsigned long long)(clock_us() - before));
	unsigned lines = 0;
	for (const char *s = t.s; (s = strchr(s, '\n')); s++)
		lines++;
	ck_assert_uint_eq(lines, 5 + 5 * MANY + 1);
	assert_contains("backend:10.1.39.15:8125:tcp bytes_sent gauge 77\n");
	ck_assert_str_eq(t.s + t.len - 2, "\n\n");
}
END_TEST

START_TEST(test_json)
{
	balanced_make(1);
	stats_worker(stats_slot_page(st, 1, 0))->loops = 9;
	stats_touch(stats_slot_page(st, 1, 0), STATS_WORKER, 0);
	stats_slot(stats_master_page(st), 1)->pid = 42;
	stats_endpoint(stats_master_page(st), 0)->dropped_datagrams = 5;
	stats_name(st, STATS_OUTPUT, 1, "r\"w", 0, 0, "datagrams");
	publish();
	report_json(c, &t);
	ck_assert_ptr_eq(strstr(t.s, "{\"counters\":[\n{\"name\":\"loops\",\"scope\":\"worker\","), t.s);
	assert_contains("\n{\"name\":\"loops\",\"scope\":\"worker\",\"kind\":\"counter\",\"worker\":1,\"value\":9},\n");
	assert_contains("\n{\"name\":\"invalid_lines\",\"scope\":\"input\",\"kind\":\"loss\",\"worker\":1,\"input\":"
			"\"metrics\","
			"\"value\":2},\n");
	assert_contains("\n{\"name\":\"offered_records\",\"scope\":\"output\",\"kind\":\"counter\",\"worker\":1,"
			"\"output\":\"r\\\"w\",\"value\":1},\n");
	assert_contains("\n{\"name\":\"sent_bytes\",\"scope\":\"backend\",\"kind\":\"counter\",\"worker\":1,"
			"\"output\":\"shards\",\"backend\":\"10.0.0.1:8125\",\"transport\":\"tcp\",\"value\":70},\n");
	assert_contains("\n{\"name\":\"started_us\",\"scope\":\"master\",\"kind\":\"gauge\",\"value\":0},\n");
	assert_contains("\n{\"name\":\"pid\",\"scope\":\"slot\",\"kind\":\"gauge\",\"slot\":1,\"value\":42},\n");
	assert_contains("\n{\"name\":\"dropped_datagrams\",\"scope\":\"endpoint\",\"kind\":\"loss\",\"input\":"
			"\"metrics_tcp\","
			"\"endpoint\":\"0.0.0.0:8125\",\"of\":\"slot 0\",\"value\":5},\n");
	assert_contains("}\n]}\n");
	unsigned rows = 0, expected = 0;
	for (const char *s = t.s; (s = strstr(s, "{\"name\"")); s++)
		rows++;
	for (unsigned i = 0; i < stats_table_rows(); i++) {
		unsigned scope = stats_table[i].scope, blocks = stats_copy_entries(c, scope);
		expected += scope == STATS_WORKER || scope >= STATS_MASTER ? blocks : 2 * blocks;
	}
	ck_assert_uint_eq(rows, expected);
}
END_TEST

START_TEST(test_status_json)
{
	struct stats_page *m = stats_master_page(st);
	struct report_program program = {"1.0", 99, 8000000};
	balanced_make(0);
	balanced_make(1);
	stats_backend(stats_slot_page(st, 0, 0), 1)->up = 1; /* in one of two */
	*stats_slot(m, 0) = (struct stats_slot){.pid = 5, .state = 2, .ready_us = 6000000, .starts = 3};
	*stats_slot(m, 1) = (struct stats_slot){.state = 77, .ready_us = 6000000};
	stats_master(m)->started_us = 5000000;
	stats_master(m)->config_digest = 0xab;
	stats_endpoint(m, 0)->dropped_datagrams = 5;
	publish();
	report_status_json(c, &program, &t);
	assert_contains("{\"version\":\"1.0\",\"pid\":99,\"uptime_us\":3000000,\"started_us\":5000000,\"loaded_us\":0,"
			"\"config_digest\":171,\"reloads\":0,\"reload_failures\":0,\"reload_failed\":0,\"reloading\":0,"
			"\"config\":\"0000000000ab\",\n"
			"\"workers\":[\n{\"slot\":0,\"state\":\"ready\",\"uptime_us\":2000000,\"restarts\":2,\"pid\":"
			"5,");
	assert_contains("{\"slot\":1,\"state\":\"?\",\"uptime_us\":0,\"restarts\":0,\"pid\":0,");
	assert_contains("{\"name\":\"metrics\",\"type\":\"udp\",\"to\":[\"shards\"],\"kernel_dropped_datagrams\":0,"
			"\"received_datagrams\":8,");
	assert_contains("{\"name\":\"metrics_tcp\",\"type\":\"tcp\",\"to\":[\"shards\",\"raw\"],"
			"\"kernel_dropped_datagrams\":5,");
	assert_contains("{\"name\":\"shards\",\"unit\":\"lines\",\"offered_records\":36,");
	assert_contains("{\"name\":\"10.0.0.1:8125\",\"output\":\"shards\",\"transport\":\"tcp\",\"state\":\"up\","
			"\"down_us\":0,\"offered_records\":20,");
	assert_contains("{\"name\":\"k1:9092\",\"output\":\"raw\",\"transport\":\"kafka\",\"state\":\"down\",");
	text_free(&t);
	stats_slot(m, 1)->state = 2;
	stats_backend(stats_slot_page(st, 1, 0), 0)->up = 0;
	program.now_us = 1; /* the clock was set back */
	publish();
	report_status_json(c, &program, &t);
	assert_contains("\"name\":\"10.0.0.1:8125\",\"output\":\"shards\",\"transport\":\"tcp\",\"state\":\"partly "
			"up\",");
	assert_contains("\"uptime_us\":0,");
}
END_TEST

START_TEST(test_words)
{
	ck_assert_str_eq(stats_scope_word(STATS_ENDPOINT), "endpoint");
	ck_assert_str_eq(stats_scope_word(STATS_SCOPES), "?");
	ck_assert_str_eq(stats_kind_word(STATS_KIND_HINT), "hint");
	ck_assert_str_eq(stats_kind_word(99), "counter");
	ck_assert_str_eq(stats_slot_state_word(4), "failed");
	ck_assert_str_eq(stats_slot_state_word(6), "?");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stats_text");
	TCase *tc = tcase_create("text");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, test_check_balanced);
	tcase_add_test(tc, test_check_texts);
	tcase_add_test(tc, test_check_every_counter);
	tcase_add_test(tc, test_statsrelay);
	tcase_add_test(tc, test_statsrelay_many);
	tcase_add_test(tc, test_json);
	tcase_add_test(tc, test_status_json);
	tcase_add_test(tc, test_words);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
