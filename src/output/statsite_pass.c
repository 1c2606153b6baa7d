/* SPDX-License-Identifier: MIT
 *
 * statsite_pass: what a worker that leaves could not deliver goes to its successor, in a memfd: a section for each backend.
 * What was sent and not acknowledged goes too, and is sent again there. How many lines there are goes along in the link's
 * message, so that whoever cannot take some counts them. Worker only.
 *
 *   | block, bytes | lines, each with its newline | block, bytes | lines …
 */
#include "statsite.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct section {
	uint32_t block;
	uint32_t reserved;
	uint64_t bytes;
};

enum { PIECES = 64 };

/* The file is in memory, which may be short. */
static bool write_all(int fd, const void *bytes, size_t len)
{
	const char *at = bytes;
	while (len > 0) {
		ssize_t n = write(fd, at, len);
		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		len -= (size_t)n;
	}
	return true;
}

/* False: memory is short. What is in the file then has left the queue, and nothing else has. */
static bool write_queue(int fd, struct queue *q, uint32_t block)
{
	struct section s = {.block = block, .bytes = queue_unsent_bytes(q)};
	struct iovec iov[PIECES];
	off_t end = lseek(fd, 0, SEEK_CUR);
	bool done = write_all(fd, &s, sizeof(s));
	while (done && queue_unsent_bytes(q) > 0) {
		unsigned n = queue_unsent(q, iov, PIECES, SIZE_MAX);
		uint64_t bytes = 0;
		end = lseek(fd, 0, SEEK_CUR);
		for (unsigned i = 0; done && i < n; i++) {
			done = write_all(fd, iov[i].iov_base, iov[i].iov_len);
			bytes += iov[i].iov_len;
		}
		if (done) {
			queue_sent(q, bytes);
			queue_acked(q, bytes);
		}
	}
	if (!done && ftruncate(fd, end) == 0) /* else a piece is there twice, as after a reset */
		lseek(fd, end, SEEK_SET);
	return done;
}

/* Whatever its state: its connection ends here, and its lines begin anew elsewhere. */
static bool pass_backend(int fd, struct backend *be)
{
	if (be->state == BACKEND_UP && backend_is_tcp(be))
		backend_tcp_settle(be);
	if (queue_held_bytes(&be->queue) == 0)
		return true;
	if (be->state != BACKEND_WAITING)
		backend_lost(be, "its lines go to another worker");
	uint64_t lines = queue_unsent_lines(&be->queue);
	bool done = write_queue(fd, &be->queue, be->block);
	lines -= queue_unsent_lines(&be->queue);
	be->draft->passed_records += lines;
	be->st->out->passed_records += lines;
	backend_account(be);
	return done;
}

int statsite_pass(struct output *out)
{
	struct statsite *st = out->impl;
	struct backend *be;
	int fd = memfd_create("millrace-lines", MFD_CLOEXEC);
	bool done = fd != -1;
	for (size_t i = 0; done && i < st->n_backends; i++)
		done = pass_backend(fd, st->backends[i]);
	TAILQ_FOREACH(be, &st->finishing, finishing)
	{
		done = done && pass_backend(fd, be);
	}
	if (!done) {
		log_error("output %s: no memory to hand all lines to the next worker", out->cf->name);
		return fd; /* the rest stays with us, for as long as there is */
	}
	st->pass_fd = fd;
	if (st->draft->held_records > 0)
		ev_feed_event(out->loop, &st->room_event, EV_CUSTOM);
	return fd;
}

void statsite_pass_line(struct backend *be, const struct line *l)
{
	struct section s = {.block = be->block, .bytes = l->len + UINT64_C(1)};
	int fd = be->st->pass_fd;
	be->draft->offered_records++;
	if (write_all(fd, &s, sizeof(s)) && write_all(fd, l->bytes, l->len) && write_all(fd, "\n", 1)) {
		be->draft->passed_records++;
		be->st->out->passed_records++;
	} else {
		be->draft->dropped_memory_records++;
	}
	stats_touch(be->st->out->page, STATS_BACKEND, be->block);
}

/* -- the other end --------------------------------------------------------------------------------------------------- */

static struct backend *find(const struct statsite *st, uint32_t block)
{
	for (size_t i = 0; i < st->n_backends; i++)
		if (st->backends[i]->block == block)
			return st->backends[i];
	return NULL;
}

/* Returns how many lines it was. */
static uint64_t take_section(struct statsite *st, const struct section *s, const char *lines)
{
	struct backend *known = find(st, s->block);
	uint64_t taken = statsite_take_lines(st, known, lines, s->bytes, UINT64_MAX);
	statsite_account_changed(st);
	return taken;
}

/* Returns how many lines were there and could be read. */
static uint64_t take_file(struct statsite *st, int fd)
{
	struct stat sb;
	uint64_t taken = 0;
	/* a page more: lines are copied 64 bytes at a time, over their end */
	if (fstat(fd, &sb) == -1 || sb.st_size == 0 || ftruncate(fd, sb.st_size + POOL_PAGE_BYTES) == -1)
		return 0;
	size_t size = (size_t)sb.st_size;
	char *bytes = mmap(NULL, size + POOL_PAGE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return 0;
	struct section s;
	for (size_t at = 0; size - at > sizeof(s); at += s.bytes) {
		memcpy(&s, bytes + at, sizeof(s));
		at += sizeof(s);
		s.bytes = MIN(s.bytes, size - at); /* memory was short when it was written */
		taken += take_section(st, &s, bytes + at);
	}
	munmap(bytes, size + POOL_PAGE_BYTES);
	return taken;
}

void statsite_take(struct output *out, int fd, uint64_t records)
{
	struct statsite *st = out->impl;
	st->now_us = clock_us();
	uint64_t taken = take_file(st, fd);
	if (taken < records) {
		struct backend *be = st->backends[0]; /* whose they were was in the file */
		log_error("output %s: %llu lines of another worker are lost: no memory to take them over", out->cf->name,
			  (unsigned long long)(records - taken));
		be->draft->taken_over_records += records - taken;
		be->draft->dropped_memory_records += records - taken;
		backend_account(be);
	}
	statsite_after_event(st);
}
