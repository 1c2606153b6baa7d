/* SPDX-License-Identifier: MIT
 *
 * test_stats: the counter pages: publication, adoption after kill -9 at any point, copies under load, the directory.
 * Files that are hostile are in test_stats_open.c, what is computed from a copy in test_stats_text.c.
 */
#include "suite.h"
#include "../../src/stats/stats_private.h"
#include "stats_rig.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKENDS = 3000, KILLS = 2000 };

static struct err err;

static struct stats *pages_make(unsigned slots, unsigned backends)
{
	struct stats *st = stats_new(slots, 0, &err);
	ck_assert_msg(st != NULL, "%s", err.text);
	stats_name(st, STATS_INPUT, 0, "metrics", 0, 1, "udp");
	stats_name(st, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	for (unsigned i = 0; i < backends; i++) {
		char name[32];
		snprintf(name, sizeof(name), "10.0.%u.%u:8125", i / 250, i % 250);
		stats_name(st, STATS_BACKEND, i, name, 0, 0, "tcp");
	}
	return st;
}

/* A batch of lines to `n` backends from `first` on, as a worker counts one: the draft is out of balance in between. */
static void batch_count(struct stats_page *p, unsigned first, unsigned n)
{
	struct stats_input *in = stats_input(p, 0);
	in->received_datagrams++;
	in->to_outputs_datagrams++;
	in->received_lines += n;
	in->to_outputs_lines += n;
	struct stats_output *out = stats_output(p, 0);
	out->offered_records += n;
	out->taken_records += n;
	for (unsigned i = 0; i < n; i++) {
		unsigned index = (first + i) % BACKENDS;
		struct stats_backend *be = stats_backend(p, index);
		be->offered_records++;
		be->delivered_records++;
		stats_touch(p, STATS_BACKEND, index);
	}
	stats_touch(p, STATS_INPUT, 0);
	stats_touch(p, STATS_OUTPUT, 0);
}

static uint64_t taken_value(struct stats_copy *c, enum stats_scope scope, unsigned index, const char *name)
{
	ck_assert_msg(stats_copy_take(c, &err) == 0, "%s", err.text);
	return stats_named(c, STATS_ALL, scope, index, name);
}

static void assert_balanced(const struct stats_copy *c)
{
	struct text t = {0};
	unsigned wrong = stats_check(c, &t);
	ck_assert_msg(wrong == 0, "%u rows: %.400s", wrong, t.s);
	text_free(&t);
}

START_TEST(test_publish)
{
	struct stats *st = pages_make(2, BACKENDS);
	struct stats_copy *c = stats_copy_new(st);
	ck_assert_uint_eq(stats_slots(st), 2);
	struct stats_page *p = stats_slot_page(st, 1, 0);
	stats_publish(p); /* nothing was touched */
	ck_assert_uint_eq(p->shared->sequence, 0);
	batch_count(p, 0, 3);
	stats_touch(p, STATS_INPUT, 0);                                         /* twice */
	ck_assert_uint_eq(taken_value(c, STATS_INPUT, 0, "received_lines"), 0); /* not before it is published */
	stats_publish(p);
	ck_assert_uint_eq(p->shared->sequence, 2);
	ck_assert_uint_eq(taken_value(c, STATS_INPUT, 0, "received_lines"), 3);
	ck_assert_uint_eq(stats_named(c, 1, STATS_INPUT, 0, "received_lines"), 3);
	ck_assert_uint_eq(stats_named(c, 0, STATS_INPUT, 0, "received_lines"), 0);
	batch_count(stats_slot_page(st, 0, 0), 2, 2);
	stats_publish(stats_slot_page(st, 0, 0));
	ck_assert_uint_eq(taken_value(c, STATS_BACKEND, 2, "offered_records"), 2);
	assert_balanced(c);
	stats_worker(p)->loops = 7;
	stats_touch(p, STATS_WORKER, 0);
	stats_publish(p);
	ck_assert_uint_eq(taken_value(c, STATS_WORKER, 0, "loops"), 7);
	stats_copy_free(c);
	stats_free(st);
}
END_TEST

START_TEST(test_master_page)
{
	struct stats *st = pages_make(3, 1);
	struct stats_copy *c = stats_copy_new(st);
	struct stats_page *p = stats_master_page(st);
	stats_master(p)->started_us = 11;
	stats_slot(p, 2)->pid = 22;
	stats_endpoint(p, 4)->dropped_datagrams = 33;
	stats_touch(p, STATS_MASTER, 0);
	stats_touch(p, STATS_SLOT, 2);
	stats_touch(p, STATS_ENDPOINT, 4);
	stats_publish(p);
	ck_assert_uint_eq(taken_value(c, STATS_MASTER, 0, "started_us"), 11);
	ck_assert_uint_eq(stats_named(c, 0, STATS_SLOT, 2, "pid"), 22);
	ck_assert_uint_eq(stats_named(c, 99, STATS_ENDPOINT, 4, "dropped_datagrams"), 33);
	ck_assert_uint_eq(stats_copy_entries(c, STATS_ENDPOINT), 5); /* used, never named */
	ck_assert_str_eq(stats_copy_entry(c, STATS_ENDPOINT, 4)->name, "#4");
	ck_assert_uint_eq(stats_entries(st, STATS_ENDPOINT), 0);
	ck_assert_uint_eq(stats_entries(st, STATS_SLOT), 3);
	ck_assert_str_eq(stats_entry(st, STATS_WORKER, 2)->name, "2");
	/* out of range */
	ck_assert_uint_eq(stats_named(c, 3, STATS_INPUT, 0, "received_lines"), 0);
	ck_assert_uint_eq(stats_named(c, -7, STATS_INPUT, 0, "received_lines"), 0);
	ck_assert_uint_eq(stats_named(c, 0, STATS_INPUT, 64, "received_lines"), 0);
	ck_assert_uint_eq(stats_named(c, 0, STATS_INPUT, 0, "no_such_counter"), 0);
	ck_assert_uint_eq(stats_value(c, 0, STATS_INPUT, 0, 999), 0);
	struct stats_slot slot;
	ck_assert(stats_sum(c, 0, STATS_SLOT, 2, &slot));
	ck_assert_uint_eq(slot.pid, 22);
	stats_copy_free(c);
	stats_copy_free(NULL);
	stats_free(st);
	stats_free(NULL);
}
END_TEST

START_TEST(test_adopt_draft)
{
	struct stats *st = pages_make(1, BACKENDS);
	struct stats_copy *c = stats_copy_new(st);
	struct stats_page *p = stats_slot_page(st, 0, 0);
	batch_count(p, 0, 5);
	stats_publish(p);
	batch_count(p, 3, 5); /* counted, not published: its lines are what lost_at_death is for */
	stats_adopt(p);
	ck_assert_uint_eq(stats_input(p, 0)->received_lines, 5);
	ck_assert_uint_eq(stats_backend(p, 7)->offered_records, 0);
	ck_assert_uint_eq(p->n_touched, 0);
	batch_count(p, 0, 1);
	stats_publish(p);
	ck_assert_uint_eq(taken_value(c, STATS_INPUT, 0, "received_lines"), 6);
	assert_balanced(c);
	/* cut off after two blocks: the publication is finished */
	batch_count(p, 0, 4);
	p->shared->sequence++;
	p->stamps[p->touched[0].block] = (uint32_t)p->shared->sequence;
	memcpy(p->published + p->touched[0].offset, p->draft + p->touched[0].offset, p->touched[0].bytes);
	ck_assert_int_eq(stats_copy_take(c, &err), -EAGAIN);
	ck_assert_ptr_nonnull(strstr(err.text, "worker 0"));
	stats_adopt(p);
	ck_assert_uint_eq(p->shared->sequence % 2, 0);
	ck_assert_uint_eq(taken_value(c, STATS_INPUT, 0, "received_lines"), 10);
	assert_balanced(c);
	p = stats_master_page(st);
	p->shared->sequence++;
	ck_assert_int_eq(stats_copy_take(c, &err), -EAGAIN);
	ck_assert_ptr_nonnull(strstr(err.text, "the master"));
	stats_copy_free(c);
	stats_free(st);
}
END_TEST

static _Noreturn void writer_run(struct stats *st, unsigned seed)
{
	struct stats_page *p = stats_slot_page(st, 0, 0);
	for (unsigned i = seed;; i = i * 1103515245 + 12345) {
		batch_count(p, i >> 8, 1 + (i >> 4) % (i % 4 ? 20 : BACKENDS));
		stats_publish(p);
	}
}

/* Takes copies until the pipe ends; 0 when every one balanced and no total went back. */
static _Noreturn void reader_run(struct stats *st, int pipe_fd)
{
	char byte;
	uint64_t copies = 0, before = 0;
	fcntl(pipe_fd, F_SETFL, O_NONBLOCK);
	struct stats_copy *c = stats_copy_new(st);
	while (read(pipe_fd, &byte, 1) == -1 && errno == EAGAIN) {
		struct text t = {0};
		if (stats_copy_take(c, &err) != 0)
			continue;
		copies++;
		uint64_t now = stats_named(c, 0, STATS_INPUT, 0, "received_lines");
		if (stats_check(c, &t) != 0 || now < before) {
			fprintf(stderr, "copy %llu: %.300s\n", (unsigned long long)copies,
				t.s ? t.s : "a total went back");
			_exit(1);
		}
		before = now;
		text_free(&t);
	}
	stats_copy_free(c);
	_exit(copies > 100 ? 0 : 2);
}

static void assert_draft_is_published(struct stats_page *p)
{
	for (unsigned s = 0; s < STATS_MASTER; s++) {
		const struct stats_scope_layout *l = &p->head->scopes[s];
		ck_assert_mem_eq(p->draft + l->half_offset, p->published + l->half_offset,
				 p->shared->used[s] * l->block_bytes);
	}
}

START_TEST(test_kill)
{
	struct stats *st = pages_make(1, BACKENDS);
	struct stats_page *p = stats_slot_page(st, 0, 0);
	struct stats_copy *c = stats_copy_new(st);
	int ends[2], status;
	unsigned cut_off = 0, seed = 1;
	ck_assert_int_eq(pipe(ends), 0);
	pid_t reader = fork();
	if (reader == 0) {
		close(ends[1]);
		reader_run(st, ends[0]);
	}
	for (unsigned i = 0; i < KILLS; i++) {
		pid_t writer = fork();
		if (writer == 0)
			writer_run(st, seed + i);
		seed = seed * 1103515245 + 12345;
		uint64_t until = clock_us() + seed / 65536 % 500;
		while (clock_us() < until)
			;
		kill(writer, SIGKILL);
		ck_assert_int_eq(waitpid(writer, &status, 0), writer);
		ck_assert(WIFSIGNALED(status));
		cut_off += p->shared->sequence & 1;
		stats_adopt(p);
		assert_draft_is_published(p);
		if (i % 16 == 0) {
			ck_assert_int_eq(stats_copy_take(c, &err), 0);
			assert_balanced(c);
		}
	}
	close(ends[1]);
	ck_assert_int_eq(waitpid(reader, &status, 0), reader);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "reader: status %x", status);
	ck_assert_msg(cut_off > 0, "no kill met a publication: the test shows nothing");
	printf("%u kills, %u within a publication\n", KILLS, cut_off);
	stats_copy_free(c);
	stats_free(st);
}
END_TEST

