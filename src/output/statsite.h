/* SPDX-License-Identifier: MIT
 *
 * statsite: the output in one worker, private to its files.
 *
 *   statsite.c      the row of the output table: routing, lists of what is due, timers, blocking, the end
 *   statsite_give.c    hand_over: connections and queues go to the next worker
 *   statsite_take.c    take_over: they come from the one before
 *   statsite_finish.c  connections that have no place here: what was begun on them is sent and confirmed
 *   backend.c       life of one backend; what it adds to the account; its log lines
 *   backend_address.c  which of its name's addresses
 *   backend_tcp.c   connect, send, acknowledgements
 *   backend_udp.c   datagrams
 *
 *              resolved             connected (udp: at once)
 *   RESOLVING ─────────► CONNECTING ────────────────────────► UP
 *       ▲  │ failed           │ refused, too slow              │ lost: EOF, reset, timed out, unreachable
 *       │  ▼                  ▼                                ▼
 *       └─────────────────  WAITING  ◄─────────────────────────┘     the wait doubles, with jitter
 *
 *   ELSEWHERE: another worker has it: it has not been handed over to us yet, or it was handed over by us.
 */
#ifndef OUTPUT_STATSITE_H
#define OUTPUT_STATSITE_H

#include <ev.h>
#include <net.h>
#include <output.h>
#include <sys/queue.h>

#include "queue.h"
#include "risk.h"

enum {
	STATSITE_MAGIC = 0x51a75173,
	SEND_BYTES = 65536,      /* so much unsent is sent at once */
	ACK_TICK_US = 10000,     /* acknowledgements are looked at so often while something is in flight */
	ACK_TICK_MAX_US = 20000, /* … of a backend that acknowledges nothing; its kernel may wait 40 ms with it */
	DRAIN_TICK_US = 2000,    /* … while draining */
	FINISH_TICK_US = 100000, /* connections without a place are looked at so often */
	TURN_BYTES = 1 << 20,    /* a backlog sends so much, then others get their turn */
	CONNECT_TIMEOUT_MS = 10000,
	NEXT_TIMEOUT_MS = 2000, /* … to an address after which there is another */
	LABEL_BYTES = 300,
};

enum backend_state { BACKEND_WAITING, BACKEND_RESOLVING, BACKEND_CONNECTING, BACKEND_UP, BACKEND_ELSEWHERE };

struct statsite;

struct backend {
	_Alignas(64) struct queue queue; /* first: send() touches its first cache line for each line */
	struct stats_backend *draft;
	uint32_t block; /* … its index in stats */
	struct statsite *st;
	const struct conf_backend *cf;
	TAILQ_ENTRY(backend) due;       /* has unsent bytes that wait for more */
	TAILQ_ENTRY(backend) unsettled; /* has bytes in flight, or the kernel had no memory to send */
	TAILQ_ENTRY(backend) stuck;     /* overflow: block, a line waits for room here */
	uint64_t due_since_us;
	/* as the account knows them: */
	uint64_t counted_lines, counted_unsent_lines, counted_flight_lines, counted_held_bytes;
	uint32_t stuck_len;                            /* of the longest line that waits; 0: none does */
	bool is_due, is_unsettled;
	bool is_blocked; /* the socket takes nothing now */
	bool is_short;   /* … since the kernel has no memory: tried again by the tick, writability says nothing */

	enum backend_state state;
	int fd;
	int place_fd; /* keeps a descriptor's place while there is no socket */
	ev_io io;
	ev_timer timer; /* the wait, or the limit of an attempt to connect */
	/* backend_address.c */
	struct net_query *query;
	struct net_address *addresses; /* of its name, at the last answer */
	unsigned n_addresses, i_first, n_tried;
	struct net_address address; /* the one that it is, was or shall be connected to */
	bool is_avoided;	    /* … which did not hold: the next one is tried first */
	bool is_leaving;	    /* sends nothing but the rest of a line, and is closed when all of it is acknowledged */
	ev_timer ask_timer;
	uint64_t leave_us; /* when it is as old as it may be; 0: not settled */

