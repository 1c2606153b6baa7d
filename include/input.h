/* SPDX-License-Identifier: MIT
 *
 * input: where records come from. One table of functions for each type; the worker knows nothing else of them.
 *
 * An input has endpoints (addresses of `bind`, devices), which the master's registry owns (endpoint.h). A worker
 * reads through sources: a socket of its own slot, one that all workers share, one lent by a slot without a worker, or
 * an accepted connection. Whatever was read and is not yet in the published counters lies in the worker's receive batch,
 * in memory that the master sees too, so that it can count what a killed worker had read.
 */
#ifndef INPUT_H
#define INPUT_H

#include <base.h>
#include <batch.h>
#include <coalesce.h>
#include <conf.h>
#include <endpoint.h>
#include <ev.h>
#include <net.h>
#include <stats.h>

struct input;
struct source;
struct receive;

/* A stream connection on its way to another worker. */
struct input_passed {
	bool is_skipping; /* to the newline of a line that was too long */
	uint64_t framing; /* below 2^63: framing_pack() of src/input */
	uint32_t kept_bytes; /* at most LINE_MAX_BYTES + 1 */
	const char *kept; /* the begin of a line */
};

/* How a worker leaves. */
enum input_leave {
	INPUT_STAYS,
	INPUT_ALL_END,	  /* the program ends: so do all sockets and connections */
	INPUT_SLOT_ENDS,  /* nobody comes after us: our own sockets end, shared ones stay, connections go to siblings */
	INPUT_SLOT_STAYS, /* somebody comes after us: sockets stay, connections are for him */
	INPUT_STORED,	  /* the program ends; sockets stay in a store, for the next one; connections end */
};

/* One row for each type of input, and of a capture for each driver. The master's part is `endpoint`; the functions here are
 * a worker's. NULL: nothing to do. */
struct input_type {
	const char *name;  /* "udp"; of a capture its driver */
	bool is_stream;	   /* lines may span reads, and the unit is the line; else the datagram */
	bool is_packets;   /* items are packets: the lines are those of their UDP payloads */
	bool is_paced;	   /* the kernel lets packets gather itself: no coalescing here */
	bool is_finite;	   /* ends by itself; when all inputs are, the program ends with them */
	bool is_fixed;	   /* it stays as it was made: no reload changes it, and no other program takes it over */
	const struct endpoint_ops *endpoint;
	/* Of a capture's row, any process: this row reads the device when the configuration leaves it open. */
	bool (*is_mine)(const struct conf_input *cf, const char *device);

	/* What the slot needs once, and its sources of each endpoint. 0, or -errno. */
	int (*open)(struct input *in, struct err *err);
	int (*open_endpoint)(struct input *in, struct endpoint *ep, struct err *err);
	/* in->leave says how it leaves. Endpoints of which input_ends() holds take in nothing new from now on, and what the
	 * kernel holds already can still be read; of the others this worker only stops reading. */
	void (*drain)(struct input *in);
	/* Hands the peer of this source, with what is unfinished of it, to who comes next, and frees the source. False: not
	 * now, try again when the link takes more. */
	bool (*pass)(struct source *s);
	/* The other end of it: takes fd. */
	void (*take)(struct input *in, int fd, const struct input_passed *p);
	/* Reads one batch into in->receive, fills b->items and counts them. Returns items; 0: nothing is there now. Sets
	 * s->drained when surely nothing more is there, s->ended when nothing will ever be (EOF, error). */
	unsigned (*read)(struct source *s, struct batch *b);
	/* The batch in hand is wholly cut: keeps what is unfinished. */
	void (*after)(struct source *s, char *rest, size_t rest_bytes);
	/* The batch in hand is taken: gives borrowed memory back. */
	void (*give)(struct source *s);
	/* Counts what is unfinished, closes the descriptor, frees the source. */
	void (*end)(struct source *s);
	/* The brokers of our own outputs are these now ("10.0.0.1:9092,[::1]:9092"). */
	void (*exclude)(struct input *in, struct endpoint *ep, const char *brokers);
};

