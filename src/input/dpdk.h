/* SPDX-License-Identifier: MIT
 *
 * dpdk: packets of one DPDK port, a receive queue for each slot. Private to src/input, and without DPDK's own headers,
 * so that only src/input/dpdk*.c see those.
 *
 * The master starts the EAL, sets up the port and forks; a worker polls the queue of its slot. What a queue's reader
 * holds is written down in memory that the master shares, in an order in which a kill at any moment leaves an account:
 *
 *   IDLE --burst--> READING --> HOLDING: mbufs [given, n)             [given, next) are in the batch in hand,
 *                                 ^  |                                  which the master counts by itself;
 *                                 |  |                                  [next, n) wait their turn
 *                                 |  v
 *                               FREEING: mbufs [given, next) go back to the pool, one by one
 */
#ifndef INPUT_DPDK_H
#define INPUT_DPDK_H

#include <batch.h>

enum {
	DPDK_BURST_MAX = 1024,
	DPDK_WORDS_MAX = 128,
	DPDK_READERS_MAX = 128, /* RTE_MAX_LCORE of Debian's DPDK: each process has a number of its own */
	/* A frame of a jumbo network and its tags, in one piece, with room behind it. */
	DPDK_FRAME_BYTES = 16384,
};

/* What an input's options ask for. */
struct dpdk_wish {
	const char *input; /* its name, for sentences */
	const char *port;  /* PCI address, name or devargs of a virtual device, number; "": the only one */
	char *const *eal;  /* arguments of the EAL */
	size_t n_eal;
	unsigned queues; /* one a slot */
	unsigned rx_descriptors, rx_burst;
	bool symmetric; /* rss: symmetric */
	bool promiscuous;
};

/* -- dpdk_args.c: pure ------------------------------------------------------------------------------------------- */

/* The EAL's argv: what was given, with our defaults before it. */
struct dpdk_args {
	char *words[DPDK_WORDS_MAX + 1]; /* owned; NULL behind the last */
	int n;
	bool has_lcores;      /* the user named CPUs */
	char port[128];       /* name to look the port up by; "": any */
	uint32_t frame_bytes; /* longest frame that net_af_packet gives, longer ones it cuts and does not say so; 0:
				 other device */
};
/* `pid` and `cpu` make the defaults of --file-prefix and -l. 0; or -EINVAL, -ENOMEM with one sentence. Free in any
 * case. */
int dpdk_args_make(struct dpdk_args *a, const struct dpdk_wish *wish, int pid, unsigned cpu, struct err *err);
void dpdk_args_free(struct dpdk_args *a);
/* "0000:01:00.0" or "01:00.0". */
bool dpdk_is_pci_address(const char *s);

/* -- dpdk_rss.c: pure -------------------------------------------------------------------------------------------- */

struct rte_eth_dev_info;

enum { DPDK_KEY_MAX = 128 };
struct dpdk_rss {
	uint64_t types; /* RTE_ETH_RSS_…, that the device offers; 0: RSS is off */
	uint8_t key[DPDK_KEY_MAX];
	uint8_t key_bytes;   /* 0: the device's own key */
	bool is_symmetric;   /* both directions of a connection reach the same queue */
	const char *why_not; /* for people; NULL: all as wished */
};
void dpdk_rss_make(struct dpdk_rss *rss, const struct rte_eth_dev_info *info, unsigned queues, bool symmetric);

/* -- dpdk_filter.c ----------------------------------------------------------------------------------------------- */

struct dpdk_filter;
/* A program for the user's filter and without the traffic of `peers` ("10.0.0.1:9092,…"), in the place of *f; NULL
 * there: everything passes. 0, or -errno with one sentence, and *f is as it was. */
int dpdk_filter_make(struct dpdk_filter **f, const char *input, const char *filter, const char *peers, struct err *err);
void dpdk_filter_free(struct dpdk_filter *f);
bool dpdk_filter_passes(const struct dpdk_filter *f, const struct item *item);

/* -- dpdk_eal.c: master ------------------------------------------------------------------------------------------ */

/* Once a process; a second input with the same arguments, or none, is fine. Steals no signal and no CPU from the
 * caller. 0 or -errno with one sentence. */
