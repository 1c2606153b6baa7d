/* SPDX-License-Identifier: MIT
 *
 * endpoint: addresses and devices that inputs read, and the registry that owns them. Master only, but for what a worker
 * finds in a struct endpoint after fork.
 *
 * Each address or device of a type is in the registry once, with a descriptor for each slot or one for all. Inputs of a
 * configuration hold references; workers of any generation borrow. So a change of the configuration is: take references
 * for the new one, drop those of the old one. What nobody refers to any more is *retired* at once (it takes in nothing
 * new, and its workers read what is there), and closed by registry_sweep when they have made place.
 *
 *   configuration ──▶ endpoint_get ──▶ in the registry?  ──no──▶ bind, references = 1
 *                                            │ yes: references++
 *   all of them are there ──▶ endpoint_adjust, registry_settle           what was before ──▶ endpoint_put ──▶ 0: retired
 *   one of them cannot be ──▶ endpoint_put, registry_sweep, endpoint_restore: all is as it was
 */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <base.h>
#include <conf.h>
#include <net.h>
#include <stats.h>

#include <sys/queue.h>
#include <sys/stat.h>

struct endpoint;
struct endpoint_user;

/* What the master does with endpoints of one type. NULL: nothing to do. */
struct endpoint_ops {
	const char *name;   /* "udp"; of a capture its driver */
	bool has_port;	    /* known by its network address, else by its name alone */
	bool is_device;	    /* packets, not sockets */
	bool counts_drops;  /* the kernel counts what each of its sockets dropped */
	uint64_t capabilities; /* to bind and renew, beyond those of sockets (CAPABILITY) */

	/* Any process: what is wrong with the options beyond what src/conf knows, a line each. Returns how many. */
	size_t (*check)(const struct conf_input *cf, const char *path, struct text *errors);
	/* What this input wants of the key cannot be made of `ep`, which another configuration has: it gets an endpoint of
	 * its own beside it, bound last. NULL: never. */
	bool (*is_other)(const struct endpoint *ep, const struct endpoint_user *user);
	/* What `former` took in until now, `ep` takes in from now on. NULL: as soon as former's descriptors leave. */
	void (*follow)(struct endpoint *ep, struct endpoint *former);
	/* Makes the descriptors of all slots, or the one of all. What was made before an error is closed by the caller.
	 * 0, or -errno with one sentence. */
	int (*bind)(struct endpoint *ep, struct err *err);
	/* cf or n_slots are others now. More descriptors when they are wanted; never fewer. 0, or -errno with err. */
	int (*adjust)(struct endpoint *ep, struct err *err);
	/* Nothing new comes to this descriptor from now on; what is there can still be read. */
	void (*leave)(int fd);
	/* Closes what bind made. NULL: descriptors are all there is. */
	void (*unbind)(struct endpoint *ep);
	/* Worker, right after fork: appends the descriptors that its slot keeps to keep[*n] (at most ENDPOINT_KEEP_MAX).
	 * NULL: the slot's descriptor is kept. */
	void (*keep)(struct endpoint *ep, unsigned slot, int *keep, size_t *n);
	/* The slot's worker is gone (and with is_last nobody comes after it): closes what only it could read and counts
	 * what waited there. Returns packets that were lost so. */
	uint64_t (*died)(struct endpoint *ep, unsigned slot, bool is_last, struct stats_page *page);
	/* The slot's worker is about to be told to leave, and another comes: makes what that one needs, so that nothing
	 * is lost between them. NULL: the slot's descriptors stay. */
	void (*prepare_successor)(struct endpoint *ep, unsigned slot);
	/* Before the next worker is forked: makes what it needs anew. */
	void (*renew)(struct endpoint *ep, unsigned slot, struct stats_page *page);
	/* Each second: the slot's worker should make place for one with a new handle. */
	bool (*is_stale)(const struct endpoint *ep, unsigned slot);
	/* Names of blocks of its own (stats_name, DEVICE), once. */
	void (*label)(struct endpoint *ep, struct stats *stats);
	/* Each second: the device's own counters, into the master's page. */
	void (*count)(struct endpoint *ep, struct stats_page *page);
	/* The brokers of our own outputs are these now ("10.0.0.1:9092,[::1]:9092"): for handles that are made later. */
	void (*exclude)(struct endpoint *ep, const char *brokers);
};
enum { ENDPOINT_KEEP_MAX = 1024 };

extern const struct endpoint_ops endpoint_udp;			      /* udp.c */
extern const struct endpoint_ops endpoint_tcp;			      /* tcp.c */
extern const struct endpoint_ops endpoint_unix, endpoint_unixgram; /* unix.c */

struct endpoint {
	TAILQ_ENTRY(endpoint) next;
	const struct endpoint_ops *ops;
	char *name;		    /* "127.0.0.1:8125", the path or the device */
	struct net_address address; /* of those that have a port; else len is 0 */
	unsigned references;
	/* Whose it is, or is about to be: */
	const struct conf *conf;
	const struct conf_input *cf;
	unsigned input; /* index in stats */
	unsigned n_slots;

	int fds[STATS_SLOTS_MAX]; /* one for each slot, or one that all share; -1: a device has none now */
	unsigned n_fds;
	unsigned n_settled; /* so many are of the configuration in effect; those behind go when the new one is given up */
	uint32_t blocks[STATS_SLOTS_MAX]; /* their ENDPOINT blocks in stats, … */
	unsigned n_blocks;		  /* … of which so many are known */
	uint32_t last_dropped[STATS_SLOTS_MAX]; /* what the kernel's counter said */
	uint64_t receive_buffer_bytes;
	dev_t path_device; /* of the socket file that we made; */
	ino_t path_inode;  /* … 0: there is none, or it is not ours to remove any more */
	bool has_lost_path; /* somebody removed or replaced it: the next configuration binds it anew */
	bool is_retired;
	struct endpoint *former; /* has this key until this one is in effect, which endpoint_adjust binds; else NULL */
	char *former_input; /* adopted: whose it was */
	void *impl;	 /* of the type */

