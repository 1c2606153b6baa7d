/* SPDX-License-Identifier: MIT
 *
 * pcap_write: the two heads of a pcap file, into the caller's memory. Pure, any process. Little-endian on every
 * machine, so that a file's bytes depend on its packets only.
 */
#include <packet.h>

#include "bytes.h"

#define MAGIC_NS 0xa1b23c4du
#define NS_PER_S UINT64_C(1000000000)

size_t packet_pcap_head(void *out, uint32_t link_type, uint32_t snaplen)
{
	uint8_t *p = out;

	store32le(p, MAGIC_NS);
	store16le(p + 4, 2);
	store16le(p + 6, 4);
	store32le(p + 8, 0); /* zone and precision, which nobody ever used */
	store32le(p + 12, 0);
	store32le(p + 16, snaplen);
	store32le(p + 20, link_type == PACKET_LINK_RAW_OLD ? PACKET_LINK_RAW : link_type);
	return PACKET_PCAP_HEAD_BYTES;
}

size_t packet_pcap_record(void *out, uint64_t time_ns, uint32_t len, uint32_t original_len)
{
	uint8_t *p = out;
	uint64_t last_ns = UINT32_MAX * NS_PER_S + NS_PER_S - 1;

	time_ns = MIN(time_ns, last_ns);
	store32le(p, (uint32_t)(time_ns / NS_PER_S));
	store32le(p + 4, (uint32_t)(time_ns % NS_PER_S));
	store32le(p + 8, len);
	/* Less than what was captured makes readers guess at another dialect (Wireshark's wiretap/libpcap.c). */
	store32le(p + 12, MAX(original_len, len));
	return PACKET_PCAP_RECORD_BYTES;
}
