/* SPDX-License-Identifier: MIT
 *
 * queue: see queue.h. Pure but for the chunks that it takes from the pool; knows nothing of sockets. Everything here is
 * per send or per acknowledgement; what is per line is inline in the header. The bytes of a chunk may be in the hands of
 * another process, too: where newlines are looked for, what is found never leads beyond what the chunk says.
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

/* Counted as done; no chunk is left. */
static void set_empty(struct queue *q, uint64_t put)
{
	q->is_wide = put - q->empty_bytes > CHUNK_SMALL_ROOM;
	q->head = q->send = q->tail = NULL;
	q->tail_bytes = q->gone_bytes = q->done_bytes = q->empty_bytes = put;
	q->tail_lines = q->gone_lines = q->done_lines = q->put_lines;
	q->ack_off = q->ack_lines = q->line_off = q->send_off = q->send_lines = 0;
}

/* All of it is done: no chunk is held any more. */
static void become_empty(struct queue *q)
{
	uint64_t put = queue_put_bytes(q);
	while (q->head != NULL)
		chunk_drop(q, q->head);
	set_empty(q, put);
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

bool queue_put_beyond(struct queue *q, const char *from, uint32_t len)
{
	uint64_t limit_bytes = q->limit_bytes;
	q->limit_bytes = UINT64_MAX / 2;
	bool fits = queue_reserve(q, len) == QUEUE_ROOM && queue_put(q, from, len);
	queue_set_limit(q, limit_bytes);
	return fits;
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
		begun = MIN(begun, chunk_lines(q, c) - q->send_lines);
		q->gone_lines += begun;
		q->send_lines += begun;
		q->send_off += part;
		n = 0;
	}
	set_limit(q);
}

uint64_t queue_begun_bytes(const struct queue *q)
{
	const struct chunk *c = q->send;
	if (c == NULL || !is_mid_line(c, q->send_off))
		return 0;
	const char *from = c->bytes + q->send_off, *newline = memchr(from, '\n', chunk_used(q, c) - q->send_off);
	return newline != NULL ? (uint64_t)(newline + 1 - from) : chunk_used(q, c) - q->send_off;
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
	uint32_t most = (c == q->send ? q->send_lines : c->lines) - q->ack_lines;
	if (is_mid_line(c, off)) {
		const char *newline = memrchr(c->bytes + q->line_off, '\n', off - q->line_off);
		line_off = newline != NULL ? (uint32_t)(newline + 1 - c->bytes) : q->line_off;
	}
	if (c == q->send && off == q->send_off)
		lines = q->send_lines - (line_off != off) - q->ack_lines;
	else
		lines = count_newlines(c->bytes + q->ack_off, part);
	lines = MIN(lines, most);
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

/* Whole lines from `off` on, at least `bytes` or all of the chunk; *lines says how many, at most `most`, which is what the
 * chunk has there. */
static uint32_t measure_lines(const struct queue *q, const struct chunk *c, uint32_t off, uint64_t bytes, uint32_t most,
			      uint32_t *lines)
{
	uint32_t used = chunk_used(q, c), at = off;
	for (*lines = 0; at < used && at - off < bytes; ++*lines) {
		const char *newline = memchr(c->bytes + at, '\n', used - at);
		at = newline != NULL ? (uint32_t)(newline + 1 - c->bytes) : used;
	}
	if (at == used || *lines > most)
		*lines = most;
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
	uint32_t lines, n = measure_lines(q, c, c->begin, *bytes, chunk_lines(q, c), &lines);
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
		uint64_t gone_lines = q->gone_lines;
		uint32_t lines, n = measure_lines(q, c, off, *bytes, chunk_lines(q, c) - q->send_lines, &lines);
		*bytes -= MIN(*bytes, n);
		queue_sent(q, n);
		queue_acked(q, n);
		return q->gone_lines - gone_lines;
	}
	if (off == c->begin)
		return drop_front(q, c, bytes);
	if (is_mid_line(c, off)) {
		const char *newline = memchr(c->bytes + off, '\n', chunk_used(q, c) - off);
		off = newline != NULL ? (uint32_t)(newline + 1 - c->bytes) : chunk_used(q, c);
	}
	return drop_back(q, c, off, bytes);
}

uint64_t queue_drop_oldest(struct queue *q, uint64_t bytes)
{
	uint64_t dropped = 0, lines;
	while (bytes > 0 && queue_unsent_lines(q) > 0) {
		while (q->send->next != NULL && q->send_off == q->send->used)
			next_to_send(q);
		uint32_t n_chunks = q->n_chunks;
		lines = drop_in_send(q, &bytes);
		/* Only the rest of a partly sent line is left of it: go on behind. */
		if (lines == 0 && q->send != NULL && q->send->next != NULL)
			lines = drop_front(q, q->send->next, &bytes);
		if (lines == 0 && q->n_chunks == n_chunks)
			break;
		dropped += lines;
	}
	set_limit(q);
	return dropped;
}

/* -- from worker to worker ------------------------------------------------------------------------------------------ */

