/* SPDX-License-Identifier: MIT
 *
 * test_conf_args: the command line, what it does to a file, and the texts that are made of the tables: --help, the
 * sample, the list of the man page.
 */
#include "suite.h"

#include <conf.h>
#include <errno.h>
#include <string.h>

enum { WORDS = 24 };

static int parse(struct conf_args *args, const char *line, struct err *err)
{
	static char words[1024];
	static char *argv[WORDS + 1];
	int argc = 0;
	snprintf(words, sizeof(words), "millrace %s", line);
	for (char *word = strtok(words, " "); word && argc < WORDS; word = strtok(NULL, " "))
		argv[argc++] = word;
	argv[argc] = NULL;
	return conf_args_parse(args, argc, argv, err);
}

static const char *top_value(const struct conf_args *args, const char *key)
{
	for (size_t i = 0; i < args->top.n; i++)
		if (strcmp(args->top.keys[i], key) == 0)
			return args->top.values[i];
	return "";
}

START_TEST(flags)
{
	static const struct {
		const char *line;
		enum conf_action action;
		const char *path, *key, *value;
	} rows[] = {
		{"", CONF_ACTION_RUN, NULL, "workers", ""},
		{"-c a.yaml", CONF_ACTION_RUN, "a.yaml", "workers", ""},
		{"-ca.yaml -t", CONF_ACTION_CHECK, "a.yaml", "workers", ""},
		{"--config=a.yaml --check-config", CONF_ACTION_CHECK, "a.yaml", "workers", ""},
		{"-t a.yaml", CONF_ACTION_CHECK, "a.yaml", "workers", ""}, /* statsrelay's form */
		{"-ta.yaml", CONF_ACTION_CHECK, "a.yaml", "workers", ""},
		{"--check-config=a.yaml", CONF_ACTION_CHECK, "a.yaml", "workers", ""},
		{"--check-config a.yaml", CONF_ACTION_CHECK, "a.yaml", "workers", ""},
		{"--dump -c a.yaml", CONF_ACTION_DUMP, "a.yaml", "workers", ""},
		{"-h --nonsense", CONF_ACTION_HELP, NULL, "workers", ""},
		{"--help", CONF_ACTION_HELP, NULL, "workers", ""},
		{"--version", CONF_ACTION_VERSION, NULL, "workers", ""},
		{"--workers 3", CONF_ACTION_RUN, NULL, "workers", "3"},
		{"--workers=3 --fork-count 4", CONF_ACTION_RUN, NULL, "workers", "4"},
		{"-v", CONF_ACTION_RUN, NULL, "log_level", "debug"},
		{"--verbose", CONF_ACTION_RUN, NULL, "log_level", "debug"},
		{"-l WARN -v", CONF_ACTION_RUN, NULL, "log_level", "WARN"},
		{"-v --log-level error", CONF_ACTION_RUN, NULL, "log_level", "error"},
		{"--syslog", CONF_ACTION_RUN, NULL, "syslog", "true"},
		{"--syslog=no", CONF_ACTION_RUN, NULL, "syslog", "no"},
		{"--per-second-stats", CONF_ACTION_RUN, NULL, "per_second_stats", "true"},
		{"--control /run/ctl", CONF_ACTION_RUN, NULL, "control", "/run/ctl"},
		{"--drain-timeout 3s", CONF_ACTION_RUN, NULL, "drain_timeout", "3s"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf_args args;
		struct err err;
		ck_assert_msg(parse(&args, rows[i].line, &err) == 0, "%s: %s", rows[i].line, err.text);
		ck_assert_msg(args.action == rows[i].action, "%s", rows[i].line);
		ck_assert_msg(!args.path == !rows[i].path, "%s", rows[i].line);
		if (args.path)
			ck_assert_str_eq(args.path, rows[i].path);
		ck_assert_str_eq(top_value(&args, rows[i].key), rows[i].value);
		conf_args_free(&args);
	}
}
END_TEST

START_TEST(bad_flags)
{
	static const struct {
		const char *line, *error;
	} rows[] = {
		{"-x", "-x is no flag; --help lists them"},
		{"--nonsense", "--nonsense is no flag; --help lists them"},
		{"--c", "--c is no flag; --help lists them"}, /* of several */
		{"-c", "--config needs a value: --config FILE"},
		{"--workers", "--workers needs a value: --workers N"},
		{"--dump=x", "--dump takes no value"},
		{"a.yaml", "\"a.yaml\" is no flag; a file is given with -c FILE, and --help lists the flags"},
		{"-t a.yaml b.yaml", "\"a.yaml\" is no flag; a file is given with -c FILE, and --help lists the flags"},
		{"-c a -c b", "two configuration files are given; allowed is one"},
		{"-tc a.yaml", "\"a.yaml\" is no flag; a file is given with -c FILE, and --help lists the flags"},
		{"--workers 257", "--workers: \"257\" is out of range; allowed is a whole number from 0 to 256"},
		{"--fork-count x", "--fork-count: \"x\" is not understood; allowed is a whole number from 0 to 256"},
		{"-l loud", "--log-level: \"loud\" is not understood; allowed is one of error, warn, info, debug"},
		{"--syslog=1x", "--syslog: \"1x\" is not understood; allowed is true or false"},
		{"--rcvbuf 1", "--rcvbuf: \"1\" is out of range; allowed is auto or a size from 4KiB to 1GiB"},
		{"--listen x",
		 "--listen: \"x\" is no URL to read from; allowed is TYPE://ADDRESS with one of udp, tcp, unix, "
		 "unixgram"},
		{"--listen http://x",
		 "--listen: \"http://x\" is no URL to read from; allowed is TYPE://ADDRESS with one of "
		 "udp, tcp, unix, unixgram"},
		{"--listen udp://10.0.0.1:8125/tcp", "--listen: \"10.0.0.1:8125/tcp\" has a / behind the port; allowed is "
						     "HOST:PORT, [IPV6]:PORT or :PORT"},
		{"--backend tcp://10.0.0.1:1", "--backend: \"tcp://10.0.0.1:1\" has a scheme before the host; allowed is "
					       "HOST:PORT or [IPV6]:PORT, with :tcp or :udp behind"},
		{"--backend [fe80::1]:1", "--backend: \"[fe80::1]:1\" has a link-local address without its interface, "
					  "as in [fe80::1%eth0]; allowed is "
					  "HOST:PORT or [IPV6]:PORT, with :tcp or :udp behind"},
		{"--backend [fe80::1%]:1", "--backend: \"[fe80::1%]:1\" has no interface behind the %; allowed is "
					   "HOST:PORT or [IPV6]:PORT, with :tcp or :udp behind"},
		{"--listen udp://x", "--listen: \"x\" has no port; allowed is HOST:PORT, [IPV6]:PORT or :PORT"},
		{"--listen unix://", "--listen: \"unix://\" is empty; allowed is the path of a socket file"},
		{"--backend :1",
		 "--backend: \":1\" has no host; allowed is HOST:PORT or [IPV6]:PORT, with :tcp or :udp behind"},
		{"-c f --listen udp://:1",
		 "--listen, --capture, --backend and --kafka are for a start without a file; write them into f, or leave "
		 "out the file"},
		{"-c f --backend a:1",
		 "--listen, --capture, --backend and --kafka are for a start without a file; write them into f, or leave "
		 "out the file"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf_args args;
		struct err err;
		ck_assert_int_eq(parse(&args, rows[i].line, &err), -EINVAL);
		ck_assert_str_eq(err.text, rows[i].error);
		ck_assert(!args.top.n && !args.listen.n && !args.backends.n);
	}
}
END_TEST

static struct conf *load_line(const char *line, const char *bytes)
{
	struct conf_args args;
	struct conf_errors errors;
	struct err err;
	ck_assert_msg(parse(&args, line, &err) == 0, "%s", err.text);
	struct conf *cf =
		bytes ? conf_load_bytes("f", bytes, strlen(bytes), &args, &errors) : conf_load(&args, &errors);
	ck_assert_msg(cf, "%s", errors.text.s);
	conf_args_free(&args);
	return cf;
}

START_TEST(without_a_file)
{
	struct conf *cf =
		load_line("--listen udp://127.0.0.1:8125 --listen tcp://127.0.0.1:8125 --listen udp://[::1]:8125 "
			  "--listen unix:///run/a --listen UNIXGRAM:///run/b --backend 127.0.0.1:9001 "
			  "--backend h:9002:udp --workers 2 --receive-buffer 1M",
			  NULL);
	static const char *const names[] = {"udp", "tcp", "unix", "unixgram"};
	ck_assert_uint_eq(cf->n_inputs, 4);
	for (size_t i = 0; i < 4; i++) {
		ck_assert_str_eq(cf->inputs[i].name, names[i]);
		ck_assert_uint_eq(cf->inputs[i].receive_buffer, MIB);
		ck_assert_str_eq(cf->inputs[i].outputs[0]->name, "backends");
	}
	ck_assert_uint_eq(cf->inputs[0].bind.n, 2);
	ck_assert_str_eq(cf->inputs[0].bind.items[1], "[::1]:8125");
	ck_assert_str_eq(cf->inputs[2].bind.items[0], "/run/a");
	ck_assert_uint_eq(cf->workers, 2);
	ck_assert_ptr_null(cf->path);
	ck_assert_uint_eq(cf->n_outputs, 1);
	ck_assert_int_eq(cf->outputs[0].type, CONF_OUTPUT_TYPE_STATSITE);
	ck_assert_uint_eq(cf->outputs[0].n_backends, 2);
	ck_assert_int_eq(cf->outputs[0].backends[1].transport, CONF_TRANSPORT_UDP);
	ck_assert_int_eq(conf_overflow(cf, &cf->outputs[0]), CONF_OVERFLOW_DROP_NEWEST);
	conf_free(cf);
}
END_TEST

START_TEST(without_a_file_wrong)
{
	static const struct {
		const char *line, *error;
	} rows[] = {
		{"",
		 "command line: no configuration; give a file with -c FILE, or --listen udp://HOST:PORT and --backend "
		 "HOST:PORT (see --help)\n"},
		{"--listen udp://:1",
		 "command line: --backend: is missing; --listen and --capture need at least one --backend HOST:PORT, "
		 "or --kafka BROKERS --topic TOPIC\n"},
		{"--listen udp://:1 --listen udp://:1 --backend a:1",
		 "command line: inputs.udp.bind: is the same address as another one; each is allowed once\n"},
		{"--listen udp://:1 --backend a:1 --backend a:1",
		 "command line: outputs.backends.backends: \"a:1\" is a duplicate name; allowed is each once, so leave "
		 "it out "
		 "or give it a name of its own\n"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf_args args;
		struct conf_errors errors;
		struct err err;
		ck_assert_int_eq(parse(&args, rows[i].line, &err), 0);
		ck_assert_ptr_null(conf_load(&args, &errors));
		ck_assert_str_eq(errors.text.s, rows[i].error);
		ck_assert_uint_eq(errors.n, 1);
		text_free(&errors.text);
		conf_args_free(&args);
	}
}
END_TEST

START_TEST(flags_override_the_file)
{
	static const char bytes[] = "workers: 7\nlog_level: error\n"
				    "inputs: { a: { type: udp, bind: ':1', to: o, receive_buffer: 8KiB } }\n"
				    "outputs: { o: { type: statsite, backends: a:1 } }\n";
	struct conf *cf = load_line("--workers 2 -v --rcvbuf 64k --control /run/ctl", bytes);
	ck_assert_uint_eq(cf->workers, 2);
	ck_assert_int_eq(cf->log_level, CONF_LOG_LEVEL_DEBUG);
	ck_assert_uint_eq(cf->inputs[0].receive_buffer, 65536);
	ck_assert_str_eq(cf->control, "/run/ctl");
	conf_free(cf);
}
END_TEST

/* Arguments that conf_args_parse did not make. */
START_TEST(bad_values_beside_a_file)
{
	static const char bytes[] = "inputs: { a: { type: udp, bind: ':1', to: o } }\n"
				    "outputs: { o: { type: statsite, backends: a:1 } }\n";
	char *key = "workers", *value = "many";
	int line = 0;
	struct conf_args args = {.top = {&key, &value, &line, 1}, .receive_buffer = "1"};
	struct conf_errors errors;
	ck_assert_ptr_null(conf_load_bytes("f", bytes, strlen(bytes), &args, &errors));
	ck_assert_str_eq(errors.text.s,
			 "f: --workers: \"many\" is not understood; allowed is a whole number from 0 to 256\n"
			 "f: --receive-buffer: \"1\" is out of range; allowed is auto or a size from 4KiB to 1GiB\n");
	text_free(&errors.text);
}
END_TEST

/* Where the monitor listens; port 0 is allowed here only. */
START_TEST(http_addresses)
{
	static const struct {
		const char *http, *host;
		int code;
		uint16_t port;
		bool may_lack;
	} rows[] = {
		{"auto", "127.0.0.1", 0, 8126, true},
		{"127.0.0.1:8126", "127.0.0.1", 0, 8126, false},
		{"[::1]:0", "::1", 0, 0, false},
		{":80", "", 0, 80, false},
		{"off", NULL, -ENOENT, 0, false},
		{"on", NULL, -EINVAL, 0, false},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char *host = NULL;
		uint16_t port = 0;
		bool may_lack = false;
		const struct conf cf = {.http = (char *)(uintptr_t)rows[i].http};
		ck_assert_int_eq(conf_http_address(&cf, &host, &port, &may_lack), rows[i].code);
		ck_assert_int_eq(port, rows[i].port);
		ck_assert_int_eq(may_lack, rows[i].may_lack);
		ck_assert(rows[i].host ? host && strcmp(host, rows[i].host) == 0 : !host);
		free(host);
	}
}
END_TEST

START_TEST(addresses)
{
	static const struct {
		const char *address, *host;
		int code, port;
	} rows[] = {
		{"10.0.0.1:8125", "10.0.0.1", 0, 8125},
		{"[::1]:8125", "::1", 0, 8125},
		{"name:1", "name", 0, 1},
		{":65535", "", 0, 65535},
		{"a:0", "", -EINVAL, 0},
		{"a", "", -EINVAL, 0},
		{"a:1:udp", "", -EINVAL, 0},
		{"", "", -EINVAL, 0},
		{"::1:8125", "", -EINVAL, 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char *host = NULL;
		uint16_t port = 0;
		ck_assert_int_eq(conf_split_address(rows[i].address, &host, &port), rows[i].code);
		ck_assert_int_eq(port, rows[i].port);
		if (rows[i].code == 0)
			ck_assert_str_eq(host, rows[i].host);
		free(host);
	}
}
END_TEST

/* -- texts -- */

/* Every option and flag is there, and no line is wider than `width`. */
static void check_text(const struct text *t, size_t width)
{
	ck_assert(!t->failed);
#define OPTION(scope, type, name, ...) ck_assert_msg(strstr(t->s, #name), "%s", #name);
#define PART(scope, name, ...) ck_assert_msg(strstr(t->s, #name), "%s", #name);
#include <tbl/option.def>
	for (const char *p = t->s; *p; p += strcspn(p, "\n") + 1)
		ck_assert_msg(strcspn(p, "\n") <= width, "%.120s", p);
}

START_TEST(help)
{
	struct text t = {0};
	conf_help(&t);
	check_text(&t, 100);
#define FLAG(letter, name, ...) ck_assert_msg(strstr(t.s, "--" name), "%s", name);
#include <tbl/option.def>
	ck_assert_ptr_nonnull(strstr(t.s, "  -l, --log-level LEVEL         "));
	ck_assert_ptr_nonnull(strstr(t.s, "      --fork-count N            The same as --workers.\n"));
	text_free(&t);
}
END_TEST

START_TEST(sample)
{
	struct text t = {0}, warnings = {0};
	struct conf_errors errors;
	conf_sample(&t);
	for (const char *p = t.s; *p; p += strcspn(p, "\n") + 1)
		ck_assert_msg(strcspn(p, "\n") <= 100, "%.120s", p);
	struct conf *cf = conf_load_bytes("sample", t.s, t.len, NULL, &errors);
	ck_assert_msg(cf, "%s", errors.text.s);
	conf_warnings(cf, &warnings);
	ck_assert_str_eq(warnings.s ? warnings.s : "", "");
	ck_assert_uint_eq(cf->outputs[0].n_backends, 2);
#define SAMPLE_TOP(name) ck_assert_msg(strstr(t.s, #name ": "), "%s", #name);
#define SAMPLE_INPUT SAMPLE_TOP
#define SAMPLE_OUTPUT SAMPLE_TOP
#define SAMPLE_BACKEND(name)
#define SAMPLE_SECTION(name)
#define OPTION(scope, type, name, ...) SAMPLE_##scope(name)
#include <tbl/option.def>
	conf_free(cf);
	text_free(&t);
	text_free(&warnings);
}
END_TEST

START_TEST(man_page)
{
	struct text t = {0};
	conf_man_options(&t);
	check_text(&t, 1000);
	for (const char *p = t.s; *p; p += strcspn(p, "\n") + 1)
		if (*p == '.')
			ck_assert_msg(!strncmp(p, ".Ss ", 4) || !strncmp(p, ".Bl ", 4) || !strncmp(p, ".It ", 4) ||
					      !strncmp(p, ".El\n", 4),
				      "%.40s", p);
	text_free(&t);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("conf_args");
	TCase *tc = tcase_create("args");
	tcase_add_test(tc, flags);
	tcase_add_test(tc, bad_flags);
	tcase_add_test(tc, without_a_file);
	tcase_add_test(tc, without_a_file_wrong);
	tcase_add_test(tc, flags_override_the_file);
	tcase_add_test(tc, bad_values_beside_a_file);
	tcase_add_test(tc, addresses);
	tcase_add_test(tc, http_addresses);
	tcase_add_test(tc, help);
	tcase_add_test(tc, sample);
	tcase_add_test(tc, man_page);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
