/* SPDX-License-Identifier: MIT
 *
 * pool: see pool.h. Slabs are taken and given back LIFO. After a burst the worker's resident memory shrinks again:
 * what stayed free over a whole period goes back to the kernel, coldest first. Giving back at once would cost more
 * than it saves: 100 queues that empty every 5 ms would fault their pages in again 200 times a second.
 */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NONE = UINT32_MAX, ALL_SMALL = (1 << POOL_SLAB_PAGES) - 1 };

struct pool_slab {
	uint32_t free_mask;  /* of its small chunks */
	uint32_t next, prev; /* in the list of those with a free one */
};

static size_t round_to_page(size_t n)
{
	return (n + POOL_PAGE_BYTES - 1) & ~(size_t)(POOL_PAGE_BYTES - 1);
}

/* F_SEAL_SHRINK: whoever maps it is never cut off (SIGBUS) by somebody else who has it. */
static int own_init(struct region *r, uint64_t size)
{
	struct stat sb;
	r->size = size;
	r->fd = memfd_create("millrace-queues", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (r->fd == -1 || ftruncate(r->fd, (off_t)size) == -1 || fstat(r->fd, &sb) == -1 ||
	    fcntl(r->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) == -1)
		return -errno;
	r->id = sb.st_ino;
	void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, r->fd, 0);
	if (bytes == MAP_FAILED)
		return -errno;
	r->bytes = bytes;
	/* One line in a queue must not pin 2 MiB. */
	madvise(bytes, size, MADV_NOHUGEPAGE);
	return 0;
}

static int control_init(struct pool *p)
{
	size_t n = p->n_slabs, stack_bytes = round_to_page(n * sizeof(*p->free)),
	       table_bytes = round_to_page(n * sizeof(*p->slabs));
	p->control_bytes = stack_bytes + table_bytes + round_to_page(n * POOL_SLAB_PAGES * sizeof(*p->chunks));
	void *control =
	    mmap(NULL, p->control_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (control == MAP_FAILED)
		return -errno;
	p->control = control;
	p->free = (uint32_t *)(void *)p->control;
	p->slabs = (struct pool_slab *)(void *)(p->control + stack_bytes);
	p->chunks = (struct chunk *)(void *)(p->control + stack_bytes + table_bytes);
	return 0;
}

int pool_init(struct pool *p, uint64_t bytes, struct err *err)
{
	uint64_t n = MAX(bytes / POOL_SLAB_BYTES, 2);
	*p = (struct pool){.n_slabs = (uint32_t)n,
			   .n_fresh = (uint32_t)n,
			   .partial = NONE,
			   .reserve = (uint32_t)n / 8,
			   .own = {.fd = -1}};
	LIST_INIT(&p->regions);
	int r = n < NONE / POOL_SLAB_PAGES ? own_init(&p->own, n * POOL_SLAB_BYTES) : -ENOMEM;
	if (r == 0)
		r = control_init(p);
	if (r == 0)
		return 0;
	pool_fini(p);
	return err_set(err, r, "Cannot map %llu bytes for queues: %s; lower memory_limit.",
		       (unsigned long long)n * POOL_SLAB_BYTES, strerror(-r));
}

void pool_fini(struct pool *p)
{
	if (p->own.fd <= 0) /* never made */
		return;
	region_fini(p);
	if (p->own.bytes != NULL)
		munmap(p->own.bytes, p->own.size);
	if (p->control != NULL)
		munmap(p->control, p->control_bytes);
	close(p->own.fd);
	p->own = (struct region){.fd = -1};
	p->control = NULL;
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
	struct chunk *c = &p->chunks[slab * (size_t)POOL_SLAB_PAGES + page];
	char *bytes = p->own.bytes + slab * (size_t)POOL_SLAB_BYTES + page * (size_t)POOL_PAGE_BYTES;
	*c = (struct chunk){.region = &p->own, .bytes = bytes, .room = room};
	p->used_bytes += room + CHUNK_SLACK;
	return c;
}

void pool_set_spare(struct pool *p, uint32_t slabs)
{
	p->spare = slabs;
	p->reserve = (p->n_slabs - slabs) / 8;
}

/* What came from a worker before us may be more than we may hold: those with little still get their part. */
static bool may_take_slab(const struct pool *p, bool may_use_reserve)
{
	uint32_t own = p->n_free + p->n_fresh;
	if (may_use_reserve && own > 0 && p->reserve > 0 && own >= p->n_slabs - p->reserve)
		return true;
	return pool_free_slabs(p) > (may_use_reserve ? 0 : p->reserve);
}

struct chunk *pool_take(struct pool *p, bool large, bool may_use_reserve)
{
	if (large || p->partial == NONE) {
		if (!may_take_slab(p, may_use_reserve))
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

void pool_forget(struct pool *p, struct chunk *c)
{
	p->used_bytes -= c->room + CHUNK_SLACK;
	if (c->region != &p->own)
		region_release(p, c);
}

void pool_give(struct pool *p, struct chunk *c)
{
	if (c->region != &p->own) {
		/* Back to the kernel at once: there it is not used again. */
		madvise(c->bytes, c->room + CHUNK_SLACK, MADV_REMOVE);
		pool_forget(p, c);
		return;
	}
	size_t i = (size_t)(c - p->chunks);
	uint32_t slab = (uint32_t)(i / POOL_SLAB_PAGES), page = i % POOL_SLAB_PAGES;
	pool_forget(p, c);
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
	return may_take_slab(p, may_use_reserve) ||
	       (bytes <= CHUNK_SMALL_ROOM && p->partial != NONE);
}

bool pool_trim(struct pool *p)
{
	uint32_t idle = p->low_warm > POOL_KEEP ? MIN(p->low_warm - POOL_KEEP, POOL_TRIM_MAX) : 0;
	for (uint32_t i = 0; i < idle; i++)
		madvise(p->own.bytes + p->free[p->n_dry + i] * (size_t)POOL_SLAB_BYTES, POOL_SLAB_BYTES, MADV_REMOVE);
	p->n_dry += idle;
	p->low_warm = p->n_free - p->n_dry;
	return pool_is_fat(p);
}
