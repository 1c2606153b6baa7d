/* SPDX-License-Identifier: MIT
 *
 * reserve: an allocation for libev that fails gets the reserve, and the reserve is made anew.
 */
#include "suite.h"

#include <stdlib.h>

static unsigned n_fail;

static void *try_realloc(void *old, size_t size)
{
	return n_fail > 0 && n_fail-- ? NULL : realloc(old, size);
}

#define realloc try_realloc
#include "../../src/master/reserve.c"
#undef realloc

START_TEST(once_and_again)
{
	char *p = NULL;
	reserve_init();
	for (unsigned i = 0; i < 10; i++) {
		n_fail = i % 2; /* each second one fails */
		p = allocate(p, 100 + i);
		ck_assert_ptr_nonnull(p);
		p[0] = 'x';
		ck_assert_int_eq(reserve == NULL, i % 2);
	}
	ck_assert_ptr_null(allocate(p, 0));
}
END_TEST

START_TEST(nothing_left)
{
	reserve_init();
	n_fail = 2;
	ck_assert_ptr_null(allocate(NULL, 100)); /* and libev ends the program */
}
END_TEST

int main(void)
{
	Suite *s = suite_create("reserve");
	TCase *tc = tcase_create("reserve");
	tcase_add_test(tc, once_and_again);
	tcase_add_test(tc, nothing_left);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
