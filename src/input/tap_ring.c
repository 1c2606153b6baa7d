/* SPDX-License-Identifier: MIT
 *
 * tap_ring: an AF_PACKET socket with a ring (TPACKET_V3): made, joined to its fanout group, asked for
 * its statistics and closed. Master. Which packets are a ring's is said by their time, which the kernel
 * stamps once, before any ring sees them: so none arrives twice, and none falls between two groups.
 *
 *   group before  ──────────────────────────┤ shut by the end of its workers
 *   next group           ├───────────────────────────────────────────
 *                        made    ▲ the moment: to here the former's, from here the next one's
 */
#include "tap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
	RETIRE_MS = 10, /* a block is handed over when full, or after this */
};

/* From now to the moment when one group follows another: so late that all rings know of it before it comes. */
static const uint64_t ahead_us = 50000;

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

/* The kernel chooses the id of a new group (*group is -1), so that no other program is in it. */
static int group_join(const struct endpoint *ep, const struct ring *r, int *group)
{
	const bool is_new = *group == -1;
	const unsigned mode = fanout_mode(ep->cf) | (is_new ? PACKET_FANOUT_FLAG_UNIQUEID : 0);
	const int id = is_new ? 0 : *group;
	int value;
	socklen_t len = sizeof(value);
	int rc = fanout_set(r->fd, id, mode | PACKET_FANOUT_FLAG_IGNORE_OUTGOING);
	if (rc == -EINVAL)
		rc = fanout_set(r->fd, id, mode);
	if (rc != 0 || !is_new)
		return rc;
	if (getsockopt(r->fd, SOL_PACKET, PACKET_FANOUT, &value, &len) == -1)
		return -errno;
	*group = value & 0xffff;
	return 0;
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
	if (madvise(m, page, MADV_DONTFORK) == -1)
		return -errno;
	return ring_has_place(m) ? 0 : -EPROTO;
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
	r->skipped = r->place->skipped;
	r->size_bytes = r->place->size_bytes;
	r->link_type = r->place->link_type;
	r->is_promiscuous = r->place->is_promiscuous;
	return 0;
}

static void forget(struct ring *r)
{
	if (r->place != NULL)
		munmap((char *)r->place - RING_PLACE_AT, (size_t)sysconf(_SC_PAGESIZE));
	close(r->fd);
	*r = (struct ring){.fd = -1};
}

uint64_t ring_asked_bytes(int fd)
{
	struct ring r;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy == -1 || ring_adopt(&r, copy) != 0)
		return 0;
	uint64_t size_bytes = r.size_bytes;
	forget(&r);
	return size_bytes;
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

/* A socket has to be bound before it can join, and until it has, the ring sees what others of the group read: those
 * packets come before from_ns. */
static int join(struct tap *tap, const struct endpoint *ep, struct ring *r, int *group, struct err *err)
{
	int rc = attach(&tap->filter, r->fd, tap->filter.snaplen, ep, err);
	if (rc != 0)
		return rc;
	rc = set_promiscuous(r, ep->cf->promiscuous);
	if (rc == 0)
		rc = bind_device(r);
	if (rc != 0)
		return err_set(err, rc, "Input \"%s\": cannot capture on interface %s: %s.",
			       ep->cf->name, ep->name,
			       strerror(-rc));
	rc = group_join(ep, r, group);
	if (rc != 0)
		return err_set(err, rc,
			       "Input \"%s\": interface %s: cannot share it among workers (PACKET_FANOUT): %s.",
			       ep->cf->name, ep->name, strerror(-rc));
	r->filter = tap->filter.number;
	return 0;
}

/* Else each ring takes a time of its own for its copy of a packet. */
static int stamp_before_rings(int fd)
{
	const int on = 1;
	return setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof(on)) == -1 ? -errno : 0;
}

