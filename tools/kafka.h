/* SPDX-License-Identifier: MIT
 *
 * What the parts of millrace-kafka share. The program is one process without forks; nothing of it is in the daemon.
 */
#ifndef TOOLS_KAFKA_H
#define TOOLS_KAFKA_H

#include "base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* -- commands: argv[0] is the command's name; they return the exit code ---------------------------------------- */

int kafka_mock_main(int argc, char **argv);
int kafka_read_main(int argc, char **argv);

/* "millrace-kafka: text" on stderr, one write a line. */
void kafka_say(const char *fmt, ...) PRINTF_LIKE(1, 2);
void kafka_usage(FILE *to);

/* -- stream: buffered bytes to a descriptor ------------------------------------------------------------------------ */

#define KAFKA_STREAM_BYTES ((size_t)MIB)

struct kafka_stream {
	int fd; /* -1: bytes are counted and thrown away */
	uint8_t *buf;
	size_t len;
	uint64_t total_bytes;
	int error; /* errno of the first write that failed; everything after it is thrown away */
};

int kafka_stream_init(struct kafka_stream *stream, int fd); /* 0 or -ENOMEM */
void kafka_stream_fini(struct kafka_stream *stream);	     /* does not flush */
void kafka_stream_add(struct kafka_stream *stream, const void *bytes, size_t len);
void kafka_stream_flush(struct kafka_stream *stream);
/* Whether the reader of a pipe is gone, which without a write nobody would tell us. */
bool kafka_stream_is_closed(const struct kafka_stream *stream);

/* -- pcap: messages of the formats `packet` and `pcap` to one pcap stream ---------------------------------------- */

#define KAFKA_PCAP_LINK_ETHERNET 1u
/* The most bytes of one packet that libpcap and Wireshark read (both 262,144). */
#define KAFKA_PCAP_SNAPLEN 262144u

struct kafka_pcap {
	bool started;	    /* the file header is written, link_type is fixed */
	uint32_t link_type; /* as in a pcap header, with its FCS bits */
	uint64_t packets;
	uint64_t foreign_messages; /* neither a pcap file nor a packet with its time */
	uint64_t other_link_messages;
	uint64_t broken_messages; /* pcap files that end within a record; what stood before is written */
};

enum kafka_pcap_kind {
	KAFKA_PCAP_PACKET,     /* written */
	KAFKA_PCAP_FILE,       /* written */
	KAFKA_PCAP_FOREIGN,    /* counted, nothing written */
	KAFKA_PCAP_OTHER_LINK, /* counted, nothing written */
	KAFKA_PCAP_BROKEN,     /* counted, whole records written */
};

/* Whether a message is one of the two formats: PACKET, FILE or FOREIGN. Key and value may be NULL with length 0. */
enum kafka_pcap_kind kafka_pcap_recognise(const void *key, size_t key_len, const void *value, size_t value_len);
/* Adds a message's packets to the stream, after the file header when it is the first. Any bytes are safe. Files in
 * either byte order and with microseconds are taken too; out goes this machine's order with nanoseconds. */
enum kafka_pcap_kind kafka_pcap_add(struct kafka_pcap *pcap, struct kafka_stream *stream, const void *key,
				    size_t key_len, const void *value, size_t value_len);
/* A stream without a packet becomes an empty pcap file. */
void kafka_pcap_end(struct kafka_pcap *pcap, struct kafka_stream *stream);

#endif
