/* SPDX-License-Identifier: MIT
 *
 * capture: what all readers of packets share (libpcap, DPDK, files): the account of packets, and the UDP payloads for
 * outputs of lines. Opens nothing. Worker, but for capture_where.
 */
#include "capture.h"

#include <packet.h>

const char *capture_where(const struct conf_input *cf, const char *path, char *buf, size_t size)
{
	if (cf->line)
		snprintf(buf, size, "%s:%d: inputs.%s", path, cf->line, cf->name);
	else
		snprintf(buf, size, "%s: inputs.%s", path, cf->name);
	return buf;
}

struct capture_source *capture_source_new(struct input *in, struct endpoint *ep, int fd)
{
	struct capture_source *cs = (struct capture_source *)source_new(in, ep, fd, sizeof *cs);
	if (!cs)
		return NULL;
	cs->mtu = net_interface_mtu(ep->name);
	return cs;
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
			in->receive->iovecs[i] = (struct iovec){item->bytes + v.payload_at, v.payload_bytes};
	}
	in->stats->decoded_packets += n;
}

static void count(struct input *in, unsigned n, uint64_t bytes, uint64_t truncated)
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

unsigned capture_read(struct source *s, struct batch *b, void (*read)(struct capture_source *cs, unsigned max))
{
	struct capture_source *cs = (struct capture_source *)s;
	struct receive_batch *r = s->in->receive;
	cs->n = 0;
	cs->at = r->slab[0];
	cs->bytes = cs->truncated = 0;
	r->used = BATCH_ITEMS;
	read(cs, BATCH_ITEMS);
	r->used = b->n_items = cs->n;
	s->in->mtu = cs->mtu;
	if (cs->n)
		count(s->in, cs->n, cs->bytes, cs->truncated);
	return cs->n;
}
