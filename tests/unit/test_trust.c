/* SPDX-License-Identifier: MIT
 *
 * test_trust: a worker's memory is whatever somebody wrote there: the counter page and the receive batches are overwritten
 * with patterns and at random, then the master takes them over and counts. It lives, what stands in the sums was so, and
 * the siblings' memory is untouched. And: what a child may still write.
 */
#include "suite.h"
#include "../../src/master/master.h"
#include "../../src/stats/stats_private.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANDOM_RUNS = 1000, LINES = 100, BACKENDS = 3, SIBLING = 1 };

static struct err err;
static struct master m;
static struct conf conf;
static struct conf_input conf_inputs[3];
static struct conf_output conf_output = {.name = "shards", .type = CONF_OUTPUT_TYPE_STATSITE};
static struct input inputs[3];
static struct output output;
static struct slot slot;
static struct worker_process process;
static unsigned seed;

static unsigned any(void)
{
	seed = seed * 1103515245 + 12345;
	return seed >> 8;
}

static void setup(void)
{
	static const struct input_type packets = {.name = "capture", .is_packets = true}, datagrams = {.name = "udp"},
				       streams = {.name = "tcp", .is_stream = true};
	static const struct input_type *const types[] = {&datagrams, &streams, &packets};
	static char *const names[] = {"a", "b", "c"};
	char name[32];
	ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
	m = (struct master){.cf = &conf, .inputs = inputs, .n_inputs = 3, .outputs = &output, .n_outputs = 1};
	m.stats = stats_new(2, 4, &err);
	m.receive = receive_new(2, &err);
	ck_assert_msg(m.stats && m.receive, "%s", err.text);
	m.page = stats_master_page(m.stats);
	m.copy = stats_copy_new(m.stats);
	m.belief = stats_belief_new(m.stats, m.copy);
	output = (struct output){.cf = &conf_output};
	stats_name(m.stats, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	for (unsigned i = 0; i < 3; i++) {
		conf_inputs[i].name = names[i];
		inputs[i] = (struct input){.type = types[i], .cf = &conf_inputs[i], .index = i, .wants_lines = true};
		stats_name(m.stats, STATS_INPUT, i, names[i], 0, 1, types[i]->name);
	}
	for (unsigned i = 0; i < BACKENDS; i++) {
		snprintf(name, sizeof(name), "10.0.0.%u:8125", i);
		stats_name(m.stats, STATS_BACKEND, i, name, 0, 0, "tcp");
	}
	slot = (struct slot){.m = &m};
	process = (struct worker_process){.slot = &slot, .page = stats_slot_page(m.stats, 0, 0)};
}

static void teardown(void)
{
	stats_belief_free(m.belief);
	stats_copy_free(m.copy);
	receive_free(m.receive);
	stats_free(m.stats);
}

/* As a worker does; what is queued at a death is lost. */
static void count(struct stats_page *p, uint64_t n)
{
	struct stats_input *in = stats_input(p, 0);
	in->received_datagrams += n;
	in->to_outputs_datagrams += n;
	in->received_lines += n;
	in->to_outputs_lines += n;
	struct stats_output *out = stats_output(p, 0);
	out->offered_records += n;
	out->taken_records += n;
	struct stats_backend *be = stats_backend(p, BACKENDS - 1);
	be->offered_records += n;
	be->queued_records += n;
	be->up = 1;
	stats_touch(p, STATS_INPUT, 0);
	stats_touch(p, STATS_OUTPUT, 0);
	stats_touch(p, STATS_BACKEND, BACKENDS - 1);
	stats_publish(p);
}

static uint64_t sum(enum stats_scope scope, unsigned index, const char *name)
{
	return stats_named(m.copy, STATS_ALL, scope, index, name);
}

static void assert_account(uint64_t lines)
{
	struct text t = {0};
	ck_assert_msg(stats_copy_take(m.copy, &err) == 0, "%s", err.text);
	ck_assert_msg(stats_check(m.copy, &t) == 0, "%.300s", t.s);
	ck_assert_uint_eq(sum(STATS_INPUT, 0, "to_outputs_lines"), lines);
	ck_assert_uint_eq(sum(STATS_BACKEND, BACKENDS - 1, "queued_records"), 0);
	ck_assert_uint_eq(sum(STATS_BACKEND, BACKENDS - 1, "up"), 0);
	text_free(&t);
}

/* The worker is dead. Returns whether its page was believed. */
static bool die(void)
{
	struct text t = {0};
	uint64_t before = stats_slot(m.page, 0)->unbelievable_ends;
	death_account(&m, &process, false, &t);
	text_free(&t);
	return stats_slot(m.page, 0)->unbelievable_ends == before;
}

static char *page(void)
{
	return stats_page_at(m.stats, 0);
}

static struct receive_batch *batch(unsigned input)
{
	return receive_batch(m.receive, 0, 0, input);
}

/* -- the page ------------------------------------------------------------------------------------------------------ */

static void ff(void)
{
	memset(page(), 0xff, m.stats->head.pages[STATS_OWNER_SLOT].page_bytes);
}

static void zeros(void)
{
	memset(page(), 0, m.stats->head.pages[STATS_OWNER_SLOT].page_bytes);
}

static void used_most(void)
{
	for (unsigned s = 0; s < STATS_FILE_SCOPES; s++)
		process.page->shared->used[s] = UINT32_MAX;
}

static void used_one_more(void)
{
	process.page->shared->used[STATS_BACKEND] = STATS_BACKENDS_MAX + 1;
}

static void went_back(void)
{
	count(process.page, UINT64_MAX - 1); /* minus two, and it balances */
}

static void too_much(void)
{
	for (unsigned i = 0; i < 1u << 31; i += 1u << 30)
		count(process.page, 1u << 30);
	stats_input(process.page, 0)->received_bytes = UINT64_MAX / 2;
	count(process.page, 1);
}

static void negative(void)
{
	stats_backend(process.page, 0)->queued_records = UINT64_MAX - 6; /* balances: minus seven */
	stats_backend(process.page, 0)->delivered_records = 7;
	stats_touch(process.page, STATS_BACKEND, 0);
	stats_publish(process.page);
}

static void unbalanced(void)
{
	stats_input(process.page, 0)->received_lines++;
	count(process.page, 0);
}

static void (*const patterns[])(void) = {ff, zeros, used_most, used_one_more, went_back, too_much, negative, unbalanced};

START_TEST(test_pattern)
{
	for (unsigned which = 0; which < STATS_SLOT_PAGES; which++)
		count(stats_slot_page(m.stats, SIBLING, which), 7);
	count(process.page, LINES);
	stats_belief_look(m.belief, clock_us());
	count(process.page, 1); /* since the last look: not known, when the page cannot be believed */
	patterns[_i]();
	ck_assert(!die());
	for (unsigned which = 0; which < STATS_SLOT_PAGES; which++)
		stats_adopt(stats_slot_page(m.stats, SIBLING, which)); /* alone it changes nothing */
	ck_assert_int_eq(stats_copy_take(m.copy, &err), 0);
	ck_assert_uint_eq(stats_named(m.copy, SIBLING, STATS_INPUT, 0, "received_lines"), 14);
	ck_assert_uint_eq(stats_named(m.copy, SIBLING, STATS_BACKEND, BACKENDS - 1, "up"), 1); /* of two pages, not 2 */
	ck_assert_uint_eq(stats_named(m.copy, 0, STATS_INPUT, 0, "received_lines"), LINES);
	ck_assert_uint_eq(stats_named(m.copy, 0, STATS_BACKEND, BACKENDS - 1, "lost_at_death_records"), LINES);
	/* the next one goes on with it */
	count(process.page, 5);
	ck_assert(die());
	ck_assert_int_eq(stats_copy_take(m.copy, &err), 0);
	ck_assert_uint_eq(stats_named(m.copy, 0, STATS_INPUT, 0, "received_lines"), LINES + 5);
	struct text t = {0};
	ck_assert_msg(stats_check(m.copy, &t) == 0, "%.300s", t.s);
}
END_TEST

/* An odd sequence alone is a worker that was killed while it published. */
START_TEST(test_sequence)
{
	static const uint64_t sequences[] = {1, 1001, UINT32_MAX, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63};
	uint64_t lines = 0;
	for (unsigned i = 0; i < ARRAY_LEN(sequences); i++) {
		lines += LINES;
		count(process.page, LINES);
		process.page->shared->sequence = sequences[i];
		ck_assert(die());
		ck_assert_uint_eq(process.page->shared->sequence & 1, 0);
		assert_account(lines);
	}
	/* who waits for one that stays odd waits once */
	process.page->shared->sequence |= 1;
	ck_assert_int_eq(stats_copy_take(m.copy, &err), -EAGAIN);
	uint64_t since_us = clock_us();
	for (unsigned i = 0; i < 10; i++)
		ck_assert_int_eq(stats_copy_take(m.copy, &err), -EAGAIN);
	ck_assert_uint_lt(clock_us() - since_us, 100000);
	/* and nobody ends for one that is found later */
	process.page->shared->sequence |= 1;
	count(process.page, 0);
	ck_assert_uint_eq(process.page->shared->sequence & 1, 0);
	m.page->shared->used[STATS_SLOT] = 0;
	ck_assert(die());
}
END_TEST

/* Of another program's page, which nobody mends: what it was about to publish counts. */
START_TEST(test_ended_in_a_publication)
{
	int fds[8];
	unsigned n = stats_files(m.stats);
	ck_assert_uint_le(n, ARRAY_LEN(fds));
	for (unsigned i = 0; i < n; i++)
		fds[i] = stats_reader_fd(m.stats, i);
	struct stats *theirs = stats_open(fds, n, &err);
	struct stats_copy *reader = stats_copy_new(theirs);
	count(process.page, LINES);
	ck_assert_int_eq(stats_copy_take(reader, &err), 0);
	stats_input(process.page, 0)->received_lines += 5;
	stats_touch(process.page, STATS_INPUT, 0);
	process.page->shared->sequence++;
	ck_assert_int_eq(stats_copy_take(reader, &err), -EAGAIN);
	stats_copy_ended(reader, 0, 0);
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_eq(stats_copy_take(reader, &err), 0);
		ck_assert_uint_eq(stats_named(reader, 0, STATS_INPUT, 0, "received_lines"), LINES + 5);
	}
	stats_copy_free(reader);
	stats_free(theirs);
}
END_TEST

