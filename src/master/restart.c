/* SPDX-License-Identifier: MIT
 *
 * restart: see restart.h.
 */
#include "restart.h"

static const uint64_t back_off_first_us = 100 * 1000;
static const uint64_t back_off_last_us = 30 * 1000 * 1000;
static const uint64_t healthy_us = 60 * 1000 * 1000;
/* 32 MiB hold 4,032 datagrams of 8,900 bytes (measured): at 84,000 a second and four workers a fifth of a second. */
static const uint64_t lend_after_us = 200 * 1000;

static void enter(struct restart *r, enum restart_state state, uint64_t now_us)
{
	r->state = state;
	r->since_us = now_us;
}

void restart_init(struct restart *r, uint64_t now_us)
{
	*r = (struct restart){.vacant_since_us = now_us};
	enter(r, RESTART_VACANT, now_us);
}

void restart_started(struct restart *r, uint64_t now_us)
{
	if (r->state == RESTART_READY) /* its successor, which is not ready yet */
		r->vacant_since_us = now_us;
	enter(r, RESTART_STARTING, now_us);
}

void restart_ready(struct restart *r, uint64_t now_us)
{
	enter(r, RESTART_READY, now_us);
}

void restart_leaving(struct restart *r, uint64_t now_us)
{
	enter(r, RESTART_DRAINING, now_us);
}

void restart_left(struct restart *r, uint64_t now_us)
{
	enter(r, RESTART_REMOVED, now_us);
}

static uint64_t back_off_us(unsigned deaths)
{
	if (deaths == 0)
		return 0;
	uint64_t wait_us = back_off_first_us;
	for (unsigned i = 1; i < deaths && wait_us < back_off_last_us; i++)
		wait_us *= 2;
	return MIN(wait_us, back_off_last_us);
}

void restart_died(struct restart *r, uint64_t now_us, bool for_good)
{
	if (r->state == RESTART_READY && now_us - r->since_us >= healthy_us)
		r->deaths = 0;
	if (r->state != RESTART_STARTING && r->state != RESTART_DRAINING)
		r->vacant_since_us = now_us;
	r->start_at_us = now_us + back_off_us(r->deaths);
	r->deaths++;
	enter(r, for_good ? RESTART_FAILED : RESTART_VACANT, now_us);
}

enum restart_action restart_next(const struct restart *r, uint64_t now_us, uint64_t start_timeout_us, uint64_t *again_us)
{
	*again_us = UINT64_MAX;
	if (r->state == RESTART_VACANT) {
		if (now_us >= r->start_at_us)
			return RESTART_START;
		*again_us = r->start_at_us;
	}
	if (r->state == RESTART_STARTING) {
		uint64_t late_us = r->since_us + start_timeout_us;
		if (now_us >= late_us)
			return RESTART_KILL;
		*again_us = late_us;
	}
	return RESTART_WAIT;
}

bool restart_should_lend(const struct restart *r, uint64_t now_us, uint64_t *again_us)
{
	*again_us = UINT64_MAX;
	if (r->state == RESTART_FAILED)
		return true;
	if (r->state != RESTART_VACANT && r->state != RESTART_STARTING)
		return false;
	/* a slot that keeps dying while it starts has no process either: count from the death */
	uint64_t due_us = r->vacant_since_us + lend_after_us;
	if (now_us >= due_us)
		return true;
	*again_us = due_us;
	return false;
}
