/* SPDX-License-Identifier: MIT
 *
 * decode: from a frame to its IP header, ports and UDP payload. Pure, any process; once a packet in a worker's loop.
 * Puts no fragments together, verifies no checksum (offloading leaves them unfinished), opens no tunnel. Two lengths
 * bound every step: beyond the frame's own length the frame contradicts itself, beyond the captured one it was cut.
 */
#include <packet.h>

#include "bytes.h"

enum {
	ETHERTYPE_IPV4 = 0x0800,
	ETHERTYPE_IPV6 = 0x86dd,
	ETHERTYPE_VLAN = 0x8100,
	ETHERTYPE_QINQ = 0x88a8,
	ETHERTYPE_QINQ_OLD = 0x9100,
	PROTOCOL_HOP_BY_HOP = 0,
	PROTOCOL_TCP = 6,
	PROTOCOL_UDP = 17,
	PROTOCOL_ROUTING = 43,
	PROTOCOL_FRAGMENT = 44,
	PROTOCOL_AH = 51,
	PROTOCOL_DESTINATION = 60,
	PROTOCOL_SCTP = 132,
	MAC_PAIR_BYTES = 12,
	UDP_BYTES = 8,
	IPV4_BYTES = 20,
	IPV6_BYTES = 40,
};

/* An IP length of 0: what is behind the header has no known end but the frame's. */
#define UNBOUNDED SIZE_MAX

/* PACKET_PAYLOAD: the frame has its bytes up to `end`. Else what that makes of the frame. */
static inline enum packet_verdict reach(const struct packet_view *v, size_t end)
{
	if (LIKELY(end <= v->len))
		return PACKET_PAYLOAD;
	return end <= v->original_len ? PACKET_TRUNCATED : PACKET_BAD_LENGTH;
}

static enum packet_verdict decode_udp(struct packet_view *v, size_t ip_bytes)
{
	size_t at = v->l4_at, udp_bytes;
	enum packet_verdict verdict;

	if (ip_bytes == UNBOUNDED || ip_bytes < UDP_BYTES || at + ip_bytes > v->original_len)
		return PACKET_BAD_LENGTH;
	verdict = reach(v, at + UDP_BYTES);
	if (verdict != PACKET_PAYLOAD)
		return verdict;
	udp_bytes = load16be(v->frame + at + 4);
	/* Less than the IP payload is fine: RFC 768 lets the UDP length decide. */
	if (udp_bytes < UDP_BYTES || udp_bytes > ip_bytes)
		return PACKET_BAD_LENGTH;
	verdict = reach(v, at + udp_bytes);
	if (verdict != PACKET_PAYLOAD)
		return verdict;
	v->payload_at = (uint32_t)(at + UDP_BYTES);
	v->payload_bytes = (uint32_t)(udp_bytes - UDP_BYTES);
	return PACKET_PAYLOAD;
}

/* ip_bytes: what the IP header leaves for the transport, or UNBOUNDED. */
static enum packet_verdict decode_transport(struct packet_view *v, size_t at, uint8_t protocol, size_t ip_bytes)
{
	v->l4_at = (uint32_t)at;
	v->protocol = protocol;
	if (protocol != PROTOCOL_UDP && protocol != PROTOCOL_TCP && protocol != PROTOCOL_SCTP)
		return PACKET_NOT_UDP;
	if (at + 4 <= v->len && ip_bytes >= 4) {
		v->source_port = load16be(v->frame + at);
		v->destination_port = load16be(v->frame + at + 2);
		v->has_ports = true;
	}
	return protocol == PROTOCOL_UDP ? decode_udp(v, ip_bytes) : PACKET_NOT_UDP;
}

static enum packet_verdict decode_ipv4(struct packet_view *v, size_t at)
{
	const uint8_t *ip = v->frame + at;
	enum packet_verdict verdict = reach(v, at + IPV4_BYTES);
	size_t header_bytes, total_bytes;
	unsigned fragment;

