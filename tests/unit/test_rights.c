/* SPDX-License-Identifier: MIT
 *
 * test_rights: which capabilities a configuration needs, and what is answered to one that needs more than was kept.
 * Each test is a process of its own (check forks).
 */
#include "suite.h"

#include <errno.h>
#include <linux/capability.h>
#include <master.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../src/master/master.h"

static struct conf *load(const char *inputs, const char *top)
{
	struct text t = {0};
	struct conf_errors errors;
	text_add(
	    &t,
	    "%s\ninputs: { in: { %s, to: out } }\noutputs: { out: { type: statsite, backends: [\"127.0.0.1:1\"] } }\n",
	    top, inputs);
	struct conf *cf = conf_load_bytes("text", t.s, t.len, NULL, &errors);
	ck_assert_msg(cf != NULL, "%s", errors.text.s ? errors.text.s : "");
	free(cf->path); /* there is no such file */
	cf->path = NULL;
	text_free(&t);
	return cf;
}

static const uint64_t children =
    CAPABILITY(CAP_SETUID) | CAPABILITY(CAP_SETGID) | CAPABILITY(CAP_SETPCAP) | CAPABILITY(CAP_KILL);

static uint64_t needed(const char *inputs, const char *top, bool is_root)
{
	const struct identity id = {.is_root = is_root};
	struct conf *cf = load(inputs, top);
	uint64_t set = rights_needed(cf, &id);
	conf_free(cf);
	return set;
}

#define SMALL     "receive_buffer: 4KiB"
#define UDP(port) "type: udp, bind: \"127.0.0.1:" port "\", " SMALL

START_TEST(needs)
{
	ck_assert_uint_eq(needed(UDP("8125"), "", true), children);
	ck_assert_uint_eq(needed(UDP("8125"), "", false), 0);
	ck_assert_uint_eq(needed(UDP("1"), "", false), CAPABILITY(CAP_NET_BIND_SERVICE));
	ck_assert_uint_eq(needed("type: tcp, bind: [\":8125\", \"[::1]:1\"], " SMALL, "", false),
			  CAPABILITY(CAP_NET_BIND_SERVICE));
	ck_assert_uint_eq(needed("type: udp, bind: \":8125\", receive_buffer: 1GiB", "", false),
			  CAPABILITY(CAP_NET_ADMIN));
	ck_assert_uint_eq(needed(UDP("8125"), "control_group: daemon", false), CAPABILITY(CAP_CHOWN));
#ifdef MILLRACE_PCAP
	ck_assert_uint_eq(needed("type: capture, driver: pcap, interface: lo", "", false), CAPABILITY(CAP_NET_RAW));
#endif
#ifdef MILLRACE_DPDK
	ck_assert_uint_eq(needed("type: capture, port: net_null0", "", false) & CAPABILITY(CAP_IPC_LOCK),
			  CAPABILITY(CAP_IPC_LOCK));
#endif
}
END_TEST

START_TEST(files)
{
	char folder[] = "/tmp/millrace-test-XXXXXX", top[200], inputs[200];
	if (geteuid() != 0)
		return;
	ck_assert(mkdtemp(folder) && chown(folder, 1, 1) == 0);
	const char *options[] = {"pid_file", "control", "log"};
	for (size_t i = 0; i < ARRAY_LEN(options); i++) {
		snprintf(top, sizeof top, "%s: %s/x", options[i], folder);
		ck_assert_uint_eq(needed(UDP("8125"), top, false), CAPABILITY(CAP_DAC_OVERRIDE));
	}
	snprintf(inputs, sizeof inputs, "type: unix, bind: %s/x, " SMALL, folder);
	ck_assert_uint_eq(needed(inputs, "", false), CAPABILITY(CAP_DAC_OVERRIDE));
	snprintf(inputs, sizeof inputs, "type: file, path: %s/x", folder);
	ck_assert_uint_eq(needed(inputs, "", false), CAPABILITY(CAP_DAC_READ_SEARCH));
	ck_assert(chown(folder, 0, 0) == 0);
	ck_assert_uint_eq(needed(UDP("8125"), top, false), 0);
	ck_assert_uint_eq(needed(inputs, "", false), 0);
	ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

START_TEST(another_configuration)
{
	struct err err = {""};
	struct master m = {.capabilities = children};
	struct conf *same = load(UDP("8126"), ""), *low = load(UDP("1"), "user: daemon"),
		    *none = load(UDP("8125"), "user: none");
	if (geteuid() != 0)
		return;
	ck_assert_int_eq(rights_check(same, m.capabilities, &err), 0);
	ck_assert_int_eq(rights_check(low, m.capabilities, &err), -EPERM);
	ck_assert_str_eq(
	    err.text, "This configuration needs capabilities that were given up at the start (cap_net_bind_service): "
		      "restart millrace.");
	m.capabilities |= CAPABILITY(CAP_NET_BIND_SERVICE);
	ck_assert_int_eq(rights_check(low, m.capabilities, &err), 0);
	ck_assert_int_eq(rights_check(none, m.capabilities, &err), -ENOENT);
	conf_free(same);
	conf_free(low);
	conf_free(none);
}
END_TEST

START_TEST(who)
{
	struct identity id;
	struct err err = {""};
	struct conf *udp = load(UDP("8125"), ""), *file = load("type: file, path: /dev/null", "");
	ck_assert_int_eq(rights_find(udp, &id, &err), 0);
	ck_assert_uint_eq(id.uid, geteuid() == 0 ? 65534 : geteuid());
	ck_assert_int_eq(rights_find(file, &id, &err), 0);
	ck_assert_uint_eq(id.uid, geteuid());
	conf_free(udp);
	conf_free(file);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rights");
	TCase *tc = tcase_create("all");
	tcase_add_test(tc, needs);
	tcase_add_test(tc, files);
	tcase_add_test(tc, another_configuration);
	tcase_add_test(tc, who);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
