/* SPDX-License-Identifier: MIT
 *
 * stats: counter pages in shared memory, and everything that is computed from them.
 *
 *   files:  head | field table | directory | page of the master
 *           page of the monitor
 *           page 0 of slot 0;  page 1 of slot 0;  page 0 of slot 1 …
 *   page:   sequence | published blocks | draft blocks     a block: the counters of one input, output, backend …
 *
 * Each page but the master's is a file of its own (memfd), and a process maps but one of them writable. A slot
 * has two, which its processes use in turn: who leaves counts in its own to its end while its successor counts
 * in the other. A slot's counters are the sums over both.
 * A page has exactly one writer: a worker, and when that is dead, the master. The writer changes the
 * draft as it works; stats_publish copies the blocks that were touched to the published half, under a sequence number
 * that is odd meanwhile. So a reader always sees whole batches, and when a writer is killed the published half is a
 * balanced account: it either has the last publication or (killed in the middle) gets it from the draft, which does
 * not change during one. A page is not cleared when a worker restarts: totals never go back.
 * The files are sparse: untouched blocks cost nothing. They name their own fields and offsets, so that a reader
 * of another version can read them.
 */
#ifndef STATS_H
#define STATS_H

#include <base.h>

enum stats_scope {
	STATS_WORKER,
	STATS_INPUT,
	STATS_OUTPUT,
	STATS_BACKEND,
	STATS_KAFKA,  /* of a kafka output: by the output's index */
	STATS_BROKER, /* its brokers: STATS_BROKERS_MAX for each output */
	STATS_MASTER,
	STATS_SLOT,
	STATS_ENDPOINT,
	STATS_DEVICE, /* counters that a network card has itself, by its names: one a block */
	STATS_MONITOR, /* from here on: in the monitor's page */
	STATS_HOST,
	STATS_INTERFACE,
	STATS_PROCESS, /* of the slot's worker, by slot */
	STATS_PATH,    /* a loss on the path from the wire to the backends: see report_drops_new */
	STATS_SCOPES,
};

enum stats_kind { STATS_KIND_COUNTER, STATS_KIND_GAUGE, STATS_KIND_LOSS, STATS_KIND_HINT, STATS_KIND_STATE };

enum stats_ledger {
	STATS_LEDGER_NONE,
	STATS_LEDGER_DATAGRAMS_IN,
	STATS_LEDGER_DATAGRAMS_OUT,
	STATS_LEDGER_LINES_IN,
	STATS_LEDGER_LINES_OUT,
	STATS_LEDGER_RECORDS_IN,
	STATS_LEDGER_RECORDS_OUT,
	STATS_LEDGER_MESSAGES_IN,
	STATS_LEDGER_MESSAGES_OUT,
	STATS_LEDGER_PACKETS_IN,
	STATS_LEDGER_PACKETS_OUT,
	STATS_LEDGER_PAYLOADS_IN,
	STATS_LEDGER_PAYLOADS_OUT,
	STATS_LEDGER_BETWEEN, /* in an equation between rows */
};

enum {
	STATS_SLOTS_MAX = 256,
	STATS_SLOT_PAGES = 2, /* used in turn: a worker that leaves counts on while its successor counts already */
	STATS_INPUTS_MAX = 64,
	STATS_OUTPUTS_MAX = 64,
	STATS_BACKENDS_MAX = 10064,  /* of all outputs together: 10,000 remotes, and one for each kafka output */
	STATS_BROKERS_MAX = 16,	     /* of one output; further ones are not listed */
	STATS_ENDPOINTS_MAX = 16384, /* sockets of all inputs and slots */
	STATS_DEVICES_MAX = 512,     /* further ones are not listed */
	STATS_INTERFACES_MAX = 64,
	STATS_PATH_MAX = 128, /* losses of all kinds that there are */
};

