/* SPDX-License-Identifier: MIT
 *
 * report: what is said of the counters, for people and for programs: JSON, Prometheus, statsrelay's status, totals, and the
 * path of losses with advice. Any process. All is computed from copies of the pages (stats.h); nothing here writes a
 * page but report_drops_write.
 */
#ifndef REPORT_H
#define REPORT_H

#include <base.h>
#include <net.h>
#include <stats.h>

/* statsrelay's answer to "status": SCOPE NAME TYPE VALUE lines and one empty line, for all workers together. */
void report_statsrelay(const struct stats_copy *c, struct text *t);

/* Every row as JSON, an object a line: {"counters":[{"name":…,"scope":…,"kind":…,"worker":…,…,"value":…},…]}. */
void report_json(const struct stats_copy *c, struct text *t);

/* What is not in the pages: who runs, and the present time (microseconds since 1970). */
struct report_program {
	const char *version;
	int64_t pid;
	uint64_t now_us;
};
/* The state of all, sums over the workers: {"version":…,"workers":[…],"inputs":[…],"outputs":[…],"backends":[…]}. */
void report_status_json(const struct stats_copy *c, const struct report_program *program, struct text *t);

/* Prometheus' text format 0.0.4. Blocks of the workers are summed over them, but WORKER's; see prometheus.c. On a failed
 * allocation t->failed. */
void report_prometheus(const struct stats_copy *c, const struct report_program *program, struct text *t);

/* The few numbers that say how it does. */
struct report_totals {
	uint64_t datagrams; /* and packets, read */
	uint64_t lines, bytes;
	uint64_t delivered; /* records */
	uint64_t delivered_bytes;
	uint64_t lost;	  /* every counter of kind LOSS, at most: what a killed worker had may stand in two of them */
	uint64_t waiting; /* records queued, in flight or held now */
};
/* Of one worker; of the kernel (sockets and rings: lost only); of the first n backends, each summed over the workers
 * (delivered, lost, waiting). */
void report_totals_slot(const struct stats_copy *c, unsigned slot, struct report_totals *totals);
void report_totals_kernel(const struct stats_copy *c, struct report_totals *totals);
void report_totals_backends(const struct stats_copy *c, struct report_totals *totals, unsigned n);
void report_totals_add(struct report_totals *to, const struct report_totals *more);
/* -- the path from the wire to the backends, and what was lost at each step of it ----------------------------------- */

/* Master, after stats_new: names the blocks of PATH. */
void report_drops_name(struct stats *st);

/* In the order that a datagram or packet takes. */
enum report_step {
	REPORT_STEP_INTERFACE, /* the host's network cards, as the kernel counts, since the machine started */
	REPORT_STEP_CARD,      /* the cards that we capture from, since millrace started; so are all below */
	REPORT_STEP_FILTER,
	REPORT_STEP_RING, /* of a capture, or DPDK's receive queue */
	REPORT_STEP_HOST, /* UDP of all programs, since the machine started */
	REPORT_STEP_SOCKET,
	REPORT_STEP_INVALID,
	REPORT_STEP_WORKER,
	REPORT_STEP_QUEUE,
	REPORT_STEP_BACKEND,
	REPORT_STEP_KAFKA_QUEUE,
	REPORT_STEP_DELIVERY, /* of Kafka */
	REPORT_STEPS,
};
const char *report_step_word(enum report_step step); /* "interface" … */

/* One kind of loss, of all places together. A place is a block of `scope`, counted from 1; 0: none. */
struct report_drop {
	enum report_step step;
	enum stats_scope scope;
	bool is_hint;  /* perhaps lost, or lost and counted elsewhere too: not in the sums */
	bool is_kafka; /* of BACKEND and OUTPUT: the blocks of kafka outputs, else of the others */
	const char *name, *unit, *help; /* of the counter */
	uint64_t came, lost;
	uint64_t came_10s, lost_10s;
	unsigned place, place_10s; /* that lost the most */
};

/* What is known beside the pages, at the moment of a copy. */
struct report_seen {
	const struct net_host *host;	/* NULL: nothing. Borrowed until the next sample or free, for its sockets */
	const struct proc_usage *usage; /* [slots]; of a slot without process zeros; NULL: nothing */
	uint64_t now_us, now_real_us;
};

/* The last ten seconds of the path, from samples that are a second or more apart. The monitor keeps one for all;
 * millracectl has one for --watch. report_drops_add allocates nothing. NULL: no memory. */
struct report_drops;
struct report_drops *report_drops_new(const struct stats *st);
void report_drops_free(struct report_drops *d);
void report_drops_add(struct report_drops *d, const struct stats_copy *c, const struct report_seen *seen);
/* Monitor: HOST, PROCESS and PATH of its page, to be published by the caller. INTERFACE it writes itself: it names them. */
void report_drops_write(const struct report_drops *d, struct stats_page *monitor_page);
/* For one who has just one sample: the last ten seconds, CPU included, are what the monitor's page says. False: it is
 * older than five seconds, or there is none. */
bool report_drops_recall(struct report_drops *d, const struct stats_copy *c);
/* What the "last 10 s" really span; 0: they are not known. */
uint64_t report_drops_window_us(const struct report_drops *d);
/* All kinds of loss that this millrace knows, in the order of the path. */
unsigned report_drops_all(const struct report_drops *d, const struct report_drop **first);

/* Sums of a step, in one unit. */
struct report_step_sum {
	enum report_step step;
	const char *unit;
	uint64_t came, lost, came_10s, lost_10s;
};
/* At most STATS_PATH_MAX; returns how many. Steps that this configuration does not have are left out. */
unsigned report_drops_steps(const struct report_drops *d, struct report_step_sum to[STATS_PATH_MAX]);

/* The step to look at: of the last ten seconds when something was lost in them, else since the start. False: nothing was
 * lost. *row: the kind that lost most there; *is_10s: by which of the two. */
bool report_drops_worst(const struct report_drops *d, struct report_step_sum *step, const struct report_drop **row,
		       bool *is_10s);
/* A line for each step that lost, the worst first: how much, and what to do, from numbers that are known; then what is at
 * risk. Adds nothing when nothing was or may be lost. Of the same copy as the last sample. */
void report_drops_advice(const struct report_drops *d, const struct stats_copy *c, struct text *t);

/* What to do about one kind of loss. */
void report_drops_row_advice(const struct report_drops *d, const struct stats_copy *c, const struct report_drop *row,
			    struct text *t);

/* "10.0.0.1:8125 slot 0", "shards/10.0.0.7:8125", "eth0": a place for people; "" for 0. */
void report_drops_place(const struct report_drops *d, const struct stats_copy *c, const struct report_drop *row,
		       unsigned place, char *buf, size_t size);
/* All of it, for people and for programs (an object, a step a line; docs in millracectl(1)). */
void report_drops_text(const struct report_drops *d, const struct stats_copy *c, struct text *t);
void report_drops_json(const struct report_drops *d, const struct stats_copy *c, struct text *t);

/* A backend's entry is its address, and the name that it was given: "10.0.0.1:9001 (east)". False: none was given. */
size_t stats_backend_address_len(const char *label);
bool stats_backend_given_name(const char *label, char *buf, size_t size);

#endif
