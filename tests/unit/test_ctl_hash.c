/* SPDX-License-Identifier: MIT
 *
 * test_ctl_hash: the commands of millracectl that need no daemon: hash and diff-map.
 */
#include "ctl_run.h"

static void file_write(const char *name, const char *text)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *f = fopen(path, "w");
	fputs(text, f);
	fclose(f);
}

/* Shards as statsrelay 1.6.8's stathasher prints them. */
START_TEST(test_hash)
{
	char line[128];
	file_write("one", "statsd:\n  bind: 127.0.0.1:8125\n  shard_map:\n    0: 127.0.0.1:9000\n    1: "
			  "127.0.0.1:9001\n"
			  "    2: 127.0.0.1:9002\n");
	file_write("two", "statsd:\n  bind: 127.0.0.1:8125\n  shard_map: {0: \"127.0.0.1:9000\"}\n"
			  "carbon:\n  bind: 127.0.0.1:2003\n  shard_map: {0: \"127.0.0.1:9000\", 1: "
			  "\"127.0.0.1:9001\"}\n");
	file_write("bad", "statsd: 7\n");
	snprintf(line, sizeof(line), "hash -c %s/one", folder);
	ck_assert_int_eq(run("abcde\n\napi.latency294.cache.mem918.mem322.cache260 tail\r\napi263.hits82.rx", line), 0);
	ck_assert_str_eq(out, "key=abcde statsd=127.0.0.1:9001 statsd_shard=1\n"
			      "key=api.latency294.cache.mem918.mem322.cache260 statsd=127.0.0.1:9000 statsd_shard=0\n"
			      "key=api263.hits82.rx statsd=127.0.0.1:9001 statsd_shard=1\n");
	snprintf(line, sizeof(line), "hash --config %s/two", folder);
	ck_assert_int_eq(run("abcde\n", line), 0);
	ck_assert_str_eq(out, "key=abcde carbon=127.0.0.1:9001 carbon_shard=1 statsd=127.0.0.1:9000 statsd_shard=0\n");
	snprintf(line, sizeof(line), "hash -c %s/bad", folder);
	ck_assert_int_eq(run("abcde\n", line), 1);
	assert_contains("bad:1: ");
	ck_assert_int_eq(run("", "hash -c"), 2);
	ck_assert_int_eq(run("", "hash -d file"), 2);
}
END_TEST

static const char millrace_yaml[] = "inputs:\n  in: {type: udp, bind: \"127.0.0.1:8125\", to: [%s]}\noutputs:\n%s";

START_TEST(test_hash_outputs)
{
	char line[128], text[1024];
	snprintf(text, sizeof(text), millrace_yaml, "a, b",
		 "  a: {type: statsite, backends: [\"h1:1\", \"h2:1\"]}\n"
		 "  b: {type: statsite, hash: modulo, backends: [\"h3:1:udp\"]}\n");
	file_write("several", text);
	snprintf(line, sizeof(line), "hash -c %s/several", folder);
	ck_assert_int_eq(run("abcde\n", line), 0);
	assert_contains("key=abcde output=a statsd=h");
	assert_contains(" statsd_shard=26925 output=b statsd=h3:1:udp statsd_shard=0\n"); /* 1764605401 >> 16 */
	snprintf(line, sizeof(line), "diff-map %s/several %s/several", folder, folder);
	ck_assert_int_eq(run("a\n", line), 2);
	assert_contains("--output NAME");
	snprintf(line, sizeof(line), "diff-map %s/several %s/several --output a", folder, folder);
	ck_assert_int_eq(run("a\nb\n", line), 0);
	ck_assert_str_eq(out, "0 of 2 keys move (0.00 %)\n");
	snprintf(line, sizeof(line), "diff-map %s/several %s/several --output z", folder, folder);
	ck_assert_int_eq(run("", line), 2);
	assert_contains("no output z with backends");
}
END_TEST

START_TEST(test_diff_map)
{
	char line[160], text[1024];
	unsigned moved, of;
	for (int n = 3; n <= 4; n++) {
		char name[8];
		snprintf(text, sizeof(text), millrace_yaml, "o",
			 n == 3 ? "  o: {type: statsite, backends: [\"h1:1\", \"h2:1\", \"h3:1\"]}\n"
				: "  o: {type: statsite, backends: [\"h4:1\", \"h3:1\", \"h2:1\", \"h1:1\"]}\n");
		snprintf(name, sizeof(name), "of%d", n);
		file_write(name, text);
	}
	snprintf(line, sizeof(line), "diff-map %s/of3 %s/of4 --keys 20000", folder, folder);
	ck_assert_int_eq(run("", line), 0);
	ck_assert_int_eq(sscanf(out, "%u of %u keys move", &moved, &of), 2);
	ck_assert_uint_eq(of, 20000);
	ck_assert_msg(moved > 4600 && moved < 5400, "%u of 20000 moved", moved); /* a quarter, 5 sigma */
	assert_contains("from  to    keys   share\n");
	assert_contains("h1:1  h4:1  ");
	ck_assert_ptr_null(strstr(out, "h1:1  h2:1")); /* consistent: only to the new one */
	snprintf(line, sizeof(line), "diff-map %s/of3 %s/none", folder, folder);
	ck_assert_int_eq(run("", line), 1);
	snprintf(line, sizeof(line), "diff-map %s/of3", folder);
	ck_assert_int_eq(run("", line), 2);
	snprintf(line, sizeof(line), "diff-map %s/of3 %s/of4 --keys 0", folder, folder);
	ck_assert_int_eq(run("", line), 2);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("ctl_hash");
	TCase *tc = tcase_create("hash");
	tcase_add_checked_fixture(tc, folder_make, folder_remove);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, test_hash);
	tcase_add_test(tc, test_hash_outputs);
	tcase_add_test(tc, test_diff_map);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
