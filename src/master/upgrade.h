/* SPDX-License-Identifier: MIT
 *
 * upgrade: another program takes the place of this one, in the same process. Three files:
 *
 *   upgrade.c    the running program: rehearses, then executes
 *   rehearse.c   the new program as a child: would it come up, with the file as it is now? Without any effect
 *   resume.c     the new program in our place: takes over what the state says, then rolls the workers as a reload does
 *
 *   running program                       child: new program, "rehearse"
 *   opens the program once, forks ───────▶ reads the file, checks all, tries to bind what is new
 *                          ◀────────────── exit 0, with the text that it read and the maps that it made
 *   executes that very file with state, text and maps: "resume"; children, links, sockets, clients stay
 *
 * How the new program knows: MILLRACE_UPGRADE is "rehearse STATE TEXT MAPS" or "resume STATE", numbers of descriptors. An
 * exec that fails returns, and nothing has changed.
 */
#ifndef MASTER_UPGRADE_H
#define MASTER_UPGRADE_H

#include "master.h"
#include "state.h"

#define UPGRADE_ENVIRONMENT "MILLRACE_UPGRADE"
enum { UPGRADE_PLACE_BYTES = 256, UPGRADE_EXTRA_US = 5000000 };

/* What a rehearsal may need to know, and all of it. On a failed allocation t->failed. */
void state_describe(const struct master *m, struct text *t);

/* rehearse.c: one map as it lies in the file of maps, followed by `bytes` of a struct shards. */
struct upgrade_map {
	char name[264]; /* of the output */
	uint64_t bytes;
};

#endif
