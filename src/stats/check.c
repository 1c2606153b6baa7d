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

enum { SIDES = STATS_LEDGER_BETWEEN + 1 };

/* One page: the equations hold in each, since each has one writer. */
struct page {
	const struct stats_copy *c;
	unsigned number;
};

static uint64_t value(const struct page *p, enum stats_scope scope, unsigned index, int field)
{
	const uint64_t *block = field == -1 ? NULL : stats_copy_block(p->c, p->number, scope, index);
	return block ? block[field] : 0;
}

static uint64_t named(const struct page *p, enum stats_scope scope, unsigned index, const char *name)
{
	return value(p, scope, index, stats_field_find(stats_copy_of(p->c), scope, name));
}

static void sides_sum(const struct page *p, enum stats_scope scope, const uint64_t *block, uint64_t sums[SIDES])
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(p->c), scope, &f);
	memset(sums, 0, SIDES * sizeof(*sums));
	for (unsigned i = 0; i < n; i++)
		sums[f[i].ledger] += block[f[i].index];
}

/* "a 1 + b 2": what is not 0, and the first so that a side is never empty. */
static void side_show(const struct page *p, enum stats_scope scope, const uint64_t *block, unsigned side, bool is_zero,
		      struct text *t)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(p->c), scope, &f);
	const char *plus = "";
	for (unsigned i = 0; i < n; i++) {
		if (f[i].ledger != side || (block[f[i].index] == 0 && !is_zero))
			continue;
		text_add(t, "%s%s %llu", plus, f[i].name, (unsigned long long)block[f[i].index]);
		plus = " + ";
		if (is_zero)
			return;
	}
}

static void row_begin(const struct page *p, enum stats_scope scope, unsigned index, struct text *t)
{
	const struct stats_entry *e = stats_copy_entry(p->c, scope, index);
	text_add(t, "worker %u %s ", p->number / STATS_SLOT_PAGES, stats_scope_word(scope));
	if (scope == STATS_BACKEND && e->parent < stats_copy_entries(p->c, STATS_OUTPUT))
		text_add(t, "%s/", stats_copy_entry(p->c, STATS_OUTPUT, e->parent)->name);
	text_add(t, "%s: ", e->name);
}

static unsigned block_check(const struct page *p, enum stats_scope scope, unsigned index, struct text *t)
{
	const uint64_t *block = stats_copy_block(p->c, p->number, scope, index);
	uint64_t sums[SIDES];
	unsigned wrong = 0;
	if (block == NULL)
		return 0;
	sides_sum(p, scope, block, sums);
	for (unsigned i = 0; i < ARRAY_LEN(equations); i++) {
		unsigned in = equations[i], out = in + 1;
		if (sums[in] == sums[out])
			continue;
		wrong++;
		row_begin(p, scope, index, t);
		side_show(p, scope, block, in, sums[in] == 0, t);
		text_add(t, " ≠ ");
		side_show(p, scope, block, out, sums[out] == 0, t);
		text_add(t, "\n");
	}
	return wrong;
}

/* What the inputs that feed the output handed over, in its unit. */
static uint64_t fed(const struct page *p, unsigned output)
{
	const struct stats_entry *out = stats_copy_entry(p->c, STATS_OUTPUT, output);
	const char *name = strcmp(out->unit, "lines") == 0     ? "to_outputs_lines"
			   : strcmp(out->unit, "packets") == 0 ? "to_outputs_packets"
							       : "to_outputs_datagrams";
	/* A reload may change who feeds whom, one worker after the other: each page says it for itself, but for one that
	 * says nothing. */
	int feeds = stats_field_find(stats_copy_of(p->c), STATS_INPUT, "feeds");
	uint64_t sum = 0, said = 0;
	for (unsigned i = 0; i < stats_copy_entries(p->c, STATS_INPUT); i++)
		said |= value(p, STATS_INPUT, i, feeds);
	for (unsigned i = 0; i < stats_copy_entries(p->c, STATS_INPUT); i++) {
		uint64_t bits = said ? value(p, STATS_INPUT, i, feeds) : stats_copy_entry(p->c, STATS_INPUT, i)->feeds;
		if (bits >> output & 1)
			sum += named(p, STATS_INPUT, i, name);
	}
	return sum - named(p, STATS_OUTPUT, output, "rebased_records");
}

static unsigned pair_check(const struct page *p, unsigned output, const char *name, uint64_t theirs, const char *whose,
			   struct text *t)
{
	uint64_t mine = named(p, STATS_OUTPUT, output, name);
	if (mine == theirs)
		return 0;
	row_begin(p, STATS_OUTPUT, output, t);
	text_add(t, "%s %llu ≠ %llu that %s\n", name, (unsigned long long)mine, (unsigned long long)theirs, whose);
	return 1;
}

static unsigned outputs_check(const struct page *p, struct text *t)
{
	uint64_t taken[STATS_OUTPUTS_MAX] = {0};
	unsigned wrong = 0, n = MIN(stats_copy_entries(p->c, STATS_OUTPUT), STATS_OUTPUTS_MAX);
	int offered = stats_field_find(stats_copy_of(p->c), STATS_BACKEND, "offered_records");
	for (unsigned i = 0; i < stats_copy_entries(p->c, STATS_BACKEND); i++) {
		unsigned parent = stats_copy_entry(p->c, STATS_BACKEND, i)->parent;
		if (parent < n)
			taken[parent] += value(p, STATS_BACKEND, i, offered);
	}
	for (unsigned i = 0; i < n; i++) {
		wrong += pair_check(p, i, "offered_records", fed(p, i), "its inputs handed over", t);
		wrong += pair_check(p, i, "taken_records", taken[i], "its backends were offered", t);
	}
	return wrong;
}

unsigned stats_check_page(const struct stats_copy *c, unsigned page, struct text *t)
{
	static const enum stats_scope scopes[] = {STATS_INPUT, STATS_OUTPUT, STATS_BACKEND, STATS_KAFKA};
	const struct page p = {c, page};
	unsigned wrong = 0;
	for (unsigned s = 0; s < ARRAY_LEN(scopes); s++)
		for (unsigned i = 0; i < stats_copy_entries(c, scopes[s]); i++)
			wrong += block_check(&p, scopes[s], i, t);
	return wrong + outputs_check(&p, t);
}

unsigned stats_check(const struct stats_copy *c, struct text *t)
{
	unsigned wrong = 0;
	for (unsigned page = 0; page < stats_copy_slots(c) * STATS_SLOT_PAGES; page++)
		wrong += stats_check_page(c, page, t);
	return wrong;
}
