/* SPDX-License-Identifier: MIT
 *
 * master: binds every endpoint, makes the counter pages, forks the workers and keeps them alive, answers millracectl,
 * and ends them. Reads no datagram, resolves no name, starts no thread.
 */
#ifndef MASTER_H
#define MASTER_H

#include <conf.h>

/* How the program leaves. */
enum {
	MASTER_EXIT_DELIVERED = 0, /* all that was accepted was delivered */
	MASTER_EXIT_ERROR = 1,	   /* did not start, or no worker can work */
	MASTER_EXIT_LEFT = 3,	   /* drained, and something was left: the last log lines say how much */
};

/* First in main: signals for a master that runs do not kill one that is about to. They wait until it obeys them. */
void master_hold_signals(void);
/* Whether this program was started only to see whether it would come up in place of the one that runs (an upgrade): then
 * the configuration is read with rehearse_text, all is checked, and this returns the exit code. */
bool master_is_rehearsal(void);
int rehearse_text(const char *path, char **bytes, size_t *len); /* as conf_read_file */
int master_rehearse(const struct conf *cf);
/* Whether it was executed in place of another one: then the configuration is what was rehearsed. */
bool master_resumes(void);
int resume_text(const char *path, char **bytes, size_t *len);

/* Runs until a signal or a command ends it. Returns the exit code; every error has been logged. The configuration is
 * taken; args, with which it is read again at a reload (NULL: it cannot be), and argv, with which a newer binary is started
 * at an upgrade, are borrowed. */
int master_run(struct conf **cf, const struct conf_args *args, char **argv);

#endif
