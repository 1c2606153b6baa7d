/* SPDX-License-Identifier: MIT
 *
 * What the files of the master share.
 */
#ifndef MASTER_PRIVATE_H
#define MASTER_PRIVATE_H

#include "life.h"
#include <input.h>
#include <master.h>
#include <monitor.h>
#include <output.h>
#include <worker.h>

struct control;

/* A place for a worker: its own sockets, counters and past. A process is only its present tenant. */
struct slot {
	struct master *m;
	unsigned number;
	struct life life;
	pid_t pid; /* 0: none */
	int link;  /* our end; -1: none */
	struct ev_io io;
	struct slot *lent_to; /* reads our sockets meanwhile; NULL: nobody */
	struct stats_page *page;
	bool was_ready;
	char why[256]; /* it could not start */
};

/* The monitor's place. */
struct keeper {
	struct master *m;
	struct life life;
	pid_t pid;   /* 0: none */
	int link;    /* our end; -1: none */
	int http_fd; /* listens, from before the first fork to the exit; -1: no HTTP */
	char http_at[128];
	uint16_t http_port;
	struct ev_io io;
	struct ev_timer timer;
};

struct master {
	const struct conf *cf;
	struct ev_loop *loop;
	struct stats *stats;
	struct stats_page *page;
	struct stats_copy *copy; /* for per_second_stats and the last account */
	struct input *inputs;
	struct output *outputs;
	struct slot *slots;
	unsigned n_slots;
	size_t n_inputs, n_outputs;
	struct control *control;
	struct keeper keeper;
	struct ev_io signals;
	struct ev_timer slots_timer, second, deadline;
	uint64_t (*left_before)[2]; /* of each backend, dropped and unconfirmed before the drain; NULL: none */
	bool has_started, is_draining, has_left, is_done;
	int exit_code;
	uint64_t table_us; /* when the next one is due; 0: none was yet */
};

/* slots.c: tenants come and go */
int slots_init(struct master *m, struct err *err);
void slots_fini(struct master *m);
/* Does what each slot's life asks for, and sets the timer for the next time. */
void slots_look(struct master *m);
void slots_reap(struct master *m);
void slots_drain(struct master *m, uint64_t deadline_us);
void slots_kill(struct master *m);
void slots_tell_all(struct master *m, enum link_type type, uint64_t value);
/* Ends one worker whose device has come back as another one. */
void slots_renew_stale(struct master *m);
bool slots_are_gone(const struct master *m);
/* "killed by signal 9 (Killed)", "left with exit code 1". */
void slots_describe_end(struct text *t, int status);

/* keeper.c: the monitor comes and goes */
int keeper_open(struct master *m, struct err *err); /* before the first fork: its HTTP socket */
void keeper_close(struct master *m);
void keeper_look(struct master *m); /* as slots_look */
void keeper_reap(struct master *m);
void keeper_tell(struct master *m, enum monitor_message_type type, uint64_t value);

/* death.c: takes the dead tenant's page over and counts what it had in memory. Adds a clause for people to `t`. */
void death_account(struct master *m, struct slot *s, struct text *t);

/* account.c: lines for the log */
void account_start(struct master *m);
void account_second(struct master *m);
void account_drain(struct master *m); /* the drain begins: what is lost from now on was left */
void account_last(struct master *m);
/* Records that were lost anywhere between input and output, and files that were damaged: for a run that has an end. */
uint64_t account_lost(struct master *m);

/* table.c: packets from card to Kafka, on standard output */
void table_second(struct master *m);
void table_last(struct master *m);

/* control.c */
int control_open(struct master *m, struct err *err);
void control_close(struct master *m);

/* master.c */
void master_ready(struct master *m);
void master_input_done(struct master *m, unsigned input);
void master_drain(struct master *m, uint64_t deadline_us);
void master_stop(struct master *m, int exit_code);

#endif
