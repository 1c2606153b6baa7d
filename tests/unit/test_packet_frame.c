/* SPDX-License-Identifier: MIT
 *
 * test_packet_frame: what is found in every sample frame, and that no shorter capture of it leads anywhere else.
 */
#include "packet_samples.h"

static void check_view(const struct sample *s, const struct packet_view *v)
{
	char ports[16] = "-", payload[16] = "-", found[128], expected[128];

	if (v->has_ports)
		snprintf(ports, sizeof(ports), "%u>%u", v->source_port, v->destination_port);
	if (v->verdict == PACKET_PAYLOAD)
		snprintf(payload, sizeof(payload), "%u", v->payload_bytes);
	snprintf(found, sizeof(found), "%s tags %u version %u protocol %u ports %s payload %s",
		 packet_verdict_name(v->verdict), v->n_vlans, v->ip_version, v->protocol, ports, payload);
	snprintf(expected, sizeof(expected), "%s tags %llu version %llu protocol %llu ports %s payload %s", s->verdict,
		 s->vlans, s->ip_version, s->protocol, s->ports, s->payload);
	ck_assert_msg(strcmp(found, expected) == 0, "%s: %s: got %s, not %s", s->file, s->what, found, expected);
}

static void check_frame(const struct sample *s, const struct packet_record *p)
{
	uint8_t *copy = exact(p->bytes, p->len);
	struct packet_view v;

	memset(&v, 0xff, sizeof(v));
	ck_assert_int_eq(packet_decode(copy, p->len, p->original_len, p->link_type, &v), v.verdict);
	check_view(s, &v);
	ck_assert_ptr_eq(v.frame, copy);
	ck_assert_uint_eq(v.len, p->len);
	ck_assert_uint_eq(v.original_len, p->original_len);
	if (v.verdict == PACKET_PAYLOAD) {
		ck_assert_uint_le(v.payload_at + v.payload_bytes, v.len);
		ck_assert_uint_eq(v.payload_at, v.l4_at + 8);
		if (v.payload_bytes == 19)
			ck_assert_mem_eq(copy + v.payload_at, "requests.count:1|c\n", 19);
	}
	ck_assert_int_eq(v.macs != NULL, p->link_type == PACKET_LINK_ETHERNET && p->len >= 12);
	ck_assert_int_eq(v.is_fragment, v.verdict == PACKET_FRAGMENT);
	ck_assert_int_eq(packet_link_is_known(p->link_type), v.verdict != PACKET_UNKNOWN_LINK);
	free(copy);
}

START_TEST(every_sample)
{
	samples_each(check_frame);
}
END_TEST

static void check_cuts(const struct sample *s, const struct packet_record *p)
{
	struct packet_view whole, v;

	packet_decode(p->bytes, p->len, p->original_len, p->link_type, &whole);
	for (size_t len = 0; len < p->len; len++) {
		uint8_t *copy = exact(p->bytes, len);

		packet_decode(copy, len, p->original_len, p->link_type, &v);
		ck_assert_msg(v.verdict == PACKET_TRUNCATED || v.verdict == whole.verdict, "%s: %s cut at %zu: %s",
			      s->file, s->what, len, packet_verdict_name(v.verdict));
		if (v.verdict == PACKET_PAYLOAD)
			ck_assert_uint_eq(v.payload_bytes, whole.payload_bytes);
		packet_flow_hash(&v); /* reads no more than was captured */

		/* The same bytes as a whole frame: a payload only if it lies within. */
		packet_decode(copy, len, 0, p->link_type, &v);
		ck_assert_int_ne(v.verdict, PACKET_TRUNCATED);
		ck_assert(v.verdict != PACKET_PAYLOAD || v.payload_at + v.payload_bytes <= len);
		free(copy);
	}
}

START_TEST(every_truncation)
{
	samples_each(check_cuts);
}
END_TEST

/* Details that the rows do not name. */
START_TEST(view_details)
{
	static const uint8_t fragment[] = {
		2,    0,    0, 0,  0, 11, 2, 0,	  0,  0,  0, 10,       /* MACs */
		0x88, 0xa8, 0xa0, 7, 0x81, 0, 0x10, 9, 8, 0,	       /* two tags, IPv4 */
		0x45, 0,    0, 28, 0, 5,  0x20, 100, 64, 17, 0, 0,     /* more fragments, at 800 */
		10,   0,    0, 1,  10, 0, 0, 2,			       /* addresses */
		1,    2,    3, 4,  5, 6,  7, 8,
	};
	struct packet_view v;

	ck_assert_int_eq(packet_decode(fragment, sizeof(fragment), 0, PACKET_LINK_ETHERNET, &v), PACKET_FRAGMENT);
	ck_assert_uint_eq(v.vlan_tags[0], 0xa007);
	ck_assert_uint_eq(v.vlan_tags[1], 0x1009);
	ck_assert_uint_eq(v.ethertype, 0x800);
	ck_assert_uint_eq(v.l3_at, 22);
	ck_assert_uint_eq(v.l4_at, 42);
	ck_assert_uint_eq(v.fragment_at, 800);
	ck_assert(v.more_fragments && !v.has_ports);
	ck_assert_mem_eq(v.source, "\x0a\0\0\1", 4);
	ck_assert_mem_eq(v.destination, "\x0a\0\0\2", 4);
	ck_assert_ptr_eq(v.macs, fragment);
	ck_assert_uint_eq(v.original_len, sizeof(fragment));
}
END_TEST

/* Old raw IP (DLT_RAW of libpcap) is raw IP; unknown links and no memory at all are no trouble. */
START_TEST(odd_links)
{
	static const uint8_t ip[] = {
		0x45, 0, 0, 29, 0, 5, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 9, 0, 0, 'x',
	};
	struct packet_view v;

	ck_assert_int_eq(packet_decode(ip, sizeof(ip), sizeof(ip), PACKET_LINK_RAW_OLD, &v), PACKET_PAYLOAD);
	ck_assert_uint_eq(v.payload_bytes, 1);
	ck_assert_int_eq(packet_decode(NULL, 0, 0, PACKET_LINK_ETHERNET, &v), PACKET_BAD_LENGTH);
	ck_assert_int_eq(packet_decode(NULL, 0, 99, PACKET_LINK_ETHERNET, &v), PACKET_TRUNCATED);
	ck_assert_int_eq(packet_decode(NULL, 0, 99, 9999, &v), PACKET_UNKNOWN_LINK);
	ck_assert(!packet_link_is_known(9999));
}
END_TEST

START_TEST(names_differ)
{
	for (int i = 0; i < PACKET_VERDICTS; i++)
		for (int j = 0; j < i; j++)
			ck_assert_str_ne(packet_verdict_name((enum packet_verdict)i),
					 packet_verdict_name((enum packet_verdict)j));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("packet_frame");
	TCase *tc = tcase_create("frame");

	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, samples_load, NULL);
	tcase_add_test(tc, every_sample);
	tcase_add_test(tc, every_truncation);
	tcase_add_test(tc, view_details);
	tcase_add_test(tc, odd_links);
	tcase_add_test(tc, names_differ);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