/* The counters of one block, in the order of include/tbl/counter.def. */
#define STATS_FIELD_WORKER(name)
#define STATS_FIELD_INPUT(name)
#define STATS_FIELD_OUTPUT(name)
#define STATS_FIELD_BACKEND(name)
#define STATS_FIELD_KAFKA(name)
#define STATS_FIELD_BROKER(name)
#define STATS_FIELD_MASTER(name)
#define STATS_FIELD_SLOT(name)
#define STATS_FIELD_ENDPOINT(name)
#define STATS_FIELD_DEVICE(name)
#define STATS_FIELD_MONITOR(name)
#define STATS_FIELD_HOST(name)
#define STATS_FIELD_INTERFACE(name)
#define STATS_FIELD_PROCESS(name)
#define STATS_FIELD_PATH(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_WORKER
#define STATS_FIELD_WORKER(name) uint64_t name;
struct stats_worker {
#include <tbl/counter.def>
};
#undef STATS_FIELD_WORKER
#define STATS_FIELD_WORKER(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_INPUT
#define STATS_FIELD_INPUT(name) uint64_t name;
struct stats_input {
#include <tbl/counter.def>
};
#undef STATS_FIELD_INPUT
#define STATS_FIELD_INPUT(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_OUTPUT
#define STATS_FIELD_OUTPUT(name) uint64_t name;
struct stats_output {
#include <tbl/counter.def>
};
#undef STATS_FIELD_OUTPUT
#define STATS_FIELD_OUTPUT(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_BACKEND
#define STATS_FIELD_BACKEND(name) uint64_t name;
struct stats_backend {
#include <tbl/counter.def>
};
#undef STATS_FIELD_BACKEND
#define STATS_FIELD_BACKEND(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_KAFKA
#define STATS_FIELD_KAFKA(name) uint64_t name;
struct stats_kafka {
#include <tbl/counter.def>
};
#undef STATS_FIELD_KAFKA
#define STATS_FIELD_KAFKA(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_BROKER
#define STATS_FIELD_BROKER(name) uint64_t name;
struct stats_broker {
#include <tbl/counter.def>
};
#undef STATS_FIELD_BROKER
#define STATS_FIELD_BROKER(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_MASTER
#define STATS_FIELD_MASTER(name) uint64_t name;
struct stats_master {
#include <tbl/counter.def>
};
#undef STATS_FIELD_MASTER
#define STATS_FIELD_MASTER(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_SLOT
#define STATS_FIELD_SLOT(name) uint64_t name;
struct stats_slot {
#include <tbl/counter.def>
};
#undef STATS_FIELD_SLOT
#define STATS_FIELD_SLOT(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_ENDPOINT
#define STATS_FIELD_ENDPOINT(name) uint64_t name;
struct stats_endpoint {
#include <tbl/counter.def>
};
#undef STATS_FIELD_ENDPOINT
#define STATS_FIELD_ENDPOINT(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_DEVICE
#define STATS_FIELD_DEVICE(name) uint64_t name;
struct stats_device {
#include <tbl/counter.def>
};
#undef STATS_FIELD_DEVICE
#define STATS_FIELD_DEVICE(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_MONITOR
#define STATS_FIELD_MONITOR(name) uint64_t name;
struct stats_monitor {
#include <tbl/counter.def>
};
#undef STATS_FIELD_MONITOR
#define STATS_FIELD_MONITOR(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_HOST
#define STATS_FIELD_HOST(name) uint64_t name;
struct stats_host {
#include <tbl/counter.def>
};
#undef STATS_FIELD_HOST
#define STATS_FIELD_HOST(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_INTERFACE
#define STATS_FIELD_INTERFACE(name) uint64_t name;
struct stats_interface {
#include <tbl/counter.def>
};
#undef STATS_FIELD_INTERFACE
#define STATS_FIELD_INTERFACE(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_PROCESS
#define STATS_FIELD_PROCESS(name) uint64_t name;
struct stats_process {
#include <tbl/counter.def>
};
#undef STATS_FIELD_PROCESS
#define STATS_FIELD_PROCESS(name)

#define COUNTER(scope, name, ...) STATS_FIELD_##scope(name)
#undef STATS_FIELD_PATH
#define STATS_FIELD_PATH(name) uint64_t name;
struct stats_path {
#include <tbl/counter.def>
};
#undef STATS_FIELD_PATH
#define STATS_FIELD_PATH(name)

/* What SLOT and BROKER have in their counter `state`. */
enum stats_slot_state {
	STATS_SLOT_VACANT,
	STATS_SLOT_STARTING,
	STATS_SLOT_READY,
	STATS_SLOT_DRAINING,
	STATS_SLOT_FAILED,
	STATS_SLOT_REMOVED,
};
enum stats_broker_state { STATS_BROKER_IDLE, STATS_BROKER_DOWN, STATS_BROKER_UP };

struct stats;	   /* the mapping */
struct stats_page; /* one page, as its writer sees it; with the list of touched blocks, which is private */

/* -- making and writing ------------------------------------------------------------------------------------------ */

/* Master, before fork: pages for `slots` slots, the master and the monitor, and room in the directory for at least as many
 * slots as `room`. NULL and err when memory is short. */
