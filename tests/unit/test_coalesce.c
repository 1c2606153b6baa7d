/* SPDX-License-Identifier: MIT
 *
 * coalesce: when a source rests, how long, and that its buffer cannot fill meanwhile. Times are made up.
 */
#include "suite.h"
#include "../../src/input/coalesce.c"

static struct coalesce c;
static uint64_t now_us;

static void setup(void)
{
	now_us = 1000000;
	c = (struct coalesce){.latency_us = 20000, .n_workers = 1, .receive_buffer_bytes = 32 * MIB, .window_us = now_us};
}

/* `ms` milliseconds with a look each, and so much a second; the last answer. */
static uint64_t flow(unsigned ms, uint64_t per_s, uint64_t len)
{
	uint64_t wait_us = 0, sent = 0;
	for (unsigned i = 1; i <= ms; i++) {
		uint64_t n = per_s * i / 1000 - sent;
		now_us += 1000;
		wait_us = coalesce_wait_us(&c, now_us, n, n * len);
		sent += n;
	}
	return wait_us;
}

START_TEST(low_rates_never_wait)
{
	for (unsigned per_s = 0; per_s < DENSE_PER_S; per_s += 50) {
		setup();
		ck_assert_uint_eq(flow(200, per_s, 30), 0);
		ck_assert(!c.dense);
	}
}
END_TEST

/* Few large datagrams are as much work as many short ones. */
START_TEST(bytes_count_as_well)
{
	ck_assert_uint_eq(flow(100, 400, 8900), 0);
	ck_assert_uint_eq(flow(100, 500, 8900), 20000);
	ck_assert_uint_eq(flow(100, 1000, 1432), 0);
}
END_TEST

/* Traffic that one worker would let gather does so in each of those that share it. */
START_TEST(the_traffic_of_all_workers_counts)
{
	c.n_workers = 8;
	ck_assert_uint_eq(flow(100, DENSE_PER_S / 8 - 50, 30), 0);
	ck_assert_uint_eq(flow(100, DENSE_PER_S / 8, 30), 20000);
}
END_TEST

/* About GATHER datagrams come together, in not less than GATHER_US and not more than the latency. */
START_TEST(dense_traffic_gathers)
{
	ck_assert_uint_eq(flow(40, 2000, 30), 20000);
	ck_assert_uint_eq(flow(40, 10000, 30), 5000);
	ck_assert_uint_eq(flow(40, 25000, 30), 2000);
	ck_assert_uint_eq(flow(40, 50000, 30), 1000);
	ck_assert_uint_eq(flow(40, 84000, 30), 1000);
	c.latency_us = 50;
	ck_assert_uint_eq(flow(40, 50000, 30), 50);
}
END_TEST

/* Gathering, held for a fuller segment, and then until the next turn: never more than the latency. */
START_TEST(what_is_left_is_for_the_outputs)
{
	ck_assert_uint_eq(coalesce_hold_us(&c), 20000);
	for (unsigned per_s = 2000; per_s < 100000; per_s += 1000) {
		uint64_t wait_us = flow(40, per_s, 30), hold_us = coalesce_hold_us(&c);
		ck_assert_uint_le(wait_us + hold_us + (hold_us ? wait_us : 0), c.latency_us);
		ck_assert_uint_ge(wait_us * 2 + hold_us, c.latency_us);
	}
}
END_TEST

START_TEST(nothing_before_the_first_window_is_over)
{
	ck_assert_uint_eq(flow(WINDOW_US / 1000 - 1, 100000, 30), 0);
	ck_assert_uint_eq(flow(1, 100000, 30), 1000);
}
END_TEST

START_TEST(silence_ends_it)
{
	flow(40, 50000, 30);
	ck_assert(c.dense);
	ck_assert_uint_eq(flow(40, 0, 0), 0);
	ck_assert(!c.dense);
	/* a long pause: one datagram after an hour is no dense traffic */
	flow(40, 50000, 30);
	now_us += UINT64_C(3600000000);
	ck_assert_uint_eq(coalesce_wait_us(&c, now_us, 1, 30), 0);
	ck_assert(!c.dense);
}
END_TEST

/* A drain that found many was worth its wake-up. */
START_TEST(full_drains_are_followed_at_once)
{
	flow(40, 50000, 30);
	now_us += 1000;
	ck_assert_uint_eq(coalesce_wait_us(&c, now_us, FEW, FEW * 30), 1000);
	now_us += 1000;
	ck_assert_uint_eq(coalesce_wait_us(&c, now_us, FEW + 1, FEW * 30), 0);
}
END_TEST

START_TEST(off_never_waits)
{
	c.latency_us = 0;
	ck_assert_uint_eq(flow(50, 100000, 30), 0);
	ck_assert_uint_eq(coalesce_hold_us(&c), 0);
}
END_TEST

/* Whatever the rate: what comes during the wait fits in a quarter of the buffer, and a burst in all of it. */
START_TEST(never_waits_so_long_that_the_buffer_fills)
{
	const uint64_t buffers[] = {4 * KIB, 64 * KIB, MIB, 32 * MIB};
	const uint64_t rates[] = {6000, 50000, 84000, 200000}, lens[] = {0, 30, 1432, 8900, 65507};
	for (size_t b = 0; b < ARRAY_LEN(buffers); b++)
		for (size_t r = 0; r < ARRAY_LEN(rates); r++)
			for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
				setup();
				c.latency_us = 100000;
				c.receive_buffer_bytes = buffers[b];
				uint64_t wait_us = flow(40, rates[r], lens[l]);
				uint64_t charge = rates[r] * (lens[l] + 1280);
				ck_assert_uint_le(wait_us, 100000);
				ck_assert_uint_le(wait_us * charge / 1000000, buffers[b] / 4);
				ck_assert_uint_le(wait_us * 256, buffers[b]);
				if (charge / 10 < buffers[b] / 4 && 100000 * UINT64_C(256) < buffers[b])
					ck_assert_uint_eq(wait_us, MAX(50000000 / rates[r], 1000u));
			}
}
END_TEST

/* 0: the kernel would not tell how large it is (a lent socket): the rate alone decides. */
START_TEST(unknown_buffer)
{
	c.receive_buffer_bytes = 0;
	ck_assert_uint_eq(flow(40, 84000, 8900), 1000);
}
END_TEST

/* An input without a descriptor is polled: at once while something comes, soon after that, ever more seldom later. */
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
	Suite *s = suite_create("coalesce");
	TCase *tc = tcase_create("coalesce");
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_test(tc, low_rates_never_wait);
	tcase_add_test(tc, bytes_count_as_well);
	tcase_add_test(tc, the_traffic_of_all_workers_counts);
	tcase_add_test(tc, dense_traffic_gathers);
	tcase_add_test(tc, what_is_left_is_for_the_outputs);
	tcase_add_test(tc, nothing_before_the_first_window_is_over);
	tcase_add_test(tc, silence_ends_it);
	tcase_add_test(tc, full_drains_are_followed_at_once);
	tcase_add_test(tc, off_never_waits);
	tcase_add_test(tc, never_waits_so_long_that_the_buffer_fills);
	tcase_add_test(tc, unknown_buffer);
	tcase_add_test(tc, polling);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
