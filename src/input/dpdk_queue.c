/* SPDX-License-Identifier: MIT
 *
 * dpdk_queue: packets off one receive queue, burst by burst, as items that point into mbufs. Run by the worker that
 * reads the queue; dpdk_death by the master when that worker was killed. The states are drawn in dpdk.h. Allocates
 * nothing.
 *
 * Only one process at a time uses a queue and its pool, so nothing here waits for anybody. A store is seen by the
 * master in the order of the program (x86-64, and the release stores of set_state).
 */
#include "dpdk.h"

#include <errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <string.h>
#include <time.h>

enum { STATE_IDLE, STATE_READING, STATE_HOLDING, STATE_FREEING };

static void set_state(struct dpdk_hold *h, uint32_t state)
{
	__atomic_store_n(&h->state, state, __ATOMIC_RELEASE);
}

/* -- worker ------------------------------------------------------------------------------------------------------ */

void dpdk_open(struct dpdk_queue *q, struct dpdk *d, unsigned slot)
{
	memset(q, 0, sizeof *q);
	q->dpdk = d;
	q->queue = (uint16_t)slot;
	q->hold = &d->holds[slot];
	dpdk_eal_enter(slot);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* net_af_packet notes how far it is at the end of a burst only: a kill within one leaves the next reader waiting at
 * frames that are given back already, until the ring has gone round (measured: 2 of 10 kills at 100,000 packets/s). So
 * it is asked for one at a time. */
static unsigned burst_one_by_one(const struct dpdk_queue *q)
{
	struct dpdk_hold *h = q->hold;
	unsigned n = 0;
	while (n < q->dpdk->burst &&
	       rte_eth_rx_burst(q->dpdk->port, q->queue, (struct rte_mbuf **)&h->mbufs[n], 1) == 1)
		__atomic_store_n(&h->n, ++n, __ATOMIC_RELEASE);
	return n;
}

static unsigned burst(struct dpdk_queue *q)
{
	struct dpdk_hold *h = q->hold;
	const struct dpdk *d = q->dpdk;
	h->given = h->next = h->n = 0;
	set_state(h, STATE_READING);
	unsigned n = d->cut_at ? burst_one_by_one(q)
			       : rte_eth_rx_burst(d->port, q->queue, (struct rte_mbuf **)h->mbufs, (uint16_t)d->burst);
	h->n = n;
	set_state(h, n ? STATE_HOLDING : STATE_IDLE);
	if (n == 0)
		return 0;
	q->time_ns = now_ns();
	return n;
}

/* Segments one after the other, at most stride - BATCH_SLACK bytes of them. */
static void linearise(struct dpdk_queue *q, const struct rte_mbuf *m, struct item *item, char *to, size_t stride)
{
	uint32_t room = (uint32_t)(stride - BATCH_SLACK), len = 0;
	for (const struct rte_mbuf *s = m; s && len < room; s = s->next) {
		uint32_t part = MIN((uint32_t)s->data_len, room - len);
		memcpy(to + len, rte_pktmbuf_mtod(s, const char *), part);
		len += part;
	}
	item->bytes = to;
	item->len = len;
	item->original_len = MAX(m->pkt_len, len);
	q->linearised++;
}

static void item_make(struct dpdk_queue *q, struct rte_mbuf **m, struct item *item, char *to, size_t stride)
{
	/* the kernel or the device took the tag out; consumers expect the frame as it was on the wire */
	if (UNLIKELY((*m)->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED))
		rte_vlan_insert(m);
	*item = (struct item){.time_ns = q->time_ns, .link_type = 1 /* Ethernet */};
	if (UNLIKELY((*m)->nb_segs > 1)) {
		linearise(q, *m, item, to, stride);
		return;
	}
	item->bytes = rte_pktmbuf_mtod(*m, char *);
	item->len = item->original_len = (*m)->data_len;
	if (UNLIKELY(item->len == q->dpdk->cut_at))
		item->original_len++; /* it was longer; by how much the device does not tell */
}

static void free_range(struct dpdk_hold *h, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++) {
		struct rte_mbuf *m = h->mbufs[i];
		h->mbufs[i] = NULL;
		rte_pktmbuf_free(m);
	}
}

void dpdk_give(struct dpdk_queue *q)
{
	struct dpdk_hold *h = q->hold;
	if (h->given == h->next)
		return;
	set_state(h, STATE_FREEING);
	free_range(h, h->given, h->next);
	h->given = h->next;
	set_state(h, h->next == h->n ? STATE_IDLE : STATE_HOLDING);
}

unsigned dpdk_read(struct dpdk_queue *q, struct item items[], unsigned max, char *slab, size_t stride, bool more)
{
	struct dpdk_hold *h = q->hold;
	dpdk_give(q); /* at its end a worker reads on without giving back */
	if (h->next == h->n && (!more || burst(q) == 0))
		return 0;
	unsigned n = MIN(max, h->n - h->next);
	for (unsigned i = 0; i < n; i++) {
		if (i + 4 < n)
			__builtin_prefetch(rte_pktmbuf_mtod((struct rte_mbuf *)h->mbufs[h->next + i + 4], char *));
		item_make(q, (struct rte_mbuf **)&h->mbufs[h->next + i], &items[i], slab + i * stride, stride);
	}
	return q->reading = n;
}

void dpdk_took(struct dpdk_queue *q)
{
	__atomic_store_n(&q->hold->next, q->hold->next + q->reading, __ATOMIC_RELEASE);
	q->reading = 0;
}

unsigned dpdk_close(struct dpdk_queue *q)
{
	struct dpdk_hold *h = q->hold;
	unsigned unread = h->n - h->next;
	dpdk_give(q);
	h->next = h->n;
	dpdk_give(q);
	return unread;
}

/* -- master ------------------------------------------------------------------------------------------------------ */

/* A worker that was killed between the two halves of a move in its pool's ring: what it had taken out stays out, what
 * it had not wholly put in is not in. Nobody else uses the ring. Returns mbufs that this costs. */
static unsigned mend_ring(struct rte_mempool *pool)
{
	struct rte_ring *r = pool->pool_data;
	unsigned lost = r->cons.head - r->cons.tail;
	r->cons.tail = r->cons.head;
	r->prod.head = r->prod.tail;
	return lost;
}

unsigned dpdk_death(struct dpdk *d, unsigned slot)
{
	struct dpdk_hold *h = &d->holds[slot];
	unsigned leaked = mend_ring(d->pools[slot]), unread = 0;
	unsigned n = MIN(h->n, (unsigned)DPDK_BURST_MAX), next = MIN(h->next, n), given = MIN(h->given, next);
	switch (h->state) {
	case STATE_IDLE:
		break;
	case STATE_READING: /* how far the driver was is its secret (net_ring: 24 taken and not yet written, measured)
			     */
		unread = n + (d->cut_at ? 1 : d->burst);
		leaked += unread - n;
		free_range(h, 0, n);
		break;
	case STATE_HOLDING: /* nobody has touched them */
		unread = n - next;
		free_range(h, given, n);
		break;
	case STATE_FREEING: /* those of the batch may be back or not */
		unread = n - next;
		leaked += next - given;
		free_range(h, next, n);
		break;
	}
	h->leaked_mbufs += leaked;
	memset(h->mbufs, 0, sizeof h->mbufs);
	h->given = h->next = h->n = 0;
	set_state(h, STATE_IDLE);
	return unread;
}
