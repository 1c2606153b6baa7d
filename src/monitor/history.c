/* SPDX-License-Identifier: MIT
 *
 * history: see history.h.
 */
#include "history.h"

void history_add(struct history *h, uint64_t at_us, const struct report_totals *totals)
{
	h->points[h->n++ % HISTORY_POINTS] = (struct history_point){.at_us = at_us, .totals = *totals};
}

void history_range(const struct history *h, uint64_t *first, uint64_t *end)
{
	*end = h->n;
	*first = h->n < 2 ? h->n : h->n > HISTORY_POINTS ? h->n - HISTORY_POINTS + 1 : 1;
}

/* Totals never go back, but a block that a reload took out of the sums may make them: that is no rate below zero. */
static double per_second(uint64_t before, uint64_t now, uint64_t us)
{
	return now > before ? (double)(now - before) * 1e6 / (double)us : 0;
}

bool history_rate(const struct history *h, uint64_t n, struct history_rate *rate)
{
	uint64_t first, end;
	history_range(h, &first, &end);
	if (n < first || n >= end)
		return false;
	const struct history_point *now = &h->points[n % HISTORY_POINTS],
				   *before = &h->points[(n - 1) % HISTORY_POINTS];
	const struct report_totals *a = &before->totals, *b = &now->totals;
	uint64_t us = now->at_us > before->at_us ? now->at_us - before->at_us : 1;
	*rate = (struct history_rate){
	    .datagrams = per_second(a->datagrams, b->datagrams, us),
	    .lines = per_second(a->lines, b->lines, us),
	    .bytes = per_second(a->bytes, b->bytes, us),
	    .delivered = per_second(a->delivered, b->delivered, us),
	    .lost = per_second(a->lost, b->lost, us),
	    .waiting = b->waiting,
	};
	return true;
}
