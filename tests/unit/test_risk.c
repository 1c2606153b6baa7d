/* SPDX-License-Identifier: MIT
 *
 * risk against a model that remembers where each line ended: never fewer lines than the model counts within the last
 * RISK_WINDOWS windows, never more than the connection had, and not many more than needed.
 */

/* check writes to a pipe at each of its assertions, passed ones too: 1 us, millions of times. */
#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			ck_abort_msg("not true: %s", #cond);                                                           \
	} while (0)

#include "suite.h"
#include "../../src/output/risk.c"

static uint64_t seed;

static uint64_t rnd(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

START_TEST(nothing_acknowledged)
{
	struct risk k;
	risk_init(&k);
	MUST(risk_lines(&k) == 0);
	risk_acked(&k, 0, 0, 65536);
	MUST(risk_lines(&k) == 0);
	MUST(k.window_bytes == 65536);
}
END_TEST

START_TEST(short_connection_is_all_at_risk)
{
	struct risk k;
	risk_init(&k);
	for (int i = 0; i < 10; i++)
		risk_acked(&k, 1000, 50, 65536);
	MUST(risk_lines(&k) == 500);
}
END_TEST

START_TEST(unknown_window_is_all_at_risk)
{
	struct risk k;
	risk_init(&k);
	for (int i = 0; i < 1000; i++)
		risk_acked(&k, 100000, 5000, UINT32_MAX);
	MUST(risk_lines(&k) == 5000000);
}
END_TEST

START_TEST(no_window_at_all)
{
	struct risk k;
	risk_init(&k);
	for (int i = 0; i < 100; i++)
		risk_acked(&k, 100, 5, 0);
	MUST(risk_lines(&k) <= 5);
}
END_TEST

START_TEST(steady_stream_is_tight)
{
	struct risk k;
	risk_init(&k);
	for (int i = 0; i < 100000; i++)
		risk_acked(&k, 1000, 40, 65536);
	uint64_t least = UINT64_C(65536) * RISK_WINDOWS / 1000 * 40;
	MUST(risk_lines(&k) >= least);
	MUST(risk_lines(&k) <= least * 5 / 4);
}
END_TEST

START_TEST(random_streams)
{
	enum { STEPS = 3000 };
	static uint64_t bytes[STEPS + 1], lines[STEPS + 1];
	for (uint64_t s = 1; s <= 300; s++) {
		struct risk k;
		uint64_t window = 1 + rnd(100000), most;
		seed = s * 0x9e3779b97f4a7c15u;
		risk_init(&k);
		for (int i = 1; i <= STEPS; i++) {
			if (rnd(200) == 0)
				window = window * (100 + rnd(150)) / 100;
			uint64_t n = rnd(10) == 0 ? rnd(300000) : rnd(3000);
			bytes[i] = bytes[i - 1] + n;
			lines[i] = lines[i - 1] + n / 30;
			most = MAX(i > 1 ? k.window_bytes : 0, window);
			risk_acked(&k, n, n / 30, rnd(2) ? window : window / 2 + 1);
			(void)most;
			uint64_t edge_bytes = k.window_bytes * RISK_WINDOWS;
			uint64_t from = bytes[i] > edge_bytes ? bytes[i] - edge_bytes : 0;
			int j = i;
			while (j > 0 && bytes[j] > from)
				j--;
			/* lines that end within (from, now]: at least those after step j + 1 */
			uint64_t least = lines[i] - lines[MIN(j + 1, i)];
			MUST(risk_lines(&k) >= least);
			MUST(risk_lines(&k) <= lines[i]);
			MUST(k.n <= RISK_CHECKPOINTS);
		}
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("risk");
	TCase *tc = tcase_create("risk");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, nothing_acknowledged);
	tcase_add_test(tc, short_connection_is_all_at_risk);
	tcase_add_test(tc, unknown_window_is_all_at_risk);
	tcase_add_test(tc, no_window_at_all);
	tcase_add_test(tc, steady_stream_is_tight);
	tcase_add_test(tc, random_streams);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
