/* SPDX-License-Identifier: MIT
 *
 * link: one end of a SOCK_SEQPACKET pair between two processes, on an event loop. What the link does not take waits in its
 * outbox, strictly in order.
 */
#ifndef NET_LINK_H
#define NET_LINK_H

#include <base.h>
#include <ev.h>
#include <sys/queue.h>

struct net_message {
	STAILQ_ENTRY(net_message) next;
	int fd; /* ours; -1: none */
	size_t len;
	_Alignas(8) char bytes[];
};
STAILQ_HEAD(net_messages, net_message);
/* A copy with a duplicate of fd (-1: none). NULL: no memory or descriptor. */
struct net_message *net_message_new(const void *bytes, size_t len, int fd);
void net_message_free(struct net_message *m); /* closes its descriptor */

struct net_link {
	struct ev_loop *loop;
	int fd;		   /* -1: closed */
	int reserve;	   /* closed before a message is received, so that its descriptor has room; -1: none is to be had */
	size_t size;	   /* of the largest message that comes */
	bool has_ended;	   /* the other end is gone */
	struct net_messages outbox;
	struct ev_io readable, writable;
	struct ev_timer again; /* time helps, not an event of the socket */
	/* True: it keeps the message. Otherwise it is freed, with its descriptor unless m->fd was set to -1. */
	bool (*on_message)(struct net_link *l, struct net_message *m);
	void (*on_end)(struct net_link *l); /* the other end is gone, and all that it said was heard */
	void *owner;
};

/* A pair: non-blocking, close-on-exec. 0 or -errno. */
int net_link_pair(int pair[2]);
/* Takes fd. `size`: of the largest message that comes. Callbacks and owner are set before. */
void net_link_open(struct net_link *l, struct ev_loop *loop, int fd, size_t size);
/* One message with at most one descriptor (fd -1: none), which is duplicated when it has to wait. 0 when it is sent or
 * queued; else -errno and nothing was kept. */
int net_link_send(struct net_link *l, const void *msg, size_t len, int fd);
/* Waits until all is sent, the other end is gone, or until_us (clock_us). False: something is left. */
bool net_link_flush(struct net_link *l, uint64_t until_us);
/* What has come and was not heard yet: its last words. */
void net_link_hear_out(struct net_link *l);
/* Closes it, and frees what was not sent. */
void net_link_close(struct net_link *l);
/* The next of what waits in `fd`, an end that nobody reads any more. 1: *m is the caller's; 0: the other end is gone; or
 * -errno (-EAGAIN: that was all). */
int net_link_recover(int fd, size_t size, struct net_message **m);

#endif
