/* SPDX-License-Identifier: MIT
 *
 * worker: the life of a slot's worker, from fork to _exit, and its link to the master. It reads inputs greedily, hands
 * batches to outputs, publishes its counters after each batch, and drains when it is told to or when the master is
 * gone.
 */
#ifndef WORKER_H
#define WORKER_H

#include <base.h>
#include <handover.h>
#include <input.h>
#include <output.h>

/* One message of the link, a SOCK_SEQPACKET pair, in either direction. Things are called by their names: after an upgrade
 * in place a worker talks to a master of another build. Later versions keep these types and only add to them. */
enum { LINK_VERSION = 1 };
enum link_type {
	LINK_READY,  /* worker: it serves, or waits for what its predecessor hands over */
	LINK_FATAL,  /* worker: cannot start; text says why. It leaves with WORKER_EXIT_FATAL */
	LINK_DRAIN,  /* master: read what is there, deliver, leave; value: microseconds until the deadline */
	LINK_LEND,   /* master: with a descriptor: read it, too, of input `name`, for the vacant `slot`; without: no more */
	LINK_LOG,    /* master: value is the enum log_level */
	LINK_REOPEN, /* master: append to this descriptor from now on: output `name`, or "" for the log */
	LINK_DONE,   /* worker: all of the finite input `name` is delivered, or given up and counted */
	LINK_PEERS,  /* worker: text is who our own outputs talk to: "10.0.0.1:9092,…" */

	/* a handover (docs/design.md): */
	LINK_GONE,  /* master: what nobody goes on with after you; value: enum link_gone */
	LINK_LEAVE, /* master: hand over on the channel that comes with it, then leave; value as in LINK_DRAIN; slot: whose
		     * worker takes over: another one's when yours ends */
	LINK_TAKE,  /* master, to a worker that serves: take over from this channel, too */
	LINK_TAKEN, /* worker: all that came over a channel is taken over; `slot` is whose it was */
	LINK_LEFT,  /* worker: it reads nothing more, and has handed over: it waits for what is in flight */
	LINK_TERM,  /* worker: somebody told it alone to end; the master says LINK_LEAVE, or LINK_DRAIN as to all */
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
	uint32_t reserved;
	uint64_t value;
	char name[HANDOVER_NAME_BYTES];
	char text[1024];
};

/* How a worker leaves. Anything else is a death. */
enum {
	WORKER_EXIT_CLEAN = 0, /* all that it took was delivered */
	WORKER_EXIT_LEFT = 3,  /* something was given up; the counters say what */
	WORKER_EXIT_FATAL = 70, /* it cannot work here: do not start it again */
};

/* What a worker needs of the master. All is made before fork. */
struct worker_setup {
	const struct conf *cf;
	unsigned slot, n_slots;
	bool are_stored; /* sockets outlive all of us: see src/master/store.c */
	unsigned which; /* of the slot's two pages and receive batches is ours */
	struct stats *stats;
	struct registry *registry;
	struct receive *receive;
	struct input *inputs;	/* [cf->n_inputs] */
	struct output *outputs; /* [cf->n_outputs] */
	int channel; /* what a predecessor hands over comes here: read nothing before its end; -1: there is none */
	int link;		/* our end */
	const struct identity *identity; /* whom it becomes */
};

/* Runs in the child right after fork, with all signals blocked; never returns. */
_Noreturn void worker_run(const struct worker_setup *setup);

#endif
