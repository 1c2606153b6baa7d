/* SPDX-License-Identifier: MIT
 *
 * handover: what a worker that leaves says to its successor, over a direct channel (a SOCK_SEQPACKET pair). The two may
 * be of different builds (an upgrade), so everything is called by its name and versions only grow: what a receiver does
 * not know it counts and closes.
 *
 *   predecessor                                   successor
 *   CONNECTION … (accepted, of an input) ───────▶  goes on with its unfinished line
 *   QUEUES (memory of an output's queues) ──────▶  maps it
 *   BACKEND … (connection and its queue) ───────▶  goes on at the next byte
 *   RECORDS (memfd, what a Kafka output held) ──▶  queues them
 *   END, or the end of the channel ─────────────▶  connects what did not come, reads
 */
#ifndef HANDOVER_H
#define HANDOVER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { HANDOVER_VERSION = 1, HANDOVER_NAME_BYTES = 264, HANDOVER_BYTES_MAX = 70000 };

enum handover_type {
	HANDOVER_CONNECTION,
	HANDOVER_QUEUES,
	HANDOVER_BACKEND,
	HANDOVER_RECORDS,
	HANDOVER_END,
};

/* The head of each message; what follows it is the type's own. */
struct handover {
	uint32_t version, type;
	uint64_t records;		/* that are handed over with it: whoever cannot take them counts them */
	char name[HANDOVER_NAME_BYTES]; /* of the input or output */
};

/* Sends one message with at most one descriptor (-1: none; it stays the caller's). Waits while the channel is full, and
 * while the user has too many descriptors in flight (ETOOMANYREFS, man 7 unix: the socket stays writable, only time
 * helps), at most until deadline_us (clock_us). 0 or -errno. */
int handover_send(int channel, const void *msg, size_t len, int fd, uint64_t deadline_us);

#endif
