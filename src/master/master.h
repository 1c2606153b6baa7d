/* SPDX-License-Identifier: MIT
 *
 * What the files of the master share.
 */
#ifndef MASTER_PRIVATE_H
#define MASTER_PRIVATE_H

#include "life.h"
#include <endpoint.h>
#include <input.h>
#include <master.h>
#include <monitor.h>
#include <output.h>
#include <worker.h>

#include <sys/queue.h>

struct control;
struct client;
struct reload;
struct upgrade;

/* A message for a worker that its link did not take yet, or a connection for one that is not there yet. */
struct letter {
	STAILQ_ENTRY(letter) next;
	int fd; /* -1: none */
	size_t len;
	char bytes[]; /* struct link_message, or struct link_connection as far as it goes */
};
STAILQ_HEAD(letters, letter);

/* A place for a worker: its own sockets, counters and past. A process is only its present tenant. */
struct slot {
	struct master *m;
	unsigned number;
	struct life life;
	pid_t pid; /* 0: none */
	int link;  /* our end; -1: none */
	struct ev_io io;
	struct slot *lent_to; /* reads our sockets meanwhile; NULL: nobody */
	unsigned which; /* of its two pages and receive batches is the tenant's */
	struct stats_page *page;
	struct letters outbox;	    /* in order; the link takes no more now */
	struct ev_io writable;
	struct letters connections; /* of the last tenant, for the next */
	uint64_t generation;	    /* of the configuration that its tenant has, or had */
	uint64_t marking;	    /* of its page: generation_mark_page */
	bool is_leaving;	    /* the tenant was asked to make place … */
	bool was_told;		    /* … since somebody sent it a TERM */
	bool is_ending;		    /* … for nobody */
	bool is_rolling;	    /* … and its successor is not ready yet, or it has not gone */
	bool has_left;		    /* it reads nothing more */
	uint64_t unread_packets;
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
	bool is_leaving; /* told to; no other one is started */
	struct ev_io io;
	struct ev_timer timer;
};