	if (verdict != PACKET_PAYLOAD)
		return verdict;
	header_bytes = (size_t)(ip[0] & 15) * 4;
	if (ip[0] >> 4 != 4 || header_bytes < IPV4_BYTES)
		return PACKET_BAD_HEADER;
	total_bytes = load16be(ip + 2);
	if (total_bytes && total_bytes < header_bytes)
		return PACKET_BAD_LENGTH;
	verdict = reach(v, at + header_bytes);
	if (verdict != PACKET_PAYLOAD)
		return verdict;
	v->ip_version = 4;
	v->l3_at = (uint32_t)at;
	v->source = ip + 12;
	v->destination = ip + 16;
	fragment = load16be(ip + 6);
	if (UNLIKELY(fragment & 0x3fff)) {
		v->is_fragment = true;
		v->more_fragments = fragment & 0x2000;
		v->fragment_at = (fragment & 0x1fff) * 8;
		v->protocol = ip[9];
		v->l4_at = (uint32_t)(at + header_bytes);
		return PACKET_FRAGMENT;
	}
	return decode_transport(v, at + header_bytes, ip[9], total_bytes ? total_bytes - header_bytes : UNBOUNDED);
}

/* One extension header at `at`: *bytes is its length, 0 when `protocol` is none. */
static enum packet_verdict extension_measure(const struct packet_view *v, size_t at, uint8_t protocol, size_t left,
					     size_t *bytes)
{
	enum packet_verdict verdict;

	*bytes = 0;
	if (protocol != PROTOCOL_HOP_BY_HOP && protocol != PROTOCOL_ROUTING && protocol != PROTOCOL_FRAGMENT &&
	    protocol != PROTOCOL_DESTINATION && protocol != PROTOCOL_AH)
		return PACKET_PAYLOAD;
	if (left < 8)
		return PACKET_BAD_LENGTH;
	verdict = reach(v, at + 8);
	if (verdict != PACKET_PAYLOAD)
		return verdict;
	if (protocol == PROTOCOL_FRAGMENT)
		*bytes = 8;
	else if (protocol == PROTOCOL_AH)
		*bytes = ((size_t)v->frame[at + 1] + 2) * 4; /* RFC 4302, 2.2: in 4 bytes, minus 2 */
	else
		*bytes = ((size_t)v->frame[at + 1] + 1) * 8;
	return *bytes <= left ? PACKET_PAYLOAD : PACKET_BAD_LENGTH;
}

static enum packet_verdict decode_extensions(struct packet_view *v, size_t at, uint8_t protocol, size_t left)
{
	for (unsigned n = 0; n <= PACKET_EXTENSIONS; n++) {
		const uint8_t *header = v->frame + at;
		size_t bytes;
		enum packet_verdict verdict = extension_measure(v, at, protocol, left, &bytes);

		v->protocol = protocol;
		if (verdict != PACKET_PAYLOAD)
			return verdict;
		if (!bytes)
			return decode_transport(v, at, protocol, left);
		if (protocol == PROTOCOL_FRAGMENT && load16be(header + 2) & 0xfff9) {
			v->is_fragment = true;
			v->more_fragments = header[3] & 1;
			v->fragment_at = load16be(header + 2) & 0xfff8;
			v->protocol = header[0];
			v->l4_at = (uint32_t)(at + 8);
			return PACKET_FRAGMENT;
		}
		protocol = header[0];
		at += bytes;
		if (left != UNBOUNDED)
			left -= bytes;
	}
	return PACKET_BAD_HEADER;
}

static enum packet_verdict decode_ipv6(struct packet_view *v, size_t at)
{
	const uint8_t *ip = v->frame + at;
	enum packet_verdict verdict = reach(v, at + IPV6_BYTES);
	size_t payload_bytes;

	if (verdict != PACKET_PAYLOAD)
		return verdict;
	if (ip[0] >> 4 != 6)
		return PACKET_BAD_HEADER;
	payload_bytes = load16be(ip + 4);
	v->ip_version = 6;
	v->l3_at = (uint32_t)at;
	v->source = ip + 8;
	v->destination = ip + 24;
	return decode_extensions(v, at + IPV6_BYTES, ip[6], payload_bytes ? payload_bytes : UNBOUNDED);
}

static enum packet_verdict decode_ethertype(struct packet_view *v, size_t at, uint16_t ethertype)
{
	while (ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ || ethertype == ETHERTYPE_QINQ_OLD) {
		enum packet_verdict verdict;

		v->ethertype = ethertype;
		if (v->n_vlans == PACKET_VLANS)
			return PACKET_NOT_IP;
		verdict = reach(v, at + 4);
		if (verdict != PACKET_PAYLOAD)
			return verdict;
		v->vlan_tags[v->n_vlans++] = load16be(v->frame + at);
		ethertype = load16be(v->frame + at + 2);
		at += 4;
	}
	v->ethertype = ethertype;
	if (ethertype == ETHERTYPE_IPV4)
		return decode_ipv4(v, at);
	if (ethertype == ETHERTYPE_IPV6)
		return decode_ipv6(v, at);
	return PACKET_NOT_IP;
}

