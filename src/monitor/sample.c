/* SPDX-License-Identifier: MIT
 *
 * The monitor's second: a copy of all pages, then what is made of it. Short, and cheap while nothing moves: an idle
 * millrace should not be seen in top because of it.
 */
#include "http.h"
#include "monitor.h"

/* A page that was not published since has the totals that it had: 10,000 idle backends cost nothing. */
static void sum_up(struct monitor *m)
{
	stats_totals_kernel(m->copy, &m->totals);
	for (unsigned slot = 0; slot < stats_slots(m->stats); slot++) {
		struct slot_totals *s = &m->slots[slot];
		uint64_t sequence = stats_copy_sequence(m->copy, slot);
		if (s->sequence != sequence)
			stats_totals_slot(m->copy, slot, &s->totals);
		s->sequence = sequence;
		stats_totals_add(&m->totals, &s->totals);
	}
}

void monitor_sample(struct monitor *m)
{
	if (stats_copy_take(m->copy, NULL) != 0)
		return; /* a writer died in the middle: the next second has the page again */
	sum_up(m);
	history_add(&m->history, clock_us(), &m->totals);
	if (m->http)
		http_second(m->http);
	m->counters->samples++;
	stats_touch(m->page, STATS_MONITOR, 0);
	stats_publish(m->page);
}
