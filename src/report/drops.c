/* SPDX-License-Identifier: MIT
 *
 * drops: the path from the wire to the backends and what was lost at each step of it, sampled from copies of
 * the pages, with the last ten seconds. Any process, pure.
 *
 *   interface → card → filter → ring ─┐
 *            host ⊃ socket ───────────┴→ invalid → worker → queue → backend
 *                                                         → kafka_queue → delivery
 */
#include "drops_private.h"
#include <string.h>

struct report_drops *report_drops_new(const struct stats *st)
{
	struct report_drops *d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	d->st = st;
	d->room = stats_room(st);
	drops_rows_make(d, st);
	bool failed = false;
	for (unsigned i = 0; i < d->n; i++) {
		/* untouched parts cost nothing */
		d->block_lost[i] = calloc(stats_entries_max(st, d->drop[i].scope), sizeof(uint64_t));
		failed |= !d->block_lost[i];
	}
	for (unsigned i = 0; i < DROPS_SAMPLES; i++) {
		d->samples[i].usage = calloc(d->room, sizeof(struct proc_usage));
		d->samples[i].received = calloc((size_t)STATS_INPUTS_MAX * d->room, sizeof(uint64_t));
		d->samples[i].cpu_percent = calloc(d->room, sizeof(int));
		failed |= !d->samples[i].usage || !d->samples[i].received || !d->samples[i].cpu_percent;
	}
	if (!failed)
		return d;
	report_drops_free(d);
	return NULL;
}

void report_drops_free(struct report_drops *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < d->n; i++)
		free(d->block_lost[i]);
	for (unsigned i = 0; i < DROPS_SAMPLES; i++) {
		free(d->samples[i].usage);
		free(d->samples[i].received);
		free(d->samples[i].cpu_percent);
	}
	free(d);
}

/* -- a sample ---------------------------------------------------------------------------------------------------- */

struct sampling {
	struct report_drops *d;
	const struct stats_copy *c;
	struct drops_sample *now;
	uint64_t came[2][STATS_LEDGER_PAYLOADS_OUT + 1]; /* of the present scope, of [kafka or not][side] */
};

static void place_count(struct sampling *s, unsigned row, unsigned block, uint64_t lost)
{
	struct report_drops *d = s->d;
	if (block >= stats_entries_max(d->st, d->drop[row].scope))
		return;
	uint64_t *before = &d->block_lost[row][block], grown = lost > *before ? lost - *before : 0;
	if (d->n_samples > 0 && grown > s->now->grown[row]) {
		s->now->grown[row] = grown;
		s->now->place[row] = block + 1;
	}
	if (lost > d->had_lost[row]) {
		d->had_lost[row] = lost;
		d->drop[row].place = block + 1;
	}
	*before = lost;
	s->now->lost[row] += lost;
}

static void came_count(struct sampling *s, enum stats_scope scope, unsigned block, bool is_kafka)
{
	const struct stats_field *f;
	unsigned n = stats_fields(s->d->st, scope, &f);
	for (unsigned i = 0; i < n; i++)
		if (f[i].ledger % 2 == 1 && f[i].ledger < ARRAY_LEN(s->came[0])) /* not STATS_LEDGER_BETWEEN */
			s->came[is_kafka][f[i].ledger] += stats_value(s->c, STATS_ALL, scope, block, f[i].index);
}

/* Rows without a side of the ledger: what came in the same unit. */
static unsigned side_by_unit(const char *unit)
{
	return strcmp(unit, "lines") == 0       ? STATS_LEDGER_LINES_IN
	       : strcmp(unit, "packets") == 0   ? STATS_LEDGER_PACKETS_IN
	       : strcmp(unit, "records") == 0   ? STATS_LEDGER_RECORDS_IN
	       : strcmp(unit, "datagrams") == 0 ? STATS_LEDGER_DATAGRAMS_IN
						: STATS_LEDGER_NONE;
}

