/* SPDX-License-Identifier: MIT
 *
 * copy: consistent copies of all pages and of the directory, for any process. Takes part in no lock: a writer never
 * waits for a reader, and a reader waits for a bounded time. Memory is reserved at once and becomes real by use.
 */
#include "stats_private.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

struct page_copy {
	char *half;
	bool taken;        /* all blocks in use were copied once */
	bool has_ended;	   /* its writer: what it was about to publish stands in the draft */
	uint64_t sequence; /* every block that was published until then is right in `half` */
	uint64_t stuck;	   /* it was waited for at this one already; even: it was not */
	unsigned used[STATS_SCOPES];
};

struct stats_copy {
	const struct stats *st;
	char *memory;
	size_t memory_bytes;
	bool named;
	uint64_t directory_sequence;
	struct stats_entry *entries[STATS_SCOPES];
	unsigned n_named[STATS_SCOPES], n[STATS_SCOPES];
	struct page_copy pages[STATS_SLOTS_MAX * STATS_SLOT_PAGES + 2];
	uint64_t states[STATS_SCOPES][4]; /* bit i set: field i of the block is a state */
};

static void states_find(struct stats_copy *c)
{
	const struct stats_field *f;
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		for (unsigned i = 0, n = stats_fields(c->st, s, &f); i < n; i++)
			if (f[i].kind == STATS_KIND_STATE)
				c->states[s][f[i].index / 64] |= UINT64_C(1) << f[i].index % 64;
}

struct stats_copy *stats_copy_new(const struct stats *st)
{
	const struct stats_head *head = &st->head;
	struct stats_copy *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->st = st;
	for (unsigned i = 0; i < stats_pages_n(head); i++)
		c->memory_bytes += head->pages[stats_page_owner(head, i)].half_bytes;
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		c->memory_bytes += stats_listed_max(head, s) * sizeof(struct stats_entry);
	c->memory =
		mmap(NULL, c->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (c->memory == MAP_FAILED) {
		free(c);
		return NULL;
	}
	states_find(c);
	char *at = c->memory;
	for (unsigned i = 0; i < stats_pages_n(head); i++) {
		c->pages[i].half = at;
		at += head->pages[stats_page_owner(head, i)].half_bytes;
	}
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		c->entries[s] = (struct stats_entry *)at;
		at += stats_listed_max(head, s) * sizeof(struct stats_entry);
	}
	return c;
}

void stats_copy_free(struct stats_copy *c)
{
	if (!c)
		return;
	munmap(c->memory, c->memory_bytes);
	free(c);
}

/* The blocks of one scope that were published since this copy of the page was right. */
static void blocks_take(struct page_copy *pc, const char *page, const struct stats_page_layout *pl,
			const struct stats_scope_layout *l, unsigned used, bool is_cut_off)
{
	const char *from = page + (is_cut_off ? pl->draft_offset : pl->published_offset) + l->half_offset;
	char *to = pc->half + l->half_offset;
	if (!pc->taken) {
		memcpy(to, from, (size_t)used * l->block_bytes);
		return;
	}
	const uint32_t *stamps = (const uint32_t *)(page + pl->stamps_offset) + l->first_block;
	for (unsigned i = 0; i < used; i++)
		if (UNLIKELY((int32_t)(__atomic_load_n(&stamps[i], __ATOMIC_RELAXED) - (uint32_t)pc->sequence) > 0))
			memcpy(to + (size_t)i * l->block_bytes, from + (size_t)i * l->block_bytes, l->block_bytes);
}

static bool page_take_once(struct stats_copy *c, unsigned index)
{
	const struct stats_head *head = &c->st->head;
	enum stats_owner owner = stats_page_owner(head, index);
	const struct stats_page_layout *pl = &head->pages[owner];
	const char *page = stats_page_at(c->st, index);
	const struct stats_page_head *shared = (const struct stats_page_head *)page;
	struct page_copy *pc = &c->pages[index];
	uint64_t before = __atomic_load_n(&shared->sequence, __ATOMIC_ACQUIRE);
	bool is_cut_off = before & 1;
	if (is_cut_off && !pc->has_ended)
		return false;
	if (pc->taken && pc->sequence == before)
		return true;
	/* the stamps tell nothing: it was restored, or is no worker's any more */
	if (is_cut_off || before - pc->sequence > INT32_MAX)
		pc->taken = false;
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		const struct stats_scope_layout *l = &head->scopes[s];
		if (l->owner != owner)
			continue;
		pc->used[s] = stats_used(head, shared, s);
		blocks_take(pc, page, pl, l, pc->used[s], is_cut_off);
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	/* A block that was torn meanwhile is stamped later than `before`: the next round takes it again. */
	pc->taken = true;
	pc->sequence = before;
	return __atomic_load_n(&shared->sequence, __ATOMIC_RELAXED) == before;
}

