/* SPDX-License-Identifier: MIT
 *
 * test_conf: configuration files. tests/data/conf/errors holds files with what is wrong in them, and behind "#=" in the
 * same file every error that must be reported, as it must be reported; tests/data/conf/good likewise with warnings.
 */
#include "suite.h"
#include "rows.h"

#include <conf.h>
#include <dirent.h>
#include <errno.h>
#include <string.h>

#ifndef TEST_DATA
#define TEST_DATA "tests/data"
#endif

/* -- files -- */

static char *read_whole(const char *path, size_t *len)
{
	FILE *f = fopen(path, "rb");
	ck_assert_msg(f, "%s: %s", path, strerror(errno));
	char *bytes = calloc(1, 1 << 20);
	*len = fread(bytes, 1, (1 << 20) - 1, f);
	fclose(f);
	return bytes;
}

/* Every key of the top level, as an error lists them. */
static void add_top_keys(struct text *t)
{
	for (size_t i = 0, n = 0; i < CONF_ROWS; i++)
		if (conf_rows[i].scope == CONF_SCOPE_TOP)
			text_add(t, "%s%s", n++ ? ", " : "", conf_rows[i].name);
}

/* The lines behind "#=", each with `name` before it; "@TOP" stands for the keys of the top level. */
static void add_expected(struct text *t, const char *bytes, const char *name)
{
	for (const char *p = strstr(bytes, "#="); p; p = strstr(p + 1, "\n#=")) {
		p += *p == '\n';
		int len = (int)strcspn(p + 2, "\n");
		const char *keys = memmem(p + 2, (size_t)len, "@TOP", 4);
		text_add(t, "%s:%.*s", name, keys ? (int)(keys - p - 2) : len, p + 2);
		if (keys)
			add_top_keys(t);
		text_add(t, "\n");
	}
}

typedef void on_file_fn(const char *path, const char *name, const char *bytes, size_t len);

static void each_file(const char *folder, on_file_fn *f)
{
	char path[1024], dir[512];
	struct dirent **names;
	snprintf(dir, sizeof(dir), "%s/conf/%s", TEST_DATA, folder);
	int n = scandir(dir, &names, NULL, alphasort);
	size_t done = 0, len;
	for (int i = 0; i < n; i++) {
		if (strstr(names[i]->d_name, ".yaml")) {
			snprintf(path, sizeof(path), "%s/%s", dir, names[i]->d_name);
			char *bytes = read_whole(path, &len);
			f(path, names[i]->d_name, bytes, len);
			free(bytes);
			done++;
		}
		free(names[i]);
	}
	free(names);
	ck_assert_msg(done > 2, "no files in %s", dir);
}

#ifdef MILLRACE_KAFKA
#define NOT_THIS_BUILD "kafka_absent.yaml"
#else
#define NOT_THIS_BUILD "kafka.yaml"
#endif

static void check_errors(const char *path, const char *name, const char *bytes, size_t len)
{
	if (strcmp(name, NOT_THIS_BUILD) == 0)
		return;
	struct conf_errors errors;
	struct text expected = {0};
	struct conf_args args = {.path = path};
	size_t lines = 0;
	add_expected(&expected, bytes, name);
	ck_assert_ptr_null(conf_load_bytes(name, bytes, len, NULL, &errors));
	ck_assert_str_eq(errors.text.s, expected.s);
	for (const char *p = errors.text.s; *p; p++)
		lines += *p == '\n';
	ck_assert_uint_eq(errors.n, lines);
	text_free(&errors.text);
	ck_assert_ptr_null(conf_load(&args, &errors)); /* the same by way of the file */
	ck_assert_uint_eq(errors.n, lines);
	text_free(&errors.text);
	text_free(&expected);
}

START_TEST(errors_of_files)
{
	each_file("errors", check_errors);
}
END_TEST

static struct conf *load_text(const char *text)
{
	struct conf_errors errors;
	struct conf *cf = conf_load_bytes("text", text, strlen(text), NULL, &errors);
	ck_assert_msg(cf, "%s", errors.text.s ? errors.text.s : "");
	ck_assert_uint_eq(errors.n, 0);
	return cf;
}

