/* SPDX-License-Identifier: MIT
 *
 * hash: which backend a key belongs to. Pure, any process; the table of a large rendezvous is built in the master.
 * Every relay of a site must come to the same table, so nothing here depends on the order of members, the libm, its
 * CPU-specific variants, or the CPU.
 */
#include <base.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static inline uint32_t load32le(const unsigned char *p)
{
	uint32_t k;
	memcpy(&k, p, sizeof(k));
	return k;
}

static inline uint32_t rotl32(uint32_t x, int r)
{
	return x << r | x >> (32 - r);
}

static inline uint32_t murmur_scramble(uint32_t k)
{
	return rotl32(k * 0xcc9e2d51u, 15) * 0x1b873593u;
}

uint32_t hash_murmur3_32(const void *bytes, size_t len, uint32_t seed)
{
	const unsigned char *p = bytes, *end = p + len;
	uint32_t h = seed, tail = 0;
	/* The last 0 to 3 bytes without a switch, which mispredicts on keys of mixed lengths: the four bytes before the
	 * end hold them in their upper part. A tail of 0 scrambles to 0, so that nothing needs to be skipped. */
	if (LIKELY(len >= 4)) {
		tail = (uint32_t)((uint64_t)load32le(end - 4) >> (32 - 8 * (len & 3)));
	} else {
		for (size_t i = 0; i < len; i++)
			tail |= (uint32_t)p[i] << (8 * i);
	}
	for (size_t i = len / 4; i > 0; i--, p += 4)
		h = rotl32(h ^ murmur_scramble(load32le(p)), 13) * 5 + 0xe6546b64u;
	h ^= murmur_scramble(tail) ^ (uint32_t)len;
	h = (h ^ h >> 16) * 0x85ebca6bu;
	h = (h ^ h >> 13) * 0xc2b2ae35u;
	return h ^ h >> 16;
}

/* A compiler that fuses a*b+c would round otherwise than one that does not. */
#if defined(__GNUC__) && !defined(__clang__)
#define NOT_FUSED __attribute__((noinline, optimize("fp-contract=off")))
#define NOT_FUSED_BODY
#else
#define NOT_FUSED __attribute__((noinline))
#define NOT_FUSED_BODY _Pragma("clang fp contract(off)")
#endif

/* -ln(u) for u = (hash's upper 52 bits + 0.5) / 2^52, which is exact, above 0 and below 1. By atanh's series, error
 * about 1e-16: only + - * /, which IEEE 754 fixes to the last bit, while log() differs between libms and CPUs. */
