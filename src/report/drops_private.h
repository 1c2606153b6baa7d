/* SPDX-License-Identifier: MIT
 *
 * What the files of the drop path share.
 */
#ifndef DROPS_PRIVATE_H
#define DROPS_PRIVATE_H

#include <report.h>

enum { DROPS_SAMPLES = 12, DROPS_WINDOW_US = 10 * 1000000, DROPS_SLACK_US = 500000, DROPS_STALE_US = 5 * 1000000 };

/* The first rows: of the kernel's numbers for the whole host. */
enum { DROPS_HOST_ROWS = 8 };
struct drops_host_row {
	enum report_step step;
	enum stats_scope scope;
	const char *name; /* of the counter, for its help */
	bool is_hint;
	size_t offset; /* in struct net_interface, or in struct net_udp_totals of both families */
};
extern const struct drops_host_row drops_host_rows[DROPS_HOST_ROWS];

/* Where a row's numbers come from. */
struct drops_source {
	int field;     /* in its scope's block; HOST and INTERFACE: index of the host row */
	unsigned side; /* the ledger side that says what came; 0: by unit */
};

/* Totals at one moment. */
struct drops_sample {
	uint64_t at_us;
	uint64_t came[STATS_PATH_MAX], lost[STATS_PATH_MAX];
	uint64_t grown[STATS_PATH_MAX]; /* by how much the worst place grew since the sample before … */
	unsigned place[STATS_PATH_MAX]; /* … and which it was */
	struct proc_usage *usage;       /* [slots] */
	int *cpu_percent;               /* [slots], since the sample before; -1: not known */
	uint64_t *received;             /* [inputs][slots]: datagrams and packets */
};

struct report_drops {
	const struct stats *st;
	unsigned n, n_slots, room; /* slots that there are, and may be */
	struct report_drop drop[STATS_PATH_MAX];
	struct drops_source source[STATS_PATH_MAX];
	uint64_t *block_lost[STATS_PATH_MAX]; /* what each place had lost at the last sample */
	uint64_t had_lost[STATS_PATH_MAX];    /* of the place that lost the most since the start */
	struct drops_sample samples[DROPS_SAMPLES];
	unsigned n_samples, newest;
	uint64_t window_us, now_real_us;
	struct net_host host; /* has_…: false when not known */
	/* of one CPU, between the last two samples and the highest in the window; -1: not known */
	int cpu_percent[STATS_SLOTS_MAX], cpu_peak_percent[STATS_SLOTS_MAX];
	bool is_stopped[STATS_SLOTS_MAX];
	uint64_t left_out_packets; /* by the filters: no loss */
	bool has_capture, has_sockets, has_statsite, has_kafka;
};

/* Fills d->drop and d->source, d->n rows. */
void drops_rows_make(struct report_drops *d, const struct stats *st);
/* "socket/dropped_datagrams": its name in the PATH directory. */
void drops_row_name(const struct report_drop *row, char *buf, size_t size);

/* The oldest sample in the window; NULL: there is only one. */
const struct drops_sample *drops_oldest(const struct report_drops *d);
/* Received in the window (one sample: since the start) by a slot from an input. */
uint64_t drops_received(const struct report_drops *d, unsigned input, unsigned slot);

static inline bool drops_is_of_host(enum report_step step)
{
	return step == REPORT_STEP_INTERFACE || step == REPORT_STEP_HOST;
}

static inline double drops_percent(uint64_t lost, uint64_t came)
{
	return came ? 100.0 * (double)lost / (double)MAX(came, lost) : lost ? 100 : 0;
}

/* The kind that lost most at a step; NULL: none did. */
const struct report_drop *drops_most(const struct report_drops *d, const struct report_step_sum *step, bool is_10s);
bool drops_is_asked(enum report_step step, bool is_10s);

/* "dropped_queue_full_records" counts "records". */
const char *drops_unit(const char *counter);

#endif
