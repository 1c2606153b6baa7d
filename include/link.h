/* SPDX-License-Identifier: MIT
 *
 * link: what the master and its children, workers and the monitor, say to each other: one message of the link, a
 * SOCK_SEQPACKET pair, in either direction. The end of it: the other side is gone, or has no more need of us.
 */
#ifndef LINK_H
#define LINK_H

#include <handover.h>
#include <stdint.h>

/* Things are called by their names: after an upgrade in place a worker talks to a master of another build. Later versions
 * keep these types and only add to them. */
enum { LINK_VERSION = 1 };
enum link_type {
	LINK_READY,    /* worker: it serves, or waits for what its predecessor hands over; monitor: it samples */
	LINK_FATAL,    /* worker: cannot start; text says why. It leaves with WORKER_EXIT_FATAL */
	LINK_LEND = 3, /* (2 was another one) master: with a descriptor: read it, too, of input `name`, for the vacant
			* `slot`; without: no more */
	LINK_LOG,      /* master: value is the enum log_level */
	LINK_REOPEN,   /* master: append to this descriptor from now on: output `name`, or "" for the log, which goes to
			* `value`, an enum log_target; without one when that is no file */
	LINK_DONE,     /* worker: all of the finite input `name` is delivered, or given up and counted */
	LINK_PEERS,    /* worker: text is who our own outputs talk to: "10.0.0.1:9092,…" */

	/* a handover (docs/design.md): */
	LINK_GONE,  /* master: what nobody goes on with after you; value: enum link_gone */
	LINK_LEAVE, /* master: leave; value: microseconds until the deadline. With a name: hand over on the channel; slot:
		     * whose worker takes over, another one's when yours ends. Without: all end; read what is there, deliver
		     * it */
	LINK_TAKE,  /* master, to a worker that serves: take over from this channel, too */
	LINK_TAKEN, /* worker: all that came over a channel is taken over; `slot` is whose it was */
	LINK_LEFT,  /* worker: it reads nothing more, and has handed over: it waits for what is in flight */
	LINK_TERM,  /* worker: somebody told it alone to end; the master says LINK_LEAVE, with a channel or as to all */

	/* of the monitor: */
	LINK_NAME, /* monitor: name block `slot` of scope `value` of its page in the directory, whose one writer is the
		    * master, as stats_name: parent, name ("": takes the entry out again), unit in text */
	LINK_PAGE, /* monitor: send the files of the counter pages from number `value` on; master: file number `value` */
	LINK_HTTP, /* master: serve at the socket that comes with it, of port `value`; without one: nowhere */
};
enum link_gone {
	LINK_GONE_INPUT,    /* `name`: its connections are read and closed */
	LINK_GONE_ENDPOINT, /* text, an address of input `name`: what waits there is read */
	LINK_GONE_OUTPUT,   /* `name`: what it holds is delivered by you, or given up */
	LINK_GONE_NAME,	    /* input `name` goes on as input text */
};
struct link_message {
	uint32_t version, type;
	uint32_t slot;
	uint32_t parent; /* LINK_NAME */
	uint64_t value;
	char name[HANDOVER_NAME_BYTES];
	char text[1024];
};

#endif
