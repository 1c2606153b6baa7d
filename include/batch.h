/* SPDX-License-Identifier: MIT
 *
 * batch: what inputs hand to outputs: items as they were read, lines as they were cut.
 * No code: the shapes on which src/input and src/output agree.
 */
#ifndef BATCH_H
#define BATCH_H

#include <base.h>
#include <sys/socket.h>

enum {
	BATCH_ITEMS = 64,	  /* datagrams that one recvmmsg reads */
	BATCH_LINES = 512,	  /* lines that are cut before the outputs get their turn: 12 KiB, stays in L1 */
	BATCH_ITEM_BYTES = 65536, /* room for one datagram: 65,507 is the longest that UDP can carry */
	BATCH_SLACK = 64,	  /* bytes behind an item that may be read and written: scanners go over the end */
	BATCH_OUTPUTS = 64,	  /* outputs of one configuration */
	LINE_MAX_BYTES = 65507,	  /* a longer line is counted as too long and skipped to its newline */
};

/* One datagram or packet as an input read it. `bytes` is borrowed for the time of the call. */
struct item {
	char *bytes;
	uint32_t len;
	uint32_t original_len;		     /* more than len: it was cut */
	uint64_t time_ns;		     /* received or captured, since 1970; 0: not known, take the present */
	uint32_t link_type;		     /* of a packet: PACKET_LINK_…; else not used */
	const struct sockaddr_storage *from; /* sender; NULL: not known */
};

/* One line to forward: `len` bytes without CR and newline, `key_len` of them, from `key_at` on, are the key. `bytes[len]`
 * may be read and has BATCH_SLACK bytes behind it. */
struct line {
	const char *bytes;
	uint32_t len;
	uint32_t key_len;
	uint32_t hash; /* hash_murmur3_32 of the key, seed HASH_STATSRELAY_SEED */
	uint32_t key_at; /* 0, but of DogStatsD's events and service checks */
};

/* What every output of one input gets. Outputs of lines take `lines`, outputs of datagrams or packets take `items`.
 * The batch remembers how far each output took it: with overflow `block` an output may stop in the middle, then the
 * input reads nothing more until that output took the rest. */
struct batch {
	struct item *items;
	unsigned n_items;
	struct line *lines;
	unsigned n_lines;
	unsigned taken[BATCH_OUTPUTS]; /* records, by the output's index */
	uint64_t offered;	       /* bit of the output's index: it has counted this batch as offered */
};

#endif
