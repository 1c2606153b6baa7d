/* SPDX-License-Identifier: MIT
 *
 * The driver `pcap`: a Linux interface, one ring for each slot in one fanout group; the filter is
 * libpcap's. The master makes and closes rings and reads their statistics (which resets them); a
 * worker only reads its own, from the place where the one before it ended. Rings are not lent: what
 * comes while a slot has no worker waits in its ring.
 */
#include "tap.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <sys/mman.h>
#include <unistd.h>

/* Blocks are handed over within the timeout of 10 ms: after this nothing more comes out of a ring
 * that was shut. */
static const uint64_t shut_us = 30000;

/* -- master ---------------------------------------------------------------------------------------------------- */

static size_t tap_check(const struct conf_input *cf, const char *path, struct text *errors)
{
	char where[CAPTURE_WHERE_BYTES];
	struct bpf_program program;
	size_t n = 0;
	pcap_t *p = cf->filter[0] ? pcap_open_dead(DLT_EN10MB, (int)cf->snaplen) : NULL;
	if (!p)
		return 0;
	if (pcap_compile(p, &program, cf->filter, 1, PCAP_NETMASK_UNKNOWN) == -1) {
		char shown[200];
		text_add(errors, "%s.filter: \"%s\" is no filter: %s; see man 7 pcap-filter\n",
			 capture_where(cf, path, where, sizeof where),
			 text_escape(shown, sizeof shown, cf->filter, strlen(cf->filter)), pcap_geterr(p));
		n = 1;
	} else {
		pcap_freecode(&program);
	}
	pcap_close(p);
	return n;
}

static void find_peers(const struct endpoint *ep, struct tap *tap)
{
	struct text unknown = {0};
	if (!ep->cf->exclude_own)
		return;
	tap_peers(ep->conf, &tap->peers, &unknown);
	if (unknown.len)
		log_warn("input \"%s\": exclude_own: the address of %s is not known yet; traffic to it is captured "
			 "until the "
			 "brokers tell theirs",
			 ep->cf->name, unknown.s);
	text_free(&unknown);
}

static int no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "Cannot start: no memory.");
}

static int tap_new(struct endpoint *ep, struct err *err)
{
	struct tap *tap = calloc(1, sizeof(*tap));
	if (tap == NULL)
		return no_memory(err);
	ep->impl = tap;
	tap->n_slots = ep->n_slots;
	tap->is_any = strcmp(ep->name, "any") == 0;
	tap->rings = calloc(STATS_SLOTS_MAX, sizeof(*tap->rings));
	tap->next = calloc(STATS_SLOTS_MAX, sizeof(*tap->next));
	if (tap->rings == NULL || tap->next == NULL)
		return no_memory(err);
	for (unsigned i = 0; i < STATS_SLOTS_MAX; i++)
		tap->rings[i].fd = tap->next[i].fd = -1;
	return 0;
}

/* One that is down is waited for. */
static bool is_there(const struct tap *tap)
{
	return tap->is_any || (tap->ifindex != 0 && tap->is_up);
}

static int tap_bind(struct endpoint *ep, struct err *err)
{
	int r = tap_new(ep, err);
	struct tap *tap = ep->impl;
	if (r != 0)
		return r;
	find_peers(ep, tap);
	tap_look(tap, ep, ep->name, NULL);
	if (ep->former == NULL || is_there(tap))
		r = rings_open(tap, ep, tap->rings, err);
	for (; r == 0 && ep->n_fds < ep->n_slots; ep->n_fds++)
		ep->fds[ep->n_fds] = tap->rings[ep->n_fds].fd;
	ep->receive_buffer_bytes = ep->cf->ring_size;
	if (r == 0 && ep->cf->offload_check)
		tap_offload_check(ep, ep->name);
	return r;
}

static void tap_unbind(struct endpoint *ep)
{
	struct tap *tap = ep->impl;
	for (unsigned i = 0; tap == NULL && i < ep->n_fds; i++)
		if (ep->fds[i] != -1)
			close(ep->fds[i]); /* of before an upgrade, and nobody has taken it */
	if (tap == NULL)
		return;
	for (unsigned i = 0; tap->rings != NULL && tap->next != NULL && i < STATS_SLOTS_MAX; i++) {
		ring_close(&tap->rings[i], NULL);
		ring_close(&tap->next[i], NULL);
	}
	tap_filter_fini(&tap->filter);
	text_free(&tap->peers);
	free(tap->rings);
	free(tap->next);
	free(tap);
	ep->impl = NULL;
}

/* No child has a mapping of any ring (MADV_DONTFORK), and a worker closes what is not its own: each would
 * keep a ring in its group. */
static void tap_keep(struct endpoint *ep, unsigned slot, int *keep, size_t *n)
{
	keep[(*n)++] = tap_ring(ep->impl, slot)->fd;
}

