/* SPDX-License-Identifier: MIT
 *
 * test_hash: statsrelay's shards to the bit, and what a consistent hash promises: fair shares, independence of the
 * order, and few moves. */
#include "suite.h"

#include <base.h>
#include <math.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#ifndef TEST_DATA
#define TEST_DATA "tests/data"
#endif

enum { MANY = 1000 };

static uint16_t slots[HASH_SLOTS], other[HASH_SLOTS];
static char names[MANY][48];
static struct hash_member members[MANY];

static void make_members(size_t n, double (*weight)(size_t i))
{
	for (size_t i = 0; i < n; i++) {
		snprintf(names[i], sizeof(names[i]), "10.%zu.%zu.7:8125", i / 250, i % 250);
		members[i] = (struct hash_member){names[i], weight ? weight(i) : 1};
	}
}

static double mixed(size_t i)
{
	return (double)(i % 4); /* 0 to 3 */
}

static double fractions(size_t i)
{
	return i == 1 ? 0 : 0.5 + (double)i * 0.37; /* all different */
}

START_TEST(murmur_known)
{
	static const struct {
		const char *key;
		uint32_t seed, hash;
	} known[] = {
	    {"", 0, 0},
	    {"", 1, 0x514e28b7},
	    {"", 0xffffffff, 0x81f16f39},
	    {"a", 0x9747b28c, 0x7fa09ea6},
	    {"aa", 0x9747b28c, 0x5d211726},
	    {"aaa", 0x9747b28c, 0x283e0130},
	    {"aaaa", 0x9747b28c, 0x5a97808a},
	    {"abc", 0, 0xb3dd93fa},
	    {"Hello, world!", 0x9747b28c, 0x24884cba},
	    {"The quick brown fox jumps over the lazy dog", 0x9747b28c, 0x2fa826cd},
	};
	for (size_t i = 0; i < ARRAY_LEN(known); i++) {
		/* alone in its memory, so that a sanitizer sees a read outside */
		size_t len = strlen(known[i].key);
		char *copy = malloc(len ? len : 1);
		memcpy(copy, known[i].key, len);
		ck_assert_uint_eq(hash_murmur3_32(copy, len, known[i].seed), known[i].hash);
		free(copy);
	}
	ck_assert_uint_eq(hash_murmur3_32("\0\0\0\0", 4, 0), 0x2362f9de);
	ck_assert_uint_eq(hash_murmur3_32("\xff\xff\xff\xff", 4, 0), 0x76293b50);
	ck_assert_uint_eq(hash_murmur3_32("\x21\x43\x65\x87", 4, 0x5082edee), 0x2362f9de);
	ck_assert_uint_eq(hash_slot(0xabcd1234), 0xabcd);
}
END_TEST

START_TEST(statsrelay_shards)
{
	FILE *f = fopen(TEST_DATA "/statsrelay-shards.tsv", "r");
	ck_assert_msg(f != NULL, "no " TEST_DATA "/statsrelay-shards.tsv");
	char row[512], key[256];
	unsigned hash, shards[4], rows = 0;
	static const unsigned of[] = {3, 4, 10, 1024};
	while (fgets(row, sizeof(row), f)) {
		if (row[0] == '#')
			continue;
		ck_assert_int_eq(sscanf(row, "%255[^\t]\t%u\t%u\t%u\t%u\t%u", key, &hash, &shards[0], &shards[1],
					&shards[2], &shards[3]),
				 6);
		uint32_t h = hash_murmur3_32(key, strlen(key), HASH_STATSRELAY_SEED);
		ck_assert_msg(h == hash, "%s: %u, not %u", key, h, hash);
		for (int i = 0; i < 4; i++)
			ck_assert_uint_eq(h % of[i], shards[i]);
		rows++;
	}
	fclose(f);
	ck_assert_uint_ge(rows, 100);
}
END_TEST

/* Each share p within 5 sqrt((1-p) / (65,536 p)) of its weight's. */
static void check_shares(size_t n)
{
	static unsigned owned[MANY];
	double all = 0;
	memset(owned, 0, sizeof(owned));
	for (size_t i = 0; i < HASH_SLOTS; i++) {
		ck_assert_uint_lt(slots[i], n);
		owned[slots[i]]++;
	}
	for (size_t i = 0; i < n; i++)
		all += members[i].weight;
	for (size_t i = 0; i < n; i++) {
		double p = members[i].weight / all;
		if (members[i].weight > 0) {
			double off = fabs(owned[i] / 65536.0 / p - 1), most = 5 * sqrt((1 - p) / (65536 * p));
			ck_assert_msg(off <= most, "%s: off by %.4f, over %.4f", names[i], off, most);
		} else {
			ck_assert_uint_eq(owned[i], 0);
		}
	}
}

START_TEST(rendezvous_shares)
{
	static const size_t sizes[] = {1, 2, 3, 10, 100};
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		make_members(sizes[i], NULL);
		hash_rendezvous(slots, members, sizes[i]);
		check_shares(sizes[i]);
	}
	make_members(60, mixed);
	hash_rendezvous(slots, members, 60);
	check_shares(60);
	make_members(20, fractions);
	hash_rendezvous(slots, members, 20);
	check_shares(20);
}
END_TEST

/* The contract's words, by libm's log and the library's own XXH64: score = weight / -ln(u). */
START_TEST(rendezvous_is_the_formula)
{
	double (*const weights[])(size_t) = {NULL, mixed, fractions};
	for (size_t w = 0; w < ARRAY_LEN(weights); w++) {
		make_members(17, weights[w]);
		hash_rendezvous(slots, members, 17);
		for (uint32_t slot = 0; slot < HASH_SLOTS; slot += 7) {
			double best = -1;
			unsigned owner = 0;
			for (unsigned i = 0; i < 17; i++) {
				uint64_t hash = XXH64(names[i], strlen(names[i]), slot);
				double score = members[i].weight / -log(((double)(hash >> 12) + 0.5) * 0x1p-52);
				if (members[i].weight > 0 && score > best) {
					best = score;
					owner = i;
				}
			}
			ck_assert_uint_eq(slots[slot], owner);
		}
	}
}
END_TEST

