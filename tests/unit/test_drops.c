/* SPDX-License-Identifier: MIT
 *
 * test_drops: the path from the wire to the backends: what came and was lost at each step, the last ten seconds, the
 * worst step, and the advice for it, each from pages that this test fills.
 */
#include "suite.h"
#include "../../src/report/drops_private.h"
#include "../../src/stats/stats_private.h"
#include <string.h>

enum { SLOTS = 4 };

static struct err err;
static struct stats *st;
static struct stats_copy *c;
static struct report_drops *d;
static struct text t;
static struct net_host host;
static struct proc_usage usage[SLOTS];
static uint64_t now_us;

static void setup(void)
{
	st = stats_new(SLOTS, SLOTS, &err);
	c = stats_copy_new(st);
	report_drops_name(st);
	d = report_drops_new(st);
	ck_assert(st && c && d);
	stats_name(st, STATS_INPUT, 0, "metrics", 0, 1, "udp");
	stats_name(st, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	stats_name(st, STATS_BACKEND, 0, "10.0.0.1:8125", 0, 0, "tcp");
	stats_name(st, STATS_BACKEND, 1, "10.0.0.2:8125", 0, 0, "tcp");
	for (unsigned i = 0; i < SLOTS; i++) {
		char unit[16];
		snprintf(unit, sizeof(unit), "slot %u", i);
		stats_name(st, STATS_ENDPOINT, i, "0.0.0.0:8125", 0, 0, unit);
		*stats_endpoint(stats_master_page(st), i) = (struct stats_endpoint){
		    .inode = 100 + i, .receive_buffer_bytes = 32 * MIB, .asked_buffer_bytes = 32 * MIB};
		*stats_slot(stats_master_page(st), i) = (struct stats_slot){.pid = 70 + i, .state = 2};
		usage[i] = (struct proc_usage){.started_ticks = 1};
	}
	host = (struct net_host){.has_udp = true, .has_interfaces = true, .n_interfaces = 1};
	strcpy(host.interfaces[0].name, "eth7");
	now_us = 1000000;
}

static void teardown(void)
{
	text_free(&t);
	report_drops_free(d);
	stats_copy_free(c);
	stats_free(st);
}

static void capture_make(void)
{
	stats_name(st, STATS_INPUT, 0, "tap", 0, 1, "capture");
	for (unsigned i = 0; i < SLOTS; i++) {
		char unit[16];
		snprintf(unit, sizeof(unit), "slot %u", i);
		stats_name(st, STATS_ENDPOINT, i, "eth1", 0, 0, unit);
		*stats_endpoint(stats_master_page(st), i) =
		    (struct stats_endpoint){.receive_buffer_bytes = 16 * MIB, .is_up = 1};
	}
}

static void kafka_make(void)
{
	stats_name(st, STATS_OUTPUT, 0, "raw", 0, 0, "packets");
	stats_name(st, STATS_BACKEND, 0, "topic", 0, 0, "kafka");
	stats_name(st, STATS_KAFKA, 0, "raw", 0, 0, "messages");
	stats_name(st, STATS_BACKEND, 1, NULL, 0, 0, NULL);
}

/* Publishes everything that was written, and samples it `seconds` after the last sample. */
static void sample(unsigned seconds)
{
	struct stats_page *m = stats_master_page(st);
	for (unsigned slot = 0; slot < SLOTS; slot++) {
		struct stats_page *p = stats_slot_page(st, slot, 0);
		for (unsigned i = 0; i < 2; i++) {
			stats_touch(p, STATS_BACKEND, i);
			stats_touch(p, STATS_INPUT, i);
			stats_touch(p, STATS_OUTPUT, i);
			stats_touch(p, STATS_KAFKA, i);
		}
		stats_touch(m, STATS_ENDPOINT, slot);
		stats_touch(m, STATS_SLOT, slot);
		stats_publish(p);
	}
	stats_publish(m);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	now_us += seconds * UINT64_C(1000000);
	report_drops_add(
	    d, c,
	    &(struct report_seen){.host = &host, .usage = usage, .now_us = now_us, .now_real_us = 5000000000 + now_us});
}

static struct stats_input *input(unsigned slot)
{
	return stats_input(stats_slot_page(st, slot, 0), 0);
}

static struct stats_backend *backend(unsigned slot, unsigned i)
{
	return stats_backend(stats_slot_page(st, slot, 0), i);
}

static struct stats_endpoint *endpoint_of(unsigned slot)
{
	return stats_endpoint(stats_master_page(st), slot);
}

static struct report_step_sum step_of_path(enum report_step step, const char *unit)
{
	struct report_step_sum steps[STATS_PATH_MAX];
	unsigned n = report_drops_steps(d, steps);
	for (unsigned i = 0; i < n; i++)
		if (steps[i].step == step && strcmp(steps[i].unit, unit) == 0)
			return steps[i];
	ck_abort_msg("no step %s of %s", report_step_word(step), unit);
	return steps[0];
}

#define ASSERT_STEP(step, unit, came_, lost_, came_10s_, lost_10s_)                                                    \
	do {                                                                                                           \
		struct report_step_sum s = step_of_path(REPORT_STEP_##step, unit);                                       \
		ck_assert_uint_eq(s.came, came_);                                                                      \
		ck_assert_uint_eq(s.lost, lost_);                                                                      \
		ck_assert_uint_eq(s.came_10s, came_10s_);                                                              \
		ck_assert_uint_eq(s.lost_10s, lost_10s_);                                                              \
	} while (0)

static void assert_advice(const char *part)
{
	text_free(&t);
	report_drops_advice(d, c, &t);
	const char *found = t.s ? t.s : "";
	ck_assert_msg(part ? strstr(found, part) != NULL : !found[0], "\"%s\" is not in \"%s\"", part ? part : "", found);
}

/* -- the path ------------------------------------------------------------------------------------------------------ */

START_TEST(nothing)
{
	sample(0);
	ck_assert_uint_eq(report_drops_window_us(d), 0);
	ASSERT_STEP(SOCKET, "datagrams", 0, 0, 0, 0);
	ASSERT_STEP(BACKEND, "lines", 0, 0, 0, 0);
	assert_advice(NULL);
	report_drops_text(d, c, &t);
	ck_assert_ptr_nonnull(strstr(t.s, "\nNothing was lost.\n"));
	ck_assert_ptr_null(strstr(t.s, "kafka")); /* steps that this configuration does not have */
	ck_assert_ptr_null(strstr(t.s, "ring"));
}
END_TEST

START_TEST(sums_and_window)
{
	for (unsigned i = 0; i < 30;
	     i++) { /* 100 datagrams a second to each slot; slot 2 loses 10 of them in seconds 5 and 25 */
		for (unsigned slot = 0; slot < SLOTS; slot++) {
			bool loses = slot == 2 && (i == 5 || i == 25);
			input(slot)->received_datagrams += loses ? 90 : 100;
			endpoint_of(slot)->dropped_datagrams += loses ? 10 : 0;
			input(slot)->received_lines += 50;
			input(slot)->invalid_lines += slot == 3 && i == 5 ? 4 : 0;
		}
		host.udp.rcvbuf_errors += 3;
		host.udp6.rcvbuf_errors += 1;
		host.udp.in_datagrams += 400;
		host.udp.in_errors += 4;
		host.interfaces[0].rx_packets += 1000;
		host.interfaces[0].rx_missed += i;
		sample(1);
	}
	ck_assert_uint_eq(report_drops_window_us(d), 10000000);
	ASSERT_STEP(SOCKET, "datagrams", 12000, 20, 4000, 10);
	ASSERT_STEP(INVALID, "lines", 6000, 4, 2000, 0);
	ASSERT_STEP(HOST, "datagrams", 30 * 404, 120, 4040, 40);
	ASSERT_STEP(INTERFACE, "packets", 30000 + 435, 435, 10000 + 245, 245);
	const struct report_drop *rows;
	unsigned n = report_drops_all(d, &rows), found = 0;
	for (unsigned i = 0; i < n; i++) {
		if (strcmp(rows[i].name, "dropped_datagrams") == 0) {
			found++;
			ck_assert_uint_eq(rows[i].place, 3);
			ck_assert_uint_eq(rows[i].place_10s, 3);
		} else if (strcmp(rows[i].name, "invalid_lines") == 0) {
			found++;
			ck_assert_uint_eq(rows[i].place, 1);
			ck_assert_uint_eq(rows[i].place_10s, 0);
		}
	}
	ck_assert_uint_eq(found, 2);
}
END_TEST

/* Every LOSS of counter.def is on the path, so a new one cannot be forgotten. */
START_TEST(all_losses)
{
	const struct report_drop *rows;
	unsigned n = report_drops_all(d, &rows), losses = 0;
	ck_assert_uint_lt(n, STATS_PATH_MAX);
	for (unsigned i = 0; i < stats_table_rows(); i++) {
		const struct stats_field *f = &stats_table[i];
		bool found = false;
		for (unsigned k = 0; k < n; k++)
			found |= rows[k].scope == f->scope && strcmp(rows[k].name, f->name) == 0 &&
				 rows[k].is_hint == (f->kind == STATS_KIND_HINT);
		losses += f->kind == STATS_KIND_LOSS;
		if (f->kind == STATS_KIND_LOSS || f->kind == STATS_KIND_HINT)
			ck_assert_msg(found, "%s is not on the path", f->name);
	}
	ck_assert_uint_gt(losses, 20);
	ck_assert_uint_eq(stats_entries(st, STATS_PATH), n);
	ck_assert_str_eq(stats_entry(st, STATS_PATH, 0)->name, "interface/rx_missed_packets");
}
END_TEST

START_TEST(packets)
{
	capture_make();
	kafka_make();
	*endpoint_of(0) = (struct stats_endpoint){.receive_buffer_bytes = 1,
						  .interface_packets = 1000,
						  .dropped_missed_packets = 20,
						  .passed_packets = 300,
						  .dropped_interface_packets = 9,
						  .dropped_ring_packets = 6};
	*endpoint_of(1) = (struct stats_endpoint){
	    .receive_buffer_bytes = 1, .passed_packets = 200, .dropped_ring_packets = 4};
	input(0)->received_packets = 490;
	backend(0, 0)->offered_records = 490;
	backend(0, 0)->failed_records = 5;
	stats_kafka(stats_slot_page(st, 0, 0), 0)->failed_timed_out_records = 5;
	backend(0, 0)->dropped_memory_records = 7;
	sample(0);
	ASSERT_STEP(CARD, "packets", 1020, 20, 0, 0);
	ASSERT_STEP(FILTER, "packets", 1000, 0, 0, 0);
	ck_assert_uint_eq(d->left_out_packets, 500);
	ASSERT_STEP(RING, "packets", 500, 10, 0, 0);
	ASSERT_STEP(WORKER, "packets", 490, 0, 0, 0);
	ASSERT_STEP(KAFKA_QUEUE, "packets", 490, 7, 0, 0);
	ASSERT_STEP(DELIVERY, "packets", 490, 5, 0, 0); /* once: the reason stands for failed_records */
}
END_TEST

START_TEST(dpdk)
{
	capture_make();
	for (unsigned i = 0; i < SLOTS; i++)
		*endpoint_of(i) = (struct stats_endpoint){.free_mbufs = 100};
	endpoint_of(0)->interface_packets = 1000; /* what was missed and had no buffer among them */
	endpoint_of(0)->dropped_missed_packets = 30;
	endpoint_of(0)->dropped_no_mbuf_packets = 2;
	endpoint_of(0)->dropped_error_packets = 5;
	sample(0);
	ASSERT_STEP(CARD, "packets", 1005, 35, 0, 0);
	ASSERT_STEP(RING, "packets", 970, 2, 0, 0);
	ASSERT_STEP(FILTER, "packets", 970, 0, 0, 0);
}
END_TEST

/* What one has written, another reads: the last ten seconds, and who is to blame for them. */
START_TEST(written_and_recalled)
{
	sample(0);
	input(1)->received_datagrams = 900;
	endpoint_of(1)->dropped_datagrams = 100;
	usage[1].cpu_us = 990000;
	sample(1);
	report_drops_write(d, stats_monitor_page(st));
	stats_publish(stats_monitor_page(st));
	struct report_drops *monitor = d;
	d = report_drops_new(st);
	sample(1);
	ck_assert_uint_eq(report_drops_window_us(d), 0);
	ck_assert(report_drops_recall(d, c));
	ck_assert_uint_eq(report_drops_window_us(d), 1000000);
	ASSERT_STEP(SOCKET, "datagrams", 1000, 100, 1000, 100);
	assert_advice("in the last seconds: worker 1 reads 100 % of input metrics, so few senders send nearly all of "
		      "it: spread: packet");
	sample(6); /* that monitor has died */
	ck_assert(!report_drops_recall(d, c));
	report_drops_free(monitor);
}
END_TEST

/* -- advice -------------------------------------------------------------------------------------------------------- */

/* All slots read alike, slot 0 drops. */
static void sockets_drop(void)
{
	sample(0);
	for (unsigned i = 0; i < SLOTS; i++)
		input(i)->received_datagrams = 1000;
	endpoint_of(0)->dropped_datagrams = 500;
}

START_TEST(advice_buffer)
{
	sockets_drop();
	endpoint_of(0)->receive_buffer_bytes = 208 * KIB;
	sample(1);
	assert_advice("raise net.core.rmem_max to 33554432: asked 32 MiB, got 208 KiB");
	endpoint_of(0)->receive_buffer_bytes = 32 * MIB;
	sample(1);
	assert_advice("bursts overrun the receive_buffer of 32 MiB of socket metrics/0.0.0.0:8125 slot 0 (its worker "
		      "used 0 % of a CPU");
}
END_TEST

START_TEST(advice_cpu)
{
	sockets_drop();
	usage[0].cpu_us = 990000;
	endpoint_of(0)->receive_buffer_bytes = 208 * KIB; /* a larger one would not help for long */
	sample(1);
	assert_advice("worker 0 is at 99 % CPU: add workers");
	sample(1); /* of the last ten seconds, not of the last alone */
	assert_advice("worker 0 is at 99 % CPU: add workers");
	usage[0] = (struct proc_usage){.started_ticks = 2,
				       .cpu_us = 5000000}; /* a successor: what it used before is not known */
	sample(1);
	ck_assert_int_eq(d->cpu_percent[0], -1);
}
END_TEST

START_TEST(advice_skew)
{
	sockets_drop();
	for (unsigned i = 0; i < SLOTS; i++)
		input(i)->received_datagrams = i == 0 ? 970 : 10;
	usage[0].cpu_us = 990000;
	sample(1);
	assert_advice("worker 0 reads 97 % of input metrics, so few senders send nearly all of it: spread: packet");
}
END_TEST

START_TEST(advice_stopped)
{
	sockets_drop();
	usage[0].is_stopped = true;
	sample(1);
	assert_advice("worker 0 (pid 70) is stopped by a signal and reads nothing: kill -CONT 70");
	usage[0].is_stopped = false;
	*stats_slot(stats_master_page(st), 0) = (struct stats_slot){.state = 4};
	sample(1);
	assert_advice("worker 0 is failed: the log says why it does not run");
}
END_TEST

START_TEST(advice_held)
{
	sockets_drop();
	input(0)->held = 1;
	stats_output(stats_slot_page(st, 0, 0), 0)->held_records = 3;
	usage[0].cpu_us = 990000;
	sample(1);
	assert_advice("output shards is full and holds input metrics back (overflow: block)");
}
END_TEST

START_TEST(advice_backend)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		backend(i, 0)->offered_records = backend(i, 1)->offered_records = 1000;
		backend(i, 1)->dropped_queue_full_records = i == 3 ? 10 : 0;
		backend(i, 0)->up = backend(i, 1)->up = 1;
	}
	backend(1, 1)->queued_records = 17;
	sample(0);
	assert_advice("since the start: backend shards/10.0.0.2:8125 is connected and too slow (17 records wait");
	backend(2, 1)->up = 0;
	backend(2, 1)->down_us = 5000000000 + now_us - 12000000;
	sample(0);
	assert_advice("backend shards/10.0.0.2:8125 is down for 12 s");
	backend(0, 0)->unconfirmed_records = 4000;
	sample(0);
	assert_advice("backend lost 50.00 % (4000 lines) since the start: "
	              "shards/10.0.0.1:8125: Sent, but whether they arrived");
	backend(0, 0)->unconfirmed_records = 0;
	backend(0, 0)->dropped_shutdown_records = 4000;
	sample(0);
	assert_advice("raise drain_timeout");
	backend(0, 0)->dropped_shutdown_records = 0;
	backend(0, 0)->lost_at_death_records = 4000;
	sample(0);
	assert_advice("workers died with records for shards/10.0.0.1:8125 in hand");
}
END_TEST

