/* SPDX-License-Identifier: MIT
 *
 * What the files of the monitor share.
 */
#ifndef MONITOR_PRIVATE_H
#define MONITOR_PRIVATE_H

#include "history.h"

#include <base.h>
#include <conf.h>
#include <ev.h>
#include <monitor.h>
#include <net.h>
#include <report.h>
#include <stats.h>

struct http;

/* The totals of one slot, as long as its page stays as it is. */
struct slot_totals {
	uint64_t sequence;
	struct report_totals totals;
};

/* One kind of loss. */
struct loss {
	uint64_t last, at_begin;	     /* totals: at the last sample, when it began */
	uint64_t since_us, grew_us, said_us; /* since_us 0: it is over */
};

struct monitor {
	const struct monitor_setup *setup;
	struct ev_loop *loop;
	struct stats *stats;
	struct stats_copy *copy; /* as of the last sample; taken again for each answer that is made */
	struct stats_page *page; /* ours */
	struct stats_monitor *counters;
	struct net_host_reader *host;
	struct report_drops *drops;
	struct text advice; /* on each step of the path that loses; empty: nothing was lost */
	struct loss losses[STATS_PATH_MAX];
	bool has_losses; /* `last` is of an earlier sample */
	struct proc_usage usage[STATS_SLOTS_MAX];
	char interfaces[STATS_INTERFACES_MAX][16]; /* as the master named them for us */
	struct report_totals totals;                /* of the last sample */
	struct slot_totals *slots;
	struct history history;
	struct http *http; /* NULL: off */
	struct http *http_before; /* at the address before, until the last connection is answered; NULL: none */
	struct ev_timer second;
	struct ev_io link;
};

/* sample.c: each second, at the loop's turn. Takes the copy, adds to the history, samples the host, publishes our page.
 */
void monitor_sample(struct monitor *m);
/* losses.c: after each sample. */
void losses_log(struct monitor *m);
/* Names a block of our page (as stats_name; scopes of the monitor's page only): asks the master, who writes the
 * directory. Once is enough, it outlives us. `name` NULL: takes it out again. 0, or -errno (-EAGAIN: try at the next
 * sample). */
int monitor_name(struct monitor *m, enum stats_scope scope, unsigned index, const char *name, unsigned parent,
		 const char *unit);

#endif
