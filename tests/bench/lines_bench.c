/* SPDX-License-Identifier: MIT
 *
 * lines_bench: what lines_cut costs a line, against the floor of shared/bench/limit_shard.c (memchr for the newline and
 * the colon, MurmurHash3 of the key, nothing checked or counted), in one process on the same bytes in turn. Prints the
 * median of the rounds. usage: lines_bench [rounds [datagram_bytes]]
 */
#include "../../src/input/lines.h"

#include <stdio.h>
#include <string.h>

enum { DATAGRAMS = 512, ROOM = 9216, ROUNDS_MAX = 1001, METHODS = 11 };

static char datagrams[DATAGRAMS][ROOM + BATCH_SLACK];
static size_t lens[DATAGRAMS], total_lines;
static struct line cut_lines[BATCH_LINES];
static volatile uint32_t sink;

static inline uint32_t rotl(uint32_t x, int r)
{
	return x << r | x >> (32 - r);
}

/* As limit_shard has it, inline and with its switch. */
static inline uint32_t floor_murmur(const uint8_t *p, size_t len)
{
	uint32_t h = 0xaccd3d34, k;
	size_t i;
	for (i = 0; i + 4 <= len; i += 4) {
		memcpy(&k, p + i, 4);
		k *= 0xcc9e2d51;
		k = rotl(k, 15);
		k *= 0x1b873593;
		h ^= k;
		h = rotl(h, 13);
		h = h * 5 + 0xe6546b64;
	}
	k = 0;
	switch (len & 3) {
	case 3:
		k ^= (uint32_t)p[i + 2] << 16; /* fall through */
	case 2:
		k ^= (uint32_t)p[i + 1] << 8; /* fall through */
	case 1:
		k ^= p[i];
		k *= 0xcc9e2d51;
		k = rotl(k, 15);
		k *= 0x1b873593;
		h ^= k;
	}
	h ^= (uint32_t)len;
	h ^= h >> 16;
	h *= 0x85ebca6b;
	h ^= h >> 13;
	h *= 0xc2b2ae35;
	return h ^ h >> 16;
}

static size_t floor_cut(char *s, size_t len, struct line *out)
{
	char *e = s + len;
	size_t n = 0;
	*e = '\n';
	while (s < e) {
		char *nl = memchr(s, '\n', (size_t)(e - s + 1)), *c = memchr(s, ':', (size_t)(nl - s));
		if (c && c > s)
			out[n++] = (struct line){s, (uint32_t)(nl - s), (uint32_t)(c - s),
						 floor_murmur((const uint8_t *)s, (size_t)(c - s)), 0};
		s = nl + 1;
	}
	return n;
}

static void fill(size_t bytes, const char *format, bool one)
{
	static const char *const types[] = {"ms", "c", "g"};
	long k = 0;
	total_lines = 0;
	for (int i = 0; i < DATAGRAMS; i++) {
		lens[i] = 0;
		for (;;) {
			char line[512], value[16];
			long key = (long)((k * 2654435761u) % 10000);
			k++;
			if (strchr(format, '@')) /* mixed values */
				snprintf(value, sizeof(value), k % 2 ? "%ld.%ld" : "%ld", k % 1000, k % 97);
			else
				snprintf(value, sizeof(value), "%ld", k % 1000);
			int m = snprintf(line, sizeof(line), format, key % 200, key, value, types[k % 3]);
			if (lens[i] + (size_t)m > bytes && lens[i])
				break;
			memcpy(datagrams[i] + lens[i], line, (size_t)m);
			lens[i] += (size_t)m;
			total_lines++;
			if (one)
				break;
		}
	}
}

static bool works(int method)
{
	return method < 3 || lines_scan_works((enum lines_scan)((method - 3) / 2));
}

static double run(int method)
{
	struct lines ls = {.protocol = LINES_STATSD, .validate = method % 2 == 0};
	uint64_t begin = clock_us();
	uint32_t sum = 0;
	size_t repeats = 1 + 100000 / total_lines;
	for (size_t r = 0; r < repeats; r++) {
		for (int i = 0; i < DATAGRAMS; i++) {
			char *at = datagrams[i], *end = at + lens[i];
			size_t n = method == 0	 ? floor_cut(at, lens[i], cut_lines)
				   : method <= 2 ? lines_cut(&ls, &at, end, true, cut_lines, BATCH_LINES)
						 : lines_cut_by((enum lines_scan)((method - 3) / 2), &ls, &at, end,
								true, cut_lines, BATCH_LINES);
			sum += cut_lines[n / 2].hash;
		}
	}
	sink = sum;
	return (double)(clock_us() - begin) * 1000 / (double)(total_lines * repeats);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name, *format;
		bool one;
	} loads[] = {
	    {"blast", "app.web%03ld.request.latency.k%06ld:%s|%s\n", false},
	    {"blast, one line a datagram", "app.web%03ld.request.latency.k%06ld:%s|%s\n", true},
	    {"keys of mixed lengths", "app.web%ld.latency.k%ld:%s|%s\n", false},
	    {"mixed values, rate and tags", "app.web%03ld.request.latency.k%06ld:%s|%s|@0.5|#env:prod,host:web01\n",
	     false},
	};
	static const char *const names[METHODS] = {"floor: memchr + murmur",
						   "lines_cut, no validation",
						   "lines_cut",
						   "portable, no validation",
						   "portable",
						   "sse2, no validation",
						   "sse2",
						   "avx2, no validation",
						   "avx2",
						   "neon, no validation",
						   "neon"};
	static double ns[METHODS][ROUNDS_MAX];
	int rounds = argc > 1 ? atoi(argv[1]) : 51;
	size_t bytes = argc > 2 ? (size_t)atol(argv[2]) : 1432;
	if (rounds < 1 || rounds > ROUNDS_MAX || bytes < 1 || bytes > ROOM) {
		fprintf(stderr, "usage: lines_bench [rounds 1..%d [datagram_bytes 1..%d]]\n", ROUNDS_MAX, ROOM);
		return 2;
	}
	for (size_t load = 0; load < ARRAY_LEN(loads); load++) {
		fill(bytes, loads[load].format, loads[load].one);
		for (int r = 0; r < rounds; r++)
			for (int method = 0; method < METHODS; method++)
				if (works(method))
					ns[method][r] = run(method);
		printf("%s\n", loads[load].name);
		for (int method = 0; method < METHODS; method++) {
			if (!works(method))
				continue;
			qsort(ns[method], (size_t)rounds, sizeof(double), by_value);
			double median = ns[method][rounds / 2];
			printf("  %-28s %6.1f ns/line  %+6.1f over the floor\n", names[method], median,
			       median - ns[0][rounds / 2]);
		}
	}
	return 0;
}
