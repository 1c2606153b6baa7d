/* SPDX-License-Identifier: MIT
 *
 * suite: how each unit test ends: its suite is run, and the exit code is 1 when one of its tests fails.
 */
#ifndef SUITE_H
#define SUITE_H

#include <check.h>

static inline int suite_run(Suite *suite)
{
	SRunner *runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed != 0;
}

#endif