	bool ends; /* worker: after it nobody reads this */
};

/* The descriptor of `ep` that slot's worker reads. -1: none, since the slot is about to end. Any process. */
int endpoint_fd(const struct endpoint *ep, unsigned slot);

TAILQ_HEAD(endpoints, endpoint);
struct registry {
	struct endpoints list;
	struct stats *stats;
	struct stats_page *page; /* the master's */
};

/* -- references ------------------------------------------------------------------------------------------------------ */

/* What an endpoint is known by. */
struct endpoint_key {
	const struct endpoint_ops *ops;
	const char *name; /* the address of the configuration, or `numeric` */
	char numeric[64];
	struct net_address address;
};
enum { ENDPOINT_KEYS_MAX = 16 };
/* The keys of one address of the configuration: of a host name all its addresses. They borrow `address`. Returns how many,
 * or -errno with one sentence. Asks the system's resolver for names. */
int endpoint_keys(const struct endpoint_ops *ops, const struct conf_input *cf, const struct conf *conf, const char *address,
		  struct endpoint_key keys[ENDPOINT_KEYS_MAX], struct err *err);

/* The input that is to read it. */
struct endpoint_user {
	const struct conf *conf;
	const struct conf_input *cf;
	unsigned input; /* index in stats */
	unsigned n_slots;
};
/* A reference to the endpoint of this key, which is bound when there is none that `user->conf` has not taken yet. NULL with
 * *code -errno and one sentence. It has the user's options after endpoint_adjust. */
struct endpoint *endpoint_get(struct registry *reg, const struct endpoint_key *key, const struct endpoint_user *user,
			      int *code, struct err *err);
/* Makes one that was there before as its user wants it, and allots counter blocks. Last, since sockets that join a group
 * get datagrams at once. 0, or -errno with one sentence. */
int endpoint_adjust(struct registry *reg, struct endpoint *ep, struct err *err);
/* Drops one. True: it was the last, and the endpoint is retired. */
bool endpoint_put(struct endpoint *ep);
/* Another configuration was to have it and is given up: what was added goes, options are as before. */
void endpoint_restore(struct registry *reg, struct endpoint *ep, const struct endpoint_user *user);

void registry_init(struct registry *reg, struct stats *stats);
/* The configuration that took references is in effect. */
void registry_settle(struct registry *reg);
/* Closes what has no references. */
void registry_sweep(struct registry *reg);
/* What was adopted and nobody has taken takes in nothing new from now on; registry_sweep closes it. */
void registry_retire_unused(struct registry *reg);
/* The program ends, and no other one comes for the sockets: counts what waits in them. */
void registry_discard(struct registry *reg);
/* Closes all. */
void registry_close(struct registry *reg);
/* The slot is gone for good: closes its descriptors. */
void registry_close_slot(struct registry *reg, unsigned slot);

/* -- from one program to the next ------------------------------------------------------------------------------------ */

struct endpoint_state {
	const char *type; /* endpoint_ops.name */
	const char *name;
	const char *input; /* whose it is: its name */
	struct net_address address;
	dev_t path_device;
	ino_t path_inode;
	unsigned n_fds;
	const int *fds; /* borrowed */
	const uint32_t *last_dropped; /* [n_fds]; NULL: the first look has all that the kernel counted */
};
/* All that is referred to. Stops when `each` returns other than 0, and returns that. */
int registry_export(const struct registry *reg, int (*each)(void *arg, const struct endpoint_state *state), void *arg);
/* An endpoint without references that another program, or this one in its former life, has bound; `fds` are taken, also
 * when it fails. 0, or -errno. */
int registry_adopt(struct registry *reg, const struct endpoint_ops *ops, const struct endpoint_state *state);

/* -- all of them ----------------------------------------------------------------------------------------------------- */

/* Worker, right after fork: appends what slot's worker keeps to keep[*n], which has registry_keep_room. */
size_t registry_keep_room(const struct registry *reg);
void registry_keep(struct registry *reg, unsigned slot, int *keep, size_t *n);
/* As the functions of endpoint_ops. */
uint64_t registry_died(struct registry *reg, unsigned slot, bool is_last);
void registry_prepare_successor(struct registry *reg, unsigned slot);
void registry_renew(struct registry *reg, unsigned slot);
bool registry_is_stale(const struct registry *reg, unsigned slot);
void registry_exclude(struct registry *reg, const char *brokers);
/* Each second, and before a descriptor is closed: what the kernel says, into the master's page. */
void registry_count(struct registry *reg);
/* Each second: says once of each socket file that is not there any more, or is another's. True: of one that it was said
 * now. registry_has_lost_path: of any. Who takes references anew gets new sockets for these. */
bool registry_look_at_paths(struct registry *reg);
bool registry_has_lost_path(const struct registry *reg);
/* Names of those that are referred to, in the directory. */
void registry_name(struct registry *reg);

/* -- for the types --------------------------------------------------------------------------------------------------- */

/* Remembers whose socket file is at ep->name now; and: whether it is still that one. */
void endpoint_note_path(struct endpoint *ep);
bool endpoint_has_path(const struct endpoint *ep);

#endif
