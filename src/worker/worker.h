/* SPDX-License-Identifier: MIT
 *
 * What the files of a worker share.
 */
#ifndef WORKER_PRIVATE_H
#define WORKER_PRIVATE_H

#include <net_link.h>
#include <sys/queue.h>
#include <worker.h>

enum worker_stage {
	WORKER_AWAITING, /* what a predecessor hands over; nothing is read before */
	WORKER_SERVING,
	WORKER_DRAINING_INPUTS,  /* reading what the kernel holds already */
	WORKER_DRAINING_OUTPUTS, /* waiting for the last acknowledgement */
	WORKER_DONE,
};

struct takeover;

struct worker {
	const struct worker_setup *setup;
	const struct conf *cf;
	unsigned slot;
	struct ev_loop *loop;
	struct stats_page *page;
	struct stats_worker *stats;
	struct stats_copy *all; /* for "status"; made when first asked for */
	struct input *inputs;
	struct output *outputs;
	size_t n_inputs, n_outputs;
	enum worker_stage stage;
	enum input_leave leave;
	uint64_t left_before; /* by the slot's earlier workers, and by this one until it drained */
	unsigned dense_sources; /* that rest between reads */
	bool has_finite;	/* inputs that end by themselves */
	char *peers[CONF_OUTPUTS_MAX]; /* of each output: whom it talks to */

	struct source *ready;   /* have more: read at the next turn */
	struct source *waiting; /* rest until the tick */
	struct ev_idle again;   /* keeps the loop from waiting while `ready` is not empty */
	struct ev_io tick;      /* a timerfd: libev's timers have a grain of 1 ms */
	bool tick_is_set;
	uint64_t tick_at_us; /* when it is set: then */

	struct ev_prepare before_wait;
	struct net_link link;
	struct ev_io signals;
	struct ev_timer deadline;
	uint64_t deadline_at_us;
	int channel; /* to whom we hand over; -1: nobody */
	unsigned channel_slot; /* whose worker that is */
	LIST_HEAD(, takeover) takeovers;
	bool drain_awaits; /* a drain came while we waited for our predecessor */
};

/* drain.c: reading, from the loop. */
int drain_init(struct worker *w, struct err *err);
/* An output has room again: goes on with what it held back. */
void drain_resume(struct output *out);
void source_opened(struct source *s);
void source_readable(struct source *s);
void source_closing(struct source *s);
/* The inputs were told how to leave: reads what ends once more, hands over what can be, lets go of the rest. */
void drain_all(struct worker *w);
/* All sources are watched, or read at the next turn, from now on. */
void drain_begin(struct worker *w);
bool inputs_are_empty(const struct worker *w);

/* link.c */
void link_init(struct worker *w);
void link_send(struct worker *w, const struct link_message *msg);
void link_say(struct worker *w, enum link_type type, const char *text); /* … with only a text */
_Noreturn void link_fatal(struct worker *w, const char *text); /* says why, and leaves */

/* handover.c */
/* Takes over what comes on `channel` (takes it), of the worker of `slot`. 0 or -errno. */
int handover_open(struct worker *w, int channel, unsigned slot);
/* We leave ourselves: what has not come yet is for somebody else, whom the master finds. */
void handover_leave(struct worker *w);
/* Input's on_pass: this connection goes to whoever takes over. False: it cannot. */
bool handover_give_connection(struct source *s, const struct input_passed *p);
/* All that outputs hold goes there, then END. */
void handover_give(struct worker *w);

/* worker.c */
/* Reads what is there and will not be read by somebody else, delivers it, ends the loop. A second call can only bring the
 * deadline nearer. */
void worker_drain(struct worker *w, uint64_t deadline_us, enum input_leave leave);
/* All was taken over: reads. */
void worker_go(struct worker *w);

#endif
