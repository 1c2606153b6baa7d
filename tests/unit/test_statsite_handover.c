/* SPDX-License-Identifier: MIT
 *
 * A statsite output hands its backends over to another one in the same process: whatever the peers do, each line arrives
 * once, in its order, on the same connection.
 */
#include "handover_rig.h"

/* Positions anywhere in lines and in flight, since the peers are slow; many times in a row, while lines come. */
START_TEST(goes_on_at_the_next_byte)
{
	peers_begin(4, 4096);
	for (unsigned k = 0; k < 4; k++)
		rig.peers[k].most = 700 + 1111 * k;
	for (int i = 0; i < 30; i++) {
		rig_send(1000, (unsigned)i * 17 % 300);
		for (int k = 0; k < i % 4; k++)
			rig_turn();
		hand_over_to(&rig.conf);
	}
	for (unsigned k = 0; k < 4; k++)
		rig.peers[k].most = 0;
	RIG_WAIT(all_is_done() && peer_lines() == rig.serial);
	must_be_once(true);
	peers_connect_once(4);
	rig_close();
}
END_TEST

/* The queue stays full from one to the next, in memory of all that were. */
START_TEST(stalled_through_a_chain)
{
	peers_begin(2, 4096);
	rig.peers[0].reads = rig.peers[1].reads = false;
	for (int i = 0; i < 6; i++) {
		for (int k = 0; k < 20; k++)
			rig_send(500, 500);
		rig_rest(20);
		uint64_t held = rig.out->type->pending(rig.out), bytes = rig_output()->memory_bytes;
		uint64_t delivered = SUM_ALL(delivered_records);
		hand_over_to(&rig.conf);
		/* The last acknowledgements may come while it is handed over. */
		delivered = SUM_ALL(delivered_records) - delivered;
		MUST(rig.out->type->pending(rig.out) == held - delivered);
		MUST(delivered != 0 ? rig_output()->memory_bytes <= bytes : rig_output()->memory_bytes == bytes);
	}
	unsigned n_regions = 0;
	struct region *r;
	LIST_FOREACH(r, &pool_now()->regions, next)
	{
		n_regions++;
	}
	MUST(n_regions >= 5);
	rig.peers[0].reads = rig.peers[1].reads = true;
	RIG_WAIT(all_is_done() && peer_lines() == rig.serial);
	must_be_once(true);
	peers_connect_once(2);
	rig_close();
}
END_TEST

START_TEST(backends_without_a_queue)
{
	peers_begin(3, 0);
	rig_send(1000, 0);
	RIG_WAIT(all_is_done() && peer_lines() == 1000);
	for (int i = 0; i < 5; i++) {
		hand_over_to(&rig.conf);
		MUST(channel.n == 3 && RIG_SUM(up) == 3);
		rig_send(100, 0);
		RIG_WAIT(all_is_done() && peer_lines() == rig.serial);
	}
	must_be_once(true);
	peers_connect_once(3);
	rig_close();
}
END_TEST

/* Not connected: the queue goes over, and so does what is known of the trouble. */
START_TEST(away)
{
	rig_init(2);
	rig_open();
	rig_send(3000, 40);
	RIG_WAIT(rig_backend(0)->connect_failures >= 4 && rig_backend(1)->connect_failures >= 4);
	uint64_t down_us = ((struct statsite *)rig.out->impl)->backends[0]->down_us;
	hand_over_to(&rig.conf);
	const struct backend *be = ((struct statsite *)rig.out->impl)->backends[0];
	MUST(be->down_us == down_us && be->delay_us >= 160000);
	MUST(RIG_SUM(queued_records) == 3000 && RIG_SUM(up) == 0 && rig_backend(0)->down_us != 0);
	rig_send(100, 40);
	hand_over_to(&rig.conf);
	rig_listen(0, 2);
	RIG_WAIT(all_is_done() && peer_lines() == 3100);
	must_be_once(true);
	rig_close();
}
END_TEST

