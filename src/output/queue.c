/* SPDX-License-Identifier: MIT
 *
 * queue: see queue.h. Pure but for the chunks that it takes from the pool; knows nothing of sockets. Everything here is
 * per send or per acknowledgement; what is per line is inline in the header.
 */
#include "queue.h"

/* Whole blocks, whose count fits into a byte, become vectors with any compiler: a short write into the middle of 64 KiB
 * costs 4 us (with SSE2 by hand 8, with one memchr a line 20). */
static uint32_t count_newlines(const char *p, size_t n)
{
	enum { BLOCK = 128 };
	uint32_t count = 0;
	for (; n >= BLOCK; p += BLOCK, n -= BLOCK) {
		uint8_t in_block = 0;
		for (unsigned i = 0; i < BLOCK; i++)
			in_block = (uint8_t)(in_block + (p[i] == '\n'));
		count += in_block;
	}
	for (; n > 0; p++, n--)
		count += *p == '\n';
	return count;
}

static uint32_t chunk_used(const struct queue *q, const struct chunk *c)
{
	return c == q->tail ? (uint32_t)(q->end - c->bytes) : c->used;
}

static uint32_t chunk_lines(const struct queue *q, const struct chunk *c)
{
	return c == q->tail ? (uint32_t)(q->put_lines - q->tail_lines) : c->lines;
}

/* True when the byte before `off` belongs to a line that goes on at off. */
static bool is_mid_line(const struct chunk *c, uint32_t off)
{
	return off > c->begin && c->bytes[off - 1] != '\n';
}

/* The slow way begins at the end of the chunk, at the queue's limit or at the watermark, whichever is next. */
static void set_limit(struct queue *q)
{
	if (q->tail == NULL) {
		q->end = q->limit = NULL;
		return;
	}
	uint64_t put = queue_put_bytes(q), held = put - q->done_bytes, unsent = put - q->gone_bytes;
	uint64_t room = (uint64_t)(q->tail->bytes + q->tail->room - q->end);
	room = MIN(room, q->limit_bytes > held ? q->limit_bytes - held : 0);
	room = MIN(room, q->watermark_bytes > unsent ? q->watermark_bytes - unsent : 0);
	q->limit = q->end + room;
}

void queue_init(struct queue *q, struct pool *pool, uint64_t limit_bytes)
{
	*q = (struct queue){.pool = pool, .limit_bytes = limit_bytes, .watermark_bytes = UINT64_MAX};
}

void queue_set_limit(struct queue *q, uint64_t limit_bytes)
{
	q->limit_bytes = limit_bytes;
	set_limit(q);
}

void queue_set_watermark(struct queue *q, uint64_t bytes)
{
	q->watermark_bytes = bytes;
	set_limit(q);
}

/* -- chunks ------------------------------------------------------------------------------------------------------ */

static void chunk_drop(struct queue *q, struct chunk *c)
{
	if (c->prev != NULL)
		c->prev->next = c->next;
	else
		q->head = c->next;
	if (c->next != NULL)
		c->next->prev = c->prev;
	else
		q->tail = c->prev;
	q->n_chunks--;
	pool_give(q->pool, c);
}

/* All of it is done: no chunk is held any more. */
static void become_empty(struct queue *q)
{
	uint64_t put = queue_put_bytes(q);
	q->is_wide = put - q->empty_bytes > CHUNK_SMALL_ROOM;
	while (q->head != NULL)
		chunk_drop(q, q->head);
	q->send = NULL;
	q->tail_bytes = q->gone_bytes = q->done_bytes = q->empty_bytes = put;
	q->tail_lines = q->gone_lines = q->done_lines = q->put_lines;
	q->ack_off = q->ack_lines = q->line_off = q->send_off = q->send_lines = 0;
}

void queue_clear(struct queue *q)
{
	if (q->tail != NULL)
		become_empty(q);
	set_limit(q);
}

/* Large chunks for queues that fill them; small ones for the many that hold a few lines, and when memory is short. */
static struct chunk *take_chunk(struct queue *q, uint32_t need)
{
	bool is_small_enough = need <= CHUNK_SMALL_ROOM, may_use_reserve = q->n_chunks < 2;
	bool large = !is_small_enough || (q->is_wide && (q->n_chunks > 0 || pool_is_roomy(q->pool)));
	struct chunk *c = pool_take(q->pool, large, may_use_reserve);
	if (c == NULL && large && is_small_enough)
		c = pool_take(q->pool, false, may_use_reserve);
	return c;
}

