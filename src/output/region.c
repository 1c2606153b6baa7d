/* SPDX-License-Identifier: MIT
 *
 * region: queue memory of workers before us (pool.h). Their chunks are not copied: we go on with the bytes where they lie,
 * give each page back to the kernel when its lines are gone, and unmap the memfd with the last one. Whoever sent it may
 * still have it mapped, so nothing in it is believed: what describes a chunk is ours. Worker only.
 */
#include "pool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct region *region_find(const struct pool *p, uint64_t id)
{
	struct region *r;
	LIST_FOREACH(r, &p->regions, next)
	{
		if (r->id == id)
			return r;
	}
	return NULL;
}

/* Nobody can shrink it under us, and it is as large as it says. Seals are a thing of memfds only (man 2 fcntl). */
static bool is_safe(int fd, uint64_t size, uint64_t *id)
{
	struct stat sb;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals == -1 || !(seals & F_SEAL_SHRINK) || fstat(fd, &sb) == -1)
		return false;
	*id = sb.st_ino;
	return size > 0 && size % POOL_PAGE_BYTES == 0 && size <= (uint64_t)sb.st_size;
}

struct region *region_open(struct pool *p, int fd, uint64_t size, uint64_t sender)
{
	uint64_t id;
	struct region *r = NULL;
	void *bytes = MAP_FAILED;
	if (is_safe(fd, size, &id)) {
		r = region_find(p, id);
		if (r == NULL && id != p->own.id)
			bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	}
	if (bytes != MAP_FAILED) {
		r = calloc(1, sizeof(*r));
		if (r == NULL) {
			munmap(bytes, size);
		} else {
			*r = (struct region){.fd = fd, .bytes = bytes, .size = size, .id = id};
			fd = -1;
			LIST_INSERT_HEAD(&p->regions, r, next);
		}
	}
	if (r != NULL) {
		r->sender = sender;
		r->awaited_us = clock_us();
	}
	if (fd != -1)
		close(fd);
	return r;
}

static void region_close(struct region *r)
{
	LIST_REMOVE(r, next);
	munmap(r->bytes, r->size);
	close(r->fd);
	free(r);
}

static void close_unused(struct region *r)
{
	if (r->n_chunks == 0 && r->sender == 0)
		region_close(r);
}

void region_awaited_no_more(struct pool *p, uint64_t sender)
{
	struct region *next;
	for (struct region *r = LIST_FIRST(&p->regions); r != NULL; r = next) {
		next = LIST_NEXT(r, next);
		if (r->sender == sender)
			r->sender = 0;
		close_unused(r);
	}
}

bool region_forget_old(struct pool *p, uint64_t before_us)
{
	bool is_awaited = false;
	struct region *next;
	for (struct region *r = LIST_FIRST(&p->regions); r != NULL; r = next) {
		next = LIST_NEXT(r, next);
		if (r->awaited_us < before_us)
			r->sender = 0;
		is_awaited |= r->sender != 0;
		close_unused(r);
	}
	return is_awaited;
}

struct chunk *region_chunk(struct pool *p, struct region *r, uint64_t offset, uint32_t room)
{
	uint64_t bytes = room + UINT64_C(1) * CHUNK_SLACK;
	if ((room != CHUNK_LARGE_ROOM && room != CHUNK_SMALL_ROOM) || offset % POOL_PAGE_BYTES != 0 ||
	    bytes > r->size || offset > r->size - bytes)
		return NULL;
	struct chunk *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return NULL;
	*c = (struct chunk){.region = r, .bytes = r->bytes + offset, .room = room};
	r->n_chunks++;
	p->foreign_pages += chunk_pages(c);
	p->used_bytes += bytes;
	return c;
}

void region_release(struct pool *p, struct chunk *c)
{
	struct region *r = c->region;
	p->foreign_pages -= chunk_pages(c);
	r->n_chunks--;
	free(c);
	close_unused(r);
}

void region_fini(struct pool *p)
{
	struct region *r;
	while ((r = LIST_FIRST(&p->regions)) != NULL)
		region_close(r);
}
