/* SPDX-License-Identifier: MIT
 *
 * tap: what the files of the pcap driver share: one interface, with a ring for each slot.
 *
 *                    PACKET_FANOUT group             a ring belongs to its slot, as a socket does
 *   interface ───▶ ┌─ ring 0 ─▶ worker 0             master: makes it, filters it, joins it, asks its statistics
 *                  ├─ ring 1 ─▶ worker 1             worker: maps it and reads on where the one before ended
 *                  └─ …                              master: closes it when the slot ends, or needs another one
 *
 * A group is made whole: another number of slots, another size or another way to choose is another group beside it.
 *
 * libpcap compiles the filters, and says what kind of link an interface is.
 */
#ifndef INPUT_TAP_H
#define INPUT_TAP_H

#include "capture.h"
#include "ring.h"

#include <pcap/pcap.h>

struct ring {
	int fd; /* -1: none */
	unsigned ifindex, n_blocks;
	uint32_t link_type;
	uint64_t size_bytes;	  /* as it was asked for */
	unsigned filter;	  /* the tap's filter.number that is in effect */
	bool is_promiscuous;
	struct ring_place *place; /* master: in the one page that it maps; no child inherits that */
	uint64_t stored;	  /* master: packets that the kernel put into it, those that it leaves to another, too */
	uint64_t skipped;	  /* master: … of which so many are taken out of what it passed */
};

/* What libpcap made of the text, as the kernel takes it. */
struct tap_filter {
	struct text text;
	unsigned ifindex, number; /* 0: none yet */
	uint32_t link_type, snaplen;
	struct bpf_program program;
};

struct tap {
	struct ring *rings; /* [STATS_SLOTS_MAX], of which n_slots are in use */
	struct ring *next; /* likewise: for the next worker, where that reads another; in the group */
	unsigned n_slots;
	struct tap_filter filter;
	unsigned ifindex; /* of the interface of that name now; 0: there is none */
	bool is_up, is_any;
	bool is_told;		/* by a worker, who our outputs' peers are */
	bool has_new_peers;	/* … which the filters do not know yet */
	bool is_failing;	/* to tell them, the last time */
	struct text peers;				     /* of our own outputs, to be left out */
	uint64_t rx_packets, rx_missed, rx_fifo, rx_dropped; /* of the interface at the last look */
};

/* The ring that a worker that is forked now reads. */
static inline struct ring *tap_ring(const struct tap *tap, unsigned slot)
{
	return tap->next[slot].fd != -1 ? &tap->next[slot] : &tap->rings[slot];
}

/* -- tap_ring.c: master ------------------------------------------------------------------------------------------- */

/* New rings for all slots of `ep`, filtered, in a group of their own. They begin now, or, with ep->former, when
 * rings_follow says. 0, or -errno with one sentence, and there are none. */
int rings_open(struct tap *tap, const struct endpoint *ep, struct ring *rings, struct err *err);
/* Puts nothing more into the ring of fd. */
void ring_shut(int fd);
/* The rings of `tap` take in what those of `former` do, from a moment on that both know. */
void rings_follow(struct tap *tap, struct tap *former);
/* Whether the ring's group chooses as the option says. */
bool ring_has_fanout(int fd, const struct conf_input *cf);
/* The size that the ring of fd was asked for; 0: it has none that we know. */
uint64_t ring_asked_bytes(int fd);
/* A ring that this program had before an upgrade; fd is taken. 0, or -errno. */
int ring_adopt(struct ring *r, int fd);
/* Closes it, if there is one. Returns packets that were unread: stored and not taken, unless it was over. */
uint64_t ring_close(struct ring *r, struct stats_endpoint *st);
/* Reads the kernel's counters, which starts them anew. */
void ring_statistics(struct ring *r, struct stats_endpoint *st);
/* Packets that wait in it. */
uint64_t ring_waiting(const struct ring *r);
/* The present filter and promiscuous mode for a ring that is in use; no packet is lost. 0, or
 * -errno with err. */
int ring_adjust(struct tap *tap, const struct endpoint *ep, struct ring *r,
		struct err *err);

/* -- tap_filter.c -------------------------------------------------------------------------------------------------- */

/* "inbound", without the traffic of `peers` ("10.0.0.1:9092,[::1]:9092", or ""; what is no address
 * is left out), and with the user's filter. */
void tap_filter_make(struct text *t, const char *filter, const char *peers);
/* Master: compiles the present filter for the device, unless tap->filter is that already. 0, or
 * -errno with err. */
int tap_filter_renew(struct tap *tap, const struct endpoint *ep, struct err *err);
void tap_filter_fini(struct tap_filter *f);
/* The brokers of all kafka outputs that the configuration names, as addresses; what cannot be found
 * is left out, and named in `unknown`. Asks the system's resolver: master, at the start only. */
void tap_peers(const struct conf *cf, struct text *peers, struct text *unknown);

/* -- tap_interface.c: master --------------------------------------------------------------------------------------- */

/* Looks at the interface: is it there and up, and its own counters, added to the endpoint's. Says
 * changes once. */
void tap_look(struct tap *tap, const struct endpoint *ep, const char *device,
	      struct stats_endpoint *st);
/* Warns when frames are merged before we see them. */
void tap_offload_check(const struct endpoint *ep, const char *device);

#endif
