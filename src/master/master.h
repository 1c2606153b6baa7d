/* SPDX-License-Identifier: MIT
 *
 * What the files of the master share.
 */
#ifndef MASTER_PRIVATE_H
#define MASTER_PRIVATE_H

#include "child.h"
#include "restart.h"

#include <endpoint.h>
#include <input.h>
#include <master.h>
#include <monitor.h>
#include <output.h>
#include <worker.h>

#include <sys/queue.h>

struct control;
struct reload;
struct upgrade;

/* A worker that has not left so long after its own deadline is killed. */
enum { MASTER_LATE_US = 700000 };

/* A worker: one process of a slot, which counts in one of its two pages. */
struct worker_process {
	struct slot *slot;
	struct child child;
	unsigned which; /* of the slot's pages */
	struct stats_page *page;
	uint64_t generation; /* of the configuration that it has, or had */
	uint64_t marking;    /* of its page: generation_mark_page */
	bool is_foreign;     /* of the program before: its page is not ours, … */
	struct receive_batch *batches; /* … and it reads into these; NULL: not known */
	bool is_ready;	     /* it said so */
	bool is_leaving;     /* it was told to hand over and leave */
	bool was_told;	     /* by a signal to end: its exit report is news */
	bool has_left;	     /* … and has handed over: it only waits for what is in flight */
	bool is_stopped;     /* it was to be a successor, and is not needed: it holds nothing */
	uint64_t kill_at_us; /* it has had its time then; 0: it has no limit */
	char why[256];	     /* it could not start */
};

/* A place for a worker: its own sockets, counters and past. See roll.c for how one process follows another. */
struct slot {
	struct master *m;
	unsigned number;
	struct restart restart; /* of `now` */
	struct worker_process processes[STATS_SLOT_PAGES];
	struct worker_process *now;  /* serves, or is to */
	struct worker_process *next; /* starts or takes over, while `now` serves or leaves; NULL: nobody */
	int giving, taking;	     /* the ends of the channel between two of them, as long as they are ours; -1 */
	struct worker_process *taker; /* takes over, when this slot ends; NULL: nobody, or who was to has died */
	struct slot *lent_to;	     /* reads our sockets meanwhile; NULL: nobody */
	uint64_t take_by_us;	     /* what is not taken over then is given up */
	uint64_t told_at_us;	     /* its worker was told to end: then another one takes over; 0 */
	bool is_ending;		     /* nobody comes after its worker */
	bool was_ready;
};
/* A signal for a worker may be one for all of us, which we hear of a moment later. */
enum { SLOT_TOLD_US = 100000 };

/* Where the monitor is to be asked. */
struct http_socket {
	int fd; /* listens; -1: none */
	char at[128]; /* the address that it really has, "127.0.0.1:8126"; "" */
	uint16_t port;
};

