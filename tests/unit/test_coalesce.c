/* SPDX-License-Identifier: MIT
 *
 * test_coalesce: how long a polled source rests: not at all while packets come, soon again after them, seldom when
 * idle.
 */
#include <check.h>
#include <input.h>

START_TEST(polling)
{
	uint64_t rest_us = 0, passed_us = 0, looks = 0;
	ck_assert_uint_eq(coalesce_poll_us(0, 3), 0);
	ck_assert_uint_eq(coalesce_poll_us(POLL_LAST_US, 1), 0);
	ck_assert_uint_eq(coalesce_poll_us(0, 0), POLL_FIRST_US);
	ck_assert_uint_eq(coalesce_poll_us(POLL_FIRST_US, 0), 2 * POLL_FIRST_US);
	for (uint64_t last_us = 0; rest_us < POLL_LAST_US; last_us = rest_us, looks++) {
		rest_us = coalesce_poll_us(last_us, 0);
		ck_assert_uint_gt(rest_us, last_us);
		passed_us += rest_us;
		if (passed_us <= 2000)
			ck_assert_uint_le(rest_us, POLL_SOON_US);
	}
	ck_assert_uint_eq(coalesce_poll_us(POLL_LAST_US, 0), POLL_LAST_US);
	ck_assert_uint_gt(passed_us, 200000);
	ck_assert_uint_lt(passed_us, 500000);
	ck_assert_uint_lt(looks, 200);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("coalesce");
	TCase *tc = tcase_create("coalesce");
	tcase_add_test(tc, polling);
	suite_add_tcase(suite, tc);
	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? 1 : 0;
}
