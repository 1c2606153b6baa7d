/* SPDX-License-Identifier: MIT
 *
 * pcapng_read: the blocks of a pcapng file (draft-ietf-opsawg-pcapng). Pure, any process. Of a packet block only its
 * head and packet must be in memory at once; options, padding and whole blocks that hold no packet are skipped as they
 * come, so their size does not matter. The length at a block's end must repeat the one at its begin.
 */
#include "reader.h"

#define BYTE_ORDER_MAGIC 0x1a2b3c4du
#define NS_PER_S UINT64_C(1000000000)

enum {
	BLOCK_INTERFACE = 1,
	BLOCK_PACKET_OBSOLETE = 2,
	BLOCK_PACKET_SIMPLE = 3,
	BLOCK_PACKET = 6,
	BLOCK_HEAD_BYTES = 8,
	BLOCK_TAIL_BYTES = 4,
	SECTION_BYTES = 16, /* of the body, before options */
	INTERFACE_BYTES = 8,
	PACKET_BYTES = 20,
	SIMPLE_BYTES = 4,
	OPTION_END = 0,
	OPTION_TSRESOL = 9,
	OPTION_TSOFFSET = 14,
	RESOLUTION_US = 6,
};

/* `bytes` of the block are used here, the rest of it is skipped. */
static void block_use(struct packet_reader *r, struct reader_cut *c, uint32_t bytes)
{
	reader_use(r, c, bytes);
	r->skip_bytes = r->block_bytes - BLOCK_TAIL_BYTES - bytes;
	r->state = READER_SKIP;
}

enum reader_step reader_skip(struct packet_reader *r, struct reader_cut *c)
{
	size_t n = MIN(r->skip_bytes, c->len);
	uint32_t tail;

	reader_use(r, c, n);
	r->skip_bytes -= (uint32_t)n;
	if (!reader_has(r, c, r->skip_bytes ? 1 : BLOCK_TAIL_BYTES))
		return STEP_SHORT;
	tail = reader_u32(r, c->at);
	if (tail != r->block_bytes)
		return reader_fail(r, "a block of %u bytes ends with the length %u: the file is damaged before this",
				   r->block_bytes, tail);
	reader_use(r, c, BLOCK_TAIL_BYTES);
	r->state = READER_BLOCK;
	return STEP_ON;
}

/* Reads the block's length into block_bytes; its head is there. */
static enum reader_step block_measure(struct packet_reader *r, const uint8_t *block, uint32_t body_bytes,
				      const char *name)
{
	r->block_bytes = reader_u32(r, block + 4);
	if (r->block_bytes < BLOCK_HEAD_BYTES + body_bytes + BLOCK_TAIL_BYTES || r->block_bytes % 4)
		return reader_fail(r, "%s block claims %u bytes, which it cannot have: the file is damaged here", name,
				   r->block_bytes);
	return STEP_ON;
}

static enum reader_step read_section(struct packet_reader *r, struct reader_cut *c)
{
	unsigned major;

	if (!reader_has(r, c, BLOCK_HEAD_BYTES + SECTION_BYTES))
		return STEP_SHORT;
	r->is_swapped = load32le(c->at + 8) != BYTE_ORDER_MAGIC;
	if (reader_u32(r, c->at + 8) != BYTE_ORDER_MAGIC)
		return reader_fail(r, "a section has no byte-order magic: the file is damaged here");
	if (block_measure(r, c->at, SECTION_BYTES, "a section") != STEP_ON)
		return STEP_FAILED;
	major = reader_u16(r, c->at + 12);
	if (major != 1)
		return reader_fail(r, "its pcapng version is %u.%u, known is 1.x: convert it with editcap", major,
				   reader_u16(r, c->at + 14));
	r->n_interfaces = 0;
	block_use(r, c, BLOCK_HEAD_BYTES + SECTION_BYTES);
	return STEP_ON;
}

static enum reader_step read_option(struct packet_reader *r, struct packet_interface *i, unsigned code,
				    const uint8_t *value, unsigned len)
{
	uint64_t first, second;

	if (code == OPTION_TSRESOL) {
		if (len != 1)
			return reader_fail(r, "an interface's if_tsresol has %u bytes, not 1", len);
		i->resolution = value[0];
	} else if (code == OPTION_TSOFFSET) {
		if (len != 8)
			return reader_fail(r, "an interface's if_tsoffset has %u bytes, not 8", len);
		first = reader_u32(r, value);
		second = reader_u32(r, value + 4);
		i->offset_s = (int64_t)(r->is_swapped ? first << 32 | second : second << 32 | first);
	}
	return STEP_ON;
}

static enum reader_step read_options(struct packet_reader *r, struct packet_interface *i, const uint8_t *p, size_t left)
{
	while (left >= 4) {
		unsigned code = reader_u16(r, p), len = reader_u16(r, p + 2);
		size_t padded = 4 + ((len + 3u) & ~3u);

		if (code == OPTION_END)
			break;
		if (padded > left)
			return reader_fail(r, "option %u of an interface is longer than its block", code);
		if (read_option(r, i, code, p + 4, len) != STEP_ON)
			return STEP_FAILED;
		p += padded;
		left -= padded;
	}
	return STEP_ON;
}

static enum reader_step read_interface(struct packet_reader *r, struct reader_cut *c)
{
	struct packet_interface i = {.resolution = RESOLUTION_US};
	size_t head = BLOCK_HEAD_BYTES + INTERFACE_BYTES;

