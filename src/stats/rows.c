/* SPDX-License-Identifier: MIT
 *
 * rows: what a copy says of a thing: every counter with whom it belongs to, and the states that follow from several
 * counters. Any process, pure.
 */
#include "stats_private.h"
#include <string.h>

bool stats_slot_is_ready(const struct stats_copy *c, unsigned slot)
{
	return stats_named(c, STATS_ALL, STATS_SLOT, slot, "state") == STATS_SLOT_READY;
}

bool stats_scope_is_below_output(enum stats_scope scope)
{
	return scope == STATS_BACKEND || scope == STATS_KAFKA || scope == STATS_BROKER;
}

bool stats_block_exists(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index)
{
	if (scope == STATS_BROKER)
		return stats_named(c, slot, scope, index, "is_known") != 0;
	return scope != STATS_KAFKA || stats_copy_entry(c, scope, index)->used;
}

unsigned stats_backend_ups(const struct stats_copy *c, unsigned backend)
{
	unsigned ups = 0;
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++)
		if (stats_slot_is_ready(c, slot))
			ups += stats_named(c, (int)slot, STATS_BACKEND, backend, "up") != 0;
	return ups;
}

enum stats_endpoint_kind stats_endpoint_kind(const struct stats_copy *c, unsigned index)
{
	unsigned input = stats_copy_entry(c, STATS_ENDPOINT, index)->parent;
	const char *type = input < stats_copy_entries(c, STATS_INPUT) ? stats_copy_entry(c, STATS_INPUT, input)->unit : "";
	if (strcmp(type, "udp") == 0 || strcmp(type, "unixgram") == 0)
		return STATS_ENDPOINT_SOCKET;
	if (strcmp(type, "capture") != 0)
		return STATS_ENDPOINT_OTHER;
	/* a DPDK queue has its memory elsewhere */
	bool has_ring = stats_named(c, STATS_ALL, STATS_ENDPOINT, index, "receive_buffer_bytes") > 0;
	return has_ring ? STATS_ENDPOINT_RING : STATS_ENDPOINT_QUEUE;
}

uint64_t stats_backend_down_us(const struct stats_copy *c, unsigned backend)
{
	uint64_t first_us = 0;
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++) {
		uint64_t us = stats_named(c, (int)slot, STATS_BACKEND, backend, "down_us");
		if (stats_slot_is_ready(c, slot) && us && (!first_us || us < first_us))
			first_us = us;
	}
	return first_us;
}

/* -- rows -------------------------------------------------------------------------------------------------------- */

const struct stats_entry *stats_entry_parent(const struct stats_copy *c, enum stats_scope scope,
					     const struct stats_entry *e)
{
	bool is_below_output = stats_scope_is_below_output(scope);
	enum stats_scope above = is_below_output ? STATS_OUTPUT : STATS_INPUT;
	bool has_parent = is_below_output || scope == STATS_ENDPOINT || scope == STATS_DEVICE;
	if (!has_parent || e->parent >= stats_copy_entries(c, above))
		return NULL;
	return stats_copy_entry(c, above, e->parent);
}

static void scope_rows(const struct stats_copy *c, int worker, enum stats_scope scope, stats_row_cb *cb, void *arg)
{
	const struct stats_field *f;
	unsigned n_fields = stats_fields(stats_copy_of(c), scope, &f);
	unsigned first = scope == STATS_WORKER ? (unsigned)worker : 0;
	unsigned n = scope == STATS_WORKER ? first + 1 : stats_copy_entries(c, scope);
	if (scope == STATS_SLOT || scope == STATS_PROCESS)
		n = MIN(n, stats_copy_slots(c));
	for (unsigned i = first; i < n; i++) {
		if (!stats_block_exists(c, worker, scope, i))
			continue;
		struct stats_row row = {.worker = worker, .entry = stats_copy_entry(c, scope, i)};
		row.parent = stats_entry_parent(c, scope, row.entry);
		for (unsigned k = 0; k < n_fields; k++) {
			row.field = &f[k];
			row.value = stats_value(c, worker, scope, i, f[k].index);
			if (f[k].name[0])
				cb(arg, &row);
		}
	}
}

void stats_each_row(const struct stats_copy *c, stats_row_cb *cb, void *arg)
{
	for (int worker = 0; worker < (int)stats_copy_slots(c); worker++)
		for (unsigned s = 0; s < STATS_MASTER; s++)
			scope_rows(c, worker, s, cb, arg);
	for (unsigned s = STATS_MASTER; s < STATS_SCOPES; s++)
		scope_rows(c, -1, s, cb, arg);
}
