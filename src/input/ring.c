/* SPDX-License-Identifier: MIT
 *
 * ring: from block to block of a TPACKET_V3 ring, and where to go on (ring.h has the drawing, and the
 * way from packet to packet). Worker. The kernel wrote what is read here, and whoever had the slot
 * before could write it, too: nothing is believed that would lead out of the mapping.
 */
#include "ring.h"

#include <arpa/inet.h>

_Static_assert((int)RING_PLACE_AT >= (int)sizeof(struct tpacket_block_desc),
	       "the place lies behind the block's head");
_Static_assert((int)RING_PLACE_AT + (int)sizeof(struct ring_place) <=
		   (int)sizeof(struct tpacket_block_desc) + (int)RING_PRIVATE_BYTES,
	       "the place lies before the first packet");

static struct tpacket_hdr_v1 *block_head(const struct ring_reader *r, unsigned block)
{
	char *at = r->blocks + (size_t)block * RING_BLOCK_BYTES;
	return &((struct tpacket_block_desc *)(void *)at)->hdr.bh1;
}

static bool is_ours(const struct tpacket_hdr_v1 *h)
{
	return __atomic_load_n(&h->block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER;
}

bool ring_has_place(const void *memory)
{
	const struct tpacket_block_desc *block = memory;
	return block->hdr.bh1.offset_to_first_pkt >= (int)RING_PLACE_AT + sizeof(struct ring_place);
}

void ring_reader_init(struct ring_reader *r, void *memory, unsigned n_blocks)
{
	*r = (struct ring_reader){.blocks = memory, .n_blocks = n_blocks, .place = ring_place(memory)};
}

/* The block that was begun is read on, unless it was given back: then it is the next one's turn.
 * The kernel cannot have begun that anew, since it begins them in turn. */
static void find_block(struct ring_reader *r)
{
	uint64_t seq = r->place->seq;
	r->is_found = true;
	for (unsigned i = 0; i < r->n_blocks; i++) {
		const struct tpacket_hdr_v1 *h = block_head(r, i);
		if (h->seq_num == seq + 1)
			r->block = i;
		if (h->seq_num == seq && is_ours(h)) {
			r->block = i;
			return;
		}
		if (h->seq_num == seq && seq != 0)
			r->block = (i + 1) % r->n_blocks;
	}
}

static bool begin_block(struct ring_reader *r)
{
	const struct tpacket_hdr_v1 *h = block_head(r, r->block);
	struct ring_place *place = r->place;
	struct tpacket3_hdr packet;
	if (!is_ours(h))
		return false;
	if (place->seq != h->seq_num) { /* in this order: see struct ring_place */
		__atomic_store_n(&place->first, place->taken, __ATOMIC_RELEASE);
		__atomic_store_n(&place->seq, h->seq_num, __ATOMIC_RELEASE);
	}
	r->is_begun = true;
	r->left = h->num_pkts;
	r->at = h->offset_to_first_pkt;
	uint64_t taken = place->taken - place->first;
	for (; taken > 0 && r->left > 0 && ring_look(r, &packet); taken--)
		ring_step(r, packet.tp_next_offset);
	r->left -= (uint32_t)MIN(taken, r->left); /* left out by who was here before, and counted */
	return true;
}

/* The rest of the block counts as taken, so that it waits no more, for nobody. Its number is the kernel's, or
 * damaged as well. */
static void leave_out_rest(struct ring_reader *r)
{
	uint32_t rest = MIN(r->left, (uint32_t)RING_BLOCK_PACKETS_MAX);
	r->damaged += rest;
	__atomic_store_n(&r->place->taken, r->place->taken + rest, __ATOMIC_RELEASE);
	r->left = 0;
}

bool ring_turn(struct ring_reader *r)
{
	if (!r->is_found)
		find_block(r);
	if (r->is_begun) {
		leave_out_rest(r);
		r->is_begun = false;
		__atomic_store_n(&block_head(r, r->block)->block_status, TP_STATUS_KERNEL,
				 __ATOMIC_RELEASE);
		r->block = (r->block + 1) % r->n_blocks;
	}
	return begin_block(r);
}

/* -- what the kernel leaves out ------------------------------------------------------------------------------------ */

static unsigned put16(uint8_t *to, uint16_t value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
	return 2;
}

static unsigned put_tag(const struct ring_packet *p, uint8_t *to)
{
	return p->is_tagged ? put16(to, p->tpid) + put16(to + 2, p->tci) : 0;
}

unsigned ring_head(const struct ring_packet *p, bool is_cooked, bool is_ethernet,
		   uint8_t head[RING_HEAD_MAX_BYTES],
		   unsigned *skip)
{
	enum { ETHERNET_TYPE_AT = 12, COOKED_TYPE_AT = 14 };
	const struct sockaddr_ll *from = p->from;
	*skip = 0;
	if (is_cooked) { /* LINKTYPE_LINUX_SLL; the kernel's packet types are its */
		put16(head, from->sll_pkttype);
		put16(head + 2, from->sll_hatype);
		put16(head + 4, from->sll_halen);
		memcpy(head + 6, from->sll_addr, sizeof(from->sll_addr));
		unsigned n = COOKED_TYPE_AT + put_tag(p, head + COOKED_TYPE_AT);
		return n + put16(head + n, ntohs(from->sll_protocol));
	}
	if (!is_ethernet || !p->is_tagged || p->len < ETHERNET_TYPE_AT)
		return 0;
	memcpy(head, p->bytes, ETHERNET_TYPE_AT);
	*skip = ETHERNET_TYPE_AT;
	return ETHERNET_TYPE_AT + put_tag(p, head + ETHERNET_TYPE_AT);
}
