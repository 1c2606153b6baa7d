/* SPDX-License-Identifier: MIT
 *
 * The statsite output against real sockets: delivery, routing, queues that are full, blocking, UDP, the end. What goes
 * wrong with connections and system calls is in test_statsite_faults.c.
 */
#include "statsite_rig.h"

static uint64_t peer_lines(void)
{
	uint64_t lines = 0;
	for (size_t i = 0; i < rig.n_peers; i++)
		lines += rig.peers[i].lines;
	return lines;
}

static void must_all_have_arrived_once(void)
{
	uint64_t missing, doubled;
	rig_tally(&missing, &doubled);
	MUST(missing == 0 && doubled == 0);
	MUST(RIG_SUM(delivered_records) == rig.serial);
	MUST(rig.out->type->pending(rig.out) == 0);
	MUST(rig_output()->memory_bytes == 0);
}

START_TEST(each_line_reaches_its_backend_once)
{
	rig_init(3);
	rig_listen(0, 3);
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 3);
	for (int i = 0; i < 40; i++) {
		rig_send(500, (unsigned)i % 7 * 9);
		if (i % 4 == 0)
			rig_turn();
	}
	RIG_WAIT(rig.out->type->pending(rig.out) == 0 && peer_lines() == 20000);
	must_all_have_arrived_once();
	for (unsigned i = 0; i < 3; i++) {
		MUST(rig.peers[i].lines == rig_backend(i)->offered_records);
		MUST(rig.peers[i].bytes == rig_backend(i)->delivered_bytes);
		MUST(rig.peers[i].bytes == rig_backend(i)->sent_bytes);
		MUST(rig.peers[i].lines > 5000);
	}
	rig_close();
}
END_TEST

START_TEST(modulo_routes_as_its_map_says)
{
	static uint16_t map[] = {1, 0, 1, 1};
	rig_init(2);
	rig.co.hash = CONF_HASH_MODULO;
	rig.co.shards = map;
	rig.co.n_shards = 4;
	rig_listen(0, 2);
	rig_open();
	uint64_t to[2] = {0, 0};
	rig_batch(400, 0);
	for (unsigned i = 0; i < 400; i++)
		to[map[rig.lines[i].hash % 4]]++;
	rig.out->type->send(rig.out, &rig.batch);
	RIG_WAIT(peer_lines() == 400 && rig.out->type->pending(rig.out) == 0);
	MUST(rig.peers[0].lines == to[0] && rig.peers[1].lines == to[1]);
	rig_close();
}
END_TEST

/* Down at the start, and a name that does not resolve: neither stops the start, lines wait. */
START_TEST(a_backend_that_is_away_is_waited_for)
{
	rig_init(2);
	rig.cb[1].host = (char *)"no-such-host.invalid";
	rig_open();
	rig_send(1000, 0);
	RIG_WAIT(rig_backend(0)->connect_failures >= 2);
	MUST(RIG_SUM(queued_records) == 1000);
	rig_listen(0, 1);
	RIG_WAIT(rig_backend(0)->delivered_records == rig_backend(0)->offered_records);
	MUST(rig.peers[0].lines == rig_backend(0)->offered_records);
	MUST(rig_backend(1)->queued_records == rig_backend(1)->offered_records);
	rig_close();
	MUST(rig.peers[0].broken == 0);
}
END_TEST

/* What is acknowledged is known soon after traffic stops, also when the peer's kernel delays its acknowledgement. */
START_TEST(the_account_settles_quickly)
{
	rig_init(1);
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up);
	uint64_t best_us = UINT64_MAX; /* what else runs on the machine only adds */
	for (int i = 0; i < 20; i++) {
		uint64_t start_us = clock_us();
		rig_send(1 + (unsigned)i * 10, 0);
		RIG_WAIT(rig.out->type->pending(rig.out) == 0);
		best_us = MIN(best_us, clock_us() - start_us);
		rig_rest(3);
	}
	MUST(best_us < 150000);
	must_all_have_arrived_once();
	rig_close();
}
END_TEST

