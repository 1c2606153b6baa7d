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
	uint64_t sequence; /* every block that was published until then is right in `half` */
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
	struct page_copy pages[STATS_SLOTS_MAX + 2];
};

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
			const struct stats_scope_layout *l, unsigned used)
{
	const char *from = page + pl->published_offset + l->half_offset;
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
	const char *page = c->st->file + stats_page_offset(head, index);
	const struct stats_page_head *shared = (const struct stats_page_head *)page;
	struct page_copy *pc = &c->pages[index];
	uint64_t before = __atomic_load_n(&shared->sequence, __ATOMIC_ACQUIRE);
	if (before & 1)
		return false;
	if (pc->taken && pc->sequence == before)
		return true;
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		const struct stats_scope_layout *l = &head->scopes[s];
		if (l->owner != owner)
			continue;
		pc->used[s] = MIN(__atomic_load_n(&shared->used[s], __ATOMIC_ACQUIRE), l->max_entries);
		blocks_take(pc, page, pl, l, pc->used[s]);
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	/* A block that was torn meanwhile is stamped later than `before`: the next round takes it again. */
	pc->taken = true;
	pc->sequence = before;
	return __atomic_load_n(&shared->sequence, __ATOMIC_RELAXED) == before;
}

static int page_take(struct stats_copy *c, unsigned index, struct err *err)
{
	enum stats_owner owner = stats_page_owner(&c->st->head, index);
	char who[24] = "the master";
	for (unsigned tries = 0; !page_take_once(c, index); tries++) {
		if (stats_pause(tries))
			continue;
		if (owner != STATS_OWNER_MASTER)
			snprintf(who, sizeof(who), owner == STATS_OWNER_SLOT ? "worker %u" : "the monitor", index);
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
	return (const struct stats_directory_head *)(c->st->file + c->st->head.directory_offset);
}

/* Blocks that are used and have no name are shown by their number rather than not at all. */
static void unnamed_show(struct stats_copy *c)
{
	memcpy(c->n, c->n_named, sizeof(c->n));
	for (unsigned s = STATS_WORKER + 1; s < STATS_SCOPES; s++) {
		for (unsigned i = 0; i < c->n_named[STATS_WORKER]; i++)
			c->n[s] = MAX(c->n[s], c->pages[i].used[s]);
		for (unsigned i = c->st->head.slots; i < stats_pages_n(&c->st->head); i++)
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
			if (i < c->n_named[STATS_WORKER] || i >= c->st->head.slots)
				rc = page_take(c, i, err);
		if (rc != 0)
			return rc;
		unnamed_show(c);
		if (__atomic_load_n(&directory_head(c)->sequence, __ATOMIC_ACQUIRE) == c->directory_sequence)
			return 0;
	}
	return err_set(err, -EAGAIN, "The names of the counter pages change all the time; try again.");
}

const struct stats *stats_copy_of(const struct stats_copy *c)
{
	return c->st;
}

unsigned stats_copy_slots(const struct stats_copy *c)
{
	return c->n_named[STATS_WORKER];
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

const uint64_t *stats_copy_block(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index)
{
	const struct stats_head *head = &c->st->head;
	const struct stats_scope_layout *l = &head->scopes[scope];
	unsigned page = l->owner == STATS_OWNER_SLOT ? (unsigned)slot : head->slots + l->owner - STATS_OWNER_MASTER;
	if (scope == STATS_WORKER)
		index = 0;
	if ((l->owner == STATS_OWNER_SLOT && page >= head->slots) || index >= l->max_entries)
		return NULL;
	return (const uint64_t *)(c->pages[page].half + l->half_offset + (size_t)index * l->block_bytes);
}

uint64_t stats_copy_sequence(const struct stats_copy *c, unsigned slot)
{
	return c->pages[slot].sequence;
}

uint64_t stats_value(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, unsigned field)
{
	const struct stats_head *head = &c->st->head;
	if (field >= head->scopes[scope].n_fields)
		return 0;
	bool sum = slot == STATS_ALL && head->scopes[scope].owner == STATS_OWNER_SLOT;
	uint64_t total = 0;
	for (int s = sum ? 0 : slot; s < (sum ? (int)stats_copy_slots(c) : slot + 1); s++) {
		const uint64_t *b = stats_copy_block(c, s, scope, index);
		total += b ? b[field] : 0;
	}
	return total;
}

uint64_t stats_named(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, const char *name)
{
	int field = stats_field_find(c->st, scope, name);
	return field == -1 ? 0 : stats_value(c, slot, scope, index, (unsigned)field);
}

const void *stats_block(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index)
{
	const struct stats_field *mine = stats_table, *theirs;
	unsigned n = stats_fields(c->st, scope, &theirs);
	while (mine->scope != scope)
		mine++;
	for (unsigned i = 0; i < n; i++)
		if (mine + i >= stats_table + stats_table_rows() || mine[i].scope != scope ||
		    strcmp(mine[i].name, theirs[i].name) != 0)
			return NULL;
	if (mine + n < stats_table + stats_table_rows() && mine[n].scope == scope)
		return NULL;
	return stats_copy_block(c, slot, scope, index);
}
