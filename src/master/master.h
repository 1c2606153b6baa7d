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
	struct identity identity; /* whom the children become */
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
	uint64_t capabilities; /* that were kept at the start */
	int pid_file, ready_fd; /* -1: none; ready_fd: where the foreground parent waits */
	const char *notify_path; /* systemd's socket; NULL: none */
	unsigned notified_ready; /* workers */
	struct ev_timer watchdog;
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
/* LINK_REOPEN with a copy of fd. */
void slots_tell_file(struct master *m, unsigned which, int fd);
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
void keeper_tell(struct master *m, enum monitor_message_type type, uint64_t value, int fd); /* fd: -1 for none */

/* death.c: takes the dead tenant's page over and counts what it had in memory. Adds a clause for people to `t`. */
void death_account(struct master *m, struct slot *s, struct text *t);

/* rights.c: what the configuration needs of the system. rights_find: whom the children become. rights_needed: which
 * capabilities the master needs for it. rights_reduce: keeps these only. rights_check: whether what was kept is enough
 * for another configuration; else its sentence says to restart. */
int rights_find(const struct conf *cf, struct identity *id, struct err *err);
uint64_t rights_needed(const struct conf *cf, const struct identity *id);
int rights_reduce(struct master *m, struct err *err);
int rights_check(const struct master *m, const struct conf *cf, struct err *err);

/* daemon.c: to the background, when the configuration says so; *is_parent: this is the foreground, m->exit_code tells how
 * it went. daemon_ready: the foreground may end. */
int daemon_begin(struct master *m, bool *is_parent, struct err *err);
void daemon_ready(struct master *m);

/* pidfile.c: written and locked, removed. The configuration's path must not change meanwhile. */
int pidfile_open(struct master *m, struct err *err);
void pidfile_close(struct master *m);

/* notify.c: words for systemd; nothing when it did not start us */
void notify_init(struct master *m);
void notify_ready(struct master *m);     /* serving, also after a reload */
void notify_status(struct master *m);    /* after each change of a slot */
void notify_reloading(struct master *m); /* until notify_ready */
void notify_stopping(struct master *m);

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
