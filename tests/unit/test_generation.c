/* SPDX-License-Identifier: MIT
 *
 * generation: a configuration whose outputs cannot be made, whatever fails and when, is given up: what is in effect keeps
 * its places in the counters, and nothing else has one. calloc of generation.c, and the search for a place, are the test's
 * own here: the n-th call fails as told.
 */
#include "suite.h"

#include <stdlib.h>
#include <string.h>

#include <stats.h>

static unsigned long fails_at, n_calls; /* fails_at 0: none does */

static int strikes(void)
{
	return ++n_calls == fails_at;
}

static void *faulty_calloc(size_t n, size_t size)
{
	return strikes() ? NULL : calloc(n, size);
}

static int faulty_place(const struct stats *st, enum stats_scope scope, const char *name, unsigned parent, const char *unit)
{
	return strikes() ? -1 : stats_place(st, scope, name, parent, unit);
}

#define calloc faulty_calloc
#define stats_place faulty_place
#include "../../src/master/generation.c"
#undef calloc
#undef stats_place

#define INPUT(outputs) "inputs: {in: {type: udp, bind: \"127.0.0.1:1000\", to: [" outputs "]}}\n"
#define OUTPUT(name, backends) name ": {type: statsite, backends: [" backends "]}"

static const char *const before = INPUT("a, b") "outputs: {" OUTPUT("a", "\"127.0.0.1:1\", \"127.0.0.1:2\"") ", "
					OUTPUT("b", "\"127.0.0.1:3\"") "}\n";
/* One backend less, one more, and one output more. */
static const char *const after = INPUT("a, b, c") "outputs: {" OUTPUT("a", "\"127.0.0.1:2\"") ", "
				       OUTPUT("b", "\"127.0.0.1:3\", \"127.0.0.1:4\"") ", "
				       OUTPUT("c", "\"127.0.0.1:5\"") "}\n";

static struct err err;

static struct conf *load(const char *text)
{
	struct conf_errors errors;
	struct conf *cf = conf_load_bytes("test", text, strlen(text), NULL, &errors);
	ck_assert_msg(cf != NULL, "%s", errors.text.s);
	text_free(&errors.text);
	return cf;
}

static unsigned n_used(const struct stats *st, enum stats_scope scope)
{
	unsigned n = 0;
	for (unsigned i = 0; i < stats_entries(st, scope); i++)
		n += stats_entry(st, scope, i)->used == STATS_USED;
	return n;
}

static void check_places(const struct master *m)
{
	ck_assert_uint_eq(n_used(m->stats, STATS_OUTPUT), 2);
	ck_assert_uint_eq(n_used(m->stats, STATS_BACKEND), 3);
	for (size_t i = 0; i < m->n_outputs; i++)
		for (unsigned k = 0; k < m->outputs[i].n_backends; k++)
			ck_assert_uint_eq(stats_entry(m->stats, STATS_BACKEND, m->outputs[i].blocks[k])->used, STATS_USED);
}

START_TEST(outputs_that_cannot_be_made)
{
	struct master m = {0};
	struct conf *old = load(before), *new = load(after);
	struct generation g = {0};
	int r;
	m.stats = stats_new(1, 2, &err);
	ck_assert_ptr_nonnull(m.stats);
	ck_assert_int_eq(generation_outputs(&m, old, &g, &err), 0);
	m.outputs = g.outputs;
	m.n_outputs = g.n_outputs;
	check_places(&m);
	n_calls = 0;
	do {
		struct generation next = {0};
		fails_at++;
		n_calls = 0;
		r = generation_outputs(&m, new, &next, &err);
		ck_assert_int_eq(r == 0, n_calls < fails_at);
		generation_give_up(&m, &next);
		check_places(&m);
	} while (r != 0);
	ck_assert_uint_gt(fails_at, 6); /* the list, backends of three outputs, places of an output and of two backends */
	fails_at = 0;
	m.outputs = NULL;
	m.n_outputs = 0;
	generation_give_up(&m, &g);
	ck_assert_uint_eq(n_used(m.stats, STATS_OUTPUT) + n_used(m.stats, STATS_BACKEND), 0);
	stats_free(m.stats);
	conf_free(old);
	conf_free(new);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("generation");
	TCase *tc = tcase_create("generation");
	tcase_add_test(tc, outputs_that_cannot_be_made);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
