/* SPDX-License-Identifier: MIT
 *
 * Captures by libpcap: a Linux interface, one ring for each worker in one fanout group. The master makes and closes rings
 * and reads their statistics (which resets them); a worker only reads its own. Rings are not lent: what waits in the ring
 * of a dead worker is counted, and the group gives its flows to the others at once.
 */
#include "tap.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/mman.h>

/* Blocks are handed over within the timeout of 10 ms: after this nothing more comes out of a ring that was shut. */
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
	struct tap *tap = calloc(1, sizeof *tap);
	if (!tap)
		return no_memory(err);
	ep->impl = tap;
	tap->group = ep->group;
	tap->is_heir = ep->group != -1;
	tap->n_slots = ep->n_slots;
	tap->is_any = strcmp(ep->name, "any") == 0;
	tap->rings = calloc(STATS_SLOTS_MAX, sizeof *tap->rings);
	void *m = mmap(NULL, STATS_SLOTS_MAX * sizeof *tap->taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	tap->taken = m == MAP_FAILED ? NULL : m;
	return tap->rings && tap->taken ? 0 : no_memory(err);
}

static int tap_bind(struct endpoint *ep, struct err *err)
{
	int r = tap_new(ep, err);
	struct tap *tap = ep->impl;
	if (r != 0)
		return r;
	find_peers(ep, tap);
	tap_look(tap, ep, ep->name, NULL);
	for (unsigned i = 0; r == 0 && i < ep->n_slots; i++) {
		r = ring_open(tap, ep, ep->name, &tap->rings[i], err);
		ep->fds[i] = tap->rings[i].fd;
		ep->n_fds = i + 1;
	}
	ep->receive_buffer_bytes = ep->cf->ring_size;
	if (r == 0 && ep->cf->offload_check)
		tap_offload_check(ep, ep->name);
	return r;
}

static void tap_unbind(struct endpoint *ep)
{
	struct tap *tap = ep->impl;
	if (!tap)
		return;
	for (unsigned i = 0; tap->rings && i < tap->n_slots; i++)
		if (tap->rings[i].pcap)
			pcap_close(tap->rings[i].pcap);
	if (tap->next.pcap)
		pcap_close(tap->next.pcap);
	if (tap->taken)
		munmap(tap->taken, STATS_SLOTS_MAX * sizeof *tap->taken);
	text_free(&tap->peers);
	free(tap->rings);
	free(tap);
	ep->impl = NULL;
}

/* Closing a descriptor is not enough: the mapping of a ring keeps it in the group, too. */
static void tap_keep(struct endpoint *ep, unsigned slot, int *keep, size_t *n)
{
	struct tap *tap = ep->impl;
	for (unsigned i = 0; i < tap->n_slots; i++) {
		if (i != slot && tap->rings[i].pcap)
			pcap_close(tap->rings[i].pcap);
		if (i != slot)
			tap->rings[i].pcap = NULL;
	}
	if (tap->next.pcap)
		pcap_close(tap->next.pcap);
	tap->next.pcap = NULL;
	if (slot != ENDPOINT_NO_SLOT)
		keep[(*n)++] = tap->rings[slot].fd;
}

static void put_ring(struct endpoint *ep, unsigned slot, const struct ring *r, struct stats_page *page)
{
	struct tap *tap = ep->impl;
	tap->rings[slot] = *r;
	tap->taken[slot] = (struct tap_taken){0};
	ep->fds[slot] = r->fd;
	stats_endpoint(page, ep->blocks[slot])->handles += r->pcap != NULL;
	stats_touch(page, STATS_ENDPOINT, ep->blocks[slot]);
}

