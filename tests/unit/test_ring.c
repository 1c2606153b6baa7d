/* SPDX-License-Identifier: MIT
 *
 * The walk over the blocks of a ring, in memory that is made up as the kernel makes it, and as nobody should: each place
 * at which a reader can end is one at which the next goes on; nothing leads out of the memory.
 */
#include "suite.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ring.h"

enum { BLOCKS = 4, FIRST_AT = 144, DATA_AT = 96, TAKE_AT_MOST = 5000 };

static char *memory; /* with a page behind it that nobody may touch */
static uint64_t next_seq, next_number;

static struct tpacket_hdr_v1 *head(unsigned block)
{
	return &((struct tpacket_block_desc *)(void *)(memory + (size_t)block * RING_BLOCK_BYTES))->hdr.bh1;
}

static void new_ring(void)
{
	const size_t size = BLOCKS * RING_BLOCK_BYTES;
	memory = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	ck_assert(memory != MAP_FAILED);
	ck_assert_int_eq(mprotect(memory + size, 4096, PROT_NONE), 0);
	next_seq = 1;
	next_number = 0;
}

static void free_ring(void)
{
	munmap(memory, BLOCKS * RING_BLOCK_BYTES + 4096);
}

static struct tpacket3_hdr *packet_at(unsigned block, uint32_t at)
{
	return (struct tpacket3_hdr *)(void *)(memory + (size_t)block * RING_BLOCK_BYTES + at);
}

/* What the kernel does: begins the block, fills it with numbered packets, hands it over. */
static void fill(unsigned block, unsigned packets)
{
	uint32_t at = FIRST_AT;
	ck_assert_uint_eq(head(block)->block_status, TP_STATUS_KERNEL);
	head(block)->seq_num = next_seq++;
	head(block)->num_pkts = packets;
	head(block)->offset_to_first_pkt = FIRST_AT;
	for (unsigned i = 0; i < packets; i++) {
		uint32_t len = 60 + i % 7, step = (DATA_AT + len + 7) & ~7u;
		struct tpacket3_hdr *h = packet_at(block, at);
		*h = (struct tpacket3_hdr){.tp_next_offset = i + 1 < packets ? step : 0,
					   .tp_sec = 5,
					   .tp_nsec = 7,
					   .tp_snaplen = len,
					   .tp_len = len,
					   .tp_mac = DATA_AT};
		memcpy((char *)h + DATA_AT, &next_number, sizeof(next_number));
		next_number++;
		at += step;
	}
	head(block)->block_status = TP_STATUS_USER;
}

static uint64_t number(const struct ring_packet *p)
{
	uint64_t n;
	memcpy(&n, p->bytes, sizeof(n));
	return n;
}

/* Takes up to n packets, which have to be those from `expected` on. Returns how many there were. */
static unsigned take(struct ring_reader *r, uint64_t expected, unsigned n)
{
	struct ring_packet p;
	unsigned i = 0;
	for (; i < n && ring_next(r, &p); i++) {
		ck_assert_uint_eq(number(&p), expected + i);
		ck_assert_uint_eq(p.time_ns, 5000000007);
		ring_take(r, &p);
	}
	return i;
}

START_TEST(blocks_in_turn)
{
	struct ring_reader r;
	uint64_t taken = 0;
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_eq(take(&r, 0, 1), 0);
	for (unsigned round = 0; round < 3; round++)
		for (unsigned b = 0; b < BLOCKS; b++) {
			fill(b, round == 1 && b == 2 ? 0 : 1 + b * 100); /* an empty one was closed by its timer */
			taken += take(&r, taken, 1000);
			ck_assert_uint_eq(taken, next_number);
			ck_assert_uint_eq(head(b)->block_status, TP_STATUS_KERNEL);
		}
	ck_assert_uint_eq(r.damaged, 0);
	ck_assert_uint_eq(ring_place(memory)->taken, taken);
}
END_TEST

/* Each reader takes a few and is gone, with or without a look at the next packet; blocks are filled
 * as they become free. */
START_TEST(many_readers)
{
	srandom((unsigned)_i);
	uint64_t taken = 0;
	unsigned filled = 0;
	for (unsigned reader = 0; reader < 400; reader++) {
		struct ring_reader r;
		struct ring_packet p;
		while (random() % 3 != 0 && head(filled % BLOCKS)->block_status == TP_STATUS_KERNEL)
			fill(filled++ % BLOCKS, (unsigned)(random() % 20));
		ring_reader_init(&r, memory, BLOCKS);
		taken += take(&r, taken, (unsigned)(random() % 40));
		if (random() % 2 && ring_next(&r, &p))
			ck_assert_uint_eq(number(&p), taken);
		ck_assert_uint_eq(r.damaged, 0);
	}
	struct ring_reader last;
	ring_reader_init(&last, memory, BLOCKS);
	taken += take(&last, taken, UINT32_MAX);
	ck_assert_uint_eq(taken, next_number);
}
END_TEST

