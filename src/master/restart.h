/* SPDX-License-Identifier: MIT
 *
 * restart: the restart policy: what the past of a place for a worker or the monitor says about its next step. Pure: no
 * clock, no process.
 *
 *              start                ready
 *   VACANT ───────────▶ STARTING ───────────▶ READY ─────drain────▶ DRAINING
 *     ▲  ▲                  │                   │                       │
 *     │  └────── died ──────┴────── died ───────┘                       │ left
 *     │                                                                 ▼
 *   first at once, then 100 ms doubled to 30 s;              FAILED   (gone), or REMOVED
 *   60 s of health forget the past                  left with "do not start me again"
 */
#ifndef MASTER_RESTART_H
#define MASTER_RESTART_H

#include <base.h>

enum restart_state { RESTART_VACANT, RESTART_STARTING, RESTART_READY, RESTART_DRAINING, RESTART_FAILED, RESTART_REMOVED };

struct restart {
	enum restart_state state;
	uint64_t since_us;        /* the state began */
	uint64_t start_at_us;     /* VACANT: the next process starts then */
	uint64_t vacant_since_us; /* nobody has been READY since */
	unsigned deaths;          /* without 60 s of health between them */
};

void restart_init(struct restart *r, uint64_t now_us);
void restart_started(struct restart *r, uint64_t now_us);
void restart_ready(struct restart *r, uint64_t now_us);
/* The place ends: its process was asked to leave. */
void restart_leaving(struct restart *r, uint64_t now_us);
/* It has left, and nobody follows. */
void restart_left(struct restart *r, uint64_t now_us);
/* `for_good`: it said that it cannot work here. */
void restart_died(struct restart *r, uint64_t now_us, bool for_good);

enum restart_action { RESTART_WAIT, RESTART_START, RESTART_KILL };
/* What is to be done now; *again_us: when to ask again (UINT64_MAX: when something happens). */
enum restart_action restart_next(const struct restart *r, uint64_t now_us, uint64_t start_timeout_us, uint64_t *again_us);
/* Its sockets should be lent to a sibling; *again_us as above. */
bool restart_should_lend(const struct restart *r, uint64_t now_us, uint64_t *again_us);

#endif