static bool add_chunk(struct queue *q, uint32_t need)
{
	if (q->tail != NULL)
		q->is_wide = true;
	struct chunk *c = take_chunk(q, need), *last = q->tail;
	if (c == NULL)
		return false;
	uint64_t put = queue_put_bytes(q);
	c->prev = last;
	if (last != NULL) {
		last->used = chunk_used(q, last);
		last->lines = chunk_lines(q, last);
		last->next = c;
	} else {
		q->head = q->send = c;
	}
	q->tail = c;
	q->tail_bytes = put;
	q->tail_lines = q->put_lines;
	q->end = c->bytes;
	q->n_chunks++;
	return true;
}

enum queue_room queue_reserve(struct queue *q, uint32_t len)
{
	uint32_t need = len + 1;
	BUG_ON(need > CHUNK_LARGE_ROOM);
	if (queue_held_bytes(q) + need > q->limit_bytes)
		return QUEUE_FULL;
	if (q->tail == NULL || q->tail->room - chunk_used(q, q->tail) < need) {
		if (!add_chunk(q, need))
			return QUEUE_NO_MEMORY;
	}
	set_limit(q);
	q->limit = MAX(q->limit, q->end + need);
	return QUEUE_ROOM;
}

/* -- sending ------------------------------------------------------------------------------------------------------- */

unsigned queue_unsent(const struct queue *q, struct iovec *iov, unsigned max, size_t max_bytes)
{
	unsigned n = 0;
	uint32_t off = q->send_off;
	for (struct chunk *c = q->send; c != NULL && n < max && max_bytes > 0; c = c->next) {
		size_t bytes = MIN(chunk_used(q, c) - off, max_bytes);
		if (bytes > 0)
			iov[n++] = (struct iovec){.iov_base = c->bytes + off, .iov_len = bytes};
		max_bytes -= bytes;
		off = c->next != NULL ? c->next->begin : 0;
	}
	return n;
}

static void next_to_send(struct queue *q)
{
	q->send = q->send->next;
	q->send_off = q->send->begin;
	q->send_lines = 0;
}

void queue_sent(struct queue *q, uint64_t n)
{
	BUG_ON(n > queue_unsent_bytes(q));
	q->gone_bytes += n;
	while (n > 0) {
		struct chunk *c = q->send;
		uint32_t rest = chunk_used(q, c) - q->send_off;
		if (rest == 0) {
			next_to_send(q);
			continue;
		}
		if (n >= rest) {
			q->gone_lines += chunk_lines(q, c) - q->send_lines;
			q->send_lines = chunk_lines(q, c);
			q->send_off += rest;
			n -= rest;
			continue;
		}
		uint32_t part = (uint32_t)n, begun = count_newlines(c->bytes + q->send_off, part);
		begun += is_mid_line(c, q->send_off + part);
		begun -= is_mid_line(c, q->send_off);
		q->gone_lines += begun;
		q->send_lines += begun;
		q->send_off += part;
		n = 0;
	}
	set_limit(q);
}

/* -- acknowledgements ---------------------------------------------------------------------------------------------- */

static void head_done(struct queue *q)
{
	struct chunk *c = q->head;
	q->done_lines += c->lines - q->ack_lines;
	q->done_bytes += c->used - q->line_off;
	chunk_drop(q, c);
	q->ack_off = q->line_off = q->head->begin;
	q->ack_lines = 0;
}

/* Within the head chunk. Reaching exactly what was sent, the usual case, counts nothing. */
static void head_acked(struct queue *q, uint32_t part)
{
	struct chunk *c = q->head;
	uint32_t off = q->ack_off + part, lines, line_off = off;
	if (is_mid_line(c, off)) {
		const char *newline = memrchr(c->bytes + q->line_off, '\n', off - q->line_off);
		line_off = newline != NULL ? (uint32_t)(newline + 1 - c->bytes) : q->line_off;
	}
	if (c == q->send && off == q->send_off)
		lines = q->send_lines - (line_off != off) - q->ack_lines;
	else
		lines = count_newlines(c->bytes + q->ack_off, part);
	q->done_bytes += line_off - q->line_off;
	q->done_lines += lines;
	q->ack_lines += lines;
	q->line_off = line_off;
	q->ack_off = off;
}

