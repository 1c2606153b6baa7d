/* SPDX-License-Identifier: MIT
 *
 * life: what a slot's past says about its next step. Pure: no clock, no process.
 *
 *              start                ready
 *   VACANT ───────────▶ STARTING ───────────▶ READY ─────drain────▶ DRAINING
 *     ▲  ▲                  │                   │                       │
 *     │  └────── died ──────┴────── died ───────┘                       │ left
 *     │                                                                 ▼
 *   first at once, then 100 ms doubled to 30 s;              FAILED   (gone), or VACANT for a successor, or REMOVED
 *   60 s of health forget the past                  left with "do not start me again"
 */
#ifndef MASTER_LIFE_H
#define MASTER_LIFE_H

#include <base.h>

enum life_state { LIFE_VACANT, LIFE_STARTING, LIFE_READY, LIFE_DRAINING, LIFE_FAILED, LIFE_REMOVED };

struct life {
	enum life_state state;
	uint64_t since_us;        /* the state began */
	uint64_t start_at_us;     /* VACANT: the next tenant starts then */
	uint64_t kill_at_us;      /* DRAINING, to make place for a successor: it has had its time then */
	uint64_t vacant_since_us; /* nobody has been READY since */
	unsigned deaths;          /* without 60 s of health between them */
};

void life_init(struct life *l, uint64_t now_us);
void life_started(struct life *l, uint64_t now_us);
void life_ready(struct life *l, uint64_t now_us);
/* It was asked to make place for a successor, or for nobody, until kill_at_us. */
void life_leaving(struct life *l, uint64_t now_us, uint64_t kill_at_us);
/* It has done so. */
void life_left(struct life *l, uint64_t now_us, bool is_removed);
/* `for_good`: it said that it cannot work here. */
void life_died(struct life *l, uint64_t now_us, bool for_good);

enum life_action { LIFE_WAIT, LIFE_START, LIFE_KILL };
/* What is to be done now; *again_us: when to ask again (UINT64_MAX: when something happens). */
enum life_action life_next(const struct life *l, uint64_t now_us, uint64_t start_timeout_us, uint64_t *again_us);
/* Its sockets should be lent to a sibling; *again_us as above. */
bool life_should_lend(const struct life *l, uint64_t now_us, uint64_t *again_us);

#endif
