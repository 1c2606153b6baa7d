/* SPDX-License-Identifier: MIT
 *
 * reload: what the files of a reload share.
 *
 *   reload.c        reads, compares, has it checked, answers
 *   reload_can.c    what a reload cannot do, in a sentence each
 *   reload_own.c    what the master has for itself: the log, the monitor's socket, the pid file
 *   reload_apply.c  the rolling of workers
 *
 *   read, parse ─▶ diff ─▶ CHECKING: a child asks the libraries and fills shard maps
 *                            │ AT_ONCE: what is the master's own   │ RESPAWN, REBIND: new endpoints are bound, too
 *                            │ is opened                           │
 *                            ▼                                     ▼
 *                   done: only the master has it          ROLLING: new slots start; each worker makes place for its
 *                                                         successor; slots that are too many end; old endpoints close
 */
#ifndef MASTER_RELOAD_H
#define MASTER_RELOAD_H

#include "master.h"

enum reload_stage { RELOAD_CHECKING, RELOAD_ROLLING };

/* What the master opens for itself before anything changes; -1: nothing new. */
struct reload_own {
	bool has_http;
	struct http_socket http;
	int pid_file, log_file;
};

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
	struct reload_own own;
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

/* reload_own.c */
void reload_own_init(struct reload_own *own);
/* Opens what is another in r->cf. 0, or -errno with one sentence, and what was opened is closed with the reload. */
int reload_own_open(struct reload *r, struct err *err);
/* It takes the place of what the configuration `old` had. */
void reload_own_enter(struct reload *r, const struct conf *old);
/* What was opened and has not entered. `cf`: it was opened for this one. */
void reload_own_close(struct reload *r, const struct conf *cf);

/* reload_apply.c */
void reload_apply_at_once(struct reload *r);
void reload_apply_rolling(struct reload *r);

#endif
