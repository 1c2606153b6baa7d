/* SPDX-License-Identifier: MIT
 *
 * tap_ring: one libpcap handle: made and closed by the master, read by one worker. The order of the steps is what keeps
 * packets from arriving twice or vanishing uncounted (docs/design.md, "libpcap facts, measured").
 */
#include "tap.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <unistd.h>

#ifndef PACKET_FANOUT_FLAG_IGNORE_OUTGOING
#define PACKET_FANOUT_FLAG_IGNORE_OUTGOING 0x4000 /* Linux 6.0; `inbound` in the filter does it elsewhere */
#endif

enum {
	TIMEOUT_MS = 10,        /* a ring's block is handed over when full, or after this */
	FILTER_KEEPS = 0x40000, /* libpcap's own MAXIMUM_SNAPLEN: what the program returns in place of the snaplen */
	FILTER_MARKS = 1,       /* of each packet: it is seen that it came, and when */
	COOKED_BYTES = 16,      /* libpcap's head before packets of interfaces that are not Ethernet */
	COOKED_TYPE_AT = 0,
	COOKED_PROTOCOL_AT = 14,
	STRAGGLER_US = 20,      /* within which a CPU that was on its way into the ring by the old way is there */
};

/* -- the group ----------------------------------------------------------------------------------------------------- */

static int fanout_set(int fd, int id, unsigned mode)
{
	unsigned value = (unsigned)id | mode << 16;
	return setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &value, sizeof value) == -1 ? -errno : 0;
}

unsigned tap_live(const struct tap *tap, unsigned ifindex)
{
	unsigned n = 0;
	for (unsigned i = 0; i < tap->n_slots; i++)
		n += tap->rings[i].pcap != NULL && tap->rings[i].ifindex == ifindex;
	return n;
}

/* The kernel chooses the id of a new group, so that no other program is in it. */
static int group_join(struct tap *tap, const struct endpoint *ep, unsigned ifindex, int fd)
{
	unsigned mode = ep->cf->fanout == CONF_FANOUT_CPU ? PACKET_FANOUT_CPU : PACKET_FANOUT_HASH;
	bool is_new = !tap->is_heir && (tap_live(tap, ifindex) == 0 || tap->group == -1);
	unsigned unique = is_new ? PACKET_FANOUT_FLAG_UNIQUEID : 0;
	int id = is_new ? 0 : tap->group, value;
	socklen_t len = sizeof value;
	int r = fanout_set(fd, id, mode | unique | PACKET_FANOUT_FLAG_IGNORE_OUTGOING);
	if (r == -EINVAL)
		r = fanout_set(fd, id, mode | unique);
	tap->is_heir = false;
	if (r == 0 && is_new)
		tap->group = getsockopt(fd, SOL_PACKET, PACKET_FANOUT, &value, &len) == -1 ? -1 : value & 0xffff;
	return r;
}

/* -- filters ------------------------------------------------------------------------------------------------------- */

/* What libpcap does to a program before it goes to the kernel: on an interface without Ethernet heads, offsets into the
 * cooked head that libpcap makes are moved. */
static void adapt(struct bpf_program *program, uint32_t link_type)
{
	for (unsigned i = 0; i < program->bf_len; i++) {
		struct bpf_insn *insn = &program->bf_insns[i];
		unsigned class = BPF_CLASS(insn->code), mode = BPF_MODE(insn->code);
		bool is_load = class == BPF_LD && (mode == BPF_ABS || mode == BPF_IND);
		if (link_type != DLT_LINUX_SLL || (int32_t)insn->k < 0 ||
		    !(is_load || (class == BPF_LDX && mode == BPF_MSH)))
			continue;
		if (insn->k >= COOKED_BYTES)
			insn->k -= COOKED_BYTES;
		else if (insn->k == COOKED_TYPE_AT)
			insn->k = (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE);
		else if (insn->k == COOKED_PROTOCOL_AT)
			insn->k = (uint32_t)(SKF_AD_OFF + SKF_AD_PROTOCOL);
	}
}