/* The peer is gone, with a reset, before, while and after it is handed over: the bounds hold as without. */
START_TEST(lost_connections)
{
	uint64_t missing, doubled;
	peers_begin(2, 4096);
	for (unsigned i = 0; i < 20; i++) {
		rig.peers[0].reads = i % 3 != 0;
		for (unsigned k = 0; k < 10; k++) {
			rig_send(100, 50);
			rig_turn();
		}
		RIG_WAIT(rig.peers[0].fd != -1);
		struct output *next = open_next(&rig.conf, true);
		if (i % 4 == 0)
			peer_hang_up(&rig.peers[0], i % 8 == 0);
		give(2000000);
		if (i % 4 == 1)
			peer_hang_up(&rig.peers[0], true);
		take(next);
		leave_to(next);
		if (i % 4 == 2)
			peer_hang_up(&rig.peers[0], true);
		rig.peers[0].reads = true;
		RIG_WAIT(rig.peers[0].fd != -1 && rig_backend(0)->up);
	}
	RIG_WAIT(all_is_done());
	rig_rest(20);
	rig_tally(&missing, &doubled);
	MUST(SUM_ALL(delivered_records) == rig.serial);
	MUST(missing <= SUM_ALL(at_risk_records) && doubled <= SUM_ALL(resent_records));
	MUST(rig.peers[0].broken == 0 && rig.peers[1].broken == 0 && rig.peers[1].disordered == 0);
	MUST(rig.peers[1].connections == 1);
	rig_close();
}
END_TEST

START_TEST(udp)
{
	rig_init(2);
	rig.cb[0].transport = rig.cb[1].transport = CONF_TRANSPORT_UDP;
	rig_listen(0, 2);
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 2);
	for (int i = 0; i < 20; i++) {
		rig.out->hold_us = i % 2 ? 5000 : 0; /* lines wait in the queue */
		rig_send(100, 20);
		hand_over_to(&rig.conf);
	}
	RIG_WAIT(all_is_done() && peer_lines() == rig.serial);
	must_be_once(true);
	MUST(SUM_ALL(connects) == 2);
	rig_close();
}
END_TEST

/* A backend left the configuration: what was begun there is finished there, the rest goes to those who have its keys. */
START_TEST(a_backend_that_is_no_more)
{
	for (int turn = 0; turn < 2; turn++) {
		peers_begin(3, 4096);
		rig.peers[2].reads = false;
		for (int i = 0; i < 40 || rig_backend(2)->queued_records < 1000; i++) {
			rig_send(500, 400);
			rig_turn();
		}
		uint64_t begun = rig_backend(2)->in_flight_records, queued = rig_backend(2)->queued_records;
		MUST(begun > 0 && queued > 0);
		struct conf_output co = rig.co;
		co.n_backends = 2;
		struct conf cf = {.outputs = &co, .n_outputs = 1, .drain_timeout = 5000000};
		hand_over_to(&cf);
		struct statsite *st = rig.out->impl;
		MUST(!TAILQ_EMPTY(&st->finishing) && rig.out->type->pending(rig.out) >= begun);
		if (turn == 1) { /* … and by the next one, where it has a place again */
			hand_over_to(&cf);
			hand_over_to(&rig.conf);
			MUST(TAILQ_EMPTY(&((struct statsite *)rig.out->impl)->finishing));
		}
		rig_send(100, 0);
		rig.peers[2].reads = true;
		RIG_WAIT(all_is_done() && peer_lines() == rig.serial);
		if (turn == 0)
			RIG_WAIT(rig.peers[2].fd == -1);
		must_be_once(false);
		peers_connect_once(3);
		rig_close();
	}
}
END_TEST

