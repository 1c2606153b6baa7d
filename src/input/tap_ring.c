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
static int group_join(struct tap *tap, const struct input *in, unsigned ifindex, int fd)
{
	unsigned mode = in->cf->fanout == CONF_FANOUT_CPU ? PACKET_FANOUT_CPU : PACKET_FANOUT_HASH;
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

/* -- opening ------------------------------------------------------------------------------------------------------- */

static int say_failure(const struct input *in, const char *device, pcap_t *p, int code, struct err *err)
{
	const char *more = pcap_geterr(p), *what = pcap_statustostr(code);
	int r = code == PCAP_ERROR_PERM_DENIED      ? -EPERM
		: code == PCAP_ERROR_NO_SUCH_DEVICE ? -ENODEV
		: code == PCAP_ERROR_IFACE_NOT_UP   ? -ENETDOWN
						    : -EIO;
	return err_set(err, r, "Input \"%s\": cannot capture on interface %s: %s%s%s%s.", in->cf->name, device,
		       what, more[0] && strcmp(more, what) ? ": " : "", strcmp(more, what) ? more : "",
		       r == -EPERM ? "; start as root, or with CAP_NET_RAW" : "");
}

static int activate(const struct input *in, const char *device, pcap_t *p, struct err *err)
{
	pcap_set_snaplen(p, (int)in->cf->snaplen);
	pcap_set_promisc(p, in->cf->promiscuous);
	pcap_set_timeout(p, TIMEOUT_MS);
	pcap_set_buffer_size(p, (int)in->cf->ring_size);
	pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO);
	int code = pcap_activate(p);
	if (code < 0)
		return say_failure(in, device, p, code, err);
	char why[PCAP_ERRBUF_SIZE] = "";
	/* This also closes an eventfd that a blocking handle polls beside its socket: the socket is all that a worker
	 * keeps. */
	if (pcap_setnonblock(p, 1, why) == -1)
		return err_set(err, -EIO, "Input \"%s\": interface %s: %s.", in->cf->name, device, why);
	if (pcap_get_tstamp_precision(p) != PCAP_TSTAMP_PRECISION_NANO)
		return err_set(err, -ENOTSUP, "Input \"%s\": interface %s has no time stamps in nanoseconds.",
			       in->cf->name, device);
	return 0;
}

static int compile(pcap_t *p, const struct input *in, const char *peers, struct bpf_program *program, struct err *err)
{
	struct text t = {0};
	tap_filter_make(&t, in->cf->filter, peers);
	int r = 0;
	if (t.failed)
		r = err_set(err, -ENOMEM, "Input \"%s\": no memory for its filter.", in->cf->name);
	else if (pcap_compile(p, program, t.s, 1, PCAP_NETMASK_UNKNOWN) == -1)
		r = err_set(err, -EINVAL, "Input \"%s\": filter \"%s\": %s.", in->cf->name, t.s, pcap_geterr(p));
	text_free(&t);
	return r;
}

int ring_open(struct tap *tap, const struct input *in, const char *device, struct ring *r, struct err *err)
{
	char why[PCAP_ERRBUF_SIZE] = "";
	int rc;
	*r = (struct ring){.fd = -1};
	pcap_t *p = pcap_create(device, why);
	if (!p)
		return err_set(err, -ENOMEM, "Input \"%s\": interface %s: %s.", in->cf->name, device, why);
	rc = activate(in, device, p, err);
	struct ring made = {.pcap = p, .fd = -1};
	if (rc == 0) {
		made.fd = pcap_fileno(p);
		made.link_type = (uint32_t)pcap_datalink(p);
		made.ifindex = if_nametoindex(device);
		rc = ring_filter(&made, in, tap->peers.s ? tap->peers.s : "", err);
	}
	made.joined_ns = clock_real_us() * 1000;
	if (rc == 0 && (rc = group_join(tap, in, made.ifindex, made.fd)) != 0)
		err_set(err, rc, "Input \"%s\": interface %s: cannot share it among workers (PACKET_FANOUT): %s.",
			in->cf->name, device, strerror(-rc));
	if (rc != 0) {
		pcap_close(p);
		return rc;
	}
	/* Until now it saw what others of the group have read, and before the filter was there, anything. Read at once:
	 * what comes from here on is its own. */
	ring_statistics(&made, made.fd, NULL);
	made.discard = made.stored;
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

static int attach(int fd, struct bpf_insn *insns, unsigned n)
{
	struct sock_fprog program = {.len = (unsigned short)n, .filter = (struct sock_filter *)(void *)insns};
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == -1 ? -errno : 0;
}

/* What libpcap does to a program before it goes to the kernel: it returns more than any packet has (the handle cuts to
 * the snaplen), and on an interface without Ethernet heads, offsets into the cooked head that libpcap makes are moved.
 */
static void adapt(struct bpf_program *program, uint32_t link_type)
{
	enum { COOKED_BYTES = 16, COOKED_TYPE_AT = 0, COOKED_PROTOCOL_AT = 14 };
	for (unsigned i = 0; i < program->bf_len; i++) {
		struct bpf_insn *insn = &program->bf_insns[i];
		unsigned class = BPF_CLASS(insn->code), mode = BPF_MODE(insn->code);
		bool is_load = class == BPF_LD && (mode == BPF_ABS || mode == BPF_IND);
		if (insn->code == (BPF_RET | BPF_K) && insn->k != 0)
			insn->k = FILTER_KEEPS;
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

/* Not pcap_setfilter: on a live handle it loses packets (67 and 249 in 296 renewals), and always it has the ring's
 * present block filtered once more by itself, where `inbound` cannot be known and is false: the first block of each
 * ring, some hundred packets, would vanish (libpcap 1.10.3, measured). */
int ring_filter(struct ring *r, const struct input *in, const char *peers, struct err *err)
{
	struct bpf_program program;
	int rc = compile(r->pcap, in, peers, &program, err);
	if (rc != 0)
		return rc;
	adapt(&program, r->link_type);
	rc = attach(r->fd, program.bf_insns, program.bf_len);
	pcap_freecode(&program);
	if (rc != 0)
		err_set(err, rc, "Input \"%s\": the kernel refuses the filter: %s.", in->cf->name, strerror(-rc));
	return rc;
}

void ring_shut(struct ring *r)
{
	struct bpf_insn nothing = BPF_STMT(BPF_RET | BPF_K, 0);
	attach(r->fd, &nothing, 1);
}