START_TEST(dense_traffic_gathers_and_sparse_does_not)
{
	rig_init(1);
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up);
	rig.out->hold_us = 50000;
	uint64_t start_us = clock_us(), sends = rig_backend(0)->sends;
	rig_send(10, 0);
	rig_turn();
	MUST(rig_backend(0)->queued_records == 10);
	RIG_WAIT(rig_backend(0)->queued_records == 0);
	MUST(clock_us() - start_us >= 45000);
	MUST(rig_backend(0)->sends == sends + 1);
	rig_send(8000, 0); /* more than 64 KiB goes at once */
	MUST(rig_backend(0)->sends > sends + 1);
	MUST(queue_unsent_bytes(&((struct statsite *)rig.out->impl)->backends[0]->queue) < SEND_BYTES);
	rig.out->hold_us = 0;
	rig.out->type->pump(rig.out, clock_us());
	MUST(rig_backend(0)->queued_records == 0);
	rig.out->hold_us = 50000;
	rig_send(1, 0);
	rig.out->type->drain(rig.out); /* waits for nothing */
	MUST(rig_backend(0)->queued_records == 0);
	RIG_WAIT(rig.out->type->pending(rig.out) == 0);
	must_all_have_arrived_once();
	rig_close();
}
END_TEST

/* One backend stalls, its queue fills; the others notice nothing; what was not dropped arrives when it reads again. */
static void stall(enum conf_words overflow, uint64_t limit)
{
	rig_init(3);
	rig.co.overflow = overflow;
	rig.co.queue_limit = limit;
	rig_listen(0, 3);
	rig.peers[1].reads = false;
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 3);
	while (rig_backend(1)->dropped_queue_full_records < 10000 && rig.serial < RIG_SERIALS - 1000) {
		rig_send(500, 300);
		rig_turn();
	}
	MUST(rig_backend(1)->dropped_queue_full_records >= 10000);
	MUST(rig_backend(1)->queued_bytes <= rig.co.queue_limit);
	MUST(rig_backend(0)->dropped_queue_full_records + rig_backend(2)->dropped_queue_full_records == 0);
	rig.peers[1].reads = true;
	RIG_WAIT(rig.out->type->pending(rig.out) == 0 && peer_lines() == RIG_SUM(delivered_records));
	uint64_t missing, doubled;
	rig_tally(&missing, &doubled);
	MUST(doubled == 0 && missing == rig_backend(1)->dropped_queue_full_records);
	MUST(rig.peers[1].broken == 0);
}

START_TEST(full_queue_drops_the_newest)
{
	stall(CONF_OVERFLOW_DROP_NEWEST, 256 * KIB);
	rig_close();
}
END_TEST

START_TEST(full_queue_drops_the_oldest)
{
	stall(CONF_OVERFLOW_DROP_OLDEST, 16 * MIB); /* more than the kernel takes: what is in flight is not dropped */
	uint32_t newest = rig.serial - 1;           /* … of those that were dropped */
	for (; newest > 0 && rig.seen[newest] == 1; newest--)
		;
	MUST(rig.serial - newest > 10000);
	rig_close();
}
END_TEST

/* Down, with drop_oldest: exactly the newest lines that fit are kept. */
START_TEST(drop_oldest_keeps_the_newest)
{
	rig_init(1);
	rig.co.overflow = CONF_OVERFLOW_DROP_OLDEST;
	rig.co.queue_limit = 128 * KIB;
	rig_open();
	rig_send(30000, 10);
	uint64_t kept = rig_backend(0)->queued_records;
	MUST(kept + rig_backend(0)->dropped_queue_full_records == 30000);
	MUST(rig_backend(0)->queued_bytes > 127 * KIB);
	rig_listen(0, 1);
	RIG_WAIT(rig.out->type->pending(rig.out) == 0 && peer_lines() == kept);
	for (uint32_t i = 0; i < rig.serial; i++)
		MUST(rig.seen[i] == (i >= rig.serial - kept));
	rig_close();
}
END_TEST

