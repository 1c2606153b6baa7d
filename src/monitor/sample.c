/* SPDX-License-Identifier: MIT
 *
 * The monitor's second: a copy of all pages, then what is made of it. Short, and cheap while nothing moves: an idle
 * millrace should not be seen in top because of it.
 */
#include "monitor.h"

void monitor_sample(struct monitor *m)
{
	if (stats_copy_take(m->copy, NULL) != 0)
		return; /* a writer died in the middle: the next second has the page again */
	m->counters->samples++;
	stats_touch(m->page, STATS_MONITOR, 0);
	stats_publish(m->page);
}