void queue_part_add(struct queue_part *part, struct chunk *c)
{
	c->next = NULL;
	c->prev = part->tail;
	if (part->tail != NULL)
		part->tail->next = c;
	else
		part->head = c;
	part->tail = c;
	part->n_chunks++;
}

static bool chunk_is_sane(const struct chunk *c)
{
	return c->begin <= c->used && c->used <= c->room && c->lines <= c->used - c->begin &&
	       (c->lines > 0) == (c->used > c->begin);
}

bool queue_part_check(struct queue_part *part)
{
	struct chunk *head = part->head, *send = part->send;
	if (head == NULL || send == NULL)
		return head == send && part->ack_off + part->line_off + part->send_off == 0;
	bool has_met = false; /* `send`: chunks before it are in flight */
	for (struct chunk *c = head; c != NULL; c = c->next) {
		if (!chunk_is_sane(c))
			return false;
		has_met |= c == send;
		part->held_bytes += c->used - c->begin;
		part->held_lines += c->lines;
		part->flight_bytes += has_met ? 0 : c->used - c->begin;
		part->flight_lines += has_met ? 0 : c->lines;
	}
	bool acks = head->begin <= part->line_off && part->line_off <= part->ack_off && part->ack_off <= head->used &&
		    part->ack_lines <= head->lines && part->ack_lines <= part->line_off - head->begin;
	bool sends = send->begin <= part->send_off && part->send_off <= send->used && part->send_lines <= send->lines &&
		     part->send_lines <= part->send_off - send->begin &&
		     (part->send_off < send->used || part->send_lines == send->lines);
	bool order = head != send || (part->ack_off <= part->send_off && part->ack_lines <= part->send_lines);
	if (!has_met || !acks || !sends || !order)
		return false;
	part->held_bytes -= part->line_off - head->begin;
	part->held_lines -= part->ack_lines;
	part->flight_bytes += part->send_off - send->begin;
	part->flight_bytes -= part->line_off - head->begin;
	part->flight_lines += part->send_lines;
	part->flight_lines -= part->ack_lines;
	return part->held_bytes > 0 && part->flight_lines <= part->flight_bytes;
}

bool queue_part_is_mid_line(const struct queue_part *part)
{
	return part->send != NULL && is_mid_line(part->send, part->send_off);
}

/* Lines that were dropped at the front of its first chunk, before anything was sent. */
static void forget_dropped(struct queue *q)
{
	q->head->begin = q->line_off;
	if (q->head == q->tail)
		q->tail_lines += q->ack_lines;
	else
		q->head->lines -= q->ack_lines;
}

void queue_prepend(struct queue *q, const struct queue_part *part)
{
	BUG_ON(q->gone_bytes != q->done_bytes);
	if (part->head == NULL)
		return;
	uint64_t put = queue_put_bytes(q) + part->held_bytes;
	q->put_lines += part->held_lines;
	if (q->tail == NULL) {
		q->tail = part->tail;
		q->end = part->tail->bytes + part->tail->used;
		q->tail_bytes = put - part->tail->used;
		q->tail_lines = q->put_lines - part->tail->lines;
	} else {
		forget_dropped(q);
		part->tail->next = q->head;
		q->head->prev = part->tail;
		q->tail_bytes += part->held_bytes;
		q->tail_lines += part->held_lines;
	}
	q->head = part->head;
	q->send = part->send;
	q->n_chunks += part->n_chunks;
	q->is_wide = q->n_chunks > 1;
	q->ack_off = part->ack_off;
	q->ack_lines = part->ack_lines;
	q->line_off = part->line_off;
	q->send_off = part->send_off;
	q->send_lines = part->send_lines;
	q->gone_bytes += part->flight_bytes;
	q->gone_lines += part->flight_lines;
	set_limit(q);
}

void queue_part_of(struct queue *q, struct queue_part *part)
{
	*part = (struct queue_part){.head = q->head,
				    .send = q->send,
				    .tail = q->tail,
				    .n_chunks = q->n_chunks,
				    .ack_off = q->ack_off,
				    .ack_lines = q->ack_lines,
				    .line_off = q->line_off,
				    .send_off = q->send_off,
				    .send_lines = q->send_lines,
				    .held_bytes = queue_held_bytes(q),
				    .held_lines = queue_unsent_lines(q) + queue_flight_lines(q),
				    .flight_bytes = q->gone_bytes - q->done_bytes,
				    .flight_lines = queue_flight_lines(q)};
	if (q->tail != NULL) {
		q->tail->used = chunk_used(q, q->tail);
		q->tail->lines = chunk_lines(q, q->tail);
	}
}

void queue_forget(struct queue *q)
{
	uint64_t put = queue_put_bytes(q);
	for (struct chunk *c = q->head, *next; c != NULL; c = next) {
		next = c->next;
		pool_forget(q->pool, c);
	}
	q->n_chunks = 0;
	set_empty(q, put);
	set_limit(q);
}

void queue_part_clear(struct queue_part *part, struct pool *pool)
{
	for (struct chunk *c = part->head, *next; c != NULL; c = next) {
		next = c->next;
		pool_give(pool, c);
	}
	*part = (struct queue_part){0};
}
