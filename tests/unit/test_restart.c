/* SPDX-License-Identifier: MIT
 *
 * restart: the back-off, the start's limit, and when a slot's sockets are lent. Times are made up; nothing waits.
 */
#include "suite.h"
#include "../../src/master/restart.c"

enum { SECOND = 1000000, MS = 1000 };
static const uint64_t start_timeout_us = 10 * SECOND;

static uint64_t again_us;

static enum restart_action next(const struct restart *l, uint64_t now_us)
{
	return restart_next(l, now_us, start_timeout_us, &again_us);
}

/* No time at which it is to be asked again: an event comes first. */
static void nothing_to_do(const struct restart *l)
{
	ck_assert_int_eq(next(l, 1000 * (uint64_t)SECOND), RESTART_WAIT);
	ck_assert_uint_eq(again_us, UINT64_MAX);
}

static void start_and_ready(struct restart *l, uint64_t now_us)
{
	ck_assert_int_eq(next(l, now_us), RESTART_START);
	restart_started(l, now_us);
	ck_assert_int_eq(l->state, RESTART_STARTING);
	restart_ready(l, now_us);
	ck_assert_int_eq(l->state, RESTART_READY);
}

START_TEST(first_start_is_at_once)
{
	struct restart l;
	restart_init(&l, 5);
	ck_assert_int_eq(l.state, RESTART_VACANT);
	ck_assert_uint_eq(l.since_us, 5);
	ck_assert_int_eq(next(&l, 5), RESTART_START);
	ck_assert_uint_eq(again_us, UINT64_MAX);
}
END_TEST

START_TEST(ready_waits_for_events_only)
{
	struct restart l;
	restart_init(&l, 0);
	start_and_ready(&l, 0);
	nothing_to_do(&l);
	l.state = RESTART_DRAINING;
	nothing_to_do(&l);
}
END_TEST

/* At once, 100 ms, doubled to 30 s, for ever. */
START_TEST(back_off_doubles_to_its_end)
{
	const uint64_t waits_ms[] = {0, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000};
	struct restart l;
	uint64_t now_us = 7;
	restart_init(&l, now_us);
	for (size_t i = 0; i < ARRAY_LEN(waits_ms); i++) {
		uint64_t wait_us = waits_ms[i] * MS;
		start_and_ready(&l, now_us);
		now_us += 59 * SECOND; /* not yet healthy */
		restart_died(&l, now_us, false);
		ck_assert_int_eq(l.state, RESTART_VACANT);
		if (wait_us > 0) {
			ck_assert_int_eq(next(&l, now_us), RESTART_WAIT);
			ck_assert_uint_eq(again_us, now_us + wait_us);
			ck_assert_int_eq(next(&l, now_us + wait_us - 1), RESTART_WAIT);
		}
		now_us += wait_us;
		ck_assert_int_eq(next(&l, now_us), RESTART_START);
	}
	ck_assert_uint_eq(l.deaths, ARRAY_LEN(waits_ms));
}
END_TEST

START_TEST(sixty_seconds_of_health_forget_the_past)
{
	struct restart l;
	restart_init(&l, 0);
	for (int i = 0; i < 5; i++) {
		restart_started(&l, 0);
		restart_ready(&l, 0);
		restart_died(&l, 0, false);
	}
	ck_assert_uint_eq(l.start_at_us, 800 * MS);
	restart_started(&l, SECOND);
	restart_ready(&l, SECOND);
	restart_died(&l, 61 * SECOND, false);
	ck_assert_uint_eq(l.deaths, 1);
	ck_assert_int_eq(next(&l, 61 * SECOND), RESTART_START);
}
END_TEST

/* A long start is no health. */
START_TEST(dying_while_starting_never_forgets)
{
	struct restart l;
	restart_init(&l, 0);
	restart_started(&l, 0);
	restart_died(&l, 100 * SECOND, false);
	ck_assert_uint_eq(l.deaths, 1);
	restart_started(&l, 100 * SECOND);
	restart_died(&l, 300 * SECOND, false);
	ck_assert_uint_eq(l.deaths, 2);
	ck_assert_uint_eq(l.start_at_us, 300 * SECOND + 100 * MS);
}
END_TEST

START_TEST(late_start_is_killed)
{
	struct restart l;
	restart_init(&l, 0);
	restart_started(&l, 3);
	ck_assert_int_eq(next(&l, 3), RESTART_WAIT);
	ck_assert_uint_eq(again_us, 3 + start_timeout_us);
	ck_assert_int_eq(next(&l, 2 + start_timeout_us), RESTART_WAIT);
	ck_assert_int_eq(next(&l, 3 + start_timeout_us), RESTART_KILL);
	ck_assert_uint_eq(again_us, UINT64_MAX);
}
END_TEST

START_TEST(fatal_is_not_started_again)
{
	struct restart l;
	restart_init(&l, 0);
	restart_started(&l, 0);
	restart_died(&l, 1, true);
	ck_assert_int_eq(l.state, RESTART_FAILED);
	nothing_to_do(&l);
	ck_assert(restart_should_lend(&l, 1, &again_us)); /* at once */
	ck_assert_uint_eq(again_us, UINT64_MAX);
}
END_TEST