START_TEST(test_directory)
{
	struct stats *st = pages_make(1, 2);
	struct stats *reader;
	ck_assert_ptr_nonnull(reader = reader_open(st, &err));
	struct stats_copy *c = stats_copy_new(reader);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert_uint_eq(stats_copy_entries(c, STATS_BACKEND), 2);
	char longest[400];
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	stats_name(st, STATS_BACKEND, 2, longest, 9, 0, "a unit that is too long");
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert_uint_eq(stats_copy_entries(c, STATS_BACKEND), 3);
	ck_assert_uint_eq(strlen(stats_copy_entry(c, STATS_BACKEND, 2)->name), 263);
	ck_assert_uint_eq(stats_copy_entry(c, STATS_BACKEND, 2)->parent, 0); /* output 9 does not exist */
	ck_assert_uint_eq(stats_entries(reader, STATS_BACKEND), 2);          /* as it was opened */
	ck_assert_str_eq(stats_entry(reader, STATS_BACKEND, 1)->unit, "tcp");
	stats_name(st, STATS_BACKEND, 1, NULL, 0, 0, "tcp");
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert_str_eq(stats_copy_entry(c, STATS_BACKEND, 1)->name, "#1");
	ck_assert_uint_eq(stats_copy_entry(c, STATS_BACKEND, 1)->used, 0);
	/* the master was stopped in the middle of a name */
	struct stats_directory_head *d = (struct stats_directory_head *)(st->files[0].at + st->head.directory_offset);
	d->sequence++;
	ck_assert_int_eq(stats_copy_take(c, &err), -EAGAIN);
	ck_assert_ptr_nonnull(strstr(err.text, "names"));
	ck_assert_ptr_null(reader_open(st, &err));
	stats_copy_free(c);
	stats_free(reader);
	stats_free(st);
}
END_TEST