START_TEST(rendezvous_any_order)
{
	double (*const weights[])(size_t) = {NULL, mixed, fractions};
	enum { N = 50 };
	uint32_t seed = 1;
	for (size_t w = 0; w < ARRAY_LEN(weights); w++) {
		make_members(N, weights[w]);
		hash_rendezvous(slots, members, N);
		struct hash_member shuffled[N];
		memcpy(shuffled, members, sizeof(shuffled));
		for (size_t i = N - 1; i > 0; i--) {
			seed = seed * 1664525 + 1013904223;
			size_t j = (seed >> 8) % (i + 1);
			struct hash_member t = shuffled[i];
			shuffled[i] = shuffled[j];
			shuffled[j] = t;
		}
		hash_rendezvous(other, shuffled, N);
		for (size_t i = 0; i < HASH_SLOTS; i++)
			ck_assert_ptr_eq(members[slots[i]].name, shuffled[other[i]].name);
	}
}
END_TEST

static void check_one_more(size_t n, double (*weight)(size_t))
{
	make_members(n + 1, weight);
	if (weight)
		members[n].weight = 1;
	double all = 0;
	for (size_t i = 0; i <= n; i++)
		all += members[i].weight;
	hash_rendezvous(slots, members, n);
	hash_rendezvous(other, members, n + 1);
	unsigned moved = 0;
	for (size_t i = 0; i < HASH_SLOTS; i++) {
		if (slots[i] != other[i]) {
			ck_assert_uint_eq(other[i], n); /* only to the new one */
			moved++;
		}
	}
	ck_assert_uint_gt(moved, 0);
	ck_assert_double_le(moved / 65536.0, (weight ? 1 / all : 1.0 / (double)n) + 0.01);
}

START_TEST(rendezvous_one_more_moves_little)
{
	check_one_more(1, NULL);
	check_one_more(4, NULL);
	check_one_more(10, NULL);
	check_one_more(100, NULL);
	check_one_more(30, mixed);
	check_one_more(30, fractions);
}
END_TEST

START_TEST(rendezvous_thousand)
{
	make_members(MANY, NULL);
	uint64_t begin = clock_us();
	hash_rendezvous(slots, members, MANY);
	printf("rendezvous of 1,000 members: %.2f s\n", (double)(clock_us() - begin) / 1e6);
	check_shares(MANY);
	hash_rendezvous(other, members, MANY - 1);
	for (size_t i = 0; i < HASH_SLOTS; i++)
		ck_assert(slots[i] == other[i] || slots[i] == MANY - 1);
}
END_TEST

/* Tables of other releases and CPUs must be the same: a hash over one of each kind. */
START_TEST(rendezvous_is_for_ever)
{
	make_members(10, NULL);
	hash_rendezvous(slots, members, 10);
	uint64_t equal = 0, weighted = 0;
	for (size_t i = 0; i < HASH_SLOTS; i++)
		equal = equal * 31 + slots[i];
	make_members(10, fractions);
	hash_rendezvous(slots, members, 10);
	for (size_t i = 0; i < HASH_SLOTS; i++)
		weighted = weighted * 31 + slots[i];
	ck_assert_uint_eq(equal, UINT64_C(17744482014843121324));
	ck_assert_uint_eq(weighted, UINT64_C(16211898629244670095));
}
END_TEST

/* From any other table the same one comes as from nothing. */
START_TEST(rendezvous_changes)
{
	enum { MOST = 40 };
	static uint16_t was[HASH_SLOTS], want[HASH_SLOTS], got[HASH_SLOTS];
	static char texts[MOST][16];
	struct hash_member old[MOST], now[MOST];
	uint16_t now_of[MOST];
	size_t n_old = 0, n = 0;
	srand48(_i);
	for (size_t i = 0; i < MOST; i++) {
		double weight = _i % 2 ? 1.0 : (double)(1 + lrand48() % 3);
		bool was_there = i == 0 || lrand48() % 4, is_there = i == 1 || lrand48() % 4, changes = lrand48() % 8 == 0;
		snprintf(texts[i], sizeof(texts[i]), "b%ld", lrand48());
		if (was_there) {
			now_of[n_old] = is_there && !changes ? (uint16_t)n : (uint16_t)HASH_GONE;
			old[n_old++] = (struct hash_member){texts[i], weight};
		}
		if (is_there)
			now[n++] = (struct hash_member){texts[i], changes ? weight + 1 : weight};
	}
	hash_rendezvous(was, old, n_old);
	hash_rendezvous(want, now, n);
	hash_rendezvous_change(got, now, n, was, now_of, n_old);
	ck_assert_mem_eq(got, want, sizeof(got));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("hash");
	TCase *tc = tcase_create("hash");
	tcase_set_timeout(tc, 120); /* valgrind, sanitizers */
	tcase_add_test(tc, murmur_known);
	tcase_add_test(tc, statsrelay_shards);
	tcase_add_test(tc, rendezvous_shares);
	tcase_add_test(tc, rendezvous_is_the_formula);
	tcase_add_test(tc, rendezvous_any_order);
	tcase_add_loop_test(tc, rendezvous_changes, 0, 8);
	tcase_add_test(tc, rendezvous_one_more_moves_little);
	tcase_add_test(tc, rendezvous_thousand);
	tcase_add_test(tc, rendezvous_is_for_ever);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