/* What a reader saw meanwhile is gone from its copy. */
START_TEST(test_reader_follows)
{
	struct stats_copy *reader = stats_copy_new(m.stats);
	count(process.page, LINES);
	stats_belief_look(m.belief, clock_us());
	for (unsigned i = 0; i < 3; i++) {
		process.page->shared->sequence = UINT64_C(1) << (20 * i + 8);
		memset(process.page->published, 0x55, 1 << 20);
		ck_assert_int_eq(stats_copy_take(reader, &err), 0);
		ck_assert(!die());
		ck_assert_int_eq(stats_copy_take(reader, &err), 0);
		ck_assert_uint_eq(stats_named(reader, STATS_ALL, STATS_INPUT, 0, "received_lines"), LINES);
		ck_assert_uint_eq(stats_named(reader, STATS_ALL, STATS_INPUT, 1, "received_lines"), 0);
		struct text t = {0};
		ck_assert_msg(stats_check(reader, &t) == 0, "%.300s", t.s);
	}
	stats_copy_free(reader);
}
END_TEST

/* -- the receive batches ------------------------------------------------------------------------------------------- */

static char line_text[] = "a:1|c\nb:1|c";

/* Two datagrams of two lines, or of packets as many payloads. */
static void receive(struct receive_batch *r)
{
	receive_clear(r);
	r->base = r;
	for (unsigned i = 0; i < 2; i++) {
		memcpy(r->slab[i], line_text, sizeof(line_text) - 1);
		r->iovecs[i] = (struct iovec){r->slab[i], sizeof(line_text) - 1};
		r->messages[i].msg_len = sizeof(line_text) - 1;
	}
	r->used = 2;
}

