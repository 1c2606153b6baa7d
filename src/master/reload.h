/* SPDX-License-Identifier: MIT
 *
 * reload: what the files of a reload share.
 *
 *   reload.c        reads, compares, has it checked, answers
 *   reload_can.c    what a reload cannot do, in a sentence each
 *   reload_apply.c  the rolling of workers
 *
 *   read, parse ─▶ diff ─▶ CHECKING: a child asks the libraries and fills shard maps
 *                            │ AT_ONCE                             │ RESPAWN, REBIND: new endpoints are bound
 *                            ▼                                     ▼
 *                   done: only the master has it          ROLLING: new slots start; each worker makes place for its
 *                                                         successor; slots that are too many end; old endpoints close
 */
#ifndef MASTER_RELOAD_H
#define MASTER_RELOAD_H

#include "master.h"

enum reload_stage { RELOAD_CHECKING, RELOAD_ROLLING };

struct reload {
	struct master *m;
	uint64_t client; /* waits for the answer; 0: nobody */
	enum reload_stage stage;
	char *bytes;
	size_t len;
	struct conf *cf; /* NULL: it is in effect, or there is none */
	enum conf_reload class;
	struct conf_diff diff;
	struct generation next, gone;
	bool is_resume; /* of the workers that the program before had; there is no change */
	bool has_moved; /* ROLLING: `gone` is to be closed at the end */
	struct try check;
	char failure[300]; /* of a worker */
};

/* reload.c: each ends the reload. */
void reload_give_up(struct reload *r, const char *why, const struct text *lines);
void reload_finish(struct reload *r, const char *how);

/* reload_can.c */
/* Adds a line for each change that a reload cannot make. */
void reload_refusals(const struct reload *r, struct text *why);

/* reload_apply.c */
void reload_apply_at_once(struct reload *r);
void reload_apply_rolling(struct reload *r);

#endif