START_TEST(block_holds_the_rest_and_loses_nothing)
{
	rig_init(2);
	rig.co.overflow = CONF_OVERFLOW_BLOCK;
	rig.co.queue_limit = 128 * KIB;
	rig_listen(0, 2);
	rig.peers[0].reads = false;
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 2);
	for (int times = 0; times < 3; times++) {
		/* the kernels take some before the queue stays full */
		for (unsigned rooms = rig.rooms - 1; rooms != rig.rooms;) {
			rooms = rig.rooms;
			if (rig.batch.taken[0] < rig.batch.n_lines)
				rig.out->type->send(rig.out, &rig.batch);
			while (rig.batch.taken[0] == rig.batch.n_lines) {
				rig_send(500, 500);
				rig_turn();
			}
			rig_rest(100);
		}
		uint64_t held = rig.batch.n_lines - rig.batch.taken[0];
		MUST(rig_output()->held_records == held);
		MUST(rig.out->type->pending(rig.out) >= held);
		rig.out->type->send(rig.out, &rig.batch); /* too early: nothing is counted twice */
		rig_check();
		MUST(rig_output()->offered_records == rig.serial);
		unsigned rooms;
		rig.peers[0].reads = true;
		while (rig.batch.taken[0] < rig.batch.n_lines) {
			rooms = rig.rooms;
			RIG_WAIT(rig.rooms > rooms);
			rig.out->type->send(rig.out, &rig.batch);
			rig_check();
		}
		MUST(rig_output()->held_records == 0);
		rig.peers[0].reads = times == 2;
	}
	RIG_WAIT(rig.out->type->pending(rig.out) == 0 && peer_lines() == rig.serial);
	must_all_have_arrived_once();
	rig_close();
}
END_TEST

/* All queues together are bounded; those with little still get their lines through. */
START_TEST(memory_limit_drops_and_spares_the_others)
{
	rig_init(4);
	rig.co.memory_limit = 2 * MIB;
	rig_listen(3, 1); /* the others are down */
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 1);
	for (int i = 0; i < 200; i++) {
		rig_send(200, 100);
		rig_turn();
		MUST(rig_output()->memory_bytes <= 2 * MIB);
	}
	MUST(RIG_SUM(dropped_memory_records) > 0);
	MUST(rig_backend(3)->dropped_memory_records == 0);
	rig_listen(0, 3);
	RIG_WAIT(rig.out->type->pending(rig.out) == 0 && peer_lines() == RIG_SUM(delivered_records));
	rig_close();
}
END_TEST

/* After a backlog the worker's memory shrinks again. */
START_TEST(memory_goes_back_to_the_kernel)
{
	rig_init(1);
	rig_open();
	rig_send(60000, 500);
	MUST(rig_output()->memory_bytes > 25 * MIB);
	rig_listen(0, 1);
	RIG_WAIT(rig.out->type->pending(rig.out) == 0);
	const struct pool *pool = &((struct statsite *)rig.out->impl)->pool;
	RIG_WAIT(pool->n_dry > 400 && pool->n_free - pool->n_dry <= POOL_KEEP);
	rig_close();
}
END_TEST

START_TEST(udp_datagrams_are_cut_at_line_ends)
{
	rig_init(2);
	rig.cb[0].transport = rig.cb[1].transport = CONF_TRANSPORT_UDP;
	rig_listen(0, 2);
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 2);
	for (int i = 0; i < 100; i++) {
		rig_send(100, (unsigned)i % 50);
		rig_turn();
	}
	RIG_WAIT(peer_lines() == rig.serial);
	must_all_have_arrived_once();
	MUST(rig.peers[0].longest <= 1432 && rig.peers[0].longest > 1300);
	MUST(rig.peers[0].broken + rig.peers[1].broken == 0);
	uint64_t datagrams = rig.peers[0].datagrams + rig.peers[1].datagrams;
	MUST(datagrams < rig.serial / 5);
	rig_send(3, 3000); /* longer than max_datagram: alone */
	RIG_WAIT(peer_lines() == rig.serial);
	MUST(rig.peers[0].datagrams + rig.peers[1].datagrams == datagrams + 3);
	rig_send(1, 65490); /* as long as UDP carries */
	RIG_WAIT(peer_lines() == rig.serial);
	must_all_have_arrived_once();
	rig_close();
}
END_TEST

/* The end at a deadline: each line is in one account, and what the peer got is what is called delivered or unconfirmed.
 */
