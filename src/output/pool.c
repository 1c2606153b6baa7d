/* SPDX-License-Identifier: MIT
 *
 * pool: see pool.h. Slabs are taken and given back LIFO. After a burst the worker's resident memory shrinks again:
 * what stayed free over a whole period goes back to the kernel, coldest first. Giving back at once would cost more
 * than it saves: 100 queues that empty every 5 ms would fault their pages in again 200 times a second.
 */
#include "pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { NONE = UINT32_MAX, ALL_SMALL = (1 << POOL_SLAB_PAGES) - 1 };

struct pool_slab {
	uint32_t free_mask; /* of its small chunks */
	uint32_t next, prev; /* in the list of those with a free one */
};

static size_t round_to_page(size_t n)
{
	return (n + POOL_PAGE_BYTES - 1) & ~(size_t)(POOL_PAGE_BYTES - 1);
}

int pool_init(struct pool *p, uint64_t bytes, struct err *err)
{
	uint64_t n = MIN(MAX(bytes / POOL_SLAB_BYTES, 2), NONE - 1);
	size_t stack_bytes = round_to_page(n * sizeof(*p->free)), table_bytes = round_to_page(n * sizeof(*p->slabs));
	*p = (struct pool){.n_slabs = (uint32_t)n, .n_fresh = (uint32_t)n, .partial = NONE, .reserve = (uint32_t)n / 8};
	p->mapping_bytes = stack_bytes + table_bytes + n * POOL_SLAB_BYTES;
	p->mapping = mmap(NULL, p->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p->mapping == MAP_FAILED) {
		int e = errno;
		p->mapping = NULL;
		return err_set(err, -e, "Cannot map %llu bytes for queues: %s; lower memory_limit.",
			       (unsigned long long)p->mapping_bytes, strerror(e));
	}
	/* One line in a queue must not pin 2 MiB. */
	madvise(p->mapping, p->mapping_bytes, MADV_NOHUGEPAGE);
	p->free = (uint32_t *)(void *)p->mapping;
	p->slabs = (struct pool_slab *)(void *)(p->mapping + stack_bytes);
	p->slab_bytes = p->mapping + stack_bytes + table_bytes;
	return 0;
}

void pool_fini(struct pool *p)
{
	if (p->mapping != NULL)
		munmap(p->mapping, p->mapping_bytes);
	p->mapping = NULL;
}

static uint32_t slab_take(struct pool *p)
{
	if (p->n_free == 0) {
		BUG_ON(p->n_fresh == 0);
		return p->n_slabs - p->n_fresh--;
	}
	uint32_t slab = p->free[--p->n_free];
	p->n_dry = MIN(p->n_dry, p->n_free);
	p->low_warm = MIN(p->low_warm, p->n_free - p->n_dry);
	return slab;
}

static void slab_give(struct pool *p, uint32_t slab)
{
	p->free[p->n_free++] = slab;
}

static void partial_add(struct pool *p, uint32_t slab)
{
	struct pool_slab *s = &p->slabs[slab];
	s->prev = NONE;
	s->next = p->partial;
	if (s->next != NONE)
		p->slabs[s->next].prev = slab;
	p->partial = slab;
}

static void partial_remove(struct pool *p, uint32_t slab)
{
	struct pool_slab *s = &p->slabs[slab];
	if (s->prev == NONE)
		p->partial = s->next;
	else
		p->slabs[s->prev].next = s->next;
	if (s->next != NONE)
		p->slabs[s->next].prev = s->prev;
}

static struct chunk *chunk_init(struct pool *p, uint32_t slab, uint32_t page, uint32_t room)
{
	struct chunk *c =
	    (struct chunk *)(void *)(p->slab_bytes + slab * (size_t)POOL_SLAB_BYTES + page * (size_t)POOL_PAGE_BYTES);
	*c = (struct chunk){.room = room};
	p->used_bytes += room + sizeof(struct chunk) + CHUNK_SLACK;
	return c;
}

struct chunk *pool_take(struct pool *p, bool large, bool may_use_reserve)
{
	if (large || p->partial == NONE) {
		if (pool_free_slabs(p) <= (may_use_reserve ? 0 : p->reserve))
			return NULL;
		uint32_t slab = slab_take(p);
		if (large)
			return chunk_init(p, slab, 0, CHUNK_LARGE_ROOM);
		p->slabs[slab].free_mask = ALL_SMALL;
		partial_add(p, slab);
	}
	uint32_t slab = p->partial, page = (uint32_t)__builtin_ctz(p->slabs[slab].free_mask);
	p->slabs[slab].free_mask &= ~(1u << page);
	if (p->slabs[slab].free_mask == 0)
		partial_remove(p, slab);
	return chunk_init(p, slab, page, CHUNK_SMALL_ROOM);
}

void pool_give(struct pool *p, struct chunk *c)
{
	size_t offset = (size_t)((char *)c - p->slab_bytes);
	uint32_t slab = (uint32_t)(offset / POOL_SLAB_BYTES), page = offset % POOL_SLAB_BYTES / POOL_PAGE_BYTES;
	p->used_bytes -= c->room + sizeof(struct chunk) + CHUNK_SLACK;
	if (c->room == CHUNK_LARGE_ROOM) {
		slab_give(p, slab);
		return;
	}
	struct pool_slab *s = &p->slabs[slab];
	BUG_ON(s->free_mask & 1u << page);
	if (s->free_mask == 0)
		partial_add(p, slab);
	s->free_mask |= 1u << page;
	if (s->free_mask == ALL_SMALL) {
		partial_remove(p, slab);
		slab_give(p, slab);
	}
}

bool pool_has_chunk(const struct pool *p, uint32_t bytes, bool may_use_reserve)
{
	return pool_free_slabs(p) > (may_use_reserve ? 0 : p->reserve) || (bytes <= CHUNK_SMALL_ROOM && p->partial != NONE);
}

bool pool_trim(struct pool *p)
{
	uint32_t idle = p->low_warm > POOL_KEEP ? MIN(p->low_warm - POOL_KEEP, POOL_TRIM_MAX) : 0;
	for (uint32_t i = 0; i < idle; i++)
		madvise(p->slab_bytes + p->free[p->n_dry + i] * (size_t)POOL_SLAB_BYTES, POOL_SLAB_BYTES, MADV_DONTNEED);
	p->n_dry += idle;
	p->low_warm = p->n_free - p->n_dry;
	return pool_is_fat(p);
}
