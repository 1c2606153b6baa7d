/* SPDX-License-Identifier: MIT
 *
 * input: where records come from. One table of functions for each type; the worker knows nothing else of them.
 *
 * An input has endpoints (addresses of `bind`); the master binds them before fork and owns the descriptors. A worker
 * reads through sources: a socket of its own slot, one that all workers share, one lent by a slot without a tenant, or
 * an accepted connection. Whatever was read and is not yet in the published counters lies in the slot's `hand`, in
 * memory that the master sees too, so that it can count what a killed worker had read.
 */
#ifndef INPUT_H
#define INPUT_H

#include <base.h>
#include <batch.h>
#include <conf.h>
#include <ev.h>
#include <net.h>
#include <stats.h>

struct input;
struct source;
struct hand;
struct endpoint;

/* A stream connection on its way to another worker. */
struct input_passed {
	bool is_skipping; /* to the newline of a line that was too long */
	uint64_t framing; /* below 2^63: framing_pack() of src/input */
	uint32_t kept_bytes;
	const char *kept; /* the begin of a line */
};

/* How a worker leaves. */
enum input_leave {
	INPUT_STAYS,
	INPUT_ALL_END,	  /* the program ends: so do all sockets and connections */
	INPUT_SLOT_ENDS,  /* nobody comes after us: our own sockets end, shared ones stay, connections go to siblings */
	INPUT_SLOT_STAYS, /* somebody comes after us: sockets stay, connections are for him */
};

struct input_type {
	const char *name;
	bool is_stream; /* lines may span reads, and the unit is the line; else the datagram */
	/* Master: one descriptor for each slot, or one for all; looks up the address of ep->name. 0, or -errno with one
	 * sentence. */
	int (*bind)(struct input *in, struct endpoint *ep, struct err *err);
	/* Worker: makes the sources of this slot. 0, or -errno. */
	int (*open)(struct input *in, struct err *err);
	/* Worker: in->leave says how it leaves. Endpoints of which input_ends() holds take in nothing new from now on, and
	 * what the kernel holds already can still be read; of the others this worker only stops reading. */
	void (*drain)(struct input *in);
	/* Worker: hands the peer of this source, with what is unfinished of it, to who comes next, and frees the source.
	 * False: not now, try again when the link takes more. NULL: nothing to hand over. */
	bool (*pass)(struct source *s);
	/* Worker: the other end of it: takes fd. */
	void (*take)(struct input *in, int fd, const struct input_passed *p);
	/* Worker: another `cf` is in effect, which differs in what is LIVE. NULL: it looks there anyway. */
	void (*reload)(struct input *in);
	/* Worker: reads one batch into in->hand, fills b->items and counts them. Returns items; 0: nothing is there now.
	 * Sets s->drained when surely nothing more is there, s->ended when nothing will ever be (EOF, error). */
	unsigned (*read)(struct source *s, struct batch *b);
	/* Worker: the batch in hand is wholly cut: keeps what is unfinished. NULL: nothing to keep. */
	void (*after)(struct source *s, char *rest, size_t rest_bytes);
	/* Worker: the batch in hand is taken: gives borrowed memory back. NULL: none is borrowed. */
	void (*give)(struct source *s);
	/* Worker: counts what is unfinished, closes the descriptor, frees the source. */
	void (*end)(struct source *s);

