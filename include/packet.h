/* SPDX-License-Identifier: MIT
 *
 * packet: the bytes of captured packets: what is in a frame, which flow it belongs to, pcap and pcapng files in, pcap
 * files out. Knows base only; inputs, outputs and tools use it. All of it is pure (no system call, clock, global or
 * allocation), so it may run before and after fork, in any process and thread. Every byte that it looks at is
 * untrusted: nothing here reads beyond the lengths that it was given, and nothing ends the program.
 */
#ifndef PACKET_H
#define PACKET_H

#include <base.h>

enum {
	PACKET_MAX_BYTES = 262144,	/* longest packet that is read from a file: tcpdump's and libpcap's own bound */
	PACKET_VLANS = 2,		/* tags that are looked through */
	PACKET_EXTENSIONS = 8,		/* IPv6 extension headers that are looked through */
	PACKET_PCAP_HEAD_BYTES = 24,	/* before the first record of a pcap file */
	PACKET_PCAP_RECORD_BYTES = 16,	/* before each packet of it */
	PACKET_INTERFACES = 1024,	/* interfaces of one pcapng section */
	PACKET_READER_BUFFER_BYTES = PACKET_MAX_BYTES + 64, /* the most that packet_reader_next ever wants at once */
};

/* Link types as files have them (LINKTYPE_ of pcap-linktype(7)), whose packets are decoded. */
enum {
	PACKET_LINK_NULL = 0,	    /* BSD loopback, family in the writer's byte order */
	PACKET_LINK_ETHERNET = 1,
	PACKET_LINK_RAW_OLD = 12,   /* what pcap_datalink says for raw IP; PACKET_LINK_RAW in files */
	PACKET_LINK_RAW = 101,	    /* IPv4 or IPv6, by its version */
	PACKET_LINK_LOOP = 108,	    /* OpenBSD loopback */
	PACKET_LINK_LINUX_SLL = 113,
	PACKET_LINK_IPV4 = 228,
	PACKET_LINK_IPV6 = 229,
	PACKET_LINK_LINUX_SLL2 = 276,
};
bool packet_link_is_known(uint32_t link_type);

/* -- frames ---------------------------------------------------------------------------------------------------- */

/* Whether a frame holds a whole UDP payload, and if not, why not: one reason a frame, the first that is met on the way
 * from the outside in, so that every frame can be counted once. Nothing is guessed at. */
enum packet_verdict {
	PACKET_PAYLOAD,	     /* it does; it may be empty */
	PACKET_UNKNOWN_LINK, /* packet_link_is_known is false */
	PACKET_NOT_IP,	     /* ARP, 802.3 with a length, MPLS, more than PACKET_VLANS tags, … */
	PACKET_NOT_UDP,	     /* another protocol within IP; its lengths are not looked at */
	PACKET_FRAGMENT,     /* of IPv4 or IPv6, the first one too; an atomic one (RFC 6946) is none */
	PACKET_TRUNCATED,    /* the capture kept less of the frame than this takes: a larger snaplen shows it */
	PACKET_BAD_LENGTH,   /* lengths contradict each other or the frame: IP above the frame, UDP above IP, UDP below
				8, IP 0 (offloaded or a jumbogram), a frame that ends within a header */
	PACKET_BAD_HEADER,   /* IP version is not what the link says, IPv4 header under 20 bytes, too many extensions */
};
#define PACKET_VERDICTS (PACKET_BAD_HEADER + 1)
/* "payload", "unknown_link", "not_ip", … : the ends of counters' names. */
const char *packet_verdict_name(enum packet_verdict verdict);

/* What packet_decode found. Offsets are from the frame's first byte; pointers are into the frame, so a view lives as
 * long as the frame does. What was not found is 0 or NULL. */
struct packet_view {
	const uint8_t *frame;
	size_t len;		    /* captured */
	size_t original_len;	    /* on the wire, at least len */
	enum packet_verdict verdict;
	const uint8_t *macs;	    /* destination, source; NULL: the link has no such pair, or too short a frame */
	const uint8_t *source;	    /* IP address in network order, 4 or 16 bytes; NULL while ip_version is 0 */
	const uint8_t *destination;
	uint32_t l3_at;		    /* IP header, when ip_version is not 0 */
	uint32_t l4_at;		    /* transport header, or a fragment's bytes; 0: not reached */
	uint32_t payload_at;	    /* UDP payload, with PACKET_PAYLOAD only */
	uint32_t payload_bytes;
	uint32_t fragment_at;	    /* where in its datagram the fragment belongs, in bytes */
	uint16_t ethertype;	    /* behind the tags; below 0x600: length of an 802.3 frame */
	uint16_t vlan_tags[PACKET_VLANS]; /* priority, DEI and id as on the wire, outer first */
	uint16_t source_port;	    /* of TCP, UDP, SCTP, when has_ports */
	uint16_t destination_port;
	uint8_t n_vlans;
	uint8_t ip_version;	    /* 4 or 6; 0: no whole and sound IP header */
	uint8_t protocol;	    /* IP protocol number, behind the extension headers that could be followed */
	bool has_ports;		    /* never for a fragment */
	bool is_fragment;
	bool more_fragments;
};

