/* SPDX-License-Identifier: MIT
 *
 * capture: packets of network interfaces. Chooses the driver of each endpoint, hands every call to it, keeps the
 * account of packets and finds the UDP payloads for outputs of lines. The drivers open and read devices. Packets carry
 * privileges only in the master: workers get handles that are open.
 */
#include "capture.h"

#include <errno.h>
#include <packet.h>

static const struct capture_driver *const drivers[] = {
#ifdef MILLRACE_DPDK
    &capture_dpdk,
#endif
#ifdef MILLRACE_PCAP
    &capture_pcap,
#endif
    NULL,
};

static const struct capture_driver *driver_of(const struct conf_input *cf, const char *device)
{
	bool is_auto = cf->driver == CONF_DRIVER_AUTO && !cf->port[0];
	const char *name = cf->port[0] ? conf_word(CONF_DRIVER_DPDK) : conf_word(cf->driver);
	for (size_t i = 0; drivers[i]; i++)
		if (is_auto ? !drivers[i]->is_mine || drivers[i]->is_mine(cf, device)
			    : strcmp(drivers[i]->name, name) == 0)
			return drivers[i];
	return NULL;
}

static const struct capture_driver *driver(const struct endpoint *ep)
{
	return ep->driver;
}

/* -- master ---------------------------------------------------------------------------------------------------- */

static size_t capture_check(const struct conf_input *cf, const char *path, struct text *errors)
{
	struct conf_list one;
	const struct conf_list *devices = input_addresses(cf, &one);
	const struct capture_driver *d = devices->n ? driver_of(cf, devices->items[0]) : NULL;
	char where[600];
	if (!d || !d->check)
		return 0;
	if (cf->line)
		snprintf(where, sizeof where, "%s:%d: inputs.%s", path, cf->line, cf->name);
	else
		snprintf(where, sizeof where, "%s: inputs.%s", path, cf->name);
	return d->check(cf, where, errors);
}

static uint64_t capture_capabilities(const struct conf_input *cf)
{
	struct conf_list one;
	const struct conf_list *devices = input_addresses(cf, &one);
	uint64_t set = 0;
	for (size_t i = 0; i < devices->n; i++) {
		const struct capture_driver *d = driver_of(cf, devices->items[i]);
		set |= d ? d->capabilities : 0;
	}
	return set;
}

static int capture_bind(struct input *in, struct endpoint *ep, struct err *err)
{
	ep->driver = driver_of(in->cf, ep->name);
	if (!ep->driver)
		return err_set(err, -ENOTSUP, "Input \"%s\": this millrace was built without driver %s.", in->cf->name,
			       conf_word(in->cf->driver));
	ep->mtu = net_interface_mtu(ep->name);
	return driver(ep)->bind(in, ep, err);
}

bool input_is_dpdk(const struct input *in)
{
	for (unsigned i = 0; in->type == &input_capture && i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i]) && strcmp(driver(&in->endpoints[i])->name, "dpdk") == 0)
			return true;
	return false;
}

int input_group(const struct input *in, const struct endpoint *ep)
{
	return in->type == &input_capture && driver(ep) && driver(ep)->group ? driver(ep)->group(ep) : -1;
}

static void capture_unbind(struct input *in, struct endpoint *ep)
{
	if (ep->driver && driver(ep)->unbind)
		driver(ep)->unbind(in, ep);
}

static void capture_keep(struct input *in, unsigned slot, int *keep, size_t *n)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i])->keep)
			driver(&in->endpoints[i])->keep(in, &in->endpoints[i], slot, keep, n);
}

static uint64_t capture_died(struct input *in, unsigned slot, bool is_last, struct stats_page *master_page)
{
	uint64_t lost = 0;
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i])->died)
			lost += driver(&in->endpoints[i])->died(in, &in->endpoints[i], slot, is_last, master_page);
	return lost;
}

static void capture_prepare_successor(struct input *in, unsigned slot)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i])->prepare_successor)
			driver(&in->endpoints[i])->prepare_successor(in, &in->endpoints[i], slot);
}

static int capture_adjust(struct input *in, struct endpoint *ep, struct err *err)
{
	return driver(ep)->adjust ? driver(ep)->adjust(in, ep, err) : 0;
}

static void capture_renew(struct input *in, unsigned slot, struct stats_page *master_page)
{
	for (unsigned i = 0; i < in->n_endpoints; i++) {
		in->endpoints[i].mtu = net_interface_mtu(in->endpoints[i].name);
		if (driver(&in->endpoints[i])->renew)
			driver(&in->endpoints[i])->renew(in, &in->endpoints[i], slot, master_page);
	}
}

static bool capture_is_stale(const struct input *in, unsigned slot)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i])->is_stale &&
		    driver(&in->endpoints[i])->is_stale(in, &in->endpoints[i], slot))
			return true;
	return false;
}

static void capture_label(struct input *in, struct stats *stats)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i])->label)
			driver(&in->endpoints[i])->label(in, &in->endpoints[i], stats);
}

static void capture_kernel_drops(struct input *in, struct stats_page *master_page)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (driver(&in->endpoints[i])->kernel_drops)
			driver(&in->endpoints[i])->kernel_drops(in, &in->endpoints[i], master_page);
}

