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

/* A queue on its way from one worker to another: the chunks from what is not acknowledged on. What the chunks say of
 * themselves and these numbers may come from another process, and their bytes may still be changed by it. */
struct queue_part {
	struct chunk *head, *send, *tail;
	uint32_t n_chunks;
	uint32_t ack_off, ack_lines, line_off, send_off, send_lines; /* as in the queue */
	/* of queue_part_check: */
	uint64_t held_bytes, held_lines;     /* from line_off on */
	uint64_t flight_bytes, flight_lines; /* of these, what is gone */
};
/* `c` has begin, used and lines. */
void queue_part_add(struct queue_part *part, struct chunk *c);
/* Whether the numbers fit together, so that no later step can go wrong by them. Computes the rest. */
bool queue_part_check(struct queue_part *part);
/* The next byte to be sent is not the first of a line. */
bool queue_part_is_mid_line(const struct queue_part *part);
/* It becomes the front of a queue of which nothing was sent. put, gone and done go on from where they are. */
void queue_prepend(struct queue *q, const struct queue_part *part);
/* All that the queue holds, which keeps it until queue_forget. */
void queue_part_of(struct queue *q, struct queue_part *part);
/* What it holds is another worker's now. Counted as gone and done. */
void queue_forget(struct queue *q);
/* Gives all chunks back. */
void queue_part_clear(struct queue_part *part, struct pool *pool);

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
/* Appends a line beyond the queue's limit; false: there is no memory. */
bool queue_put_beyond(struct queue *q, const char *from, uint32_t len);

/* What it may hold from now on; what it holds already stays. */
void queue_set_limit(struct queue *q, uint64_t limit_bytes);
void queue_set_watermark(struct queue *q, uint64_t bytes);

/* Fills iov with unsent bytes, at most `max` pieces and `max_bytes`; returns how many pieces. */
unsigned queue_unsent(const struct queue *q, struct iovec *iov, unsigned max, size_t max_bytes);
/* What is missing of a line that was begun. */
uint64_t queue_begun_bytes(const struct queue *q);
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
