/* SPDX-License-Identifier: MIT
 *
 * pcap_read: packets of a pcap file, and the reader's front for both formats. Pure, any process. Looks at a record only
 * when all of it is there, so that how the bytes were cut makes no difference. Does not read pcap older than 2.4 (1996)
 * nor the variants with longer records, and says so.
 */
#include "reader.h"

#include <stdarg.h>

#define MAGIC_US 0xa1b2c3d4u
#define MAGIC_NS 0xa1b23c4du
#define MAGIC_MODIFIED 0xa1b2cd34u /* Kuznetzov's: 24 bytes before each packet */
#define NS_PER_S UINT64_C(1000000000)

void packet_reader_init(struct packet_reader *r)
{
	/* without the table of interfaces, which n_interfaces bounds */
	memset(r, 0, offsetof(struct packet_reader, interfaces));
}

enum reader_step reader_fail(struct packet_reader *r, const char *fmt, ...)
{
	va_list args;
	int n = snprintf(r->error, sizeof(r->error), "at byte %llu: ", (unsigned long long)r->offset);

	va_start(args, fmt);
	vsnprintf(r->error + n, sizeof(r->error) - (size_t)n, fmt, args);
	va_end(args);
	r->state = READER_FAILED;
	return STEP_FAILED;
}

static enum reader_step fail_foreign(struct packet_reader *r, const uint8_t *p)
{
	static const struct {
		const char *magic, *name, *program;
	} compressed[] = {
		{"\x1f\x8b", "gzip", "zcat"},
		{"\x28\xb5\x2f\xfd", "zstd", "zstdcat"},
		{"\xfd\x37zX", "xz", "xzcat"},
		{"\x04\x22\x4d\x18", "lz4", "lz4cat"},
		{"BZh", "bzip2", "bzcat"},
	};

	for (size_t i = 0; i < ARRAY_LEN(compressed); i++)
		if (memcmp(p, compressed[i].magic, strlen(compressed[i].magic)) == 0)
			return reader_fail(r, "it is compressed with %s: give it on standard input from %s",
					   compressed[i].name, compressed[i].program);
	if (load32le(p) == MAGIC_MODIFIED || load32be(p) == MAGIC_MODIFIED)
		return reader_fail(r, "it is a modified pcap file, which only old kernels' tools wrote: "
				      "convert it with editcap");
	return reader_fail(r, "it is neither a pcap nor a pcapng file (it begins with %02x %02x %02x %02x)", p[0], p[1],
			   p[2], p[3]);
}

static enum reader_step read_start(struct packet_reader *r, struct reader_cut *c)
{
	uint32_t magic;
	unsigned major, minor;

	if (!reader_has(r, c, 4))
		return STEP_SHORT;
	magic = load32le(c->at);
	if (magic == PCAPNG_SECTION) {
		r->state = READER_BLOCK;
		return STEP_ON;
	}
	r->is_swapped = magic != MAGIC_US && magic != MAGIC_NS;
	magic = reader_u32(r, c->at);
	if (magic != MAGIC_US && magic != MAGIC_NS)
		return fail_foreign(r, c->at);
	if (!reader_has(r, c, PACKET_PCAP_HEAD_BYTES))
		return STEP_SHORT;
	major = reader_u16(r, c->at + 4);
	minor = reader_u16(r, c->at + 6);
	if (major != 2 || minor != 4)
		return reader_fail(r, "its pcap version is %u.%u, known is 2.4: convert it with editcap", major, minor);
	r->ns_per_unit = magic == MAGIC_NS ? 1 : 1000;
	r->snaplen = reader_u32(r, c->at + 16);
	r->link_type = reader_u32(r, c->at + 20) & 0xffff; /* above: the length of the FCS */
	reader_use(r, c, PACKET_PCAP_HEAD_BYTES);
	r->state = READER_RECORD;
	return STEP_ON;
}

static enum reader_step read_record(struct packet_reader *r, struct reader_cut *c, struct packet_record *p)
{
	uint32_t len;

	if (!reader_has(r, c, PACKET_PCAP_RECORD_BYTES))
		return STEP_SHORT;
	len = reader_u32(r, c->at + 8);
	if (len > PACKET_MAX_BYTES)
		return reader_fail(r, "a packet claims %u bytes, above %u: the file is damaged here", len,
				   (unsigned)PACKET_MAX_BYTES);
	if (!reader_has(r, c, PACKET_PCAP_RECORD_BYTES + len))
		return STEP_SHORT;
	*p = (struct packet_record){
		.bytes = c->at + PACKET_PCAP_RECORD_BYTES,
		.len = len,
		.original_len = MAX(reader_u32(r, c->at + 12), len),
		/* A fraction above a second is added up, as every reader does. */
		.time_ns = reader_u32(r, c->at) * NS_PER_S + (uint64_t)reader_u32(r, c->at + 4) * r->ns_per_unit,
		.link_type = r->link_type,
	};
	reader_use(r, c, PACKET_PCAP_RECORD_BYTES + len);
	return STEP_PACKET;
}

static enum reader_step read_step(struct packet_reader *r, struct reader_cut *c, struct packet_record *p)
{
	switch ((enum reader_state)r->state) {
	case READER_START:
		return read_start(r, c);
	case READER_RECORD:
		return read_record(r, c, p);
	case READER_BLOCK:
		return reader_block(r, c, p);
	case READER_SKIP:
		return reader_skip(r, c);
	case READER_FAILED:
		break;
	}
	return STEP_FAILED;
}

/* The last bytes are there and do not suffice. */
static enum packet_read read_last(struct packet_reader *r, const struct reader_cut *c)
{
	bool is_between = r->state == READER_RECORD || r->state == READER_BLOCK;

	if (c->len == 0 && is_between)
		return PACKET_READ_END;
	if (r->offset == 0 && c->len == 0)
		snprintf(r->error, sizeof(r->error), "it is empty");
	else
		snprintf(r->error, sizeof(r->error), "it ends at byte %llu, in the middle of %s",
			 (unsigned long long)(r->offset + c->len),
			 r->state == READER_START ? "its head" : is_between ? "a record" : "a block");
	return PACKET_READ_CUT;
}

enum packet_read packet_reader_next(struct packet_reader *r, const void *bytes, size_t len, bool is_last, size_t *used,
				    struct packet_record *p)
{
	struct reader_cut c = {bytes, len};
	enum reader_step step;

	do
		step = read_step(r, &c, p);
	while (step == STEP_ON);
	*used = len - c.len;
	switch (step) {
	case STEP_PACKET:
		return PACKET_READ_PACKET;
	case STEP_SHORT:
		return is_last ? read_last(r, &c) : PACKET_READ_MORE;
	case STEP_ON:
	case STEP_FAILED:
		break;
	}
	return PACKET_READ_ERROR;
}
