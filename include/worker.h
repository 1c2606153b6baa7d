/* SPDX-License-Identifier: MIT
 *
 * worker: the life of a slot's worker, from fork to _exit, and its link to the master. It reads inputs greedily, hands
 * batches to outputs, publishes its counters after each batch, and drains when it is told to or when the master is
 * gone.
 */
#ifndef WORKER_H
#define WORKER_H

#include <base.h>
#include <input.h>
#include <link.h>
#include <output.h>

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
