/* SPDX-License-Identifier: MIT
 *
 * test_dpdk_ring: a DPDK port of two queues, made here, read by forked processes, on net_ring: what is sent on queue i
 * comes back on queue i. Packets come whole, in order and once; a reader that is killed at any moment leaves a queue
 * that the next one goes on with, and an account of what it held. Needs no root and no hugepages.
 */
#include <check.h>
#include <errno.h>
#include <poll.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dpdk.h"

enum { QUEUES = 2, BURST = 100, PACKETS = 20000, PACKET_BYTES = 700, KILLS = 30 };

static struct dpdk *d;
static struct rte_mempool *sender_pool;
static char slab[BATCH_ITEMS][BATCH_ITEM_BYTES + BATCH_SLACK];

/* What the readers tell. */
static struct seen {
	volatile uint64_t packets, wrong, next;
	volatile bool stop;
} * seen;

/* Its number is in the first and in the last 8 bytes. */
static bool send_one(uint16_t queue, uint64_t number, unsigned segments)
{
	struct rte_mbuf *m = rte_pktmbuf_alloc(sender_pool), *last = m;
	if (!m)
		return false;
	memset(rte_pktmbuf_append(m, PACKET_BYTES), (int)number, PACKET_BYTES);
	memcpy(rte_pktmbuf_mtod(m, char *), &number, sizeof number);
	for (unsigned i = 1; i < segments; i++) {
		last = rte_pktmbuf_alloc(sender_pool);
		ck_assert_ptr_nonnull(last);
		memset(rte_pktmbuf_append(last, PACKET_BYTES), (int)number, PACKET_BYTES);
		ck_assert_int_eq(rte_pktmbuf_chain(m, last), 0);
	}
	memcpy(rte_pktmbuf_mtod(last, char *) + PACKET_BYTES - sizeof number, &number, sizeof number);
	if (rte_eth_tx_burst(d->port, queue, &m, 1) == 1)
		return true;
	rte_pktmbuf_free(m);
	return false;
}

static void send_all(uint16_t queue, uint64_t first, uint64_t n)
{
	for (uint64_t i = first; i < first + n; i++)
		while (!send_one(queue, i, 1))
			usleep(20);
}

static void look_at(struct seen *s, const struct item *item, unsigned segments)
{
	uint64_t front, back;
	memcpy(&front, item->bytes, sizeof front);
	memcpy(&back, item->bytes + item->len - sizeof back, sizeof back);
	s->wrong += front != back || item->len != PACKET_BYTES * segments || item->original_len != item->len ||
		    item->time_ns == 0 || front < s->next;
	s->next = front + 1;
	s->packets++;
}

static _Noreturn void reader(unsigned slot)
{
	struct dpdk_queue q;
	struct item items[BATCH_ITEMS];
	unsigned n;
	dpdk_open(&q, d, slot);
	while (!seen[slot].stop) {
		n = dpdk_read(&q, items, BATCH_ITEMS, slab[0], sizeof slab[0], true);
		for (unsigned i = 0; i < n; i++)
			look_at(&seen[slot], &items[i], 1);
		dpdk_took(&q);
		if (n == 0)
			usleep(50);
		dpdk_give(&q);
	}
	dpdk_close(&q);
	_exit(0);
}

static pid_t start_reader(unsigned slot)
{
	pid_t pid = fork();
	if (pid == 0)
		reader(slot);
	return pid;
}

static void stop_reader(pid_t pid, unsigned slot)
{
	int status;
	seen[slot].stop = true;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	seen[slot].stop = false;
}

/* Until the readers have n packets of a queue or get no more for 3 s. */
static void wait_for(unsigned slot, uint64_t n)
{
	uint64_t last = 0;
	for (int still = 0; seen[slot].packets < n && still < 3000; still++) {
		if (seen[slot].packets != last)
			still = 0;
		last = seen[slot].packets;
		poll(NULL, 0, 1);
	}
}