	/* What follows is for packets; NULL: nothing to do. */
	bool is_packets;    /* items are packets: the lines are those of their UDP payloads */
	bool is_paced;	    /* the kernel lets packets gather itself: no coalescing here */
	bool is_finite;	    /* ends by itself; when all inputs are, the program ends with them */
	bool stays_in_slot; /* descriptors mean nothing to a sibling: never lent */
	/* Any process: what is wrong with the options beyond what src/conf knows, a line each. Returns how many. */
	size_t (*check)(const struct conf_input *cf, const char *path, struct text *errors);
	/* Master: the capabilities that bind and renew need, beyond those of sockets (CAPABILITY). NULL: none. */
	uint64_t (*capabilities)(const struct conf_input *cf);
	/* Master: closes what bind made of this endpoint. NULL: its descriptors are all there is. */
	void (*unbind)(struct input *in, struct endpoint *ep);
	/* Worker, right after fork: gives up all mappings of other slots, and appends what its own slot keeps to keep[*n]
	 * (at most INPUT_KEEP_MAX for each endpoint). Slot n_slots is nobody's: nothing is kept. NULL: the slot's
	 * descriptor. */
	void (*keep)(struct input *in, unsigned slot, int *keep, size_t *n);
	/* Master: slot's tenant is gone (and with `is_last` nobody comes after it): closes what only it could read and
	 * counts what waited there. Returns packets that were lost so. */
	uint64_t (*died)(struct input *in, unsigned slot, bool is_last, struct stats_page *master_page);
	/* Master: slot's tenant is about to be told to leave, and another comes: makes what that one needs, so that nothing
	 * is lost between them. NULL: the slot's sockets stay. */
	void (*prepare_successor)(struct input *in, unsigned slot);
	/* Master: the options of the input, or the number of slots, are others now: does what can be done with an endpoint
	 * that stays. 0, or -errno with err. NULL: nothing. */
	int (*adjust)(struct input *in, struct endpoint *ep, struct err *err);
	/* Master: this endpoint is given up: nobody new comes to it from now on. NULL: nothing. */
	void (*retire)(struct input *in, struct endpoint *ep);
	/* Master, before the next tenant is forked: makes what it needs anew. */
	void (*renew)(struct input *in, unsigned slot, struct stats_page *master_page);
	/* Master, each second: true when slot's tenant should make place for one with a new handle. */
	bool (*is_stale)(const struct input *in, unsigned slot);
	/* Master, before fork: names of blocks of its own (stats_name, DEVICE). */
	void (*label)(struct input *in, struct stats *stats);
	/* Master, each second: the device's own counters, into the master's page. */
	void (*kernel_drops)(struct input *in, struct stats_page *master_page);
	/* Worker and master: the brokers of our own outputs are these now ("10.0.0.1:9092,[::1]:9092"). */
	void (*exclude)(struct input *in, const char *brokers);
};
enum { INPUT_KEEP_MAX = 1024 };
#define INPUT_NO_SLOT UINT32_MAX /* of keep: a process that is no worker */

/* One address of `bind`. */
struct endpoint {
	char name[128]; /* "127.0.0.1:8125", or the path */
	struct net_address address;
	int *fds; /* [in->n_slots], or one that all slots share */
	unsigned n_fds;
	uint32_t *blocks;	/* [n_fds], their ENDPOINT blocks in stats; the master's, */
	unsigned n_blocks;	/* … of which so many are known */
	uint32_t *last_dropped; /* [n_fds], what the kernel's counter said; NULL: nothing is dropped here */
	bool ends;		/* worker: nobody goes on with it */
	bool is_retired;	/* master: input_type.retire was called */
	bool is_moved;		/* master, during a reload: it is in the new inputs … */
	struct endpoint *moved_from; /* … and this one there came from here, with so many descriptors */
	unsigned had_fds;
	uint64_t receive_buffer_bytes;
	int group;	    /* of a capture that is taken over: the group that its rings join; -1: a new one */
	uint32_t mtu;	    /* of a capture: of the interface; 0: not known */
	const void *driver; /* of a capture: struct capture_driver, private to src/input */
	void *impl;	    /* of the type, or of the driver */
};

/* An invalid line, for people: the worker writes it, the master reads it. */
enum { INVALID_KEPT = 16, INVALID_TEXT_BYTES = 160 };
struct invalid_line {
	uint64_t at_us;	     /* since 1970; 0: none */
	uint32_t line_bytes; /* of which `text` has the first */
	uint32_t reason;     /* enum lines_reason of src/input */
	struct sockaddr_storage from; /* AF_UNSPEC: not known */
	char text[INVALID_TEXT_BYTES];
};
struct invalid_lines {
	uint64_t n; /* so many were written, the last INVALID_KEPT are there */
	struct invalid_line lines[INVALID_KEPT];
};

/* What a worker has read and not yet published, for the master to count when the worker is killed. Shared memory:
 * messages[i].msg_len is written by the kernel itself, so there is no moment at which a datagram is read and not seen.
 * The lengths are zero before each read and after each publication. */
struct hand {
	struct mmsghdr messages[BATCH_ITEMS];
	struct iovec iovecs[BATCH_ITEMS];
	struct sockaddr_storage from[BATCH_ITEMS];
	unsigned used;		/* messages that may have a length */
	unsigned done;		/* messages before this one are published … */
	size_t done_bytes;	/* … and so many bytes of it */
	bool datagrams_counted; /* only lines are still to be counted */
	struct invalid_lines invalid;
	/* Of packets: messages[i].msg_len is the captured length, and iovecs[i] the payload to be cut, if any. They lie one
	 * behind the other in the slab, or where the device put them. */
	char slab[BATCH_ITEMS][BATCH_ITEM_BYTES + BATCH_SLACK]; /* the odd stride spreads the items over the cache's sets */
};

