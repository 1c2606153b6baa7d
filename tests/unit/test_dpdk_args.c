/* SPDX-License-Identifier: MIT
 *
 * test_dpdk_args: what the EAL is given for what an input's options say.
 */
#include "suite.h"

#include <errno.h>
#include <string.h>

#include "dpdk.h"

static int make(struct dpdk_args *a, const char *port, const char *eal, unsigned queues, struct err *err)
{
	static char copy[2048];
	static char *items[DPDK_WORDS_MAX * 2];
	struct dpdk_wish wish = {.input = "tap", .port = port, .eal = items, .queues = queues, .rx_descriptors = 1022};
	snprintf(copy, sizeof copy, "%s", eal);
	for (char *item = strtok(copy, ";"); item; item = strtok(NULL, ";"))
		items[wish.n_eal++] = item;
	return dpdk_args_make(a, &wish, 77, 3, err);
}

static void joined(const struct dpdk_args *a, char *buf, size_t size)
{
	size_t at = 0;
	for (int i = 0; i < a->n; i++)
		at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? " " : "", a->words[i]);
}

#define ENDS   "--file-prefix millrace77 --no-telemetry"
#define FRAMES "blocksz=65536,framesz=16384,framecnt=1024"

START_TEST(words)
{
	static const struct {
		const char *port, *eal, *argv, *name;
		uint32_t frame_bytes;
	} rows[] = {
	    {"", "", "millrace -l 3 " ENDS " --no-shconf --huge-unlink", "", 0},
	    {"", "-l 0,1", "millrace -l 0,1 " ENDS " --no-shconf --huge-unlink", "", 0},
	    {"", "-l;0,1;--no-huge; -m  64 ", "millrace -l 0,1 --no-huge -m 64 " ENDS " --no-shconf", "", 0},
	    {"", "-l0", "millrace -l0 " ENDS " --no-shconf --huge-unlink", "", 0},
	    {"", "--lcores=0@1;--file-prefix=x;--telemetry;--huge-unlink=never",
	     "millrace --lcores=0@1 --file-prefix=x --telemetry --huge-unlink=never", "", 0},
	    {"", "--file-prefix;x;-l;0;--in-memory", "millrace --file-prefix x -l 0 --in-memory --no-telemetry", "", 0},
	    {"0000:01:00.0", "-l 0", "millrace -l 0 -a 0000:01:00.0 " ENDS " --no-shconf --huge-unlink", "0000:01:00.0",
	     0},
	    {"01:00.0", "-l 0;-w 01:00.0", "millrace -l 0 -a 01:00.0 " ENDS " --no-shconf --huge-unlink", "01:00.0", 0},
	    {"", "-l 0;--pci-whitelist 01:00.0;--master-lcore 0",
	     "millrace -l 0 --allow 01:00.0 --main-lcore 0 " ENDS " --no-shconf --huge-unlink", "", 0},
	    {"net_ring0", "-l 0", "millrace -l 0 --vdev net_ring0 " ENDS " --no-pci --no-shconf --huge-unlink",
	     "net_ring0", 0},
	    {"net_ring0", "-l 0;--vdev=net_ring0",
	     "millrace -l 0 --vdev=net_ring0 " ENDS " --no-pci --no-shconf --huge-unlink", "net_ring0", 0},
	    {"net_ring0", "-l 0;--vdev net_ring1",
	     "millrace -l 0 --vdev net_ring1 " ENDS " --no-pci --no-shconf --huge-unlink", "net_ring0", 0},
	    {"", "-l 0;--vdev net_af_packet0,iface=e;-a 01:00.0",
	     "millrace -l 0 --vdev net_af_packet0,iface=e,qpairs=2," FRAMES " -a 01:00.0 " ENDS
	     " --no-shconf --huge-unlink",
	     "", 16318},
	    {"net_af_packet0,iface=e", "-l 0",
	     "millrace -l 0 --vdev net_af_packet0,iface=e,qpairs=2," FRAMES " " ENDS
	     " --no-pci --no-shconf --huge-unlink",
	     "net_af_packet0", 16318},
	    {"", "-l 0;--vdev=net_af_packet0,iface=e,qpairs=4",
	     "millrace -l 0 --vdev=net_af_packet0,iface=e,qpairs=4," FRAMES " " ENDS
	     " --no-pci --no-shconf --huge-unlink",
	     "", 16318},
	    {"", "-l 0;--vdev=eth_af_packet0,iface=e,framesz=4096",
	     "millrace -l 0 --vdev=eth_af_packet0,iface=e,framesz=4096,qpairs=2 " ENDS
	     " --no-pci --no-shconf --huge-unlink",
	     "", 4030},
	    {"", "-l 0;--vdev=net_af_packet0,iface=e,framecnt=64",
	     "millrace -l 0 --vdev=net_af_packet0,iface=e,framecnt=64,qpairs=2 " ENDS
	     " --no-pci --no-shconf --huge-unlink",
	     "", 1982},
	    {"3", "-l 0", "millrace -l 0 " ENDS " --no-shconf --huge-unlink", "3", 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct dpdk_args a;
		struct err err = {""};
		char got[1024];
		ck_assert_msg(make(&a, rows[i].port, rows[i].eal, 2, &err) == 0, "%s: %s", rows[i].eal, err.text);
		joined(&a, got, sizeof got);
		ck_assert_str_eq(got, rows[i].argv);
		ck_assert_ptr_null(a.words[a.n]);
		ck_assert_str_eq(a.port, rows[i].name);
		ck_assert_uint_eq(a.frame_bytes, rows[i].frame_bytes);
		dpdk_args_free(&a);
	}
}
END_TEST

START_TEST(refused)
{
	static const char *const rows[][3] = {
	    {"", "--no-huge;--in-memory", "not both"},
	    {"", "--proc-type=secondary", "owns its port"},
	    {"", "--proc-type;secondary", "owns its port"},
	};
	struct dpdk_args a;
	struct err err;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		ck_assert_int_eq(make(&a, rows[i][0], rows[i][1], 1, &err), -EINVAL);
		ck_assert_ptr_nonnull(strstr(err.text, rows[i][2]));
		dpdk_args_free(&a);
	}
	char many[DPDK_WORDS_MAX * 3 + 1], port[200];
	for (size_t i = 0; i < DPDK_WORDS_MAX; i++)
		memcpy(many + i * 3, "-v;", 4);
	ck_assert_int_eq(make(&a, "", many, 1, &err), -EINVAL);
	dpdk_args_free(&a);
	memset(port, 'x', sizeof port - 1);
	port[sizeof port - 1] = '\0';
	ck_assert_int_eq(make(&a, port, "", 1, &err), -EINVAL);
	dpdk_args_free(&a);
}
END_TEST

START_TEST(pci_addresses)
{
	ck_assert(dpdk_is_pci_address("0000:01:00.0"));
	ck_assert(dpdk_is_pci_address("af:1F.7"));
	ck_assert(!dpdk_is_pci_address(""));
	ck_assert(!dpdk_is_pci_address("0"));
	ck_assert(!dpdk_is_pci_address("net_ring0"));
	ck_assert(!dpdk_is_pci_address("0000:01:00-0"));
	ck_assert(!dpdk_is_pci_address("0000:0g:00.0"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dpdk_args");
	TCase *tc = tcase_create("dpdk_args");
	tcase_add_test(tc, words);
	tcase_add_test(tc, refused);
	tcase_add_test(tc, pci_addresses);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