NOT_FUSED static double minus_ln(uint64_t hash)
{
	NOT_FUSED_BODY
	static const double odd[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
				     1.0 / 11, 1.0 / 9,	 1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
	union {
		double d;
		uint64_t bits;
	} m = {.d = (double)(hash >> 12) + 0.5};
	int exponent = (int)(m.bits >> 52) - 1023;
	m.bits = (m.bits & (UINT64_MAX >> 12)) | UINT64_C(1023) << 52; /* m in [1, 2) */
	if (m.d > 1.4142135623730951) {
		m.d *= 0.5;
		exponent++;
	}
	double t = (m.d - 1.0) / (m.d + 1.0), t2 = t * t, sum = 0.0; /* t2 < 0.0295: 0.0295^12 < 2^-60 */
	for (size_t i = 0; i < ARRAY_LEN(odd); i++)
		sum = sum * t2 + odd[i];
	return (52 - exponent) * 0.6931471805599453 - 2.0 * t * sum;
}

/* Slots at a time: what is known of them stays in L1, and each name is measured only 256 times. */
enum { BLOCK = 256 };

struct best {
	uint64_t hash[BLOCK]; /* within the members of one weight */
	uint16_t member[BLOCK];
	double score[BLOCK]; /* over all weights so far */
};

static int by_weight_and_name(const void *a, const void *b, void *arg)
{
	const struct hash_member *members = arg, *x = &members[*(const uint16_t *)a],
				 *y = &members[*(const uint16_t *)b];
	if (x->weight != y->weight)
		return x->weight < y->weight ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Members of one weight compare by their hashes alone: the score grows with the hash. They come sorted by name, so that
 * "above" gives a tie to the name that sorts first. */
static void best_of_weight(struct best *best, uint32_t first_slot, const struct hash_member *members,
			   const uint16_t *order, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const char *name = members[order[i]].name;
		size_t len = strlen(name);
		for (uint32_t k = 0; k < BLOCK; k++) {
			uint64_t hash = XXH64(name, len, first_slot + k);
			if (i == 0 || hash > best->hash[k]) {
				best->hash[k] = hash;
				best->member[k] = order[i];
			}
		}
	}
}

/* The winner of each weight meets the best of the weights before. */
static void merge(uint16_t *slots, struct best *best, const struct hash_member *members, double weight, bool first)
{
	for (uint32_t k = 0; k < BLOCK; k++) {
		double score = weight / minus_ln(best->hash[k]);
		if (first || score > best->score[k] ||
		    (score == best->score[k] && strcmp(members[best->member[k]].name, members[slots[k]].name) < 0)) {
			best->score[k] = score;
			slots[k] = best->member[k];
		}
	}
}

void hash_rendezvous(uint16_t slots[HASH_SLOTS], const struct hash_member *members, size_t n)
{
	uint16_t order[UINT16_MAX];
	size_t begin = 0;
	BUG_ON(n == 0 || n > UINT16_MAX);
	for (size_t i = 0; i < n; i++)
		order[i] = (uint16_t)i;
	qsort_r(order, n, sizeof(order[0]), by_weight_and_name, (void *)(uintptr_t)members);
	while (begin < n && !(members[order[begin]].weight > 0))
		begin++;
	BUG_ON(begin == n);
	for (uint32_t slot = 0; slot < HASH_SLOTS; slot += BLOCK) {
		struct best best;
		for (size_t i = begin, next; i < n; i = next) {
			double weight = members[order[i]].weight;
			for (next = i + 1; next < n && members[order[next]].weight == weight;)
				next++;
			best_of_weight(&best, slot, members, order + i, next - i);
			if (i == begin && next == n)
				memcpy(slots + slot, best.member, sizeof(best.member)); /* one weight: no score */
			else
				merge(slots + slot, &best, members, weight, i == begin);
		}
	}
}

uint64_t hash_64(const void *bytes, size_t len)
{
	return XXH64(bytes, len, 0);
}

/* -- from another table ------------------------------------------------------------------------------------------- */

struct rival {
	uint16_t member;
	uint64_t hash;
};

static struct rival rival_of(const struct hash_member *members, size_t i, uint32_t slot)
{
	return (struct rival){(uint16_t)i, XXH64(members[i].name, strlen(members[i].name), slot)};
}

/* As best_of_weight and merge compare. */
static bool beats(const struct hash_member *members, struct rival a, struct rival b)
{
	const struct hash_member *x = &members[a.member], *y = &members[b.member];
	if (x->weight == y->weight && a.hash != b.hash)
		return a.hash > b.hash;
	double of_a = x->weight / minus_ln(a.hash), of_b = y->weight / minus_ln(b.hash);
	if (x->weight != y->weight && of_a != of_b)
		return of_a > of_b;
	return strcmp(x->name, y->name) < 0;
}

static void meet(struct rival *best, bool *any, const struct hash_member *members, size_t i, uint32_t slot)
{
	struct rival r = rival_of(members, i, slot);
	if (members[i].weight > 0 && (!*any || beats(members, r, *best))) {
		*best = r;
		*any = true;
	}
}

void hash_rendezvous_change(uint16_t slots[HASH_SLOTS], const struct hash_member *members, size_t n,
			    const uint16_t was[HASH_SLOTS], const uint16_t *now_of, size_t n_was)
{
	bool is_kept[UINT16_MAX] = {false};
	uint16_t added[UINT16_MAX];
	size_t n_added = 0;
	BUG_ON(n == 0 || n > UINT16_MAX);
	for (size_t i = 0; i < n_was; i++)
		if (now_of[i] != HASH_GONE)
			is_kept[now_of[i]] = true;
	for (size_t i = 0; i < n; i++)
		if (!is_kept[i])
			added[n_added++] = (uint16_t)i;
	for (uint32_t slot = 0; slot < HASH_SLOTS; slot++) {
		struct rival best = {0};
		uint16_t winner = now_of[was[slot]];
		bool any = false;
		if (winner != HASH_GONE)
			meet(&best, &any, members, winner, slot);
		for (size_t i = 0; any && i < n_added; i++)
			meet(&best, &any, members, added[i], slot);
		for (size_t i = 0; winner == HASH_GONE && i < n; i++)
			meet(&best, &any, members, i, slot);
		BUG_ON(!any);
		slots[slot] = best.member;
	}
}
