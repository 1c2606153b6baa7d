/* SPDX-License-Identifier: MIT
 *
 * test_fastcapa: Fastcapa's command line and ini file, what becomes of them, and what is refused. The documented
 * examples are Metron's own.
 */
#include "suite.h"

#include <conf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static char ini_path[] = "/tmp/millrace-fastcapa-XXXXXX";

static void write_ini(const char *text)
{
	FILE *f = fopen(ini_path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
}

/* "FILE" stands for the ini file. */
static struct conf *load(const char *line, enum conf_action *action, struct conf_errors *errors)
{
	static char words[2048], *argv[65];
	int argc = 0;
	snprintf(words, sizeof(words), "%s", line);
	for (char *word = strtok(words, " "); word && argc < 64; word = strtok(NULL, " "))
		argv[argc++] = strcmp(word, "FILE") == 0 ? ini_path : word;
	argv[argc] = NULL;
	return conf_load_fastcapa(argc, argv, action, errors);
}

static struct conf *must_load(const char *line)
{
	enum conf_action action;
	struct conf_errors errors;
	struct conf *cf = load(line, &action, &errors);
	ck_assert_msg(cf != NULL, "%s: %s", line, errors.text.s ? errors.text.s : "no memory");
	text_free(&errors.text);
	return cf;
}

static const char *property(const struct conf_output *out, const char *key)
{
	for (size_t i = 0; i < out->properties.n; i++)
		if (strcmp(out->properties.keys[i], key) == 0)
			return out->properties.values[i];
	return "";
}

static const char brokers[] = "[kafka-global]\nmetadata.broker.list = kafka-broker1:9092, kafka-broker2:9092\n";

START_TEST(the_tested_line)
{
	write_ini(brokers);
	struct conf *cf =
	    must_load("/opt/bin/fastcapa -l 0,1 --vdev net_af_packet0,iface=v0,qpairs=2 --huge-dir /mnt/huge -- "
		      "-t pcap256 -c FILE -r 512 -q 2 -x 32768");
	ck_assert_uint_eq(cf->workers, 2);
	ck_assert_uint_eq(cf->packet_table, 5000000);
	ck_assert_uint_eq(cf->n_inputs, 1);
	const struct conf_input *in = &cf->inputs[0];
	ck_assert_int_eq((int)in->type, CONF_INPUT_TYPE_CAPTURE);
	ck_assert_int_eq((int)in->driver, CONF_DRIVER_DPDK);
	ck_assert_str_eq(in->port, "0");
	ck_assert_uint_eq(in->rx_descriptors, 512);
	ck_assert_uint_eq(in->rx_burst, 32);
	ck_assert_int_eq((int)in->rss, CONF_RSS_SYMMETRIC);
	ck_assert_uint_eq(in->eal.n, 6);
	ck_assert_str_eq(in->eal.items[1], "0,1");
	ck_assert_str_eq(in->eal.items[3], "net_af_packet0,iface=v0,qpairs=2");
	ck_assert_uint_eq(in->n_outputs, 1);
	const struct conf_output *out = in->outputs[0];
	ck_assert_int_eq((int)out->type, CONF_OUTPUT_TYPE_KAFKA);
	ck_assert_int_eq((int)out->format, CONF_FORMAT_PACKET);
	ck_assert_int_eq((int)out->partition, CONF_PARTITION_RANDOM);
	ck_assert_str_eq(out->topic, "pcap256");
	ck_assert_str_eq(out->statistics_file, "");
	ck_assert_str_eq(property(out, "metadata.broker.list"), "kafka-broker1:9092, kafka-broker2:9092");
	struct text t = {0};
	conf_warnings(cf, &t);
	ck_assert_str_eq(t.s, "fastcapa: -x: has no meaning any more: there is no ring between reading and Kafka\n");
	text_free(&t);
	conf_free(cf);
}
END_TEST

START_TEST(defaults_and_all)
{
	write_ini(brokers);
	struct conf *cf = must_load("fastcapa -- -c FILE");
	ck_assert_uint_eq(cf->workers, 1);
	ck_assert_str_eq(cf->inputs[0].port, "0");
	ck_assert_uint_eq(cf->inputs[0].rx_burst, 32);
	ck_assert_uint_eq(cf->inputs[0].rx_descriptors, 1024);
	ck_assert_uint_eq(cf->inputs[0].eal.n, 0);
	ck_assert_str_eq(cf->outputs[0].topic, "pcap");
	ck_assert_str_eq(cf->control, "");
	conf_free(cf);
	cf = must_load("fastcapa -w 01:00.0 -- -p 0x5 -b192 -w 64 -d 8 -q 4 -tx -c FILE -s s.json --control=/tmp/c");
	ck_assert_uint_eq(cf->workers, 4);
	ck_assert_uint_eq(cf->n_inputs, 2);
	ck_assert_str_eq(cf->inputs[0].port, "0");
	ck_assert_str_eq(cf->inputs[1].port, "2");
	ck_assert_str_eq(cf->inputs[1].eal.items[0], "-w");
	ck_assert_uint_eq(cf->inputs[1].rx_burst, 192);
	ck_assert_uint_eq(cf->inputs[1].rx_descriptors, 32); /* the least there is */
	ck_assert_uint_eq(cf->outputs[0].n_inputs, 2);
	ck_assert_str_eq(cf->outputs[0].topic, "x");
	ck_assert_str_eq(cf->outputs[0].statistics_file, "s.json");
	ck_assert_str_eq(cf->control, "/tmp/c");
	ck_assert_uint_eq(cf->notes.n, 1);
	conf_free(cf);
}
END_TEST

START_TEST(ini_file)
{
	write_ini("# kafka global settings\n\n  [kafka-global]\n"
		  "metadata.broker.list = a:9092\n\tclient.id=fastcapa  \r\n"
		  "compression.codec = snappy\n# compression.codec = none\n"
		  "delivery.report.only.error = true\nsasl.kerberos.principal = metron@EXAMPLE.COM\nempty =\n"
		  "[other]\nx = y\n"
		  "[kafka-topic]\ncompression.codec = lz4\nrequest.required.acks = 1\nwith.equals = a=b");
	struct conf *cf = must_load("fastcapa -- -c FILE");
	const struct conf_output *out = &cf->outputs[0];
	ck_assert_uint_eq(out->properties.n, 8);
	ck_assert_str_eq(property(out, "queue.buffering.max.ms"), "1000");
	ck_assert_uint_eq(out->topic_properties.n, 0);
	ck_assert_str_eq(property(out, "client.id"), "fastcapa");
	ck_assert_str_eq(property(out, "compression.codec"), "lz4");
	ck_assert_str_eq(property(out, "request.required.acks"), "1");
	ck_assert_str_eq(property(out, "with.equals"), "a=b");
	ck_assert_str_eq(property(out, "empty"), "");
	ck_assert_str_eq(property(out, "sasl.kerberos.principal"), "metron@EXAMPLE.COM");
	ck_assert_uint_eq(cf->notes.n, 2);
	ck_assert_ptr_nonnull(strstr(cf->notes.items[0], ":8: delivery.report.only.error: has no effect"));
	ck_assert_ptr_nonnull(strstr(cf->notes.items[1], ":11: other: is no group that is read"));
	conf_free(cf);
}
END_TEST

START_TEST(refused)
{
	static const struct {
		const char *line, *ini, *says;
	} rows[] = {
	    {"fastcapa -- -p 0 -c FILE", "", "-p: \"0\" is not allowed"},
	    {"fastcapa -- -p x -c FILE", "", "-p: \"x\" is not allowed"},
	    {"fastcapa -- -p -1 -c FILE", "", "-p: \"-1\" is not allowed"},
	    {"fastcapa -- -p 1g -c FILE", "", "-p: \"1g\" is not allowed"},
	    {"fastcapa -- -p 100000000 -c FILE", "", "-p: \"100000000\" is not allowed"},
	    {"fastcapa -- -b 0 -c FILE", "", "-b: \"0\" is not allowed; allowed is a whole number from 1 to 1024"},
	    {"fastcapa -- -b 1025 -c FILE", "", "-b: \"1025\""},
	    {"fastcapa -- -b many -c FILE", "", "-b: \"many\""},
	    {"fastcapa -- -w 0 -c FILE", "", "-w: \"0\""},
	    {"fastcapa -- -r 0 -c FILE", "", "-r: \"0\""},
	    {"fastcapa -- -d -5 -c FILE", "", "-d: \"-5\""},
	    {"fastcapa -- -x 1000 -c FILE", "", "-x: \"1000\" is not allowed; allowed is a power of 2"},
	    {"fastcapa -- -x 0 -c FILE", "", "-x: \"0\""},
	    {"fastcapa -- -q 0 -c FILE", "", "-q: \"0\""},
	    {"fastcapa -- -t a/b -c FILE", "", "-t: \"a/b\""},
	    {"fastcapa -- -t .. -c FILE", "", "-t: \"..\""},
	    {"fastcapa -- -y -c FILE", "", "\"-y\" is no option"},
	    {"fastcapa -- file", "", "\"file\" is no option"},
	    {"fastcapa -- -c", "", "-c needs a value: -c FILE"},
	    {"fastcapa -l 0", "", "-c is missing behind \"--\""},
	    {"fastcapa -l 0 -c FILE", "", "-c is missing behind \"--\""},
	    {"fastcapa", "", "-c is missing"},
	    {"fastcapa -- -c /nowhere/x", "",
	     "/nowhere/x: cannot be read: No such file or directory; give a readable ini file"},
	    {"fastcapa -- -c FILE", "", "name no broker"},
	    {"fastcapa -- -c FILE", "[kafka-topic]\n", "name no broker"},
	    {"fastcapa -- -c FILE", "a = b\n", ":1: a: stands before any group"},
	    {"fastcapa -- -c FILE", "[kafka-global\n", ":1: a group is written"},
	    {"fastcapa -- -c FILE", "\x1b[2Jx = b\n", ":1: \\x1b[2Jx: stands before"},
	    {"fastcapa -- -c FILE", "[kafka-global]\nnonsense\n", ":2: is no KEY = VALUE"},
	    {"fastcapa -- -c FILE", "[kafka-global]\n= b\n", ":2: is no KEY = VALUE"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		enum conf_action action;
		struct conf_errors errors;
		write_ini(rows[i].ini);
		ck_assert_ptr_null(load(rows[i].line, &action, &errors));
		ck_assert_msg(errors.n > 0 && strstr(errors.text.s, rows[i].says), "%s: %s", rows[i].line,
			      errors.text.s ? errors.text.s : "");
		text_free(&errors.text);
	}
}
END_TEST

START_TEST(several_errors_at_once)
{
	enum conf_action action;
	struct conf_errors errors;
	ck_assert_ptr_null(load("fastcapa -- -p 0 -b 2000 -t a/b -c FILE", &action, &errors));
	ck_assert_uint_eq(errors.n, 3);
	text_free(&errors.text);
}
END_TEST

START_TEST(help_and_dump)
{
	enum conf_action action;
	struct conf_errors errors;
	struct text t = {0};
	ck_assert_ptr_null(load("fastcapa -h", &action, &errors));
	ck_assert_int_eq(action, CONF_ACTION_HELP);
	ck_assert_uint_eq(errors.n, 0);
	ck_assert_ptr_null(load("fastcapa -l 0 -- -b 3 -h", &action, &errors));
	ck_assert_int_eq(action, CONF_ACTION_HELP);
	conf_fastcapa_help(&t);
	ck_assert_ptr_nonnull(strstr(t.s, "-d, -r N"));
	text_free(&t);
	ck_assert(conf_is_fastcapa("fastcapa"));
	ck_assert(conf_is_fastcapa("/usr/local/bin/fastcapa"));
	ck_assert(!conf_is_fastcapa("/usr/local/fastcapa/millrace"));
	ck_assert(!conf_is_fastcapa(NULL));
	/* what is dumped loads to the same */
	write_ini(brokers);
	struct conf *cf = load("fastcapa --no-huge -- --dump -c FILE -q 3 -s s", &action, &errors), *again;
	ck_assert_ptr_nonnull(cf);
	ck_assert_int_eq(action, CONF_ACTION_DUMP);
	conf_dump(cf, &t);
	again = conf_load_bytes("dump", t.s, t.len, NULL, &errors);
	ck_assert_msg(again != NULL, "%s\n%s", t.s, errors.text.s ? errors.text.s : "");
	struct text u = {0};
	conf_dump(again, &u);
	ck_assert_str_eq(t.s, u.s);
	text_free(&t);
	text_free(&u);
	conf_free(cf);
	conf_free(again);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("fastcapa");
	TCase *tc = tcase_create("fastcapa");
	int fd = mkstemp(ini_path);
	if (fd == -1)
		return 1;
	close(fd);
	tcase_add_test(tc, the_tested_line);
	tcase_add_test(tc, defaults_and_all);
	tcase_add_test(tc, ini_file);
	tcase_add_test(tc, refused);
	tcase_add_test(tc, several_errors_at_once);
	tcase_add_test(tc, help_and_dump);
	suite_add_tcase(suite, tc);
	int failed = suite_run(suite);
	unlink(ini_path);
	return failed;
}
