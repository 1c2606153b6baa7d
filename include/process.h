/* SPDX-License-Identifier: MIT
 *
 * process: children of this process. Each has a pidfd: its end is an event, a signal can never reach a stranger that was
 * given the same number, and nobody else takes its exit status. For the master and for the programs that only check.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <base.h>
#include <ev.h>
#include <sys/queue.h>
#include <sys/types.h>

struct process {
	pid_t pid;	     /* 0: none */
	pid_t last_pid;	     /* for what is said of it after its end */
	int pidfd;	     /* while there is one */
	uint64_t started_us; /* clock_us */
	struct ev_loop *loop;
	struct ev_io io;
	void (*on_exit)(struct process *p, int status); /* wait(2)'s status; p has no process any more */
	void *owner;
	LIST_ENTRY(process) siblings;
};

/* fork(2): 0 in the child; its pid in the parent; or -errno. *p is overwritten. */
pid_t process_fork(struct process *p);
/* A child that this program had before it executed another one in its place. Takes pidfd, which is its; -1: one is opened.
 * 0 or -errno, which comes only then. */
int process_adopt(struct process *p, pid_t pid, int pidfd);
/* on_exit is called once, from the loop. */
void process_watch(struct process *p, struct ev_loop *loop);
/* Nothing happens when it has ended already. */
void process_signal(struct process *p, int signal);
/* Waits for its end without a loop. False: it goes on after until_us (clock_us). on_exit is not called. */
bool process_wait(struct process *p, uint64_t until_us, int *status);
/* Forgets it, alive or not: at the end of this program. */
void process_forget(struct process *p);
/* Reaps whoever was left to us (as PID 1, or before an exec); known ones are told to their owners. */
void process_reap_strangers(void);
/* The exit report: "worker 3 (pid 123) killed by signal 9 (Killed) after 2 s". */
void process_report(const struct process *p, const char *name, int status, struct text *t);

/* -- try: a function that runs in a child of its own and says something ------------------------------------------------ */

/* What it adds to `said` comes back; what it returns is the exit code. All descriptors but 0, 1, 2 and the log's are
 * closed. */
typedef int try_function(void *arg, struct text *said);

struct try {
	struct process process;
	struct ev_loop *loop;
	struct ev_io io;
	struct ev_timer deadline;
	int fd;
	bool is_late; /* it was killed since it took too long */
	/* Set before try_start, else zero: */
	bool takes_output; /* what is written to 1 and 2 comes back, too: by a program that the function executes */
	int keep[4];	   /* descriptors that stay open */
	unsigned n_keep;
	struct text said;
	void (*on_end)(struct try *t, int status);
	void *owner;
};
/* Calls on_end once, from the loop; then try_free is due. 0 or -errno. */
int try_start(struct try *t, struct ev_loop *loop, try_function *f, void *arg, uint64_t limit_us);
/* The same without a loop: returns when it has ended. 0 with *status, or -errno. */
int try_now(struct try *t, try_function *f, void *arg, uint64_t limit_us, int *status);
/* Ends it when it goes on; on_end is not called. Zeroed memory is fine. */
void try_free(struct try *t);

#endif