static int make(const struct endpoint *ep, struct ring *r, struct err *err)
{
	int type = r->link_type == DLT_LINUX_SLL ? SOCK_DGRAM : SOCK_RAW; /* as libpcap does */
	r->fd = socket(AF_PACKET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc = r->fd == -1 ? -errno : make_blocks(r);
	if (rc == 0)
		rc = stamp_before_rings(r->fd);
	if (rc == 0)
		rc = map_place(r);
	if (rc == 0) {
		r->place->size_bytes = r->size_bytes;
		r->place->link_type = r->link_type;
		r->place->from_ns = UINT64_MAX;
	}
	return rc == 0 ? 0
		       : err_set(err, rc,
				 "Input \"%s\": interface %s: cannot make a ring (TPACKET_V3) of %llu bytes: %s.",
				 ep->cf->name, ep->name, (unsigned long long)r->size_bytes, strerror(-rc));
}

static void begin_at(struct ring *rings, unsigned n, uint64_t from_ns)
{
	for (unsigned i = 0; i < n; i++)
		if (rings[i].fd != -1)
			__atomic_store_n(&rings[i].place->from_ns, from_ns, __ATOMIC_RELEASE);
}

int rings_open(struct tap *tap, const struct endpoint *ep, struct ring *rings, struct err *err)
{
	int group = -1;
	int rc = tap_filter_renew(tap, ep, err);
	for (unsigned i = 0; rc == 0 && i < ep->n_slots; i++) {
		rings[i] = (struct ring){.fd = -1,
					 .ifindex = tap->filter.ifindex,
					 .link_type = tap->filter.link_type,
					 .size_bytes = ep->cf->ring_size};
		rc = make(ep, &rings[i], err);
		if (rc == 0)
			rc = join(tap, ep, &rings[i], &group, err);
	}
	if (rc == 0 && ep->former == NULL) /* else rings_follow says when */
		begin_at(rings, ep->n_slots, (clock_real_us() + 1) * 1000);
	for (unsigned i = 0; rc != 0 && i < ep->n_slots; i++)
		ring_close(&rings[i], NULL);
	return rc;
}

void ring_shut(int fd)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog program = {.len = 1, .filter = &nothing};
	setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program));
}

void rings_follow(struct tap *tap, struct tap *former)
{
	const uint64_t moment_ns = (clock_real_us() + ahead_us) * 1000;
	for (unsigned i = 0; i < former->n_slots; i++)
		if (former->rings[i].fd != -1)
			__atomic_store_n(&former->rings[i].place->until_ns, moment_ns, __ATOMIC_RELEASE);
	begin_at(tap->rings, tap->n_slots, moment_ns);
}

/* -- counting and closing ------------------------------------------------------------------------------------------ */

static bool is_over(const struct ring *r)
{
	return __atomic_load_n(&r->place->is_over, __ATOMIC_RELAXED);
}

static uint64_t unread(const struct ring *r)
{
	uint64_t taken = __atomic_load_n(&r->place->taken, __ATOMIC_RELAXED);
	return r->stored > taken ? r->stored - taken : 0;
}

/* Packets that are left to another ring, since the last time; `most`: a worker wrote the number. */
static uint64_t skipped_since(struct ring *r, uint64_t most)
{
	uint64_t skipped = __atomic_load_n(&r->place->skipped, __ATOMIC_RELAXED) + (is_over(r) ? unread(r) : 0);
	uint64_t n = skipped > r->skipped ? MIN(skipped - r->skipped, most) : 0;
	r->skipped += n;
	return n;
}

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
	st->passed_packets += now.tp_packets - skipped_since(r, now.tp_packets);
	st->dropped_ring_packets += now.tp_drops;
}

uint64_t ring_waiting(const struct ring *r)
{
	return is_over(r) ? 0 : unread(r);
}

uint64_t ring_close(struct ring *r, struct stats_endpoint *st)
{
	uint64_t waiting = 0;
	if (r->fd == -1)
		return 0;
	if (r->place != NULL) {
		ring_statistics(r, st);
		waiting = ring_waiting(r);
	}
	forget(r);
	return waiting;
}
