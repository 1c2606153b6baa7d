/* SPDX-License-Identifier: MIT
 *
 * ring: reads the blocks of one AF_PACKET ring (TPACKET_V3; the kernel's
 * Documentation/networking/packet_mmap.rst). Only walks over memory: makes no system call. How far
 * the reading is lies in the ring itself, in the private area of its first block, so it goes
 * wherever the ring goes: each worker process of a slot maps the ring anew and reads on there,
 * whether the one before made place or was killed.
 *
 *   block 0                        block 1                … all blocks in turn, numbered 1, 2, 3 …
 *   ┌──────┬───────┬─────────────┐ ┌──────┬───┬──────────┐
 *   │ head │ place │ packet …    │ │ head │   │ packet … │  head: whose it is (the kernel's, or ours
 *   └──────┴───────┴─────────────┘ └──────┴───┴──────────┘  to be read), its number (seq_num), how
 *                                                           many packets, where the first is
 */
#ifndef INPUT_RING_H
#define INPUT_RING_H

#include <base.h>
#include <linux/if_packet.h>
#include <string.h>

enum {
	RING_BLOCK_BYTES = 1 << 18, /* as libpcap's: longer than any packet */
	RING_PLACE_AT = 64,	    /* a cache line of its own: each packet changes the head */
	RING_PRIVATE_BYTES = 96,    /* of each block, behind its head of 48 bytes */
	RING_HEAD_MAX_BYTES = 24,
	RING_ALIGNMENT = 8,	  /* of packets in a block (V3_ALIGNMENT of af_packet.c) */
	RING_BLOCK_PACKETS_MAX = RING_BLOCK_BYTES / TPACKET3_HDRLEN,
};

/* How far the reading is. Written by who reads; each store leaves a place that is true: packets of
 * the block numbered `seq` that are taken are taken - first, of any other block none. */
struct ring_place {
	uint64_t taken;	  /* packets in all, those that are left to another ring, too */
	uint64_t first;	  /* … when the block began */
	uint64_t seq;	  /* of the block; 0: none was begun */
	uint64_t skipped; /* packets that are left to another ring */
	/* What the master notes for the program that it becomes by an upgrade; nothing else rests on it. */
	uint64_t stored, size_bytes;
	uint32_t link_type, is_promiscuous;
	/* Master: this ring's packets are those stamped from then to before then (ns since 1970; until_ns 0: for ever). */
	uint64_t from_ns, until_ns;
	uint64_t is_over; /* its last reader has seen all of them */
};

struct ring_reader {
	char *blocks;
	unsigned n_blocks;
	struct ring_place *place; /* in block 0 */
	bool is_found;            /* `block` is known */
	bool is_begun;
	unsigned block;    /* that is read now, or next */
	uint32_t left, at; /* packets of it that are not taken, and where the next is */
	uint64_t damaged;  /* packets that were left out, since what the block says of them makes no sense */
};

struct ring_packet {
	const uint8_t *bytes;
	uint32_t len, original_len;
	uint64_t time_ns;
	bool is_tagged; /* the kernel took a VLAN tag out */
	uint16_t tpid, tci;
	const struct sockaddr_ll *from;
	uint32_t next_offset;
};

/* n_blocks of RING_BLOCK_BYTES at `memory`. Nothing is read yet: where it goes on is looked up at
 * the first packet, when surely nobody else reads any more. */
void ring_reader_init(struct ring_reader *r, void *memory, unsigned n_blocks);
/* For ring_next: gives back the block that is read to its end, or makes no sense any more, and
 * begins the next one. False: there is none now. */
bool ring_turn(struct ring_reader *r);
/* What libpcap puts before bytes + *skip: the cooked head of `any` and the like, and the VLAN tag.
 * Returns bytes in head. */
unsigned ring_head(const struct ring_packet *p, bool is_cooked, bool is_ethernet,
		   uint8_t head[RING_HEAD_MAX_BYTES],
		   unsigned *skip);

static inline char *ring_block(const struct ring_reader *r)
{
	return r->blocks + (size_t)r->block * RING_BLOCK_BYTES;
}

/* What the kernel says of the next packet. False: it cannot be true. */
static inline bool ring_look(const struct ring_reader *r, struct tpacket3_hdr *h)
{
	if (UNLIKELY(r->at > RING_BLOCK_BYTES - TPACKET3_HDRLEN || r->at % RING_ALIGNMENT != 0))
		return false;
	memcpy(h, ring_block(r) + r->at, sizeof(*h));
	return LIKELY((uint64_t)r->at + h->tp_mac + h->tp_snaplen <= RING_BLOCK_BYTES);
}

/* To the next packet of the block; the last one has no next. */
static inline void ring_step(struct ring_reader *r, uint32_t next_offset)
{
	uint64_t at = (uint64_t)r->at + next_offset;
	r->left--;
	r->at = next_offset != 0 && at < RING_BLOCK_BYTES ? (uint32_t)at : RING_BLOCK_BYTES;
}

/* The next packet, which is good until the next call. Unless ring_take follows, it comes again.
 * False: none is there now. */
static inline bool ring_next(struct ring_reader *r, struct ring_packet *p)
{
	struct tpacket3_hdr h;
	while (r->left == 0 || !ring_look(r, &h))
		if (!ring_turn(r))
			return false;
	const char *head = ring_block(r) + r->at;
	bool has_tpid = h.hv1.tp_vlan_tpid != 0 && (h.tp_status & TP_STATUS_VLAN_TPID_VALID);
	*p = (struct ring_packet){
	    .bytes = (const uint8_t *)head + h.tp_mac,
	    .len = h.tp_snaplen,
	    .original_len = h.tp_len,
	    .time_ns = (uint64_t)h.tp_sec * 1000000000 + h.tp_nsec,
	    .is_tagged = h.hv1.tp_vlan_tci != 0 || (h.tp_status & TP_STATUS_VLAN_VALID),
	    .tpid = has_tpid ? h.hv1.tp_vlan_tpid : 0x8100,
	    .tci = (uint16_t)h.hv1.tp_vlan_tci,
	    .from = (const struct sockaddr_ll *)(const void *)(head + TPACKET_ALIGN(sizeof(h))),
	    .next_offset = h.tp_next_offset,
	};
	return true;
}

/* The packet is taken: whoever reads after us begins behind it. */
static inline void ring_take(struct ring_reader *r, const struct ring_packet *p)
{
	__atomic_store_n(&r->place->taken, r->place->taken + 1, __ATOMIC_RELEASE);
	ring_step(r, p->next_offset);
}

/* Whether a packet of this time is this ring's. */
static inline bool ring_is_mine(const struct ring_place *place, uint64_t time_ns)
{
	uint64_t until_ns = __atomic_load_n(&place->until_ns, __ATOMIC_RELAXED);
	return LIKELY(time_ns >= __atomic_load_n(&place->from_ns, __ATOMIC_RELAXED) &&
		      (until_ns == 0 || time_ns < until_ns));
}

/* Whether there is room for it before the first packet: a ring of a build that knew less has none. */
bool ring_has_place(const void *memory);

/* The place, in the first bytes of a ring. */
static inline struct ring_place *ring_place(void *memory)
{
	return (struct ring_place *)(void *)((char *)memory + RING_PLACE_AT);
}
#endif