struct input {
	const struct input_type *type;
	const struct conf_input *cf;
	unsigned index; /* in stats; its place in the configuration is cf->index */
	const struct conf *conf; /* all of it */
	unsigned n_slots;
	struct endpoint *endpoints;
	unsigned n_endpoints;
	struct hand **hands; /* [STATS_SLOTS_MAX], shared memory, one for each slot that there was */
	bool wants_lines, wants_items, wants_from; /* by the outputs; set by the master before fork */
	bool is_done; /* master: a finite input of which all is delivered, or given up */

	/* the worker's */
	bool has_told_done;
	struct ev_loop *loop;
	struct stats_page *page;
	struct stats_input *stats; /* draft block */
	struct hand *hand;	   /* of this slot */
	unsigned slot;
	struct batch batch;
	double invalid_at;	/* ev_now() when an invalid line was last looked at, … */
	unsigned n_invalid;	/* … and how many in the second from then on */
	struct lines *lines;	/* cuts and judges lines; private to src/input */
	uint32_t mtu;		/* of the interface that the packets in hand are from; 0: not known */
	struct source *reading; /* whose batch is in hand; NULL: none */
	unsigned cut_item;	/* the next line begins in this item */
	char *cut_at;		/* here; NULL: at its begin */
	bool held;		/* a full output holds this input back */
	bool draining;
	enum input_leave leave;
	bool is_removed;	/* no such input comes after us: its connections are read and closed */
	bool is_renamed;	/* they go on as those of … */
	unsigned renamed_to;	/* … the input of this index */
	bool discarding; /* lines are counted as dropped at shutdown */
	struct source *sources; /* list of all open ones */
	void (*on_source)(struct source *s);   /* a new one: the worker watches it */
	void (*on_readable)(struct source *s); /* from the loop */
	void (*on_end)(struct source *s);      /* before it is freed */
	void (*on_status)(struct input *in, struct text *t); /* adds statsrelay's status text */
	bool (*on_pass)(struct source *s, const struct input_passed *p); /* sends s->fd on; false: not now */
	void *worker;
	void *impl;
};

/* How datagrams gather before they are read: see src/input/coalesce.c. */
struct coalesce {
	uint64_t window_us; /* start of the present window */
	uint64_t found;	    /* datagrams in it */
	uint64_t bytes;
	uint64_t rate_per_ms; /* of the last window */
	uint64_t bytes_per_ms;
	bool dense;
};

/* A descriptor that a worker reads. The head of the type's own struct. */
struct source {
	struct input *in;
	struct endpoint *ep; /* whose socket it is; NULL: a connection, or lent */
	int fd; /* -1: nothing to wait for, it is polled */
	struct ev_io io;
	struct source *next, **prev; /* in->sources */
	uint64_t poll_us;	     /* fd -1: how long it rests now between two looks */
	struct coalesce coalesce;
	uint64_t receive_buffer_bytes;
	int lent_by;		   /* slot whose socket this is while it has no tenant; -1: our own */
	bool drained, ended;
	/* the worker's */
	bool is_watched;
	bool is_queued; /* in the list of those that are read at the next tick or turn */
	struct source *next_queued, **prev_queued;
};

/* For the types. Worker: takes fd, puts the source into in->sources and tells the worker; size: of the type's struct,
 * zeroed. NULL: no memory (fd is closed). source_free: out of the list, closes fd, frees. */
struct source *source_new(struct input *in, struct endpoint *ep, int fd, size_t size);
void source_free(struct source *s);

/* Worker: nobody goes on with what this source reads. */
static inline bool input_ends(const struct source *s)
{
	return s->in->leave == INPUT_ALL_END || (s->ep && s->ep->ends);
}

/* Master: type, cf, hands for n_slots and room for endpoints. `like`: an input of the same name and type that this one
 * takes the place of, or NULL; its hands are shared then, its endpoints are not taken. 0, or -errno with one sentence. */
int input_make(struct input *in, const struct conf *cf, size_t place, unsigned n_slots, const struct input *like,
	       struct err *err);
/* Master: the next endpoint, at this address: moved from `from`, which has been looked up by input_find_endpoint, or bound
 * (NULL). 0, or -errno with one sentence. */
int input_add_endpoint(struct input *in, const char *address, struct endpoint *from, int group, struct err *err);
/* Master: undoes the move; or takes it for done. */
void input_return_endpoint(struct endpoint *ep);
/* Master: the endpoint of `old` that reads this address for an input of this type, or NULL. */
struct endpoint *input_find_endpoint(struct input *old, const struct input *in, const char *address);
/* Master of a program that takes over: an input of this type ("udp") that is only a place for endpoints that another bound.
 * 0, or -ENOENT. */
int input_inherit(struct input *in, const char *type, unsigned n_endpoints);
/* … descriptor number k of n, of its next endpoint or the one that was begun. Takes fd. 0 or -ENOMEM. */
int input_inherit_fd(struct input *in, const char *name, const struct net_address *address, unsigned k, unsigned n,
		     int group, int fd);
