/* SPDX-License-Identifier: MIT
 *
 * test_packet_flow: the flow hash is the pinned one, the same for both directions, and fair.
 */
#include "packet_samples.h"

#include <math.h>

static size_t from_hex(const char *hex, uint8_t *out, size_t size)
{
	size_t n = 0;

	for (; hex[2 * n] && n < size; n++) {
		unsigned byte;
		ck_assert_int_eq(sscanf(hex + 2 * n, "%2x", &byte), 1);
		out[n] = (uint8_t)byte;
	}
	return n;
}

START_TEST(pinned)
{
	FILE *f = fopen(TEST_DATA "/flow-hash.tsv", "r");
	char line[1024];
	unsigned n = 0;

	ck_assert_ptr_nonnull(f);
	while (fgets(line, sizeof(line), f)) {
		char *rest = line, *hash, *link, *hex;
		uint8_t bytes[256], *copy;
		size_t len;
		struct packet_view v;

		if (line[0] == '#')
			continue;
		hash = strsep(&rest, "\t");
		link = strsep(&rest, "\t");
		hex = strsep(&rest, "\t");
		ck_assert_ptr_nonnull(rest);
		len = from_hex(hex, bytes, sizeof(bytes));
		copy = exact(bytes, len);
		packet_decode(copy, len, len, (uint32_t)atoi(link), &v);
		ck_assert_msg(packet_flow_hash(&v) == strtoul(hash, NULL, 16), "%08x, should be %s: %s",
			      packet_flow_hash(&v), hash, rest);
		free(copy);
		n++;
	}
	fclose(f);
	ck_assert_uint_gt(n, 80);
}
END_TEST

static void swap(uint8_t *a, uint8_t *b, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		uint8_t t = a[i];
		a[i] = b[i];
		b[i] = t;
	}
}

static void check_both_directions(const struct sample *s, const struct packet_record *p)
{
	uint8_t *copy = exact(p->bytes, p->len);
	struct packet_view v;

	packet_decode(copy, p->len, p->original_len, p->link_type, &v);
	ck_assert_msg(packet_flow_hash(&v) == s->flow, "%s: %s", s->file, s->what);
	if (v.macs)
		swap(copy, copy + 6, 6);
	if (v.ip_version) {
		size_t source_at = (size_t)(v.source - copy), bytes = v.ip_version == 4 ? 4 : 16;
		swap(copy + source_at, copy + source_at + bytes, bytes);
	}
	if (v.has_ports)
		swap(copy + v.l4_at, copy + v.l4_at + 2, 2);
	packet_decode(copy, p->len, p->original_len, p->link_type, &v);
	ck_assert_msg(packet_flow_hash(&v) == s->flow, "%s: %s, turned round", s->file, s->what);
	free(copy);
}

START_TEST(both_directions)
{
	samples_each(check_both_directions);
}
END_TEST

/* An Ethernet frame of UDP over IPv4. */
static uint32_t hash_ipv4(uint32_t from, uint32_t to, uint16_t source, uint16_t destination)
{
	uint8_t f[42] = {[12] = 8, [14] = 0x45, [17] = 28, [23] = 17, [39] = 8};
	struct packet_view v;

	for (int i = 0; i < 4; i++) {
		f[26 + i] = (uint8_t)(from >> (24 - 8 * i));
		f[30 + i] = (uint8_t)(to >> (24 - 8 * i));
	}
	f[34] = (uint8_t)(source >> 8);
	f[35] = (uint8_t)source;
	f[36] = (uint8_t)(destination >> 8);
	f[37] = (uint8_t)destination;
	packet_decode(f, sizeof(f), 0, PACKET_LINK_ETHERNET, &v);
	return packet_flow_hash(&v);
}

static double chi_squared(const unsigned *found, size_t n, double expected)
{
	double sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += ((double)found[i] - expected) * ((double)found[i] - expected) / expected;
	return sum;
}

/* 200,000 flows that differ in a few low bits, as real ones do: every partition count gets its share, from the top
 * bits and from the bottom ones. The bound is the mean of chi squared plus six of its deviations. */
START_TEST(shares_are_fair)
{
	enum { FLOWS = 200000 };
	static const unsigned counts[] = {2, 3, 7, 8, 12, 64, 256, 1000};
	static uint32_t hashes[FLOWS];

	for (uint32_t i = 0; i < FLOWS; i++)
		hashes[i] = hash_ipv4(0x0a000000 + i % 500, 0xc0a80001, (uint16_t)(32768 + i / 500), 8125);
	for (size_t c = 0; c < ARRAY_LEN(counts); c++) {
		static unsigned low[1000], high[1000];
		unsigned n = counts[c];
		double bound = (n - 1) + 6 * sqrt(2.0 * (n - 1));

		memset(low, 0, sizeof(low));
		memset(high, 0, sizeof(high));
		for (uint32_t i = 0; i < FLOWS; i++) {
			low[hashes[i] % n]++;
			high[(uint64_t)hashes[i] * n >> 32]++;
		}
		ck_assert_double_lt(chi_squared(low, n, (double)FLOWS / n), bound);
		ck_assert_double_lt(chi_squared(high, n, (double)FLOWS / n), bound);
	}
}
END_TEST

/* Ports, protocol and pairing count: these are different flows. */
START_TEST(other_flows_differ)
{
	uint32_t h = hash_ipv4(0x0a000001, 0x0a000002, 1000, 2000);

	ck_assert_uint_eq(h, hash_ipv4(0x0a000002, 0x0a000001, 2000, 1000));
	ck_assert_uint_ne(h, hash_ipv4(0x0a000001, 0x0a000002, 2000, 1000)); /* the other end has the lower port */
	ck_assert_uint_ne(h, hash_ipv4(0x0a000001, 0x0a000002, 1000, 2001));
	ck_assert_uint_ne(h, hash_ipv4(0x0a000001, 0x0a000003, 1000, 2000));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("packet_flow");
	TCase *tc = tcase_create("flow");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, samples_load, NULL);
	tcase_add_test(tc, pinned);
	tcase_add_test(tc, both_directions);
	tcase_add_test(tc, shares_are_fair);
	tcase_add_test(tc, other_flows_differ);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
