/* SPDX-License-Identifier: MIT
 *
 * What statsite takes over is not believable, is not there, or is large: a thousand backends, 256 MiB of queue.
 */
#include "handover_rig.h"

static uint64_t seed;

static uint64_t rnd(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

/* Some bytes of a message, from its number of records on, are others. */
static void spoil_message(char *bytes, size_t len)
{
	size_t from = rnd(4) ? sizeof(struct handover) : offsetof(struct handover, records);
	if (((struct handover *)(void *)bytes)->type == HANDOVER_BACKEND && rnd(8))
		from += 2 * HANDOVER_NAME_BYTES;
	for (uint64_t n = 1 + rnd(3); n > 0; n--) {
		size_t most = rnd(2) ? 120 : MESSAGE_BYTES, at = from + rnd(MIN(len - from, most));
		if (rnd(3))
			bytes[at] = (char)rnd(256);
		else
			memset(bytes + at / 8 * 8, rnd(2) ? 0xff : 0, 8);
	}
}

/* … of what tells of the chunks, and of the lines. */
static void spoil_memory(int fd)
{
	uint64_t slabs_bytes = pool_now()->own.size, noise;
	for (int k = 0; rnd(2) && k < 3; k++) {
		noise = rnd(UINT64_MAX);
		MUST(pwrite(fd, &noise, 1 + rnd(8), (off_t)(slabs_bytes + rnd(1000))) > 0);
	}
	for (int k = 0; k < 2000; k++)
		MUST(pwrite(fd, rnd(2) ? "\n" : "x", 1, (off_t)rnd(40 * POOL_SLAB_BYTES)) == 1);
}

/* Whatever bytes come, the accounts of whoever takes them balance, and it lives. */
START_TEST(hostile_messages)
{
	rig_init(3);
	rig.cb[2].transport = CONF_TRANSPORT_UDP;
	rig.receive_buffer = 4096;
	rig_listen(0, 3);
	seed = 0x9e3779b97f4a7c15u * (uint64_t)(_i + 1);
	rig_open();
	MUST(freopen("/dev/null", "w", stderr) != NULL); /* each refusal is a line of the log */
	for (int k = 0; k < 3; k++)
		rig.peers[k].reads = false;
	RIG_WAIT(RIG_SUM(up) == 3);
	for (int i = 0; i < 8; i++)
		rig_send(500, 200);
	rig_turn();
	rig_send(500, 200);
	struct conf_output co = rig.co;
	co.overflow = rnd(2) ? CONF_OVERFLOW_DROP_OLDEST : CONF_OVERFLOW_DROP_NEWEST;
	co.queue_limit = 64 * KIB << rnd(10);
	co.n_backends = 3 - rnd(2);
	struct conf cf = {.outputs = &co, .n_outputs = 1, .drain_timeout = 1000000};
	struct output *next = open_next(&cf, rnd(4) > 0);
	give(2000000);
	for (unsigned i = 0; i < channel.n; i++) {
		if (rnd(2))
			spoil_message(channel.messages[i].bytes, channel.messages[i].len);
		if (((struct handover *)(void *)channel.messages[i].bytes)->type == HANDOVER_QUEUES && rnd(2))
			spoil_memory(channel.messages[i].fd);
	}
	take(next);
	leave_to(next);
	for (int i = 0; i < 10; i++) {
		rig_send(300, 200);
		rig_turn();
		if (i == 5 && rig.peers[0].fd != -1)
			peer_hang_up(&rig.peers[0], true);
	}
	hand_over_to(&cf); /* what was taken fits together */
	rig_rest(30);
	rig_close();
}
END_TEST

/* Nobody can cut the memory under its reader. What a message says of it and is not there is counted, exactly. */
START_TEST(handed_lines_that_are_not_there_are_counted)
{
	uint64_t missing, doubled;
	unsigned n_spoiled = 0;
	rig_init(2);
	rig_open();
	rig_send(1000, 0);
	struct output *next = open_next(&rig.conf, true);
	give(2000000);
	MUST(rig.out->type->pending(rig.out) == 0 && RIG_SUM(passed_records) == 1000);
	for (unsigned i = 0; i < channel.n; i++) {
		struct handed_backend *h = (struct handed_backend *)(void *)channel.messages[i].bytes;
		if (h->head.type == HANDOVER_QUEUES)
			MUST(ftruncate(channel.messages[i].fd, 0) == -1 && errno == EPERM);
		else if (n_spoiled++ == 0)
			h->chunks_at += MIB;
	}
	take(next);
	leave_to(next);
	uint64_t lost = SUM_ALL(dropped_memory_records);
	MUST(n_spoiled == 2 && SUM_ALL(taken_over_records) == 1000 && lost > 0 && lost < 1000);
	rig_listen(0, 2);
	RIG_WAIT(rig.out->type->pending(rig.out) == 0);
	rig_tally(&missing, &doubled);
	MUST(missing == lost && doubled == 0 && SUM_ALL(delivered_records) == 1000 - lost);
	rig_close();
}
END_TEST

/* A file that cannot grow: whom it could be told of goes over, the rest stays, and both arrive once. */
START_TEST(memory_is_short_when_queues_are_handed_over)
{
	uint64_t missing, doubled;
	rig_init(2);
	rig_open();
	for (int i = 0; i < 20; i++)
		rig_send(500, 0);
	struct output *last = rig.out, *next = open_next(&rig.conf, true);
	uint64_t held = last->type->pending(last);
	struct queue_part part;
	queue_part_of(&((struct statsite *)last->impl)->backends[0]->queue, &part);
	signal(SIGXFSZ, SIG_IGN);
	struct rlimit limit = {.rlim_cur = pool_now()->own.size + part.n_chunks * sizeof(struct handed_chunk),
			       .rlim_max = RLIM_INFINITY};
	MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	give(2000000);
	limit.rlim_cur = RLIM_INFINITY;
	MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	uint64_t stays = last->type->pending(last);
	MUST(stays > 0 && stays < held && RIG_SUM(passed_records) == held - stays);
	take(next);
	MUST(SUM_ALL(dropped_memory_records) == 0 && SUM_ALL(taken_over_records) == held - stays);
	rig_listen(0, 2);
	uint64_t until_us = clock_us() + 8000000;
	while (last->type->pending(last) > 0 || next->type->pending(next) > 0) {
		MUST(clock_us() < until_us);
		rig_turn();
		next->type->pump(next, clock_us());
	}
	leave_to(next);
	rig_tally(&missing, &doubled);
	MUST(missing == 0 && doubled == 0);
	rig_close();
}
END_TEST

/* -- sizes --------------------------------------------------------------------------------------------------------- */

/* Quick enough: the limits are several times what it takes (CPU; see what is printed). */
START_TEST(a_thousand_backends)
{
	enum { N = 1000 };
	static char hosts[N][20];
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	rig_init(N);
	rig_listen(0, 1);
	for (unsigned i = 0; i < N; i++) {
		snprintf(hosts[i], sizeof(hosts[i]), "127.0.%u.%u", 1 + i / 250, 1 + i % 250);
		rig.cb[i].host = hosts[i];
		rig.cb[i].port = rig.ports[0];
	}
	rig.n_peers = 0; /* nobody accepts: connected all the same */
	rig_open();
	RIG_WAIT(RIG_SUM(up) == N);
	for (int times = 0; times < 2; times++) {
		struct output *next = open_next(&rig.conf, true);
		uint64_t give_us = give(5000000), take_us = take(next);
		printf("  %u backends, %u messages: given in %llu us, taken in %llu us\n", N, channel.n,
		       (unsigned long long)give_us, (unsigned long long)take_us);
		MUST(give_us + take_us < 100000);
		leave_to(next);
		MUST(RIG_SUM(up) == N && SUM_ALL(connects) == N);
		rig_send(20000, 100);
	}
	close(rig.peers[0].listener);
	rig_close();
}
END_TEST

START_TEST(a_large_queue)
{
	rig_init(1);
	rig.co.queue_limit = GIB;
	rig_open();
	while (rig_backend(0)->queued_bytes < 256 * MIB) {
		rig_batch(500, 600);
		rig.serial = 0;
		rig.out->type->send(rig.out, &rig.batch);
	}
	uint64_t records = rig_backend(0)->queued_records;
	struct output *next = open_next(&rig.conf, true);
	uint64_t give_us = give(5000000), take_us = take(next), start_us = cpu_us();
	leave_to(next);
	printf("  256 MiB: given in %llu us, taken in %llu us, closed in %llu us\n", (unsigned long long)give_us,
	       (unsigned long long)take_us, (unsigned long long)(cpu_us() - start_us));
	MUST(give_us + take_us < 100000);
	MUST(rig_backend(0)->queued_records == records);
	rig_close();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("statsite_limits");
	TCase *tc = tcase_create("limits");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, hostile_messages, 0, 80);
	tcase_add_test(tc, handed_lines_that_are_not_there_are_counted);
	tcase_add_test(tc, memory_is_short_when_queues_are_handed_over);
	tcase_add_test(tc, a_thousand_backends);
	tcase_add_test(tc, a_large_queue);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
