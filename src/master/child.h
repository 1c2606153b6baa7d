/* SPDX-License-Identifier: MIT
 *
 * child: a process of the master with a link to it: workers and the monitor. Master only.
 */
#ifndef MASTER_CHILD_H
#define MASTER_CHILD_H

#include <net_link.h>
#include <process.h>

struct child;

struct child_type {
	size_t message_bytes; /* of the largest that comes, in either direction */
	/* In the child, with its end of the link. */
	__attribute__((noreturn)) void (*run)(void *owner, int link);
	/* As net_link's on_message. */
	bool (*on_message)(struct child *c, struct net_message *m);
	/* All that it said was heard. The child may be started again from here. */
	void (*on_exit)(struct child *c, int status);
};

struct child {
	const struct child_type *type;
	void *owner;
	struct process process;
	struct net_link link;
};

/* Zeroes *c. */
void child_init(struct child *c, const struct child_type *type, void *owner);
/* 0, or -errno with what failed in *what. */
int child_start(struct child *c, struct ev_loop *loop, const char **what);
/* One that was there before this program was executed in its place. 0, and pidfd (-1: none yet) and `link`, our end, are
 * its own; or -errno, which comes only without a pidfd. */
int child_adopt(struct child *c, struct ev_loop *loop, pid_t pid, int pidfd, int link);
/* As net_link_send; -EPIPE: it is about to die, on_exit comes. */
int child_send(struct child *c, const void *msg, size_t len, int fd);
/* Closes the link: a child that finds nobody there leaves. */
void child_hang_up(struct child *c);
/* Forgets it, alive or not, without a word to its owner. */
void child_fini(struct child *c);
static inline bool child_is_there(const struct child *c)
{
	return c->process.pid != 0;
}

#endif