int dpdk_eal_start(const struct dpdk_args *a, const char *input, struct err *err);
void dpdk_eal_stop(void); /* as often as it was started; the last, when no worker is left, ends it */
/* What the EAL and its drivers said first at level error since the last forget, for a sentence; "" or " (…)". */
const char *dpdk_eal_why(void);
void dpdk_eal_forget(void);
/* Descriptors that the EAL and its drivers opened; which of them a driver needs in a worker is the driver's secret. */
size_t dpdk_eal_fds(const int **fds);
void dpdk_eal_note_fds(void); /* after a port was started */
/* Worker: this process is the reader of a queue; takes the CPUs that -l named. */
void dpdk_eal_enter(unsigned slot);

/* -- dpdk_port.c: master ----------------------------------------------------------------------------------------- */

struct dpdk_hold;
struct rte_mempool;

struct dpdk {
	char name[128];
	bool has_eal, is_owner, is_started;
	uint16_t port;
	unsigned queues, burst, descriptors;
	uint32_t cut_at;            /* a frame of this length was probably cut; 0: the device does not cut silently */
	struct dpdk_hold *holds;    /* [queues], shared */
	struct rte_mempool **pools; /* [queues] */
	int *sockets;               /* of net_af_packet */
	size_t n_sockets;
	uint64_t ring_dropped; /* what they said so far */
	struct dpdk_rss rss;
	struct dpdk_filter *filter;     /* NULL: everything passes */
	unsigned first_xstat, n_xstats; /* blocks of the counter pages, by dpdk.c */
};

/* NULL with one sentence. unbind: no worker is left. */
struct dpdk *dpdk_bind(const struct dpdk_wish *wish, struct err *err);
void dpdk_unbind(struct dpdk *d);

/* Once a second. */
struct dpdk_counts {
	uint64_t packets; /* that the device gave */
	uint64_t missed;  /* no descriptor was free; of net_af_packet: no frame, by the kernel's own count */
	uint64_t errors;  /* broken ones */
	uint64_t no_mbuf; /* the pool was empty */
	bool is_up;       /* what the driver says of its link */
};
void dpdk_count(struct dpdk *d, struct dpdk_counts *c);
uint64_t dpdk_free_mbufs(const struct dpdk *d, unsigned slot);
/* Calls back, always in the same order, for each of the device's own counters that tells of a loss (error, drop, miss,
 * discard, no buffer). */
typedef void dpdk_xstat_cb(void *arg, const char *name, uint64_t value);
void dpdk_each_xstat(const struct dpdk *d, dpdk_xstat_cb *cb, void *arg);

/* -- dpdk_queue.c: worker, and the master when the worker is dead
 * ------------------------------------------------------ */

struct dpdk_hold {
	uint32_t state;
	uint32_t given, next, n;
	uint64_t leaked_mbufs;       /* the master's */
	void *mbufs[DPDK_BURST_MAX]; /* NULL but for [given, n) */
};

struct dpdk_queue {
	struct dpdk *dpdk;
	struct dpdk_hold *hold;
	uint16_t queue;
	unsigned reading; /* items that dpdk_read gave and dpdk_took has not heard of */
	uint64_t time_ns; /* of the burst in hand */
	/* since the queue was opened */
	uint64_t linearised; /* frames that came in several segments and were put together */
};

/* Worker. */
void dpdk_open(struct dpdk_queue *q, struct dpdk *d, unsigned slot);
/* The next items of the burst in hand, or of a new burst when that is used up and `more` allows it. Items point into
 * mbufs, and are good until dpdk_give; `slab` has a place of `stride` bytes for each item, for frames in segments. */
unsigned dpdk_read(struct dpdk_queue *q, struct item items[], unsigned max, char *slab, size_t stride, bool more);
/* The items are noted where the master sees them: from now on they are in the batch in hand. Before it they were both.
 */
void dpdk_took(struct dpdk_queue *q);
void dpdk_give(struct dpdk_queue *q);
/* Worker, at the end: gives back what was not read. Returns packets. */
unsigned dpdk_close(struct dpdk_queue *q);

/* Master, when slot's worker is dead: gives back what it held as far as that is certain, counts the rest as leaked, and
 * makes the queue's pool fit for the next. Returns packets that it had taken off the device beside the batch in hand.
 * The bytes of the batch are gone after this. */
unsigned dpdk_death(struct dpdk *d, unsigned slot);

#endif
