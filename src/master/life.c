/* SPDX-License-Identifier: MIT
 *
 * life: see life.h.
 */
#include "life.h"

static const uint64_t back_off_first_us = 100 * 1000;
static const uint64_t back_off_last_us = 30 * 1000 * 1000;
static const uint64_t healthy_us = 60 * 1000 * 1000;
/* 32 MiB hold 4,032 datagrams of 8,900 bytes (measured): at 84,000 a second and four workers a fifth of a second. */
static const uint64_t lend_after_us = 200 * 1000;

static void enter(struct life *l, enum life_state state, uint64_t now_us)
{
	l->state = state;
	l->since_us = now_us;
}

void life_init(struct life *l, uint64_t now_us)
{
	*l = (struct life){.vacant_since_us = now_us};
	enter(l, LIFE_VACANT, now_us);
}

void life_started(struct life *l, uint64_t now_us)
{
	enter(l, LIFE_STARTING, now_us);
}

void life_ready(struct life *l, uint64_t now_us)
{
	enter(l, LIFE_READY, now_us);
}

void life_leaving(struct life *l, uint64_t now_us, uint64_t kill_at_us)
{
	l->kill_at_us = kill_at_us;
	l->vacant_since_us = now_us;
	enter(l, LIFE_DRAINING, now_us);
}

void life_left(struct life *l, uint64_t now_us, bool is_removed)
{
	l->start_at_us = now_us;
	l->deaths = 0;
	enter(l, is_removed ? LIFE_REMOVED : LIFE_VACANT, now_us);
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

void life_died(struct life *l, uint64_t now_us, bool for_good)
{
	if (l->state == LIFE_READY && now_us - l->since_us >= healthy_us)
		l->deaths = 0;
	if (l->state != LIFE_STARTING && l->state != LIFE_DRAINING)
		l->vacant_since_us = now_us;
	l->start_at_us = now_us + back_off_us(l->deaths);
	l->deaths++;
	enter(l, for_good ? LIFE_FAILED : LIFE_VACANT, now_us);
}

enum life_action life_next(const struct life *l, uint64_t now_us, uint64_t start_timeout_us, uint64_t *again_us)
{
	*again_us = UINT64_MAX;
	if (l->state == LIFE_VACANT) {
		if (now_us >= l->start_at_us)
			return LIFE_START;
		*again_us = l->start_at_us;
	}
	if (l->state == LIFE_STARTING) {
		uint64_t late_us = l->since_us + start_timeout_us;
		if (now_us >= late_us)
			return LIFE_KILL;
		*again_us = late_us;
	}
	if (l->state == LIFE_DRAINING && l->kill_at_us) {
		if (now_us >= l->kill_at_us)
			return LIFE_KILL;
		*again_us = l->kill_at_us;
	}
	return LIFE_WAIT;
}

bool life_should_lend(const struct life *l, uint64_t now_us, uint64_t *again_us)
{
	*again_us = UINT64_MAX;
	if (l->state == LIFE_FAILED)
		return true;
	bool makes_place = l->state == LIFE_DRAINING && l->kill_at_us;
	if (l->state != LIFE_VACANT && l->state != LIFE_STARTING && !makes_place)
		return false;
	/* a slot that keeps dying while it starts has no tenant either: count from the death */
	uint64_t due_us = l->vacant_since_us + lend_after_us;
	if (now_us >= due_us)
		return true;
	*again_us = due_us;
	return false;
}