static uint64_t page_sequence(const struct stats_copy *c, unsigned index)
{
	const struct stats_page_head *shared = (const struct stats_page_head *)stats_page_at(c->st, index);
	return __atomic_load_n(&shared->sequence, __ATOMIC_ACQUIRE);
}

static int page_take(struct stats_copy *c, unsigned index, struct err *err)
{
	enum stats_owner owner = stats_page_owner(&c->st->head, index);
	char who[24] = "the master";
	if (stats_page_at(c->st, index) == NULL)
		return 0; /* one of a slot that was added since: see stats_copy_lacks_pages */
	for (unsigned tries = 0; !page_take_once(c, index); tries++) {
		/* whoever keeps it so, keeps us waiting once */
		uint64_t sequence = page_sequence(c, index);
		bool is_stuck = (sequence & 1) && sequence == c->pages[index].stuck;
		if (!is_stuck && stats_pause(tries))
			continue;
		c->pages[index].stuck = sequence;
		if (owner != STATS_OWNER_MASTER)
			snprintf(who, sizeof(who), owner == STATS_OWNER_SLOT ? "worker %u" : "the monitor",
				 index / STATS_SLOT_PAGES);
		return err_set(err, -EAGAIN,
			       "The counter page of %s does not hold still: its process died or was stopped while it "
			       "wrote; "
			       "try again.",
			       who);
	}
	return 0;
}

static const struct stats_directory_head *directory_head(const struct stats_copy *c)
{
	return (const struct stats_directory_head *)(c->st->files[STATS_FILE_MAIN].at + c->st->head.directory_offset);
}

/* Blocks that are used and have no name are shown by their number rather than not at all. */
static void unnamed_show(struct stats_copy *c)
{
	memcpy(c->n, c->n_named, sizeof(c->n));
	for (unsigned s = STATS_WORKER + 1; s < STATS_SCOPES; s++) {
		for (unsigned i = 0; i < stats_pages_n(&c->st->head); i++)
			c->n[s] = MAX(c->n[s], c->pages[i].used[s]);
		for (unsigned i = c->n_named[s]; i < c->n[s]; i++) {
			if (!c->entries[s][i].name[0])
				snprintf(c->entries[s][i].name, sizeof(c->entries[s][i].name), "#%u", i);
		}
	}
}

static int directory_take(struct stats_copy *c)
{
	uint64_t sequence = __atomic_load_n(&directory_head(c)->sequence, __ATOMIC_ACQUIRE);
	if (c->named && sequence == c->directory_sequence)
		return 0;
	c->named = stats_directory_take(c->st, c->entries, c->n_named, &c->directory_sequence) == 0;
	return c->named ? 0 : -EAGAIN;
}

int stats_copy_take(struct stats_copy *c, struct err *err)
{
	for (unsigned tries = 0; tries < 8 && directory_take(c) == 0; tries++) {
		int rc = 0;
		for (unsigned i = 0; i < stats_pages_n(&c->st->head) && rc == 0; i++)
			rc = page_take(c, i, err);
		if (rc != 0)
			return rc;
		unnamed_show(c);
		if (__atomic_load_n(&directory_head(c)->sequence, __ATOMIC_ACQUIRE) == c->directory_sequence)
			return 0;
	}
	return err_set(err, -EAGAIN, "The names of the counter pages change all the time; try again.");
}

void stats_copy_ended(struct stats_copy *c, unsigned slot, unsigned which)
{
	c->pages[slot * STATS_SLOT_PAGES + which].has_ended = true;
}

const struct stats *stats_copy_of(const struct stats_copy *c)
{
	return c->st;
}

static unsigned slots_mapped(const struct stats_copy *c)
{
	return (c->st->n_files - STATS_FILE_SLOTS) / STATS_SLOT_PAGES;
}

unsigned stats_copy_slots(const struct stats_copy *c)
{
	return MIN(c->n_named[STATS_WORKER], slots_mapped(c));
}

bool stats_copy_lacks_pages(const struct stats_copy *c)
{
	return c->n_named[STATS_WORKER] > slots_mapped(c);
}

