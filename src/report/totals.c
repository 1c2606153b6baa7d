/* SPDX-License-Identifier: MIT
 *
 * totals: the few numbers that say how millrace does, from a copy: what came, what was delivered, what was lost, what
 * waits. For the monitor's history and its page. Any process, pure.
 */
#include <report.h>
#include <string.h>

/* Which of the totals a counter belongs to, by its place in the table: looked up once. */
enum total {
	TOTAL_DATAGRAMS,
	TOTAL_LINES,
	TOTAL_BYTES,
	TOTAL_DELIVERED,
	TOTAL_SENT_BYTES,
	TOTAL_LOST,
	TOTAL_WAITING,
	TOTALS
};

static const struct {
	enum stats_scope scope;
	const char *name;
	enum total total;
} rows[] = {
    {STATS_INPUT, "received_datagrams", TOTAL_DATAGRAMS}, {STATS_INPUT, "received_packets", TOTAL_DATAGRAMS},
    {STATS_INPUT, "received_lines", TOTAL_LINES},         {STATS_INPUT, "received_bytes", TOTAL_BYTES},
    {STATS_OUTPUT, "held_records", TOTAL_WAITING},        {STATS_BACKEND, "delivered_records", TOTAL_DELIVERED},
    {STATS_BACKEND, "delivered_bytes", TOTAL_SENT_BYTES}, {STATS_BACKEND, "queued_records", TOTAL_WAITING},
    {STATS_BACKEND, "in_flight_records", TOTAL_WAITING},
};

/* -1: none of them. */
static int total_of(const struct stats_field *f)
{
	if (f->kind == STATS_KIND_LOSS)
		return TOTAL_LOST;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].scope == f->scope && strcmp(rows[i].name, f->name) == 0)
			return (int)rows[i].total;
	return -1;
}

/* The counters of a block that are wanted. */
struct plan {
	unsigned n;
	struct {
		unsigned field;
		enum total total;
	} wanted[32];
};

static struct plan plan_of(const struct stats_copy *c, enum stats_scope scope)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	struct plan plan = {0};
	for (unsigned i = 0; i < n && plan.n < ARRAY_LEN(plan.wanted); i++) {
		int total = total_of(&f[i]);
		if (total == -1)
			continue;
		plan.wanted[plan.n].field = f[i].index;
		plan.wanted[plan.n++].total = (enum total)total;
	}
	return plan;
}

/* Of a slot both pages. */
static void add_block(const struct stats_copy *c, const struct plan *plan, unsigned slot, enum stats_scope scope,
		      unsigned index, uint64_t sums[TOTALS])
{
	unsigned n = scope < STATS_MASTER ? STATS_SLOT_PAGES : 1;
	for (unsigned which = 0; which < n; which++) {
		const uint64_t *block = stats_copy_block_of(c, slot, which, scope, index);
		for (unsigned i = 0; block && i < plan->n; i++)
			sums[plan->wanted[i].total] += block[plan->wanted[i].field];
	}
}

static void add_scope(const struct stats_copy *c, unsigned slot, enum stats_scope scope, uint64_t sums[TOTALS])
{
	struct plan plan = plan_of(c, scope);
	for (unsigned i = 0; i < stats_copy_entries(c, scope); i++)
		add_block(c, &plan, slot, scope, i, sums);
}

static struct report_totals made_of(const uint64_t sums[TOTALS])
{
	return (struct report_totals){
	    .datagrams = sums[TOTAL_DATAGRAMS],
	    .lines = sums[TOTAL_LINES],
	    .bytes = sums[TOTAL_BYTES],
	    .delivered = sums[TOTAL_DELIVERED],
	    .delivered_bytes = sums[TOTAL_SENT_BYTES],
	    .lost = sums[TOTAL_LOST],
	    .waiting = sums[TOTAL_WAITING],
	};
}

void report_totals_slot(const struct stats_copy *c, unsigned slot, struct report_totals *totals)
{
	uint64_t sums[TOTALS] = {0};
	add_scope(c, slot, STATS_INPUT, sums);
	add_scope(c, slot, STATS_OUTPUT, sums);
	add_scope(c, slot, STATS_BACKEND, sums);
	*totals = made_of(sums);
}

void report_totals_kernel(const struct stats_copy *c, struct report_totals *totals)
{
	uint64_t sums[TOTALS] = {0};
	add_scope(c, 0, STATS_ENDPOINT, sums);
	*totals = made_of(sums);
}

void report_totals_backends(const struct stats_copy *c, struct report_totals *totals, unsigned n)
{
	struct plan plan = plan_of(c, STATS_BACKEND);
	for (unsigned i = 0; i < n; i++) {
		uint64_t sums[TOTALS] = {0};
		for (unsigned slot = 0; slot < stats_copy_slots(c); slot++)
			add_block(c, &plan, slot, STATS_BACKEND, i, sums);
		totals[i] = made_of(sums);
	}
}

void report_totals_add(struct report_totals *to, const struct report_totals *more)
{
	to->datagrams += more->datagrams;
	to->lines += more->lines;
	to->bytes += more->bytes;
	to->delivered += more->delivered;
	to->delivered_bytes += more->delivered_bytes;
	to->lost += more->lost;
	to->waiting += more->waiting;
}