	/* UDP: */
	uint64_t refused_since_us; /* a run of refusals, from the first one on; 0: there is none */
	uint64_t unrefused_us;	   /* the first datagram after the last refusal */
	bool is_refused;	   /* the last socket was; the next one must show that it is not */

	/* TCP: this connection */
	uint64_t sent_bytes, acked_bytes;
	uint64_t acked_base_bytes; /* what TCP_INFO said before the first byte: the SYN counts */
	uint64_t polled_at_bytes;  /* sent_bytes at the last look at TCP_INFO */
	uint64_t poll_us, poll_after_us;
	struct risk risk;

	/* across connections */
	uint64_t connected_us, down_us, delay_us;
	uint64_t dropped_at_down;
	bool is_down_logged;
	/* Gets no new lines, and ends when it is empty: */
	bool is_finishing;	     /* a connection of another worker that has no place here */
	struct conf_backend *own_cf; /* … then `cf`; the tree that it came from is gone */
	TAILQ_ENTRY(backend) finishing;
	uint64_t left_bytes, left_us; /* … when it last delivered something, and how much was done then */
	bool is_dropping; /* logged once, until there is room again */
	uint64_t dropping_since_us, last_drop_us, dropped_before;
};

TAILQ_HEAD(backend_list, backend);

struct statsite {
	uint32_t magic;
	struct output *out;
	const struct shards *shards;
	struct backend **backends;
	size_t n_backends;
	struct pool pool;
	struct backend **changed; /* by this send(), not yet in the account */
	size_t n_changed;
	struct backend_list due, unsettled, finishing;
	struct stats_output *draft;
	ev_timer flush_timer, ack_timer, trim_timer, finish_timer;
	ev_timer room_event; /* never started, only fed: on_room from the loop */
	uint64_t now_us;     /* of this turn */
	uint64_t pending_lines;
	uint64_t random;
	size_t i_taken;		     /* where the backend that was taken over last lies */
	uint64_t n_given;	     /* backends that were handed over … */
	uint64_t given_chunks_bytes; /* … what tells of their chunks, behind the slabs of the pool's memfd */
	bool is_draining;
	struct backend_list stuck; /* for whose room batches are held back: one for each input at most */
	uint64_t log_window_us, log_lines, log_held;
};

/* statsite.c */
uint64_t statsite_random(struct statsite *st, uint64_t below);
void statsite_due(struct backend *be); /* has something to send: in this turn, or when out->hold_us is over */
void statsite_not_due(struct backend *be);
void statsite_unsettled(struct backend *be); /* look at it again soon */
void statsite_settled(struct backend *be);
void statsite_after_event(struct statsite *st); /* end of each callback of the loop */

/* A new one, its account begun. NULL: no memory. */
struct backend *statsite_backend_new(struct statsite *st, const struct conf_backend *cf, uint32_t block);
/* Its queue changed: the account follows with statsite_account_changed. */
static inline void statsite_changed(struct backend *be)
{
	if (be->queue.is_marked)
		return;
	be->queue.is_marked = true;
	be->st->changed[be->st->n_changed++] = be;
}
void statsite_account_changed(struct statsite *st);

/* statsite_give.c */
void statsite_hand_over(struct output *out, int channel, uint64_t deadline_us);

/* statsite_take.c */
void statsite_take_over(struct output *out, const struct handover *msg, size_t len, int fd);
void statsite_go(struct output *out);
/* Who has the key of a line that has no backend here any more. */
struct backend *statsite_owner(const struct statsite *st, const char *line, size_t len);
/* Puts a line that was in another account before, beyond queue_limit, which it has kept there already. False: no memory,
 * which is counted. */
bool statsite_take_line(struct backend *be, const char *line, uint32_t len);
/* The whole lines of these bytes, at most so many, go to `to`, or (NULL) each to who has its key. Returns how many. */
uint64_t statsite_take_lines(struct statsite *st, struct backend *to, const char *bytes, size_t len, uint64_t most);

/* statsite_finish.c */
/* A connection of another worker that is to be finished. `part`: of its queue what was begun; taken, unless NULL is
 * returned: no memory. */