START_TEST(test_batch)
{
	bool can_be = true;
	for (unsigned i = 0; i < 3; i++) {
		receive(batch(i));
		ck_assert_uint_eq(input_lost_at_death(&inputs[i], batch(i), process.page, &can_be), 4);
		ck_assert_uint_eq(input_lost_at_death(&inputs[i], batch(i), process.page, &can_be), 0); /* cleared */
		ck_assert(can_be);
	}
	/* the first is published, and five bytes of the second; and its datagrams are counted */
	receive(batch(0));
	batch(0)->done = batch(0)->datagrams_counted = 1;
	batch(0)->done_bytes = 6;
	ck_assert_uint_eq(input_lost_at_death(&inputs[0], batch(0), process.page, &can_be), 1);
	/* a packet in a device's memory */
	receive(batch(2));
	batch(2)->iovecs[1].iov_base = line_text;
	ck_assert_uint_eq(input_lost_at_death(&inputs[2], batch(2), process.page, &can_be), 4);
	/* the worker, or we, have it elsewhere: after an exec */
	receive(batch(1));
	batch(1)->base = (const void *)((uintptr_t)batch(1)->base + 4096);
	for (unsigned i = 0; i < 2; i++)
		batch(1)->iovecs[i].iov_base = (char *)batch(1)->iovecs[i].iov_base + 4096;
	ck_assert_uint_eq(input_lost_at_death(&inputs[1], batch(1), process.page, &can_be), 4);
	ck_assert(can_be);
	stats_publish(process.page);
	ck_assert(die());
	stats_copy_take(m.copy, NULL);
	ck_assert_uint_eq(sum(STATS_INPUT, 0, "lost_at_death_datagrams"), 2);
	ck_assert_uint_eq(sum(STATS_INPUT, 0, "lost_at_death_lines"), 5);
	ck_assert_uint_eq(sum(STATS_INPUT, 1, "lost_at_death_datagrams"), 0);
	ck_assert_uint_eq(sum(STATS_INPUT, 2, "lost_at_death_packets"), 4);
}
END_TEST

