/* SPDX-License-Identifier: MIT
 *
 * packet_files: files that a test makes byte by byte, and reading them to their end.
 */
#ifndef PACKET_FILES_H
#define PACKET_FILES_H

#include "packet_samples.h"

static struct packet_reader r;

/* A file that grows in the test; every number in the byte order of `big`. */
struct file {
	uint8_t bytes[4096];
	size_t len;
	bool big;
};

static void put(struct file *f, uint64_t v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		f->bytes[f->len++] = (uint8_t)(v >> 8 * (f->big ? n - 1 - i : i));
}

/* Reads it whole: packets before the end, and how it ended. */
static enum packet_read read_whole(const void *bytes, size_t len, unsigned *packets)
{
	uint8_t *copy = exact(bytes, len);
	size_t at = 0, used;
	struct packet_record p;
	enum packet_read got;

	packet_reader_init(&r);
	for (*packets = 0; (got = packet_reader_next(&r, copy + at, len - at, true, &used, &p)) == PACKET_READ_PACKET;
	     ++*packets) {
		ck_assert(p.bytes >= copy + at && p.bytes + p.len <= copy + at + used);
		at += used;
	}
	ck_assert_uint_eq(r.offset, at + used);
	ck_assert_int_ne(got, PACKET_READ_MORE);
	free(copy);
	return got;
}

static void check_ends(const struct file *f, enum packet_read end, unsigned packets, const char *text)
{
	unsigned n;
	enum packet_read got = read_whole(f->bytes, f->len, &n);

	ck_assert_msg(got == end && n == packets && strstr(r.error, text) != NULL, "%d after %u packets: %s", got, n,
		      r.error);
}

#endif
