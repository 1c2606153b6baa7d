/* SPDX-License-Identifier: MIT
 *
 * test_prometheus: the counters in Prometheus' text format. What promtool says of it is in test_57_prometheus.py.
 */
#include "suite.h"
#include "../../src/stats/stats_private.h"
#include <ctype.h>
#include <report.h>
#include <string.h>

static struct err err;
static struct stats *st;
static struct stats_copy *c;
static struct text t;
static const struct report_program program = {"1.0 \"x\"", 99, 8000000};

static void setup(void)
{
	st = stats_new(2, 2, &err);
	c = stats_copy_new(st);
	stats_name(st, STATS_INPUT, 0, "metrics", 0, 1, "udp");
	stats_name(st, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	stats_name(st, STATS_OUTPUT, 1, "raw", 0, 0, "datagrams");
	stats_name(st, STATS_BACKEND, 0, "10.0.0.1:8125", 0, 0, "tcp");
	stats_name(st, STATS_BACKEND, 1, "[::1]:8126", 0, 0, "udp");
	stats_name(st, STATS_ENDPOINT, 0, "0.0.0.0:8125", 0, 0, "slot 0");
	stats_name(st, STATS_ENDPOINT, 1, "/run/s", 0, 0, "all slots");
}

static void teardown(void)
{
	text_free(&t);
	stats_copy_free(c);
	stats_free(st);
}

static void take(void)
{
	text_free(&t);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	report_prometheus(c, &program, &t);
	ck_assert(!t.failed && t.s);
}

static void publish(unsigned slot, enum stats_scope scope, unsigned index)
{
	struct stats_page *p = scope < STATS_MASTER ? stats_slot_page(st, slot, 0) : stats_master_page(st);
	stats_touch(p, scope, index);
	stats_publish(p);
}

static void assert_line(const char *line)
{
	char whole[512];
	snprintf(whole, sizeof(whole), "\n%s\n", line);
	ck_assert_msg(strstr(t.s, whole) != NULL, "there is no line %s", line);
}

START_TEST(test_sums)
{
	for (unsigned slot = 0; slot < 2; slot++) {
		stats_input(stats_slot_page(st, slot, 0), 0)->received_lines = 10 + slot;
		stats_backend(stats_slot_page(st, slot, 0), 0)->up = 1;
		stats_backend(stats_slot_page(st, slot, 0), 0)->dropped_queue_full_records = 7;
		stats_worker(stats_slot_page(st, slot, 0))->loops = 5 + slot;
		publish(slot, STATS_INPUT, 0);
		publish(slot, STATS_BACKEND, 0);
		publish(slot, STATS_WORKER, 0);
	}
	take();
	assert_line("millrace_input_received_lines_total{input=\"metrics\"} 21");
	assert_line("millrace_backend_up{output=\"shards\",backend=\"10.0.0.1:8125\",transport=\"tcp\"} 2");
	assert_line("millrace_backend_up{output=\"shards\",backend=\"[::1]:8126\",transport=\"udp\"} 0");
	assert_line("# HELP millrace_backend_up 1 while connected. Summed over the workers.");
	assert_line("# TYPE millrace_backend_up gauge");
	assert_line("millrace_backend_dropped_queue_full_records_total"
		    "{output=\"shards\",backend=\"10.0.0.1:8125\",transport=\"tcp\"} 14");
	assert_line("# TYPE millrace_backend_dropped_queue_full_records_total counter");
	assert_line("millrace_worker_loops_total{worker=\"0\"} 5");
	assert_line("millrace_worker_loops_total{worker=\"1\"} 6");
}
END_TEST

START_TEST(test_master)
{
	stats_master(stats_master_page(st))->started_us = 1700000000000007;
	stats_slot(stats_master_page(st), 1)->ready_us = 1500000;
	stats_endpoint(stats_master_page(st), 0)->dropped_datagrams = 3;
	publish(0, STATS_MASTER, 0);
	publish(0, STATS_SLOT, 1);
	publish(0, STATS_ENDPOINT, 0);
	take();
	assert_line("millrace_master_started_seconds 1700000000.000007");
	assert_line("process_start_time_seconds 1700000000.000007");
	assert_line("millrace_slot_ready_seconds{worker=\"1\"} 1.500000");
	assert_line(
	    "millrace_endpoint_dropped_datagrams_total{input=\"metrics\",endpoint=\"0.0.0.0:8125\",worker=\"0\"} 3");
	assert_line(
	    "millrace_endpoint_dropped_datagrams_total{input=\"metrics\",endpoint=\"/run/s\",worker=\"all\"} 0");
	assert_line("millrace_monitor_samples_total 0");
	assert_line("millrace_build_info{version=\"1.0 \\\"x\\\"\"} 1");
}
END_TEST

START_TEST(test_escapes)
{
	stats_name(st, STATS_INPUT, 0, "a\"b\\c\nd{}", 0, 1, "udp");
	take();
	assert_line("millrace_input_received_lines_total{input=\"a\\\"b\\\\c\\nd{}\"} 0");
}
END_TEST

START_TEST(test_removed)
{
	stats_name(st, STATS_BACKEND, 0, NULL, 0, 0, NULL);
	take();
	ck_assert_ptr_null(strstr(t.s, "10.0.0.1:8125\",transport"));
	assert_line("millrace_backend_up{output=\"shards\",backend=\"[::1]:8126\",transport=\"udp\"} 0");
	ck_assert_ptr_null(strstr(t.s, "millrace_kafka_")); /* no kafka output, no family without samples */
	ck_assert_ptr_null(strstr(t.s, "millrace_broker_"));
}
END_TEST

/* hash: modulo may have one name for several remotes. */
START_TEST(test_doubles)
{
	for (unsigned i = 0; i < 4; i++)
		stats_name(st, STATS_BACKEND, i, "same", 0, 0, "tcp");
	take();
	assert_line("millrace_backend_up{output=\"shards\",backend=\"same\",transport=\"tcp\"} 0");
	unsigned plain = 0, indexed = 0;
	for (const char *s = t.s; (s = strstr(s, "\nmillrace_backend_up{")); s++) {
		const char *end = strchr(s + 1, '\n'), *index = strstr(s, ",index=\"");
		indexed += index && index < end;
		plain += !index || index > end;
	}
	ck_assert_uint_eq(plain, 1);
	ck_assert_uint_eq(indexed, 3);
}
END_TEST

/* Each worker numbers the brokers for itself. */
START_TEST(test_brokers)
{
	stats_name(st, STATS_KAFKA, 1, "raw", 1, 0, "messages");
	for (unsigned i = 0; i < 2 * STATS_BROKERS_MAX; i++)
		stats_name(st, STATS_BROKER, i, "x", i / STATS_BROKERS_MAX, 0, "");
	for (unsigned slot = 0; slot < 2; slot++)
		for (unsigned i = 0; i < 2; i++) {
			unsigned index = STATS_BROKERS_MAX + i, node = slot ? 7 + i : 8 - i;
			*stats_broker(stats_slot_page(st, slot, 0), index) = (struct stats_broker){
			    .node = node, .is_known = 1, .state = node == 7 ? 2 : 1 + slot, .disconnects = node};
			publish(slot, STATS_BROKER, index);
		}
	take();
	assert_line("millrace_broker_up{output=\"raw\",broker=\"7\"} 2");
	assert_line("millrace_broker_up{output=\"raw\",broker=\"8\"} 1");
	assert_line("millrace_broker_disconnects_total{output=\"raw\",broker=\"7\"} 14");
	assert_line("millrace_broker_disconnects_total{output=\"raw\",broker=\"8\"} 16");
	assert_line("millrace_kafka_partitions{output=\"raw\"} 0");
}
END_TEST

/* The grammar of the format: families in one piece, HELP and TYPE before each, _total exactly for counters, no line
 * twice. */
START_TEST(test_grammar)
{
	char family[160] = "", type[16] = "", *rest = NULL;
	unsigned samples = 0;
	stats_name(st, STATS_KAFKA, 0, "shards", 0, 0, "messages");
	stats_name(st, STATS_DEVICE, 0, "rx_errors", 0, 0, "");
	take();
	char *copy = strdup(t.s);
	for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char twice[600];
		if (strncmp(line, "# HELP ", 7) == 0) {
			ck_assert_int_eq(sscanf(line, "# HELP %159s", family), 1);
			ck_assert_msg(strlen(line) > strlen(family) + 10, "no text: %s", line);
			snprintf(twice, sizeof(twice), "# HELP %s ", family);
			ck_assert_ptr_null(strstr(strstr(t.s, twice) + 1, twice));
			continue;
		}
		if (strncmp(line, "# TYPE ", 7) == 0) {
			char name[160];
			ck_assert_int_eq(sscanf(line, "# TYPE %159s %15s", name, type), 2);
			ck_assert_str_eq(name, family);
			bool is_total = strlen(name) > 6 && strcmp(name + strlen(name) - 6, "_total") == 0;
			ck_assert_int_eq(is_total, strcmp(type, "counter") == 0);
			continue;
		}
		size_t len = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
		ck_assert_msg(len == strlen(family) && strncmp(line, family, len) == 0, "%s is not of %s", line,
			      family);
		ck_assert_msg(line[len] == '{' || line[len] == ' ', "%s", line);
		ck_assert_msg(isdigit((unsigned char)line[strlen(line) - 1]), "%s", line);
		samples++;
	}
	free(copy);
	ck_assert_uint_gt(samples, 150);
	ck_assert_int_eq(t.s[t.len - 1], '\n');
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("prometheus");
	TCase *tc = tcase_create("text");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, test_sums);
	tcase_add_test(tc, test_master);
	tcase_add_test(tc, test_escapes);
	tcase_add_test(tc, test_removed);
	tcase_add_test(tc, test_doubles);
	tcase_add_test(tc, test_brokers);
	tcase_add_test(tc, test_grammar);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
