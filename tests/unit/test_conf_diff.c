/* SPDX-License-Identifier: MIT
 *
 * test_conf_diff: two files, what is different, and the class that covers it; and that a new tree stands in the order of
 * the old one, whatever the order of its file.
 */
#include "suite.h"

#include <conf.h>

#include <string.h>

static struct conf *load(const char *text)
{
	struct conf_errors errors;
	struct conf *cf = conf_load_bytes("text", text, strlen(text), NULL, &errors);
	ck_assert_msg(cf, "%s", errors.text.s ? errors.text.s : "");
	text_free(&errors.text);
	return cf;
}

#define FILE_OF(inputs, outputs) "inputs:\n" inputs "outputs:\n" outputs
#define IN_U "  u: { type: udp, bind: \"127.0.0.1:1\", to: [o] }\n"
#define IN_T "  t: { type: tcp, bind: \"127.0.0.1:1\", to: [o] }\n"
#define OUT_O "  o: { type: statsite, backends: [\"h:1\", \"h:2\"] }\n"
#define OUT_P "  p: { type: statsite, backends: [\"h:3\"] }\n"
#define MAP_O(map) "  o: { type: statsite, shard_map: { " map " } }\n"
#define KAFKA(more) "  k: { type: kafka, topic: t, properties: { bootstrap.servers: \"h:1\"" more " } }\n"

/* All changes, a line each with its class before it. */
static void check_diff(const char *old_text, const char *new_text, enum conf_reload class, const char *expected)
{
	struct conf *old = load(old_text), *new = load(new_text);
	struct conf_diff d;
	struct text t = {0};
	ck_assert_int_eq(conf_align(new, old), 0);
	conf_diff(old, new, &d);
	for (size_t i = 0; i < d.n; i++) {
		text_add(&t, "%d %s\n", d.changes[i].reload, d.changes[i].text);
		ck_assert_uint_le(d.changes[i].reload, class);
		ck_assert(d.changes[i].was == SIZE_MAX || d.changes[i].was < 64);
	}
	ck_assert_str_eq(t.s ? t.s : "", expected);
	ck_assert_int_eq(d.reload, class);
	ck_assert_int_eq(conf_digest(old) == conf_digest(new), d.n == 0);
	ck_assert(!d.no_memory);
	text_free(&t);
	conf_diff_free(&d);
	conf_free(old);
	conf_free(new);
}

START_TEST(nothing)
{
	check_diff(FILE_OF(IN_U IN_T, OUT_O), FILE_OF(IN_U IN_T, OUT_O), CONF_RELOAD_NONE, "");
	/* other words for the same */
	check_diff(FILE_OF(IN_U, OUT_O), "# comment\nworkers: 0\n" FILE_OF(IN_U, OUT_O), CONF_RELOAD_NONE, "");
}
END_TEST

START_TEST(the_order_of_the_file_means_nothing)
{
	struct conf *old = load(FILE_OF("  u: { type: udp, bind: \"h:1\", to: [o, p] }\n" IN_T, OUT_O OUT_P));
	struct conf *new = load(FILE_OF("  a: { type: tcp, bind: \"h:9\", to: [p, q] }\n" IN_T
					"  u: { type: udp, bind: \"h:1\", to: [o, p] }\n",
					"  q: { type: statsite, backends: [\"h:1\"] }\n" OUT_P
					"  o: { type: statsite, backends: [\"h:7\", \"h:2\", \"h:1\"] }\n"));
	ck_assert_int_eq(conf_align(new, old), 0);
	ck_assert_str_eq(new->inputs[0].name, "u");
	ck_assert_str_eq(new->inputs[1].name, "t");
	ck_assert_str_eq(new->inputs[2].name, "a");
	ck_assert_str_eq(new->outputs[0].name, "o");
	ck_assert_str_eq(new->outputs[1].name, "p");
	ck_assert_str_eq(new->outputs[2].name, "q");
	for (size_t i = 0; i < 3; i++) {
		ck_assert_uint_eq(new->inputs[i].index, i);
		ck_assert_uint_eq(new->outputs[i].index, i);
	}
	ck_assert_ptr_eq(new->inputs[0].outputs[0], &new->outputs[0]);
	ck_assert_ptr_eq(new->inputs[0].outputs[1], &new->outputs[1]);
	ck_assert_ptr_eq(new->inputs[2].outputs[1], &new->outputs[2]);
	ck_assert_str_eq(new->outputs[0].backends[0].name, "h:1");
	ck_assert_str_eq(new->outputs[0].backends[1].name, "h:2");
	ck_assert_str_eq(new->outputs[0].backends[2].name, "h:7");
	conf_free(old);
	conf_free(new);
	check_diff(FILE_OF(IN_U IN_T, OUT_O), FILE_OF(IN_T IN_U, "  o: { type: statsite, backends: [\"h:2\", \"h:1\"] }\n"),
		   CONF_RELOAD_NONE, "");
}
END_TEST