START_TEST(advice_kafka)
{
	kafka_make();
	backend(0, 0)->offered_records = 100;
	backend(0, 0)->dropped_memory_records = 10;
	backend(0, 0)->queued_records = 77;
	for (unsigned i = 0; i < SLOTS; i++)
		backend(i, 0)->up = 1;
	sample(0);
	assert_advice("kafka_queue lost 10.00 % (10 packets) since the start: "
	              "the queue of Kafka output raw/topic is full: its "
		      "brokers take less "
		      "than comes (77 records wait)");
	for (unsigned i = 0; i < SLOTS; i++) {
		backend(i, 0)->up = 0;
		backend(i, 0)->down_us = 5000000000 + now_us - 3000000;
	}
	sample(0);
	assert_advice("no broker of raw/topic can be reached for 3 s");
	stats_kafka(stats_slot_page(st, 0, 0), 0)->failed_too_large_records = 50;
	sample(0);
	assert_advice("delivery lost 50.00 % (50 packets) since the start: raw: Failed: larger than message.max.bytes");
}
END_TEST

START_TEST(advice_packets)
{
	capture_make();
	sample(0);
	endpoint_of(1)->passed_packets = 1000;
	endpoint_of(1)->dropped_ring_packets = 100;
	for (unsigned i = 0; i < SLOTS; i++)
		input(i)->received_packets = 100;
	sample(1);
	assert_advice("ring lost 10.00 % (100 packets) in the last seconds: "
	              "ring tap/eth1 slot 1 of 16 MiB is too small for the "
		      "bursts: raise ring_size");
	usage[1].cpu_us += 950000;
	sample(1);
	assert_advice("worker 1 is at 95 % CPU: add workers, or narrow the filter");
	host.interfaces[0].rx_packets = 100;
	host.interfaces[0].rx_missed = 100;
	sample(1);
	assert_advice(
	    "interface lost 50.00 % (100 packets) in the last seconds: "
	              "interface eth7 lost 100 packets before the kernel had them "
	    "(rx_missed_packets): larger rings (ethtool -g eth7");
	endpoint_of(0)->dropped_fifo_packets = 1000;
	sample(20); /* a window of its own: only what is known since the start */
	assert_advice("since the start: tap/eth1 slot 0: Packets that overran the network card");
}
END_TEST

