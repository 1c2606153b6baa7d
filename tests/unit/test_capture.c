/* SPDX-License-Identifier: MIT
 *
 * The pure parts of captures: the text of the filter, and that libpcap takes it and decides as meant.
 */
#include "suite.h"

#include <pcap/pcap.h>

#include "tap.h"

static void expect(const char *filter, const char *peers, const char *expected)
{
	struct text t = {0};
	tap_filter_make(&t, filter, peers);
	ck_assert_str_eq(t.s, expected);
	text_free(&t);
}

START_TEST(text_of_the_filter)
{
	expect("", "", "inbound");
	expect("udp or tcp", "", "inbound and (udp or tcp)");
	expect("", "10.0.0.1:9092", "inbound and not (ip and greater 40 and tcp and ((host 10.0.0.1 and port 9092)))");
	expect("vlan", "10.0.0.1:9092,[fd00::1]:9093,10.0.0.2:9094",
	       "inbound and not (ip and greater 40 and tcp and ((host 10.0.0.1 and port 9092) or (host 10.0.0.2 and "
	       "port 9094)))"
	       " and not (ip6 and greater 60 and tcp and ((host fd00::1 and port 9093))) and (vlan)");
	/* a worker says who they are, and the master compiles it */
	expect("", "nonsense,:5,localhost:1,10.0.0.1) or (tcp:1,[fe80::1%lo]:1,[::1 or tcp]:9", "inbound");
}
END_TEST

/* What is left of it without `inbound`, which needs a live interface. */
static bool passes(const char *peers, const uint8_t *frame, unsigned len)
{
	struct text t = {0};
	struct bpf_program program;
	pcap_t *p = pcap_open_dead(DLT_EN10MB, 65552);
	tap_filter_make(&t, "", peers);
	const char *rest = strstr(t.s, "not");
	ck_assert_int_eq(pcap_compile(p, &program, rest, 1, PCAP_NETMASK_UNKNOWN), 0);
	struct pcap_pkthdr h = {.caplen = len, .len = len};
	bool is = pcap_offline_filter(&program, &h, frame) != 0;
	pcap_freecode(&program);
	pcap_close(p);
	text_free(&t);
	return is;
}

START_TEST(own_traffic_and_short_frames)
{
	uint8_t frame[80] = {[12] = 8, [14] = 0x45, [23] = 6, [26] = 10, [29] = 1, [30] = 10, [33] = 2};
	frame[36] = 9092 >> 8; /* destination port */
	frame[37] = 9092 & 255;
	ck_assert(!passes("10.0.0.2:9092", frame, sizeof(frame)));
	ck_assert(!passes("10.0.0.1:1,10.0.0.2:9092", frame, 54));
	ck_assert(passes("10.0.0.3:9092", frame, sizeof(frame)));
	ck_assert(passes("10.0.0.2:9093", frame, sizeof(frame)));
	frame[23] = 17;
	ck_assert(passes("10.0.0.2:9092", frame, sizeof(frame)));
	frame[23] = 6;
	for (unsigned len = 14; len < sizeof(frame); len++) {
		ck_assert_msg(passes("10.0.0.2:9093", frame, len), "%u bytes", len);
		ck_assert_msg(passes("10.0.0.2:9092", frame, len) == (len < 40), "%u bytes", len);
	}
}
END_TEST

START_TEST(peers_of_the_configuration)
{
	char *keys[] = {"linger.ms", "bootstrap.servers"},
	     *values[] = {"5", "127.0.0.1:19092, ssl://[::1]:9093,nowhere.invalid"};
	struct conf_output outs[2] = {
	    {.type = CONF_OUTPUT_TYPE_STATSITE},
	    {.type = CONF_OUTPUT_TYPE_KAFKA, .properties = {.keys = keys, .values = values, .n = 2}},
	};
	struct conf cf = {.outputs = outs, .n_outputs = 2};
	struct text peers = {0}, unknown = {0};
	tap_peers(&cf, &peers, &unknown);
	ck_assert_str_eq(peers.s, "127.0.0.1:19092,[::1]:9093");
	ck_assert_str_eq(unknown.s, "nowhere.invalid");
	text_free(&peers);
	text_free(&unknown);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("capture");
	TCase *tc = tcase_create("filter");
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, text_of_the_filter);
	tcase_add_test(tc, own_traffic_and_short_frames);
	tcase_add_test(tc, peers_of_the_configuration);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