static int compile(pcap_t *p, uint32_t link_type, const struct endpoint *ep, const char *peers,
		   struct bpf_program *program, struct err *err)
{
	struct text t = {0};
	tap_filter_make(&t, ep->cf->filter, peers);
	int r = 0;
	if (t.failed)
		r = err_set(err, -ENOMEM, "Input \"%s\": no memory for its filter.", ep->cf->name);
	else if (pcap_compile(p, program, t.s, 1, PCAP_NETMASK_UNKNOWN) == -1)
		r = err_set(err, -EINVAL, "Input \"%s\": filter \"%s\": %s.", ep->cf->name, t.s, pcap_geterr(p));
	text_free(&t);
	if (r == 0)
		adapt(program, link_type);
	return r;
}

/* Packets that the program lets through are kept up to so many bytes: FILTER_KEEPS, more than any has (the handle cuts
 * to the snaplen), or FILTER_MARKS. */
static int attach(int fd, struct bpf_program *program, uint32_t keeps, const struct endpoint *ep, struct err *err)
{
	struct sock_fprog p = {.len = (unsigned short)program->bf_len,
			       .filter = (struct sock_filter *)(void *)program->bf_insns};
	for (unsigned i = 0; i < program->bf_len; i++)
		if (program->bf_insns[i].code == (BPF_RET | BPF_K) && program->bf_insns[i].k != 0)
			program->bf_insns[i].k = keeps;
	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof p) == 0)
		return 0;
	return err_set(err, -errno, "Input \"%s\": the kernel refuses the filter: %s.", ep->cf->name, strerror(errno));
}

/* Not pcap_setfilter: on a live handle it loses packets (67 and 249 in 296 renewals), and always it has the ring's
 * present block filtered once more by itself, where `inbound` cannot be known and is false: the first block of each
 * ring, some hundred packets, would vanish (libpcap 1.10.3, measured). */
int ring_filter(struct ring *r, const struct endpoint *ep, const char *peers, struct err *err)
{
	struct bpf_program program;
	int rc = compile(r->pcap, r->link_type, ep, peers, &program, err);
	if (rc != 0)
		return rc;
	rc = attach(r->fd, &program, FILTER_KEEPS, ep, err);
	pcap_freecode(&program);
	return rc;
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static int say_failure(const struct endpoint *ep, const char *device, pcap_t *p, int code, struct err *err)
{
	const char *more = pcap_geterr(p), *what = pcap_statustostr(code);
	int r = code == PCAP_ERROR_PERM_DENIED      ? -EPERM
		: code == PCAP_ERROR_NO_SUCH_DEVICE ? -ENODEV
		: code == PCAP_ERROR_IFACE_NOT_UP   ? -ENETDOWN
						    : -EIO;
	return err_set(err, r, "Input \"%s\": cannot capture on interface %s: %s%s%s%s.", ep->cf->name, device,
		       what, more[0] && strcmp(more, what) ? ": " : "", strcmp(more, what) ? more : "",
		       r == -EPERM ? "; start as root, or with CAP_NET_RAW" : "");
}

static int activate(const struct endpoint *ep, const char *device, pcap_t *p, struct err *err)
{
	pcap_set_snaplen(p, (int)ep->cf->snaplen);
	pcap_set_promisc(p, ep->cf->promiscuous);
	pcap_set_timeout(p, TIMEOUT_MS);
	pcap_set_buffer_size(p, (int)ep->cf->ring_size);
	pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO);
	int code = pcap_activate(p);
	if (code < 0)
		return say_failure(ep, device, p, code, err);
	char why[PCAP_ERRBUF_SIZE] = "";
	/* This also closes an eventfd that a blocking handle polls beside its socket: the socket is all that a worker
	 * keeps. */
	if (pcap_setnonblock(p, 1, why) == -1)
		return err_set(err, -EIO, "Input \"%s\": interface %s: %s.", ep->cf->name, device, why);
	if (pcap_get_tstamp_precision(p) != PCAP_TSTAMP_PRECISION_NANO)
		return err_set(err, -ENOTSUP, "Input \"%s\": interface %s has no time stamps in nanoseconds.",
			       ep->cf->name, device);
	return 0;
}

