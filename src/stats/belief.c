/* SPDX-License-Identifier: MIT
 *
 * belief: whether what a worker left in its counter page can be, and what stands there if it cannot. Master only. A lie
 * that balances is not found; what is found can be seen to be no account of a worker.
 */
#include "stats_private.h"
#include <string.h>
#include <sys/mman.h>

/* More than any machine counts of anything, bytes included, in a second; and more than can wait in a worker. */
#define PER_SECOND_MAX (UINT64_C(1) << 40)
#define WAITING_MAX (UINT64_C(1) << 48)

struct believed {
	char *half;
	unsigned used[STATS_SCOPES];
	uint64_t at_us;
	uint64_t sequence; /* of the page at the last look */
};

struct stats_belief {
	struct stats *st;
	struct stats_copy *copy;
	char *memory;
	size_t memory_bytes;
	struct believed pages[STATS_SLOTS_MAX * STATS_SLOT_PAGES];
};

struct stats_belief *stats_belief_new(struct stats *st, struct stats_copy *copy)
{
	struct stats_belief *b = calloc(1, sizeof(*b));
	if (b == NULL)
		return NULL;
	size_t half_bytes = st->head.pages[STATS_OWNER_SLOT].half_bytes, n = st->head.slots * STATS_SLOT_PAGES;
	b->st = st;
	b->copy = copy;
	b->memory_bytes = n * half_bytes;
	b->memory =
	    mmap(NULL, b->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (b->memory == MAP_FAILED) {
		free(b);
		return NULL;
	}
	for (size_t i = 0; i < n; i++)
		b->pages[i] = (struct believed){.half = b->memory + i * half_bytes, .at_us = clock_us()};
	return b;
}

void stats_belief_free(struct stats_belief *b)
{
	if (b == NULL)
		return;
	munmap(b->memory, b->memory_bytes);
	free(b);
}

/* -- can it be ----------------------------------------------------------------------------------------------------- */

static bool field_can_be(const struct stats_field *f, uint64_t then, uint64_t now, uint64_t most)
{
	if (f->kind == STATS_KIND_GAUGE || f->kind == STATS_KIND_STATE)
		return f->ledger == STATS_LEDGER_NONE || f->ledger == STATS_LEDGER_BETWEEN || now <= WAITING_MAX;
	return now >= then && now - then <= most;
}

static bool block_can_be(const struct stats_field *f, unsigned n, const uint64_t *then, const uint64_t *now,
			 uint64_t most, struct text *why)
{
	for (unsigned i = 0; i < n; i++) {
		uint64_t before = then ? then[i] : 0;
		if (field_can_be(&f[i], before, now[i], most))
			continue;
		text_add(why, "%s %s was %llu and is %llu", stats_scope_word(f[i].scope), f[i].name,
			 (unsigned long long)before, (unsigned long long)now[i]);
		return false;
	}
	return true;
}

static bool scope_can_be(const struct stats_belief *b, unsigned page, enum stats_scope scope, uint64_t most,
			 struct text *why)
{
	const struct stats_scope_layout *l = &b->st->head.scopes[scope];
	const struct believed *then = &b->pages[page];
	const struct stats_field *f;
	unsigned n_fields = stats_fields(b->st, scope, &f), n = stats_copy_used(b->copy, page, scope);
	if (n < then->used[scope]) {
		text_add(why, "of %u blocks of %s %u are left", then->used[scope], stats_scope_word(scope), n);
		return false;
	}
	for (unsigned i = 0; i < n; i++) {
		const char *block = then->half + l->half_offset + (size_t)i * l->block_bytes;
		if (!block_can_be(f, n_fields, i < then->used[scope] ? (const uint64_t *)block : NULL,
				  stats_copy_block(b->copy, page, scope, i), most, why))
			return false;
	}
	return true;
}

/* Of the page as it is in the copy. */
static bool can_be(const struct stats_belief *b, unsigned page, uint64_t now_us, struct text *why)
{
	uint64_t seconds = (now_us - b->pages[page].at_us) / 1000000 + 2;
	uint64_t most = MIN(seconds, UINT64_C(1) << 22) * PER_SECOND_MAX;
	struct text wrong = {0};
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		if (stats_owner_of(s) == STATS_OWNER_SLOT && !scope_can_be(b, page, s, most, why))
			return false;
	unsigned n = stats_check_page(b->copy, page, &wrong);
	if (n > 0)
		text_add(why, "%u equations do not hold: %.*s", n, (int)strcspn(wrong.s ? wrong.s : "", "\n"),
			 wrong.s ? wrong.s : "");
	text_free(&wrong);
	return n == 0;
}

/* -- keeping ------------------------------------------------------------------------------------------------------- */

static void keep(struct stats_belief *b, unsigned page, uint64_t now_us)
{
	struct believed *to = &b->pages[page];
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		const struct stats_scope_layout *l = &b->st->head.scopes[s];
		const uint64_t *from = stats_copy_block(b->copy, page, s, 0);
		if (stats_owner_of(s) != STATS_OWNER_SLOT)
			continue;
		to->used[s] = stats_copy_used(b->copy, page, s);
		if (from)
			memcpy(to->half + l->half_offset, from, (size_t)to->used[s] * l->block_bytes);
	}
	to->at_us = now_us;
}

void stats_belief_look(struct stats_belief *b, uint64_t now_us)
{
	struct text why = {0};
	unsigned n = stats_slots(b->st) * STATS_SLOT_PAGES;
	if (stats_copy_take_names(b->copy) != 0)
		return;
	for (unsigned page = 0; page < n; page++) {
		uint64_t sequence = __atomic_load_n(&b->st->pages[page].shared->sequence, __ATOMIC_ACQUIRE);
		if (sequence == b->pages[page].sequence) {
			b->pages[page].at_us = now_us;
			continue;
		}
		b->pages[page].sequence = sequence;
		if (stats_copy_take_page(b->copy, page) && can_be(b, page, now_us, &why))
			keep(b, page, now_us);
	}
	text_free(&why);
}

void stats_belief_note(struct stats_belief *b, unsigned slot, unsigned which, uint64_t now_us)
{
	unsigned page = slot * STATS_SLOT_PAGES + which;
	if (stats_copy_take_page(b->copy, page))
		keep(b, page, now_us);
}

bool stats_belief_adopt(struct stats_belief *b, unsigned slot, unsigned which, uint64_t now_us, uint64_t *age_us,
			struct text *why)
{
	unsigned page = slot * STATS_SLOT_PAGES + which;
	struct stats_page *p = stats_slot_page(b->st, slot, which);
	bool is_good = stats_adopt(p);
	*age_us = 0;
	if (!is_good)
		text_add(why, "its page has more blocks than there can be");
	stats_copy_forget_page(b->copy, page); /* stamps are the worker's, too */
	is_good = is_good && stats_copy_take_names(b->copy) == 0 && stats_copy_take_page(b->copy, page) &&
		  can_be(b, page, now_us, why);
	if (is_good) {
		keep(b, page, now_us);
		return true;
	}
	*age_us = now_us - b->pages[page].at_us;
	stats_page_restore(p, b->pages[page].half, b->pages[page].used);
	return false;
}