/* 10,000 backends while their writer publishes 20,000 times a second: each copy is complete, whole, and in time. */
START_TEST(test_many)
{
	struct stats *st = stats_new(1, 0, &err);
	struct stats_copy *c = stats_copy_new(st);
	int status;
	for (unsigned i = 0; i < STATS_BACKENDS_MAX; i++)
		stats_name(st, STATS_BACKEND, i, "h:1", 0, 0, "tcp");
	stats_name(st, STATS_INPUT, 0, "in", 0, 1, "udp");
	stats_name(st, STATS_OUTPUT, 0, "out", 0, 0, "lines");
	struct stats_page *p = stats_slot_page(st, 0, 0);
	for (unsigned i = 0; i < STATS_BACKENDS_MAX; i++)
		stats_touch(p, STATS_BACKEND, i);
	stats_publish(p);
	pid_t writer = fork();
	if (writer == 0) {
		for (unsigned i = 1;; i = i * 1103515245 + 12345) {
			batch_count(p, i >> 8, 10);
			stats_publish(p);
			for (uint64_t until = clock_us() + 50; clock_us() < until;)
				;
		}
	}
	/* on a busy machine 30 copies may be over before the writer has begun */
	for (int i = 0; i < 30 || stats_named(c, 0, STATS_INPUT, 0, "received_lines") == 0; i++) {
		ck_assert_msg(stats_copy_take(c, &err) == 0, "copy %d: %s", i, err.text);
		assert_balanced(c);
	}
	kill(writer, SIGKILL);
	waitpid(writer, &status, 0);
	stats_adopt(p);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	assert_balanced(c);
	ck_assert_uint_gt(stats_named(c, 0, STATS_INPUT, 0, "received_lines"), 0);
	stats_copy_free(c);
	stats_free(st);
}
END_TEST