/* Looks into one frame of `len` captured bytes (of original_len on the wire; less than len means len) and fills *v,
 * all of it, whatever the frame is. Bytes behind the IP length (Ethernet padding, FCS) are not payload. Addresses are
 * those of the IP header (a routing header's are not looked at); tunnels are not opened. Returns v->verdict.
 * A capture of fewer bytes of the same frame gives the same verdict, or PACKET_TRUNCATED. */
enum packet_verdict packet_decode(const void *frame, size_t len, size_t original_len, uint32_t link_type,
				  struct packet_view *v);

/* A value for the frame's flow that is the same for both directions, well spread over all 32 bits, and for ever the
 * same in every release and on every machine (tests/data/flow-hash.tsv). The upper half of XXH3_64bits (no seed) over
 *
 *   IPv4 with ports   16 bytes  lower end (address, port), higher end (address, port), protocol, 0, 0, 0
 *   IPv6 with ports   40 bytes  the same with longer addresses
 *   IPv4 fragment      8 bytes  lower address, higher address
 *   IPv6 fragment     32 bytes  the same
 *   anything else     12 bytes  lower MAC, higher MAC; where the link has none: as a fragment if it is IP, else nothing
 *
 * all in network order; "lower" by comparing those bytes. VLAN tags do not count: directions may have different ones.
 * With ports: TCP, UDP, SCTP when 4 bytes of their header were captured, whatever the verdict. */
uint32_t packet_flow_hash(const struct packet_view *v);

/* -- pcap and pcapng files, in --------------------------------------------------------------------------------- */

/* One packet of a file. `bytes` points into what the caller gave and is good until the caller moves that. */
struct packet_record {
	const uint8_t *bytes;
	uint32_t len;	       /* captured, at most PACKET_MAX_BYTES */
	uint32_t original_len; /* at least len */
	uint64_t time_ns;      /* since 1970; 0: not known (simple packet blocks), before 1970 or after 2554 */
	uint32_t link_type;    /* of the packet's interface: may change within a pcapng file */
	uint32_t interface;    /* number within its section; 0 for pcap */
};

enum packet_read {
	PACKET_READ_PACKET, /* *p is one packet */
	PACKET_READ_MORE,   /* needs need_bytes at once to go on, which is more than is left of what was given */
	PACKET_READ_END,    /* the file is whole and at its end */
	PACKET_READ_CUT,    /* it ends within a record (`error` says where); all packets before it were given */
	PACKET_READ_ERROR,  /* not such a file, or damaged (`error`); this and every later call returns it */
};

struct packet_interface {
	uint32_t snaplen; /* 0: no bound */
	uint16_t link_type;
	uint8_t resolution; /* if_tsresol: negative power of 10, or of 2 with the top bit */
	int64_t offset_s;
};

/* Reads a file as its bytes come; about 17 KiB, holds nothing that must be freed. */
struct packet_reader {
	/* for the caller to read */
	uint64_t offset;	 /* in the file: of the first byte that is not used yet */
	size_t need_bytes;	 /* with PACKET_READ_MORE; at most PACKET_READER_BUFFER_BYTES */
	uint64_t skipped_blocks; /* of pcapng, which hold no packet: name resolution, statistics, secrets, custom, … */
	uint32_t snaplen;	 /* of a pcap file */
	char error[240];	 /* one sentence without the file's name and full stop, with the offset in it */
	/* private */
	int state;
	bool is_swapped;
	uint32_t ns_per_unit;
	uint32_t link_type;
	uint32_t block_bytes;
	uint32_t skip_bytes;
	uint32_t n_interfaces;
	struct packet_interface interfaces[PACKET_INTERFACES];
};

void packet_reader_init(struct packet_reader *r);

/* The next packet of `bytes`, which begin where the last call stopped using them; is_last: no more will follow them.
 * *used says how many the caller drops from the front before the next call (and after it is done with *p, which lies
 * among them). A caller with the whole file in memory gives all that is left with is_last = true; one with a pipe keeps
 * a buffer of PACKET_READER_BUFFER_BYTES, moves what is left to its front and fills it up at PACKET_READ_MORE. How the
 * bytes are cut does not change what comes out.
 *
 * Understood: pcap 2.4 with micro- and nanoseconds, pcapng 1.x with any number of sections, both in either byte order;
 * interface blocks with if_tsresol and if_tsoffset, enhanced, simple and obsolete packet blocks. Other blocks are
 * skipped whatever their size (and need no room). Bounds, beyond which it is an error: a packet has at most
 * PACKET_MAX_BYTES whatever the file's snaplen says, an interface block at most PACKET_READER_BUFFER_BYTES, a section
 * at most PACKET_INTERFACES interfaces. */
enum packet_read packet_reader_next(struct packet_reader *r, const void *bytes, size_t len, bool is_last, size_t *used,
				    struct packet_record *p);

/* -- pcap files, out ------------------------------------------------------------------------------------------- */

/* The head of a little-endian pcap file with nanoseconds; returns PACKET_PCAP_HEAD_BYTES, which were written to out.
 * snaplen: the longest packet that will follow. PACKET_LINK_RAW_OLD is written as PACKET_LINK_RAW. */
size_t packet_pcap_head(void *out, uint32_t link_type, uint32_t snaplen);

/* What stands before each packet's `len` bytes; returns PACKET_PCAP_RECORD_BYTES. A time after 2106 is written as the
 * last that the format has; original_len below len as len. */
size_t packet_pcap_record(void *out, uint64_t time_ns, uint32_t len, uint32_t original_len);

#endif
