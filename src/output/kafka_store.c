/* SPDX-License-Identifier: MIT
 *
 * kafka_store: messages packed in chunks, and lists of them (kafka.h). Pure but for the chunks that it takes from the
 * pool; knows nothing of librdkafka. A chunk counts its living messages in `lines`; whoever fills it counts as one.
 */
#include "kafka.h"

#include <sys/mman.h>

/* The next message begins on 8 bytes. */
static uint32_t aligned(uint32_t n)
{
	return (n + 7) & ~7u;
}

static uint32_t head_bytes(bool has_origin)
{
	return (uint32_t)(sizeof(struct message) + (has_origin ? sizeof(struct origin) : 0));
}

/* -- lists ------------------------------------------------------------------------------------------------------- */

void message_list_init(struct message_list *l)
{
	*l = (struct message_list){.last = &l->first};
}

void message_list_add(struct message_list *l, struct message *m)
{
	m->next = NULL;
	*l->last = m;
	l->last = &m->next;
	l->messages++;
	l->records += m->records;
	l->bytes += m->len;
}

struct message *message_list_take(struct message_list *l)
{
	struct message *m = l->first;
	if (m == NULL)
		return NULL;
	l->first = m->next;
	if (l->first == NULL)
		l->last = &l->first;
	l->messages--;
	l->records -= m->records;
	l->bytes -= m->len;
	return m;
}

void message_list_prepend(struct message_list *l, struct message_list *front)
{
	if (front->first == NULL)
		return;
	*front->last = l->first;
	if (l->first == NULL)
		l->last = front->last;
	l->first = front->first;
	l->messages += front->messages;
	l->records += front->records;
	l->bytes += front->bytes;
	message_list_init(front);
}

/* -- chunks ------------------------------------------------------------------------------------------------------ */

static void chunk_release(struct pool *pool, struct chunk *c)
{
	BUG_ON(c->lines == 0);
	if (--c->lines == 0)
		pool_give(pool, c);
}

void taken_free(struct pool *pool, struct taken *t)
{
	pool->outside_bytes -= t->all_bytes;
	LIST_REMOVE(t, next);
	munmap(t->mapping, t->mapping_bytes);
	free(t);
}

void message_free(struct pool *pool, struct message *m)
{
	if (UNLIKELY(m->is_taken)) {
		struct taken *t = (struct taken *)(void *)((char *)m - m->place);
		if (--t->alive == 0)
			taken_free(pool, t);
		return;
	}
	chunk_release(pool, &pool->chunks[m->place]);
}

void builder_fini(struct builder *b, struct pool *pool)
{
	if (b->chunk != NULL)
		chunk_release(pool, b->chunk);
	b->chunk = NULL;
}

uint32_t builder_room(bool large, bool has_origin)
{
	return (uint32_t)(large ? CHUNK_LARGE_ROOM : CHUNK_SMALL_ROOM) - head_bytes(has_origin);
}

static bool next_chunk(struct builder *b, struct pool *pool, uint32_t need, bool large)
{
	bool is_small_enough = need <= CHUNK_SMALL_ROOM;
	struct chunk *c = pool_take(pool, large || !is_small_enough, true);
	if (c == NULL && large && is_small_enough)
		c = pool_take(pool, false, true);
	if (c == NULL)
		return false;
	builder_fini(b, pool);
	c->lines = 1;
	b->chunk = c;
	return true;
}

struct message *builder_new_message(struct builder *b, struct pool *pool, uint32_t len, uint32_t want, bool large,
				    const struct message_origin *origin)
{
	uint32_t head = head_bytes(origin->is_wanted), need = head + len;
	struct chunk *c = b->chunk;
	if (c != NULL && c->lines == 1)
		c->used = 0; /* all that was in it is gone: it stays in the cache when it is filled again */
	if (c == NULL || c->room - c->used < MAX(need, head + want)) {
		bool fits = c != NULL && c->room - c->used >= need;
		if (!next_chunk(b, pool, need, large) && !fits)
			return NULL;
		c = b->chunk;
	}
	struct message *m = (struct message *)(void *)(c->bytes + c->used);
	m->place = (uint32_t)(c - pool->chunks) & MESSAGE_PLACE_MAX;
	m->len = len;
	m->key_len = 0;
	m->has_origin = origin->is_wanted;
	m->has_key_before = m->is_taken = false;
	if (origin->is_wanted)
		*(struct origin *)(void *)(m + 1) = origin->is;
	return m;
}

void builder_end_message(struct builder *b, struct message *m, uint32_t len)
{
	struct chunk *c = b->chunk;
	m->len = len;
	c->used += aligned(head_bytes(m->has_origin) + len);
	c->used = MIN(c->used, c->room);
	c->lines++;
}
