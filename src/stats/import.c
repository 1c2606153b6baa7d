/* SPDX-License-Identifier: MIT
 *
 * import: totals of another file of counter pages, perhaps of another version, into one page of ours, by the names of
 * things and counters. Master only, into a page that nobody else writes.
 */
#include "stats_private.h"

#include <string.h>

/* The place of the same thing here; one that we do not have any more gets one, and is retired. -1: none is left. */
static int find(struct stats *st, enum stats_scope scope, const struct stats_entry *e, unsigned parent)
{
	for (unsigned i = 0; i < stats_entries(st, scope); i++) {
		const struct stats_entry *mine = stats_entry(st, scope, i);
		if (mine->used != STATS_UNUSED && mine->parent == parent && strcmp(mine->name, e->name) == 0 &&
		    strcmp(mine->unit, e->unit) == 0)
			return (int)i;
	}
	int index = stats_place(st, scope, e->name, parent, e->unit);
	if (index != -1) {
		stats_name(st, scope, (unsigned)index, e->name, parent, 0, e->unit);
		stats_retire(st, scope, (unsigned)index);
	}
	return index;
}

int stats_import_place(struct stats *st, const struct stats_copy *from, enum stats_scope scope, unsigned index)
{
	return find(st, scope, stats_copy_entry(from, scope, index), 0);
}

static uint64_t *draft(struct stats_page *p, enum stats_scope scope, unsigned index)
{
	return scope == STATS_INPUT    ? (uint64_t *)stats_input(p, index)
	       : scope == STATS_OUTPUT ? (uint64_t *)stats_output(p, index)
	       : scope == STATS_KAFKA  ? (uint64_t *)stats_kafka(p, index)
				       : (uint64_t *)stats_backend(p, index);
}

/* Where the first n things of one scope are here; -1: nowhere. Those below an input or output need the places of these. */
static void find_all(struct stats *st, const struct stats_copy *from, enum stats_scope scope, int *places, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		places[i] = -1;
	for (unsigned i = 0; i < MIN(n, stats_copy_entries(from, scope)); i++) {
		const struct stats_entry *e = stats_copy_entry(from, scope, i);
		if (e->used != STATS_UNUSED)
			places[i] = find(st, scope, e, 0);
	}
}

static bool is_total(const struct stats_field *f)
{
	return f->kind != STATS_KIND_GAUGE && f->kind != STATS_KIND_STATE;
}

void stats_import_endpoints(struct stats *st, const struct stats_copy *from)
{
	int inputs[STATS_INPUTS_MAX];
	const struct stats_field *f;
	unsigned n = stats_fields(st, STATS_ENDPOINT, &f);
	struct stats_page *page = stats_master_page(st);
	find_all(st, from, STATS_INPUT, inputs, ARRAY_LEN(inputs));
	for (unsigned i = 0; i < stats_copy_entries(from, STATS_ENDPOINT); i++) {
		const struct stats_entry *e = stats_copy_entry(from, STATS_ENDPOINT, i);
		bool is_known = e->used != STATS_UNUSED && e->parent < STATS_INPUTS_MAX;
		int parent = is_known ? inputs[e->parent] : -1;
		int index = parent == -1 ? -1 : find(st, STATS_ENDPOINT, e, (unsigned)parent);
		if (index == -1)
			continue;
		bool is_here = stats_entry(st, STATS_ENDPOINT, (unsigned)index)->used == STATS_USED;
		uint64_t *block = (uint64_t *)stats_endpoint(page, (unsigned)index);
		for (unsigned k = 0; k < n; k++)
			if (is_total(&f[k]) && !(is_here && strcmp(f[k].name, "dropped_datagrams") == 0))
				block[f[k].index] += stats_named(from, STATS_ALL, STATS_ENDPOINT, i, f[k].name);
		stats_touch(page, STATS_ENDPOINT, (unsigned)index);
	}
	stats_publish(page);
}

/* What is of the present only, and in no equation, stays behind. */
static void add(struct stats *st, struct stats_page *to, const struct stats_copy *from, enum stats_scope scope, unsigned i,
		unsigned index)
{
	const struct stats_field *f;
	unsigned n = stats_fields(st, scope, &f);
	uint64_t *block = draft(to, scope, index);
	for (unsigned k = 0; k < n; k++)
		if (is_total(&f[k]) || (f[k].ledger != STATS_LEDGER_NONE && f[k].ledger != STATS_LEDGER_BETWEEN))
			block[f[k].index] += stats_named(from, STATS_ALL, scope, i, f[k].name);
	stats_touch(to, scope, index);
}

static void clear(struct stats *st, struct stats_page *to, enum stats_scope scope)
{
	const struct stats_field *f;
	unsigned n = stats_fields(st, scope, &f);
	for (unsigned i = 0; i < stats_page_used(to, scope); i++) {
		memset(draft(to, scope, i), 0, n * sizeof(uint64_t));
		stats_touch(to, scope, i);
	}
}

void stats_import(struct stats *st, struct stats_page *to, const struct stats_copy *from)
{
	static const enum stats_scope scopes[] = {STATS_INPUT, STATS_OUTPUT, STATS_BACKEND, STATS_KAFKA};
	int outputs[STATS_OUTPUTS_MAX];
	for (unsigned i = 0; i < STATS_OUTPUTS_MAX; i++)
		outputs[i] = -1;
	for (unsigned s = 0; s < ARRAY_LEN(scopes); s++) {
		enum stats_scope scope = scopes[s];
		clear(st, to, scope);
		for (unsigned i = 0; i < stats_copy_entries(from, scope); i++) {
			const struct stats_entry *e = stats_copy_entry(from, scope, i);
			bool is_below = stats_scope_is_below_output(scope);
			int parent = !is_below				      ? 0
				     : e->parent < STATS_OUTPUTS_MAX ? outputs[e->parent]
								     : -1;
			int index = e->used == STATS_UNUSED || parent == -1 ? -1
				    : scope == STATS_KAFKA		    ? parent
									    : find(st, scope, e, (unsigned)parent);
			if (scope == STATS_OUTPUT && i < STATS_OUTPUTS_MAX)
				outputs[i] = index;
			if (index != -1)
				add(st, to, from, scope, i, (unsigned)index);
		}
	}
}
