/* SPDX-License-Identifier: MIT
 *
 * queue: what one worker holds for one backend: whole lines, each with its newline, in chunks of a pool. Pure: no
 * system call, no clock. Lines never straddle chunks; an empty queue holds no chunk.
 *
 *    head chunk                      send chunk                      tail chunk
 *   +------------------------+      +------------------------+      +------------------------+
 *   | done |  in flight      | ---> | in flight |  unsent    | ---> |  unsent      |  free   |
 *   +------------------------+      +------------------------+      +------------------------+
 *          ^ack_off                             ^send_off                         ^end
 *       ^line_off (start of the first line not wholly acknowledged)
 *
 *   done <= gone <= put, in bytes and lines. "gone": sent (a line as soon as its first byte is) or dropped; "done":
 *   delivered (a line when its newline is acknowledged) or dropped. So: unsent = put - gone, in flight = gone - done.
 *
 * Whole chunks know their lines; in a chunk that is sent or acknowledged in part, newlines are counted.
 */
#ifndef OUTPUT_QUEUE_H
#define OUTPUT_QUEUE_H

#include <string.h>
#include <sys/uio.h>

#include "pool.h"

struct queue {
	/* what every line needs: half a cache line */
	char *end;   /* where the next line goes */
	char *limit; /* a line that would end behind this goes the slow way: queue_reserve */
	uint64_t put_lines;
	bool is_marked; /* the owner's: it has this queue on a list of changed ones */
	bool is_wide;   /* filled a small chunk before: starts with a large one */
	uint32_t n_chunks;

	struct chunk *head, *send, *tail;
	uint32_t ack_off, ack_lines; /* in head: bytes acknowledged, lines of it done */
	uint32_t line_off;
	uint32_t send_off, send_lines; /* in send: bytes sent, lines of it begun */
	uint64_t gone_bytes, gone_lines;
	uint64_t done_bytes, done_lines;
	uint64_t tail_bytes, tail_lines; /* put when the tail's first byte came */
	uint64_t empty_bytes;            /* put when it was last empty */
	uint64_t limit_bytes;            /* most that it may hold */
	uint64_t watermark_bytes;        /* unsent bytes from which on a line goes the slow way; UINT64_MAX: never */
	struct pool *pool;
};

void queue_init(struct queue *q, struct pool *pool, uint64_t limit_bytes);
/* Drops all, gives every chunk back. Counted as gone and done. */
void queue_clear(struct queue *q);

static inline uint64_t queue_put_bytes(const struct queue *q)
{
	return q->tail != NULL ? q->tail_bytes + (uint64_t)(q->end - q->tail->bytes) : q->tail_bytes;
}
static inline uint64_t queue_unsent_bytes(const struct queue *q)
{
	return queue_put_bytes(q) - q->gone_bytes;
}
static inline uint64_t queue_held_bytes(const struct queue *q)
{
	return queue_put_bytes(q) - q->done_bytes;
}
static inline uint64_t queue_unsent_lines(const struct queue *q)
{
	return q->put_lines - q->gone_lines;
}
static inline uint64_t queue_flight_lines(const struct queue *q)
{
	return q->gone_lines - q->done_lines;
}

/* 64 bytes at a time, over the end: both sides have the slack, and a line of 28 bytes is copied without a branch that
 * depends on its length (measured in tests/bench/statsite_bench). */
static inline void queue_copy_line(char *to, const char *from, uint32_t len)
{
	memcpy(to, from, 64);
	for (uint32_t i = 64; UNLIKELY(i < len); i += 64)
		memcpy(to + i, from + i, 64);
	to[len] = '\n';
}

/* Appends a line; from[len] and 63 bytes behind it must be readable. False: does not fit, use queue_reserve. */
static inline bool queue_put(struct queue *q, const char *from, uint32_t len)
{
	if (UNLIKELY((size_t)(q->limit - q->end) <= len))
		return false;
	queue_copy_line(q->end, from, len);
	q->end += len + 1;
	q->put_lines++;
	return true;
}

/* Makes room for one line of `len` bytes, so that the next queue_put of it succeeds. Ignores the watermark. */
enum queue_room { QUEUE_ROOM, QUEUE_FULL, QUEUE_NO_MEMORY };
enum queue_room queue_reserve(struct queue *q, uint32_t len);

/* What it may hold from now on; what it holds already stays. */
void queue_set_limit(struct queue *q, uint64_t limit_bytes);
void queue_set_watermark(struct queue *q, uint64_t bytes);

/* Fills iov with unsent bytes, at most `max` pieces and `max_bytes`; returns how many pieces. */
unsigned queue_unsent(const struct queue *q, struct iovec *iov, unsigned max, size_t max_bytes);
/* The next n unsent bytes were sent; n <= queue_unsent_bytes. */
void queue_sent(struct queue *q, uint64_t n);
/* The next n sent bytes were acknowledged. Never more than were sent since the last queue_rewind. */
void queue_acked(struct queue *q, uint64_t n);
/* The connection is lost: the first line that was not wholly acknowledged is the next to be sent, from its start.
 * Returns how many lines had been begun and will be sent again. */
uint64_t queue_rewind(struct queue *q);
/* Drops the oldest lines of which nothing was sent, at least `bytes` of them or all; returns how many lines. Where a
 * chunk holds lines in flight too, its unsent ones go all at once. */
uint64_t queue_drop_oldest(struct queue *q, uint64_t bytes);

#endif
