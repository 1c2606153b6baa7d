/* SPDX-License-Identifier: MIT
 *
 * test_conf_limits: as much as there may be, and one more; and a configuration for which memory does not suffice: mem.c
 * is included, so that the nth allocation of conf fails, for every n until there is none to fail.
 */
#include "suite.h"

#include <conf.h>
#include <string.h>

static long fail_at = -1; /* the allocation that fails, counted from 0; -1: none */

static bool fails_now(void)
{
	return fail_at >= 0 && fail_at-- == 0;
}

static void *test_calloc(size_t n, size_t size)
{
	return fails_now() ? NULL : calloc(n, size);
}

static void *test_malloc(size_t size)
{
	return fails_now() ? NULL : malloc(size);
}

static void *test_realloc(void *p, size_t size)
{
	return fails_now() ? NULL : realloc(p, size);
}

#define calloc test_calloc
#define malloc test_malloc
#define realloc test_realloc
#include "../../src/conf/mem.c"
#undef calloc
#undef malloc
#undef realloc

#ifndef TEST_DATA
#define TEST_DATA "tests/data"
#endif

#define HEAD "inputs: { a: { type: udp, bind: ':1', to: o } }\noutputs: { o: { type: statsite, "

static void expect_text_error(struct text *t, const char *error)
{
	struct conf_errors errors;
	ck_assert(!t->failed);
	ck_assert_ptr_null(conf_load_bytes("f", t->s, t->len, NULL, &errors));
	ck_assert_msg(errors.n == 1, "%.2000s", errors.text.s);
	ck_assert_msg(strstr(errors.text.s, error) == errors.text.s, "%.2000s", errors.text.s);
	text_free(&errors.text);
	text_free(t);
}

static struct conf *load_text(struct text *t)
{
	struct conf_errors errors;
	struct conf *cf = conf_load_bytes("text", t->s, t->len, NULL, &errors);
	ck_assert_msg(cf, "%.2000s", errors.text.s ? errors.text.s : "");
	text_free(t);
	return cf;
}

START_TEST(too_many_inputs)
{
	struct text t = {0};
	text_add(&t, "inputs:\n");
	for (int i = 0; i < CONF_INPUTS_MAX + 1; i++)
		text_add(&t, "  i%d: { type: udp, bind: ':%d', to: o }\n", i, i + 1);
	text_add(&t, "outputs: { o: { type: statsite, backends: a:1 } }\n");
	expect_text_error(&t, "f:66: inputs: are 65; allowed are at most 64");
}
END_TEST

START_TEST(too_many_in_lists)
{
	struct text t = {0};
	text_add(&t, "inputs: { a: { type: udp, to: o, bind: [");
	for (int i = 0; i < CONF_LIST_MAX + 1; i++)
		text_add(&t, "':%d',", i + 1);
	text_add(&t, "] } }\noutputs: { o: { type: statsite, backends: a:1 } }\n");
	expect_text_error(&t, "f:1: inputs.a.bind: has 1025 entries; allowed are at most 1024");
	text_add(&t, HEAD "shard_map: {");
	for (int i = 0; i < CONF_SHARDS_MAX + 1; i++)
		text_add(&t, "%d: 'h:%d',\n", i, i % 100 + 1);
	text_add(&t, "} } }\n");
	expect_text_error(&t, "f:2: outputs.o.shard_map: has 65537 entries; allowed are at most 65536");
	text_add(&t, HEAD "backends: [");
	for (int i = 0; i < CONF_SHARDS_MAX + 1; i++)
		text_add(&t, "'h:1',");
	text_add(&t, "] } }\n");
	expect_text_error(&t, "f:2: outputs.o.backends: has 65537 entries; allowed are at most 65536");
}
END_TEST

START_TEST(too_many_nodes)
{
	struct text t = {0};
	text_add(&t, "x: [");
	for (int i = 0; i < 1000001; i++)
		text_add(&t, "a,");
	expect_text_error(&t, "f:1: has more than 1000000 values");
	text_add(&t, "x:\n");
	for (int i = 0; i < 1001; i++)
		text_add(&t, "- &a%d a\n", i);
	expect_text_error(&t, "f:1002: has more than 1000 anchors");
}
END_TEST