START_TEST(advice_worker)
{
	input(0)->received_lines = 10;
	input(0)->lost_at_death_lines = 2;
	stats_slot(stats_master_page(st), 0)->deaths = 1;
	sample(0);
	assert_advice(
	    "worker lost 20.00 % (2 lines) since the start: workers ended unasked 1 time since the start: the log says");
	input(0)->invalid_lines = 5;
	sample(0);
	assert_advice("invalid lost 50.00 % (5 lines) since the start: metrics: Lines that no backend would understand:");
}
END_TEST

/* The host's loss before we ran, and that of others, is nobody's worst. */
START_TEST(advice_not_ours)
{
	host.udp.in_errors = host.udp.rcvbuf_errors = 1000;
	host.interfaces[0].rx_missed = 1000;
	sample(0);
	assert_advice(NULL);
	host.udp.in_errors = host.udp.rcvbuf_errors = 2000;
	sample(1);
	assert_advice(NULL);
}
END_TEST

START_TEST(json)
{
	sockets_drop();
	struct net_udp_socket sockets[] = {{.inode = 7, .dropped = 1},
					   {.inode = 100, .queue_bytes = 5, .dropped = 500}};
	host.sockets = sockets;
	host.n_sockets = 2;
	sample(1);
	report_drops_json(d, c, &t);
	ck_assert(!t.failed);
	static const char *const parts[] = {
	    "{\"window_us\":1000000,\n",
	    "\n{\"step\":\"socket\",\"unit\":\"datagrams\",\"since\":\"start\",\"in\":4500,\"lost\":500,\"percent\":11."
	    "1111,"
	    "\"in_10s\":4500,\"lost_10s\":500,\"percent_10s\":11.1111,",
	    "{\"name\":\"dropped_datagrams\",\"is_hint\":false,\"lost\":500,\"lost_10s\":500,\"most_at\":\"metrics/"
	    "0.0.0.0:8125 slot "
	    "0\"}",
	    "{\"inode\":100,\"dropped\":500,\"queue_bytes\":5,\"receive_buffer_bytes\":33554432,",
	    "\"proc_dropped\":500,",
	    "\"proc_dropped\":null,",
	    "\n\"worst_10s\":{\"step\":\"socket\",\"unit\":\"datagrams\",\"lost\":500,\"percent\":11.1111}",
	    "\n\"advice\":\"The worst: socket lost",
	};
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		ck_assert_msg(strstr(t.s, parts[i]) != NULL, "%s\nis not in\n%s", parts[i], t.s);
	text_free(&t);
	report_drops_text(d, c, &t);
	ck_assert_ptr_nonnull(strstr(t.s, "  metrics/0.0.0.0:8125 slot 0: 500 dropped, 5 B wait, buffer 32 MiB\n"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("drops");
	TCase *tc = tcase_create("drops");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, nothing);
	tcase_add_test(tc, sums_and_window);
	tcase_add_test(tc, all_losses);
	tcase_add_test(tc, packets);
	tcase_add_test(tc, dpdk);
	tcase_add_test(tc, written_and_recalled);
	tcase_add_test(tc, advice_buffer);
	tcase_add_test(tc, advice_cpu);
	tcase_add_test(tc, advice_skew);
	tcase_add_test(tc, advice_stopped);
	tcase_add_test(tc, advice_held);
	tcase_add_test(tc, advice_backend);
	tcase_add_test(tc, advice_kafka);
	tcase_add_test(tc, advice_packets);
	tcase_add_test(tc, advice_worker);
	tcase_add_test(tc, advice_not_ours);
	tcase_add_test(tc, json);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