static bool is_kafkas(const struct stats_copy *c, enum stats_scope scope, unsigned block)
{
	if (scope == STATS_BACKEND)
		return strcmp(stats_copy_entry(c, scope, block)->unit, "kafka") == 0;
	bool is_output = scope == STATS_OUTPUT && block < stats_copy_entries(c, STATS_KAFKA);
	return scope == STATS_KAFKA || (is_output && stats_copy_entry(c, STATS_KAFKA, block)->used);
}

static void scope_count(struct sampling *s, enum stats_scope scope)
{
	struct report_drops *d = s->d;
	if (scope != STATS_KAFKA) /* what came to Kafka stands with its backend */
		memset(s->came, 0, sizeof(s->came));
	for (unsigned block = 0; block < stats_copy_entries(s->c, scope); block++) {
		bool is_kafka = is_kafkas(s->c, scope, block);
		came_count(s, scope, block, is_kafka);
		d->has_kafka |= scope == STATS_BACKEND && is_kafka;
		d->has_statsite |= scope == STATS_BACKEND && !is_kafka;
		for (unsigned i = 0; i < d->n; i++)
			if (d->drop[i].scope == scope && d->drop[i].is_kafka == is_kafka)
				place_count(s, i, block,
					    stats_value(s->c, STATS_ALL, scope, block, (unsigned)d->source[i].field));
	}
	for (unsigned i = 0; i < d->n; i++) {
		unsigned side = d->source[i].side ? d->source[i].side : side_by_unit(d->drop[i].unit);
		if (d->drop[i].scope == scope && scope != STATS_ENDPOINT)
			s->now->came[i] = s->came[d->drop[i].is_kafka][side];
	}
}

static uint64_t endpoint(const struct stats_copy *c, unsigned block, const char *name)
{
	return stats_named(c, STATS_ALL, STATS_ENDPOINT, block, name);
}

/* What came to the sockets, cards, filters and rings: the kernel's and DPDK's counts meet the ledger there. */
static void endpoints_came(struct sampling *s, uint64_t received_datagrams)
{
	struct report_drops *d = s->d;
	uint64_t cards = 0, behind = 0, rings = 0, sockets = received_datagrams;
	for (unsigned i = 0; i < stats_copy_entries(s->c, STATS_ENDPOINT); i++) {
		uint64_t packets = endpoint(s->c, i, "interface_packets"), passed = endpoint(s->c, i, "passed_packets");
		uint64_t lost = endpoint(s->c, i, "dropped_missed_packets") + endpoint(s->c, i, "dropped_fifo_packets");
		enum stats_endpoint_kind kind = stats_endpoint_kind(s->c, i);
		bool is_kernels = kind == STATS_ENDPOINT_RING;
		/* DPDK's number contains what the card missed, the kernel's does not (linux/if_link.h) */
		packets -= is_kernels ? 0 : MIN(lost, packets);
		cards += packets + lost + endpoint(s->c, i, "dropped_error_packets");
		behind += packets;
		rings += is_kernels ? passed : packets;
		sockets += endpoint(s->c, i, "dropped_datagrams") + endpoint(s->c, i, "dropped_closed_datagrams");
		d->has_capture |= is_kernels || kind == STATS_ENDPOINT_QUEUE;
		d->has_sockets |= kind == STATS_ENDPOINT_SOCKET;
	}
	for (unsigned i = 0; i < d->n; i++) {
		enum report_step step = d->drop[i].step;
		if (d->drop[i].scope == STATS_ENDPOINT)
			s->now->came[i] = step == REPORT_STEP_CARD ? cards : step == REPORT_STEP_RING ? rings : sockets;
	}
	d->left_out_packets = behind > rings ? behind - rings : 0;
	for (unsigned i = 0; i < stats_copy_entries(s->c, STATS_INPUT); i++)
		d->left_out_packets += stats_named(s->c, STATS_ALL, STATS_INPUT, i, "filtered_packets");
}

