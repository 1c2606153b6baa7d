/* SPDX-License-Identifier: MIT
 *
 * queue and pool against a simple model: random operations on several queues that share a small pool; after each, the
 * counts, the bounds and the bytes that would be sent must be the model's.
 */

/* check writes to a pipe at each of its assertions, passed ones too: 1 us, millions of times. */
#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			ck_abort_msg("not true: %s", #cond);                                                           \
	} while (0)

#include "suite.h"
#include "../../src/output/pool.c"
#include "../../src/output/queue.c"
#include "../../src/output/region.c"

enum { MODEL_LINES = 70000, N_QUEUES = 4 };

/* Lines that were put and are neither wholly acknowledged nor dropped. Offsets are bytes from the first one's start. */
struct model {
	struct queue q;
	struct {
		uint32_t id, len;
	} lines[MODEL_LINES];
	unsigned first, n;
	uint64_t sent, acked;
	uint64_t put, delivered, dropped;
};

static struct model models[N_QUEUES];
static struct pool pools[2], *pool_now = pools; /* of a worker, and of the one before */
static uint64_t seed;
static uint32_t next_id;

static uint64_t rnd(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

static char pattern(uint32_t id, uint32_t i)
{
	return (char)('a' + (id * 7 + i * 13 + i / 11) % 26);
}

static uint64_t model_bytes(const struct model *m, unsigned first, unsigned n)
{
	uint64_t bytes = 0;
	for (unsigned i = first; i < first + n; i++)
		bytes += m->lines[i].len + 1;
	return bytes;
}

/* Lines begun within the first `bytes`. */
static unsigned model_begun(const struct model *m, uint64_t bytes)
{
	unsigned n = 0;
	for (uint64_t at = 0; n < m->n && at < bytes; n++)
		at += m->lines[m->first + n].len + 1;
	return n;
}

static void check_content(const struct model *m)
{
	struct iovec iov[512];
	unsigned n = queue_unsent(&m->q, iov, 512, SIZE_MAX), begun = model_begun(m, m->sent), line = 0;
	uint64_t at = 0, skip = m->sent;
	while (line < m->n && at + m->lines[m->first + line].len + 1 <= skip)
		at += m->lines[m->first + line++].len + 1;
	uint32_t off = (uint32_t)(skip - at);
	(void)begun;
	for (unsigned i = 0; i < n; i++) {
		const char *p = iov[i].iov_base;
		for (size_t k = 0; k < iov[i].iov_len; k++) {
			MUST(line < m->n);
			uint32_t id = m->lines[m->first + line].id, len = m->lines[m->first + line].len;
			if (p[k] != (off == len ? '\n' : pattern(id, off)))
				ck_abort_msg("line %u byte %u differs", line, off);
			if (off++ == len) {
				off = 0;
				line++;
			}
		}
	}
	if (n < 512)
		MUST(line == m->n);
}

static void check_model(const struct model *m)
{
	const struct queue *q = &m->q;
	unsigned begun = model_begun(m, m->sent);
	uint64_t all = model_bytes(m, m->first, m->n);
	MUST(queue_held_bytes(q) == all);
	MUST(queue_unsent_bytes(q) == all - m->sent);
	MUST(queue_flight_lines(q) == begun);
	MUST(queue_unsent_lines(q) == m->n - begun);
	MUST(m->put == m->delivered + m->dropped + m->n);
	MUST(q->put_lines == m->put);
	MUST(q->done_lines == m->delivered + m->dropped);
	MUST(queue_held_bytes(q) <= q->limit_bytes);
	MUST((m->n == 0) == (q->n_chunks == 0));
	MUST(q->limit >= q->end);
}

static void do_put(struct model *m, uint32_t len)
{
	static char text[65536 + 64];
	uint32_t id = next_id++;
	for (uint32_t i = 0; i < len; i++)
		text[i] = pattern(id, i);
	if (m->first + m->n == MODEL_LINES)
		return;
	if (!queue_put(&m->q, text, len)) {
		uint64_t free_slabs = pool_free_slabs(pool_now);
		switch (queue_reserve(&m->q, len)) {
		case QUEUE_FULL:
			MUST(model_bytes(m, m->first, m->n) + len + 1 > m->q.limit_bytes);
			return;
		case QUEUE_NO_MEMORY:
			MUST(free_slabs <= pool_now->reserve || free_slabs == 0);
			return;
		case QUEUE_ROOM:
			MUST(queue_put(&m->q, text, len));
			break;
		}
	}
	m->lines[m->first + m->n].id = id;
	m->lines[m->first + m->n].len = len;
	m->n++;
	m->put++;
}

static void do_sent(struct model *m, uint64_t n)
{
	queue_sent(&m->q, n);
	m->sent += n;
}

static void do_acked(struct model *m, uint64_t n)
{
	queue_acked(&m->q, n);
	m->acked += n;
	while (m->n > 0 && m->acked >= m->lines[m->first].len + 1) {
		m->acked -= m->lines[m->first].len + 1;
		m->sent -= m->lines[m->first].len + 1;
		m->first++;
		m->n--;
		m->delivered++;
	}
}

static void do_rewind(struct model *m)
{
	MUST(queue_rewind(&m->q) == model_begun(m, m->sent));
	m->sent = m->acked = 0;
}

static void do_drop(struct model *m, uint64_t bytes)
{
	unsigned begun = model_begun(m, m->sent), unsent = m->n - begun;
	unsigned n = (unsigned)queue_drop_oldest(&m->q, bytes);
	MUST(n <= unsent);
	uint64_t gone = model_bytes(m, m->first + begun, n);
	MUST(gone >= bytes || n == unsent);
	if (n > 0 && begun == 0) /* with nothing in flight, no more than needed */
		MUST(model_bytes(m, m->first + begun, n - 1) < bytes);
	memmove(&m->lines[m->first + begun], &m->lines[m->first + begun + n], (unsent - n) * sizeof(m->lines[0]));
	m->n -= n;
	m->dropped += n;
}

static void do_clear(struct model *m)
{
	queue_clear(&m->q);
	m->dropped += m->n;
	m->n = 0;
	m->sent = m->acked = 0;
}

/* What one worker holds as the next one finds it: chunks made anew over the same memory. */
static void take_part(struct pool *to, const struct queue_part *from, struct queue_part *part)
{
	for (const struct chunk *c = from->head; c != NULL; c = c->next) {
		struct region *r = region_open(to, dup(c->region->fd), c->region->size, 1);
		MUST(r != NULL && r->id == c->region->id);
		struct chunk *mine = region_chunk(to, r, (uint64_t)(c->bytes - c->region->bytes), c->room);
		MUST(mine != NULL);
		mine->begin = c->begin;
		mine->used = c->used;
		mine->lines = c->lines;
		queue_part_add(part, mine);
		if (c == from->send)
			part->send = mine;
	}
	part->ack_off = from->ack_off;
	part->ack_lines = from->ack_lines;
	part->line_off = from->line_off;
	part->send_off = from->send_off;
	part->send_lines = from->send_lines;
	MUST(queue_part_check(part));
	MUST(part->held_bytes == from->held_bytes && part->held_lines == from->held_lines);
	MUST(part->flight_bytes == from->flight_bytes && part->flight_lines == from->flight_lines);
}

/* All queues go on in the pool of the next worker. */
static void do_hand_over(void)
{
	struct pool *last = pool_now;
	pool_now = last == pools ? pools + 1 : pools;
	MUST(pool_init(pool_now, (uint64_t)last->n_slabs * POOL_SLAB_BYTES, NULL) == 0);
	for (int i = 0; i < N_QUEUES; i++) {
		struct model *m = &models[i];
		struct queue was = m->q;
		struct queue_part from, part = {0};
		queue_part_of(&was, &from);
		take_part(pool_now, &from, &part);
		queue_forget(&was);
		MUST(queue_held_bytes(&was) == 0 && was.n_chunks == 0);
		queue_init(&m->q, pool_now, was.limit_bytes);
		m->put = m->n;
		m->delivered = m->dropped = 0;
		queue_prepend(&m->q, &part);
	}
	region_awaited_no_more(pool_now, 1);
	MUST(last->used_bytes == 0 && LIST_EMPTY(&last->regions));
	pool_fini(last);
}

static uint32_t some_length(void)
{
	switch (rnd(100)) {
	case 0:
		return 65507;
	case 1:
		return (uint32_t)(1 + rnd(65507));
	case 2:
		return (uint32_t)(CHUNK_SMALL_ROOM - 3 + rnd(6));
	case 3:
		return (uint32_t)(60 + rnd(10));
	default:
		return (uint32_t)(1 + rnd(80));
	}
}

static void one_operation(struct model *m)
{
	uint64_t unsent = queue_unsent_bytes(&m->q), flight = m->sent - m->acked, op = rnd(100);
	if (m->first > MODEL_LINES / 2) {
		memmove(m->lines, m->lines + m->first, m->n * sizeof(m->lines[0]));
		m->first = 0;
	}
	if (op < 70) {
		for (uint64_t i = rnd(40); i > 0; i--)
			do_put(m, some_length());
	} else if (op < 80) {
		do_sent(m, rnd(3) == 0 ? unsent : rnd(unsent + 1));
	} else if (op < 92) {
		do_acked(m, rnd(3) == 0 ? flight : rnd(flight + 1));
	} else if (op < 94) {
		do_rewind(m);
	} else if (op < 97) {
		do_drop(m, 1 + rnd(rnd(2) ? 200 : 100000));
	} else if (op == 97) {
		do_clear(m);
	} else if (op == 98) {
		queue_set_watermark(&m->q, rnd(2) ? UINT64_MAX : 65536);
	} else if (rnd(8)) {
		pool_trim(pool_now);
	} else {
		do_hand_over();
	}
	check_model(m);
	if (rnd(16) == 0)
		check_content(m);
}

static void run_random(uint64_t start, uint64_t pool_bytes, unsigned operations)
{
	seed = start;
	MUST(pool_init(pool_now, pool_bytes, NULL) == 0);
	memset(models, 0, sizeof(models));
	for (int i = 0; i < N_QUEUES; i++)
		queue_init(&models[i].q, pool_now, (i + 1) * 128 * KIB);
	for (unsigned i = 0; i < operations; i++)
		one_operation(&models[rnd(N_QUEUES)]);
	for (int i = 0; i < N_QUEUES; i++) {
		check_content(&models[i]);
		do_clear(&models[i]);
		check_model(&models[i]);
	}
	MUST(pool_now->used_bytes == 0);
	MUST(pool_free_slabs(pool_now) == pool_now->n_slabs);
	MUST(pool_now->partial == NONE);
	pool_fini(pool_now);
}

START_TEST(random_roomy)
{
	for (uint64_t s = 1; s <= 4; s++)
		run_random(s * 0x9e3779b97f4a7c15u, 64 * MIB, 6000);
}
END_TEST

START_TEST(random_tight)
{
	for (uint64_t s = 1; s <= 4; s++)
		run_random(s * 0xbf58476d1ce4e5b9u, s * 5 * POOL_SLAB_BYTES, 6000);
}
END_TEST

/* The queue's own sentences, one by one. */
START_TEST(lines_and_positions)
{
	struct queue q;
	struct iovec iov[4];
	char text[128] = "abcdefgh";
	MUST(pool_init(pool_now, MIB, NULL) == 0);
	queue_init(&q, pool_now, MIB);
	MUST(!queue_put(&q, text, 3)); /* an empty queue holds no chunk */
	MUST(queue_unsent(&q, iov, 4, 100) == 0);
	MUST(queue_drop_oldest(&q, 1) == 0);
	MUST(queue_rewind(&q) == 0);
	queue_acked(&q, 0);
	for (int i = 0; i < 3; i++) {
		MUST(queue_reserve(&q, 3) == QUEUE_ROOM);
		MUST(queue_put(&q, text, 3));
	}
	MUST(pool_now->used_bytes == POOL_PAGE_BYTES);
	MUST(queue_unsent(&q, iov, 4, 100) == 1);
	MUST(memcmp(iov[0].iov_base, "abc\nabc\nabc\n", 12) == 0);
	queue_sent(&q, 6); /* a line, and half of the second */
	MUST(queue_flight_lines(&q) == 2);
	queue_acked(&q, 5);
	MUST(queue_flight_lines(&q) == 1);
	MUST(queue_drop_oldest(&q, 1) == 1); /* never the line partly sent */
	MUST(queue_held_bytes(&q) == 4);
	MUST(queue_rewind(&q) == 1); /* from its start */
	MUST(queue_unsent(&q, iov, 4, 100) == 1);
	MUST(iov[0].iov_len == 4);
	queue_sent(&q, 4);
	queue_acked(&q, 4);
	MUST(pool_now->used_bytes == 0);
	MUST(q.done_lines == 3);
	pool_fini(pool_now);
}
END_TEST

/* Lines that came before the queue of the worker before did: they go behind it, dropped ones are not among them. */
START_TEST(prepended)
{
	struct queue q[2];
	struct queue_part from, part = {0};
	struct iovec iov[4];
	struct pool next;
	char text[128] = "abcdefgh";
	MUST(pool_init(pool_now, MIB, NULL) == 0 && pool_init(&next, MIB, NULL) == 0);
	queue_init(&q[0], pool_now, MIB);
	queue_init(&q[1], &next, MIB);
	for (int i = 0; i < 6; i++)
		MUST(queue_reserve(&q[i / 3], 3 + (uint32_t)(i / 3)) == QUEUE_ROOM &&
		     queue_put(&q[i / 3], text, 3 + (uint32_t)(i / 3)));
	MUST(queue_drop_oldest(&q[1], 5) == 1);
	queue_sent(&q[0], 6);
	queue_acked(&q[0], 5);
	queue_part_of(&q[0], &from);
	MUST(queue_part_is_mid_line(&from));
	take_part(&next, &from, &part);
	queue_prepend(&q[1], &part);
	queue_forget(&q[0]);
	region_awaited_no_more(&next, 1);
	MUST(pool_now->used_bytes == 0 && q[1].done_lines == 1 && queue_flight_lines(&q[1]) == 1);
	MUST(queue_unsent_lines(&q[1]) == 3 && queue_held_bytes(&q[1]) == 8 + 10);
	MUST(queue_unsent(&q[1], iov, 4, 100) == 2);
	MUST(iov[0].iov_len == 6 && memcmp(iov[0].iov_base, "c\nabc\n", 6) == 0);
	MUST(iov[1].iov_len == 10 && memcmp(iov[1].iov_base, "abcd\nabcd\n", 10) == 0);
	queue_sent(&q[1], 16);
	queue_acked(&q[1], 17);
	MUST(queue_held_bytes(&q[1]) == 0 && q[1].done_lines == 5 && next.used_bytes == 0);
	MUST(LIST_EMPTY(&next.regions));
	pool_fini(&next);
	pool_fini(pool_now);
}
END_TEST

/* 10,000 queues with a line each must not pin 68 KiB each; one that holds much must leave something for the others. */
START_TEST(many_small_queues)
{
	enum { MANY = 10000 };
	struct queue *qs = calloc(MANY, sizeof(*qs));
	char text[128] = "some.key:1|c";
	MUST(pool_init(pool_now, 64 * MIB, NULL) == 0);
	queue_init(&qs[0], pool_now, GIB);
	while (queue_reserve(&qs[0], 12) == QUEUE_ROOM)
		MUST(queue_put(&qs[0], text, 12));
	MUST(pool_free_slabs(pool_now) == pool_now->reserve);
	for (int i = 1; i <= 1000; i++) {
		queue_init(&qs[i], pool_now, GIB);
		MUST(queue_reserve(&qs[i], 12) == QUEUE_ROOM);
		MUST(queue_put(&qs[i], text, 12));
	}
	queue_clear(&qs[0]);
	for (int i = 1001; i < MANY; i++) {
		queue_init(&qs[i], pool_now, GIB);
		MUST(queue_reserve(&qs[i], 12) == QUEUE_ROOM);
		MUST(queue_put(&qs[i], text, 12));
	}
	MUST(pool_now->used_bytes == (MANY - 1) * (uint64_t)POOL_PAGE_BYTES);
	MUST(pool_has_chunk(pool_now, CHUNK_SMALL_ROOM, false));
	for (int i = 1; i < MANY; i++)
		queue_clear(&qs[i]);
	MUST(pool_free_slabs(pool_now) == pool_now->n_slabs);
	free(qs);
	pool_fini(pool_now);
}
END_TEST

static uint64_t resident_bytes(void)
{
	unsigned long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	MUST(f != NULL && fscanf(f, "%lu %lu", &pages, &resident) == 2);
	fclose(f);
	return resident * 4096;
}

START_TEST(memory_comes_back)
{
	struct queue q;
	static char text[2000];
	memset(text, 'x', sizeof(text));
	MUST(pool_init(pool_now, 256 * MIB, NULL) == 0);
	queue_init(&q, pool_now, GIB);
	uint64_t before = resident_bytes();
	for (int i = 0; i < 60000; i++) {
		MUST(queue_reserve(&q, 1900) == QUEUE_ROOM);
		MUST(queue_put(&q, text, 1900));
	}
	MUST(resident_bytes() > before + 100 * MIB);
	queue_clear(&q);
	int calls = 1;
	while (pool_trim(pool_now))
		MUST(++calls < 50);
	MUST(!pool_is_fat(pool_now));
	MUST(resident_bytes() < before + 8 * MIB);
	pool_fini(pool_now);
	pool_fini(pool_now); /* twice is fine */
}
END_TEST

START_TEST(pool_says_what_is_wrong)
{
	struct err err = {""};
	MUST(pool_init(pool_now, UINT64_C(1) << 48, &err) < 0);
	ck_assert_ptr_nonnull(strstr(err.text, "memory_limit"));
	MUST(pool_init(pool_now, 1, NULL) == 0); /* at least two slabs */
	MUST(pool_now->n_slabs == 2);
	pool_fini(pool_now);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("queue");
	TCase *tc = tcase_create("queue");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, lines_and_positions);
	tcase_add_test(tc, prepended);
	tcase_add_test(tc, many_small_queues);
	tcase_add_test(tc, memory_comes_back);
	tcase_add_test(tc, pool_says_what_is_wrong);
	tcase_add_test(tc, random_roomy);
	tcase_add_test(tc, random_tight);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
