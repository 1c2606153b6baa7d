/* SPDX-License-Identifier: MIT
 *
 * coalesce: how long a source may rest before it is read again. Pure. As network cards coalesce interrupts, so we let
 * datagrams gather when there are many: measured at 50,000 one-line datagrams a second, a line costs 2,545 ns of CPU
 * when each wake-up reads at once, and 1,016 when datagrams gather for 1 ms. At low rates nobody would save, and every
 * datagram is read when it comes. Never waits so long that the socket's buffer could fill.
 */
#include <batch.h>
#include <coalesce.h>

enum {
	WINDOW_US = 5000,
	/* Dense: so many datagrams come in 1 ms that one wake-up for all of them saves CPU; with hysteresis. */
	DENSE_ENTER_PER_MS = 6,
	DENSE_LEAVE_PER_MS = 3,
	/* What the kernel charges to the buffer for a datagram beside its bytes: 8,900 bytes take 8,322 of a 32 MiB
	 * buffer (4,032 fit), a short one 768; this is more than either. */
	OVERHEAD_BYTES = 1280,
	/* The part of the buffer that may fill in the meantime. */
	BUFFER_PART = 4,
	/* A drain that found more than this was worth its wake-up: the next one need not wait. */
	FEW = 4 * BATCH_ITEMS,
	/* A wait is as long as so many take to come, not under 1 ms: workers that share the traffic wait longer, so that
	 * they do not wake more often than one would. Measured at 50,000 a second: with 1 ms each, two workers cost 1.49
	 * times as much a line as one. */
	GATHER = 50,
	GATHER_US = 1000,
};

static void window_end(struct coalesce *c, uint64_t now_us)
{
	uint64_t elapsed_us = now_us - c->window_us;
	c->rate_per_ms = c->found * 1000 / elapsed_us;
	c->bytes_per_ms = c->bytes * 1000 / elapsed_us;
	c->dense = c->rate_per_ms >= (c->dense ? DENSE_LEAVE_PER_MS : DENSE_ENTER_PER_MS);
	c->found = c->bytes = 0;
	c->window_us = now_us;
}

static uint64_t gather_us(const struct coalesce *c, uint64_t max_us)
{
	return MIN(MAX(GATHER * 1000 / c->rate_per_ms, (uint64_t)GATHER_US), max_us);
}

uint64_t coalesce_wait_us(struct coalesce *c, const struct conf_input *cf, uint64_t receive_buffer_bytes,
			  uint64_t now_us, uint64_t found, uint64_t bytes)
{
	c->found += found;
	c->bytes += bytes;
	if (now_us - c->window_us >= WINDOW_US)
		window_end(c, now_us);
	uint64_t wait_us = cf->coalesce;
	if (wait_us == CONF_COALESCE_ADAPTIVE)
		wait_us = c->dense ? gather_us(c, cf->coalesce_max) : 0;
	else if (found == 0)
		wait_us = 0;
	if (found > FEW)
		wait_us = 0;
	uint64_t fill_per_ms = c->bytes_per_ms + c->rate_per_ms * OVERHEAD_BYTES;
	if (receive_buffer_bytes && fill_per_ms)
		wait_us = MIN(wait_us, receive_buffer_bytes / BUFFER_PART * 1000 / fill_per_ms);
	return wait_us;
}

uint64_t coalesce_poll_us(uint64_t last_us, uint64_t found)
{
	if (found > 0)
		return 0;
	if (last_us < POLL_SOON_US)
		return last_us == 0 ? POLL_FIRST_US : MIN(last_us * 2, (uint64_t)POLL_SOON_US);
	return MIN(last_us + last_us / 64 + 1, (uint64_t)POLL_LAST_US);
}
