/* SPDX-License-Identifier: MIT
 *
 * test_stats_open: the file of the counter pages as a reader meets it: read only, sealed, hostile, of another version;
 * and the writer's mistakes that must end it.
 */
#include "suite.h"
#include "../../src/stats/stats_private.h"
#include "stats_rig.h"
#include <errno.h>
#include <fcntl.h>
#include <report.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

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

START_TEST(test_reader_fds)
{
	struct stats *st = pages_make(2, 1);
	struct stat sb;
	ck_assert_uint_eq(stats_files(st), 6);
	for (unsigned i = 0; i < 6; i++) {
		int fd = stats_reader_fd(st, i);
		ck_assert_int_ge(fd, 0);
		ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
		ck_assert_int_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
		ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
		ck_assert_int_eq(fstat(fd, &sb), 0);
		ck_assert_int_eq((int)(sb.st_mode & 0777), 0400);
		ck_assert_int_eq(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
		ck_assert_msg(sb.st_blocks * 512 < 128 * 1024, "%lld bytes are real", (long long)sb.st_blocks * 512);
	}
	ck_assert_int_eq(stats_reader_fd(st, 6), -1);
	stats_free(st);
}
END_TEST

static int sealed_copy(const struct stats *st, size_t bytes, int seals)
{
	int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	ck_assert_int_eq(ftruncate(fd, (off_t)st->head.file_bytes), 0);
	size_t front = MIN(bytes, st->head.pages[STATS_OWNER_MASTER].offset);
	ck_assert_int_eq(pwrite(fd, st->files[0].at, front, 0), (ssize_t)front);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* With another main file. */
static struct stats *open_with(const struct stats *st, int fd)
{
	int fds[STATS_FILES_MAX];
	for (unsigned i = 0; i < stats_files(st); i++)
		fds[i] = i == 0 ? fd : stats_reader_fd(st, i);
	return stats_open(fds, stats_files(st), &err);
}

static void assert_refused(const struct stats *st, int fd, const char *why)
{
	err.text[0] = '\0';
	ck_assert_ptr_null(open_with(st, fd));
	ck_assert_msg(strstr(err.text, why) != NULL, "\"%s\" lacks \"%s\"", err.text, why);
	if (fd != -1)
		close(fd);
}

START_TEST(test_not_pages)
{
	struct stats *st = pages_make(1, 1);
	assert_refused(st, -1, "sealed");
	assert_refused(st, open("/dev/null", O_RDONLY), "sealed");
	assert_refused(st, sealed_copy(st, st->head.file_bytes, 0), "sealed"); /* could be cut under our feet */
	assert_refused(st, sealed_copy(st, 0, F_SEAL_SHRINK), "0 bytes");
	assert_refused(st, sealed_copy(st, 64, F_SEAL_SHRINK), "64 bytes");
	assert_refused(st, sealed_copy(st, 8192, F_SEAL_SHRINK), "damaged");
	int fd = sealed_copy(st, st->head.file_bytes, F_SEAL_SHRINK);
	struct stats *reader = open_with(st, fd);
	ck_assert_msg(reader != NULL, "%s", err.text);
	stats_free(reader);
	close(fd);
	stats_free(st);
}
END_TEST

/* Each 32-bit word of the head, replaced by awkward numbers: it is refused, or every way to read it stays inside. */
START_TEST(test_hostile_head)
{
	static const uint32_t awkward[] = {0, 1, 7, 8, 0x1000, 0xfff8, 0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff};
	struct stats *st = pages_make(1, 2);
	int fd = sealed_copy(st, st->head.file_bytes, F_SEAL_SHRINK);
	unsigned refused = 0, opened = 0;
	for (size_t at = 0; at < sizeof(st->head); at += 4) {
		for (size_t k = 0; k < ARRAY_LEN(awkward); k++) {
			ck_assert_int_eq(pwrite(fd, (char *)&st->head, sizeof(st->head), 0), sizeof(st->head));
			ck_assert_int_eq(pwrite(fd, &awkward[k], 4, (off_t)at), 4);
			struct stats *reader = open_with(st, fd);
			refused += !reader;
			opened += reader != NULL;
			struct stats_copy *c = reader ? stats_copy_new(reader) : NULL;
			if (c && stats_copy_take(c, &err) == 0) {
				struct text t = {0};
				struct report_program program = {"1", 1, 1};
				stats_check(c, &t);
				report_statsrelay(c, &t);
				report_status_json(c, &program, &t);
				uint64_t block[256];
				for (unsigned s = 0; s < STATS_SCOPES; s++)
					stats_sum(c, 0, s, stats_copy_entries(c, s), block);
				text_free(&t);
			}
			stats_copy_free(c);
			stats_free(reader);
		}
	}
	printf("%u heads refused, %u read\n", refused, opened);
	ck_assert_uint_gt(refused, 500);
	close(fd);
	stats_free(st);
}
END_TEST

/* A file of another version: counters that we do not know, one of ours missing, rows that cannot be. */
START_TEST(test_other_version)
{
	struct stats *st = pages_make(1, 2);
	struct stats_field *f = st->fields; /* in the file, and writable here */
	for (unsigned i = 0; i < st->head.n_fields; i++) {
		if (strcmp(f[i].name, "received_lines") == 0)
			memset(f[i].name, 'z', sizeof(f[i].name));
		if (strcmp(f[i].name, "reads") == 0)
			f[i].index = 255;
		if (strcmp(f[i].name, "budget_hits") == 0)
			f[i].ledger = f[i].kind = 200;
	}
	stats_name(st, STATS_BACKEND, 0, "b", 0, 0, "tcp");
	memset(st->entries[STATS_BACKEND][0].name, 'y', sizeof(st->entries[0][0].name));
	struct stats *reader = reader_open(st, &err);
	ck_assert_ptr_nonnull(reader);
	const struct stats_field *first;
	unsigned n = stats_fields(reader, STATS_INPUT, &first);
	for (unsigned i = 0; i < n; i++) {
		ck_assert_uint_lt(strlen(first[i].name), sizeof(first[i].name));
		ck_assert_uint_lt(first[i].index, n);
		ck_assert_uint_le(first[i].ledger, STATS_LEDGER_BETWEEN);
		ck_assert_uint_le(first[i].kind, STATS_KIND_STATE);
	}
	ck_assert_int_eq(stats_field_find(reader, STATS_INPUT, "received_lines"), -1);
	ck_assert_int_eq(stats_field_find(reader, STATS_INPUT, "reads"), -1);
	ck_assert_int_ge(stats_field_find(reader, STATS_INPUT, "held"), 0);
	struct stats_copy *c = stats_copy_new(reader);
	ck_assert_int_eq(stats_copy_take(c, &err), 0);
	ck_assert_uint_eq(strlen(stats_copy_entry(c, STATS_BACKEND, 0)->name), 263);
	uint64_t block[256];
	ck_assert(!stats_sum(c, 0, STATS_INPUT, 0, block));
	ck_assert(stats_sum(c, 0, STATS_OUTPUT, 0, block));
	/* fewer and more counters than we have */
	reader->head.scopes[STATS_ENDPOINT].n_fields--;
	ck_assert(!stats_sum(c, 0, STATS_ENDPOINT, 0, block));
	reader->head.scopes[STATS_OUTPUT].n_fields++;
	ck_assert(!stats_sum(c, 0, STATS_OUTPUT, 0, block));
	stats_copy_free(c);
	stats_free(reader);
	/* and the very structs */
	struct stats_head head = st->head;
	head.format++;
	ck_assert_int_eq(stats_layout_check(&head, head.file_bytes, &err), -EINVAL);
	ck_assert_ptr_nonnull(strstr(err.text, "format 3"));
	stats_free(st);
}
END_TEST

static void limit_set(int what, rlim_t n)
{
	struct rlimit limit = {.rlim_cur = n, .rlim_max = RLIM_INFINITY};
	getrlimit(what, &limit);
	limit.rlim_cur = n;
	ck_assert_int_eq(setrlimit(what, &limit), 0);
}

static void assert_no_pages(const char *why)
{
	err.text[0] = '\0';
	ck_assert_ptr_null(stats_new(2, 0, &err));
	ck_assert_msg(strstr(err.text, why) != NULL, "\"%s\" lacks \"%s\"", err.text, why);
}

/* What the system may refuse is one sentence each. */
START_TEST(test_short_of)
{
	int next = dup(0);
	close(next);
	limit_set(RLIMIT_NOFILE, (rlim_t)next);
	assert_no_pages("memfd_create");
	limit_set(RLIMIT_NOFILE, (rlim_t)next + 1);
	assert_no_pages("for reading: Too many open files");
	limit_set(RLIMIT_NOFILE, (rlim_t)next + 10);
	signal(SIGXFSZ, SIG_IGN);
	limit_set(RLIMIT_FSIZE, 4096);
	assert_no_pages("Cannot size the counter pages: File too large");
	limit_set(RLIMIT_FSIZE, RLIM_INFINITY);
#ifndef __SANITIZE_ADDRESS__ /* which needs 20 TB of it */
	struct stats *st = stats_new(2, 0, &err);
	limit_set(RLIMIT_AS, 1);
	assert_no_pages("Cannot map");
	ck_assert_ptr_null(reader_open(st, &err));
	ck_assert_ptr_nonnull(strstr(err.text, "Cannot map"));
	ck_assert_ptr_null(stats_copy_new(st));
	limit_set(RLIMIT_AS, RLIM_INFINITY);
	stats_free(st);
#endif
}
END_TEST

START_TEST(test_wrong_scope)
{
	struct stats *st = pages_make(1, 1);
	if (_i == 0)
		stats_input(stats_master_page(st), 0);
	else if (_i == 1)
		stats_slot(stats_slot_page(st, 0, 0), 0);
	else if (_i == 2)
		stats_input(stats_slot_page(st, 0, 0), STATS_INPUTS_MAX);
	else
		stats_slot_page(st, _i == 3, _i == 3 ? 0 : 2);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("stats_open");
	TCase *tc = tcase_create("open");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, test_reader_fds);
	tcase_add_test(tc, test_not_pages);
	tcase_add_test(tc, test_hostile_head);
	tcase_add_test(tc, test_other_version);
	tcase_add_test(tc, test_short_of);
	tcase_add_loop_test_raise_signal(tc, test_wrong_scope, SIGABRT, 0, 5);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