/* What a reload does to the directory. */
START_TEST(test_places)
{
	struct stats *st = stats_new(1, 3, &err);
	ck_assert_uint_eq(stats_room(st), 3);
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "a:1", 0, "tcp"), 0);
	stats_name(st, STATS_BACKEND, 0, "a:1", 0, 0, "tcp");
	stats_name(st, STATS_BACKEND, 1, "b:1", 0, 0, "tcp");
	stats_name(st, STATS_BACKEND, 2, "b:1", 1, 0, "tcp");
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "a:1", 0, "tcp"), 3); /* the one of that name is in use */
	stats_retire(st, STATS_BACKEND, 1);
	stats_retire(st, STATS_BACKEND, 2);
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "b:1", 0, "tcp"), 1); /* comes back */
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "b:1", 1, "tcp"), 2);
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "b:1", 0, "udp"), 3);
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "c:1", 0, "tcp"), 3);
	stats_name(st, STATS_BACKEND, 3, NULL, 0, 0, NULL);
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "c:1", 0, "tcp"), 3); /* a hole */
	for (unsigned i = 3; i < STATS_BACKENDS_MAX; i++)
		stats_name(st, STATS_BACKEND, i, "x:1", 0, 0, "tcp");
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "c:1", 0, "tcp"), 1); /* none is left: a retired sibling's */
	ck_assert_int_eq(stats_place(st, STATS_BACKEND, "c:1", 0, "udp"), -1);

	struct stats_copy *c = stats_copy_new(st);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert(stats_copy_is_retired(c, STATS_BACKEND, 1) && !stats_copy_is_retired(c, STATS_BACKEND, 0));
	ck_assert_str_eq(stats_copy_entry(c, STATS_BACKEND, 1)->name, "b:1");
	ck_assert_uint_eq(stats_copy_slots(c), 1);
	ck_assert_int_eq(stats_add_slot(st, &err), 0);
	ck_assert_int_eq(stats_add_slot(st, &err), 0);
	ck_assert_int_eq(stats_add_slot(st, &err), -ENOSPC);
	stats_worker(stats_slot_page(st, 2, 0))->loops = 7;
	stats_touch(stats_slot_page(st, 2, 0), STATS_WORKER, 0);
	stats_publish(stats_slot_page(st, 2, 0));
	ck_assert_int_eq(stats_copy_take(c, &err), 0); /* follows */
	ck_assert_uint_eq(stats_copy_slots(c), 3);
	ck_assert_uint_eq(stats_named(c, STATS_ALL, STATS_WORKER, 0, "loops"), 7);
	stats_copy_free(c);
	stats_free(st);
}
END_TEST

