/* SPDX-License-Identifier: MIT
 *
 * test_packet_pcap: reading the sample files (pcapng too) in any pieces, hostile pcap files, and writing what is then
 * read.
 */
#include "packet_files.h"

static void put_pcap_head(struct file *f, uint32_t magic, unsigned minor)
{
	put(f, magic, 4);
	put(f, 2, 2);
	put(f, minor, 2);
	put(f, 0, 8);
	put(f, 65535, 4);
	put(f, PACKET_LINK_ETHERNET, 4);
}

static void put_record(struct file *f, uint32_t len, uint32_t original_len, size_t bytes)
{
	put(f, 10, 4);
	put(f, 20, 4);
	put(f, len, 4);
	put(f, original_len, 4);
	for (size_t i = 0; i < bytes; i++)
		put(f, i, 1);
}

static void check_record(const struct sample *s, const struct packet_record *p)
{
	ck_assert_msg(p->time_ns == s->time_ns && p->len == s->len && p->original_len == s->original_len &&
			  p->link_type == s->link_type,
		      "%s: %s: %llu ns, %u of %u, link %u", s->file, s->what, (unsigned long long)p->time_ns, p->len,
		      p->original_len, p->link_type);
}

START_TEST(every_sample)
{
	samples_each(check_record);
}
END_TEST

/* Feeds a file in pieces as a pipe would bring them, through a buffer that holds no more than is needed. */
static void feed(const uint8_t *bytes, size_t len, size_t piece, size_t row)
{
	size_t from = 0, to = 0, used;
	struct packet_record p;
	enum packet_read got;

	packet_reader_init(&r);
	for (;;) {
		uint8_t *buf = exact(bytes + from, to - from);
		got = packet_reader_next(&r, buf, to - from, to == len, &used, &p);
		if (got == PACKET_READ_PACKET) {
			check_record(&samples[row++], &p);
			ck_assert_mem_eq(p.bytes, bytes + from + (p.bytes - buf), p.len);
		}
		free(buf);
		from += used;
		ck_assert_uint_eq(r.offset, from);
		if (got == PACKET_READ_END)
			break;
		ck_assert(got == PACKET_READ_PACKET || got == PACKET_READ_MORE);
		if (got == PACKET_READ_MORE) {
			ck_assert_uint_gt(r.need_bytes, to - from);
			ck_assert_uint_le(r.need_bytes, PACKET_READER_BUFFER_BYTES);
			ck_assert_uint_lt(to, len);
			to = MIN(len, to + piece);
		}
	}
	ck_assert_uint_eq(from, len);
}

START_TEST(any_pieces)
{
	static const size_t pieces[] = {1, 2, 3, 7, 16, 61, 1000, 100000};

	for (size_t row = 0; row < n_samples; row++) {
		size_t len;
		uint8_t *bytes;

		if (row && strcmp(samples[row].file, samples[row - 1].file) == 0)
			continue;
		bytes = samples_read(samples[row].file, &len);
		for (size_t i = 0; i < ARRAY_LEN(pieces); i++)
			feed(bytes, len, pieces[i], row);
		free(bytes);
	}
}
END_TEST

/* Every shorter file gives its whole packets and then says that it is cut, unless it ends between two. */
START_TEST(every_truncation)
{
	static const char *const files[] = {"vlan.pcap", "sections.pcapng"};

	for (size_t i = 0; i < ARRAY_LEN(files); i++) {
		size_t whole, len;
		unsigned packets, before = 0;
		uint8_t *bytes = samples_read(files[i], &whole);

		for (len = 0; len < whole; len++) {
			enum packet_read got = read_whole(bytes, len, &packets);
			ck_assert(got == PACKET_READ_CUT || (got == PACKET_READ_END && len >= 24));
			ck_assert_int_eq(got == PACKET_READ_CUT, r.error[0] != 0);
			ck_assert(packets == before || packets == before + 1);
			before = packets;
		}
		free(bytes);
	}
}
END_TEST

START_TEST(foreign_files)
{
	static const struct {
		const char *bytes, *text;
	} foreign[] = {
		{"\x1f\x8b\x08\x00", "compressed with gzip: give it on standard input from zcat"},
		{"\x28\xb5\x2f\xfd", "zstdcat"},
		{"\xfd\x37zX", "xzcat"},
		{"\x04\x22\x4d\x18", "lz4cat"},
		{"BZh9", "bzcat"},
		{"\x34\xcd\xb2\xa1", "modified pcap"},
		{"\xa1\xb2\xcd\x34", "modified pcap"},
		{"snoop", "neither a pcap nor a pcapng file (it begins with 73 6e 6f 6f)"},
	};
	struct packet_record p;
	size_t used;

	for (size_t i = 0; i < ARRAY_LEN(foreign); i++) {
		struct file f = {.len = 4};
		memcpy(f.bytes, foreign[i].bytes, 4);
		check_ends(&f, PACKET_READ_ERROR, 0, foreign[i].text);
		/* and stays so */
		ck_assert_int_eq(packet_reader_next(&r, f.bytes, 4, true, &used, &p), PACKET_READ_ERROR);
		ck_assert_uint_eq(used, 0);
		ck_assert_ptr_nonnull(strstr(r.error, foreign[i].text));
	}
	check_ends(&(struct file){0}, PACKET_READ_CUT, 0, "it is empty");
	check_ends(&(struct file){.len = 3}, PACKET_READ_CUT, 0, "it ends at byte 3, in the middle of its head");
}
END_TEST

