/* SPDX-License-Identifier: MIT
 *
 * packet_samples: the rows of tests/data/packet/frames.tsv and the bytes of the files beside it, for the packet tests.
 */
#ifndef PACKET_SAMPLES_H
#define PACKET_SAMPLES_H

#include "suite.h"

#include <packet.h>
#include <string.h>

#ifndef TEST_DATA
#define TEST_DATA "tests/data"
#endif

enum { SAMPLES_MAX = 512, SAMPLE_FIELDS = 13 };

/* What one row says, made by make_frames.py. */
struct sample {
	char line[512]; /* cut at its tabs; the strings are in it */
	const char *file, *verdict, *ports, *payload, *what;
	unsigned long long time_ns, len, original_len, link_type, vlans, ip_version, protocol, flow;
};

static struct sample samples[SAMPLES_MAX];
static size_t n_samples;

static void sample_parse(struct sample *s)
{
	char *fields[SAMPLE_FIELDS], *rest = s->line;

	s->line[strcspn(s->line, "\n")] = 0;
	for (size_t i = 0; i < SAMPLE_FIELDS; i++) {
		fields[i] = strsep(&rest, "\t");
		ck_assert_ptr_nonnull(fields[i]);
	}
	s->file = fields[0];
	s->time_ns = strtoull(fields[1], NULL, 10);
	s->len = strtoull(fields[2], NULL, 10);
	s->original_len = strtoull(fields[3], NULL, 10);
	s->link_type = strtoull(fields[4], NULL, 10);
	s->verdict = fields[5];
	s->vlans = strtoull(fields[6], NULL, 10);
	s->ip_version = strtoull(fields[7], NULL, 10);
	s->protocol = strtoull(fields[8], NULL, 10);
	s->ports = fields[9];
	s->payload = fields[10];
	s->flow = strtoull(fields[11], NULL, 16);
	s->what = fields[12];
}

static inline void samples_load(void)
{
	FILE *f = fopen(TEST_DATA "/packet/frames.tsv", "r");

	ck_assert_ptr_nonnull(f);
	for (n_samples = 0; fgets(samples[n_samples].line, sizeof(samples[0].line), f);) {
		if (samples[n_samples].line[0] == '#')
			continue;
		sample_parse(&samples[n_samples++]);
		ck_assert_uint_lt(n_samples, SAMPLES_MAX);
	}
	fclose(f);
	ck_assert_uint_gt(n_samples, 90);
}

/* A sample file's bytes, in memory of exactly that size; freed by the caller. */
static inline uint8_t *samples_read(const char *file, size_t *len)
{
	char path[512];
	uint8_t *bytes;
	FILE *f;

	snprintf(path, sizeof(path), "%s/packet/%s", TEST_DATA, file);
	f = fopen(path, "rb");
	ck_assert_msg(f != NULL, "cannot open %s", path);
	fseek(f, 0, SEEK_END);
	*len = (size_t)ftell(f);
	rewind(f);
	bytes = malloc(*len ? *len : 1);
	ck_assert_uint_eq(fread(bytes, 1, *len, f), *len);
	fclose(f);
	return bytes;
}

/* Bytes in memory of exactly their size, so that the address sanitizer sees a read beyond them. */
static uint8_t *exact(const void *bytes, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);

	ck_assert_ptr_nonnull(copy);
	if (len)
		memcpy(copy, bytes, len);
	return copy;
}

/* Calls f with each packet of the sample files and its row. */
static inline void samples_each(void (*f)(const struct sample *s, const struct packet_record *p))
{
	static struct packet_reader r;
	size_t len = 0, at = 0, used;
	uint8_t *bytes = NULL;
	const char *open = "";
	struct packet_record p;

	for (size_t i = 0; i < n_samples; i++) {
		if (strcmp(open, samples[i].file) != 0) {
			ck_assert_uint_eq(at, len);
			free(bytes);
			bytes = samples_read(open = samples[i].file, &len);
			packet_reader_init(&r);
			at = 0;
		}
		ck_assert_msg(packet_reader_next(&r, bytes + at, len - at, true, &used, &p) == PACKET_READ_PACKET,
			      "%s: %s: %s", open, samples[i].what, r.error);
		f(&samples[i], &p);
		at += used;
		if (i + 1 == n_samples || strcmp(open, samples[i + 1].file) != 0) {
			ck_assert(packet_reader_next(&r, bytes + at, len - at, true, &used, &p) == PACKET_READ_END);
			at += used;
		}
	}
	free(bytes);
}

#endif