START_TEST(shards_keep_their_meaning)
{
	struct conf *old = load(FILE_OF(IN_U, MAP_O("0: \"h:1\", 1: \"h:2\", 2: \"h:1\"")));
	struct conf *new = load(FILE_OF(IN_U, MAP_O("0: \"h:3\", 1: \"h:2\", 2: \"h:1\"")));
	ck_assert_int_eq(conf_align(new, old), 0);
	const struct conf_output *o = &new->outputs[0];
	const char *const hosts[] = {"h:3", "h:2", "h:1"};
	for (size_t i = 0; i < 3; i++)
		ck_assert_str_eq(o->backends[o->shards[i]].name, hosts[i]);
	ck_assert_str_eq(o->backends[0].name, "h:1");
	conf_free(old);
	conf_free(new);
	check_diff(FILE_OF(IN_U, "  o: { type: statsite, shard_map: { 0: \"h:1\", 1: \"h:2\" } }\n"),
		   FILE_OF(IN_U, "  o: { type: statsite, shard_map: { 0: \"h:2\", 1: \"h:1\" } }\n"), CONF_RELOAD_RESPAWN,
		   "2 outputs.o: other shards\n");
	check_diff(FILE_OF(IN_U, "  o: { type: statsite, shard_map: { 0: \"h:1\", 1: \"h:2\" } }\n"),
		   FILE_OF(IN_U, "  o: { type: statsite, shard_map: { 0: \"h:1\", 1: \"h:2\", 2: \"h:2\" } }\n"),
		   CONF_RELOAD_RESPAWN, "2 outputs.o: other shards\n");
}
END_TEST

START_TEST(backends)
{
	check_diff(FILE_OF(IN_U, OUT_O),
		   FILE_OF(IN_U, "  o: { type: statsite, backends: [\"h:9\", { address: \"h:2\", weight: 2.5 }, "
				 "{ address: \"h:1\", name: one }] }\n"),
		   CONF_RELOAD_RESPAWN,
		   "2 outputs.o.backends: h:1 removed\n"
		   "2 outputs.o.backends: h:2 weight 1 -> 2.5\n"
		   "2 outputs.o.backends: h:9 added\n"
		   "2 outputs.o.backends: one at h:1 added\n");
	/* another transport is another backend */
	check_diff(FILE_OF(IN_U, OUT_O), FILE_OF(IN_U, "  o: { type: statsite, backends: [\"h:1\", \"h:2:udp\"] }\n"),
		   CONF_RELOAD_RESPAWN,
		   "2 outputs.o.backends: h:2 removed\n"
		   "2 outputs.o.backends: h:2 added\n");
}
END_TEST