struct stats *stats_new(unsigned slots, unsigned room, struct err *err);
/* Master: one more slot, when there is room for it: stats_room says for how many together. 0, or -errno with err. */
int stats_add_slot(struct stats *st, struct err *err);
unsigned stats_room(const struct stats *st);
void stats_free(struct stats *st); /* unmaps; NULL is fine */

/* A child of the master, right after fork and before it closes descriptors: all but its own page is mapped for reading
 * only from now on, and all descriptors of the pages are closed. 0, or -errno with err, and it must end.
 * stats_child_none: it has none of the pages any more; also when descriptors are closed already. */
int stats_child_worker(struct stats *st, unsigned slot, unsigned which, struct err *err);
int stats_child_monitor(struct stats *st, struct err *err);
void stats_child_none(struct stats *st);

/* Master: how many files there are, and the descriptor of one, opened for reading only, for a reader of another process:
 * the main one, the monitor's, each slot's in order. Borrowed; close-on-exec. -1: there is no such file. */
unsigned stats_files(const struct stats *st);
int stats_reader_fd(const struct stats *st, unsigned file);

/* Master: names for people. `parent`: of what is below an output that output, of an ENDPOINT or DEVICE its input, else
 * 0. `feeds`: of an INPUT, bit i set: it feeds output i. `unit`: of an OUTPUT what its records are ("lines",
 * "datagrams", "packets"); of an ENDPOINT "slot N"; of a BACKEND "tcp", "udp" or "kafka"; of an INPUT its type. The name
 * of a BACKEND is HOST:PORT, or the topic of a kafka output; of an ENDPOINT its address. `name` NULL takes the entry out
 * of the directory again (its counters stay). WORKER, SLOT, MASTER, MONITOR, HOST and PROCESS are
 * named by stats_new, PATH by report_drops_name. */
void stats_name(struct stats *st, enum stats_scope scope, unsigned index, const char *name, unsigned parent,
		uint64_t feeds, const char *unit);
/* Master: the block for what is new under this name: the one that it had before it was retired, else one that nobody had,
 * else that of a retired sibling (same parent and unit), whose totals it goes on with. -1: all are in use. Name it next. */
int stats_place(const struct stats *st, enum stats_scope scope, const char *name, unsigned parent, const char *unit);
/* Master: it is gone. Name and counters stay, so that sums do not go back and the ledger holds. */
void stats_retire(struct stats *st, enum stats_scope scope, unsigned index);

/* The blocks that a scope may have at most, and whether they lie in the monitor's page. */
unsigned stats_entries_max(const struct stats *st, enum stats_scope scope);
bool stats_scope_is_monitors(unsigned scope);

/* The pages of slot 0..slots-1, `which` 0 or 1; the master's; the monitor's. Owned by `st`. One writer at a time. */
struct stats_page *stats_slot_page(struct stats *st, unsigned slot, unsigned which);
struct stats_page *stats_master_page(struct stats *st);
struct stats_page *stats_monitor_page(struct stats *st);

/* The draft block, to be changed in place. Touch it before the next publication; touching twice is cheap. */
struct stats_worker *stats_worker(struct stats_page *p);
struct stats_input *stats_input(struct stats_page *p, unsigned index);
struct stats_output *stats_output(struct stats_page *p, unsigned index);
struct stats_backend *stats_backend(struct stats_page *p, unsigned index);
struct stats_kafka *stats_kafka(struct stats_page *p, unsigned index);
struct stats_broker *stats_broker(struct stats_page *p, unsigned index);
struct stats_master *stats_master(struct stats_page *p);
struct stats_slot *stats_slot(struct stats_page *p, unsigned slot);
struct stats_endpoint *stats_endpoint(struct stats_page *p, unsigned index);
struct stats_device *stats_device(struct stats_page *p, unsigned index);
struct stats_monitor *stats_monitor(struct stats_page *p);
struct stats_host *stats_host(struct stats_page *p);
struct stats_interface *stats_interface(struct stats_page *p, unsigned index);
struct stats_process *stats_process(struct stats_page *p, unsigned slot);
struct stats_path *stats_path(struct stats_page *p, unsigned index);
void stats_touch(struct stats_page *p, enum stats_scope scope, unsigned index);
/* Blocks of the scope that were ever used in this page: the ones before this index. */
unsigned stats_page_used(const struct stats_page *p, enum stats_scope scope);

/* Makes all touched blocks visible at once. */
void stats_publish(struct stats_page *p);