/* What is to be finished and cannot be: counted, and the lines that nobody has go to others when the connection breaks. */
START_TEST(finishing_fails)
{
	uint64_t missing, doubled;
	for (int turn = 0; turn < 2; turn++) {
		peers_begin(2, 4096);
		rig.peers[1].reads = false;
		for (int i = 0; i < 40; i++)
			rig_send(500, 400);
		rig_rest(50);
		struct conf_output co = rig.co;
		co.n_backends = 1;
		struct conf cf = {.outputs = &co, .n_outputs = 1, .drain_timeout = 100000};
		hand_over_to(&cf);
		uint64_t finishing = rig.out->type->pending(rig.out);
		MUST(finishing > 0);
		if (turn == 0)
			peer_hang_up(&rig.peers[1], true);
		RIG_WAIT(all_is_done());
		rig.peers[1].reads = true;
		rig_rest(100);
		rig_tally(&missing, &doubled);
		if (turn == 0) {
			MUST(SUM_ALL(resent_records) > 0 && SUM_ALL(unconfirmed_records) == 0);
			MUST(missing <= SUM_ALL(at_risk_records) && doubled <= SUM_ALL(resent_records));
		} else {
			MUST(SUM_ALL(unconfirmed_records) > 0 && missing <= SUM_ALL(unconfirmed_records));
		}
		MUST(SUM_ALL(delivered_records) + SUM_ALL(unconfirmed_records) == rig.serial);
		rig_close();
	}
}
END_TEST

/* A slot ends: a worker that serves gets its connections, too, and finishes them beside its own. */
START_TEST(to_one_that_serves)
{
	peers_begin(3, 4096);
	for (unsigned k = 0; k < 3; k++)
		rig.peers[k].reads = false;
	for (int i = 0; i < 40; i++)
		rig_send(500, 400);
	rig_rest(50);
	struct output *next = open_next(&rig.conf, false), *last = rig.out;
	rig.out = next;
	RIG_WAIT(RIG_SUM(up) == 3);
	rig_send(1000, 100);
	rig.out = last;
	give(2000000);
	MUST(last->type->pending(last) == 0);
	take(next);
	leave_to(next);
	MUST(RIG_SUM(up) == 3);
	for (unsigned k = 0; k < 3; k++)
		rig.peers[k].reads = true;
	RIG_WAIT(all_is_done() && peer_lines() == rig.serial);
	must_be_once(false);
	MUST(RIG_SUM(up) == 3 && SUM_ALL(connects) == 6 && SUM_ALL(disconnects) == 0);
	rig_close();
}
END_TEST

/* The successor may hold less than is there: nothing of it is lost, and backends with little still get their lines. */
START_TEST(less_memory)
{
	peers_begin(2, 4096);
	rig.peers[0].reads = false;
	for (int i = 0; i < 60; i++) {
		rig_send(500, 400);
		rig_turn();
	}
	RIG_WAIT(rig_backend(1)->queued_records + rig_backend(1)->in_flight_records == 0);
	struct conf_output co = rig.co;
	co.memory_limit = MIB;
	struct conf cf = {.outputs = &co, .n_outputs = 1, .drain_timeout = 5000000};
	hand_over_to(&cf);
	MUST(rig_output()->memory_bytes > 3 * MIB && RIG_SUM(dropped_memory_records) == 0);
	for (int i = 0; i < 10; i++) {
		rig_send(20, 100);
		rig_turn();
	}
	RIG_WAIT(rig_backend(1)->delivered_records > 0);
	MUST(rig_backend(1)->dropped_memory_records == 0);
	rig.peers[0].reads = true;
	RIG_WAIT(all_is_done());
	MUST(peer_lines() + RIG_SUM(dropped_memory_records) == rig.serial);
	rig_close();
}
END_TEST