/* Killed between two stores of ring_turn: as they come one after the other, the place is a true
 * one. */
START_TEST(killed_between_stores)
{
	struct ring_reader r;
	struct ring_place *place = ring_place(memory);
	fill(0, 10);
	fill(1, 10);
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_eq(take(&r, 0, 10), 10);
	/* block 0 is read to its end and not given back: the next reader does that */
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_eq(take(&r, 10, 0), 0);
	ck_assert_uint_eq(take(&r, 10, 3), 3);
	ck_assert_uint_eq(head(0)->block_status, TP_STATUS_KERNEL);
	/* given back, and block 2 not begun */
	ck_assert_uint_eq(take(&r, 13, 7), 7);
	head(1)->block_status = TP_STATUS_KERNEL;
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_eq(take(&r, 20, 1), 0);
	fill(2, 10);
	/* `first` is stored, `seq` is not */
	place->first = place->taken;
	ck_assert_uint_eq(take(&r, 20, 4), 4);
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_eq(take(&r, 24, 100), 6);
}
END_TEST

static unsigned take_all(struct ring_reader *r)
{
	struct ring_packet p;
	unsigned n = 0;
	for (; n < TAKE_AT_MOST && ring_next(r, &p); n++) {
		const char *begin = (const char *)p.bytes;
		ck_assert(begin >= memory && begin + p.len <= memory + BLOCKS * RING_BLOCK_BYTES);
		volatile uint8_t sum = p.len > 0 ? p.bytes[0] ^ p.bytes[p.len - 1] : 0;
		(void)sum;
		ring_take(r, &p);
	}
	return n;
}

/* What follows in a block after something that cannot be is left out, and the ring goes on. */
START_TEST(damage)
{
	static const struct {
		uint32_t first, next, snaplen;
		uint16_t mac;
		unsigned comes; /* of 10 packets, of which the fourth is damaged */
	} kinds[] = {
	    {FIRST_AT, 0, 60, DATA_AT, 4},		{FIRST_AT, 3, 60, DATA_AT, 4},
	    {FIRST_AT, UINT32_MAX, 60, DATA_AT, 4},	{FIRST_AT, 1 << 18, 60, DATA_AT, 4},
	    {FIRST_AT, 160, UINT32_MAX, DATA_AT, 3},    {FIRST_AT, 160, RING_BLOCK_BYTES, DATA_AT,
							 3},
	    {UINT32_MAX, 160, 60, DATA_AT, 0},		{RING_BLOCK_BYTES - 8, 160, 60, DATA_AT, 0},
	    {FIRST_AT + 1, 160, 60, DATA_AT, 0},
	};
	for (unsigned last = 0; last < 2; last++) /* in the first block, and in the last one of the memory */
		for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
			struct ring_reader r;
			unsigned block = last ? BLOCKS - 1 : 0;
			free_ring();
			new_ring();
			ring_reader_init(&r, memory, BLOCKS);
			for (unsigned b = 0; b < block; b++)
				fill(b, 1);
			fill(block, 10);
			ck_assert_uint_eq(take(&r, 0, block), block);
			uint32_t at = FIRST_AT;
			for (unsigned k = 0; k < 3; k++)
				at += packet_at(block, at)->tp_next_offset;
			struct tpacket3_hdr *h = packet_at(block, at);
			h->tp_next_offset = kinds[i].next;
			h->tp_snaplen = kinds[i].snaplen;
			h->tp_mac = kinds[i].mac;
			head(block)->offset_to_first_pkt = kinds[i].first;
			ck_assert_uint_eq(take_all(&r), kinds[i].comes);
			ck_assert_uint_eq(r.damaged, 10 - kinds[i].comes);
			ck_assert_uint_eq(ring_place(memory)->taken, next_number);
			ck_assert_uint_eq(head(block)->block_status, TP_STATUS_KERNEL);
			/* killed before the block was given back: the next reader does not count that again */
			head(block)->block_status = TP_STATUS_USER;
			ring_reader_init(&r, memory, BLOCKS);
			ck_assert_uint_eq(take_all(&r), 0);
			ck_assert_uint_eq(r.damaged, 0);
			ck_assert_uint_eq(ring_place(memory)->taken, next_number);
			uint64_t next = next_number;
			fill((block + 1) % BLOCKS, 5);
			ck_assert_uint_eq(take(&r, next, 100), 5);
		}
}
END_TEST

/* Anything at all: it ends, and stays within the memory. */
START_TEST(noise)
{
	struct ring_reader r;
	srandom((unsigned)_i);
	for (unsigned b = 0; b < BLOCKS; b++)
		fill(b, 50);
	for (unsigned i = 0; i < 60; i++) {
		size_t at = (size_t)(random() % BLOCKS) * RING_BLOCK_BYTES + (size_t)(random() % 2000) * 4;
		uint32_t value = (uint32_t)random() << random() % 20;
		memcpy(memory + at, &value, sizeof(value));
	}
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_le(take_all(&r), TAKE_AT_MOST);
	ring_reader_init(&r, memory, BLOCKS);
	ck_assert_uint_le(take_all(&r), TAKE_AT_MOST);
}
END_TEST