/* Master, when the writer is dead: finishes a publication that was cut off, then makes the draft equal to what is
 * published, whatever stands there. The master may write the page until it forks the next writer. False: something there
 * was not possible, and was mended. */
bool stats_adopt(struct stats_page *p);
/* Master, after that: what is of the present only, and in no equation, is 0. Publishes. */
void stats_vacate(struct stats_page *p);

/* What can be believed of the slots' pages, which workers write, and workers may be anybody's. The master looks at each
 * once a second and keeps the numbers when they can be: the ledger balances, no counter went down, none grew faster than a
 * machine can count. NULL: no memory. */
struct stats_belief;
struct stats_copy;
struct stats_belief *stats_belief_new(struct stats *st, struct stats_copy *copy); /* copy: borrowed, for its use */
void stats_belief_free(struct stats_belief *b); /* NULL is fine */
void stats_belief_look(struct stats_belief *b, uint64_t now_us);
/* Instead of stats_adopt. False: the numbers cannot be; the page has those of the last look at which they could, *age_us
 * ago, and `why` says what is wrong. */
bool stats_belief_adopt(struct stats_belief *b, unsigned slot, unsigned which, uint64_t now_us, uint64_t *age_us,
			struct text *why);
/* The page of a dead worker has changed under the hands of the master: these numbers are believed. */
void stats_belief_note(struct stats_belief *b, unsigned slot, unsigned which, uint64_t now_us);

/* Master: the totals of another file, all its slots together, become those of this page, which nobody else writes, by the
 * names of things and counters; what was imported before is replaced. Not published. Who feeds whom is not in it. */
struct stats_copy;
void stats_import(struct stats *st, struct stats_page *to, const struct stats_copy *from);
/* … where one of its inputs or outputs is here; -1: there is no place left. */
int stats_import_place(struct stats *st, const struct stats_copy *from, enum stats_scope scope, unsigned index);
/* … and what its master counted of endpoints is added to ours; once. But not what the kernel counts of a socket since it
 * was made, where we have the same socket. */
void stats_import_endpoints(struct stats *st, const struct stats_copy *from);

/* -- reading: any process, before or after fork -------------------------------------------------------------------- */

/* Maps n descriptors of stats_reader_fd, in order, read only; the caller may close them. At least those of the main file
 * and the monitor. Nothing in the files is trusted. NULL with err: they are not such files. */
struct stats *stats_open(const int *fds, size_t n, struct err *err);
/* A reader, or a child of the master: the next file, of a slot that was added since (stats_copy_lacks_pages). 0, or -errno
 * with err. */
int stats_open_next(struct stats *st, int fd, struct err *err);

/* One counter's description, from the mapped file itself. */
struct stats_field {
	char name[48];
	char help[208];
	uint8_t scope, kind, ledger, index; /* index in the block */
};
unsigned stats_fields(const struct stats *st, enum stats_scope scope, const struct stats_field **first);
/* Index in the block of the counter of that name, or -1: this file has none (its millrace is older). */
int stats_field_find(const struct stats *st, enum stats_scope scope, const char *name);

struct stats_entry {
	char name[264];
	char unit[16];
	uint32_t parent;
	uint32_t used; /* enum stats_used */
	uint64_t feeds;
};
enum stats_used {
	STATS_UNUSED, /* no name */
	STATS_USED,
	STATS_RETIRED, /* removed by a reload: its totals stay */
};
/* How many entries a scope has, and one of them. WORKER and SLOT entries are the slots. Of a reader and a child:
 * as they were at its begin; stats_copy_entries follows changes. */
unsigned stats_entries(const struct stats *st, enum stats_scope scope);
const struct stats_entry *stats_entry(const struct stats *st, enum stats_scope scope, unsigned index);

/* All slots that there ever were. */
unsigned stats_slots(const struct stats *st);

/* Consistent copies of whole pages, made under the sequence numbers, into memory of its own: reserved by
 * stats_copy_new, so taking a copy allocates nothing; a second copy takes only what changed since the first. */
struct stats_copy;
struct stats_copy *stats_copy_new(const struct stats *st);
void stats_copy_free(struct stats_copy *c);
/* Copies every page and the directory. 0, or -EAGAIN with err when a page would not hold still for about 200 ms (its
 * writer died in the middle, and the master did not adopt it yet). */
