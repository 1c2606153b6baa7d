/* SPDX-License-Identifier: MIT
 *
 * statsite_handover: what two workers, maybe of different builds, say to each other of backends. Later versions only add
 * fields at the end; whoever does not know them leaves them.
 *
 *   HANDOVER_QUEUES   the memfd of one region of queue memory, before each backend that has chunks there
 *   HANDOVER_BACKEND  a connection, and what is queued behind it; its chunks are described in the sender's own region
 *
 *   memfd of the sender:  slab 0 | slab 1 | … | struct handed_chunk …
 */
#ifndef OUTPUT_STATSITE_HANDOVER_H
#define OUTPUT_STATSITE_HANDOVER_H

#include <handover.h>

#include "risk.h"

struct handed_queues {
	struct handover head; /* records: 0 */
	uint64_t sender;      /* id of its own region */
	uint64_t bytes;	      /* of slabs */
};

struct handed_chunk {
	uint64_t region; /* its id */
	uint64_t offset;
	uint32_t begin, used, lines, room; /* as in struct chunk */
};

struct handed_risk {
	uint64_t bytes, lines, window_bytes, n;
	struct {
		uint64_t bytes, lines;
	} at[RISK_CHECKPOINTS];
};

struct handed_backend {
	struct handover head; /* records: unsent and in flight */
	char backend[HANDOVER_NAME_BYTES];
	char host[HANDOVER_NAME_BYTES];
	char transport[8]; /* "tcp", "udp" */
	uint32_t port;
	uint32_t is_up; /* the descriptor is its connection */
	/* the queue */
	uint64_t sender;    /* id of the region that describes its chunks … */
	uint64_t chunks_at; /* … from here on */
	uint32_t n_chunks, send_chunk;
	uint32_t ack_off, ack_lines, line_off, send_off, send_lines; /* as in struct queue */
	uint32_t is_down_logged, is_dropping;
	union {
		uint32_t user_timeout_ms; /* up: that its connection has; 0: not told */
		uint32_t is_refused;	  /* not up: by refusals of datagrams */
	};
	/* up */
	uint64_t connected_us, sent_bytes, acked_bytes, acked_base_bytes;
	struct handed_risk risk;
	/* not up; times are of clock_us, which all processes share */
	uint64_t delay_us, retry_us; /* the wait as it is now, and what is left of it */
	uint64_t down_us, dropped_since_down;
	/* dropping */
	uint64_t dropping_since_us, last_drop_us, dropped_since;
};

#endif