/* Address families of loopback links, in either byte order: IPv6 is 10 on Linux, 24, 28 and 30 on the BSDs and macOS
 * (pcap-linktype(7)). */
static uint16_t ethertype_of_family(uint32_t family)
{
	if (family > 0xffff)
		family = __builtin_bswap32(family);
	if (family == 2)
		return ETHERTYPE_IPV4;
	return family == 10 || family == 24 || family == 28 || family == 30 ? ETHERTYPE_IPV6 : 0;
}

static uint16_t ethertype_of_version(uint8_t first)
{
	return first >> 4 == 4 ? ETHERTYPE_IPV4 : first >> 4 == 6 ? ETHERTYPE_IPV6 : 0;
}

/* The head of each link: its length, and where its EtherType is (-1: none). */
static bool link_head(uint32_t link_type, size_t *bytes, int *ethertype_at)
{
	*ethertype_at = -1;
	switch (link_type) {
	case PACKET_LINK_ETHERNET:
		*bytes = 14;
		*ethertype_at = 12;
		return true;
	case PACKET_LINK_LINUX_SLL:
		*bytes = 16;
		*ethertype_at = 14;
		return true;
	case PACKET_LINK_LINUX_SLL2:
		*bytes = 20;
		*ethertype_at = 0;
		return true;
	case PACKET_LINK_NULL:
	case PACKET_LINK_LOOP:
		*bytes = 4;
		return true;
	case PACKET_LINK_RAW:
	case PACKET_LINK_RAW_OLD:
	case PACKET_LINK_IPV4:
	case PACKET_LINK_IPV6:
		*bytes = 0;
		return true;
	default:
		return false;
	}
}

bool packet_link_is_known(uint32_t link_type)
{
	size_t bytes;
	int ethertype_at;

	return link_head(link_type, &bytes, &ethertype_at);
}

static enum packet_verdict decode_link(struct packet_view *v, uint32_t link_type)
{
	size_t bytes;
	int ethertype_at;
	enum packet_verdict verdict;

	if (!link_head(link_type, &bytes, &ethertype_at))
		return PACKET_UNKNOWN_LINK;
	if (link_type == PACKET_LINK_ETHERNET && v->len >= MAC_PAIR_BYTES)
		v->macs = v->frame;
	verdict = reach(v, bytes);
	if (verdict != PACKET_PAYLOAD)
		return verdict;
	if (LIKELY(ethertype_at >= 0))
		return decode_ethertype(v, bytes, load16be(v->frame + ethertype_at));
	if (link_type == PACKET_LINK_IPV4)
		return decode_ethertype(v, 0, ETHERTYPE_IPV4);
	if (link_type == PACKET_LINK_IPV6)
		return decode_ethertype(v, 0, ETHERTYPE_IPV6);
	if (bytes == 4)
		return decode_ethertype(v, bytes, ethertype_of_family(load32be(v->frame)));
	verdict = reach(v, 1);
	if (verdict != PACKET_PAYLOAD)
		return verdict;
	return decode_ethertype(v, 0, ethertype_of_version(v->frame[0]));
}

enum packet_verdict packet_decode(const void *frame, size_t len, size_t original_len, uint32_t link_type,
				  struct packet_view *v)
{
	/* In two pieces, because gcc 12 clears more than 64 bytes by `rep stos`, which costs more than all the rest. */
	memset(v, 0, 48);
	memset((char *)v + 48, 0, sizeof(*v) - 48);
	v->frame = frame;
	v->len = len;
	v->original_len = MAX(len, original_len);
	return v->verdict = decode_link(v, link_type);
}

const char *packet_verdict_name(enum packet_verdict verdict)
{
	static const char *const names[PACKET_VERDICTS] = {
		[PACKET_PAYLOAD] = "payload",	    [PACKET_UNKNOWN_LINK] = "unknown_link",
		[PACKET_NOT_IP] = "not_ip",	    [PACKET_NOT_UDP] = "not_udp",
		[PACKET_FRAGMENT] = "fragment",	    [PACKET_TRUNCATED] = "truncated",
		[PACKET_BAD_LENGTH] = "bad_length", [PACKET_BAD_HEADER] = "bad_header",
	};

	return names[verdict];
}
