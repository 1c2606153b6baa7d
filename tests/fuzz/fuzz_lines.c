/* SPDX-License-Identifier: MIT
 *
 * fuzz_lines: the line cutter against the reference. The first byte of the input chooses protocol, validation and the
 * sizes of the pieces; the rest is the stream. Cut at once, cut in pieces as a stream brings them, by each way of
 * looking: all must give the lines that the reference gives. Each piece lies at the end of its own allocation, so that
 * the address sanitizer sees a read beyond the slack or before the start.
 */
#include "../../src/input/lines.h"
#include "lines_reference.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "fuzz_lines: %s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

struct expected {
	const char *next, *end;
	bool carbon, validate;
	struct lines_counts counts;
};

static bool is_status(void *arg, const char *bytes, size_t len)
{
	(void)arg;
	return len == 6 && memcmp(bytes, "status", 6) == 0;
}

/* The reference's next line of kind F, or false at the end of the stream. */
static bool next_forwarded(struct expected *x, struct ref *r, const char **line)
{
	while (x->next < x->end) {
		const char *newline = memchr(x->next, '\n', (size_t)(x->end - x->next));
		const char *stop = newline ? newline : x->end;
		*line = x->next;
		*r = ref_line(x->carbon, x->validate, *line, (size_t)(stop - *line));
		x->next = newline ? newline + 1 : stop;
		x->counts.received++;
		if (r->kind == 'F') {
			x->counts.to_outputs++;
			return true;
		}
		if (r->kind == 'E')
			x->counts.empty++;
		else if (is_status(NULL, *line, r->len))
			x->counts.commands++;
		else
			x->counts.invalid++;
	}
	return false;
}

static void compare(struct expected *x, const struct line *lines, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct ref r;
		const char *line;
		MUST(next_forwarded(x, &r, &line));
		MUST(lines[i].len == r.len && lines[i].key_at == r.key_at && lines[i].key_len == r.key_len);
		MUST(memcmp(lines[i].bytes, line, r.len) == 0);
		MUST(lines[i].hash == hash_murmur3_32(line + r.key_at, r.key_len, HASH_STATSRELAY_SEED));
	}
}

static void compare_end(struct expected *x, const struct lines_counts *counts)
{
	struct ref r;
	const char *line;
	MUST(!next_forwarded(x, &r, &line));
	MUST(memcmp(&x->counts, counts, sizeof(*counts)) == 0);
	MUST(counts->received == counts->to_outputs + counts->invalid + counts->empty + counts->commands);
}

/* Pieces of piece_bytes: what is left of one stands before the next. */
static void run(enum lines_scan scan, struct lines ls, const char *stream, size_t len, size_t piece_bytes, size_t max)
{
	struct expected x = {
	    .next = stream, .end = stream + len, .carbon = ls.protocol == LINES_CARBON, .validate = ls.validate};
	struct line *out = calloc(max, sizeof(*out));
	size_t from = 0, to = 0;
	do {
		to = MIN(len, to + piece_bytes);
		bool at_end = to == len;
		char *buf = malloc(to - from + BATCH_SLACK), *at = buf, *end = buf + (to - from);
		memcpy(buf, stream + from, to - from);
		memset(end, to % 2 ? '\n' : '|', BATCH_SLACK); /* slack that would like to be a line's end */
		for (;;) {
			char *before = at;
			size_t n = lines_cut_by(scan, &ls, &at, end, at_end, out, max);
			MUST(n <= max && at >= before && at <= end);
			compare(&x, out, n);
			if (n < max)
				break;
		}
		MUST(!at_end || at == end);
		MUST(!memchr(at, '\n', (size_t)(end - at)));
		from += (size_t)(at - buf);
		free(buf);
	} while (to < len);
	compare_end(&x, &ls.counts);
	free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	if (size < 1)
		return 0;
	static const size_t pieces[] = {1, 7, 63, 64, 65, 100};
	const char *stream = (const char *)input + 1;
	size_t len = size - 1;
	struct lines ls = {.protocol = input[0] & 1 ? LINES_CARBON : LINES_STATSD,
			   .validate = !(input[0] & 2),
			   .on_invalid = is_status};
	for (int scan = LINES_SCAN_PORTABLE; scan < LINES_SCANS; scan++) {
		if (!lines_scan_works((enum lines_scan)scan))
			continue;
		run((enum lines_scan)scan, ls, stream, len, len + 1, 3);
		run((enum lines_scan)scan, ls, stream, len, pieces[(input[0] >> 2) % ARRAY_LEN(pieces)], 2);
	}
	return 0;
}
