/* SPDX-License-Identifier: MIT
 *
 * What the reader's two formats share. Private to src/packet.
 *
 *   START ──pcap magic──> RECORD ⟲ one packet each
 *     └──pcapng magic──> BLOCK ──section, interface, packet or other──> SKIP (what is left of the block) ──> BLOCK
 *   any ──damage──> FAILED
 */
#ifndef PACKET_READER_H
#define PACKET_READER_H

#include <packet.h>

#include "bytes.h"

#define PCAPNG_SECTION 0x0a0d0d0au /* the same in either byte order */

enum reader_state { READER_START, READER_RECORD, READER_BLOCK, READER_SKIP, READER_FAILED };

enum reader_step {
	STEP_ON,     /* something was used, the next step can be tried */
	STEP_PACKET, /* *p is one */
	STEP_SHORT,  /* need_bytes are not there */
	STEP_FAILED,
};

/* What is left of the caller's bytes. */
struct reader_cut {
	const uint8_t *at;
	size_t len;
};

static inline uint16_t reader_u16(const struct packet_reader *r, const uint8_t *p)
{
	uint16_t v = load16le(p);
	return r->is_swapped ? __builtin_bswap16(v) : v;
}

static inline uint32_t reader_u32(const struct packet_reader *r, const uint8_t *p)
{
	uint32_t v = load32le(p);
	return r->is_swapped ? __builtin_bswap32(v) : v;
}

static inline bool reader_has(struct packet_reader *r, const struct reader_cut *c, size_t n)
{
	r->need_bytes = n;
	return c->len >= n;
}

static inline void reader_use(struct packet_reader *r, struct reader_cut *c, size_t n)
{
	c->at += n;
	c->len -= n;
	r->offset += n;
}

/* Sets the error's text, "at byte N" before it; the reader is READER_FAILED from now on. Returns STEP_FAILED. */
enum reader_step reader_fail(struct packet_reader *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

enum reader_step reader_block(struct packet_reader *r, struct reader_cut *c, struct packet_record *p);
enum reader_step reader_skip(struct packet_reader *r, struct reader_cut *c);

#endif
