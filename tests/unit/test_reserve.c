/* SPDX-License-Identifier: MIT
 *
 * reserve: an allocation for libev that fails gets the reserve, and the reserve is made anew; an epoll set that cannot be
 * had is tried again.
 */
#include "suite.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static unsigned n_fail, n_fail_epoll;

int epoll_create1(int flags)
{
	errno = EMFILE;
	return n_fail_epoll > 0 && n_fail_epoll-- ? -1 : (int)syscall(SYS_epoll_create1, flags);
}

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

START_TEST(another_epoll_set)
{
	reserve_init();
	struct ev_loop *loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	ck_assert_ptr_nonnull(loop);
	ev_loop_fork(loop); /* as after a descriptor that only a child has */
	n_fail_epoll = 2;
	ev_run(loop, EVRUN_NOWAIT);
	ck_assert_uint_eq(n_fail_epoll, 0);
	ev_loop_destroy(loop);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("reserve");
	TCase *tc = tcase_create("reserve");
	tcase_add_test(tc, once_and_again);
	tcase_add_test(tc, nothing_left);
	tcase_add_test(tc, another_epoll_set);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