static void host_count(struct sampling *s)
{
	const struct net_host *h = &s->d->host;
	uint64_t packets = 0;
	for (unsigned i = 0; i < h->n_interfaces; i++)
		packets += h->interfaces[i].rx_packets + h->interfaces[i].rx_missed + h->interfaces[i].rx_fifo;
	for (unsigned i = 0; i < DROPS_HOST_ROWS; i++) {
		const struct drops_host_row *row = &drops_host_rows[i];
		for (unsigned k = 0; row->scope == STATS_INTERFACE && k < h->n_interfaces; k++)
			place_count(s, i, k, *(const uint64_t *)((const char *)&h->interfaces[k] + row->offset));
		if (row->scope == STATS_HOST)
			place_count(s, i, 0,
				    *(const uint64_t *)((const char *)&h->udp + row->offset) +
					*(const uint64_t *)((const char *)&h->udp6 + row->offset));
		s->now->came[i] = row->scope == STATS_INTERFACE ? packets
								: h->udp.in_datagrams + h->udp.in_errors +
								      h->udp6.in_datagrams + h->udp6.in_errors;
	}
}

static void workers_count(struct sampling *s, const struct report_seen *seen)
{
	struct report_drops *d = s->d;
	for (unsigned slot = 0; slot < d->n_slots; slot++) {
		s->now->usage[slot] = seen->usage ? seen->usage[slot] : (struct proc_usage){0};
		d->is_stopped[slot] = s->now->usage[slot].is_stopped;
		for (unsigned i = 0; i < MIN(stats_copy_entries(s->c, STATS_INPUT), (unsigned)STATS_INPUTS_MAX); i++)
			s->now->received[i * d->room + slot] =
			    stats_named(s->c, (int)slot, STATS_INPUT, i, "received_datagrams") +
			    stats_named(s->c, (int)slot, STATS_INPUT, i, "received_packets");
	}
}

const struct drops_sample *drops_oldest(const struct report_drops *d)
{
	const struct drops_sample *now = &d->samples[d->newest], *oldest = NULL;
	for (unsigned i = 1; i < d->n_samples; i++) {
		const struct drops_sample *s = &d->samples[(d->newest + DROPS_SAMPLES - i) % DROPS_SAMPLES];
		if (now->at_us - s->at_us > DROPS_WINDOW_US + DROPS_SLACK_US)
			break;
		oldest = s;
	}
	return oldest;
}

uint64_t drops_received(const struct report_drops *d, unsigned input, unsigned slot)
{
	const struct drops_sample *before = drops_oldest(d), *now = &d->samples[d->newest];
	size_t at = (size_t)input * d->room + slot;
	return now->received[at] - (before ? MIN(before->received[at], now->received[at]) : 0);
}

static uint64_t growth(uint64_t now, uint64_t before)
{
	return now > before ? now - before : 0;
}

/* The highest of the window too: a load of two seconds hides in the mean of ten. */
static void cpu_compute(struct report_drops *d, const struct drops_sample *oldest)
{
	const struct drops_sample *now = &d->samples[d->newest];
	const struct drops_sample *before = &d->samples[(d->newest + DROPS_SAMPLES - 1) % DROPS_SAMPLES];
	for (unsigned slot = 0; slot < d->n_slots; slot++) {
		const struct proc_usage *a = &before->usage[slot], *b = &now->usage[slot];
		bool is_same = oldest && a->started_ticks && a->started_ticks == b->started_ticks;
		uint64_t us = is_same ? now->at_us - before->at_us : 0;
		int percent = us ? (int)((growth(b->cpu_us, a->cpu_us) * 100 + us / 2) / us) : -1, peak = percent;
		now->cpu_percent[slot] = d->cpu_percent[slot] = percent;
		for (unsigned k = 1; oldest && k < d->n_samples; k++) {
			const struct drops_sample *s = &d->samples[(d->newest + DROPS_SAMPLES - k) % DROPS_SAMPLES];
			if (s == oldest)
				break;
			peak = MAX(peak, s->cpu_percent[slot]);
		}
		d->cpu_peak_percent[slot] = peak;
	}
}

