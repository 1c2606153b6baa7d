/* SPDX-License-Identifier: MIT
 *
 * backend_udp: datagrams to a backend, cut at line ends. Worker only. Delivered means that our kernel took it; an ICMP
 * refusal tells of an earlier datagram and is only counted as a hint; refusals that last make the backend down. What the
 * peer sends is thrown away.
 */
#include "statsite.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

enum {
	REFUSALS_US = 1000000,	   /* refusals that last so long make it down … */
	REFUSALS_END_US = 3000000, /* … and are over when so long none came, although something was sent */
	PROBE_US = 300000,	   /* who has refused, or is one of several, has so long to refuse an empty one */
};

enum { DATAGRAMS = 64, READ_TIMES = 16, UDP_MAX_BYTES = 65507 };

/* A run of datagrams, cut from the queue where they lie. */
struct burst {
	unsigned n;
	struct mmsghdr msgs[DATAGRAMS];
	struct iovec iov[DATAGRAMS];
	uint32_t bytes[DATAGRAMS]; /* of the queue that each takes: with the newline that may be left off */
};

int backend_udp_connect(struct backend *be, const struct net_address *a)
{
	if (backend_socket(be, a->sa.ss_family, SOCK_DGRAM) == -1 ||
	    connect(be->fd, (const struct sockaddr *)&a->sa, a->len) == -1)
		return -1;
	if (!be->is_refused && be->n_addresses == 1) {
		backend_up(be);
		return 0;
	}
	be->state = BACKEND_CONNECTING;
	(void)send(be->fd, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT); /* what it says is asked of the socket */
	ev_timer_set(&be->timer, PROBE_US / 1e6, 0.);
	ev_timer_start(be->st->out->loop, &be->timer);
	backend_watch(be);
	return 0;
}

/* True: it is lost by it. */
static bool refused(struct backend *be)
{
	uint64_t now_us = clock_us();
	bool is_over = be->unrefused_us > 0 && now_us - be->unrefused_us >= REFUSALS_END_US;
	be->draft->refusals++;
	if (be->refused_since_us == 0 || is_over)
		be->refused_since_us = now_us;
	be->unrefused_us = 0;
	if (be->state == BACKEND_UP && now_us - be->refused_since_us < REFUSALS_US)
		return false;
	be->is_refused = true;
	backend_lost(be, strerror(ECONNREFUSED));
	return true;
}

/* Bytes of the next datagram with its last newline: as many lines as fit in max, at least one. 0: each line alone. */
static size_t cut(const char *p, size_t len, size_t max)
{
	if (len <= max)
		return len;
	const char *newline = max > 0 ? memrchr(p, '\n', max) : NULL;
	if (newline == NULL)
		newline = memchr(p + max, '\n', len - max);
	return newline != NULL ? (size_t)(newline + 1 - p) : len;
}

static void gather(struct burst *s, const struct queue *q, size_t max)
{
	struct iovec pieces[DATAGRAMS];
	unsigned n_pieces = queue_unsent(q, pieces, DATAGRAMS, TURN_BYTES + LINE_MAX_BYTES);
	s->n = 0;
	for (unsigned i = 0; i < n_pieces && s->n < DATAGRAMS; i++) {
		const char *p = pieces[i].iov_base;
		/* the last piece may end in the middle of a line: only its whole lines */
		const char *newline = memrchr(p, '\n', pieces[i].iov_len);
		size_t len = newline != NULL ? (size_t)(newline + 1 - p) : 0;
		while (len > 0 && s->n < DATAGRAMS) {
			size_t n = cut(p, len, max);
			/* the longest line fits only without its newline */
			s->iov[s->n] = (struct iovec){.iov_base = (char *)p, .iov_len = n > UDP_MAX_BYTES ? n - 1 : n};
			s->bytes[s->n] = (uint32_t)n;
			s->msgs[s->n] = (struct mmsghdr){.msg_hdr = {.msg_iov = &s->iov[s->n], .msg_iovlen = 1}};
			s->n++;
			p += n;
			len -= n;
		}
	}
}

static size_t count_sent(struct backend *be, const struct burst *s, unsigned n)
{
	struct queue *q = &be->queue;
	size_t bytes = 0;
	if (be->unrefused_us == 0)
		be->unrefused_us = be->st->now_us;
	for (unsigned i = 0; i < n; i++) {
		be->draft->sent_bytes += s->iov[i].iov_len;
		bytes += s->bytes[i];
	}
	be->draft->sends++;
	uint64_t lines = q->done_lines;
	queue_sent(q, bytes);
	queue_acked(q, bytes);
	be->draft->delivered_records += q->done_lines - lines;
	be->draft->delivered_bytes += bytes;
	return bytes;
}

static void wait_for(struct backend *be, bool is_short)
{
	be->is_short = is_short;
	backend_set_blocked(be, true);
	if (is_short)
		statsite_unsettled(be);
}

void backend_udp_send(struct backend *be)
{
	struct queue *q = &be->queue;
	struct burst s;
	size_t max = be->st->out->cf->max_datagram, turn_bytes = 0;
	int n_refused = 0;
	statsite_settled(be);
	while (queue_unsent_lines(q) > 0) {
		if (turn_bytes >= TURN_BYTES) {
			wait_for(be, false);
			return;
		}
		gather(&s, q, max);
		if (s.n == 0) { /* memory that another worker handed over, and wrote to since */
			backend_lost(be, "its queue holds no line");
			return;
		}
		int n = sendmmsg(be->fd, s.msgs, s.n, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n > 0) {
			turn_bytes += count_sent(be, &s, (unsigned)n);
			n_refused = 0;
			continue;
		}
		/* The error is about the first datagram, which was not sent. */
		switch (errno) {
		case EINTR:
			continue;
		case ECONNREFUSED:
			if (refused(be))
				return;
			if (++n_refused <= 1)
				continue;
			wait_for(be, true);
			return;
		case EMSGSIZE:
			if (max > 0) {
				max = 0; /* perhaps its lines pass one by one */
				continue;
			}
			uint64_t dropped = queue_drop_oldest(q, 1);
			be->draft->dropped_too_long_records += dropped;
			if (dropped > 0)
				continue;
			backend_lost(be, strerror(EMSGSIZE));
			return;
		case EAGAIN:
			wait_for(be, false);
			return;
		case ENOBUFS:
		case ENOMEM:
			wait_for(be, true);
			return;
		default:
			backend_lost(be, strerror(errno));
			return;
		}
	}
}

void backend_udp_read(struct backend *be)
{
	char nothing;
	for (int i = 0; i < READ_TIMES; i++) {
		if (recv(be->fd, &nothing, sizeof(nothing), MSG_DONTWAIT) >= 0 || errno == EINTR)
			continue;
		if (errno == ECONNREFUSED) {
			if (refused(be))
				return;
			continue;
		}
		if (errno != EAGAIN)
			backend_lost(be, strerror(errno));
		return;
	}
}