static void start_port(void)
{
	char *eal[] = {"--no-huge", "-m 256", "--vdev=net_ring0", "--vdev=net_ring1"};
	const struct dpdk_wish wish = {.input = "tap",
				       .port = "net_ring0",
				       .eal = eal,
				       .n_eal = ARRAY_LEN(eal),
				       .queues = QUEUES,
				       .rx_descriptors = 512,
				       .rx_burst = BURST,
				       .symmetric = true,
				       .promiscuous = true};
	struct err err = {""};
	cpu_set_t before, after;
	sigset_t signals;
	log_open("test", false, LOG_LEVEL_WARN);
	sched_getaffinity(0, sizeof before, &before);
	seen = mmap(NULL, sizeof *seen * QUEUES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	d = dpdk_bind(&wish, &err);
	ck_assert_msg(d != NULL, "%s", err.text);
	sched_getaffinity(0, sizeof after, &after);
	ck_assert(CPU_EQUAL(&before, &after));
	sigprocmask(SIG_SETMASK, NULL, &signals);
	ck_assert(!sigismember(&signals, SIGTERM));
	sender_pool = rte_pktmbuf_pool_create("sender", 4095, 0, 0, 2048 + RTE_PKTMBUF_HEADROOM, SOCKET_ID_ANY);
	ck_assert_ptr_nonnull(sender_pool);
}

static void two_readers(void)
{
	pid_t pids[QUEUES];
	for (unsigned i = 0; i < QUEUES; i++)
		pids[i] = start_reader(i);
	for (unsigned i = 0; i < QUEUES; i++)
		send_all((uint16_t)i, 0, PACKETS);
	for (unsigned i = 0; i < QUEUES; i++) {
		wait_for(i, PACKETS);
		stop_reader(pids[i], i);
		ck_assert_uint_eq(seen[i].packets, PACKETS);
		ck_assert_uint_eq(seen[i].wrong, 0);
	}
	ck_assert_uint_eq(rte_mempool_in_use_count(sender_pool), 0);
}

/* net_ring passes the sender's own mbufs, which the reader gives back: who is killed in the middle of that leaves the
 * ring of the sender's pool as dpdk_death finds its own, and the sender would wait for it for ever. */
static void mend_sender_pool(void)
{
	struct rte_ring *r = sender_pool->pool_data;
	r->cons.tail = r->cons.head;
	r->prod.head = r->prod.tail;
}

/* What was sent and not seen is at most what the dead had in hand, and that is in the account. */
static void killed_readers(void)
{
	uint64_t number = PACKETS, sent = 0, unread = 0, in_hand = 0;
	seen[0].packets = 0;
	pid_t pid = start_reader(0);
	for (unsigned i = 0; i < KILLS; i++) {
		send_all(0, number, 2000 + i * 7);
		number += 2000 + i * 7;
		sent += 2000 + i * 7;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		mend_sender_pool();
		in_hand += d->holds[0].next - d->holds[0].given;
		unread += dpdk_death(d, 0);
		pid = start_reader(0);
	}
	wait_for(0, sent);
	poll(NULL, 0, 50);
	stop_reader(pid, 0);
	ck_assert_uint_eq(seen[0].wrong, 0);
	uint64_t missing = sent - seen[0].packets;
	ck_assert_msg(missing <= unread + in_hand, "%lu missing, %lu unread, %lu in hand", missing, unread, in_hand);
	uint64_t leaked = d->holds[0].leaked_mbufs;
	ck_assert_uint_le(leaked, KILLS * 2 * BURST);
	/* the ring's sender is its own pool: what leaked is gone from there */
	ck_assert_uint_le(rte_mempool_in_use_count(sender_pool), leaked);
	printf(
	    "%lu sent, %u kills: %lu missing <= %lu unread + %lu in hand; %lu mbufs leaked, %u missing in the pool\n",
	    sent, KILLS, missing, unread, in_hand, leaked, rte_mempool_in_use_count(sender_pool));
}

/* Here, without a process of its own: frames in segments, what one read gives, the end. */
static void segments(void)
{
	struct dpdk_queue q;
	struct item items[BATCH_ITEMS];
	struct seen s = {0};
	dpdk_open(&q, d, 1);
	for (unsigned i = 0; i < 3; i++)
		ck_assert(send_one(1, i + 1, i + 1));
	unsigned n = dpdk_read(&q, items, BATCH_ITEMS, slab[0], sizeof slab[0], true);
	ck_assert_uint_eq(n, 3);
	for (unsigned i = 0; i < 3; i++)
		look_at(&s, &items[i], i + 1);
	ck_assert_uint_eq(s.wrong, 0);
	ck_assert_uint_eq(q.linearised, 2);
	dpdk_took(&q);
	dpdk_give(&q);
	ck_assert(send_one(1, 9, 4)); /* room for two and a half */
	n = dpdk_read(&q, items, 1, slab[0], PACKET_BYTES * 5 / 2 + BATCH_SLACK, true);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(items[0].len, PACKET_BYTES * 5 / 2);
	ck_assert_uint_eq(items[0].original_len, PACKET_BYTES * 4);
	dpdk_took(&q);
	dpdk_give(&q);
	for (unsigned i = 0; i < BURST; i++)
		ck_assert(send_one(1, i, 1));
	ck_assert_uint_eq(dpdk_read(&q, items, BATCH_ITEMS, slab[0], sizeof slab[0], true), BATCH_ITEMS);
	dpdk_took(&q);
	dpdk_give(&q);
	ck_assert_uint_eq(dpdk_read(&q, items, 10, slab[0], sizeof slab[0], false), 10);
	dpdk_took(&q);
	ck_assert_uint_eq(dpdk_close(&q), BURST - BATCH_ITEMS - 10);
	ck_assert_uint_eq(dpdk_read(&q, items, 10, slab[0], sizeof slab[0], false), 0);
}

static void numbers(void)
{
	struct dpdk_counts c;
	dpdk_count(d, &c);
	ck_assert_uint_ge(c.packets, 2 * PACKETS);
	ck_assert_uint_eq(c.missed + c.errors + c.no_mbuf, 0);
	const int *fds;
	ck_assert_uint_gt(dpdk_eal_fds(&fds), 0);
}

/* One more input that needs another EAL, and ports that are not there. */
static void refusals(void)
{
	char *other[] = {"--no-huge", "-m 128"},
	     *same[] = {"--no-huge", "-m 256", "--vdev=net_ring0", "--vdev=net_ring1"};
	struct dpdk_wish wish = {.input = "second",
				 .port = "net_ring0",
				 .eal = other,
				 .n_eal = 2,
				 .queues = 1,
				 .rx_descriptors = 64,
				 .rx_burst = 64};
	struct err err = {""};
	ck_assert_ptr_null(dpdk_bind(&wish, &err));
	ck_assert_ptr_nonnull(strstr(err.text, "starts DPDK once"));
	wish.eal = same;
	wish.n_eal = 4;
	wish.port = "net_ring7";
	ck_assert_ptr_null(dpdk_bind(&wish, &err));
	wish.port = "7";
	ck_assert_ptr_null(dpdk_bind(&wish, &err));
	ck_assert_ptr_nonnull(strstr(err.text, "no port 7; DPDK has net_ring0"));
	wish.port = "net_ring0";
	ck_assert_ptr_null(dpdk_bind(&wish, &err));
	ck_assert_ptr_nonnull(strstr(err.text, "is read already"));
	wish.port = "net_ring1";
	wish.queues = 99;
	ck_assert_ptr_null(dpdk_bind(&wish, &err));
	ck_assert_ptr_nonnull(strstr(err.text, "has at most 16 receive queues"));
	dpdk_unbind(d);
}

START_TEST(life)
{
	start_port();
	two_readers();
	segments();
	killed_readers();
	numbers();
	refusals();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dpdk_ring");
	TCase *tc = tcase_create("dpdk_ring");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, life);
	suite_add_tcase(suite, tc);
	SRunner *runner = srunner_create(suite);
	srunner_set_fork_status(runner, CK_NOFORK); /* the EAL starts once a process */
	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