static void put_ring(struct endpoint *ep, unsigned slot, const struct ring *r,
		     struct stats_page *page)
{
	struct tap *tap = ep->impl;
	tap->rings[slot] = *r;
	ep->fds[slot] = r->fd;
	stats_endpoint(page, ep->blocks[slot])->handles += r->fd != -1;
	stats_touch(page, STATS_ENDPOINT, ep->blocks[slot]);
}

/* There is none, or its interface is another one now. One that was renamed, or in another namespace for a while, comes
 * back with the index that it had, and the ring goes on. */
static bool is_outdated(const struct tap *tap, const struct ring *r)
{
	return r->fd == -1 || (!tap->is_any && r->ifindex != tap->ifindex);
}

/* For all slots at once: a group is made whole. */
static void open_or_say(struct tap *tap, struct endpoint *ep)
{
	struct err err = {""};
	int rc = rings_open(tap, ep, tap->next, &err);
	if (rc != 0 && rc != -ENODEV && rc != -ENETDOWN)
		log_error("%s", err.text);
}

/* The ring that the next worker reads: with the present options, or another one. */
static void tap_prepare(struct endpoint *ep, unsigned slot)
{
	struct tap *tap = ep->impl;
	struct err err = {""};
	if (!is_there(tap))
		return;
	if (tap->next[slot].fd == -1 && is_outdated(tap, &tap->rings[slot]))
		open_or_say(tap, ep);
	struct ring *r = tap_ring(tap, slot);
	if (r->fd != -1 && ring_adjust(tap, ep, r, &err) != 0)
		log_warn("%s", err.text);
}

/* The ring stays for the next worker, unless that has another one, or never comes. */
static uint64_t tap_died(struct endpoint *ep, unsigned slot, bool is_last,
			 struct stats_page *page)
{
	struct tap *tap = ep->impl;
	struct stats_endpoint *st = stats_endpoint(page, ep->blocks[slot]);
	if (tap == NULL || (!is_last && tap->next[slot].fd == -1))
		return 0;
	uint64_t lost = ring_close(&tap->rings[slot], st);
	if (is_last)
		lost += ring_close(&tap->next[slot], st);
	st->dropped_dead_ring_packets += lost;
	st->ring_packets = 0;
	put_ring(ep, slot, &tap->next[slot], page);
	tap->next[slot] = (struct ring){.fd = -1};
	return lost;
}

/* Nobody reads the slot's ring now. */
static void tap_renew(struct endpoint *ep, unsigned slot, struct stats_page *page)
{
	tap_prepare(ep, slot);
	tap_died(ep, slot, false, page);
}

/* A group is whole, or there is none: without one of its rings a share of the packets would vanish. */
static void give_up_rings(struct endpoint *ep, int why)
{
	struct tap *tap = ep->impl;
	log_error("interface %s: its rings of before the upgrade cannot be taken over: %s; what was in them is lost, and "
		  "new ones are made",
		  ep->name, strerror(-why));
	for (unsigned i = 0; i < ep->n_fds; i++) {
		if (ep->fds[i] != -1)
			ring_shut(ep->fds[i]);
		if (tap->rings[i].fd != -1)
			ring_close(&tap->rings[i], NULL);
		else if (ep->fds[i] != -1)
			close(ep->fds[i]);
		ep->fds[i] = -1;
	}
}

/* The rings that this program had before an upgrade. */
static int adopt_rings(struct endpoint *ep, struct err *err)
{
	int r = tap_new(ep, err), rc = 0;
	struct tap *tap = ep->impl;
	if (r != 0)
		return r;
	for (unsigned i = 0; rc == 0 && i < ep->n_fds; i++)
		rc = ep->fds[i] != -1 ? ring_adopt(&tap->rings[i], ep->fds[i]) : 0;
	if (rc != 0)
		give_up_rings(ep, rc);
	tap->n_slots = ep->n_fds;
	tap_look(tap, ep, ep->name, NULL);
	return 0;
}

/* All get the present options with their next worker. While the interface is away there are none, for any number of
 * slots. */
static int tap_adjust(struct endpoint *ep, struct err *err)
{
	int r = ep->impl == NULL ? adopt_rings(ep, err) : 0;
	struct tap *tap = ep->impl;
	if (r != 0)
		return r;
	for (; ep->n_fds < ep->n_slots; ep->n_fds++)
		ep->fds[ep->n_fds] = -1;
	tap->n_slots = MAX(tap->n_slots, ep->n_slots);
	ep->receive_buffer_bytes = ep->cf->ring_size;
	if (!ep->cf->exclude_own)
		text_free(&tap->peers);
	else if (tap->peers.len == 0)
		find_peers(ep, tap);
	return 0;
}