bool stats_copy_take_page(struct stats_copy *c, unsigned page)
{
	unsigned tries = 0;
	while (tries < 16 && !page_take_once(c, page))
		tries++;
	unnamed_show(c);
	return tries < 16;
}

void stats_copy_forget_page(struct stats_copy *c, unsigned page)
{
	c->pages[page].taken = false;
}

int stats_copy_take_names(struct stats_copy *c)
{
	return directory_take(c);
}

unsigned stats_copy_used(const struct stats_copy *c, unsigned page, enum stats_scope scope)
{
	return c->pages[page].used[scope];
}

bool stats_copy_is_retired(const struct stats_copy *c, enum stats_scope scope, unsigned index)
{
	return index < c->n_named[scope] && c->entries[scope][index].used == STATS_RETIRED;
}

unsigned stats_copy_entries(const struct stats_copy *c, enum stats_scope scope)
{
	return c->n[scope];
}

const struct stats_entry *stats_copy_entry(const struct stats_copy *c, enum stats_scope scope, unsigned index)
{
	BUG_ON(index >= c->n[scope]);
	return &c->entries[scope][index];
}

const uint64_t *stats_copy_block(const struct stats_copy *c, unsigned page, enum stats_scope scope, unsigned index)
{
	const struct stats_scope_layout *l = &c->st->head.scopes[scope];
	if (scope == STATS_WORKER)
		index = 0;
	if (page >= stats_pages_n(&c->st->head) || index >= c->pages[page].used[scope])
		return NULL;
	return (const uint64_t *)(c->pages[page].half + l->half_offset + (size_t)index * l->block_bytes);
}

const uint64_t *stats_copy_block_of(const struct stats_copy *c, unsigned slot, unsigned which, enum stats_scope scope,
				    unsigned index)
{
	return stats_copy_block(c, stats_page_number(&stats_copy_of(c)->head, scope, slot, which), scope, index);
}

uint64_t stats_copy_sequence(const struct stats_copy *c, unsigned slot)
{
	uint64_t sum = 0;
	for (unsigned which = 0; which < STATS_SLOT_PAGES; which++)
		sum += c->pages[slot * STATS_SLOT_PAGES + which].sequence;
	return sum;
}

/* -- sums ---------------------------------------------------------------------------------------------------------- */

/* A slot is one worker to who reads, and now and then two processes. */
static uint64_t slot_value(const struct stats_copy *c, unsigned slot, enum stats_scope scope, unsigned index,
			   unsigned field)
{
	bool is_state = c->states[scope][field / 64 % 4] >> field % 64 & 1;
	uint64_t value = 0;
	for (unsigned which = 0; which < STATS_SLOT_PAGES; which++) {
		const uint64_t *b = stats_copy_block(c, slot * STATS_SLOT_PAGES + which, scope, index);
		uint64_t v = b ? b[field] : 0;
		value = is_state ? MAX(value, v) : value + v;
	}
	return value;
}

uint64_t stats_value(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, unsigned field)
{
	const struct stats_head *head = &c->st->head;
	uint64_t total = 0;
	if (field >= head->scopes[scope].n_fields)
		return 0;
	if (head->scopes[scope].owner != STATS_OWNER_SLOT) {
		const uint64_t *b = stats_copy_block(c, stats_page_number(head, scope, 0, 0), scope, index);
		return b ? b[field] : 0;
	}
	if (slot != STATS_ALL)
		return (unsigned)slot < head->slots ? slot_value(c, (unsigned)slot, scope, index, field) : 0;
	for (unsigned s = 0; s < stats_copy_slots(c); s++)
		total += slot_value(c, s, scope, index, field);
	return total;
}

uint64_t stats_named(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, const char *name)
{
	int field = stats_field_find(c->st, scope, name);
	return field == -1 ? 0 : stats_value(c, slot, scope, index, (unsigned)field);
}

bool stats_sum(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, void *block)
{
	const struct stats_field *mine = stats_table, *end = stats_table + stats_table_rows(), *theirs;
	unsigned n = stats_fields(c->st, scope, &theirs);
	uint64_t *to = block;
	while (mine->scope != scope)
		mine++;
	for (unsigned i = 0; mine + i < end && mine[i].scope == scope; i++)
		to[i] = 0;
	for (unsigned i = 0; i < n; i++)
		if (mine + i >= end || mine[i].scope != scope || strcmp(mine[i].name, theirs[i].name) != 0)
			return false;
	if (mine + n < end && mine[n].scope == scope)
		return false;
	for (unsigned i = 0; i < n; i++)
		to[i] = stats_value(c, slot, scope, index, i);
	return true;
}