static void window_compute(struct report_drops *d)
{
	const struct drops_sample *now = &d->samples[d->newest], *before = drops_oldest(d);
	d->window_us = before ? now->at_us - before->at_us : 0;
	cpu_compute(d, before);
	for (unsigned i = 0; i < d->n; i++) {
		struct report_drop *row = &d->drop[i];
		row->came = now->came[i];
		row->lost = now->lost[i];
		row->came_10s = before ? growth(row->came, before->came[i]) : 0;
		row->lost_10s = before ? growth(row->lost, before->lost[i]) : 0;
		row->place_10s = 0;
		uint64_t most = 0;
		for (unsigned k = 0; before && k < d->n_samples; k++) {
			const struct drops_sample *s = &d->samples[(d->newest + DROPS_SAMPLES - k) % DROPS_SAMPLES];
			if (s == before)
				break;
			if (s->grown[i] > most) {
				most = s->grown[i];
				row->place_10s = s->place[i];
			}
		}
	}
}

/* The unit of the records, when all outputs of the kind have the same. */
static void units_name(struct report_drops *d, const struct stats_copy *c)
{
	static const char *const units[] = {"lines", "datagrams", "packets"};
	const char *unit[2] = {NULL, NULL};
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_OUTPUT); i++) {
		bool is_kafka = is_kafkas(c, STATS_OUTPUT, i);
		const char *found = "records";
		if (!stats_copy_entry(c, STATS_OUTPUT, i)->used)
			continue;
		for (size_t k = 0; k < ARRAY_LEN(units); k++)
			if (strcmp(stats_copy_entry(c, STATS_OUTPUT, i)->unit, units[k]) == 0)
				found = units[k];
		unit[is_kafka] = !unit[is_kafka] || unit[is_kafka] == found ? found : "records";
	}
	for (unsigned i = 0; i < d->n; i++)
		if (d->drop[i].scope != STATS_INPUT && strcmp(drops_unit(d->drop[i].name), "records") == 0)
			d->drop[i].unit = unit[d->drop[i].is_kafka] ? unit[d->drop[i].is_kafka] : "records";
}

void report_drops_add(struct report_drops *d, const struct stats_copy *c, const struct report_seen *seen)
{
	d->newest = d->n_samples ? (d->newest + 1) % DROPS_SAMPLES : 0;
	struct drops_sample *now = &d->samples[d->newest];
	struct sampling s = {.d = d, .c = c, .now = now};
	now->at_us = seen->now_us;
	d->n_slots = MIN(stats_copy_slots(c), d->room);
	memset(now->came, 0, sizeof(now->came));
	memset(now->lost, 0, sizeof(now->lost));
	memset(now->grown, 0, sizeof(now->grown));
	memset(d->had_lost, 0, sizeof(d->had_lost));
	for (unsigned i = 0; i < d->n; i++)
		d->drop[i].place = 0;
	d->host = seen->host ? *seen->host : (struct net_host){0};
	d->now_real_us = seen->now_real_us;
	d->has_capture = d->has_sockets = d->has_statsite = d->has_kafka = false;
	units_name(d, c);
	host_count(&s);
	scope_count(&s, STATS_ENDPOINT);
	scope_count(&s, STATS_INPUT);
	endpoints_came(&s, s.came[0][STATS_LEDGER_DATAGRAMS_IN]);
	scope_count(&s, STATS_OUTPUT);
	scope_count(&s, STATS_BACKEND);
	scope_count(&s, STATS_KAFKA);
	workers_count(&s, seen);
	d->n_samples = MIN(d->n_samples + 1, (unsigned)DROPS_SAMPLES);
	window_compute(d);
}

