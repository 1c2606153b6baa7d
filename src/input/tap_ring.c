/* SPDX-License-Identifier: MIT
 *
 * tap_ring: an AF_PACKET socket with a ring (TPACKET_V3): made, joined to its fanout group, asked for
 * its statistics and closed. Master. The order of the steps is what keeps packets from arriving twice
 * or vanishing uncounted (docs/measured.md, "Packets").
 */
#include "tap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef PACKET_FANOUT_FLAG_IGNORE_OUTGOING
#define PACKET_FANOUT_FLAG_IGNORE_OUTGOING 0x4000 /* Linux 6.0; `inbound` in the filter does it elsewhere */
#endif

enum {
	RING_BLOCKS_MAX = 4096, /* of the largest ring_size */
	RETIRE_MS = 10,    /* a block is handed over when full, or after this */
	STRAGGLER_US = 20, /* within which a CPU that was on its way into the ring by the old way is there */
};

/* -- the group ----------------------------------------------------------------------------------------------------- */

static int fanout_set(int fd, int id, unsigned mode)
{
	unsigned value = (unsigned)id | mode << 16;
	return setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &value, sizeof(value)) == -1 ? -errno : 0;
}

static unsigned fanout_mode(const struct conf_input *cf)
{
	return cf->fanout == CONF_FANOUT_CPU ? PACKET_FANOUT_CPU : PACKET_FANOUT_HASH;
}

bool ring_has_fanout(int fd, const struct conf_input *cf)
{
	unsigned value;
	socklen_t len = sizeof(value);
	return getsockopt(fd, SOL_PACKET, PACKET_FANOUT, &value, &len) == -1 || (value >> 16 & 0xff) == fanout_mode(cf);
}

/* Rings that are open on the interface of this index: a group is of one interface, and one that was
 * removed and made again is another. */
static unsigned live(const struct tap *tap, unsigned ifindex)
{
	unsigned n = 0;
	for (unsigned i = 0; i < tap->n_slots; i++) {
		n += tap->rings[i].fd != -1 && tap->rings[i].ifindex == ifindex;
		n += tap->next[i].fd != -1 && tap->next[i].ifindex == ifindex;
	}
	return n;
}

/* The kernel chooses the id of a new group, so that no other program is in it. */
static int group_join(struct tap *tap, const struct endpoint *ep, const struct ring *r)
{
	unsigned mode = fanout_mode(ep->cf);
	bool is_new = live(tap, r->ifindex) == 0 || tap->group == -1;
	unsigned unique = is_new ? PACKET_FANOUT_FLAG_UNIQUEID : 0;
	int id = is_new ? 0 : tap->group, value;
	socklen_t len = sizeof(value);
	int rc = fanout_set(r->fd, id, mode | unique | PACKET_FANOUT_FLAG_IGNORE_OUTGOING);
	if (rc == -EINVAL)
		rc = fanout_set(r->fd, id, mode | unique);
	if (rc == 0 && is_new)
		tap->group = getsockopt(r->fd, SOL_PACKET, PACKET_FANOUT, &value,
					&len) == -1 ? -1 : value & 0xffff;
	return rc;
}

/* -- options ------------------------------------------------------------------------------------------------------- */

/* Of packets that the program lets through so many bytes are kept. */
static int attach(const struct tap_filter *f, int fd, uint32_t keeps, const struct endpoint *ep,
		  struct err *err)
{
	struct sock_fprog p = {.len = (unsigned short)f->program.bf_len,
			       .filter = (struct sock_filter *)(void *)f->program.bf_insns};
	for (unsigned i = 0; i < p.len; i++)
		if (p.filter[i].code == (BPF_RET | BPF_K) && p.filter[i].k != 0)
			p.filter[i].k = keeps;
	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof(p)) == 0)
		return 0;
	return err_set(err, -errno, "Input \"%s\": the kernel refuses the filter: %s.",
		       ep->cf->name, strerror(errno));
}

static int set_promiscuous(struct ring *r, bool is_on)
{
	struct packet_mreq m = {.mr_ifindex = (int)r->ifindex, .mr_type = PACKET_MR_PROMISC};
	int what = is_on ? PACKET_ADD_MEMBERSHIP : PACKET_DROP_MEMBERSHIP;
	if (r->ifindex == 0 || r->is_promiscuous == is_on)
		return 0;
	r->is_promiscuous = is_on;
	r->place->is_promiscuous = is_on;
	return setsockopt(r->fd, SOL_PACKET, what, &m, sizeof(m)) == -1 ? -errno : 0;
}

