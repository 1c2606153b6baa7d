/* SPDX-License-Identifier: MIT
 *
 * coalesce: how long a source may rest before it is read again. Pure. As network cards coalesce interrupts, so we let
 * datagrams gather when there are many: measured at 50,000 one-line datagrams a second, a line costs 2,545 ns of CPU
 * when each wake-up reads at once, and 1,016 when datagrams gather for 1 ms. When hardly any come nobody would save, and
 * each is read at once. The wait is within the latency that the user allows, and never so long that the socket's buffer
 * could fill.
 */
#include <batch.h>
#include <coalesce.h>

enum {
	WINDOW_US = 20000,
	/* Dense: of so many datagrams or bytes a second, over all workers, one wake-up for several saves CPU. A large
	 * datagram counts by its bytes, since its lines go to all backends, with a send for each. */
	DENSE_PER_S = 2000,
	DENSE_BYTES_PER_S = 4000000,
	/* What the kernel charges to the buffer for a datagram beside its bytes: 8,900 bytes take 8,322 of a 32 MiB
	 * buffer (4,032 fit), a short one 768; this is more than either. */
	OVERHEAD_BYTES = 1280,
	/* The part of the buffer that may fill in the meantime at the present rate; and it has room for what may come
	 * all at once, of which one worker reads about as much. */
	BUFFER_PART = 4,
	BURST_BYTES_PER_S = 256 * 1000 * 1000,
	/* A drain that found more than this was worth its wake-up: the next one need not wait. */
	FEW = 4 * BATCH_ITEMS,
	/* A wait is as long as so many take to come, not under 1 ms: workers that share the traffic wait longer, so that
	 * they do not wake more often than one would. */
	GATHER = 50,
	GATHER_US = 1000,
};

static void window_end(struct coalesce *c, uint64_t now_us)
{
	uint64_t elapsed_us = now_us - c->window_us;
	c->per_s = c->found * 1000000 / elapsed_us;
	c->bytes_per_s = c->bytes * 1000000 / elapsed_us;
	c->dense = c->per_s * c->n_workers >= DENSE_PER_S || c->bytes_per_s * c->n_workers >= DENSE_BYTES_PER_S;
	c->found = c->bytes = 0;
	c->window_us = now_us;
}

static uint64_t gather_us(const struct coalesce *c)
{
	uint64_t all_us = UINT64_C(1000000) * GATHER / MAX(c->per_s, 1);
	return MIN(MAX(all_us, (uint64_t)GATHER_US), c->latency_us);
}

static uint64_t buffer_lasts_us(const struct coalesce *c)
{
	uint64_t fill_per_s = c->bytes_per_s + c->per_s * OVERHEAD_BYTES;
	if (c->receive_buffer_bytes == 0)
		return UINT64_MAX;
	return c->receive_buffer_bytes * 1000000 / MAX(fill_per_s * BUFFER_PART, (uint64_t)BURST_BYTES_PER_S);
}

uint64_t coalesce_wait_us(struct coalesce *c, uint64_t now_us, uint64_t found, uint64_t bytes)
{
	c->found += found;
	c->bytes += bytes;
	if (now_us - c->window_us >= WINDOW_US)
		window_end(c, now_us);
	c->wait_us = c->dense && found <= FEW ? MIN(gather_us(c), buffer_lasts_us(c)) : 0;
	return c->wait_us;
}

uint64_t coalesce_hold_us(const struct coalesce *c)
{
	return c->latency_us > 2 * c->wait_us ? c->latency_us - 2 * c->wait_us : 0;
}

uint64_t coalesce_poll_us(uint64_t last_us, uint64_t found)
{
	if (found > 0)
		return 0;
	if (last_us < POLL_SOON_US)
		return last_us == 0 ? POLL_FIRST_US : MIN(last_us * 2, (uint64_t)POLL_SOON_US);
	return MIN(last_us + last_us / 64 + 1, (uint64_t)POLL_LAST_US);
}
