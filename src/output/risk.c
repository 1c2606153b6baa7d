/* SPDX-License-Identifier: MIT
 *
 * risk: see risk.h. Few checkpoints in fixed memory: they stand at least 1/8 of the span apart, and when the span grows
 * and they are too dense to cover it, every second one goes.
 */
#include "risk.h"

#include <string.h>

void risk_init(struct risk *k)
{
	*k = (struct risk){0};
}

static uint64_t span(const struct risk *k)
{
	return k->window_bytes * RISK_WINDOWS;
}

/* The start of what is at risk: bytes on the connection. */
static uint64_t edge(const struct risk *k)
{
	return k->bytes > span(k) ? k->bytes - span(k) : 0;
}

static void make_place(struct risk *k)
{
	/* The oldest is not needed while the next one lies before the edge too. */
	unsigned old = 0;
	while (old + 1 < k->n && k->at[old + 1].bytes <= edge(k))
		old++;
	if (old > 0) {
		k->n -= old;
		memmove(k->at, k->at + old, k->n * sizeof(*k->at));
		return;
	}
	if (k->n < RISK_CHECKPOINTS)
		return;
	/* at[0] stays, it is the only one that may lie before the edge */
	for (unsigned i = 1; i < RISK_CHECKPOINTS / 2; i++)
		k->at[i] = k->at[2 * i];
	k->n = RISK_CHECKPOINTS / 2;
}

void risk_acked(struct risk *k, uint64_t bytes, uint64_t lines, uint64_t window_bytes)
{
	uint64_t last_bytes = k->n > 0 ? k->at[k->n - 1].bytes : 0;
	k->window_bytes = MAX(k->window_bytes, window_bytes);
	k->bytes += bytes;
	k->lines += lines;
	if (bytes == 0 || k->bytes - last_bytes < span(k) / 8)
		return;
	make_place(k);
	k->at[k->n++] = (struct risk_checkpoint){.bytes = k->bytes, .lines = k->lines};
}

uint64_t risk_lines(const struct risk *k)
{
	uint64_t before = 0;
	for (unsigned i = 0; i < k->n && k->at[i].bytes <= edge(k); i++)
		before = k->at[i].lines;
	return k->lines - before;
}
