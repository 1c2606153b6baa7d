/* SPDX-License-Identifier: MIT
 *
 * fuzz_pcapfile: the reader of pcap and pcapng files. The first byte of the input chooses the sizes of the pieces; the
 * rest is the file. Read whole, and in pieces as a pipe brings them: both must give the same packets, the same end and
 * the same text at the same place. Packets must lie within what was given, each wait must be for more than there is,
 * and never for more than a reader's buffer. Packets are written as a pcap file and read again.
 */
#include <packet.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "fuzz_pcapfile: %s:%d: not so: %s\n", __FILE__, __LINE__, #cond);              \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

enum { PACKETS_MAX = 1024 };

/* What one reading gave: packets with their place in the file, and the end. */
struct reading {
	struct packet_record packets[PACKETS_MAX];
	size_t places[PACKETS_MAX];
	size_t n;
	enum packet_read end;
	uint64_t offset, skipped_blocks;
	char error[sizeof(((struct packet_reader *)0)->error)];
};

static struct reading whole, pieces;
static struct packet_reader r;

static void note(struct reading *got, const struct packet_record *p, size_t place)
{
	MUST(p->len <= PACKET_MAX_BYTES && p->original_len >= p->len && p->interface < PACKET_INTERFACES);
	if (got->n == PACKETS_MAX)
		return;
	got->packets[got->n] = *p;
	got->packets[got->n].bytes = NULL;
	got->places[got->n++] = place;
}

/* Each call gets a copy that is alone in its memory. piece_bytes 0: as many as are needed. */
static void read_file(struct reading *got, const uint8_t *file, size_t len, size_t first_bytes, size_t piece_bytes)
{
	size_t from = 0, to = MIN(first_bytes, len), used;
	struct packet_record p;

	memset(got, 0, sizeof(*got));
	packet_reader_init(&r);
	for (;;) {
		uint8_t *buf = malloc(to - from + !(to - from));
		memcpy(buf, file + from, to - from);
		got->end = packet_reader_next(&r, buf, to - from, to == len, &used, &p);
		MUST(used <= to - from && r.offset == from + used);
		if (got->end == PACKET_READ_PACKET) {
			MUST(p.bytes >= buf && p.bytes + p.len <= buf + used);
			MUST(memcmp(p.bytes, file + from + (p.bytes - buf), p.len) == 0);
			note(got, &p, from + (size_t)(p.bytes - buf));
		}
		free(buf);
		from += used;
		if (got->end != PACKET_READ_PACKET && got->end != PACKET_READ_MORE)
			break;
		if (got->end == PACKET_READ_MORE) {
			MUST(to < len && r.need_bytes > to - from && r.need_bytes <= PACKET_READER_BUFFER_BYTES);
			to = MIN(len, piece_bytes ? to + piece_bytes : from + r.need_bytes);
		}
	}
	got->offset = r.offset;
	got->skipped_blocks = r.skipped_blocks;
	memcpy(got->error, r.error, sizeof(got->error));
	MUST((got->end == PACKET_READ_END) == !r.error[0] && (got->end != PACKET_READ_END || from == len));
}

static void check_written(const uint8_t *file)
{
	for (size_t i = 0; i < whole.n; i++) {
		const struct packet_record *p = &whole.packets[i];
		size_t len = PACKET_PCAP_HEAD_BYTES + PACKET_PCAP_RECORD_BYTES + p->len, used;
		uint8_t *bytes = malloc(len);
		struct packet_record again;
		size_t at = packet_pcap_head(bytes, p->link_type, PACKET_MAX_BYTES);
		at += packet_pcap_record(bytes + at, p->time_ns, p->len, p->original_len);
		memcpy(bytes + at, file + whole.places[i], p->len);
		packet_reader_init(&r);
		MUST(packet_reader_next(&r, bytes, len, true, &used, &again) == PACKET_READ_PACKET && used == len);
		MUST(again.len == p->len && again.original_len == p->original_len);
		MUST(again.time_ns == MIN(p->time_ns, UINT32_MAX * UINT64_C(1000000000) + 999999999));
		MUST(again.link_type == (p->link_type == PACKET_LINK_RAW_OLD ? PACKET_LINK_RAW : p->link_type));
		free(bytes);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	if (size < 1)
		return 0;
	const uint8_t *file = input + 1;
	size_t len = size - 1;
	size_t piece_bytes = input[0] & 1 ? 0 : (size_t)(input[0] >> 1) + 1; /* 0: just what is needed */
	read_file(&whole, file, len, len, 0);
	check_written(file);
	read_file(&pieces, file, len, input[0] % 3 * 10, piece_bytes);
	MUST(memcmp(&whole, &pieces, sizeof(whole)) == 0);
	return 0;
}
