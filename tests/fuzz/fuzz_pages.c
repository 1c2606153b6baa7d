/* SPDX-License-Identifier: MIT
 *
 * fuzz_pages: the files of the counter pages, as a reader meets them when who writes them is of another version, or
 * hostile. The input is a list of changes, 8 bytes each: which file, where, and what stands there then. What must hold:
 * they are refused, or every way to read them stays inside.
 */
#include <fcntl.h>
#include <report.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../src/stats/stats_private.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

enum { FILES = 4, FRONT_BYTES = 1 << 20 };
struct change {
	uint8_t file, is_wide; /* is_wide: at the begin of an entry of 4 KiB, so that all of a file can be reached */
	uint16_t at;
	uint32_t value;
};

static struct stats *st;

static void make_pages(void)
{
	struct err err = {""};
	st = stats_new(1, 1, &err);
	if (st == NULL || stats_files(st) != FILES)
		abort();
	report_drops_name(st);
	stats_name(st, STATS_INPUT, 0, "metrics", 0, 1, "udp");
	stats_name(st, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	stats_name(st, STATS_BACKEND, 0, "10.0.0.1:8125", 0, 0, "tcp");
	struct stats_page *p = stats_slot_page(st, 0, 0);
	stats_input(p, 0)->received_lines = stats_input(p, 0)->to_outputs_lines = 7;
	stats_touch(p, STATS_INPUT, 0);
	stats_publish(p);
}

/* As it is now, and may be written: sparse beyond its first MiB. */
static int copy_of(unsigned file)
{
	static char bytes[FRONT_BYTES];
	struct stat sb;
	int from = stats_reader_fd(st, file), fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd == -1 || fstat(from, &sb) == -1 || ftruncate(fd, sb.st_size) == -1)
		abort();
	ssize_t n = pread(from, bytes, sizeof(bytes), 0);
	if (n < 0 || pwrite(fd, bytes, (size_t)n, 0) != n || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == -1)
		abort();
	return fd;
}

static void read_all(struct stats *reader)
{
	static uint64_t block[256];
	struct err err = {""};
	struct text t = {0};
	const struct report_program program = {"1", 1, 1};
	struct stats_copy *c = stats_copy_new(reader);
	if (c != NULL && stats_copy_take(c, &err) == 0) {
		stats_check(c, &t);
		report_statsrelay(c, &t);
		report_status_json(c, &program, &t);
		report_prometheus(c, &program, &t);
		report_json(c, &t);
		for (unsigned s = 0; s < STATS_SCOPES; s++)
			stats_sum(c, 0, s, 0, block);
	}
	text_free(&t);
	stats_copy_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	int fds[FILES];
	struct err err = {""};
	struct change c;
	if (st == NULL)
		make_pages();
	for (unsigned i = 0; i < FILES; i++)
		fds[i] = copy_of(i);
	for (; size >= sizeof(c); input += sizeof(c), size -= sizeof(c)) {
		memcpy(&c, input, sizeof(c));
		off_t at = c.is_wide & 1 ? (off_t)c.at * 4096 : c.at;
		struct stat sb;
		if (fstat(fds[c.file % FILES], &sb) == 0 && at + 4 <= sb.st_size &&
		    pwrite(fds[c.file % FILES], &c.value, sizeof(c.value), at) != sizeof(c.value))
			abort();
	}
	struct stats *reader = stats_open(fds, FILES, &err);
	for (unsigned i = 0; i < FILES; i++)
		close(fds[i]);
	if (reader != NULL)
		read_all(reader);
	stats_free(reader);
	return 0;
}
