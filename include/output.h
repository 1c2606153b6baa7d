/* SPDX-License-Identifier: MIT
 *
 * output: where records go. One table of functions for each type; the worker knows nothing else of them.
 *
 * Accounting: send() counts all records of the batch as offered at once and holds what it does not take
 * (stats_output.held_records); every record then belongs to one backend's account. All changes go to the draft of the
 * slot's page; the worker publishes after each turn, so between two calls of these functions the account balances.
 */
#ifndef OUTPUT_H
#define OUTPUT_H

#include <base.h>
#include <batch.h>
#include <conf.h>
#include <handover.h>
#include <stats.h>

struct ev_loop;
struct net_resolver;
struct output;

enum output_wants { OUTPUT_WANTS_LINES, OUTPUT_WANTS_ITEMS };

struct output_type {
	const char *name;
	/* Master: what is wrong with the options of this type beyond what src/conf knows, a line each in the form of
	 * the errors of conf; `path` is the file's name. Returns how many. Adds warnings too, which are not counted.
	 * NULL: nothing to check. */
	size_t (*check)(const struct conf_output *cf, const char *path, struct text *errors);
	/* Master: makes what all workers share (out->shared, and out->shared_fd when it can be sent). 0, or -errno with
	 * err. */
	int (*prepare)(struct output *out, struct err *err);
	/* Master, or a child of it that shares out->shared: the part of prepare that takes long, less from what the output
	 * before it had (like; NULL: there was none). NULL: there is no such part. 0, or -errno with err. */
	int (*fill)(struct output *out, const struct output *like, struct err *err);
	/* Master: gives up what prepare made, in this process. NULL: nothing. */
	void (*unprepare)(struct output *out);
	/* Worker: opens sockets, starts threads and timers. A peer that is away is no error. 0, or -errno with err. */
	int (*open)(struct output *out, struct err *err);
	/* Worker: takes records of the batch from b->taken[out->index] on and advances that. Never blocks. Takes all,
	 * unless overflow is `block` and there is no room: then it takes what fits, and calls out->on_room (from the
	 * loop, not from within send) when it is worth trying again. `b` is the same batch then. */
	void (*send)(struct output *out, struct batch *b);
	/* Worker: after each turn of drains and before the loop waits: sends what is due, looks at acknowledgements.
	 * What fills only a part of a segment may wait for out->hold_us. */
	void (*pump)(struct output *out, uint64_t now_us);
	/* Worker: no new records will come; from now on pump waits for nothing. */
	void (*drain)(struct output *out);
	/* Records queued or in flight. */
	uint64_t (*pending)(const struct output *out);
	/* Worker that leaves, its successor is ready and waits: sends what it holds over the channel. Blocks for as long as
	 * the channel is full, at most until deadline_us (clock_us); what could not be sent stays with us. What was sent
	 * is no longer pending(). */
	void (*hand_over)(struct output *out, int channel, uint64_t deadline_us);
	/* Worker: takes over one message of this output. Takes fd (-1: none). Whatever it cannot place is counted. */
	void (*take_over)(struct output *out, const struct handover *msg, size_t len, int fd);
	/* Worker: nothing more is taken over: what did not come is opened now. Only called when out->awaits was set before
	 * open. */
	void (*go)(struct output *out);
	/* Worker: out->file is another one. NULL: it has none. */
	void (*reopen)(struct output *out);
	/* Worker: gives up what is left and counts it by its state (dropped_shutdown, unconfirmed), one log line for
	 * each backend with something left, then frees. */
	void (*close)(struct output *out);
};

struct output {
	const struct output_type *type;
	const struct conf_output *cf;
	unsigned index;		  /* in stats; its place in the configuration is cf->index */
	unsigned n_backends;	  /* BACKEND blocks: the remotes of a statsite output, 1 of a kafka output */
	const uint32_t *blocks;	  /* [n_backends], their indices in stats; the master's, or in `shared` */
	enum conf_words overflow; /* CONF_OVERFLOW_BLOCK, …_DROP_NEWEST, …_DROP_OLDEST; never AUTO */
	enum output_wants wants;
	bool wants_from; /* the sender of each item */
	bool is_statsd, is_carbon; /* of lines: there is an input of it */
	void *shared;    /* of prepare */
	int file;        /* that it appends to (statistics_file), opened by the master for its unprivileged workers; -1 */
	int shared_fd; /* the master's; -1: none */
	bool ends;         /* worker: its successor has no such output */
	uint64_t leave_us; /* a backend that was removed is given up when it took nothing for so long */