START_TEST(options_have_the_class_of_their_row)
{
	check_diff(FILE_OF(IN_U, OUT_O), "drain_timeout: 1s\n" FILE_OF(IN_U, OUT_O), CONF_RELOAD_AT_ONCE,
		   "1 drain_timeout: 5s -> 1s\n");
	check_diff(FILE_OF(IN_U, OUT_O), "workers: 3\n" FILE_OF(IN_U, OUT_O), CONF_RELOAD_RESPAWN, "2 workers: 0 -> 3\n");
	check_diff(FILE_OF(IN_U, OUT_O),
		   FILE_OF("  u: { type: udp, bind: \"127.0.0.1:2\", budget: 1, to: [o] }\n", OUT_O), CONF_RELOAD_REBIND,
		   "3 inputs.u.bind: [\"127.0.0.1:1\"] -> [\"127.0.0.1:2\"]\n"
		   "2 inputs.u.budget: 64 -> 1\n");
	check_diff(FILE_OF(IN_U, OUT_O),
		   FILE_OF(IN_U, "  o: { type: statsite, queue_limit: 1MiB, memory_limit: 2MiB, "
				 "backends: [\"h:1\", \"h:2\"] }\n"),
		   CONF_RELOAD_RESPAWN,
		   "2 outputs.o.queue_limit: 64MiB -> 1MiB\n"
		   "2 outputs.o.memory_limit: 1GiB -> 2MiB\n");
}
END_TEST

START_TEST(whole_inputs_and_outputs)
{
	check_diff(FILE_OF(IN_U, OUT_O), FILE_OF(IN_U IN_T, OUT_O), CONF_RELOAD_REBIND, "3 inputs.t: added\n");
	check_diff(FILE_OF(IN_U IN_T, OUT_O), FILE_OF(IN_T, OUT_O), CONF_RELOAD_REBIND, "3 inputs.u: removed\n");
	check_diff(FILE_OF(IN_U, OUT_O), FILE_OF("  u: { type: udp, bind: \"127.0.0.1:1\", to: [p] }\n", OUT_P),
		   CONF_RELOAD_RESPAWN,
		   "2 inputs.u.to: [\"o\"] -> [\"p\"]\n"
		   "2 outputs.o: removed\n"
		   "2 outputs.p: added\n");
	/* another type under the same name */
	check_diff(FILE_OF("  u: { type: udp, bind: \"h:1\", to: [o] }\n", OUT_O),
		   FILE_OF("  u: { type: tcp, bind: \"h:1\", to: [o] }\n", OUT_O), CONF_RELOAD_REBIND,
		   "3 inputs.u.type: udp -> tcp\n");
}
END_TEST

#ifdef MILLRACE_KAFKA
START_TEST(no_password_is_shown)
{
	check_diff(FILE_OF("  u: { type: udp, bind: \"h:1\", to: [k] }\n", KAFKA(", sasl.password: secret")),
		   FILE_OF("  u: { type: udp, bind: \"h:1\", to: [k] }\n", KAFKA(", sasl.password: other")),
		   CONF_RELOAD_RESPAWN, "2 outputs.k.properties: changed\n");
}
END_TEST
#endif

START_TEST(words)
{
	ck_assert_str_eq(conf_reload_word(CONF_RELOAD_NONE), "nothing to do");
	ck_assert_str_eq(conf_reload_word(CONF_RELOAD_AT_ONCE), "at once");
	ck_assert_str_eq(conf_reload_word(CONF_RELOAD_RESPAWN), "by rolling the workers");
	ck_assert_str_eq(conf_reload_word(CONF_RELOAD_REBIND), "by new endpoints and rolling the workers");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("conf_diff");
	TCase *tc = tcase_create("conf_diff");
	tcase_add_test(tc, nothing);
	tcase_add_test(tc, the_order_of_the_file_means_nothing);
	tcase_add_test(tc, shards_keep_their_meaning);
	tcase_add_test(tc, backends);
	tcase_add_test(tc, options_have_the_class_of_their_row);
	tcase_add_test(tc, whole_inputs_and_outputs);
#ifdef MILLRACE_KAFKA
	tcase_add_test(tc, no_password_is_shown);
#endif
	tcase_add_test(tc, words);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
