/* SPDX-License-Identifier: MIT
 *
 * Kafka messages to one pcap stream. Pure: no system call but the stream's, no global. Values come from the network
 * and from whoever writes to the topic: every length is checked against what is really there, and a record that
 * does not fit ends its message, never the program.
 *
 *   packet message   key: 8 bytes, big-endian microseconds since 1970   value: the frame from its Ethernet header
 *   pcap message     value: 24 bytes file header, then per packet 16 bytes (sec, fraction, captured, original), bytes
 */
#include "kafka.h"

#include <endian.h>
#include <string.h>

#define MAGIC_NS 0xa1b23c4du
#define MAGIC_US 0xa1b2c3d4u
#define NS_PER_S 1000000000u

struct file_head {
	uint32_t magic;
	uint16_t major, minor;
	uint32_t zone, sigfigs, snaplen, link_type;
};

struct record_head {
	uint32_t sec, fraction, captured, original;
};

_Static_assert(sizeof(struct file_head) == 24 && sizeof(struct record_head) == 16, "the file's layout");

/* How a file is to be read: swapped or not, and what turns its fractions of a second into nanoseconds. */
struct dialect {
	bool swapped;
	uint32_t ns_per_unit;
	uint32_t link_type;
};

static uint32_t read_u32(uint32_t v, bool swapped)
{
	return swapped ? __builtin_bswap32(v) : v;
}

/* The version is looked at too: a frame to a multicast address may begin with the magic's bytes. */
static bool file_head_parse(const void *value, size_t len, struct dialect *dialect)
{
	struct file_head head;

	if (len < sizeof(head))
		return false;
	memcpy(&head, value, sizeof(head));
	if (head.magic == MAGIC_NS || head.magic == MAGIC_US)
		dialect->swapped = false;
	else if (__builtin_bswap32(head.magic) == MAGIC_NS || __builtin_bswap32(head.magic) == MAGIC_US)
		dialect->swapped = true;
	else
		return false;
	if (head.major != (dialect->swapped ? 0x0200 : 2) || head.minor != (dialect->swapped ? 0x0400 : 4))
		return false;
	dialect->ns_per_unit = read_u32(head.magic, dialect->swapped) == MAGIC_NS ? 1 : 1000;
	dialect->link_type = read_u32(head.link_type, dialect->swapped);
	return true;
}

static uint64_t key_us(const void *key)
{
	uint64_t us;

	memcpy(&us, key, sizeof(us));
	return be64toh(us);
}

enum kafka_pcap_kind kafka_pcap_recognise(const void *key, size_t key_len, const void *value, size_t value_len)
{
	struct dialect dialect;

	if (file_head_parse(value, value_len, &dialect))
		return KAFKA_PCAP_FILE;
	/* A pcap record has 32 bits for seconds: up to the year 2106. */
	if (key_len == sizeof(uint64_t) && value_len > 0 && value_len <= KAFKA_PCAP_SNAPLEN &&
	    key_us(key) / 1000000 <= UINT32_MAX)
		return KAFKA_PCAP_PACKET;
	return KAFKA_PCAP_FOREIGN;
}

/* The first message decides the stream's link type: a pcap file has one for all. */
static bool stream_takes(struct kafka_pcap *pcap, struct kafka_stream *stream, uint32_t link_type)
{
	const struct file_head head = { MAGIC_NS, 2, 4, 0, 0, KAFKA_PCAP_SNAPLEN, link_type };

	if (pcap->started)
		return pcap->link_type == link_type;
	pcap->started = true;
	pcap->link_type = link_type;
	kafka_stream_add(stream, &head, sizeof(head));
	return true;
}

static void record_add(struct kafka_pcap *pcap, struct kafka_stream *stream, const struct record_head *rec,
		       const void *bytes)
{
	kafka_stream_add(stream, rec, sizeof(*rec));
	kafka_stream_add(stream, bytes, rec->captured);
	pcap->packets++;
}

/* False when the bytes end within a record or a record cannot be one. */
static bool records_add(struct kafka_pcap *pcap, struct kafka_stream *stream, const struct dialect *dialect,
			const uint8_t *p, size_t left)
{
	while (left > 0) {
		struct record_head rec;
		uint64_t ns;

		if (left < sizeof(rec))
			return false;
		memcpy(&rec, p, sizeof(rec));
		p += sizeof(rec);
		left -= sizeof(rec);
		rec.sec = read_u32(rec.sec, dialect->swapped);
		ns = (uint64_t)read_u32(rec.fraction, dialect->swapped) * dialect->ns_per_unit;
		rec.captured = read_u32(rec.captured, dialect->swapped);
		rec.original = read_u32(rec.original, dialect->swapped);
		if (rec.captured > left || rec.captured > KAFKA_PCAP_SNAPLEN || ns >= NS_PER_S)
			return false;
		rec.fraction = (uint32_t)ns;
		/* Less than what was captured makes readers guess at another dialect (Wireshark's libpcap.c). */
		rec.original = MAX(rec.original, rec.captured);
		record_add(pcap, stream, &rec, p);
		p += rec.captured;
		left -= rec.captured;
	}
	return true;
}

enum kafka_pcap_kind kafka_pcap_add(struct kafka_pcap *pcap, struct kafka_stream *stream, const void *key,
				    size_t key_len, const void *value, size_t value_len)
{
	enum kafka_pcap_kind kind = kafka_pcap_recognise(key, key_len, value, value_len);
	struct dialect dialect = { .link_type = KAFKA_PCAP_LINK_ETHERNET };

	if (kind == KAFKA_PCAP_FOREIGN) {
		pcap->foreign_messages++;
		return kind;
	}
	if (kind == KAFKA_PCAP_FILE)
		file_head_parse(value, value_len, &dialect);
	if (!stream_takes(pcap, stream, dialect.link_type)) {
		pcap->other_link_messages++;
		return KAFKA_PCAP_OTHER_LINK;
	}
	if (kind == KAFKA_PCAP_PACKET) {
		uint64_t us = key_us(key);
		struct record_head rec = { (uint32_t)(us / 1000000), (uint32_t)(us % 1000000) * 1000,
					   (uint32_t)value_len, (uint32_t)value_len };

		record_add(pcap, stream, &rec, value);
		return kind;
	}
	if (!records_add(pcap, stream, &dialect, (const uint8_t *)value + sizeof(struct file_head),
			 value_len - sizeof(struct file_head))) {
		pcap->broken_messages++;
		return KAFKA_PCAP_BROKEN;
	}
	return kind;
}

void kafka_pcap_end(struct kafka_pcap *pcap, struct kafka_stream *stream)
{
	stream_takes(pcap, stream, pcap->started ? pcap->link_type : KAFKA_PCAP_LINK_ETHERNET);
}