/* How a group chooses is the kernel's for as long as it has a member, and a ring that joined or left it alone would have
 * packets twice or lose them. */
static bool tap_is_other(const struct endpoint *ep, const struct endpoint_user *user)
{
	unsigned n_open = 0;
	for (unsigned i = 0; i < ep->n_fds; i++) {
		if (ep->fds[i] == -1)
			continue;
		n_open++;
		if (!ring_has_fanout(ep->fds[i], user->cf) || ring_asked_bytes(ep->fds[i]) != user->cf->ring_size)
			return true;
	}
	return n_open > 0 && ep->n_fds != user->n_slots;
}

static void tap_follow(struct endpoint *ep, struct endpoint *former)
{
	struct err err = {""};
	if (former->impl == NULL && adopt_rings(former, &err) != 0)
		log_error("%s", err.text);
	else
		rings_follow(ep->impl, former->impl);
}

/* Its interface is another one now; or the ring that waits for its successor does so in vain. */
static bool tap_is_stale(const struct endpoint *ep, unsigned slot)
{
	const struct tap *tap = ep->impl;
	bool is_other = !tap->is_any && tap->rings[slot].ifindex != tap->ifindex;
	return is_there(tap) && (is_other || tap->next[slot].fd != -1);
}

/* The master changes the filters of all rings: it has their descriptors, and libpcap compiles for a
 * device that it can open. */
static void exclude_peers(struct tap *tap, struct endpoint *ep)
{
	struct err err = {""};
	bool was_failing = tap->is_failing;
	if (!tap->has_new_peers || !is_there(tap))
		return;
	tap->is_failing = false;
	for (unsigned i = 0; i < STATS_SLOTS_MAX; i++) {
		struct ring *rings[] = {&tap->rings[i], &tap->next[i]};
		for (unsigned k = 0; k < ARRAY_LEN(rings); k++)
			if (rings[k]->fd != -1 && ring_adjust(tap, ep, rings[k], &err) != 0)
				tap->is_failing = true;
	}
	tap->has_new_peers = tap->is_failing; /* again, when we are called again */
	if (tap->is_failing && !was_failing)
		log_warn("%s", err.text);
	else if (!tap->is_failing)
		log_info("input \"%s\": leaving out our own traffic to %s", ep->cf->name,
			 tap->peers.s);
}

/* What is known already has been said by another worker. */
static void tap_exclude(struct endpoint *ep, const char *peers)
{
	struct tap *tap = ep->impl;
	bool is_known = tap->is_told && tap->peers.s != NULL && strcmp(tap->peers.s, peers) == 0;
	if (is_known)
		return;
	tap->is_told = true;
	text_free(&tap->peers);
	text_add(&tap->peers, "%s", peers);
	tap->has_new_peers = !tap->peers.failed;
	exclude_peers(tap, ep);
}

static void tap_count(struct endpoint *ep, struct stats_page *page)
{
	struct tap *tap = ep->impl;
	tap_look(tap, ep, ep->name, stats_endpoint(page, ep->blocks[0]));
	exclude_peers(tap, ep);
	for (unsigned i = 0; i < ep->n_fds; i++) {
		struct ring *r = &tap->rings[i];
		struct stats_endpoint *st = stats_endpoint(page, ep->blocks[i]);
		st->is_up = tap->is_up || tap->is_any;
		if (r->fd != -1) {
			ring_statistics(r, st);
			st->ring_packets = ring_waiting(r);
		}
		stats_touch(page, STATS_ENDPOINT, ep->blocks[i]);
	}
}

/* -- worker ---------------------------------------------------------------------------------------------------- */

struct tap_source {
	struct ring ring;
	struct ring_reader reader;
	void *memory;
	uint64_t shut_at_us;
};

static size_t memory_bytes(const struct tap_source *ps)
{
	return (size_t)ps->ring.n_blocks * RING_BLOCK_BYTES;
}