enum { RECEIVE_WORDS = 16 };

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

/* What a worker has read of one input and not yet published, for the master to count when the worker is killed. Shared
 * memory: messages[i].msg_len is written by the kernel itself, so there is no moment at which a datagram is read and not
 * seen. The lengths are zero before each read and after each publication. */
struct receive_batch {
	_Alignas(4096) struct mmsghdr messages[BATCH_ITEMS];
	struct iovec iovecs[BATCH_ITEMS];
	struct sockaddr_storage from[BATCH_ITEMS];
	const struct receive_batch *base; /* where its worker has it: the master may have it elsewhere */
	unsigned used;			  /* messages that may have a length */
	unsigned done;			  /* messages before this one are published … */
	size_t done_bytes;		  /* … and so many bytes of it */
	unsigned datagrams_counted;	  /* only lines are still to be counted */
	uint64_t words[RECEIVE_WORDS];	  /* of the type, for who comes after a killed worker */
	struct invalid_lines invalid;	  /* stay from one worker of the slot to the next */
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
	struct endpoint **endpoints; /* references of the master's; a worker borrows them */
	unsigned n_endpoints;
	bool wants_lines, wants_items, wants_from; /* by the outputs; set by the master before fork */
	bool is_done; /* master: a finite input of which all is delivered, or given up */