START_TEST(whose_it_is)
{
	struct ring_place *place = ring_place(memory);
	fill(0, 1);
	ck_assert(ring_has_place(memory));
	head(0)->offset_to_first_pkt = 128; /* as of a build whose place was shorter */
	ck_assert(!ring_has_place(memory));
	ck_assert(ring_is_mine(place, 0) && ring_is_mine(place, UINT64_MAX));
	place->from_ns = 100;
	ck_assert(!ring_is_mine(place, 99) && ring_is_mine(place, 100) && ring_is_mine(place, UINT64_MAX));
	place->until_ns = 200;
	ck_assert(!ring_is_mine(place, 99) && ring_is_mine(place, 100) && ring_is_mine(place, 199));
	ck_assert(!ring_is_mine(place, 200));
}
END_TEST

START_TEST(heads)
{
	uint8_t made[RING_HEAD_MAX_BYTES];
	const uint8_t bytes[20] = "abcdefABCDEF\x08\0rest";
	unsigned skip = 99;
	struct sockaddr_ll from = {.sll_protocol = htons(0x0800),
				   .sll_hatype = 0x304,
				   .sll_pkttype = 4,
				   .sll_halen = 6,
				   .sll_addr = {1, 2, 3, 4, 5, 6}};
	struct ring_packet p = {.bytes = bytes, .len = 18, .from = &from, .tpid = 0x88a8,
				.tci = 0x2007};
	ck_assert_uint_eq(ring_head(&p, false, true, made, &skip), 0);
	ck_assert_uint_eq(skip, 0);
	ck_assert_uint_eq(ring_head(&p, true, false, made, &skip), 16);
	ck_assert_mem_eq(made, "\0\4\3\4\0\6\1\2\3\4\5\6\0\0\x08\0", 16);
	p.is_tagged = true;
	ck_assert_uint_eq(ring_head(&p, false, true, made, &skip), 16);
	ck_assert_uint_eq(skip, 12);
	ck_assert_mem_eq(made, "abcdefABCDEF\x88\xa8\x20\x07", 16);
	ck_assert_uint_eq(ring_head(&p, true, false, made, &skip), 20);
	ck_assert_uint_eq(skip, 0);
	ck_assert_mem_eq(made + 14, "\x88\xa8\x20\x07\x08\0", 6);
	ck_assert_uint_eq(ring_head(&p, false, false, made, &skip), 0); /* raw IP has no place for a tag */
	p.len = 11;
	ck_assert_uint_eq(ring_head(&p, false, true, made, &skip), 0);
}
END_TEST

START_TEST(tags_of_the_kernel)
{
	static const struct {
		uint32_t status, tci;
		uint16_t tpid;
		bool is_tagged;
		uint16_t says;
	} kinds[] = {
	    {TP_STATUS_USER, 0, 0, false, 0x8100},
	    {TP_STATUS_VLAN_VALID, 0, 0x88a8, true, 0x8100},
	    {TP_STATUS_VLAN_VALID | TP_STATUS_VLAN_TPID_VALID, 0, 0x88a8, true, 0x88a8},
	    {TP_STATUS_VLAN_TPID_VALID, 5, 0, true, 0x8100},
	};
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		struct ring_reader r;
		struct ring_packet p;
		free_ring();
		new_ring();
		fill(0, 1);
		struct tpacket3_hdr *h = packet_at(0, FIRST_AT);
		h->tp_status = kinds[i].status;
		h->hv1.tp_vlan_tci = kinds[i].tci;
		h->hv1.tp_vlan_tpid = kinds[i].tpid;
		ring_reader_init(&r, memory, BLOCKS);
		ck_assert(ring_next(&r, &p));
		ck_assert_int_eq(p.is_tagged, kinds[i].is_tagged);
		ck_assert_uint_eq(p.tpid, kinds[i].says);
		ck_assert_uint_eq(p.tci, kinds[i].tci);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("ring");
	TCase *tc = tcase_create("ring");
	tcase_set_timeout(tc, 60);
	tcase_add_checked_fixture(tc, new_ring, free_ring);
	tcase_add_test(tc, blocks_in_turn);
	tcase_add_loop_test(tc, many_readers, 0, 20);
	tcase_add_test(tc, killed_between_stores);
	tcase_add_test(tc, damage);
	tcase_add_loop_test(tc, noise, 0, 200);
	tcase_add_test(tc, whose_it_is);
	tcase_add_test(tc, heads);
	tcase_add_test(tc, tags_of_the_kernel);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