static void wait_for_stragglers(void)
{
	for (uint64_t until_us = clock_us() + STRAGGLER_US; clock_us() < until_us;)
		;
}

/* Until it joins, the ring sees what others of the group read. So packets are only marked until it is in the group, and
 * those of the moment around the join, of which nobody can tell whose they are, are lost and counted: none is read
 * twice. */
static int join(struct tap *tap, const struct endpoint *ep, const char *device, struct ring *made,
		struct bpf_program *program, struct err *err)
{
	int rc = attach(made->fd, program, FILTER_MARKS, ep, err);
	if (rc != 0)
		return rc;
	ring_statistics(made, made->fd, NULL);
	made->discard = made->stored;
	rc = group_join(tap, ep, made->ifindex, made->fd);
	if (rc != 0)
		return err_set(err, rc,
			       "Input \"%s\": interface %s: cannot share it among workers (PACKET_FANOUT): %s.",
			       ep->cf->name, device, strerror(-rc));
	wait_for_stragglers();
	return attach(made->fd, program, FILTER_KEEPS, ep, err);
}

int ring_open(struct tap *tap, const struct endpoint *ep, const char *device, struct ring *r, struct err *err)
{
	char why[PCAP_ERRBUF_SIZE] = "";
	int rc;
	*r = (struct ring){.fd = -1};
	pcap_t *p = pcap_create(device, why);
	if (!p)
		return err_set(err, -ENOMEM, "Input \"%s\": interface %s: %s.", ep->cf->name, device, why);
	rc = activate(ep, device, p, err);
	struct ring made = {.pcap = p, .fd = -1};
	struct bpf_program program;
	if (rc == 0) {
		made.fd = pcap_fileno(p);
		made.link_type = (uint32_t)pcap_datalink(p);
		made.ifindex = if_nametoindex(device);
		made.mark_bytes = FILTER_MARKS + (made.link_type == DLT_LINUX_SLL ? COOKED_BYTES : 0);
		rc = compile(p, made.link_type, ep, tap->peers.s ? tap->peers.s : "", &program, err);
	}
	if (rc == 0) {
		rc = join(tap, ep, device, &made, &program, err);
		pcap_freecode(&program);
	}
	if (rc != 0) {
		pcap_close(p);
		return rc;
	}
	*r = made;
	return 0;
}

/* -- counting and closing --------------------------------------------------------------------------------------------
 */

void ring_statistics(struct ring *r, int fd, struct stats_endpoint *st)
{
	struct tpacket_stats now; /* 32 bits; reading starts them anew; the first includes the second */
	socklen_t len = sizeof now;
	if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &now, &len) == -1)
		return;
	r->stored += now.tp_packets - now.tp_drops;
	if (!st)
		return;
	st->passed_packets += now.tp_packets;
	st->dropped_ring_packets += now.tp_drops;
}

uint64_t ring_close(struct ring *r, uint64_t taken, struct stats_endpoint *st)
{
	/* pcap_close takes its time (it unmaps the ring), and the kernel goes on counting: so the last look is at a
	 * copy. */
	int fd = dup(r->fd);
	pcap_close(r->pcap);
	if (fd != -1) {
		ring_statistics(r, fd, st);
		close(fd);
	}
	uint64_t stored = r->stored - r->discard, own = taken > r->discard ? taken - r->discard : 0;
	*r = (struct ring){.fd = -1};
	return stored > own ? stored - own : 0;
}

/* -- a live ring ------------------------------------------------------------------------------------------------------
 */

void ring_shut(struct ring *r)
{
	struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
	struct sock_fprog program = {.len = 1, .filter = &nothing};
	setsockopt(r->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}
