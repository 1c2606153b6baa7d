/* SPDX-License-Identifier: MIT
 *
 * capture: what the drivers of `type: capture` share. A driver is one table of functions; capture.c chooses it for each
 * endpoint and does the rest: endpoints, accounts, what a batch of packets is. A driver opens devices and reads
 * packets.
 */
#ifndef INPUT_CAPTURE_H
#define INPUT_CAPTURE_H

#include "types.h"

#include <string.h>

/* One device as one worker reads it. */
struct capture_source {
	struct source source; /* fd -1: the device has nothing to wait for, and is polled */
	struct endpoint *ep;
	const struct capture_driver *driver;
	void *impl; /* the driver's */
	/* of the batch under way */
	unsigned n;
	char *at; /* the next packet goes here in the slab */
	uint64_t bytes, truncated;
};

struct capture_driver {
	const char *name; /* as in the configuration */
	uint64_t capabilities; /* that the master needs to bind and renew */
	/* Master and -t: what is wrong with the options. Adds lines "WHERE: what"; returns how many. NULL: nothing to
	 * check. */
	size_t (*check)(const struct conf_input *cf, const char *where, struct text *errors);
	/* Master, for driver: auto: whether the device is this driver's. */
	bool (*is_mine)(const struct conf_input *cf, const char *device);
	/* Master, before fork: handles or queues of all slots for ep->name: ep->impl, and ep->n_fds = n_slots blocks of
	 * counters; ep->fds[slot] is -1 where there is no descriptor. 0, or -errno with one sentence. */
	int (*bind)(struct input *in, struct endpoint *ep, struct err *err);
	void (*unbind)(struct input *in, struct endpoint *ep);
	/* The same as in struct input_type, for one endpoint. NULL: nothing to do. */
	void (*keep)(struct input *in, struct endpoint *ep, unsigned slot, int *keep, size_t *n);
	uint64_t (*died)(struct input *in, struct endpoint *ep, unsigned slot, bool is_last,
			 struct stats_page *master_page);
	void (*renew)(struct input *in, struct endpoint *ep, unsigned slot, struct stats_page *master_page);
	void (*prepare_successor)(struct input *in, struct endpoint *ep, unsigned slot);
	/* Master: the fanout group, for a successor's rings; -1: none. NULL: it cannot be taken over. */
	int (*group)(const struct endpoint *ep);
	int (*adjust)(struct input *in, struct endpoint *ep, struct err *err);
	bool (*is_stale)(const struct input *in, const struct endpoint *ep, unsigned slot);
	void (*label)(struct input *in, struct endpoint *ep, struct stats *stats);
	void (*kernel_drops)(struct input *in, struct endpoint *ep, struct stats_page *master_page);
	void (*exclude)(struct input *in, struct endpoint *ep, const char *peers);
	/* Worker: makes the source of in->slot by capture_source_new; none is fine (the device is away). 0, or -errno.
	 */
	int (*open)(struct input *in, struct endpoint *ep, struct err *err);
	/* Worker: reads up to `max` packets (at most BATCH_ITEMS) and adds each by capture_copy or capture_refer. Sets
	 * s->drained and s->ended as input_type.read does. */
	void (*read)(struct capture_source *cs, unsigned max);
	/* Worker: the batch is taken: memory that capture_refer lent goes back to the device. NULL: nothing is lent. */
	void (*give)(struct capture_source *cs);
	/* Worker: takes in nothing new from now on; what is there can still be read. */
	void (*drain)(struct capture_source *cs);
	/* Worker: closes; capture.c frees the source. */
	void (*end)(struct capture_source *cs);
};

extern const struct capture_driver capture_pcap; /* capture_pcap.c */
extern const struct capture_driver capture_dpdk; /* dpdk.c, when built in */

enum {
	/* Frames of 65,552 bytes with their slack that fit into a hand's slab together. */
	CAPTURE_COPIED_MAX = 60,
};

/* Worker: a source of the endpoint; fd is taken (-1: polled). NULL: no memory. */
struct capture_source *capture_source_new(struct input *in, struct endpoint *ep, int fd);

/* What the two below share: packet number cs->n is at `bytes`. The hand names its length last, so that the master
 * counts whole packets only. */
static inline void capture_add(struct capture_source *cs, char *bytes, uint32_t len, uint32_t original_len,
			       uint64_t time_ns, uint32_t link_type)
{
	struct input *in = cs->source.in;
	unsigned i = cs->n++;
	in->batch.items[i] = (struct item){
	    .bytes = bytes, .len = len, .original_len = original_len, .time_ns = time_ns, .link_type = link_type};
	in->hand->iovecs[i] = (struct iovec){bytes, 0};
	in->hand->messages[i].msg_len = MAX(len, 1u); /* one that was cut to nothing counts as well */
	cs->bytes += len;
	cs->truncated += len < original_len;
}

/* Adds what was written at cs->at in the hand's slab. */
static inline void capture_added(struct capture_source *cs, uint32_t len, uint32_t original_len, uint64_t time_ns,
				 uint32_t link_type)
{
	char *at = cs->at;
	cs->at = at + ((len + BATCH_SLACK + 63) & ~63u);
	capture_add(cs, at, len, original_len, time_ns, link_type);
}

/* Adds a copy, in the hand's slab. The driver may give its memory back at once. */
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

/* Counts a batch of `n` packets that lies in the hand and in in->batch.items, and finds their payloads when lines are
 * wanted. For inputs of packets. */
void capture_count(struct input *in, unsigned n, uint64_t bytes, uint64_t truncated);

#endif