static void capture_exclude(struct input *in, const char *peers)
{
	for (unsigned i = 0; i < in->n_endpoints && in->cf->exclude_own; i++)
		if (driver(&in->endpoints[i])->exclude)
			driver(&in->endpoints[i])->exclude(in, &in->endpoints[i], peers);
}

/* -- worker ---------------------------------------------------------------------------------------------------- */

struct capture_source *capture_source_new(struct input *in, struct endpoint *ep, int fd)
{
	struct capture_source *cs = (struct capture_source *)source_new(in, ep, fd, sizeof *cs);
	if (!cs)
		return NULL;
	cs->ep = ep;
	cs->driver = driver(ep);
	cs->source.receive_buffer_bytes = ep->receive_buffer_bytes;
	return cs;
}

static int capture_open(struct input *in, struct err *err)
{
	int r = 0;
	for (unsigned i = 0; r == 0 && i < in->n_endpoints; i++)
		r = driver(&in->endpoints[i])->open(in, &in->endpoints[i], err);
	return r;
}

static uint64_t *verdict_counter(struct stats_input *st, enum packet_verdict verdict)
{
	switch (verdict) {
	case PACKET_PAYLOAD:
		return &st->payload_packets;
	case PACKET_UNKNOWN_LINK:
		return &st->unknown_link_packets;
	case PACKET_NOT_IP:
		return &st->not_ip_packets;
	case PACKET_NOT_UDP:
		return &st->not_udp_packets;
	case PACKET_FRAGMENT:
		return &st->dropped_fragment_packets;
	case PACKET_TRUNCATED:
		return &st->dropped_truncated_packets;
	case PACKET_BAD_LENGTH:
		return &st->dropped_bad_length_packets;
	case PACKET_BAD_HEADER:
		return &st->dropped_bad_header_packets;
	}
	BUG_ON(true); /* packet_decode has no other answer */
	return NULL;
}

static void find_payloads(struct input *in, unsigned n)
{
	struct packet_view v;
	const uint32_t mtu = in->mtu > 0 ? in->mtu : UINT32_MAX;
	for (unsigned i = 0; i < n; i++) {
		const struct item *item = &in->batch.items[i];
		enum packet_verdict verdict =
		    packet_decode(item->bytes, item->len, item->original_len, item->link_type, &v);
		if (verdict == PACKET_PAYLOAD && UNLIKELY(item->original_len - v.l3_at > mtu)) {
			in->stats->dropped_merged_packets++; /* where one datagram ends nobody knows any more */
			continue;
		}
		++*verdict_counter(in->stats, verdict);
		if (verdict == PACKET_PAYLOAD)
			in->hand->iovecs[i] = (struct iovec){item->bytes + v.payload_at, v.payload_bytes};
	}
	in->stats->decoded_packets += n;
}

void capture_count(struct input *in, unsigned n, uint64_t bytes, uint64_t truncated)
{
	struct stats_input *st = in->stats;
	st->reads++;
	st->received_bytes += bytes;
	st->received_packets += n;
	st->truncated_packets += truncated;
	*(in->discarding && in->wants_items ? &st->dropped_shutdown_packets : &st->to_outputs_packets) += n;
	if (in->wants_lines)
		find_payloads(in, n);
}

static unsigned capture_read(struct source *s, struct batch *b)
{
	struct capture_source *cs = (struct capture_source *)s;
	struct hand *h = s->in->hand;
	cs->n = 0;
	cs->at = h->slab[0];
	cs->bytes = cs->truncated = 0;
	h->used = BATCH_ITEMS;
	cs->driver->read(cs, BATCH_ITEMS);
	h->used = b->n_items = cs->n;
	s->in->mtu = cs->ep->mtu;
	if (cs->n)
		capture_count(s->in, cs->n, cs->bytes, cs->truncated);
	return cs->n;
}

static void capture_give(struct source *s)
{
	struct capture_source *cs = (struct capture_source *)s;
	if (cs->driver->give)
		cs->driver->give(cs);
}

static void capture_drain(struct input *in)
{
	in->draining = true;
	for (struct source *s = in->sources; s; s = s->next)
		((struct capture_source *)s)->driver->drain((struct capture_source *)s);
}

static void capture_end(struct source *s)
{
	struct capture_source *cs = (struct capture_source *)s;
	cs->driver->end(cs);
	source_free(s);
}

const struct input_type input_capture = {
    .name = "capture",
    .is_packets = true,
    .is_paced = true,
    .stays_in_slot = true,
    .check = capture_check,
    .capabilities = capture_capabilities,
    .bind = capture_bind,
    .unbind = capture_unbind,
    .keep = capture_keep,
    .died = capture_died,
    .prepare_successor = capture_prepare_successor,
    .adjust = capture_adjust,
    .renew = capture_renew,
    .is_stale = capture_is_stale,
    .label = capture_label,
    .kernel_drops = capture_kernel_drops,
    .exclude = capture_exclude,
    .open = capture_open,
    .drain = capture_drain,
    .read = capture_read,
    .give = capture_give,
    .end = capture_end,
};