int ring_adjust(struct tap *tap, const struct endpoint *ep, struct ring *r,
		struct err *err)
{
	int rc = tap_filter_renew(tap, ep, err);
	if (rc == 0 && r->filter != tap->filter.number)
		rc = attach(&tap->filter, r->fd, tap->filter.snaplen, ep, err);
	if (rc != 0)
		return rc;
	r->filter = tap->filter.number;
	rc = set_promiscuous(r, ep->cf->promiscuous);
	return rc == 0 ? 0
		       : err_set(err, rc,
				 "Input \"%s\": interface %s: promiscuous mode cannot be changed: %s.",
				 ep->cf->name, ep->name, strerror(-rc));
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

/* A ring of the size that the kernel has memory for, in steps of a twentieth. */
static int make_blocks(struct ring *r)
{
	int version = TPACKET_V3;
	if (setsockopt(r->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) == -1)
		return -errno;
	r->n_blocks = (unsigned)MAX(r->size_bytes / RING_BLOCK_BYTES, 1);
	for (;; r->n_blocks -= MAX(r->n_blocks / 20, 1)) {
		struct tpacket_req3 req = {.tp_block_size = RING_BLOCK_BYTES,
					   .tp_block_nr = r->n_blocks,
					   .tp_frame_size = RING_BLOCK_BYTES,
					   .tp_frame_nr = r->n_blocks,
					   .tp_retire_blk_tov = RETIRE_MS,
					   .tp_sizeof_priv = RING_PRIVATE_BYTES};
		if (setsockopt(r->fd, SOL_PACKET, PACKET_RX_RING, &req, sizeof(req)) == 0)
			return 0;
		if (errno != ENOMEM || r->n_blocks == 1)
			return -errno;
	}
}

/* Only whole rings can be mapped; the master keeps the page with the place, and no child inherits it: a
 * mapping keeps a ring in its group. */
static int map_place(struct ring *r)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t size = (size_t)r->n_blocks * RING_BLOCK_BYTES;
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	if (m == MAP_FAILED)
		return -errno;
	munmap(m + page, size - page);
	r->place = ring_place(m);
	return madvise(m, page, MADV_DONTFORK) == -1 ? -errno : 0;
}

/* The kernel does not say how large a ring is, but maps it only as it is. */
int ring_adopt(struct ring *r, int fd)
{
	struct sockaddr_ll at = {.sll_ifindex = 0};
	socklen_t len = sizeof(at);
	int rc = -EINVAL;
	*r = (struct ring){.fd = fd};
	if (getsockname(fd, (struct sockaddr *)(void *)&at, &len) == -1)
		rc = -errno;
	while (rc == -EINVAL && r->n_blocks < RING_BLOCKS_MAX) {
		r->n_blocks++;
		rc = map_place(r);
	}
	if (rc != 0) {
		ring_close(r, NULL);
		return rc;
	}
	r->ifindex = (unsigned)at.sll_ifindex;
	r->stored = r->place->stored;
	r->size_bytes = r->place->size_bytes;
	r->link_type = r->place->link_type;
	r->is_promiscuous = r->place->is_promiscuous;
	return 0;
}

static int bind_device(const struct ring *r)
{
	struct sockaddr_ll at = {.sll_family = AF_PACKET,
				 .sll_protocol = htons(ETH_P_ALL),
				 .sll_ifindex = (int)r->ifindex};
	int trouble = 0;
	socklen_t len = sizeof(trouble);
	if (bind(r->fd, (const struct sockaddr *)(const void *)&at, sizeof(at)) == -1)
		return -errno;
	return getsockopt(r->fd, SOL_SOCKET, SO_ERROR, &trouble, &len) == -1 ? -errno : -trouble; /* it is down */
}

static void wait_for_stragglers(void)
{
	for (uint64_t until_us = clock_us() + STRAGGLER_US; clock_us() < until_us;)
		;
}

static void discard_marked(struct ring *r)
{
	ring_statistics(r, NULL);
	r->place->discard = r->stored;
}

/* A socket has to be bound before it can join, and until it has, the ring sees what others of the
 * group read. So packets are only marked until it is in the group, and those of the moment around
 * the join, of which nobody can tell whose they are, are lost and counted: none is read twice. */
