/* SPDX-License-Identifier: MIT
 *
 * risk: how many lines a lost TCP connection may have cost although the peer's kernel had acknowledged them: those that
 * its program had not read yet. Pure. An upper bound from what the sender can see:
 *
 *   0 ------------ checkpoint ----------- acked - window * RISK_WINDOWS ------------------ acked
 *                       |<------------- lines since here are at risk ---------------------->|
 *
 * The largest window that the peer offered alone is no bound. Measured on Linux 6.18, loopback, a peer that reads
 * nothing: 1.0 to 1.5 times that window lay unread when it was sent 1400 bytes or more at a time, 2.14 times with 60
 * bytes at a time (the kernel counts its own overhead per segment). Therefore RISK_WINDOWS. Beyond it: a peer that
 * raises SO_RCVBUF to 4 MiB on the accepted socket and is sent 60 bytes at a time never offers more than 64 KiB and
 * took 3.3 MB. Nothing that the sender sees tells that peer from one that reads.
 */
#ifndef OUTPUT_RISK_H
#define OUTPUT_RISK_H

#include <base.h>

enum { RISK_WINDOWS = 4, RISK_CHECKPOINTS = 16 };

struct risk_checkpoint {
	uint64_t bytes, lines;
};

struct risk {
	uint64_t bytes, lines; /* acknowledged on this connection */
	uint64_t window_bytes; /* the largest that the peer offered */
	unsigned n;
	struct risk_checkpoint at[RISK_CHECKPOINTS]; /* oldest first; none: the start of the connection */
};

/* A new connection. */
void risk_init(struct risk *k);
/* So many more bytes were acknowledged, and lines that ended within them; the peer offers this window. */
void risk_acked(struct risk *k, uint64_t bytes, uint64_t lines, uint64_t window_bytes);
/* Lines that end within the last RISK_WINDOWS windows of acknowledged bytes: never too few by the rule above, never
 * more than were acknowledged on this connection. */
uint64_t risk_lines(const struct risk *k);

#endif