START_TEST(pcap_heads)
{
	for (int big = 0; big < 2; big++) {
		struct file f = {.big = big}, old = {.big = big};

		put_pcap_head(&f, 0xa1b2c3d4, 4);
		check_ends(&f, PACKET_READ_END, 0, "");
		ck_assert_uint_eq(r.snaplen, 65535);
		f.bytes[big ? 5 : 4] = 1;
		check_ends(&f, PACKET_READ_ERROR, 0, "at byte 0: its pcap version is 1.4");
		put_pcap_head(&old, 0xa1b23c4d, 3);
		check_ends(&old, PACKET_READ_ERROR, 0, "at byte 0: its pcap version is 2.3");
	}
}
END_TEST

/* A length that nothing holds: no packet, no memory, an error at once, even if the file could go on for ever. */
START_TEST(pcap_records)
{
	struct file f = {0};
	struct packet_record p;
	size_t used;

	put_pcap_head(&f, 0xa1b2c3d4, 4);
	put_record(&f, 5, 3, 5); /* original length below the captured one */
	put_record(&f, 0, 0, 0);
	check_ends(&f, PACKET_READ_END, 2, "");
	put_record(&f, PACKET_MAX_BYTES + 1, 5, 0);
	check_ends(&f, PACKET_READ_ERROR, 2, "at byte 61: a packet claims 262145 bytes, above 262144");

	packet_reader_init(&r);
	ck_assert_int_eq(packet_reader_next(&r, f.bytes, f.len, true, &used, &p), PACKET_READ_PACKET);
	ck_assert_uint_eq(p.original_len, 5);
	ck_assert_uint_eq(p.time_ns, 10000020000);

	f.len = 24;
	put_record(&f, PACKET_MAX_BYTES, PACKET_MAX_BYTES, 0);
	packet_reader_init(&r);
	ck_assert_int_eq(packet_reader_next(&r, f.bytes, f.len, false, &used, &p), PACKET_READ_MORE);
	ck_assert_uint_eq(used, 24);
	ck_assert_uint_eq(r.need_bytes, PACKET_MAX_BYTES + 16);
	ck_assert_int_eq(packet_reader_next(&r, f.bytes + 24, f.len - 24, true, &used, &p), PACKET_READ_CUT);
}
END_TEST

START_TEST(longest_packet)
{
	size_t len = 40 + PACKET_MAX_BYTES;
	uint8_t *bytes = calloc(1, len);
	unsigned packets;

	packet_pcap_head(bytes, PACKET_LINK_ETHERNET, PACKET_MAX_BYTES);
	packet_pcap_record(bytes + 24, 1, PACKET_MAX_BYTES, PACKET_MAX_BYTES);
	ck_assert_int_eq(read_whole(bytes, len, &packets), PACKET_READ_END);
	ck_assert_uint_eq(packets, 1);
	free(bytes);
}
END_TEST

START_TEST(written_is_read)
{
	static const uint64_t last_ns = UINT32_MAX * UINT64_C(1000000000) + 999999999;
	uint8_t file[24 + 3 * 16 + 6];
	size_t at = packet_pcap_head(file, PACKET_LINK_RAW_OLD, 1234), used, len;
	struct packet_record p;

	ck_assert_mem_eq(file, "\x4d\x3c\xb2\xa1\2\0\4\0\0\0\0\0\0\0\0\0\xd2\4\0\0\x65\0\0\0", 24);
	at += packet_pcap_record(file + at, 1700000000123456789, 3, 60);
	memcpy(file + at, "abc", 3);
	at += 3 + packet_pcap_record(file + at + 3, UINT64_MAX, 3, 1);
	memcpy(file + at, "def", 3);
	at += 3 + packet_pcap_record(file + at + 3, 0, 0, 0);
	ck_assert_uint_eq(at, sizeof(file));

	packet_reader_init(&r);
	len = at;
	at = 0;
	ck_assert_int_eq(packet_reader_next(&r, file, len, true, &used, &p), PACKET_READ_PACKET);
	ck_assert(p.time_ns == 1700000000123456789 && p.len == 3 && p.original_len == 60);
	ck_assert_uint_eq(p.link_type, PACKET_LINK_RAW);
	ck_assert_mem_eq(p.bytes, "abc", 3);
	ck_assert_uint_eq(r.snaplen, 1234);
	at += used;
	ck_assert_int_eq(packet_reader_next(&r, file + at, len - at, true, &used, &p), PACKET_READ_PACKET);
	ck_assert(p.time_ns == last_ns && p.len == 3 && p.original_len == 3);
	at += used;
	ck_assert_int_eq(packet_reader_next(&r, file + at, len - at, true, &used, &p), PACKET_READ_PACKET);
	ck_assert(p.time_ns == 0 && p.len == 0 && p.original_len == 0);
	at += used;
	ck_assert_int_eq(packet_reader_next(&r, file + at, len - at, true, &used, &p), PACKET_READ_END);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("packet_pcap");
	TCase *tc = tcase_create("pcap");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, samples_load, NULL);
	tcase_add_test(tc, every_sample);
	tcase_add_test(tc, any_pieces);
	tcase_add_test(tc, every_truncation);
	tcase_add_test(tc, foreign_files);
	tcase_add_test(tc, pcap_heads);
	tcase_add_test(tc, pcap_records);
	tcase_add_test(tc, longest_packet);
	tcase_add_test(tc, written_is_read);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
