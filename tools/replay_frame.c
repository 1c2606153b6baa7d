/* SPDX-License-Identifier: MIT
 *
 * A captured frame to its UDP payload. Pure: no system call, no state. Fragments are not put together again, they are
 * counted. The daemon's own decoder is src/input's; this one is apart from it, so that tests do not check a decoder
 * against itself.
 */
#include <pcap/dlt.h>
#include <string.h>

#include "replay.h"

enum {
	ETHERTYPE_4 = 0x0800,
	ETHERTYPE_6 = 0x86dd,
	ETHERTYPE_VLAN = 0x8100,
	ETHERTYPE_QINQ = 0x88a8,
	ETHERTYPE_QINQ_OLD = 0x9100,
	PROTO_HOP = 0,
	PROTO_UDP = 17,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_AH = 51,
	PROTO_DESTINATION = 60,
};

struct cut {
	const unsigned char *at;
	size_t len;
};

static unsigned get16(const unsigned char *c)
{
	return (unsigned)c[0] << 8 | c[1];
}

static bool skip(struct cut *c, size_t n)
{
	if (c->len < n)
		return false;
	c->at += n;
	c->len -= n;
	return true;
}

static enum frame_result take_udp(struct cut c, size_t ip_payload_len, const char **payload, size_t *payload_len,
				  unsigned *port)
{
	size_t len;

	if (c.len < 8)
		return FRAME_TRUNCATED;
	*port = get16(c.at + 2);
	len = get16(c.at + 4);
	if (len < 8 || len > ip_payload_len)
		return FRAME_OTHER;
	if (len > c.len)
		return FRAME_TRUNCATED;
	*payload = (const char *)c.at + 8;
	*payload_len = len - 8;
	return FRAME_PAYLOAD;
}

static enum frame_result take_ip4(struct cut c, const char **payload, size_t *payload_len, unsigned *port)
{
	size_t header, total;

	if (c.len < 20)
		return FRAME_TRUNCATED;
	header = (size_t)(c.at[0] & 15) * 4;
	total = get16(c.at + 2);
	if (c.at[0] >> 4 != 4 || header < 20 || total < header || c.at[9] != PROTO_UDP)
		return FRAME_OTHER;
	if (get16(c.at + 6) & 0x3fff) /* more fragments, or not the first */
		return FRAME_FRAGMENT;
	if (!skip(&c, header))
		return FRAME_TRUNCATED;
	return take_udp(c, total - header, payload, payload_len, port);
}

static enum frame_result take_ip6(struct cut c, const char **payload, size_t *payload_len, unsigned *port)
{
	size_t left, header;
	unsigned proto;

	if (c.len < 40)
		return FRAME_TRUNCATED;
	if (c.at[0] >> 4 != 6)
		return FRAME_OTHER;
	left = get16(c.at + 4);
	proto = c.at[6];
	skip(&c, 40);
	while (proto != PROTO_UDP) {
		if (c.len < 8)
			return FRAME_TRUNCATED;
		if (proto == PROTO_FRAGMENT) {
			if (get16(c.at + 2) & 0xfff9)
				return FRAME_FRAGMENT;
			header = 8;
		} else if (proto == PROTO_AH) {
			header = ((size_t)c.at[1] + 2) * 4;
		} else if (proto == PROTO_HOP || proto == PROTO_ROUTING || proto == PROTO_DESTINATION) {
			header = ((size_t)c.at[1] + 1) * 8;
		} else {
			return FRAME_OTHER;
		}
		proto = c.at[0];
		if (header > left)
			return FRAME_OTHER;
		if (!skip(&c, header))
			return FRAME_TRUNCATED;
		left -= header;
	}
	return take_udp(c, left, payload, payload_len, port);
}

/* What comes first: the offset of a 16-bit EtherType, and what to skip to reach the network header. */
static const struct link {
	int linktype;
	int ethertype_at; /* -1: none, IPv4 or IPv6 by its version */
	size_t header;
} links[] = {
	{DLT_EN10MB, 12, 14}, {DLT_LINUX_SLL, 14, 16}, {DLT_LINUX_SLL2, 0, 20}, {DLT_RAW, -1, 0},  {101, -1, 0},
	{DLT_IPV4, -1, 0},    {DLT_IPV6, -1, 0},       {DLT_NULL, -1, 4},	{DLT_LOOP, -1, 4},
};

static const struct link *link_find(int linktype)
{
	for (size_t i = 0; i < ARRAY_LEN(links); i++)
		if (links[i].linktype == linktype)
			return &links[i];
	return NULL;
}

bool replay_frame_linktype_known(int linktype)
{
	return link_find(linktype) != NULL;
}

enum frame_result replay_frame_payload(int linktype, const unsigned char *frame, size_t len, const char **payload,
				       size_t *payload_len, unsigned *port)
{
	const struct link *link = link_find(linktype);
	struct cut c = {frame, len};
	unsigned ethertype = 0;

	if (!link)
		return FRAME_OTHER;
	if (!skip(&c, link->header))
		return FRAME_TRUNCATED;
	if (link->ethertype_at == -1) {
		if (!c.len)
			return FRAME_TRUNCATED;
		ethertype = c.at[0] >> 4 == 6 ? ETHERTYPE_6 : ETHERTYPE_4;
	} else {
		ethertype = get16(frame + link->ethertype_at);
	}
	while (ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ || ethertype == ETHERTYPE_QINQ_OLD) {
		if (c.len < 4)
			return FRAME_TRUNCATED;
		ethertype = get16(c.at + 2);
		skip(&c, 4);
	}
	if (ethertype == ETHERTYPE_4)
		return take_ip4(c, payload, payload_len, port);
	if (ethertype == ETHERTYPE_6)
		return take_ip6(c, payload, payload_len, port);
	return FRAME_OTHER;
}
