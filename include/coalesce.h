/* SPDX-License-Identifier: MIT
 *
 * coalesce: how datagrams gather before they are read (src/input/coalesce.c). Pure; the worker asks for each source.
 */
#ifndef COALESCE_H
#define COALESCE_H

#include <base.h>

/* Of one source. */
struct coalesce {
	uint64_t latency_us;	       /* how long a datagram may wait in all; 0: never */
	unsigned n_workers;	       /* that share the traffic */
	uint64_t receive_buffer_bytes; /* 0: not known */

	uint64_t window_us; /* start of the present window */
	uint64_t found;	    /* datagrams in it */
	uint64_t bytes;
	uint64_t per_s; /* of the last window */
	uint64_t bytes_per_s;
	uint64_t wait_us; /* the last answer */
	bool dense;	  /* so much comes that waiting saves CPU */
};

/* Notes what a drain found. Returns how long to wait before the next read: 0 says wait for readiness. */
uint64_t coalesce_wait_us(struct coalesce *c, uint64_t now_us, uint64_t found, uint64_t bytes);

/* What is left of the latency for a fuller segment, when outputs have their turn each wait_us: a record that is sent at the
 * first turn after that is not late. */
uint64_t coalesce_hold_us(const struct coalesce *c);

/* How long a source without a descriptor rests: it is polled, busy while packets come, then with rests that double from
 * POLL_FIRST_US to POLL_SOON_US, and from there grow slowly, over 250 ms without a packet, to POLL_LAST_US: a wake-up from
 * deep sleep takes 21 to 35 us on a virtual machine (measured: 2.2 % of a core with rests of 1 ms, 1.7 % with 2 ms, 0.6 %
 * with these). */
enum { POLL_FIRST_US = 50, POLL_SOON_US = 1000, POLL_LAST_US = 5000 };
uint64_t coalesce_poll_us(uint64_t last_us, uint64_t found);

#endif
