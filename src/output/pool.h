/* SPDX-License-Identifier: MIT
 *
 * pool: the memory of one output's queues in one worker. One mapping, laid out at open, cut in slabs of 68 KiB. A slab
 * is one large chunk (holds the longest line with its newline), or 17 small ones of a page each: with 10,000 backends a
 * queue with a few lines must not pin 68 KiB.
 *
 *   mapping:  free stack | slab table | slab 0 | slab 1 | …
 *   stack:    [ dry: given back to the kernel | warm: touched, free | top = taken next ]   LIFO, so memory stays hot
 *
 * Worker only. Not thread-safe. No allocation after pool_init.
 */
#ifndef OUTPUT_POOL_H
#define OUTPUT_POOL_H

#include <base.h>

enum {
	POOL_PAGE_BYTES = 4096,
	POOL_SLAB_PAGES = 17,
	POOL_SLAB_BYTES = POOL_SLAB_PAGES * POOL_PAGE_BYTES,
	CHUNK_SLACK = 64, /* behind the room, so that a line may be copied in steps of 64 bytes */
};

/* A piece of a queue. `used` and `lines` are valid once the queue went on to the next chunk. */
struct chunk {
	struct chunk *next, *prev;
	uint32_t begin; /* first byte that the queue holds: the oldest lines of a chunk may be dropped */
	uint32_t used;
	uint32_t lines;
	uint32_t room;
	_Alignas(64) char bytes[];
};

enum {
	CHUNK_LARGE_ROOM = POOL_SLAB_BYTES - (int)sizeof(struct chunk) - CHUNK_SLACK,
	CHUNK_SMALL_ROOM = POOL_PAGE_BYTES - (int)sizeof(struct chunk) - CHUNK_SLACK,
};

struct pool_slab;

struct pool {
	char *mapping;
	size_t mapping_bytes;
	char *slab_bytes;          /* slab 0 */
	uint32_t *free;            /* stack of slabs */
	struct pool_slab *slabs;   /* of those cut in small chunks */
	uint32_t n_slabs, n_fresh; /* n_fresh: slabs never taken yet, the last ones */
	uint32_t n_free, n_dry, low_warm;
	uint32_t partial;    /* list of slabs with free small chunks */
	uint32_t reserve;    /* slabs that only queues with little may take */
	uint64_t used_bytes; /* chunks in use */
	uint32_t spare;      /* slabs that are only for use beyond the limit */
	uint64_t outside_bytes; /* memory elsewhere that counts as taken from here */
	bool is_unlimited;      /* both count for nothing now */
};

/* Room for `bytes`, at least two slabs. 0, or -errno with err. */
int pool_init(struct pool *p, uint64_t bytes, struct err *err);
void pool_fini(struct pool *p);

/* A large or small chunk, or NULL. may_use_reserve: for queues with so little that they must not starve because
 * others hold the rest. */
struct chunk *pool_take(struct pool *p, bool large, bool may_use_reserve);
void pool_give(struct pool *p, struct chunk *c);
/* Whether a chunk with room for `bytes` could be taken. */
bool pool_has_chunk(const struct pool *p, uint32_t bytes, bool may_use_reserve);

/* True while less than half of the slabs are in use: then queues may waste space to save time. */
static inline uint32_t pool_free_slabs(const struct pool *p)
{
	uint32_t n = p->n_free + p->n_fresh;
	uint64_t withheld = p->is_unlimited ? 0 : p->spare + p->outside_bytes / POOL_SLAB_BYTES;
	return n - (uint32_t)MIN(n, withheld);
}
static inline uint32_t pool_limit_slabs(const struct pool *p)
{
	return p->n_slabs - p->spare;
}
static inline bool pool_is_roomy(const struct pool *p)
{
	return pool_free_slabs(p) > p->n_slabs / 2;
}

/* Gives back to the kernel what stayed free since the last call, except POOL_KEEP slabs and no more than
 * POOL_TRIM_MAX at once. True while there is more than POOL_KEEP warm: call again. */
enum { POOL_KEEP = 32, POOL_TRIM_MAX = 256 };
bool pool_trim(struct pool *p);
static inline bool pool_is_fat(const struct pool *p)
{
	return p->n_free - p->n_dry > POOL_KEEP;
}

#endif
