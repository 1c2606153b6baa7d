/* SPDX-License-Identifier: MIT
 *
 * pool: the memory of one output's queues in one worker, laid out at open. The bytes lie in a memfd, cut in slabs of
 * 68 KiB, so that a successor goes on with them where they are (region.c). A slab is one large chunk (holds the longest
 * line with its newline), or 17 small ones of a page each: with 10,000 backends a queue with a few lines must not pin
 * 68 KiB. What describes them is private memory: nobody who has the memfd can make us follow a pointer.
 *
 *   memfd:    slab 0 | slab 1 | …                     private:  free stack | slab table | chunk table, 17 a slab
 *   stack:    [ dry: given back to the kernel | warm: touched, free | top = taken next ]   LIFO, so memory stays hot
 *
 * Worker only. Not thread-safe. No allocation after pool_init, but for regions.
 */
#ifndef OUTPUT_POOL_H
#define OUTPUT_POOL_H

#include <base.h>
#include <sys/queue.h>

enum {
	POOL_PAGE_BYTES = 4096,
	POOL_SLAB_PAGES = 17,
	POOL_SLAB_BYTES = POOL_SLAB_PAGES * POOL_PAGE_BYTES,
	POOL_SPARE_SLABS = 128, /* never touched, but for the batch that a worker holds when it leaves (takes_all) */
	CHUNK_SLACK = 64, /* behind the room, so that a line may be copied in steps of 64 bytes */
	CHUNK_LARGE_ROOM = POOL_SLAB_BYTES - CHUNK_SLACK,
	CHUNK_SMALL_ROOM = POOL_PAGE_BYTES - CHUNK_SLACK,
};

/* A mapped memfd with slabs: our own, or one of a worker before us. */
struct region {
	LIST_ENTRY(region) next;
	int fd;
	char *bytes;
	uint64_t size;
	uint64_t id; /* the memfd's inode: what two workers call it */
	/* of a worker before us: */
	uint32_t n_chunks;	/* that we hold */
	uint64_t sender;	/* more of it is to come from the worker whose own region has this id; 0: no */
	uint64_t awaited_us;	/* … which said so then */
	uint64_t given_with; /* hand_over: it was announced with this backend */
};

/* A piece of a queue. `used` and `lines` are valid once the queue went on to the next chunk. */
struct chunk {
	struct chunk *next, *prev;
	struct region *region;
	char *bytes;
	uint32_t begin; /* first byte that the queue holds: the oldest lines of a chunk may be dropped */
	uint32_t used;
	uint32_t lines;
	uint32_t room;
};

struct pool_slab;

struct pool {
	struct region own;
	char *control;
	size_t control_bytes;
	uint32_t *free;            /* stack of slabs */
	struct pool_slab *slabs;   /* of those cut in small chunks */
	struct chunk *chunks;      /* POOL_SLAB_PAGES for each slab */
	uint32_t n_slabs, n_fresh; /* n_fresh: slabs never taken yet, the last ones */
	uint32_t n_free, n_dry, low_warm;
	uint32_t partial;    /* list of slabs with free small chunks */
	uint32_t reserve;    /* slabs that only queues with little may take */
	uint64_t used_bytes; /* chunks in use */
	LIST_HEAD(region_list, region) regions; /* of workers before us */
	/* What counts as taken from here, but for is_unlimited: */
	uint32_t spare;		/* slabs that are only for use beyond the limit */
	uint32_t foreign_pages; /* in use in regions of workers before us */
	uint64_t outside_bytes; /* memory elsewhere */
	bool is_unlimited;
};

/* Room for `bytes`, at least two slabs. 0, or -errno with err. */
int pool_init(struct pool *p, uint64_t bytes, struct err *err);
void pool_fini(struct pool *p);

/* So many of its slabs are only for use beyond the limit (is_unlimited). */
void pool_set_spare(struct pool *p, uint32_t slabs);

/* A large or small chunk, or NULL. may_use_reserve: for queues with so little that they must not starve because
 * others hold the rest. */
struct chunk *pool_take(struct pool *p, bool large, bool may_use_reserve);
void pool_give(struct pool *p, struct chunk *c);
/* It is another worker's now: no longer ours, and not free. */
void pool_forget(struct pool *p, struct chunk *c);
/* Whether a chunk with room for `bytes` could be taken. */
bool pool_has_chunk(const struct pool *p, uint32_t bytes, bool may_use_reserve);

/* Slabs that may be taken. */
static inline uint32_t pool_free_slabs(const struct pool *p)
{
	uint32_t n = p->n_free + p->n_fresh, foreign = (p->foreign_pages + POOL_SLAB_PAGES - 1) / POOL_SLAB_PAGES;
	uint64_t withheld = p->is_unlimited ? 0 : p->spare + foreign + p->outside_bytes / POOL_SLAB_BYTES;
	return n - (uint32_t)MIN(n, withheld);
}
static inline uint32_t pool_limit_slabs(const struct pool *p)
{
	return p->n_slabs - p->spare;
}
/* True while less than half of the slabs are in use: then queues may waste space to save time. */
static inline bool pool_is_roomy(const struct pool *p)
{
	return pool_free_slabs(p) > p->n_slabs / 2;
}
static inline uint32_t chunk_pages(const struct chunk *c)
{
	return (c->room + CHUNK_SLACK) / POOL_PAGE_BYTES;
}

/* Gives back to the kernel what stayed free since the last call, except POOL_KEEP slabs and no more than
 * POOL_TRIM_MAX at once. True while there is more than POOL_KEEP warm: call again. */
enum { POOL_KEEP = 32, POOL_TRIM_MAX = 96 };
bool pool_trim(struct pool *p);
static inline bool pool_is_fat(const struct pool *p)
{
	return p->n_free - p->n_dry > POOL_KEEP;
}

/* -- region.c: chunks that come from a worker before us, where they lie. A region is unmapped with its last chunk. */

/* Takes fd, the memfd of another pool, of which the first `size` bytes are slabs. `sender` says that chunks are to come.
 * NULL: it is no such memfd, or there is no memory for it. The same memfd is mapped once. */
struct region *region_open(struct pool *p, int fd, uint64_t size, uint64_t sender);
struct region *region_find(const struct pool *p, uint64_t id);
/* Nothing more is to come from it. */
void region_awaited_no_more(struct pool *p, uint64_t sender);
/* … and from those who said so before this time. False: nothing is awaited any more. */
bool region_forget_old(struct pool *p, uint64_t before_us);
/* A chunk there, which we hold from now on; pool_give it. Only what lies in the region is believed. NULL: it does not, or
 * there is no memory. */
struct chunk *region_chunk(struct pool *p, struct region *r, uint64_t offset, uint32_t room);
/* pool.c: it was the last use that we had of a chunk there. */
void region_release(struct pool *p, struct chunk *c);
void region_fini(struct pool *p);

#endif
