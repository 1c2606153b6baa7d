/* SPDX-License-Identifier: MIT
 *
 * drops_rows: which losses there are, and at which step of the path. Any process, pure. What is a loss is said by the
 * rows of counter.def, so a new one is on the path by its row.
 */
#include "drops_private.h"
#include <string.h>

static const char *const step_words[REPORT_STEPS] = {
    "interface", "card",   "filter", "ring",    "host",        "socket",
    "invalid",   "worker", "queue",  "backend", "kafka_queue", "delivery",
};

const char *report_step_word(enum report_step step)
{
	return (unsigned)step < REPORT_STEPS ? step_words[step] : "?";
}

const char *drops_unit(const char *counter)
{
	static const char *const units[] = {"datagrams", "lines", "packets", "records", "connections", "bytes"};
	const char *last = strrchr(counter, '_');
	for (size_t i = 0; last && i < ARRAY_LEN(units); i++)
		if (strcmp(last + 1, units[i]) == 0)
			return units[i];
	return "times";
}

/* -- which rows there are ---------------------------------------------------------------------------------------- */

/* What the kernel counts is no loss in counter.def: how much of it is ours, it does not say. */
const struct drops_host_row drops_host_rows[DROPS_HOST_ROWS] = {
    {REPORT_STEP_INTERFACE, STATS_INTERFACE, "rx_missed_packets", false, offsetof(struct net_interface, rx_missed)},
    {REPORT_STEP_INTERFACE, STATS_INTERFACE, "rx_fifo_packets", false, offsetof(struct net_interface, rx_fifo)},
    {REPORT_STEP_INTERFACE, STATS_INTERFACE, "rx_dropped_packets", true, offsetof(struct net_interface, rx_dropped)},
    {REPORT_STEP_INTERFACE, STATS_INTERFACE, "rx_error_packets", true, offsetof(struct net_interface, rx_errors)},
    {REPORT_STEP_HOST, STATS_HOST, "udp_rcvbuf_errors", false, offsetof(struct net_udp_totals, rcvbuf_errors)},
    {REPORT_STEP_HOST, STATS_HOST, "udp_csum_errors", false, offsetof(struct net_udp_totals, csum_errors)},
    {REPORT_STEP_HOST, STATS_HOST, "udp_mem_errors", false, offsetof(struct net_udp_totals, mem_errors)},
    {REPORT_STEP_HOST, STATS_HOST, "udp_no_ports", true, offsetof(struct net_udp_totals, no_ports)},
};

static bool contains(const char *name, const char *part)
{
	return strstr(name, part) != NULL;
}

static enum report_step step_of(enum stats_scope scope, const char *name, bool is_kafka)
{
	bool is_end = contains(name, "lost_at_death") || contains(name, "shutdown");
	if (scope == STATS_ENDPOINT)
		return contains(name, "datagrams")                           ? REPORT_STEP_SOCKET
		       : contains(name, "ring") || contains(name, "no_mbuf") ? REPORT_STEP_RING
									     : REPORT_STEP_CARD;
	if (scope == STATS_INPUT)
		return is_end ? REPORT_STEP_WORKER : REPORT_STEP_INVALID;
	if (scope == STATS_OUTPUT || (contains(name, "dropped_") && !is_end))
		return is_kafka ? REPORT_STEP_KAFKA_QUEUE : REPORT_STEP_QUEUE;
	return is_kafka || scope == STATS_KAFKA ? REPORT_STEP_DELIVERY : REPORT_STEP_BACKEND;
}

static void row_add(struct report_drops *d, const struct report_drop *row, int field, unsigned side)
{
	if (d->n == STATS_PATH_MAX)
		return;
	d->source[d->n] = (struct drops_source){.field = field, .side = side};
	d->drop[d->n++] = *row;
}

static void field_add(struct report_drops *d, const struct stats_field *f, bool is_kafka)
{
	bool is_reason =
	    f->scope == STATS_KAFKA && strncmp(f->name, "failed_", 7) == 0 && contains(f->name, "_records");
	/* of Kafka the reasons stand there instead of their sum */
	bool is_sum = is_kafka && f->scope == STATS_BACKEND && strcmp(f->name, "failed_records") == 0;
	if ((f->kind != STATS_KIND_LOSS && f->kind != STATS_KIND_HINT && !is_reason) || is_sum)
		return;
	bool is_out = f->ledger != STATS_LEDGER_NONE && f->ledger % 2 == 0;
	row_add(d,
		&(struct report_drop){.step = step_of(f->scope, f->name, is_kafka),
				     .scope = f->scope,
				     .is_hint = f->kind == STATS_KIND_HINT,
				     .is_kafka = is_kafka || f->scope == STATS_KAFKA,
				     .name = f->name,
				     .unit = drops_unit(f->name),
				     .help = f->help},
		f->index,
		is_out      ? f->ledger - 1u
		: is_reason ? STATS_LEDGER_RECORDS_IN
			    : 0);
}

static const char *help_of(const struct stats *st, enum stats_scope scope, const char *name)
{
	const struct stats_field *f;
	unsigned n = stats_fields(st, scope, &f);
	for (unsigned i = 0; i < n; i++)
		if (strcmp(f[i].name, name) == 0)
			return f[i].help;
	return "";
}

void drops_rows_make(struct report_drops *d, const struct stats *st)
{
	static const struct {
		enum stats_scope scope;
		bool is_kafka;
	} scopes[] = {{STATS_ENDPOINT, false}, {STATS_INPUT, false},  {STATS_OUTPUT, false}, {STATS_BACKEND, false},
		      {STATS_OUTPUT, true},    {STATS_BACKEND, true}, {STATS_KAFKA, true}};
	for (unsigned i = 0; i < DROPS_HOST_ROWS; i++) {
		const struct drops_host_row *h = &drops_host_rows[i];
		row_add(d,
			&(struct report_drop){.step = h->step,
					     .scope = h->scope,
					     .is_hint = h->is_hint,
					     .name = h->name,
					     .unit = h->step == REPORT_STEP_HOST ? "datagrams" : "packets",
					     .help = help_of(st, h->scope, h->name)},
			(int)i, 0);
	}
	for (unsigned s = 0; s < ARRAY_LEN(scopes); s++) {
		const struct stats_field *f;
		unsigned n = stats_fields(st, scopes[s].scope, &f);
		for (unsigned i = 0; i < n; i++)
			field_add(d, &f[i], scopes[s].is_kafka);
	}
}

void drops_row_name(const struct report_drop *row, char *buf, size_t size)
{
	snprintf(buf, size, "%s/%s", report_step_word(row->step), row->name);
}

void report_drops_name(struct stats *st)
{
	struct report_drops *d = calloc(1, sizeof(*d));
	char name[128];
	if (!d)
		return; /* the path will have numbers for names */
	drops_rows_make(d, st);
	for (unsigned i = 0; i < d->n; i++) {
		drops_row_name(&d->drop[i], name, sizeof(name));
		stats_name(st, STATS_PATH, i, name, 0, 0, d->drop[i].unit);
	}
	free(d);
}
