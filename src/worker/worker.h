/* SPDX-License-Identifier: MIT
 *
 * What the files of a worker share.
 */
#ifndef WORKER_PRIVATE_H
#define WORKER_PRIVATE_H

#include <net_link.h>
#include <worker.h>

enum worker_stage {
	WORKER_SERVING,
	WORKER_DRAINING_INPUTS,  /* reading what the kernel holds already */
	WORKER_DRAINING_OUTPUTS, /* waiting for the last acknowledgement */
	WORKER_DONE,
};

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
	uint64_t left_before; /* by the slot's earlier tenants, and by this one until it drained */
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
	bool has_told_left;
	int shared_fds[CONF_OUTPUTS_MAX]; /* of LINK_SHARED, by the output's place; -1: none */
	struct ev_timer deadline;
	struct ev_timer patience; /* while leaving for a successor: do outputs get rid of anything? */
	uint64_t pending_records, pending_since_us;
	bool has_passed;
	int pass_fds[CONF_OUTPUTS_MAX];
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
/* The link takes more. */
void drain_pass_on(struct worker *w);
bool inputs_are_empty(const struct worker *w);

/* link.c */
void link_init(struct worker *w);
void link_send(struct worker *w, enum link_type type, const char *text);
void link_tell(struct worker *w, const struct link_message *msg, int fd); /* a copy of fd */
/* LINK_FATAL: we cannot work here. */
_Noreturn void link_fatal(struct worker *w, const char *text);
/* Hands the source's descriptor to the master. False: the link takes no more now; drain_pass_on will be called. */
bool link_pass(struct source *s, const struct input_passed *p);

/* worker.c */
/* Reads what is there and will not be read by somebody else, delivers it, ends the loop. A second call can only bring the
 * deadline nearer. */
void worker_drain(struct worker *w, uint64_t deadline_us, enum input_leave leave);

/* It held until now. */
void worker_go(struct worker *w);

/* reload.c */
/* Takes fd. */
void reload_shared(struct worker *w, const struct link_message *m, int fd);
void reload_apply(struct worker *w, const struct link_message *m, int fd);

#endif