/* 10,000 are allowed, and shards that name them again. */
START_TEST(most_backends)
{
	struct text t = {0};
	text_add(&t, HEAD "hash: modulo, backends: [");
	for (int i = 0; i < 2 * CONF_BACKENDS_MAX; i++)
		text_add(&t, "'h:%d',\n", i % CONF_BACKENDS_MAX + 1);
	text_add(&t, "] } }\n");
	struct conf *cf = load_text(&t);
	ck_assert_uint_eq(cf->outputs[0].n_backends, CONF_BACKENDS_MAX);
	ck_assert_uint_eq(cf->outputs[0].n_shards, 2 * CONF_BACKENDS_MAX);
	conf_free(cf);
	for (int hash = 0; hash < 2; hash++) {
		text_add(&t, HEAD "hash: %s, backends: [", hash ? "modulo" : "rendezvous");
		for (int i = 0; i < CONF_BACKENDS_MAX + 2; i++)
			text_add(&t, "'h:%d',\n", i + 1);
		text_add(&t, "] } }\n");
		expect_text_error(&t, "f:10002: outputs.o.backends: are too many backends; allowed are at most 10000");
	}
}
END_TEST

/* As many shards as there may be, naming few backends: quick, each backend once, in the order of the numbers. */
START_TEST(most_shards)
{
	struct text t = {0};
	text_add(&t, HEAD "shard_map: {");
	for (int i = CONF_SHARDS_MAX - 1; i >= 0; i--)
		text_add(&t, "%d: 'h:%d',\n", i, i % 1000 + 1);
	text_add(&t, "} } }\n");
	struct conf *cf = load_text(&t);
	const struct conf_output *out = &cf->outputs[0];
	ck_assert_uint_eq(out->n_backends, 1000);
	ck_assert_uint_eq(out->n_shards, CONF_SHARDS_MAX);
	for (size_t i = 0; i < out->n_shards; i++)
		ck_assert_uint_eq(out->shards[i], i % 1000);
	conf_free(cf);
}
END_TEST

/* -- the nth allocation fails: an error that says so, nothing leaks, nothing crashes -- */

static void walk_file(const char *name)
{
	char path[1024];
	static char bytes[1 << 16];
	snprintf(path, sizeof(path), "%s/conf/%s", TEST_DATA, name);
	FILE *f = fopen(path, "rb");
	ck_assert_ptr_nonnull(f);
	size_t len = fread(bytes, 1, sizeof(bytes), f);
	fclose(f);
	bool was_clean = false;
	for (long n = 0; !was_clean; n++) {
		struct conf_errors errors;
		fail_at = n;
		struct conf *cf = conf_load_bytes(name, bytes, len, NULL, &errors);
		was_clean = fail_at >= 0; /* the nth allocation did not come */
		fail_at = -1;
		if (!was_clean) {
			ck_assert_msg(!cf, "%s: allocation %ld failed unnoticed", name, n);
			ck_assert_msg(strstr(errors.text.s, "not enough memory"), "%s: %ld: %s", name, n,
				      errors.text.s);
		}
		conf_free(cf);
		text_free(&errors.text);
	}
}

START_TEST(failures_in_files)
{
	static const char *const names[] = {
		"good/native.yaml",
		"good/statsrelay.yaml",
		"good/warnings.yaml",
		"errors/options.yaml",
		"errors/addresses.yaml",
		"errors/backends.yaml",
		"errors/shards.yaml",
		"errors/links.yaml",
		"errors/types.yaml",
		"errors/statsrelay.yaml",
		"errors/statsrelay_mixed.yaml",
		"errors/cycle.yaml",
	};
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		walk_file(names[i]);
}
END_TEST

/* Flags, then a tree of nothing but flags. */
START_TEST(failures_in_flags)
{
	char *words[] = {"millrace",  "--listen", "udp://:8125", "--listen", "unix:///tmp/x", "--backend", "a:1",
			 "--workers", "2",        "--workers",   "3",        "--control",     "/run/ctl",  "-v",
			 "--rcvbuf",  "1M",       NULL};
	bool was_clean = false;
	for (long n = 0; !was_clean; n++) {
		char *argv[ARRAY_LEN(words)];
		struct conf_args args;
		struct conf_errors errors = {0};
		struct err err;
		struct conf *cf = NULL;
		memcpy(argv, words, sizeof(words));
		fail_at = n;
		int rc = conf_args_parse(&args, ARRAY_LEN(words) - 1, argv, &err);
		if (rc == 0)
			cf = conf_load(&args, &errors);
		was_clean = fail_at >= 0;
		fail_at = -1;
		ck_assert_msg(was_clean == !!cf, "%ld", n);
		if (!was_clean)
			ck_assert_msg(strstr(rc == 0 ? errors.text.s : err.text, "not enough memory"), "%ld", n);
		conf_free(cf);
		text_free(&errors.text);
		conf_args_free(&args);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("conf_limits");
	TCase *tc = tcase_create("limits");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, too_many_inputs);
	tcase_add_test(tc, too_many_in_lists);
	tcase_add_test(tc, too_many_nodes);
	tcase_add_test(tc, most_backends);
	tcase_add_test(tc, most_shards);
	tcase_add_test(tc, failures_in_files);
	tcase_add_test(tc, failures_in_flags);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
