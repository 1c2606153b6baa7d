/* SPDX-License-Identifier: MIT
 *
 * test_packet_pcapng: blocks of pcapng files that are damaged, odd or huge. Sound ones are test_packet_pcap's samples.
 */
#include "packet_files.h"

/* A block with these 32-bit words as its body. */
static void put_block(struct file *f, uint32_t type, const uint32_t *words, size_t n)
{
	put(f, type, 4);
	put(f, 12 + 4 * n, 4);
	for (size_t i = 0; i < n; i++)
		put(f, words[i], 4);
	put(f, 12 + 4 * n, 4);
}
#define BLOCK(f, type, ...)                                                                                            \
	put_block(f, type, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4)

static void put_section(struct file *f)
{
	put(f, 0x0a0d0d0a, 4);
	put(f, 28, 4);
	put(f, 0x1a2b3c4d, 4);
	put(f, 1, 2);
	put(f, 0, 2);
	put(f, UINT64_MAX, 8);
	put(f, 28, 4);
}

static void put_interface(struct file *f, uint32_t snaplen)
{
	put(f, 1, 4);
	put(f, 20, 4);
	put(f, PACKET_LINK_RAW, 2);
	put(f, 0, 2);
	put(f, snaplen, 4);
	put(f, 20, 4);
}

static struct file section(bool big)
{
	struct file f = {.big = big};

	put_section(&f);
	return f;
}

START_TEST(sections)
{
	for (int big = 0; big < 2; big++) {
		struct file f = section(big);

		check_ends(&f, PACKET_READ_END, 0, "");
		f.bytes[8] ^= 1;
		check_ends(&f, PACKET_READ_ERROR, 0, "at byte 0: a section has no byte-order magic");
		f = section(big);
		f.bytes[big ? 13 : 12] = 2;
		check_ends(&f, PACKET_READ_ERROR, 0, "at byte 0: its pcapng version is 2.0");
		f = section(big);
		f.bytes[big ? 7 : 4] = 24;
		check_ends(&f, PACKET_READ_ERROR, 0, "at byte 0: a section block claims 24 bytes");
		f = section(big);
		f.bytes[big ? 7 : 4] = 29;
		check_ends(&f, PACKET_READ_ERROR, 0, "at byte 0: a section block claims 29 bytes");
		f = section(big);
		f.bytes[big ? 27 : 24] = 32;
		check_ends(&f, PACKET_READ_ERROR, 0, "at byte 24: a block of 28 bytes ends with the length 32");
	}
}
END_TEST

START_TEST(interfaces)
{
	struct file f = section(false);

	BLOCK(&f, 1, 1, 0, 9 | 2 << 16, 6);
	check_ends(&f, PACKET_READ_ERROR, 0, "at byte 28: an interface's if_tsresol has 2 bytes, not 1");
	f = section(false);
	BLOCK(&f, 1, 1, 0, 14 | 4 << 16, 6);
	check_ends(&f, PACKET_READ_ERROR, 0, "an interface's if_tsoffset has 4 bytes, not 8");
	f = section(false);
	BLOCK(&f, 1, 1, 0, 2 | 5 << 16, 6);
	check_ends(&f, PACKET_READ_ERROR, 0, "option 2 of an interface is longer than its block");
	f = section(false);
	BLOCK(&f, 1, 1, 0, 0, 14 | 4 << 16); /* what stands behind the end of options is not looked at */
	check_ends(&f, PACKET_READ_END, 0, "");
	f = section(false);
	BLOCK(&f, 1, 1);
	check_ends(&f, PACKET_READ_ERROR, 0, "at byte 28: an interface block claims 16 bytes");
	f = section(false);
	put(&f, 1, 4);
	put(&f, PACKET_READER_BUFFER_BYTES + 4, 4);
	check_ends(&f, PACKET_READ_ERROR, 0, "an interface block of 262212 bytes is above 262208");
}
END_TEST

START_TEST(too_many_interfaces)
{
	struct file one = {0}, head = section(false);
	size_t len = 28 + 20 * (PACKET_INTERFACES + 1);
	uint8_t *bytes = malloc(len);
	unsigned packets;

	put_interface(&one, 0);
	memcpy(bytes, head.bytes, 28);
	for (size_t i = 0; i <= PACKET_INTERFACES; i++)
		memcpy(bytes + 28 + 20 * i, one.bytes, 20);
	ck_assert_int_eq(read_whole(bytes, len - 20, &packets), PACKET_READ_END);
	ck_assert_int_eq(read_whole(bytes, len, &packets), PACKET_READ_ERROR);
	ck_assert_ptr_nonnull(strstr(r.error, "at byte 20508: a section has more than 1024 interfaces"));
	free(bytes);
}
END_TEST