int stats_copy_take(struct stats_copy *c, struct err *err);
/* The writer of this page has ended, and nobody adopts the page: a publication that was cut off is taken as if done. */
void stats_copy_ended(struct stats_copy *c, unsigned slot, unsigned which);
const struct stats *stats_copy_of(const struct stats_copy *c);
unsigned stats_copy_slots(const struct stats_copy *c); /* whose pages we have */
/* There are slots whose pages we do not have: ask for the files from stats_files(st) on, and give them to
 * stats_open_next. */
bool stats_copy_lacks_pages(const struct stats_copy *c);
/* The directory as it was at the copy. A block that was used and never named is listed too: "#3", used = 0. */
unsigned stats_copy_entries(const struct stats_copy *c, enum stats_scope scope);
const struct stats_entry *stats_copy_entry(const struct stats_copy *c, enum stats_scope scope, unsigned index);
bool stats_copy_is_retired(const struct stats_copy *c, enum stats_scope scope, unsigned index);
/* A counter of one slot, of both its pages together, or summed over all slots with slot = STATS_ALL. Scopes of the
 * master's and the monitor's page: slot is ignored. WORKER: index is ignored. `field` is an index in the
 * block. What is out of range is 0. */
enum { STATS_ALL = -1 };
uint64_t stats_value(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, unsigned field);
/* The same by name; 0 when the file has no such counter. */
uint64_t stats_named(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, const char *name);
/* The whole block likewise, into its struct; for readers of this very version. False: it is another one. */
bool stats_sum(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, void *block);

/* -- what is computed from a copy: pure, and goes by the names in the file ----------------------------------------- */

/* The ledger: checks every equation in every page and adds a line for each that does not hold:
 * "worker 1 input metrics: received_lines 10 ≠ to_outputs_lines 9 + … ". Returns how many do not hold. */
unsigned stats_check(const struct stats_copy *c, struct text *t);

/* One counter of one block; `worker` is -1 in the master's and the monitor's page. Below an output `parent` is that
 * output, of an ENDPOINT or DEVICE its input, else NULL. */
struct stats_row {
	const struct stats_field *field;
	int worker;
	const struct stats_entry *entry, *parent;
	uint64_t value;
};
typedef void stats_row_cb(void *arg, const struct stats_row *row);
/* Of what is below an output that output, of an ENDPOINT or DEVICE its input, else NULL. */
const struct stats_entry *stats_entry_parent(const struct stats_copy *c, enum stats_scope scope,
					     const struct stats_entry *e);
/* Calls back for every counter there is: each worker's page, then the master's, then the monitor's. */
void stats_each_row(const struct stats_copy *c, stats_row_cb *cb, void *arg);

/* Changes whenever a page of the slot was published: what was computed from it may be kept until then. */
uint64_t stats_copy_sequence(const struct stats_copy *c, unsigned slot);

/* One block of one of a slot's two pages, as it lies there; of the master's and the monitor's scopes slot and which do not
 * matter. NULL: the page has none there. */
const uint64_t *stats_copy_block_of(const struct stats_copy *c, unsigned slot, unsigned which, enum stats_scope scope,
				    unsigned index);

const char *stats_scope_word(enum stats_scope scope);	 /* "worker", "input", … */
const char *stats_kind_word(unsigned kind);		 /* "counter", "gauge", "loss", "hint" */
const char *stats_broker_state_word(uint64_t state); /* of an enum stats_broker_state: "idle", … */
const char *stats_slot_state_word(uint64_t state);   /* of an enum stats_slot_state: "vacant", … */
bool stats_slot_is_ready(const struct stats_copy *c, unsigned slot);
/* What an ENDPOINT is: a socket for datagrams, a ring of the kernel, a receive queue of DPDK; else streams or files. */
enum stats_endpoint_kind { STATS_ENDPOINT_OTHER, STATS_ENDPOINT_SOCKET, STATS_ENDPOINT_RING, STATS_ENDPOINT_QUEUE };
enum stats_endpoint_kind stats_endpoint_kind(const struct stats_copy *c, unsigned index);
/* Scopes below an output: BACKEND, KAFKA and BROKER. */
bool stats_scope_is_below_output(enum stats_scope scope);
/* Whether the block is one to show. Of KAFKA and BROKER only some exist: those of kafka outputs, and the brokers that
 * the worker (STATS_ALL: any) knows. */
bool stats_block_exists(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index);
/* Ready workers that have the backend up. */
unsigned stats_backend_ups(const struct stats_copy *c, unsigned backend);
/* Since when the first of the ready workers that miss the backend misses it, microseconds since 1970; 0: all have it. */
uint64_t stats_backend_down_us(const struct stats_copy *c, unsigned backend);

#endif