static int tap_open(struct input *in, struct endpoint *ep, struct err *err)
{
	const struct ring *r = tap_ring(ep->impl, in->slot);
	if (r->fd == -1)
		return 0; /* the interface is away */
	struct tap_source *ps = calloc(1, sizeof(*ps));
	if (ps == NULL)
		return no_memory(err);
	ps->ring = *r;
	ps->memory = mmap(NULL, memory_bytes(ps), PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
	int rc = ps->memory == MAP_FAILED ? -errno : 0;
	if (rc != 0) {
		free(ps);
		return err_set(err, rc, "Input \"%s\": cannot map the ring of interface %s: %s.",
			       in->cf->name, ep->name,
			       strerror(-rc));
	}
	ring_reader_init(&ps->reader, ps->memory, r->n_blocks);
	struct capture_source *cs = capture_source_new(in, ep, r->fd);
	if (cs == NULL) {
		munmap(ps->memory, memory_bytes(ps));
		free(ps);
		return no_memory(err);
	}
	cs->impl = ps;
	return 0;
}

static void copy(struct capture_source *cs, const struct tap_source *ps,
		 const struct ring_packet *p)
{
	const uint32_t link_type = ps->ring.link_type, snaplen = (uint32_t)cs->source.in->cf->snaplen;
	const bool is_cooked = link_type == DLT_LINUX_SLL;
	if (LIKELY(!is_cooked && !p->is_tagged)) {
		capture_copy(cs, p->bytes, MIN(p->len, snaplen), p->original_len, p->time_ns,
			     link_type);
		return;
	}
	uint8_t head[RING_HEAD_MAX_BYTES];
	unsigned skip, n = ring_head(p, is_cooked, link_type == DLT_EN10MB, head, &skip);
	uint32_t len = MIN(n + p->len - skip, snaplen);
	memcpy(cs->at, head, n);
	memcpy(cs->at + n, p->bytes + skip, len - n);
	capture_added(cs, len, n + p->original_len - skip, p->time_ns, link_type);
}

/* Of a ring that was shut, or whose packets are another one's from a moment on, a block may not be handed over yet. */
static bool may_have_more(const struct capture_source *cs)
{
	const struct tap_source *ps = cs->impl;
	struct ring_place *place = ps->reader.place;
	if (place->until_ns == 0 || !cs->source.in->draining)
		return ps->shut_at_us != 0 && clock_us() < ps->shut_at_us + shut_us;
	if (clock_real_us() < place->until_ns / 1000 + shut_us)
		return true;
	__atomic_store_n(&place->is_over, 1, __ATOMIC_RELEASE);
	return false;
}

static void tap_read(struct capture_source *cs, unsigned max)
{
	struct tap_source *ps = cs->impl;
	struct ring_packet p;
	int trouble;
	socklen_t len = sizeof(trouble);
	max = MIN(max, CAPTURE_COPIED_MAX);
	while (cs->n < max && ring_next(&ps->reader, &p)) {
		if (ring_is_mine(ps->reader.place, p.time_ns))
			copy(cs, ps, &p);
		else
			ps->reader.place->skipped++;
		ring_take(&ps->reader, &p);
	}
	cs->source.in->stats->dropped_damaged_packets += ps->reader.damaged;
	ps->reader.damaged = 0;
	/* An interface that goes down, or away, is an error of the socket, which would be reported
	 * for ever. */
	if (cs->n == 0)
		getsockopt(ps->ring.fd, SOL_SOCKET, SO_ERROR, &trouble, &len);
	cs->source.drained = cs->n < max && !may_have_more(cs);
}

/* A ring that is shut stays in its group, and its share would vanish: so that is for the end of
 * all, or of the endpoint. Else what is there is read, and what is not the next one reads; or the master closes the
 * ring and counts it. */
static void tap_drain(struct capture_source *cs)
{
	struct tap_source *ps = cs->impl;
	if ((cs->source.in->leave != INPUT_ALL_END && !cs->source.ep->is_retired) || ps->reader.place->until_ns != 0)
		return;
	ring_shut(ps->ring.fd);
	ps->shut_at_us = clock_us();
}

static void tap_end(struct capture_source *cs)
{
	struct tap_source *ps = cs->impl;
	munmap(ps->memory, memory_bytes(ps));
	free(ps);
}

static unsigned pcap_read(struct source *s, struct batch *b)
{
	return capture_read(s, b, tap_read);
}

static void pcap_drain(struct input *in)
{
	in->draining = true;
	for (struct source *s = in->sources; s; s = s->next)
		tap_drain((struct capture_source *)s);
}

static void pcap_end(struct source *s)
{
	tap_end((struct capture_source *)s);
	source_free(s);
}

static const struct endpoint_ops endpoint_pcap = {
    .name = "pcap",
    .is_device = true,
    .capabilities = CAPABILITY(CAP_NET_RAW),
    .check = tap_check,
    .bind = tap_bind,
    .unbind = tap_unbind,
    .keep = tap_keep,
    .died = tap_died,
    .prepare_successor = tap_prepare,
    .adjust = tap_adjust,
    .is_other = tap_is_other,
    .follow = tap_follow,
    .renew = tap_renew,
    .is_stale = tap_is_stale,
    .count = tap_count,
    .exclude = tap_exclude,
};

const struct input_type input_pcap = {
    .name = "pcap",
    .is_packets = true,
    .is_paced = true,
    .endpoint = &endpoint_pcap,
    .open_endpoint = tap_open,
    .drain = pcap_drain,
    .read = pcap_read,
    .end = pcap_end,
};

const char *input_pcap_version(void)
{
	return pcap_lib_version();
}