START_TEST(sockets_are_lent_after_200_ms)
{
	struct restart l;
	restart_init(&l, 0);
	start_and_ready(&l, 0);
	ck_assert(!restart_should_lend(&l, 1000 * (uint64_t)SECOND, &again_us));
	ck_assert_uint_eq(again_us, UINT64_MAX);
	restart_died(&l, SECOND, false);
	ck_assert(!restart_should_lend(&l, SECOND, &again_us));
	ck_assert_uint_eq(again_us, SECOND + 200 * MS);
	ck_assert(!restart_should_lend(&l, SECOND + 200 * MS - 1, &again_us));
	ck_assert(restart_should_lend(&l, SECOND + 200 * MS, &again_us));
	ck_assert_uint_eq(again_us, UINT64_MAX);
	l.state = RESTART_DRAINING;
	ck_assert(!restart_should_lend(&l, 9 * SECOND, &again_us));
}
END_TEST

/* A slot that keeps dying while it starts has no reader either: counted from the death of the last that was ready. */
START_TEST(lending_counts_from_the_last_that_was_ready)
{
	struct restart l;
	restart_init(&l, 0);
	start_and_ready(&l, 0);
	restart_died(&l, SECOND, false);
	restart_started(&l, SECOND);
	ck_assert(!restart_should_lend(&l, SECOND + 100 * MS, &again_us));
	ck_assert_uint_eq(again_us, SECOND + 200 * MS);
	restart_died(&l, SECOND + 150 * MS, false);
	ck_assert(!restart_should_lend(&l, SECOND + 150 * MS, &again_us));
	restart_started(&l, SECOND + 250 * MS);
	ck_assert(restart_should_lend(&l, SECOND + 250 * MS, &again_us)); /* while it starts, too */
	restart_ready(&l, SECOND + 260 * MS);
	ck_assert(!restart_should_lend(&l, SECOND + 900 * MS, &again_us));
	restart_died(&l, 2 * SECOND, false);
	ck_assert(!restart_should_lend(&l, 2 * SECOND, &again_us));
	ck_assert_uint_eq(again_us, 2 * SECOND + 200 * MS);
}
END_TEST

/* A slot that ends is read by its process until that has left: nobody else is needed, and its past is of no account. */
START_TEST(one_that_leaves_is_not_helped)
{
	struct restart l;
	restart_init(&l, 0);
	start_and_ready(&l, 0);
	restart_leaving(&l, 2 * SECOND);
	ck_assert_int_eq(l.state, RESTART_DRAINING);
	ck_assert(!restart_should_lend(&l, 1000 * (uint64_t)SECOND, &again_us));
	ck_assert_uint_eq(again_us, UINT64_MAX);
	nothing_to_do(&l);
}
END_TEST

/* A successor that serves before it is ready: lent when that takes long, counted from the moment it followed. */
START_TEST(a_successor_that_is_not_ready)
{
	struct restart l;
	restart_init(&l, 0);
	start_and_ready(&l, 0);
	restart_started(&l, 5 * SECOND);
	ck_assert(!restart_should_lend(&l, 5 * SECOND, &again_us));
	ck_assert_uint_eq(again_us, 5 * SECOND + 200 * MS);
	ck_assert(restart_should_lend(&l, 5 * SECOND + 200 * MS, &again_us));
	restart_ready(&l, 6 * SECOND);
	ck_assert(!restart_should_lend(&l, 9 * SECOND, &again_us));
}
END_TEST

START_TEST(a_slot_that_ends_is_removed)
{
	struct restart l;
	restart_init(&l, 0);
	start_and_ready(&l, 0);
	restart_leaving(&l, SECOND);
	restart_left(&l, SECOND);
	ck_assert_int_eq(l.state, RESTART_REMOVED);
	nothing_to_do(&l);
	ck_assert(!restart_should_lend(&l, 1000 * (uint64_t)SECOND, &again_us));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restart");
	TCase *tc = tcase_create("restart");
	tcase_add_test(tc, first_start_is_at_once);
	tcase_add_test(tc, ready_waits_for_events_only);
	tcase_add_test(tc, back_off_doubles_to_its_end);
	tcase_add_test(tc, sixty_seconds_of_health_forget_the_past);
	tcase_add_test(tc, dying_while_starting_never_forgets);
	tcase_add_test(tc, late_start_is_killed);
	tcase_add_test(tc, fatal_is_not_started_again);
	tcase_add_test(tc, sockets_are_lent_after_200_ms);
	tcase_add_test(tc, lending_counts_from_the_last_that_was_ready);
	tcase_add_test(tc, one_that_leaves_is_not_helped);
	tcase_add_test(tc, a_successor_that_is_not_ready);
	tcase_add_test(tc, a_slot_that_ends_is_removed);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