void queue_acked(struct queue *q, uint64_t n)
{
	while (n > 0) {
		struct chunk *c = q->head;
		uint32_t rest = (c == q->send ? q->send_off : c->used) - q->ack_off;
		if (c != q->send && n >= rest) {
			head_done(q);
			n -= rest;
			continue;
		}
		BUG_ON(n > rest);
		head_acked(q, (uint32_t)n);
		n = 0;
	}
	/* chunks of which nothing is left to send or to wait for */
	while (q->head != NULL && q->ack_off == chunk_used(q, q->head)) {
		if (q->head == q->tail) {
			become_empty(q);
			break;
		}
		if (q->head == q->send)
			next_to_send(q);
		head_done(q);
	}
	set_limit(q);
}

uint64_t queue_rewind(struct queue *q)
{
	uint64_t again = queue_flight_lines(q);
	q->send = q->head;
	q->send_off = q->ack_off = q->line_off;
	q->send_lines = q->ack_lines;
	q->gone_bytes = q->done_bytes;
	q->gone_lines = q->done_lines;
	set_limit(q);
	return again;
}

/* -- dropping ------------------------------------------------------------------------------------------------------ */

/* Whole lines from `off` on, at least `bytes` or all of the chunk; *lines says how many. */
static uint32_t measure_lines(const struct queue *q, const struct chunk *c, uint32_t off, uint64_t bytes,
			      uint32_t *lines)
{
	uint32_t used = chunk_used(q, c), at = off;
	for (*lines = 0; at < used && at - off < bytes; ++*lines) {
		const char *newline = memchr(c->bytes + at, '\n', used - at);
		BUG_ON(newline == NULL);
		at = (uint32_t)(newline + 1 - c->bytes);
	}
	return at - off;
}

static void count_dropped(struct queue *q, uint32_t bytes, uint32_t lines)
{
	q->gone_bytes += bytes;
	q->done_bytes += bytes;
	q->gone_lines += lines;
	q->done_lines += lines;
}

/* Nothing of this chunk was sent, and it is not the head: its first lines go. */
static uint64_t drop_front(struct queue *q, struct chunk *c, uint64_t *bytes)
{
	uint32_t lines, n = measure_lines(q, c, c->begin, *bytes, &lines);
	*bytes -= MIN(*bytes, n);
	count_dropped(q, n, lines);
	c->begin += n;
	if (c == q->send)
		q->send_off = c->begin;
	if (c == q->tail)
		q->tail_lines += lines;
	else
		c->lines -= lines;
	if (c != q->tail && c->begin == c->used && c != q->send)
		chunk_drop(q, c);
	return lines;
}

/* The chunk's lines behind `off` go, all of them: a hole in the middle would need a second list of positions. */
static uint64_t drop_back(struct queue *q, struct chunk *c, uint32_t off, uint64_t *bytes)
{
	uint32_t n = chunk_used(q, c) - off, lines = chunk_lines(q, c) - q->send_lines;
	*bytes -= MIN(*bytes, n);
	count_dropped(q, n, lines);
	if (c == q->tail) {
		q->end = c->bytes + off;
		q->tail_bytes += n;
		q->tail_lines += lines;
	} else {
		c->used = off;
		c->lines = q->send_lines;
	}
	return lines;
}

/* In the chunk that is being sent, where some of it may be in flight. */
static uint64_t drop_in_send(struct queue *q, uint64_t *bytes)
{
	struct chunk *c = q->send;
	uint32_t off = q->send_off;
	if (q->gone_bytes == q->done_bytes && !is_mid_line(c, off)) {
		/* nothing in flight: as if sent and acknowledged, which also frees the chunk */
		uint32_t lines, n = measure_lines(q, c, off, *bytes, &lines);
		*bytes -= MIN(*bytes, n);
		queue_sent(q, n);
		queue_acked(q, n);
		return lines;
	}
	if (off == c->begin)
		return drop_front(q, c, bytes);
	if (is_mid_line(c, off)) {
		const char *newline = memchr(c->bytes + off, '\n', chunk_used(q, c) - off);
		BUG_ON(newline == NULL);
		off = (uint32_t)(newline + 1 - c->bytes);
	}
	return drop_back(q, c, off, bytes);
}

uint64_t queue_drop_oldest(struct queue *q, uint64_t bytes)
{
	uint64_t dropped = 0, lines;
	while (bytes > 0 && queue_unsent_lines(q) > 0) {
		while (q->send->next != NULL && q->send_off == q->send->used)
			next_to_send(q);
		lines = drop_in_send(q, &bytes);
		/* Only the rest of a partly sent line is left of it: go on behind. */
		if (lines == 0)
			lines = drop_front(q, q->send->next, &bytes);
		dropped += lines;
	}
	set_limit(q);
	return dropped;
}