struct master {
	const struct conf *cf;
	struct identity identity; /* whom the children become */
	const struct conf_args *args; /* NULL: it cannot be reloaded */
	uint64_t generation;	      /* of `cf`: 1 at the start */
	uint64_t marking;	      /* of who feeds whom: 1 at the start */
	struct reload *reload;	      /* NULL: none is under way */
	bool reload_again;	      /* HUP came meanwhile */
	bool reload_failed;	      /* the last one */
	char **argv;		      /* with which we were started, and a successor will be */
	struct upgrade *upgrade;      /* a successor is there; NULL: none */
	bool holds;		      /* a predecessor still serves: our workers wait */
	bool is_heir;		      /* … or still delivers what it holds */
	bool owns_control;	      /* its socket file is ours to remove */
	int control_fd; /* of a predecessor; -1: none */
	int http_fd;    /* likewise */
	struct ev_loop *loop;
	struct stats *stats;
	struct receive *receive;
	struct stats_page *page;
	struct stats_copy *copy; /* for per_second_stats and the last account */
	struct registry registry; /* owns what inputs read */
	struct input *inputs;
	struct output *outputs;
	struct slot *slots;
	unsigned n_slots;	 /* those that end included, until they are gone */
	unsigned n_slots_wanted; /* of the configuration */
	size_t n_inputs, n_outputs;
	struct control *control;
	struct keeper keeper;
	struct ev_io signals;
	struct ev_timer slots_timer, second, deadline;
	unsigned n_left_before;
	uint64_t (*left_before)[2]; /* of each backend, dropped and unconfirmed before the drain; NULL: none */
	uint64_t capabilities; /* that were kept at the start */
	int pid_file, ready_fd; /* -1: none; ready_fd: where the foreground parent waits */
	const char *notify_path; /* systemd's socket; NULL: none */
	unsigned notified_ready; /* workers */
	struct ev_timer watchdog;
	uint64_t drain_at_us; /* a drain waits for a successor, at most until then; 0: none does */
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
/* A worker makes place, and what it was given to read and has handed over waits for its successor. */
bool slots_are_rolling(const struct master *m);
bool slots_are_gone(const struct master *m);
/* "killed by signal 9 (Killed)", "left with exit code 1". */
void slots_describe_end(struct text *t, int status);
/* Asks the tenant to make place; for its successor, or with `ends` for nobody. */
void slots_leave(struct slot *s, bool ends);
void slot_init(struct master *m, unsigned number);
/* A worker that serves. NULL: none. */
struct slot *slots_serving(struct master *m);

/* keeper.c: the monitor comes and goes */
int keeper_open(struct master *m, struct err *err); /* before the first fork: its HTTP socket */
void keeper_close(struct master *m);
void keeper_leave(struct master *m); /* our heir has one of its own */
void keeper_look(struct master *m); /* as slots_look */
void keeper_reap(struct master *m);
void keeper_tell(struct master *m, enum monitor_message_type type, uint64_t value, int fd); /* fd: -1 for none */

/* post.c: letters */
/* One message to one worker, which is queued when the link is full; fd is duplicated. 0 or -errno. */
int post_send(struct slot *s, const void *msg, size_t len, int fd);
void post_open(struct slot *s);	 /* a link is there */
void post_close(struct slot *s); /* … and is gone: what was not sent is thrown away, connections are kept */
/* A connection that slot's tenant gave back. Takes fd. */
void post_keep_connection(struct slot *s, const void *msg, size_t len, int fd);
/* The connections that `from` keeps go to the tenant of `to`. */
void post_give_connections(struct slot *from, struct slot *to);
/* Nobody will take them any more: counted in the page of the slot, which has no tenant. */
void post_count_connections(struct slot *s);

/* generation.c: what one configuration needs: inputs, outputs, their places in the counters */
struct generation {
	const struct conf *cf;
	struct input *inputs;
	struct output *outputs;
	size_t n_inputs, n_outputs;
	unsigned n_slots;
};
/* Outputs of cf, those of `m` reused where they stay. `fill_all`: with what takes long, too. 0, or -errno with err. */
int generation_outputs(struct master *m, const struct conf *cf, struct generation *g, struct err *err);
/* … the rest of them, which needs checked options. */
int generation_finish_outputs(struct master *m, struct generation *g, bool is_live, struct err *err);
/* What its workers share is that of an output in effect. */
bool generation_shares(const struct master *m, const struct output *out);
/* Whose an endpoint of this input is. */
struct endpoint_user generation_user(const struct input *in);
/* Inputs of cf, with references to their endpoints. */
int generation_inputs(struct master *m, const struct conf *cf, struct generation *g, struct err *err);
/* Undoes all of that. */
void generation_give_up(struct master *m, struct generation *g);
/* g becomes what `m` has. Endpoints that nobody refers to any more are retired; *gone is what the workers have that do not
 * know yet. */
void generation_enter(struct master *m, struct generation *g, struct generation *gone);
/* They have made place: closes and frees it. */
void generation_close(struct master *m, struct generation *gone);
/* The page of a slot without tenant: who feeds whom from now on. */
void generation_mark_page(struct master *m, struct stats_page *page);
/* Names of all, in the directory. */
void generation_name(struct master *m);

/* upgrade.c, upgrade_heir.c: our binary is replaced by a newer one */
void upgrade_remember(const char *argv0); /* before the working directory changes */
void upgrade_begin(struct master *m, struct client *client);
/* A worker left, died, or became ready. */
void upgrade_look(struct master *m);
void upgrade_abort(struct master *m);
void upgrade_fini(struct master *m);
/* Workers leave, and nobody comes after them. */
bool upgrade_is_leaving(const struct master *m);
/* Takes what a predecessor has bound, when there is one. 0, or -errno with err. */
int upgrade_inherit(struct master *m, struct err *err);
/* Before upgrade_inherit: whether a predecessor started us. */
bool upgrade_has_predecessor(void);
/* All workers of ours are ready. */
void upgrade_ready(struct master *m);

/* reload.c */
/* `client`: who asked, or NULL. */
void reload_begin(struct master *m, struct client *client);
void reload_client_gone(struct master *m, const struct client *client);
/* A worker became ready, left, died, applied. */
void reload_look(struct master *m);
void reload_applied(struct slot *s, uint64_t generation);
void reload_failed_worker(struct slot *s);
void reload_abort(struct master *m); /* the program ends */

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
void pidfile_leave(struct master *m); /* unlocked, but not removed: our heir takes it */

/* notify.c: words for systemd; nothing when it did not start us */
void notify_init(struct master *m);
void notify_ready(struct master *m);     /* serving, also after a reload */
void notify_status(struct master *m);    /* after each change of a slot */
void notify_reloading(struct master *m); /* until notify_ready */
void notify_stopping(struct master *m);
void notify_heir(struct master *m, pid_t heir); /* it is the main process now */

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
/* The socket is at this path from now on. Binds first: 0, or -errno with err and all is as it was. */
int control_move(struct master *m, const struct conf *cf, struct err *err);
/* The answer of a command that took its time; ends the client. */
void control_answer(struct client *client, struct text *t);
void control_pause(struct master *m, bool is_paused); /* the next clients are a successor's */
int control_fd(const struct master *m, const char **path); /* -1: none */

/* master.c */
void master_ready(struct master *m);
void master_input_done(struct master *m, unsigned index);
unsigned master_workers(const struct conf *cf); /* as many as the configuration means */
void master_drain(struct master *m, uint64_t deadline_us);
/* When a drain waited for a worker that makes place: whether it can begin. */
void master_look_at_drain(struct master *m);
void master_stop(struct master *m, int exit_code);

#endif