/* As the program after us has them; none that are laid out otherwise. */
START_TEST(test_batch_adopted)
{
	bool can_be = true;
	receive(batch(1));
	struct receive_batch *all = receive_adopt(dup(receive_fd(m.receive, 0, 0)), RECEIVE_VERSION);
	ck_assert_ptr_nonnull(all);
	ck_assert_uint_eq(input_lost_at_death(&inputs[1], &all[1], process.page, &can_be), 4);
	ck_assert_uint_eq(input_lost_at_death(&inputs[1], batch(1), process.page, &can_be), 0);
	ck_assert(can_be);
	pid_t pid = fork();
	if (pid == 0)
		_exit(msync(all, 4096, MS_ASYNC) == -1 && errno == ENOMEM ? 0 : 1); /* a child does not have them */
	int status;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	receive_let_go(all);
	receive_let_go(NULL);
	ck_assert_ptr_null(receive_adopt(dup(receive_fd(m.receive, 0, 0)), RECEIVE_VERSION + 1));
	ck_assert_ptr_null(receive_adopt(memfd_create("small", MFD_CLOEXEC), RECEIVE_VERSION));
	ck_assert_ptr_null(receive_adopt(-1, RECEIVE_VERSION));
}
END_TEST

START_TEST(test_batch_pattern)
{
	for (unsigned k = 0; k < 10; k++) {
		for (unsigned i = 0; i < 3; i++) {
			struct receive_batch *r = batch(i);
			bool can_be = true;
			receive(r);
			if (k == 0)
				memset(r, 0xff, offsetof(struct receive_batch, slab) + 4096);
			if (k == 1)
				r->used = UINT32_MAX;
			if (k == 2)
				r->used = BATCH_ITEMS + 1;
			if (k == 3)
				r->done = 3;
			if (k == 4)
				r->done_bytes = SIZE_MAX;
			if (k == 5)
				r->iovecs[0].iov_base = (void *)0xdead0000;
			if (k == 6)
				r->iovecs[1].iov_len = r->messages[1].msg_len = UINT32_MAX;
			if (k == 7)
				r->base = NULL, r->iovecs[0].iov_base = (void *)0xdead0000;
			if (k >= 8 && i == 2) /* a packet may be elsewhere */
				continue;
			if (k == 8) /* over the end */
				r->iovecs[1].iov_base = (char *)(r + 1) - 5, r->iovecs[1].iov_len = 100000,
				r->messages[1].msg_len = 100000, r->base = r - 1000000;
			if (k == 9) /* before the slab */
				r->iovecs[1].iov_base = r, r->base = (void *)UINTPTR_MAX;
			ck_assert_uint_eq(input_lost_at_death(&inputs[i], r, process.page, &can_be), 0);
			ck_assert_msg(!can_be, "pattern %u of input %u", k, i);
			can_be = true;
			ck_assert_uint_eq(input_lost_at_death(&inputs[i], r, process.page, &can_be), 0);
			ck_assert(can_be);
		}
	}
}
END_TEST