static uint64_t tap_died(struct endpoint *ep, unsigned slot, bool is_last, struct stats_page *page)
{
	struct tap *tap = ep->impl;
	struct stats_endpoint *st = stats_endpoint(page, ep->blocks[slot]);
	struct ring next = {.fd = -1};
	if (!tap->rings[slot].pcap)
		return 0;
	if (tap->next.pcap && tap->next_slot == slot) {
		next = tap->next;
		tap->next = (struct ring){.fd = -1};
	}
	/* The last ring of the group: the next one joins before this one leaves, so that nothing falls between them. */
	bool is_there = tap->is_any || (tap->ifindex && tap->ifindex == tap->rings[slot].ifindex);
	if (!next.pcap && !is_last && is_there && tap_live(tap, tap->rings[slot].ifindex) == 1)
		ring_open(tap, ep, ep->name, &next, NULL);
	uint64_t lost = ring_close(&tap->rings[slot], tap->taken[slot].packets, st);
	st->dropped_dead_ring_packets += lost;
	st->ring_packets = 0;
	put_ring(ep, slot, &next, page);
	return lost;
}

static int tap_group(const struct endpoint *ep)
{
	const struct tap *tap = ep->impl;
	return tap->group;
}

/* In the group before the old ring leaves, so that nothing falls between them. */
static void tap_prepare_successor(struct endpoint *ep, unsigned slot)
{
	struct tap *tap = ep->impl;
	struct err err = {""};
	if (tap->next.pcap || !tap->rings[slot].pcap || (tap->ifindex == 0 && !tap->is_any))
		return;
	tap->next_slot = slot;
	if (ring_open(tap, ep, ep->name, &tap->next, &err) != 0)
		log_error("%s", err.text);
}

/* Rings of new slots are made with their first tenant, and all get the present options with their next one. */
static int tap_adjust(struct endpoint *ep, struct err *err)
{
	struct tap *tap = ep->impl;
	(void)err;
	for (; ep->n_fds < ep->n_slots; ep->n_fds++) {
		tap->rings[ep->n_fds] = (struct ring){.fd = -1};
		ep->fds[ep->n_fds] = -1;
	}
	tap->n_slots = MAX(tap->n_slots, ep->n_slots);
	ep->receive_buffer_bytes = ep->cf->ring_size;
	if (!ep->cf->exclude_own)
		text_free(&tap->peers);
	else if (tap->peers.len == 0)
		find_peers(ep, tap);
	return 0;
}

static void tap_renew(struct endpoint *ep, unsigned slot, struct stats_page *page)
{
	struct tap *tap = ep->impl;
	struct ring r;
	struct err err = {""};
	if (tap->rings[slot].pcap || (tap->ifindex == 0 && !tap->is_any))
		return;
	int rc = ring_open(tap, ep, ep->name, &r, &err);
	if (rc != 0 && rc != -ENODEV)
		log_error("%s", err.text);
	if (rc == 0)
		put_ring(ep, slot, &r, page);
}

/* An interface that was renamed, or in another namespace for a while, comes back with the index that it had. */
static bool tap_is_stale(const struct endpoint *ep, unsigned slot)
{
	const struct tap *tap = ep->impl;
	const struct ring *r = &tap->rings[slot];
	return tap->ifindex != 0 && (!r->pcap || r->ifindex != tap->ifindex ||
				     __atomic_load_n(&tap->taken[slot].has_ended, __ATOMIC_RELAXED));
}

static void tap_count(struct endpoint *ep, struct stats_page *page)
{
	struct tap *tap = ep->impl;
	tap_look(tap, ep, ep->name, stats_endpoint(page, ep->blocks[0]));
	for (unsigned i = 0; i < ep->n_fds; i++) {
		struct ring *r = &tap->rings[i];
		struct stats_endpoint *st = stats_endpoint(page, ep->blocks[i]);
		st->is_up = tap->is_up || tap->is_any;
		if (r->pcap) {
			ring_statistics(r, r->fd, st);
			uint64_t taken = tap->taken[i].packets;
			st->ring_packets = r->stored > taken ? r->stored - taken : 0;
		}
		stats_touch(page, STATS_ENDPOINT, ep->blocks[i]);
	}
}

/* For the rings that are made from now on. */
static void tap_set_peers(struct endpoint *ep, const char *peers)
{
	struct tap *tap = ep->impl;
	text_free(&tap->peers);
	text_add(&tap->peers, "%s", peers);
}