START_TEST(packets)
{
	struct file f = section(false), head;

	BLOCK(&f, 6, 0, 0, 0, 4, 4, 1);
	check_ends(&f, PACKET_READ_ERROR, 0, "a packet of interface 0, but the section has 0 so far");
	f = section(false);
	BLOCK(&f, 3, 4, 1);
	check_ends(&f, PACKET_READ_ERROR, 0, "a packet of interface 0, but the section has 0 so far");
	head = section(false);
	put_interface(&head, 4);

	f = head;
	BLOCK(&f, 6, 0, 0, 0, 4, 4);
	check_ends(&f, PACKET_READ_ERROR, 0, "at byte 48: a packet of 4 bytes in a block of 32");
	f = head;
	BLOCK(&f, 6, 0, 0, 0, PACKET_MAX_BYTES + 1, 4);
	check_ends(&f, PACKET_READ_ERROR, 0, "at byte 48: a packet claims 262145 bytes");
	f = head;
	BLOCK(&f, 6, 0, 0, 0, 0);
	check_ends(&f, PACKET_READ_ERROR, 0, "at byte 48: a packet block claims 28 bytes");
	f = head;
	BLOCK(&f, 2, 1, 0, 0, 4, 4, 1);
	check_ends(&f, PACKET_READ_ERROR, 0, "a packet of interface 1, but the section has 1 so far");
	f = head;
	BLOCK(&f, 3, 8, 0);
	BLOCK(&f, 3, 3, 0);
	check_ends(&f, PACKET_READ_END, 2, "");
	BLOCK(&f, 3, 8);
	check_ends(&f, PACKET_READ_ERROR, 2, "a packet of 4 bytes in a block of 16");
	f = head;
	put(&f, 3, 4);
	put(&f, 12, 4);
	check_ends(&f, PACKET_READ_ERROR, 0, "a simple packet block claims 12 bytes");
	f = head;
	put(&f, 6, 4);
	put(&f, 36, 4);
	check_ends(&f, PACKET_READ_CUT, 0, "it ends at byte 56, in the middle of a record");
	f = section(false);
	put_interface(&f, 0); /* no bound */
	BLOCK(&f, 3, 8, 1, 2);
	check_ends(&f, PACKET_READ_END, 1, "");
	/* A new section forgets the interfaces. */
	f = head;
	put_section(&f);
	BLOCK(&f, 6, 0, 0, 0, 4, 4, 1);
	check_ends(&f, PACKET_READ_ERROR, 0, "but the section has 0 so far");
}
END_TEST

/* Blocks of any size are passed over in no memory. */
START_TEST(skips)
{
	struct file f = section(false);
	static uint8_t zero[1 << 20];
	struct packet_record p;
	size_t used;
	uint64_t left = 0xfffffffc - 12;

	put(&f, 0x80000001, 4);
	put(&f, 0xfffffffc, 4);
	packet_reader_init(&r);
	ck_assert_int_eq(packet_reader_next(&r, f.bytes, f.len, false, &used, &p), PACKET_READ_MORE);
	ck_assert_uint_eq(used, f.len);
	ck_assert_uint_eq(r.need_bytes, 1);
	ck_assert_uint_eq(r.skipped_blocks, 1);
	while (left) {
		size_t n = MIN(left, sizeof(zero) - left % 7);
		enum packet_read got = packet_reader_next(&r, zero, n, false, &used, &p);
		if (got != PACKET_READ_MORE || used != n)
			break;
		left -= n;
	}
	ck_assert_uint_eq(left, 0);
	ck_assert_uint_eq(r.need_bytes, 4);
	ck_assert_int_eq(packet_reader_next(&r, "\xfc\xff\xff\xff", 4, true, &used, &p), PACKET_READ_END);
	ck_assert_uint_eq(r.offset, 28 + UINT64_C(0xfffffffc));

	f = section(false);
	put(&f, 0x80000001, 4);
	put(&f, 8, 4);
	check_ends(&f, PACKET_READ_ERROR, 0, "at byte 28: a block claims 8 bytes");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("packet_pcapng");
	TCase *tc = tcase_create("pcapng");

	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, sections);
	tcase_add_test(tc, interfaces);
	tcase_add_test(tc, too_many_interfaces);
	tcase_add_test(tc, packets);
	tcase_add_test(tc, skips);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
