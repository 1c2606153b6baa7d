/* SPDX-License-Identifier: MIT
 *
 * test_rss: the key and mask that a device is asked for, against made-up descriptions of devices. The key is proven by
 * Toeplitz itself: both directions of a connection must have one hash, and many connections must spread.
 */
#include "suite.h"

#include <rte_ethdev.h>
#include <string.h>

#include "dpdk.h"

static uint32_t bit(const uint8_t *bytes, size_t i)
{
	return bytes[i / 8] >> (7 - i % 8) & 1;
}

/* Toeplitz, bit by bit, from its definition: for each set bit of the input, the 32 bits of the key from there on. */
static uint32_t toeplitz(const uint8_t *key, size_t key_bytes, const uint8_t *input, size_t len)
{
	uint32_t hash = 0, window = 0;
	ck_assert(len * 8 + 31 <= key_bytes * 8);
	for (size_t i = 0; i < 32; i++)
		window = window << 1 | bit(key, i);
	for (size_t i = 0; i < len * 8; i++) {
		hash ^= bit(input, i) ? window : 0;
		window = window << 1 | (i + 32 < key_bytes * 8 ? bit(key, i + 32) : 0);
	}
	return hash;
}

START_TEST(key_is_symmetric)
{
	struct rte_eth_dev_info info = {.hash_key_size = 40,
					.flow_type_rss_offloads = RTE_ETH_RSS_TCP | RTE_ETH_RSS_IP};
	struct dpdk_rss rss;
	uint32_t x = 12345;
	unsigned queue_of[4] = {0};
	dpdk_rss_make(&rss, &info, 4, true);
	ck_assert(rss.is_symmetric);
	ck_assert_uint_eq(rss.key_bytes, 40);
	ck_assert_ptr_null(rss.why_not);
	for (int n = 0; n < 4000; n++) {
		size_t address = n % 2 ? 4 : 16; /* IPv4, IPv6: source, destination, source port, destination port */
		uint8_t there[36], back[36];
		for (size_t i = 0; i < sizeof there; i++)
			there[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
		memcpy(back, there + address, address);
		memcpy(back + address, there, address);
		memcpy(back + 2 * address, there + 2 * address + 2, 2);
		memcpy(back + 2 * address + 2, there + 2 * address, 2);
		size_t len = 2 * address + (n % 3 ? 4 : 0); /* fragments have no ports */
		uint32_t hash = toeplitz(rss.key, rss.key_bytes, there, len);
		ck_assert_uint_eq(hash, toeplitz(rss.key, rss.key_bytes, back, len));
		queue_of[hash % 4]++;
	}
	for (int i = 0; i < 4; i++)
		ck_assert_uint_gt(queue_of[i], 4000 / 4 / 2);
}
END_TEST

START_TEST(devices)
{
	static const struct {
		const char *what;
		uint64_t offers;
		uint8_t key_bytes;
		unsigned queues;
		bool wish;
		uint64_t types;
		uint8_t asked_key_bytes;
		bool symmetric, complains;
	} rows[] = {
	    {"ixgbe", RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_IPV6,
	     40, 2, true,
	     RTE_ETH_RSS_IPV4 | RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_IPV6, 40,
	     true, false},
	    {"i40e, which offers more than is of use",
	     RTE_ETH_RSS_FRAG_IPV4 | RTE_ETH_RSS_L2_PAYLOAD | RTE_ETH_RSS_VXLAN, 52, 8, true, RTE_ETH_RSS_FRAG_IPV4, 52,
	     true, false},
	    {"virtual, no RSS", 0, 0, 2, true, 0, 0, false, true},
	    {"only types that are of no use", RTE_ETH_RSS_L2_PAYLOAD, 40, 2, true, 0, 0, false, true},
	    {"RSS, its own key only", RTE_ETH_RSS_IPV4, 0, 2, true, RTE_ETH_RSS_IPV4, 0, false, true},
	    {"a key longer than we know", RTE_ETH_RSS_IPV4, 200, 2, true, RTE_ETH_RSS_IPV4, 0, false, true},
	    {"one queue", RTE_ETH_RSS_IPV4, 40, 1, true, 0, 0, false, false},
	    {"off", RTE_ETH_RSS_IPV4, 40, 4, false, 0, 0, false, false},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct rte_eth_dev_info info = {.hash_key_size = rows[i].key_bytes,
						.flow_type_rss_offloads = rows[i].offers};
		struct dpdk_rss rss;
		dpdk_rss_make(&rss, &info, rows[i].queues, rows[i].wish);
		ck_assert_msg(rss.types == rows[i].types, "%s: types %llx", rows[i].what,
			      (unsigned long long)rss.types);
		ck_assert_msg(rss.key_bytes == rows[i].asked_key_bytes, "%s: key %u", rows[i].what, rss.key_bytes);
		ck_assert_msg(rss.is_symmetric == rows[i].symmetric, "%s: symmetric", rows[i].what);
		ck_assert_msg((rss.why_not != NULL) == rows[i].complains, "%s: %s", rows[i].what,
			      rss.why_not ? rss.why_not : "");
		for (unsigned k = 0; k < rss.key_bytes; k++)
			ck_assert_uint_eq(rss.key[k], k % 2 ? 0x5a : 0x6d);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rss");
	TCase *tc = tcase_create("rss");
	tcase_add_test(tc, key_is_symmetric);
	tcase_add_test(tc, devices);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