/* -- everything, at random ------------------------------------------------------------------------------------------ */

static void overwrite(char *from, size_t bytes)
{
	static const uint64_t awkward[] = {0, 1, UINT64_MAX, UINT32_MAX, 64, 65, 0xdead0000, UINT64_C(1) << 63};
	size_t at = any() % bytes, n = MIN(1 + any() % 4096, bytes - at);
	uint64_t value = awkward[any() % ARRAY_LEN(awkward)];
	bool is_noise = any() % 2;
	for (size_t i = 0; i < n; i++)
		from[at + i] = is_noise ? (char)any() : ((char *)&value)[(at + i) % 8];
}

START_TEST(test_random)
{
	const struct stats_page_layout *l = &m.stats->head.pages[STATS_OWNER_SLOT];
	unsigned believed = 0;
	uint64_t lines = 0;
	char *sibling = stats_page_at(m.stats, SIBLING * STATS_SLOT_PAGES), *before = malloc(l->page_bytes);
	count(stats_slot_page(m.stats, SIBLING, 0), 7);
	memcpy(before, sibling, l->page_bytes);
	for (unsigned run = 0; run < RANDOM_RUNS; run++) {
		seed = run;
		count(process.page, LINES);
		stats_belief_look(m.belief, clock_us());
		lines += LINES;
		for (unsigned i = 0; i < 3; i++)
			receive(batch(i));
		for (unsigned k = any() % 8; k > 0; k--) {
			overwrite(page(), any() % 2 ? 4096 : l->published_offset + 8192);
			overwrite((char *)batch(any() % 3), any() % 2 ? sizeof(struct receive_batch)
								      : offsetof(struct receive_batch, slab));
		}
		believed += die();
		struct text t = {0};
		ck_assert_msg(stats_copy_take(m.copy, &err) == 0, "%s", err.text);
		ck_assert_msg(stats_check(m.copy, &t) == 0, "run %u: %.300s", run, t.s);
		ck_assert_uint_eq(stats_named(m.copy, 0, STATS_INPUT, 0, "to_outputs_lines"), lines);
		ck_assert_uint_eq(stats_named(m.copy, 0, STATS_BACKEND, BACKENDS - 1, "queued_records"), 0);
	}
	ck_assert_mem_eq(before, sibling, l->page_bytes);
	printf("%u runs, %u believed\n", RANDOM_RUNS, believed);
	ck_assert(believed > 0 && believed < RANDOM_RUNS);
	free(before);
}
END_TEST

/* -- what a child may write ----------------------------------------------------------------------------------------- */

static bool writes(void *at)
{
	pid_t child = fork();
	int status;
	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile char *)at = *(volatile char *)at;
		_exit(0);
	}
	waitpid(child, &status, 0);
	return WIFEXITED(status);
}