/* -- worker ---------------------------------------------------------------------------------------------------- */

static void tap_exclude(struct input *in, struct endpoint *ep, const char *peers)
{
	struct tap *tap = ep->impl;
	struct err err = {""};
	if (!tap->rings[in->slot].pcap)
		return;
	if (ring_filter(&tap->rings[in->slot], ep, peers, &err) != 0)
		log_warn("%s", err.text);
	else
		log_info("input \"%s\": leaving out our own traffic to %s", in->cf->name, peers);
}

struct tap_source {
	struct ring *ring;
	struct tap_taken *taken;
	uint64_t discard; /* still to be discarded */
	uint64_t shut_at_us;
};

static int tap_open(struct input *in, struct endpoint *ep, struct err *err)
{
	struct tap *tap = ep->impl;
	struct ring *r = &tap->rings[in->slot];
	if (!r->pcap)
		return 0; /* the interface is away */
	struct capture_source *cs = capture_source_new(in, ep, r->fd);
	struct tap_source *ps = cs ? calloc(1, sizeof *ps) : NULL;
	if (!ps)
		return no_memory(err);
	*ps = (struct tap_source){.ring = r, .taken = &tap->taken[in->slot], .discard = r->discard};
	cs->impl = ps;
	return 0;
}

static void on_packet(u_char *user, const struct pcap_pkthdr *h, const u_char *bytes)
{
	struct capture_source *cs = (struct capture_source *)(void *)user;
	struct tap_source *ps = cs->impl;
	__atomic_store_n(&ps->taken->packets, ps->taken->packets + 1, __ATOMIC_RELAXED);
	if (UNLIKELY(ps->discard > 0)) {
		ps->discard--;
		return;
	}
	uint64_t time_ns = (uint64_t)h->ts.tv_sec * 1000000000 + (uint64_t)h->ts.tv_usec;
	if (UNLIKELY(ring_is_marked(ps->ring, h))) { /* while the ring joined its group */
		cs->source.in->stats->dropped_joining_packets++;
		return;
	}
	capture_copy(cs, bytes, h->caplen, h->len, time_ns, ps->ring->link_type);
}

static void tap_read(struct capture_source *cs, unsigned max)
{
	struct tap_source *ps = cs->impl;
	struct source *s = &cs->source;
	int n;
	max = MIN(max, CAPTURE_COPIED_MAX);
	do
		n = pcap_dispatch(ps->ring->pcap, (int)max, on_packet, (u_char *)cs);
	while (n == (int)max && cs->n == 0); /* all of them were to be discarded */
	if (n < 0) {                         /* the interface is gone; the master says so */
		__atomic_store_n(&ps->taken->has_ended, true, __ATOMIC_RELAXED);
		s->ended = s->drained = true;
		return;
	}
	/* A ring that was shut may still have a block that is not handed over. */
	bool is_waiting = ps->shut_at_us && clock_us() < ps->shut_at_us + shut_us;
	s->drained = n < (int)max && !is_waiting;
}

/* A ring that is shut stays in its group, and its share would vanish: so that is for the end of all. Else what is there is
 * read, and the master closes the ring as soon as it hears that (LINK_LEFT), and counts the rest. */
static void tap_drain(struct capture_source *cs)
{
	struct tap_source *ps = cs->impl;
	if (cs->source.in->leave != INPUT_ALL_END)
		return;
	ring_shut(ps->ring);
	ps->shut_at_us = clock_us();
}

static void tap_end(struct capture_source *cs)
{
	struct tap_source *ps = cs->impl;
	cs->source.fd = -1; /* libpcap's */
	pcap_close(ps->ring->pcap);
	ps->ring->pcap = NULL;
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
    .prepare_successor = tap_prepare_successor,
    .adjust = tap_adjust,
    .group = tap_group,
    .renew = tap_renew,
    .is_stale = tap_is_stale,
    .count = tap_count,
    .exclude = tap_set_peers,
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
    .exclude = tap_exclude,
};

const char *input_pcap_version(void)
{
	return pcap_lib_version();
}
