/* SPDX-License-Identifier: MIT
 *
 * capture: what the inputs of packets share: what a source and a batch of packets are, and their account. The rows of the
 * table (capture_pcap.c, dpdk.c, file.c) open devices and read them.
 */
#ifndef INPUT_CAPTURE_H
#define INPUT_CAPTURE_H

#include "types.h"

#include <string.h>

/* One device as one worker reads it. */
struct capture_source {
	struct source source; /* fd -1: the device has nothing to wait for, and is polled */
	void *impl; /* the row's */
	uint32_t mtu; /* of the interface; 0: not known */
	/* of the batch under way */
	unsigned n;
	char *at; /* the next packet goes here in the slab */
	uint64_t bytes, truncated;
};

/* Any process: "FILE:LINE: inputs.NAME", for check. Returns buf. */
enum { CAPTURE_WHERE_BYTES = 600 };
const char *capture_where(const struct conf_input *cf, const char *path, char *buf, size_t size);

enum {
	/* Frames of 65,552 bytes with their slack that fit into the slab of a receive batch together. */
	CAPTURE_COPIED_MAX = 60,
};

/* Worker: a source of the endpoint; fd is taken (-1: polled). NULL: no memory. */
struct capture_source *capture_source_new(struct input *in, struct endpoint *ep, int fd);

/* What the two below share: packet number cs->n is at `bytes`. The receive batch gets its length last, so that the master
 * counts whole packets only. */
static inline void capture_add(struct capture_source *cs, char *bytes, uint32_t len, uint32_t original_len,
			       uint64_t time_ns, uint32_t link_type)
{
	struct input *in = cs->source.in;
	unsigned i = cs->n++;
	in->batch.items[i] = (struct item){
	    .bytes = bytes, .len = len, .original_len = original_len, .time_ns = time_ns, .link_type = link_type};
	in->receive->iovecs[i] = (struct iovec){bytes, 0};
	in->receive->messages[i].msg_len = MAX(len, 1u); /* one that was cut to nothing counts as well */
	cs->bytes += len;
	cs->truncated += len < original_len;
}

/* Adds what was written at cs->at in the batch's slab. */
static inline void capture_added(struct capture_source *cs, uint32_t len, uint32_t original_len, uint64_t time_ns,
				 uint32_t link_type)
{
	char *at = cs->at;
	cs->at = at + ((len + BATCH_SLACK + 63) & ~63u);
	capture_add(cs, at, len, original_len, time_ns, link_type);
}

/* Adds a copy, in the batch's slab. The memory may be given back at once. */
static inline void capture_copy(struct capture_source *cs, const void *bytes, uint32_t len, uint32_t original_len,
				uint64_t time_ns, uint32_t link_type)
{
	memcpy(cs->at, bytes, len);
	capture_added(cs, len, original_len, time_ns, link_type);
}

/* Adds a packet in place: `bytes` stay good until `give`, and BATCH_SLACK bytes behind them may be read and written. */
static inline void capture_refer(struct capture_source *cs, void *bytes, uint32_t len, uint32_t original_len,
				 uint64_t time_ns, uint32_t link_type)
{
	capture_add(cs, bytes, len, original_len, time_ns, link_type);
}

/* One batch: `read` reads up to `max` packets (at most BATCH_ITEMS) and adds each by capture_copy or capture_refer; sets
 * s->drained and s->ended as input_type.read does. They are counted, and their payloads are found when lines are wanted. */
unsigned capture_read(struct source *s, struct batch *b, void (*read)(struct capture_source *cs, unsigned max));

#endif