/* What a tree is dumped as loads to a tree that is dumped as the same. */
static void check_round_trip(const struct conf *cf)
{
	struct text first = {0}, second = {0};
	conf_dump(cf, &first);
	struct conf *again = load_text(first.s);
	conf_dump(again, &second);
	ck_assert_str_eq(first.s, second.s);
	ck_assert_uint_eq(cf->n_inputs, again->n_inputs);
	ck_assert_uint_eq(cf->n_outputs, again->n_outputs);
	for (size_t i = 0; i < cf->n_outputs; i++) {
		const struct conf_output *a = &cf->outputs[i], *b = &again->outputs[i];
		ck_assert_uint_eq(a->n_backends, b->n_backends);
		ck_assert_uint_eq(a->n_shards, b->n_shards);
		ck_assert(!a->n_shards || memcmp(a->shards, b->shards, a->n_shards * sizeof(*a->shards)) == 0);
		ck_assert_uint_eq(a->n_inputs, b->n_inputs);
	}
	conf_free(again);
	text_free(&first);
	text_free(&second);
}

static void check_good(const char *path, const char *name, const char *bytes, size_t len)
{
	struct conf_errors errors;
	struct text expected = {0}, warnings = {0};
	(void)path;
	struct conf *cf = conf_load_bytes(name, bytes, len, NULL, &errors);
	ck_assert_msg(cf, "%s", errors.text.s ? errors.text.s : "");
	ck_assert_str_eq(cf->path, name);
	add_expected(&expected, bytes, name);
	conf_warnings(cf, &warnings);
	ck_assert_str_eq(warnings.s ? warnings.s : "", expected.s ? expected.s : "");
	check_round_trip(cf);
	conf_free(cf);
	text_free(&expected);
	text_free(&warnings);
}

START_TEST(good_files)
{
	each_file("good", check_good);
}
END_TEST

static struct conf *load_good(const char *name)
{
	char path[1024];
	size_t len;
	struct conf_errors errors;
	snprintf(path, sizeof(path), "%s/conf/good/%s", TEST_DATA, name);
	char *bytes = read_whole(path, &len);
	struct conf *cf = conf_load_bytes(name, bytes, len, NULL, &errors);
	free(bytes);
	ck_assert_ptr_nonnull(cf);
	return cf;
}

START_TEST(native_tree)
{
	struct conf *cf = load_good("native.yaml");
	const struct conf_output *shards = &cf->outputs[0], *raw = &cf->outputs[1];
	char buf[300];
	ck_assert_uint_eq(cf->workers, 4);
	ck_assert(!cf->is_statsrelay);
	ck_assert_int_eq(cf->log_level, CONF_LOG_LEVEL_WARN);
	ck_assert_uint_eq(cf->n_inputs, 4);
	ck_assert_int_eq(cf->inputs[0].type, CONF_INPUT_TYPE_UDP);
	ck_assert_uint_eq(cf->inputs[0].receive_buffer, 32 * MIB);
	ck_assert_uint_eq(cf->inputs[0].latency, 20000);
	ck_assert_uint_eq(cf->inputs[0].n_outputs, 2);
	ck_assert_ptr_eq(cf->inputs[0].outputs[1], raw);
	ck_assert_int_eq(cf->inputs[0].to.lines[0], 11);
	ck_assert_uint_eq(cf->inputs[1].bind.n, 3);
	ck_assert_uint_eq(cf->inputs[1].idle_timeout, 90000000);
	ck_assert_uint_eq(cf->inputs[3].latency, 500); /* from its former name */
	ck_assert_str_eq(cf->inputs[2].mode, "0600");
	ck_assert_uint_eq(shards->n_backends, 4);
	ck_assert_uint_eq(shards->n_inputs, 4);
	ck_assert_ptr_null(shards->shards);
	ck_assert_str_eq(shards->backends[1].host, "statsite.example");
	ck_assert_int_eq(shards->backends[1].transport, CONF_TRANSPORT_UDP);
	ck_assert_str_eq(conf_backend_address(&shards->backends[2], buf, sizeof(buf)), "[2001:db8::3]:8125");
	ck_assert(shards->backends[2].weight > 2.4 && shards->backends[3].weight < 0.1);
	ck_assert_str_eq(shards->backends[3].name, "four");
	ck_assert_uint_eq(raw->n_backends, 2);
	ck_assert_uint_eq(raw->n_shards, 4);
	ck_assert(raw->shards[0] == 0 && raw->shards[1] == 1 && raw->shards[2] == 0 && raw->shards[3] == 0);
	conf_free(cf);
}
END_TEST