START_TEST(close_counts_what_is_left)
{
	rig_init(3);
	rig.co.queue_limit = 8 * MIB;
	rig_listen(0, 2);
	rig.peers[1].reads = false;
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 2);
	for (int i = 0; i < 100; i++) {
		rig_send(500, 400);
		rig_turn();
	}
	rig.out->type->drain(rig.out);
	rig_rest(100);
	rig.out->type->close(rig.out);
	rig_check();
	MUST(rig_backend(0)->delivered_records == rig_backend(0)->offered_records);
	MUST(rig_backend(1)->unconfirmed_records > 0);
	MUST(rig_backend(1)->dropped_shutdown_records > 0);
	MUST(rig_backend(2)->dropped_shutdown_records == rig_backend(2)->offered_records);
	rig.peers[1].reads = true;
	for (int i = 0; i < 5000 && rig.peers[1].fd != -1; i++) {
		for (unsigned k = 0; k < 2; k++)
			peer_turn(&rig.peers[k]);
		usleep(1000);
	}
	MUST(rig.peers[0].lines == rig_backend(0)->delivered_records);
	MUST(rig.peers[1].lines >= rig_backend(1)->delivered_records);
	MUST(rig.peers[1].lines <= rig_backend(1)->delivered_records + rig_backend(1)->unconfirmed_records);
	rig_close();
}
END_TEST

START_TEST(close_gives_up_what_was_held_back)
{
	rig_init(1);
	rig.co.overflow = CONF_OVERFLOW_BLOCK;
	rig.co.queue_limit = 128 * KIB;
	rig_open();
	do
		rig_send(500, 500);
	while (rig.batch.taken[0] == rig.batch.n_lines);
	uint64_t held = rig_output()->held_records;
	rig_close();
	MUST(held > 0);
}
END_TEST

START_TEST(a_thousand_backends)
{
	enum { N = 1000 };
	static int fds[N];
	static char hosts[N][20];
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	rig_init(N);
	rig.n_peers = 1;
	rig_listen(0, 1);
	for (unsigned i = 0; i < N; i++) {
		snprintf(hosts[i], sizeof(hosts[i]), "127.0.%u.%u", 1 + i / 250, 1 + i % 250);
		rig.cb[i].host = hosts[i];
		rig.cb[i].port = rig.ports[0];
	}
	rig.n_peers = 0;
	rig_open();
	unsigned n = 0;
	while (n < N || RIG_SUM(up) < N) {
		rig_turn();
		int fd = n < N ? accept4(rig.peers[0].listener, NULL, NULL, SOCK_NONBLOCK) : -1;
		for (; fd != -1; fd = accept4(rig.peers[0].listener, NULL, NULL, SOCK_NONBLOCK))
			fds[n++] = fd;
	}
	for (int i = 0; i < 20; i++) {
		rig_send(2000, 0);
		for (unsigned k = 0; k < N; k++) {
			rig.peers[0].fd = fds[k];
			peer_turn(&rig.peers[0]);
		}
		rig_turn();
	}
	uint64_t start_us = clock_us();
	while (rig.out->type->pending(rig.out) > 0 || rig.peers[0].lines < rig.serial) {
		MUST(clock_us() - start_us < 8000000);
		rig_turn();
		for (unsigned k = 0; k < N; k++) {
			rig.peers[0].fd = fds[k];
			rig.peers[0].part_len = 0;
			peer_turn(&rig.peers[0]);
		}
	}
	must_all_have_arrived_once();
	MUST(rig_output()->memory_bytes == 0);
	rig_close();
	for (unsigned k = 0; k < N; k++)
		close(fds[k]);
	close(rig.peers[0].listener);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("statsite");
	TCase *tc = tcase_create("statsite");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, each_line_reaches_its_backend_once);
	tcase_add_test(tc, modulo_routes_as_its_map_says);
	tcase_add_test(tc, a_backend_that_is_away_is_waited_for);
	tcase_add_test(tc, the_account_settles_quickly);
	tcase_add_test(tc, dense_traffic_gathers_and_sparse_does_not);
	tcase_add_test(tc, full_queue_drops_the_newest);
	tcase_add_test(tc, full_queue_drops_the_oldest);
	tcase_add_test(tc, drop_oldest_keeps_the_newest);
	tcase_add_test(tc, block_holds_the_rest_and_loses_nothing);
	tcase_add_test(tc, memory_limit_drops_and_spares_the_others);
	tcase_add_test(tc, memory_goes_back_to_the_kernel);
	tcase_add_test(tc, udp_datagrams_are_cut_at_line_ends);
	tcase_add_test(tc, close_counts_what_is_left);
	tcase_add_test(tc, close_gives_up_what_was_held_back);
	tcase_add_test(tc, a_thousand_backends);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
