/* SPDX-License-Identifier: MIT
 *
 * check: the ledger. Every equation that the ledger column of counter.def states, in every page of a copy, and the two
 * between rows. Any process, pure. An inequality is no error of the reader: it is a bug of the program that counts.
 */
#include "stats_private.h"
#include <string.h>

/* What of a unit went in, and where it went: sides IN and IN + 1 of the ledger. */
static const enum stats_ledger equations[] = {
	STATS_LEDGER_DATAGRAMS_IN,
	STATS_LEDGER_LINES_IN,
	STATS_LEDGER_RECORDS_IN,
	STATS_LEDGER_MESSAGES_IN,
	STATS_LEDGER_PACKETS_IN,
	STATS_LEDGER_PAYLOADS_IN,
};

static uint64_t side_sum(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, unsigned side)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	uint64_t sum = 0;
	for (unsigned i = 0; i < n; i++)
		if (f[i].ledger == side)
			sum += stats_value(c, slot, scope, index, f[i].index);
	return sum;
}

/* "a 1 + b 2": what is not 0, and the first so that a side is never empty. */
static void side_show(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, unsigned side,
		      struct text *t)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	bool all_zero = side_sum(c, slot, scope, index, side) == 0;
	const char *plus = "";
	for (unsigned i = 0; i < n; i++) {
		uint64_t value = stats_value(c, slot, scope, index, f[i].index);
		if (f[i].ledger != side || (value == 0 && !all_zero))
			continue;
		text_add(t, "%s%s %llu", plus, f[i].name, (unsigned long long)value);
		plus = " + ";
		if (all_zero)
			return;
	}
}

static void row_begin(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, struct text *t)
{
	const struct stats_entry *e = stats_copy_entry(c, scope, index);
	text_add(t, "worker %d %s ", slot, stats_scope_word(scope));
	if (scope == STATS_BACKEND && e->parent < stats_copy_entries(c, STATS_OUTPUT))
		text_add(t, "%s/", stats_copy_entry(c, STATS_OUTPUT, e->parent)->name);
	text_add(t, "%s: ", e->name);
}

static unsigned block_check(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index,
			    struct text *t)
{
	unsigned wrong = 0;
	for (unsigned i = 0; i < ARRAY_LEN(equations); i++) {
		unsigned in = equations[i], out = in + 1;
		if (side_sum(c, slot, scope, index, in) == side_sum(c, slot, scope, index, out))
			continue;
		wrong++;
		row_begin(c, slot, scope, index, t);
		side_show(c, slot, scope, index, in, t);
		text_add(t, " ≠ ");
		side_show(c, slot, scope, index, out, t);
		text_add(t, "\n");
	}
	return wrong;
}

/* What the inputs that feed the output handed over, in its unit. */
static uint64_t fed(const struct stats_copy *c, int slot, unsigned output)
{
	const struct stats_entry *out = stats_copy_entry(c, STATS_OUTPUT, output);
	const char *name = strcmp(out->unit, "lines") == 0     ? "to_outputs_lines"
			   : strcmp(out->unit, "packets") == 0 ? "to_outputs_packets"
							       : "to_outputs_datagrams";
	/* A reload may change who feeds whom, one worker after the other: each page says it for itself, but for one that
	 * says nothing. */
	int feeds = stats_field_find(stats_copy_of(c), STATS_INPUT, "feeds");
	uint64_t sum = 0, said = 0;
	for (unsigned i = 0; feeds != -1 && i < stats_copy_entries(c, STATS_INPUT); i++)
		said |= stats_value(c, slot, STATS_INPUT, i, (unsigned)feeds);
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++) {
		uint64_t bits = said ? stats_value(c, slot, STATS_INPUT, i, (unsigned)feeds)
				     : stats_copy_entry(c, STATS_INPUT, i)->feeds;
		if (bits >> output & 1)
			sum += stats_named(c, slot, STATS_INPUT, i, name);
	}
	return sum - stats_named(c, slot, STATS_OUTPUT, output, "rebased_records");
}

static unsigned pair_check(const struct stats_copy *c, int slot, unsigned output, const char *name, uint64_t theirs,
			   const char *whose, struct text *t)
{
	uint64_t mine = stats_named(c, slot, STATS_OUTPUT, output, name);
	if (mine == theirs)
		return 0;
	row_begin(c, slot, STATS_OUTPUT, output, t);
	text_add(t, "%s %llu ≠ %llu that %s\n", name, (unsigned long long)mine, (unsigned long long)theirs, whose);
	return 1;
}

static unsigned outputs_check(const struct stats_copy *c, int slot, struct text *t)
{
	uint64_t taken[STATS_OUTPUTS_MAX] = {0};
	unsigned wrong = 0, n = MIN(stats_copy_entries(c, STATS_OUTPUT), STATS_OUTPUTS_MAX);
	int offered = stats_field_find(stats_copy_of(c), STATS_BACKEND, "offered_records");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_BACKEND); i++) {
		unsigned parent = stats_copy_entry(c, STATS_BACKEND, i)->parent;
		if (parent < n && offered != -1)
			taken[parent] += stats_value(c, slot, STATS_BACKEND, i, (unsigned)offered);
	}
	for (unsigned i = 0; i < n; i++) {
		wrong += pair_check(c, slot, i, "offered_records", fed(c, slot, i), "its inputs handed over", t);
		wrong += pair_check(c, slot, i, "taken_records", taken[i], "its backends were offered", t);
	}
	return wrong;
}

unsigned stats_check(const struct stats_copy *c, struct text *t)
{
	static const enum stats_scope scopes[] = {STATS_INPUT, STATS_OUTPUT, STATS_BACKEND, STATS_KAFKA};
	unsigned wrong = 0;
	for (int slot = 0; slot < (int)stats_copy_slots(c); slot++) {
		for (unsigned s = 0; s < ARRAY_LEN(scopes); s++)
			for (unsigned i = 0; i < stats_copy_entries(c, scopes[s]); i++)
				wrong += block_check(c, slot, scopes[s], i, t);
		wrong += outputs_check(c, slot, t);
	}
	return wrong;
}