START_TEST(statsrelay_tree)
{
	struct conf *cf = load_good("statsrelay.yaml");
	const struct conf_output *statsd = &cf->outputs[0], *carbon = &cf->outputs[1];
	static const char *const names[] = {"statsd_udp", "statsd_tcp", "carbon_udp", "carbon_tcp"};
	ck_assert(cf->is_statsrelay);
	ck_assert_uint_eq(cf->n_inputs, 4);
	for (size_t i = 0; i < 4; i++)
		ck_assert_str_eq(cf->inputs[i].name, names[i]);
	ck_assert_str_eq(cf->inputs[0].bind.items[0], "[::1]:8125");
	ck_assert_int_eq(cf->inputs[1].type, CONF_INPUT_TYPE_TCP);
	ck_assert(cf->inputs[0].validate && !cf->inputs[2].validate);
	ck_assert_int_eq(cf->inputs[3].protocol, CONF_PROTOCOL_CARBON);
	ck_assert_ptr_eq(cf->inputs[3].outputs[0], carbon);
	ck_assert_str_eq(statsd->name, "statsd");
	ck_assert_int_eq(statsd->hash, CONF_HASH_MODULO);
	ck_assert_int_eq(statsd->overflow, CONF_OVERFLOW_DROP_NEWEST);
	ck_assert_uint_eq(statsd->queue_limit, 128 * MIB);
	ck_assert_uint_eq(statsd->n_backends, 2);
	ck_assert(statsd->shards[0] == 0 && statsd->shards[1] == 0 && statsd->shards[2] == 1 && statsd->shards[3] == 0);
	ck_assert_uint_eq(cf->inputs[0].latency, 20000);
	ck_assert_uint_eq(cf->inputs[2].latency, 0); /* tcp_cork: false */
	ck_assert_uint_eq(carbon->n_backends, 3);
	ck_assert_int_eq(carbon->backends[1].transport, CONF_TRANSPORT_UDP);
	conf_free(cf);
	cf = load_good("statsrelay_bare.yaml");
	ck_assert_str_eq(cf->inputs[0].bind.items[0], "127.0.0.1:8125");
	conf_free(cf);
	cf = load_text("carbon: { shard_map: { 0: a:1 } }\nworkers: 3\n");
	ck_assert_str_eq(cf->inputs[0].bind.items[0], "127.0.0.1:2003");
	ck_assert_uint_eq(cf->workers, 3);
	conf_free(cf);
}
END_TEST

START_TEST(overflow_auto)
{
	struct conf *cf = load_text("inputs:\n"
				    "  a: { type: udp, bind: ':1', to: [one] }\n"
				    "  b: { type: udp, bind: ':2', to: [two, three] }\n"
				    "  c: { type: udp, bind: ':3', to: [four] }\n"
				    "  d: { type: udp, bind: ':4', to: [one, five] }\n"
				    "  e: { type: udp, bind: ':5', to: six }\n"
				    "outputs:\n"
				    "  one: { type: statsite, backends: 'a:1' }\n"
				    "  two: { type: statsite, backends: 'a:1' }\n"
				    "  three: { type: statsite, backends: 'a:1', overflow: drop_oldest }\n"
				    "  four: { type: statsite, backends: ['a:1', 'b:1'] }\n"
				    "  five: { type: statsite, backends: 'a:1', overflow: block }\n"
				    "  six: { type: statsite, backends: 'a:1' }\n");
	static const enum conf_words expected[] = {CONF_OVERFLOW_DROP_NEWEST, CONF_OVERFLOW_DROP_NEWEST,
						   CONF_OVERFLOW_DROP_OLDEST, CONF_OVERFLOW_DROP_NEWEST,
						   CONF_OVERFLOW_BLOCK,       CONF_OVERFLOW_BLOCK};
	for (size_t i = 0; i < ARRAY_LEN(expected); i++)
		ck_assert_msg(conf_overflow(cf, &cf->outputs[i]) == expected[i], "%s", cf->outputs[i].name);
	conf_free(cf);
}
END_TEST

/* -- bytes -- */