/* Master: the fanout group of a capture's endpoint, which a successor's rings join; -1: none. */
int input_group(const struct input *in, const struct endpoint *ep);
/* Master: closes and removes one endpoint. */
void input_close_endpoint(struct input *in, struct endpoint *ep);
/* Master: room for n descriptors in the endpoint. */
bool input_endpoint_room(struct endpoint *ep, unsigned n);
void input_fini(struct input *in); /* master: closes and removes what it bound, but what is_moved */
void input_forget(struct input *in, bool keeps_hands); /* master: frees only memory; the endpoints are elsewhere */
/* Any process: what is wrong with the options of every input's type. Returns how many errors were added, a line each. */
size_t input_check(const struct conf *cf, struct text *errors);
/* Master: the capabilities that this input needs, on this machine as it is set up now. */
uint64_t input_capabilities(const struct conf_input *cf);
/* Worker, right after fork: descriptors that slot's tenant keeps, appended to keep[*n]; gives up the mappings of others. */
void input_keep(struct input *in, unsigned slot, int *keep, size_t *n);
/* Another child than a worker, right after fork: gives up all mappings. Its descriptors it closes itself. */
void input_leave_alone(struct input *in);
/* Master: slot's tenant is gone, or the next one is about to be forked: for types that hold more than descriptors. died
 * returns the packets that were lost unread. */
uint64_t input_died(struct input *in, unsigned slot, bool is_last, struct stats_page *master_page);
void input_renew(struct input *in, unsigned slot, struct stats_page *master_page);
/* The addresses of the configuration: bind, interface, port or path. */
const struct conf_list *input_addresses(const struct conf_input *cf, struct conf_list *one);
/* Master, once a second and at a death: what the kernel says of each socket, into the master's page. */
void input_kernel_drops(struct input *in, struct stats_page *master_page);
void input_endpoint_drops(struct input *in, struct endpoint *ep, struct stats_page *master_page);
/* Master, when slot's tenant is dead: adds what it had read and not published to the slot's page. Returns records: lines,
 * and datagrams or packets where an output wants them whole. */
uint64_t input_lost_at_death(struct input *in, unsigned slot, struct stats_page *page);

/* Master: the invalid lines that slot's worker kept, in no order, into out[INVALID_KEPT]. Returns how many. What another
 * process wrote: they may be anything. */
size_t invalid_take(const struct input *in, unsigned slot, struct invalid_line *out);
/* Sender, escaped text and reason. */
void invalid_add(const struct invalid_line *l, struct text *t);

/* The socket of `ep` that slot's tenant reads. */
int input_slot_fd(const struct endpoint *ep, unsigned slot);

/* It reads DPDK queues, which stay as they were made. */
bool input_is_dpdk(const struct input *in);

/* The packets that libpcap itself would give: version for people, NULL when it is not built in. */
const char *input_pcap_version(void);
/* The same of DPDK. */
const char *input_dpdk_version(void);

/* Worker: loop, page, slot and the callbacks are set; makes the sources of this slot. 0, or -errno with err. */
int input_open(struct input *in, struct err *err);
/* Cuts the next lines of the batch in hand into in->batch.lines: returns how many, 0 when nothing is left. */
unsigned input_cut(struct input *in);
/* After the counters are published: forgets what is wholly counted. */
void input_published(struct input *in, bool batch_done);
/* Reads fd, the socket of a slot without tenant, too (takes fd). Datagrams only. 0, or -errno. */
int input_adopt(struct input *in, int fd, unsigned lent_by);
/* Worker: the configuration in effect is another one, which differs in what is LIVE. */
void input_reload(struct input *in, const struct conf *cf);
void input_release(struct input *in, unsigned lent_by);

/* The same for a source that is polled: busy while packets come, then rests that double from POLL_FIRST_US to POLL_SOON_US,
 * and from there grow slowly, over 250 ms without a packet, to POLL_LAST_US: a wake-up from deep sleep takes 21 to 35 us
 * on a virtual machine (measured: 2.2 % of a core with rests of 1 ms, 1.7 % with 2 ms, 0.6 % with these). */
enum { POLL_FIRST_US = 50, POLL_SOON_US = 1000, POLL_LAST_US = 5000 };
uint64_t coalesce_poll_us(uint64_t last_us, uint64_t found);

/* Notes what a drain found. Returns how long to wait before the next read: 0 says wait for readiness. */
uint64_t coalesce_wait_us(struct coalesce *c, const struct conf_input *cf, uint64_t receive_buffer_bytes,
			  uint64_t now_us, uint64_t found, uint64_t bytes);

#endif