	/* the worker's */
	bool has_told_done;
	struct ev_loop *loop;
	struct stats_page *page;
	struct stats_input *stats; /* draft block */
	struct receive_batch *receive; /* of this process */
	unsigned slot;
	struct batch batch;
	double invalid_at;	/* ev_now() when an invalid line was last looked at, … */
	unsigned n_invalid;	/* … and how many in the second from then on */
	struct lines *lines;	/* cuts and judges lines; private to src/input */
	uint64_t wait_us;	/* between two reads of its sources, the last decision */
	uint64_t hold_us;	/* and what is left of its latency for the outputs */
	uint32_t mtu;		/* of the interface that the packets in hand are from; 0: not known */
	struct source *reading; /* whose batch is in hand; NULL: none */
	unsigned cut_item;	/* the next line begins in this item */
	char *cut_at;		/* here; NULL: at its begin */
	bool held;		/* a full output holds this input back */
	bool draining;
	enum input_leave leave;
	bool is_removed;	/* no such input comes after us: its connections are read and closed */
	char *next_name;	/* they go on as those of the input of this name; NULL: it keeps its own */
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

/* The one of that name; NULL: none. */
struct input *input_named(struct input *inputs, size_t n, const char *name);

/* A descriptor that a worker reads. The head of the type's own struct. */
struct source {
	struct input *in;
	struct endpoint *ep; /* whose socket it is; NULL: a connection, or lent */
	int fd; /* -1: nothing to wait for, it is polled */
	struct ev_io io;
	struct source *next, **prev; /* in->sources */
	uint64_t poll_us;	     /* fd -1: how long it rests now between two looks */
	struct coalesce coalesce;
	int lent_by;		   /* slot whose socket this is while it has no worker; -1: our own */
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
	return s->in->leave == INPUT_ALL_END || (s->in->leave == INPUT_STORED && !s->ep) || (s->ep && s->ep->ends);
}

/* Master: type and cf. `like`: an input of the same name and type that this one takes the place of, or NULL. 0, or -errno
 * with one sentence. */
int input_make(struct input *in, const struct conf *cf, size_t place, unsigned n_slots, const struct input *like,
	       struct err *err);
/* Master: the input reads this, too. 0 or -ENOMEM. */
int input_add_endpoint(struct input *in, struct endpoint *ep);
void input_free(struct input *in); /* master: only memory; its references were dropped */
/* Any process: the type of an input of the configuration; NULL: this millrace was built without it. */
const struct input_type *input_type_of(const struct conf_input *cf);
/* Master: what is done with endpoints of this type (endpoint_ops.name). NULL: there is none. */
const struct endpoint_ops *input_endpoint_ops(const char *name);
/* Any process: what is wrong with the options of every input's type. Returns how many errors were added, a line each. */
size_t input_check(const struct conf *cf, struct text *errors);
/* Master: the capabilities that this input needs, on this machine as it is set up now. */
uint64_t input_capabilities(const struct conf_input *cf);
/* The addresses of the configuration: bind, interface, port or path. */
const struct conf_list *input_addresses(const struct conf_input *cf, struct conf_list *one);
/* Master, when a worker is dead: adds what it had read and not published, by its receive batch, to its page, and clears
 * the batch. *is_believable turns false when the batch cannot be what a worker wrote: nothing of it is counted then.
 * Returns records: lines, and datagrams or packets where an output wants them whole. */
uint64_t input_lost_at_death(struct input *in, struct receive_batch *r, struct stats_page *page, bool *is_believable);

/* Master: the invalid lines that a worker kept in its receive batch, in no order, into out[INVALID_KEPT]. Returns how many.
 * What another process wrote: they may be anything. */
size_t invalid_take(const struct receive_batch *r, struct invalid_line *out);
/* Sender, escaped text and reason. */
void invalid_add(const struct invalid_line *l, struct text *t);

/* The packets that libpcap itself would give: version for people, NULL when it is not built in. */
const char *input_pcap_version(void);
/* The same of DPDK. */
const char *input_dpdk_version(void);

/* -- receive.c: the receive batches of all workers, a file (memfd) for each process that a slot may have at a time ---- */

/* Master: for so many slots, at most STATS_SLOTS_MAX. NULL, or -errno, with err. */
struct receive *receive_new(unsigned n_slots, struct err *err);
int receive_reach(struct receive *all, unsigned n_slots, struct err *err);
void receive_free(struct receive *all); /* NULL is fine */
/* The batch of the input with this index; `which` as in stats_slot_page. */
struct receive_batch *receive_batch(struct receive *all, unsigned slot, unsigned which, unsigned input);
/* Master: no worker has an input of this index any more: gives the memory back; who comes next finds zeros. */
void receive_forget(struct receive *all, unsigned input);
/* Master: the file of a process, for the program after us; borrowed. */
int receive_fd(const struct receive *all, unsigned slot, unsigned which);
/* Master: the batches of a worker that the program before us started, by input index of that program; takes fd.
 * Children do not have them. NULL: they are not laid out as ours. receive_let_go: NULL is fine. */
enum { RECEIVE_VERSION = 1 }; /* of struct receive_batch: another one, another number */
struct receive_batch *receive_adopt(int fd, int64_t version);
void receive_let_go(struct receive_batch *batches);
/* A child, right after fork: gives up the mappings of all others; RECEIVE_NOBODY as slot: all. */
#define RECEIVE_NOBODY UINT32_MAX
void receive_child(struct receive *all, unsigned slot, unsigned which);
/* Master: what of a dead worker's batch was read and not published. False: a worker cannot have written that. */
bool receive_unpublished(const struct receive_batch *r, bool is_packets, bool with_lines, uint64_t *items, uint64_t *lines);
void receive_clear(struct receive_batch *r);

/* Worker: loop, page, slot, receive and the callbacks are set; makes the sources of this slot. 0, or -errno with err. */
int input_open(struct input *in, struct err *err);
/* Cuts the next lines of the batch in hand into in->batch.lines: returns how many, 0 when nothing is left. */
unsigned input_cut(struct input *in);
/* After the counters are published: forgets what is wholly counted. */
void input_published(struct input *in, bool batch_done);
/* Reads fd, the socket of a slot without a worker, too (takes fd). Datagrams only. 0, or -errno. */
int input_adopt(struct input *in, int fd, unsigned lent_by);
void input_release(struct input *in, unsigned lent_by);
/* Worker: what our own outputs talk to is left out of what we capture. */
void input_exclude(struct input *in, const char *brokers);

#endif