static void expect_error(const char *bytes, size_t len, size_t n, const char *part)
{
	struct conf_errors errors;
	ck_assert_ptr_null(conf_load_bytes("f", bytes, len, NULL, &errors));
	ck_assert_msg(errors.n == n, "%zu: %s", errors.n, errors.text.s);
	ck_assert_msg(strstr(errors.text.s, part), "%s", errors.text.s);
	text_free(&errors.text);
}

START_TEST(odd_bytes)
{
	expect_error("", 0, 1, "f: is empty");
	expect_error(NULL, 0, 1, "f: is empty");
	expect_error("\n\n\x01", 3, 1, "f:3: is not YAML: control characters are not allowed");
	expect_error("\x7f"
		     "ELF\0\0",
		     6, 1, "f:1: is not YAML: ");
	expect_error("a: \xff\xfe", 5, 1, "f:1: is not YAML: ");
	expect_error("a\n: b: c", 8, 1, "f:2: is not YAML");
	expect_error("control: \"a\\0b\"", 15, 3, "f:1: a text with a NUL byte in it");
	expect_error("~", 1, 1, "f: is empty");
	expect_error("text", 4, 1, "f:1: is no map of options");
	expect_error("\"a\\nb\": 1\ninputs: ~\noutputs: ~\n", 31, 3, "f:1: a\\nb: is unknown; known here are workers");
	char *big = malloc(CONF_FILE_MAX_BYTES + 1);
	memset(big, '#', CONF_FILE_MAX_BYTES + 1);
	expect_error(big, CONF_FILE_MAX_BYTES + 1, 1, "f: is longer than 64 MiB");
	memset(big, '[', 100000);
	expect_error(big, 100000, 1, "f:1: is nested too deep");
	free(big);
}
END_TEST

/* 100 errors are 100 lines, in order, and beyond CONF_ERRORS_MAX they are counted. */
START_TEST(many_errors)
{
	struct conf_errors errors;
	for (size_t n = 100; n <= 2 * CONF_ERRORS_MAX; n += 2 * CONF_ERRORS_MAX - 100) {
		struct text t = {0};
		text_add(&t, "inputs: { a: { type: udp, bind: ':1', to: o } }\noutputs: { o: { type: statsite, "
			     "backends: a:1 } }\n");
		for (size_t i = 0; i < n; i++)
			text_add(&t, "wrong_%zu: 1\n", i);
		ck_assert_ptr_null(conf_load_bytes("f", t.s, t.len, NULL, &errors));
		ck_assert_uint_eq(errors.n, n);
		const char *line = errors.text.s;
		for (size_t i = 0; i < MIN(n, CONF_ERRORS_MAX); i++) {
			char start[64];
			snprintf(start, sizeof(start), "f:%zu: wrong_%zu: ", i + 3, i);
			ck_assert_msg(strncmp(line, start, strlen(start)) == 0, "%.80s", line);
			line = strchr(line, '\n') + 1;
		}
		ck_assert_str_eq(line, n > CONF_ERRORS_MAX ? "f: 1000 further errors are not shown\n" : "");
		text_free(&errors.text);
		text_free(&t);
	}
}
END_TEST

START_TEST(files_that_cannot_be_read)
{
	static const struct {
		const char *path, *error;
	} rows[] = {
		{"/nonexistent.yaml",
		 "/nonexistent.yaml: cannot be read: No such file or directory; give a readable YAML file\n"},
		{"/", "/: cannot be read: Is a directory; give a readable YAML file\n"},
		{"/dev/null", "/dev/null: is empty; it must name at least one input and one output\n"},
		{"/proc/self/mem", "/proc/self/mem: cannot be read: Input/output error; give a readable YAML file\n"},
		{"/dev/zero", "/dev/zero: is longer than 64 MiB; that is no configuration\n"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf_args args = {.path = rows[i].path};
		struct conf_errors errors;
		ck_assert_ptr_null(conf_load(&args, &errors));
		ck_assert_str_eq(errors.text.s, rows[i].error);
		ck_assert_uint_eq(errors.n, 1);
		text_free(&errors.text);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("conf");
	TCase *tc = tcase_create("files");
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, errors_of_files);
	tcase_add_test(tc, good_files);
	tcase_add_test(tc, native_tree);
	tcase_add_test(tc, statsrelay_tree);
	tcase_add_test(tc, overflow_auto);
	tcase_add_test(tc, odd_bytes);
	tcase_add_test(tc, many_errors);
	tcase_add_test(tc, files_that_cannot_be_read);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
