/* SPDX-License-Identifier: MIT
 *
 * The monitor's second: a copy of all pages, then what is made of it. Short, and cheap while nothing moves: an idle
 * millrace should not be seen in top because of it.
 */
#include "http.h"
#include "monitor.h"

#include <string.h>

/* In the order that the kernel lists them, which changes only when one comes or goes. */
static void interfaces_write(struct monitor *m, const struct net_host *host)
{
	for (unsigned i = 0; i < STATS_INTERFACES_MAX; i++) {
		const char *name = i < host->n_interfaces ? host->interfaces[i].name : "";
		if (strcmp(m->interfaces[i], name) != 0) {
			if (monitor_name(m, STATS_INTERFACE, i, name[0] ? name : NULL, 0, "") != 0)
				return;
			snprintf(m->interfaces[i], sizeof m->interfaces[i], "%s", name);
		}
		if (!name[0])
			continue;
		*stats_interface(m->page, i) = (struct stats_interface){
		    .rx_packets = host->interfaces[i].rx_packets,
		    .rx_missed_packets = host->interfaces[i].rx_missed,
		    .rx_fifo_packets = host->interfaces[i].rx_fifo,
		    .rx_dropped_packets = host->interfaces[i].rx_dropped,
		    .rx_error_packets = host->interfaces[i].rx_errors,
		};
		stats_touch(m->page, STATS_INTERFACE, i);
	}
}

static void processes_read(struct monitor *m)
{
	for (unsigned slot = 0; slot < stats_copy_slots(m->copy); slot++) {
		uint64_t pid = stats_named(m->copy, STATS_ALL, STATS_SLOT, slot, "pid");
		if (pid == 0 || proc_usage((int64_t)pid, &m->usage[slot]) != 0)
			m->usage[slot] = (struct proc_usage){0};
	}
}

static void path_sample(struct monitor *m)
{
	struct report_seen seen = {
	    .host = net_host_read(m->host, false),
	    .usage = m->usage,
	    .now_us = clock_us(),
	    .now_real_us = clock_real_us(),
	};
	processes_read(m);
	report_drops_add(m->drops, m->copy, &seen);
	report_drops_write(m->drops, m->page);
	m->advice.len = 0;
	report_drops_advice(m->drops, m->copy, &m->advice); /* of this very copy; the page shows it */
	losses_log(m);
	interfaces_write(m, seen.host);
}

/* A page that was not published since has the totals that it had: 10,000 idle backends cost nothing. */
static void sum_up(struct monitor *m)
{
	report_totals_kernel(m->copy, &m->totals);
	for (unsigned slot = 0; slot < stats_copy_slots(m->copy); slot++) {
		struct slot_totals *s = &m->slots[slot];
		uint64_t sequence = stats_copy_sequence(m->copy, slot);
		if (s->sequence != sequence)
			report_totals_slot(m->copy, slot, &s->totals);
		s->sequence = sequence;
		report_totals_add(&m->totals, &s->totals);
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
	if (m->http_before != NULL && http_is_idle(m->http_before)) {
		http_close(m->http_before);
		m->http_before = NULL;
	} else if (m->http_before != NULL) {
		http_second(m->http_before);
	}
	path_sample(m);
	m->counters->samples++;
	stats_touch(m->page, STATS_MONITOR, 0);
	stats_publish(m->page);
}