/* -- the monitor's page ------------------------------------------------------------------------------------------ */

void report_drops_write(const struct report_drops *d, struct stats_page *page)
{
	const struct drops_sample *now = &d->samples[d->newest];
	const struct net_udp_totals *u = &d->host.udp, *u6 = &d->host.udp6;
	*stats_host(page) = (struct stats_host){
	    .udp_in_datagrams = u->in_datagrams,
	    .udp_no_ports = u->no_ports,
	    .udp_in_errors = u->in_errors,
	    .udp_rcvbuf_errors = u->rcvbuf_errors,
	    .udp_csum_errors = u->csum_errors,
	    .udp_mem_errors = u->mem_errors,
	    .udp6_in_datagrams = u6->in_datagrams,
	    .udp6_no_ports = u6->no_ports,
	    .udp6_in_errors = u6->in_errors,
	    .udp6_rcvbuf_errors = u6->rcvbuf_errors,
	    .udp6_csum_errors = u6->csum_errors,
	    .udp6_mem_errors = u6->mem_errors,
	    .sampled_us = d->now_real_us,
	    .window_us = d->window_us,
	};
	stats_touch(page, STATS_HOST, 0);
	for (unsigned slot = 0; slot < d->n_slots; slot++) {
		*stats_process(page, slot) = (struct stats_process){
		    .cpu_us = now->usage[slot].cpu_us,
		    .cpu_percent = (uint64_t)MAX(d->cpu_percent[slot], 0),
		    .cpu_peak_percent = (uint64_t)MAX(d->cpu_peak_percent[slot], 0),
		    .memory_bytes = now->usage[slot].memory_bytes,
		    .is_stopped = now->usage[slot].is_stopped,
		};
		stats_touch(page, STATS_PROCESS, slot);
	}
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *row = &d->drop[i];
		*stats_path(page, i) = (struct stats_path){
		    .came = row->came,
		    .lost = row->lost,
		    .came_10s = row->came_10s,
		    .lost_10s = row->lost_10s,
		    .place_10s = row->place_10s,
		};
		stats_touch(page, STATS_PATH, i);
	}
}

/* By name: the file may be of another version, with other losses. */
static void row_recall(struct report_drop *row, const struct stats_copy *c)
{
	char name[128];
	drops_row_name(row, name, sizeof(name));
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_PATH); i++) {
		if (strcmp(stats_copy_entry(c, STATS_PATH, i)->name, name) != 0)
			continue;
		row->came_10s = stats_named(c, STATS_ALL, STATS_PATH, i, "came_10s");
		row->lost_10s = stats_named(c, STATS_ALL, STATS_PATH, i, "lost_10s");
		row->place_10s = (unsigned)stats_named(c, STATS_ALL, STATS_PATH, i, "place_10s");
		return;
	}
}

bool report_drops_recall(struct report_drops *d, const struct stats_copy *c)
{
	uint64_t sampled_us = stats_named(c, STATS_ALL, STATS_HOST, 0, "sampled_us");
	uint64_t window_us = stats_named(c, STATS_ALL, STATS_HOST, 0, "window_us");
	if (window_us == 0 || sampled_us + DROPS_STALE_US < d->now_real_us)
		return false;
	d->window_us = window_us;
	for (unsigned slot = 0; slot < d->n_slots; slot++)
		d->cpu_peak_percent[slot] = (int)stats_named(c, STATS_ALL, STATS_PROCESS, slot, "cpu_peak_percent");
	for (unsigned i = 0; i < d->n; i++)
		row_recall(&d->drop[i], c);
	return true;
}

uint64_t report_drops_window_us(const struct report_drops *d)
{
	return d->window_us;
}

unsigned report_drops_all(const struct report_drops *d, const struct report_drop **first)
{
	*first = d->drop;
	return d->n;
}
