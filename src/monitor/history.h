/* SPDX-License-Identifier: MIT
 *
 * history: the last ten minutes of the totals, a point a second. Pure: no clock, no allocation.
 *
 *   points   a ring; point number n lies at n % HISTORY_POINTS and is the totals at its moment. A rate is the
 * difference of two neighbours by their distance, so a late second is no dip.
 */
#ifndef MONITOR_HISTORY_H
#define MONITOR_HISTORY_H

#include <base.h>
#include <report.h>
#include <stats.h>

enum { HISTORY_POINTS = 601 }; /* 600 rates */

struct history_point {
	uint64_t at_us; /* CLOCK_MONOTONIC */
	struct report_totals totals;
};

struct history {
	uint64_t n; /* points ever added */
	struct history_point points[HISTORY_POINTS];
};

void history_add(struct history *h, uint64_t at_us, const struct report_totals *totals);

/* What passed in the second that point number n closes. */
struct history_rate {
	double datagrams, lines, bytes, delivered, lost;
	uint64_t waiting;
};
/* False: there is no such rate (any more). */
bool history_rate(const struct history *h, uint64_t n, struct history_rate *rate);
/* The number of the oldest point that has a rate, and behind the newest: first == end when there is none. */
void history_range(const struct history *h, uint64_t *first, uint64_t *end);

#endif