	if (block_measure(r, c->at, INTERFACE_BYTES, "an interface") != STEP_ON)
		return STEP_FAILED;
	if (r->block_bytes > PACKET_READER_BUFFER_BYTES)
		return reader_fail(r, "an interface block of %u bytes is above %u", r->block_bytes,
				   (unsigned)PACKET_READER_BUFFER_BYTES);
	if (r->n_interfaces == PACKET_INTERFACES)
		return reader_fail(r, "a section has more than %u interfaces: split the file with editcap",
				   (unsigned)PACKET_INTERFACES);
	if (!reader_has(r, c, r->block_bytes - BLOCK_TAIL_BYTES))
		return STEP_SHORT;
	i.link_type = reader_u16(r, c->at + 8);
	i.snaplen = reader_u32(r, c->at + 12);
	if (read_options(r, &i, c->at + head, r->block_bytes - BLOCK_TAIL_BYTES - head) != STEP_ON)
		return STEP_FAILED;
	r->interfaces[r->n_interfaces++] = i;
	block_use(r, c, r->block_bytes - BLOCK_TAIL_BYTES);
	return STEP_ON;
}

/* Units since 1970 (and the interface's offset) to nanoseconds; 0 where 64 bits cannot say it. */
static uint64_t time_ns(const struct packet_interface *i, uint64_t units)
{
	unsigned exponent = i->resolution & 0x7f;
	__int128 ns = units; /* grows to 94 bits at most */

	if (i->resolution & 0x80) {
		ns = ns * (int64_t)NS_PER_S >> exponent;
	} else {
		for (; exponent < 9; exponent++)
			ns *= 10;
		for (; exponent > 9 && ns; exponent--)
			ns /= 10;
	}
	ns += (__int128)i->offset_s * (int64_t)NS_PER_S;
	return ns < 0 || ns > UINT64_MAX ? 0 : (uint64_t)ns;
}

/* The block's head is there; `head` bytes of it stand before the packet. */
static enum reader_step give_packet(struct packet_reader *r, struct reader_cut *c, struct packet_record *p,
				    uint32_t head, uint32_t len)
{
	if (len > PACKET_MAX_BYTES)
		return reader_fail(r, "a packet claims %u bytes, above %u: the file is damaged here", len,
				   (unsigned)PACKET_MAX_BYTES);
	if (len > r->block_bytes - BLOCK_TAIL_BYTES - head)
		return reader_fail(r, "a packet of %u bytes in a block of %u: the file is damaged here", len,
				   r->block_bytes);
	if (p->interface >= r->n_interfaces)
		return reader_fail(r, "a packet of interface %u, but the section has %u so far", p->interface,
				   r->n_interfaces);
	if (!reader_has(r, c, head + len))
		return STEP_SHORT;
	p->bytes = c->at + head;
	p->len = len;
	p->original_len = MAX(p->original_len, len);
	p->link_type = r->interfaces[p->interface].link_type;
	block_use(r, c, head + len);
	return STEP_PACKET;
}

static enum reader_step read_packet(struct packet_reader *r, struct reader_cut *c, struct packet_record *p,
				    bool is_obsolete)
{
	const uint8_t *body = c->at + BLOCK_HEAD_BYTES;
	uint64_t units;
	enum reader_step step;

	if (block_measure(r, c->at, PACKET_BYTES, "a packet") != STEP_ON)
		return STEP_FAILED;
	if (!reader_has(r, c, BLOCK_HEAD_BYTES + PACKET_BYTES))
		return STEP_SHORT;
	*p = (struct packet_record){
		.interface = is_obsolete ? reader_u16(r, body) : reader_u32(r, body),
		.original_len = reader_u32(r, body + 16),
	};
	units = (uint64_t)reader_u32(r, body + 4) << 32 | reader_u32(r, body + 8);
	step = give_packet(r, c, p, BLOCK_HEAD_BYTES + PACKET_BYTES, reader_u32(r, body + 12));
	if (step == STEP_PACKET)
		p->time_ns = time_ns(&r->interfaces[p->interface], units);
	return step;
}

/* Has no length of its own: what was captured is the packet up to its interface's snaplen. */
static enum reader_step read_simple(struct packet_reader *r, struct reader_cut *c, struct packet_record *p)
{
	uint32_t len;

	if (block_measure(r, c->at, SIMPLE_BYTES, "a simple packet") != STEP_ON)
		return STEP_FAILED;
	if (!reader_has(r, c, BLOCK_HEAD_BYTES + SIMPLE_BYTES))
		return STEP_SHORT;
	len = reader_u32(r, c->at + BLOCK_HEAD_BYTES);
	*p = (struct packet_record){.original_len = len};
	if (r->n_interfaces && r->interfaces[0].snaplen)
		len = MIN(len, r->interfaces[0].snaplen);
	return give_packet(r, c, p, BLOCK_HEAD_BYTES + SIMPLE_BYTES, len);
}

enum reader_step reader_block(struct packet_reader *r, struct reader_cut *c, struct packet_record *p)
{
	uint32_t type;

	if (!reader_has(r, c, BLOCK_HEAD_BYTES))
		return STEP_SHORT;
	type = reader_u32(r, c->at);
	switch (type) {
	case PCAPNG_SECTION:
		return read_section(r, c);
	case BLOCK_INTERFACE:
		return read_interface(r, c);
	case BLOCK_PACKET:
	case BLOCK_PACKET_OBSOLETE:
		return read_packet(r, c, p, type == BLOCK_PACKET_OBSOLETE);
	case BLOCK_PACKET_SIMPLE:
		return read_simple(r, c, p);
	default:
		if (block_measure(r, c->at, 0, "a") != STEP_ON)
			return STEP_FAILED;
		r->skipped_blocks++;
		block_use(r, c, BLOCK_HEAD_BYTES);
		return STEP_ON;
	}
}