	/* set by the worker before open */
	struct ev_loop *loop;
	struct net_resolver *resolver;
	struct stats_page *page;
	unsigned slot, n_slots;
	void (*on_room)(struct output *out);
	void *worker; /* the worker's own, for on_room */
	/* The output's own peers changed: "10.0.0.1:9092,[::1]:9092", numeric. From the loop. NULL: nobody asks. */
	void (*on_peers)(struct output *out, const char *peers);
	uint64_t hold_us; /* since it came, until the first turn after it; 0: nothing waits */
	uint64_t turn_us; /* between two turns, as long as traffic comes */
	bool awaits;	/* a predecessor hands over: open connects nothing before go */
	bool takes_all; /* we leave: send takes everything, whatever the limits, since hand_over comes next */

	void *impl; /* of open */
};

/* Master: fills in type, cf, overflow, wants and n_backends for the output at this place of the configuration. 0, or -errno
 * with err. index, and blocks by output_set_blocks, are the caller's; then type->prepare and type->fill. */
int output_make(struct output *out, const struct conf *cf, size_t place, struct err *err);
/* Copies them. 0 or -ENOMEM. */
int output_set_blocks(struct output *out, const uint32_t *blocks);
/* All of it, with places and blocks numbered from 0: what a program that starts has. */
int output_init(struct output *out, const struct conf *cf, size_t place, struct err *err);
void output_fini(struct output *out); /* master */
/* The one of that name; NULL: none. */
struct output *output_named(struct output *outputs, size_t n, const char *name);
/* Master, also at USR1: opens the output's file anew, for the workers that are forked later. */
void output_open_file(struct output *out);
/* Worker: appends to this one from now on (takes fd). */
void output_take_file(struct output *out, int fd);
/* Master: the check of every output's type. Returns how many errors were added, a line each. */
size_t output_check(const struct conf *cf, struct text *errors);
/* Name and transport ("tcp", "udp", "kafka") of the output's BACKEND block i, for people. buf of at least 300 bytes. */
const char *output_backend_name(const struct output *out, unsigned i, char *buf, size_t size);
const char *output_backend_transport(const struct output *out, unsigned i);

/* librdkafka's version; NULL: this millrace was built without it. */
const char *output_kafka_version(void);

/* -- which backend gets a key -------------------------------------------------------------------------------------- */

/* rendezvous: slot of the hash → backend; modulo: hash modulo n → backend. Memory of its own (shared when made before
 * fork), so that workers read it. Also used by millracectl. */
struct shards {
	bool modulo;
	uint32_t n;	     /* entries of map */
	uint32_t n_backends; /* behind the map: index in stats of each backend's block */
	uint16_t map[];	     /* index into conf_output.backends */
};
/* In a memfd, mapped for writing, not filled yet; *fd is its descriptor. blocks NULL: all 0. NULL when memory is short. */
struct shards *shards_make(const struct conf_output *cf, const uint32_t *blocks, int *fd);
/* Takes about 1 ms a backend for rendezvous; from the map of another configuration (like; NULL: none) about 10 ms for each
 * backend that is not in both. False when memory is short. */
bool shards_fill(struct shards *s, const struct conf_output *cf, const struct shards *like,
		 const struct conf_output *like_cf);
/* Made and filled, without a descriptor. NULL when memory is short. */
struct shards *shards_new(const struct conf_output *cf);
/* As it lies in memory; and a map that another process has filled in the same way. False: it is of another shape. */
size_t shards_size(const struct shards *s);
bool shards_fill_from(struct shards *s, const void *bytes, size_t len);
void shards_free(struct shards *s);
static inline uint32_t *shards_blocks(struct shards *s)
{
	return (uint32_t *)(void *)(s->map + (s->n + 1) / 2 * 2);
}
static inline uint32_t shards_index(const struct shards *s, uint32_t hash)
{
	return s->modulo ? hash % s->n : hash >> 16;
}
static inline uint32_t shards_backend(const struct shards *s, uint32_t hash)
{
	return s->map[shards_index(s, hash)];
}

#endif
