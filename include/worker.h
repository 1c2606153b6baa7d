/* SPDX-License-Identifier: MIT
 *
 * worker: the life of a slot's tenant, from fork to _exit, and its link to the master. It reads inputs greedily, hands
 * batches to outputs, publishes its counters after each batch, and drains when it is told to or when the master is
 * gone.
 */
#ifndef WORKER_H
#define WORKER_H

#include <base.h>
#include <input.h>
#include <output.h>

/* One message of the link, a SOCK_SEQPACKET pair, in either direction. */
enum link_type {
	LINK_READY,   /* worker: serving */
	LINK_FATAL,   /* worker: cannot start; text says why. It leaves with WORKER_EXIT_FATAL */
	LINK_DRAIN,   /* master: read what is there, deliver, leave; value: microseconds until the deadline */
	LINK_ADOPT,   /* master: read this descriptor of input `input` for the vacant slot `slot`, too */
	LINK_RELEASE, /* master: `slot` has a tenant again */
	LINK_LOG,     /* master: value is the enum log_level */
	LINK_REOPEN,  /* master: append to this descriptor from now on; `input` is the output's index, or LINK_FILE_LOG */
	LINK_DONE,    /* worker: all of the finite input `input` is delivered, or given up and counted */
	LINK_PEERS,   /* worker: text is who our own outputs talk to: "10.0.0.1:9092,…" */

	/* a reload (docs/design.md): */
	LINK_SHARED,	 /* master: the descriptor of the new out->shared of output number `input`, before LINK_RELOAD */
	LINK_RELOAD,	 /* master: the descriptor holds the bytes of a configuration, new only in what is LIVE */
	LINK_APPLIED,	 /* worker: it is in effect; value as in LINK_RELOAD */
	LINK_END,	 /* master: after you, nobody reads endpoint `value` of `input`; LINK_WHOLE: it is gone */
	LINK_OUTPUT_ENDS, /* master: your successor has no output `input`: deliver what it holds, or give it up */
	LINK_RENAMED,	 /* master: after you, its connections are those of input `value` */
	LINK_LEAVE,	 /* master: make place for a successor, or (text "ends") nobody; value as in LINK_DRAIN */
	LINK_TERM,	 /* worker: somebody told it alone to end; the master says LINK_LEAVE, or LINK_DRAIN as to all */
	LINK_LEFT,	 /* worker: it reads nothing more, and has handed over its connections */
	LINK_LINES,	 /* either: a memfd with `value` records of output `input`, which its worker held and says last */
	LINK_GO,	 /* master: read, now; to a worker that holds */
	LINK_CONNECTION, /* either: struct link_connection with its descriptor: a connection for the input */
};
enum { LINK_FILE_LOG = 0xffff };
#define LINK_WHOLE UINT64_MAX
struct link_message {
	uint32_t type;
	uint32_t slot;
	uint32_t input; /* its index in stats, which is the same in old and new configurations */
	uint64_t value;
	char text[1024];
};
/* LINK_CONNECTION: value is odd while the rest of a too long line is skipped; value / 2 is the framing. As long as what was
 * kept of a line. */
struct link_connection {
	struct link_message head;
	char kept[LINE_MAX_BYTES + 1];
};
static inline size_t link_connection_bytes(size_t kept_bytes)
{
	return sizeof(struct link_message) + kept_bytes;
}

/* How a worker leaves. Anything else is a death. */
enum {
	WORKER_EXIT_CLEAN = 0, /* all that it took was delivered */
	WORKER_EXIT_LEFT = 3,  /* something was given up; the counters say what */
	WORKER_EXIT_FATAL = 70, /* it cannot work here: do not start it again */
};

/* What a worker needs of the master. All is made before fork. */
struct worker_setup {
	const struct conf *cf;
	const struct conf_args *args; /* with which the bytes of a reload are read */
	unsigned slot, n_slots;
	struct stats *stats;
	struct input *inputs;	/* [cf->n_inputs] */
	struct output *outputs; /* [cf->n_outputs] */
	bool holds;		/* say READY, but read nothing before LINK_GO */
	int link;		/* our end */
	const struct identity *identity; /* whom it becomes */
};

/* Runs in the child right after fork, with all signals blocked; never returns. */
_Noreturn void worker_run(const struct worker_setup *setup);

#endif