/* An output that an input is made to feed later balances from then on: the page says who feeds whom. */
START_TEST(test_rebased)
{
	struct stats *st = pages_make(1, 2);
	struct stats_copy *c = stats_copy_new(st);
	struct stats_page *p = stats_slot_page(st, 0, 0);
	stats_name(st, STATS_OUTPUT, 1, "copy", 0, 0, "lines");
	stats_input(p, 0)->received_lines = stats_input(p, 0)->to_outputs_lines = 10;
	stats_output(p, 0)->offered_records = stats_output(p, 0)->dropped_shutdown_records = 10;
	stats_touch(p, STATS_INPUT, 0);
	stats_touch(p, STATS_OUTPUT, 0);
	stats_publish(p);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	assert_balanced(c); /* by the directory, as long as the page does not say it */
	stats_input(p, 0)->feeds = 2;
	stats_output(p, 0)->rebased_records = UINT64_MAX - 9;
	stats_output(p, 1)->rebased_records = 10;
	for (unsigned i = 0; i < 2; i++)
		stats_touch(p, STATS_OUTPUT, i);
	stats_touch(p, STATS_INPUT, 0);
	stats_publish(p);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	assert_balanced(c);
	stats_output(p, 1)->offered_records = stats_output(p, 1)->dropped_shutdown_records = 1;
	stats_touch(p, STATS_OUTPUT, 1);
	stats_publish(p);
	struct text t = {0};
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert_uint_eq(stats_check(c, &t), 1);
	text_free(&t);
	stats_copy_free(c);
	stats_free(st);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stats");
	TCase *tc = tcase_create("pages");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, test_publish);
	tcase_add_test(tc, test_master_page);
	tcase_add_test(tc, test_adopt_draft);
	tcase_add_test(tc, test_kill);
	tcase_add_test(tc, test_directory);
	tcase_add_test(tc, test_many);
	tcase_add_test(tc, test_places);
	tcase_add_test(tc, test_rebased);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