static int join(struct tap *tap, const struct endpoint *ep, struct ring *r,
		struct err *err)
{
	int rc = attach(&tap->filter, r->fd, RING_MARKED_BYTES, ep, err);
	if (rc != 0)
		return rc;
	rc = set_promiscuous(r, ep->cf->promiscuous);
	if (rc == 0)
		rc = bind_device(r);
	if (rc != 0)
		return err_set(err, rc, "Input \"%s\": cannot capture on interface %s: %s.",
			       ep->cf->name, ep->name,
			       strerror(-rc));
	discard_marked(r);
	rc = group_join(tap, ep, r);
	if (rc != 0)
		return err_set(err, rc,
			       "Input \"%s\": interface %s: cannot share it among workers (PACKET_FANOUT): %s.",
			       ep->cf->name, ep->name, strerror(-rc));
	r->filter = tap->filter.number;
	if (ep->former != NULL)
		return 0; /* rings_follow goes on */
	wait_for_stragglers();
	return attach(&tap->filter, r->fd, tap->filter.snaplen, ep, err);
}

static int make(const struct endpoint *ep, struct ring *r, struct err *err)
{
	int type = r->link_type == DLT_LINUX_SLL ? SOCK_DGRAM : SOCK_RAW; /* as libpcap does */
	r->fd = socket(AF_PACKET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc = r->fd == -1 ? -errno : make_blocks(r);
	if (rc == 0)
		rc = map_place(r);
	if (rc == 0) {
		r->place->size_bytes = r->size_bytes;
		r->place->link_type = r->link_type;
	}
	return rc == 0 ? 0
		       : err_set(err, rc,
				 "Input \"%s\": interface %s: cannot make a ring (TPACKET_V3) of %llu bytes: %s.",
				 ep->cf->name, ep->name, (unsigned long long)r->size_bytes, strerror(-rc));
}

int ring_open(struct tap *tap, const struct endpoint *ep, struct ring *r,
	      struct err *err)
{
	*r = (struct ring){.fd = -1};
	int rc = tap_filter_renew(tap, ep, err);
	if (rc != 0)
		return rc;
	struct ring made = {.fd = -1,
			    .ifindex = tap->filter.ifindex,
			    .link_type = tap->filter.link_type,
			    .size_bytes = ep->cf->ring_size};
	rc = make(ep, &made, err);
	if (rc == 0)
		rc = join(tap, ep, &made, err);
	if (rc == 0)
		*r = made;
	else
		ring_close(&made, NULL);
	return rc;
}

void ring_shut(int fd)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog program = {.len = 1, .filter = &nothing};
	setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

void rings_follow(struct tap *tap, const struct endpoint *ep, const struct endpoint *former)
{
	struct err err = {""};
	for (unsigned i = 0; i < tap->n_slots; i++)
		if (tap->rings[i].fd != -1)
			discard_marked(&tap->rings[i]);
	for (unsigned i = 0; i < former->n_fds; i++)
		ring_shut(former->fds[i]);
	wait_for_stragglers();
	for (unsigned i = 0; i < tap->n_slots; i++)
		if (tap->rings[i].fd != -1 &&
		    attach(&tap->filter, tap->rings[i].fd, tap->filter.snaplen, ep, &err) != 0)
			log_error("%s", err.text);
}

/* -- counting and closing ------------------------------------------------------------------------------------------ */

void ring_statistics(struct ring *r, struct stats_endpoint *st)
{
	struct tpacket_stats_v3 now; /* 32 bits; reading starts them anew; the first includes the second */
	socklen_t len = sizeof(now);
	if (getsockopt(r->fd, SOL_PACKET, PACKET_STATISTICS, &now, &len) == -1)
		return;
	r->stored += now.tp_packets - now.tp_drops;
	r->place->stored = r->stored;
	if (st == NULL)
		return;
	st->passed_packets += now.tp_packets;
	st->dropped_ring_packets += now.tp_drops;
}

uint64_t ring_waiting(const struct ring *r)
{
	uint64_t gone = __atomic_load_n(&r->place->taken, __ATOMIC_RELAXED);
	return r->stored > gone ? r->stored - gone : 0;
}

uint64_t ring_close(struct ring *r, struct stats_endpoint *st)
{
	uint64_t waiting = 0;
	if (r->fd == -1)
		return 0;
	if (r->place != NULL) {
		ring_statistics(r, st);
		uint64_t discard = __atomic_load_n(&r->place->discard, __ATOMIC_RELAXED);
		waiting = ring_waiting(r);
		waiting -= MIN(waiting, discard);
		munmap((char *)r->place - RING_PLACE_AT, (size_t)sysconf(_SC_PAGESIZE));
	}
	close(r->fd);
	*r = (struct ring){.fd = -1};
	return waiting;
}
