/* SPDX-License-Identifier: MIT
 *
 * A statsite output and its successor in one process. What is handed over goes through a channel that a thread empties, as
 * another process would, and is kept until the test has it taken.
 */
#ifndef HANDOVER_RIG_H
#define HANDOVER_RIG_H

#include "statsite_rig.h"

#include <pthread.h>

#include "../../src/output/statsite_handover.h"

enum { MESSAGES_MAX = 4096, MESSAGE_BYTES = 2048 };

/* What came over the channel, and is not taken yet. */
static struct {
	int fds[2]; /* of the leaving and of the taking side */
	pthread_t thread;
	unsigned n;
	struct {
		_Alignas(8) char bytes[MESSAGE_BYTES];
		size_t len;
		int fd;
	} messages[MESSAGES_MAX];
} channel;

static inline void *empty_channel(void *arg)
{
	(void)arg;
	for (;; channel.n++) {
		MUST(channel.n < MESSAGES_MAX);
		ssize_t n = net_recv_fd(channel.fds[1], channel.messages[channel.n].bytes, MESSAGE_BYTES,
					&channel.messages[channel.n].fd);
		if (n <= 0)
			return NULL;
		channel.messages[channel.n].len = (size_t)n;
	}
}

static inline void channel_open(bool is_read)
{
	channel.n = 0;
	MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, channel.fds) == 0);
	fcntl(channel.fds[0], F_SETFL, O_NONBLOCK);
	if (is_read)
		MUST(pthread_create(&channel.thread, NULL, empty_channel, NULL) == 0);
}

static inline void channel_close(bool is_read)
{
	close(channel.fds[0]);
	if (!is_read)
		empty_channel(NULL);
	else
		pthread_join(channel.thread, NULL);
	close(channel.fds[1]);
}

static inline struct output *other(void)
{
	return rig.out == &rig.outs[0] ? &rig.outs[1] : &rig.outs[0];
}

/* Its successor, in another page; each of the two balances by itself. */
static inline struct output *open_next(struct conf *cf, bool awaits)
{
	struct err err = {""};
	struct output *next = other();
	MUST(output_init(next, cf, 0, &err) == 0);
	next->loop = rig.loop;
	next->resolver = rig.out->resolver;
	next->page = stats_slot_page(rig.stats, rig.out->page == stats_slot_page(rig.stats, 0, 0), 0);
	next->n_slots = 1;
	next->on_room = rig_on_room;
	next->awaits = awaits;
	MUST(next->type->open(next, &err) == 0);
	return next;
}

static inline void leave_to(struct output *next)
{
	struct output *last = rig.out;
	last->type->close(last);
	output_fini(last);
	rig.out = next;
	rig_check();
}

/* Of this thread: others use the machine as well. */
static inline uint64_t cpu_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Returns the CPU that it took, as take does. */
static inline uint64_t give(uint64_t within_us)
{
	uint64_t start_us = cpu_us();
	channel_open(true);
	rig.out->type->hand_over(rig.out, channel.fds[0], clock_us() + within_us);
	start_us = cpu_us() - start_us;
	channel_close(true);
	rig_check();
	return start_us;
}

static inline uint64_t take(struct output *next)
{
	uint64_t start_us = cpu_us();
	for (unsigned i = 0; i < channel.n; i++)
		next->type->take_over(next, (struct handover *)(void *)channel.messages[i].bytes, channel.messages[i].len,
				      channel.messages[i].fd);
	if (next->awaits)
		next->type->go(next);
	next->type->pump(next, clock_us());
	uint64_t took_us = cpu_us() - start_us;
	rig_check();
	return took_us;
}

static inline void hand_over_to(struct conf *cf)
{
	struct output *next = open_next(cf, true);
	give(2000000);
	MUST(rig.out->type->pending(rig.out) == 0);
	take(next);
	leave_to(next);
}

static inline uint64_t sum_of_pages(size_t offset)
{
	uint64_t sum = 0;
	for (unsigned slot = 0; slot < 2; slot++) {
		struct stats_page *page = stats_slot_page(rig.stats, slot, 0);
		for (unsigned i = 0; i < rig.co.n_backends; i++)
			sum += *(const uint64_t *)(const void *)((const char *)stats_backend(page, i) + offset);
	}
	return sum;
}
#define SUM_ALL(field) sum_of_pages(offsetof(struct stats_backend, field))

static inline uint64_t peer_lines(void)
{
	uint64_t lines = 0;
	for (size_t i = 0; i < rig.n_peers; i++)
		lines += rig.peers[i].lines;
	return lines;
}

static inline const struct pool *pool_now(void)
{
	return &((struct statsite *)rig.out->impl)->pool;
}

static inline bool all_is_done(void)
{
	return rig.out->type->pending(rig.out) == 0 && TAILQ_EMPTY(&((struct statsite *)rig.out->impl)->finishing);
}

static inline void must_be_once(bool in_order)
{
	uint64_t missing, doubled;
	rig_tally(&missing, &doubled);
	MUST(missing == 0 && doubled == 0);
	MUST(SUM_ALL(delivered_records) == rig.serial);
	MUST(SUM_ALL(passed_records) == SUM_ALL(taken_over_records));
	MUST(SUM_ALL(resent_records) == 0 && SUM_ALL(at_risk_records) == 0);
	MUST(rig_output()->memory_bytes == 0);
	MUST(LIST_EMPTY(&pool_now()->regions) && pool_now()->foreign_pages == 0);
	for (size_t i = 0; i < rig.n_peers; i++)
		MUST(rig.peers[i].broken == 0 && (!in_order || rig.peers[i].disordered == 0));
}

static inline void peers_begin(unsigned n, int receive_buffer)
{
	rig_init(n);
	rig.receive_buffer = receive_buffer;
	rig_listen(0, n);
	rig_open();
	RIG_WAIT(RIG_SUM(up) == n);
}

static inline void peers_connect_once(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		MUST(rig.peers[i].connections == 1);
	MUST(SUM_ALL(connects) == n && SUM_ALL(disconnects) == 0);
}

#endif