/* Nobody empties the channel: what does not fit stays here, and both halves arrive. */
START_TEST(a_full_channel)
{
	enum { N = 12 };
	peers_begin(N, 4096);
	int small = 1; /* the kernel's least: a few messages */
	for (unsigned k = 0; k < N; k++)
		rig.peers[k].reads = false;
	for (int i = 0; i < 20; i++)
		rig_send(500, 400);
	struct conf cf = {.outputs = &rig.co, .n_outputs = 1, .drain_timeout = 100000};
	struct output *next = open_next(&cf, true), *last = rig.out;
	channel_open(false);
	setsockopt(channel.fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	uint64_t start_us = clock_us();
	last->type->hand_over(last, channel.fds[0], clock_us() + 20000);
	MUST(clock_us() - start_us < 5000000);
	rig_check();
	uint64_t stays = last->type->pending(last);
	MUST(stays > 0 && stays < rig.serial && RIG_SUM(passed_records) == rig.serial - RIG_SUM(delivered_records) - stays);
	channel_close(false);
	take(next);
	for (unsigned k = 0; k < N; k++)
		rig.peers[k].reads = true;
	last->type->drain(last);
	uint64_t until_us = clock_us() + 8000000;
	while (last->type->pending(last) > 0 || next->type->pending(next) > 0) {
		MUST(clock_us() < until_us);
		rig_turn();
		next->type->pump(next, clock_us());
	}
	leave_to(next);
	/* memory that was announced for a backend that did not come is let go */
	RIG_WAIT(all_is_done() && peer_lines() == rig.serial && LIST_EMPTY(&pool_now()->regions));
	must_be_once(true);
	rig_close();
}
END_TEST

/* No descriptor was free for the connection, or for the memory. */
START_TEST(descriptors_do_not_come)
{
	uint64_t missing, doubled;
	for (uint32_t type = HANDOVER_QUEUES; type <= HANDOVER_BACKEND; type++) {
		peers_begin(2, 4096);
		rig.peers[0].reads = rig.peers[1].reads = false;
		for (int i = 0; i < 40; i++)
			rig_send(500, 400);
		rig_rest(20);
		struct output *next = open_next(&rig.conf, true);
		give(2000000);
		for (unsigned i = 0; i < channel.n; i++) {
			if (((struct handover *)(void *)channel.messages[i].bytes)->type != type)
				continue;
			close(channel.messages[i].fd);
			channel.messages[i].fd = -1;
		}
		take(next);
		leave_to(next);
		rig.peers[0].reads = rig.peers[1].reads = true;
		RIG_WAIT(all_is_done());
		rig_rest(20);
		rig_tally(&missing, &doubled);
		MUST((SUM_ALL(dropped_memory_records) > 0) == (type == HANDOVER_QUEUES));
		MUST((SUM_ALL(resent_records) > 0) == (type == HANDOVER_BACKEND));
		MUST(missing <= SUM_ALL(dropped_memory_records) + SUM_ALL(at_risk_records));
		MUST(doubled <= SUM_ALL(resent_records));
		MUST(SUM_ALL(delivered_records) + SUM_ALL(dropped_memory_records) == rig.serial);
		rig_close();
	}
}
END_TEST

/* A key ends where its input's protocol says. */
START_TEST(keys_end_as_their_protocol_says)
{
	static const struct {
		const char *line;
		unsigned statsd, carbon, both;
	} cases[] = {
	    {"a.b:1|c", 3, 7, 3}, {"a b:1|c", 3, 1, 3}, {"a:b 1 2", 1, 3, 3}, {"a 1 2", 5, 1, 1}, {"a", 1, 1, 1},
	};
	rig_init(16);
	rig_open();
	struct statsite *st = rig.out->impl;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++)
		for (int k = 1; k < 4; k++) {
			const char *line = cases[i].line;
			unsigned len = k == 1 ? cases[i].statsd : k == 2 ? cases[i].carbon : cases[i].both;
			rig.out->is_statsd = k & 1;
			rig.out->is_carbon = k & 2;
			MUST(statsite_owner(st, line, strlen(line)) ==
			     st->backends[shards_backend(st->shards,
							 hash_murmur3_32(line, len, HASH_STATSRELAY_SEED))]);
		}
	rig_close();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("statsite_handover");
	TCase *tc = tcase_create("handover");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, keys_end_as_their_protocol_says);
	tcase_add_test(tc, backends_without_a_queue);
	tcase_add_test(tc, goes_on_at_the_next_byte);
	tcase_add_test(tc, stalled_through_a_chain);
	tcase_add_test(tc, away);
	tcase_add_test(tc, udp);
	tcase_add_test(tc, lost_connections);
	tcase_add_test(tc, a_backend_that_is_no_more);
	tcase_add_test(tc, finishing_fails);
	tcase_add_test(tc, to_one_that_serves);
	tcase_add_test(tc, less_memory);
	tcase_add_test(tc, a_full_channel);
	tcase_add_test(tc, descriptors_do_not_come);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
