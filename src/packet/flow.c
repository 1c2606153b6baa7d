/* SPDX-License-Identifier: MIT
 *
 * flow: one number for both directions of a connection. Pure, any process; once a packet in a worker's loop. What is
 * hashed is defined in packet.h and pinned by tests/data/flow-hash.tsv: partitions of a topic that consumers rely on
 * hang on it, so it may not change.
 */
#include <packet.h>

#include "bytes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Names are compared as numbers of their bytes and without a branch, which real traffic lets the CPU mispredict half
 * the time (measured, IPv6, random flows, decoder included: 35 ns a packet with it, 20 without); keys are put together
 * in registers. */
static inline uint32_t finish(const void *key, size_t len)
{
	return (uint32_t)(XXH3_64bits(key, len) >> 32);
}

static inline uint64_t load48be(const uint8_t *p)
{
	return (uint64_t)load32be(p) << 16 | load16be(p + 4);
}

static inline uint32_t hash_ports_ipv4(const struct packet_view *v)
{
	uint64_t a = (uint64_t)load32be(v->source) << 16 | v->source_port;
	uint64_t b = (uint64_t)load32be(v->destination) << 16 | v->destination_port;
	uint64_t low = MIN(a, b), high = MAX(a, b);
	uint64_t key[2] = {htobe64(low << 16 | high >> 32), htobe64(high << 32 | (uint64_t)v->protocol << 24)};

	return finish(key, 16);
}

static inline uint32_t hash_macs(const uint8_t *macs)
{
	uint64_t a = load48be(macs), b = load48be(macs + 6), low = MIN(a, b), high = MAX(a, b);
	uint64_t key[2] = {htobe64(low << 16 | high >> 32), htobe64(high << 32)};

	return finish(key, 12);
}

static inline uint32_t hash_addresses_ipv4(const struct packet_view *v)
{
	uint64_t a = load32be(v->source), b = load32be(v->destination);
	uint64_t key = htobe64(MIN(a, b) << 32 | MAX(a, b));

	return finish(&key, 8);
}

/* An end of an IPv6 connection. */
struct end {
	uint64_t first, second; /* of the address */
	uint64_t port;		/* 0 when ports do not count */
};

/* Lower end first. As one number of 128 bits the compiler compares without a branch. */
static inline void ends_sort(struct end *a, struct end *b)
{
	unsigned __int128 a128 = (unsigned __int128)a->first << 64 | a->second;
	unsigned __int128 b128 = (unsigned __int128)b->first << 64 | b->second;
	uint64_t mask = -(uint64_t)((a128 > b128) | ((a128 == b128) & (a->port > b->port)));
	struct end change = {(a->first ^ b->first) & mask, (a->second ^ b->second) & mask, (a->port ^ b->port) & mask};

	a->first ^= change.first;
	a->second ^= change.second;
	a->port ^= change.port;
	b->first ^= change.first;
	b->second ^= change.second;
	b->port ^= change.port;
}

static uint32_t hash_ipv6(const struct packet_view *v)
{
	struct end a = {load64be(v->source), load64be(v->source + 8), v->source_port};
	struct end b = {load64be(v->destination), load64be(v->destination + 8), v->destination_port};
	uint64_t key[5];

	ends_sort(&a, &b);
	key[0] = htobe64(a.first);
	key[1] = htobe64(a.second);
	if (!v->has_ports) {
		key[2] = htobe64(b.first);
		key[3] = htobe64(b.second);
		return finish(key, 32);
	}
	key[2] = htobe64(a.port << 48 | b.first >> 16);
	key[3] = htobe64(b.first << 48 | b.second >> 16);
	key[4] = htobe64(b.second << 48 | b.port << 32 | (uint64_t)v->protocol << 24);
	return finish(key, 40);
}

uint32_t packet_flow_hash(const struct packet_view *v)
{
	if (v->ip_version && (v->has_ports || v->is_fragment || !v->macs)) {
		if (v->ip_version == 6)
			return hash_ipv6(v);
		return v->has_ports ? hash_ports_ipv4(v) : hash_addresses_ipv4(v);
	}
	return v->macs ? hash_macs(v->macs) : finish("", 0);
}
