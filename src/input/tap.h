/* SPDX-License-Identifier: MIT
 *
 * tap: what the files of the pcap driver share: one interface, with a ring (a libpcap handle) for each slot.
 *
 *                    PACKET_FANOUT group             a ring's life
 *   interface ───▶ ┌─ ring 0 ─▶ worker 0             master: create, activate, filter, join, discard what came before
 *                  ├─ ring 1 ─▶ worker 1             worker: reads; counts what it took in shared memory
 *                  └─ …                              master: closes it when the worker is gone, counts what was unread
 */
#ifndef INPUT_TAP_H
#define INPUT_TAP_H

#include "capture.h"

#include <pcap/pcap.h>

/* Written by the slot's tenant, read by the master. */
struct tap_taken {
	_Alignas(64) uint64_t packets; /* taken out of the ring, those that were discarded included */
	bool has_ended;                /* it reads no more: libpcap found no interface of that name */
};

struct ring {
	pcap_t *pcap; /* NULL: none */
	int fd;
	uint32_t link_type;
	unsigned ifindex;
	uint32_t mark_bytes; /* captured of a packet that the filter only marked */
	uint64_t discard; /* the first so many packets came before the ring joined the group: others had them */
	uint64_t stored;  /* master: packets that the kernel put into the ring, those to be discarded included */
};

struct tap {
	struct ring *rings;      /* [STATS_SLOTS_MAX], of which n_slots are in use */
	struct tap_taken *taken; /* likewise, shared memory */
	struct ring next;	 /* for the successor of slot next_slot's tenant; in the group already */
	unsigned next_slot;
	unsigned n_slots, n_live;
	int group;        /* fanout id; -1: none yet */
	bool is_heir;	  /* the first ring joins a group that a predecessor has made */
	unsigned ifindex; /* of the interface of that name now; 0: there is none */
	bool is_up, is_any;
	struct text peers;                                   /* of our own outputs, to be left out */
	uint64_t rx_packets, rx_missed, rx_fifo, rx_dropped; /* of the interface at the last look */
};

/* -- tap_ring.c ---------------------------------------------------------------------------------------------------- */

/* Rings that are open on the interface of this index: a group is of one interface, and one that was removed and made
 * again is another. */
unsigned tap_live(const struct tap *tap, unsigned ifindex);
/* Master: a new ring, in the group, filtered. 0, or -errno with one sentence, and *r is none. */
int ring_open(struct tap *tap, const struct endpoint *ep, const char *device, struct ring *r, struct err *err);
/* Closes it. Returns packets that were unread: stored, not to be discarded and not taken. */
uint64_t ring_close(struct ring *r, uint64_t taken, struct stats_endpoint *st);
/* Master: reads the kernel's counters, which starts them anew. */
void ring_statistics(struct ring *r, int fd, struct stats_endpoint *st);
/* The filter of a ring, live or not, is replaced without losing a packet. 0, or -errno with err. */
int ring_filter(struct ring *r, const struct endpoint *ep, const char *peers, struct err *err);
/* Worker: the packet came around the join, and may have been given to another ring, too: its content was not kept. */
static inline bool ring_is_marked(const struct ring *r, const struct pcap_pkthdr *h)
{
	return h->caplen <= r->mark_bytes && h->len > h->caplen;
}
/* Worker: nothing new comes into the ring. */
void ring_shut(struct ring *r);

/* -- tap_filter.c: pure, but for names that are looked up ------------------------------------------------------------
 */

/* "inbound", without the traffic of `peers` ("10.0.0.1:9092,[::1]:9092", or ""), and with the user's filter. */
void tap_filter_make(struct text *t, const char *filter, const char *peers);
/* The brokers of all kafka outputs that the configuration names, as addresses; what cannot be found is left out, and
 * named in `unknown`. Asks the system's resolver: master, at the start only. */
void tap_peers(const struct conf *cf, struct text *peers, struct text *unknown);

/* -- tap_interface.c: master ------------------------------------------------------------------------------------------
 */

/* Looks at the interface: is it there and up, and its own counters, added to the endpoint's. Says changes once. */
void tap_look(struct tap *tap, const struct endpoint *ep, const char *device, struct stats_endpoint *st);
/* Warns when frames are merged before we see them. */
void tap_offload_check(const struct endpoint *ep, const char *device);

#endif