/* The monitor's place. */
struct monitor_child {
	struct master *m;
	struct restart restart;
	struct child child;
	struct http_socket http; /* from before the first fork to the exit */
	bool is_leaving; /* told to; no other one is started */
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
	int control_fd; /* of the program that we were before; -1: none */
	struct ev_loop *loop;
	struct stats *stats;
	struct receive *receive;
	struct stats_page *page;
	struct stats_copy *copy; /* for per_second_stats, the last account, and: */
	struct stats_belief *belief;
	struct registry registry; /* owns what inputs read */
	struct input *inputs;
	struct output *outputs;
	struct slot *slots;
	unsigned n_slots;	 /* those that end included, until they are gone */
	unsigned n_slots_wanted; /* of the configuration */
	size_t n_inputs, n_outputs;
	struct control *control;
	struct monitor_child monitor;
	struct ev_io signals;
	struct ev_timer slots_timer, second, deadline;
	unsigned n_left_before;
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

/* slots.c: workers come and go */
int slots_init(struct master *m, struct err *err);
void slots_fini(struct master *m);
void slot_init(struct master *m, unsigned number);
void slot_publish(struct slot *s);
/* Does what each slot's restart policy asks for, and sets the timer for the next time. */
void slots_look(struct master *m);
void slots_drain(struct master *m, uint64_t deadline_us);
void slots_kill(struct master *m);
bool slots_are_gone(const struct master *m);
/* One message to one worker, or to all; a copy of fd (-1: none). */
void worker_send(struct worker_process *p, const struct link_message *msg, int fd);
void worker_tell(struct worker_process *p, enum link_type type, uint64_t value, const char *name, const char *text, int fd);
void slots_tell_all(struct master *m, enum link_type type, uint64_t value, const char *name, const char *text, int fd);
/* 0 or -errno, which is logged. */
int worker_start(struct worker_process *p);
/* A slot whose worker serves, other than `but`. NULL: none. */
struct slot *slots_serving(struct master *m, const struct slot *but);

/* roll.c: one worker follows another */
bool roll_can_begin(const struct slot *s);
/* 0 or -errno: nothing has changed. */
int roll_begin(struct slot *s);
/* The slot ends: a sibling takes over. */
int roll_end(struct slot *s);
/* What a worker said, or that it has ended; roll_exited says false when its slot has nobody now. */
void roll_ready(struct slot *s);
void roll_left(struct worker_process *p);
void roll_taken(struct slot *s, const struct worker_process *by);
bool roll_exited(struct worker_process *p);
/* Slots that end have somebody who takes over. */
void roll_find_takers(struct master *m);
/* The program ends: a successor that is not ready yet is not needed. */
void roll_stop(struct slot *s);
/* Nobody takes over any more what waits in the slot's channel: counted in a page of the slot that has no process. */
void roll_count_untaken(struct slot *s);
/* … when its time is over. Returns when to look again. */
uint64_t roll_look(struct slot *s, uint64_t now_us);
void roll_close(struct slot *s);
/* Another worker for a slot whose device has come back as another one. */
void slots_renew_stale(struct master *m);

/* lend.c: a sibling reads the sockets of a slot without a worker */
void lend_begin(struct slot *s);
void lend_end(struct slot *s);
void lend_reader_gone(struct slot *s); /* of others */

/* monitor_child.c: the monitor comes and goes */
int monitor_child_open(struct master *m, struct err *err); /* before the first fork: its HTTP socket */
void monitor_child_close(struct master *m);
/* The socket of another configuration: 0, or -errno with err and none. `had`: one that is there; when that is the same
 * address, the new one is a copy of its descriptor. */
int monitor_child_listen(const struct conf *cf, int had, struct http_socket *http, struct err *err);
/* The monitor serves there from now on; *http is taken. */
void monitor_child_move(struct master *m, struct http_socket *http);
void monitor_child_look(struct master *m); /* as slots_look */
void monitor_child_tell(struct master *m, enum link_type type, uint64_t value, int fd); /* fd: -1 for none */

/* generation.c: what one configuration needs: inputs, outputs, their places in the counters */
struct generation {
	const struct conf *cf;
	struct input *inputs;
	struct output *outputs;
	size_t n_inputs, n_outputs;
	unsigned n_slots;
};
/* Outputs of cf, those of `m` reused where they stay. 0, or -errno with err. */
int generation_outputs(struct master *m, const struct conf *cf, struct generation *g, struct err *err);
/* … the rest of them, which needs checked options. */
int generation_finish_outputs(struct master *m, struct generation *g, bool is_live, struct err *err);
/* The output in effect that this one goes on with; NULL: none. */
const struct output *generation_former(const struct master *m, const struct output *out);
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
/* The page of a slot without worker: who feeds whom from now on. */
void generation_mark_page(struct master *m, struct stats_page *page);
/* Names of all, in the directory. */
void generation_name(struct master *m);

/* reload.c */
/* `client`: who waits for the answer (control_answer); 0: nobody. */
void reload_begin(struct master *m, uint64_t client);
/* A worker became ready, handed over, or died. */
void reload_look(struct master *m);
void reload_failed_worker(struct slot *s, const char *why);
void reload_abort(struct master *m); /* the program ends */


/* The workers of the program before are rolled; `client` as above. */
void reload_resume(struct master *m, uint64_t client);

/* upgrade.c: another program in place of this one; see upgrade.h */
void upgrade_remember(const char *argv0); /* before the working directory changes */
const char *upgrade_program(void);
void upgrade_begin(struct master *m, uint64_t client);
void upgrade_abort(struct master *m);

/* resume.c: this program was executed in place of another one: what each step of the start takes over. Without that they
 * do nothing. */
void resume_begin(struct master *m);
void resume_endpoints(struct master *m);
bool resume_fill(struct output *out); /* with the map of the rehearsal; false: there is none */
void resume_slots(struct master *m);
void resume_go(struct master *m);
/* A worker of the program before has ended: as death_account, but what it had queued is lost when the last of them has
 * ended. */
void resume_died(struct worker_process *p, bool left_clean, struct text *t);
void resume_look(struct master *m); /* a worker has ended */
bool resume_is_done(void); /* also: nothing was resumed */

/* death.c: takes over the page of the process that has ended, if its numbers can be believed, and counts what it had in
 * memory, unless it has counted that itself (left_clean). Adds a clause for people to `t`. */
void death_account(struct master *m, const struct worker_process *p, bool left_clean, struct text *t);
/* … what it had read and not handed over cannot be known: says and counts that. */
void death_in_hand_unknown(const struct slot *s);
/* … what stands in a page as queued or in flight. Returns records. */
uint64_t death_account_page(struct stats_page *page);

/* rights.c: what the configuration needs of the system. rights_find: whom the children become. rights_needed: which
 * capabilities the master needs for it. rights_reduce: keeps these only. rights_check: whether what it has is enough
 * for another configuration; else its sentence says to restart. */
int rights_find(const struct conf *cf, struct identity *id, struct err *err);
uint64_t rights_needed(const struct conf *cf, const struct identity *id);
int rights_reduce(struct master *m, struct err *err);
int rights_check(const struct conf *cf, uint64_t have, struct err *err);

/* reserve.c: before the first loop: what libev, which aborts when it cannot have something, gets all the same. */
void reserve_init(void);

/* daemon.c: to the background, when the configuration says so; *is_parent: this is the foreground, m->exit_code tells how
 * it went. daemon_ready: the foreground may end. */
int daemon_begin(struct master *m, bool *is_parent, struct err *err);
void daemon_ready(struct master *m);

/* pidfile.c: written and locked: a descriptor, or -errno with err. pidfile_close removes it, unless somebody else has put
 * his there; *fd may be -1, and is then. */
int pidfile_open(const char *path, struct err *err);
/* Whether the path (still) names what is open there: a former owner removes it when he ends. */
bool pidfile_is(const char *path, int fd);
void pidfile_close(const char *path, int *fd);

/* notify.c: words for systemd; nothing when it did not start us */
void notify_init(struct master *m);
void notify_ready(struct master *m);     /* serving, also after a reload */
void notify_status(struct master *m);    /* after each change of a slot */
void notify_reloading(struct master *m); /* until notify_ready */
void notify_stopping(struct master *m);

void notify_feed(struct master *m);	 /* the watchdog, before what takes its time */
void notify_tell(const struct master *m, const char *text, int fd); /* a copy of fd goes with it; -1: none */

/* store.c: sockets in systemd's descriptor store. store_adopt: those that it gives back at a start, or that a .socket unit
 * has. store_note_all: the program before has stored those that were taken over. */
bool store_is_there(void);
void store_adopt(struct master *m);
void store_note_all(struct master *m);
void store_update(struct master *m); /* after each change */
void store_clear(struct master *m);

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
/* The answer of a command that took its time; ends the client. Nothing happens when it has gone, or is 0. */
void control_answer(struct master *m, uint64_t client, struct text *t);
/* Clients that have not asked yet, and those that wait for an answer: for the program that takes our place.
 * Returns how many, which is at most CONTROL_CLIENTS_MAX. */
enum { CONTROL_CLIENTS_MAX = 16 };
struct control_guest {
	int fd;
	bool is_waiting;
};
unsigned control_guests(const struct master *m, struct control_guest guests[CONTROL_CLIENTS_MAX]);
/* One of the program before (takes its fd): its number. */
uint64_t control_adopt(struct master *m, const struct control_guest *guest);
int control_fd(const struct master *m, const char **path); /* -1: none */

/* master.c */
void master_ready(struct master *m);
void master_set_log_level(struct master *m, enum log_level level); /* of all processes */
/* Lines of all processes go there from now on; `file` as of log_turn_to. */
void master_turn_log_to(struct master *m, enum log_target target, int file);
void master_input_done(struct master *m, const char *name);
/* A worker became ready, handed over, took over or ended: does what waits for that. */
void master_look(struct master *m);
unsigned master_workers(const struct conf *cf); /* as many as the configuration means */
void master_drain(struct master *m, uint64_t deadline_us);
void master_stop(struct master *m, int exit_code);

#endif