static _Noreturn void child_run(unsigned number, unsigned which)
{
	bool is_right = stats_child_worker(m.stats, number, which, NULL) == 0;
	struct receive_batch *own = receive_batch(m.receive, number, which, 5), *other = receive_batch(m.receive, 0, 0, 5);
	receive_child(m.receive, number, which);
	for (unsigned i = 0; i < stats_pages_n(&m.stats->head); i++) {
		char *at = stats_page_at(m.stats, i);
		is_right &= at == NULL || writes(at) == (i == number * STATS_SLOT_PAGES + which);
	}
	is_right &= !writes(m.stats->files[0].at) && stats_reader_fd(m.stats, 0) == -1;
	is_right &= writes(own) && (number + which == 0 || !writes(other));
	/* it reads all, and counts in its own */
	count(stats_slot_page(m.stats, number, which), 3);
	is_right &= stats_copy_take(m.copy, NULL) == 0 && sum(STATS_INPUT, 0, "received_lines") == 10;
	_exit(is_right ? 0 : 1);
}

START_TEST(test_child)
{
	int status;
	count(process.page, 7);
	pid_t child = fork();
	if (child == 0)
		child_run((unsigned)_i / 2, (unsigned)_i % 2);
	waitpid(child, &status, 0);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	ck_assert_int_eq(stats_copy_take(m.copy, &err), 0);
	ck_assert_uint_eq(sum(STATS_INPUT, 0, "received_lines"), 10);
}
END_TEST

START_TEST(test_child_without_pages)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		bool is_right = _i == 0 || stats_child_monitor(m.stats, NULL) == 0;
		if (_i == 0)
			stats_child_none(m.stats);
		unsigned monitor = stats_pages_n(&m.stats->head) - 1;
		receive_child(m.receive, RECEIVE_NOBODY, 0);
		is_right &= !writes(page()) && !writes(m.stats->files[0].at);
		is_right &= writes(stats_page_at(m.stats, monitor)) == (_i == 1);
		_exit(is_right ? 0 : 1);
	}
	waitpid(child, &status, 0);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
END_TEST

/* A slot that comes later: who has the pages of two gets those of the third. */
START_TEST(test_more_pages)
{
	int fds[STATS_FILES_MAX];
	for (unsigned i = 0; i < stats_files(m.stats); i++)
		fds[i] = stats_reader_fd(m.stats, i);
	struct stats *reader = stats_open(fds, stats_files(m.stats), &err);
	struct stats_copy *c = stats_copy_new(reader);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert(!stats_copy_lacks_pages(c));
	ck_assert_int_eq(stats_add_slot(m.stats, &err), 0);
	count(stats_slot_page(m.stats, 2, 1), 9);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert(stats_copy_lacks_pages(c) && stats_copy_slots(c) == 2);
	while (stats_files(reader) < stats_files(m.stats))
		ck_assert_int_eq(stats_open_next(reader, stats_reader_fd(m.stats, stats_files(reader)), &err), 0);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert(!stats_copy_lacks_pages(c) && stats_copy_slots(c) == 3);
	ck_assert_uint_eq(stats_named(c, 2, STATS_INPUT, 0, "received_lines"), 9);
	ck_assert_uint_eq(stats_named(c, STATS_ALL, STATS_INPUT, 0, "received_lines"), 9);
	stats_copy_free(c);
	stats_free(reader);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("trust");
	TCase *tc = tcase_create("trust");
	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, test_pattern, 0, (int)ARRAY_LEN(patterns));
	tcase_add_test(tc, test_sequence);
	tcase_add_test(tc, test_ended_in_a_publication);
	tcase_add_test(tc, test_reader_follows);
	tcase_add_test(tc, test_batch);
	tcase_add_test(tc, test_batch_adopted);
	tcase_add_test(tc, test_batch_pattern);
	tcase_add_test(tc, test_random);
	tcase_add_loop_test(tc, test_child, 0, 4);
	tcase_add_loop_test(tc, test_child_without_pages, 0, 2);
	tcase_add_test(tc, test_more_pages);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