struct backend *statsite_finish(struct statsite *st, const struct conf_backend *cf, struct backend *account,
				struct queue_part *part);
/* Its configuration is its own from now on: the tree may go. False: no memory. */
bool statsite_own_conf(struct backend *be);
void statsite_disown_conf(struct backend *be);
/* It is finished, and freed; what is left is counted. */
void statsite_finished(struct backend *be);
/* Ends those of which all is done. */
void statsite_look_at_finishing(struct statsite *st);
/* All of them end now; what they hold is counted. */
void statsite_close_finishing(struct statsite *st);


/* backend.c */
void backend_init(struct backend *be, struct statsite *st, const struct conf_backend *cf, struct stats_backend *draft);
/* Nobody may log more changes of state than a few in a second. */
bool backend_may_log(struct statsite *st, uint64_t now_us);
/* Draining: those that wait try once more at once. */
void backend_hurry(struct backend *be);
void backend_send(struct backend *be);
/* After each change: makes the draft tell what the queue holds. */
void backend_account(struct backend *be);
/* A line for which the queue has no room as it is. False: block. */
bool backend_put_slowly(struct backend *be, const struct line *l);
/* Worth trying again to put a line of this length that was held back. */
bool backend_has_room(const struct backend *be, uint32_t len);
void backend_up(struct backend *be);
/* It makes place for a connection to another address: sends the rest of a line that was begun, and is closed when all is
 * acknowledged. */
void backend_leave(struct backend *be, const char *why);
/* … if it is leaving, and that is so. */
void backend_leave_if_done(struct backend *be);
/* It has a connection that another worker made: the caller has set fd and what is known of it. */
void backend_up_again(struct backend *be);
/* It is not connected, as another worker left it: tried again after so long. */
void backend_wait(struct backend *be, uint64_t wait_us);
/* Connection and queue are another worker's now. */
void backend_given(struct backend *be);
/* Lines that were dropped for want of room. */
uint64_t backend_dropped_lines(const struct backend *be);
/* HOST:PORT, fit for a log line. buf of LABEL_BYTES. */
const char *backend_label(const struct backend *be, char *buf, size_t size);
/* The connection, or the attempt, has failed; `why` is a fixed text or strerror's. */
void backend_lost(struct backend *be, const char *why);
/* What is left is counted, and the socket closed. */
void backend_close(struct backend *be);
void backend_free(struct backend *be); /* closed, or never started; NULL is fine */
/* The present options of its connection. */
void backend_tcp_set_options(struct backend *be);
/* Sets what the loop watches for: always input (the peer's EOF), output while blocked. */
void backend_watch(struct backend *be);
void backend_set_blocked(struct backend *be, bool is_blocked);
/* be->fd becomes a socket (non-blocking) in the place that was kept. 0 or -1 with errno. */
int backend_socket(struct backend *be, int family, int type);

/* backend_address.c */
void backend_address_init(struct backend *be);
/* Asks the name, then tries its addresses. */
void backend_start(struct backend *be);
/* The next address; there is one. */
void backend_try_next(struct backend *be);
/* It is connected: its name is asked again, and its age looked at, when it is time. */
void backend_ask_later(struct backend *be);

/* backend_tcp.c, backend_udp.c: `connect` returns 0 (BACKEND_CONNECTING or up already) or -1 with errno. `send` sends
 * all that it can; either may find the connection lost. */
int backend_tcp_connect(struct backend *be, const struct net_address *a);
void backend_tcp_connected(struct backend *be);
void backend_tcp_send(struct backend *be);
void backend_tcp_read(struct backend *be);
/* Asks the kernel what was acknowledged. True when something new was. */
bool backend_tcp_settle(struct backend *be);
void backend_tcp_close(struct backend *be);
int backend_udp_connect(struct backend *be, const struct net_address *a);
void backend_udp_send(struct backend *be);
void backend_udp_read(struct backend *be);

static inline bool backend_is_tcp(const struct backend *be)
{
	return be->cf->transport == CONF_TRANSPORT_TCP;
}
static inline bool backend_can_send(const struct backend *be)
{
	return be->state == BACKEND_UP && !be->is_blocked;
}

#endif
