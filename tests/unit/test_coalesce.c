/* SPDX-License-Identifier: MIT
 *
 * coalesce: when a source rests, how long, and that its buffer cannot fill meanwhile. Times are made up.
 */
#include "suite.h"
#include "../../src/input/coalesce.c"

static struct conf_input cf;
static struct coalesce c;
static uint64_t now_us;

static void setup(void)
{
	cf = (struct conf_input){.coalesce = CONF_COALESCE_ADAPTIVE, .coalesce_max = 1000};
	c = (struct coalesce){0};
	now_us = 1000000;
	c.window_us = now_us;
}

/* `windows` windows of `per_ms` datagrams of `len` bytes in every ms, read once a ms, into a buffer of 32 MiB; the last
 * answer. */
static uint64_t flow(unsigned windows, unsigned per_ms, unsigned len)
{
	uint64_t wait_us = 0;
	for (unsigned i = 0; i < windows * 5; i++) {
		now_us += 1000;
		wait_us = coalesce_wait_us(&c, &cf, 32 * MIB, now_us, per_ms, (uint64_t)per_ms * len);
	}
	return wait_us;
}

START_TEST(low_rates_never_wait)
{
	for (unsigned per_ms = 0; per_ms < DENSE_ENTER_PER_MS; per_ms++) {
		setup();
		ck_assert_uint_eq(flow(20, per_ms, 30), 0);
		ck_assert(!c.dense);
	}
}
END_TEST

/* About GATHER datagrams come together, in not less than GATHER_US and not more than coalesce_max. */
START_TEST(dense_traffic_gathers)
{
	cf.coalesce_max = 2500;
	ck_assert_uint_eq(flow(2, DENSE_ENTER_PER_MS, 30), 2500);
	ck_assert_uint_eq(flow(2, 25, 30), 2000);
	ck_assert_uint_eq(flow(2, 40, 30), 1250);
	ck_assert_uint_eq(flow(2, 50, 30), 1000);
	ck_assert_uint_eq(flow(2, 84, 30), 1000);
}
END_TEST

START_TEST(dense_traffic_waits_for_coalesce_max)
{
	ck_assert_uint_eq(flow(2, DENSE_ENTER_PER_MS, 30), 1000);
	ck_assert(c.dense);
	ck_assert_uint_eq(c.rate_per_ms, DENSE_ENTER_PER_MS);
	ck_assert_uint_eq(c.bytes_per_ms, DENSE_ENTER_PER_MS * 30);
	cf.coalesce_max = 50;
	ck_assert_uint_eq(flow(1, 50, 30), 50);
}
END_TEST

START_TEST(nothing_before_the_first_window_is_over)
{
	for (int i = 0; i < 4; i++) {
		now_us += 1000;
		ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, 100, 3000), 0);
	}
	now_us += 1000;
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, 100, 3000), 1000);
}
END_TEST

/* Entered at 6 a ms, left below 3: a rate between the two changes nothing. */
START_TEST(hysteresis)
{
	flow(2, DENSE_ENTER_PER_MS - 1, 30);
	ck_assert(!c.dense);
	flow(2, DENSE_ENTER_PER_MS, 30);
	ck_assert(c.dense);
	flow(2, DENSE_LEAVE_PER_MS, 30);
	ck_assert(c.dense);
	ck_assert_uint_eq(flow(2, DENSE_LEAVE_PER_MS - 1, 30), 0);
	ck_assert(!c.dense);
	flow(2, DENSE_ENTER_PER_MS - 1, 30);
	ck_assert(!c.dense);
}
END_TEST

START_TEST(silence_ends_it)
{
	flow(2, 50, 30);
	ck_assert(c.dense);
	ck_assert_uint_eq(flow(2, 0, 0), 0);
	ck_assert(!c.dense);
	/* a long pause: one datagram after an hour is no dense traffic */
	flow(2, 50, 30);
	now_us += UINT64_C(3600000000);
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, 1, 30), 0);
	ck_assert(!c.dense);
}
END_TEST

/* A drain that found many was worth its wake-up. */
START_TEST(full_drains_are_followed_at_once)
{
	flow(2, 50, 30);
	now_us += 1000;
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, FEW, FEW * 30), 1000);
	now_us += 1000;
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, FEW + 1, FEW * 30), 0);
}
END_TEST

START_TEST(off_never_waits)
{
	cf.coalesce = 0;
	ck_assert_uint_eq(flow(10, 100, 30), 0);
	ck_assert(c.dense); /* what the outputs go by */
}
END_TEST

START_TEST(fixed_time)
{
	cf.coalesce = 300;
	now_us += 10;
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, 1, 30), 300);
	/* nothing was found: wait for readiness */
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, 0, 0), 0);
	ck_assert_uint_eq(coalesce_wait_us(&c, &cf, 32 * MIB, now_us, FEW + 1, 30), 0);
}
END_TEST

/* Whatever the rate: what comes during the wait fits in a quarter of the buffer. */
START_TEST(never_waits_so_long_that_the_buffer_fills)
{
	const uint64_t buffers[] = {4 * KIB, 64 * KIB, MIB, 32 * MIB};
	const unsigned rates[] = {6, 50, 84, 200}, lens[] = {0, 30, 1432, 8900, 65507};
	for (size_t b = 0; b < ARRAY_LEN(buffers); b++)
		for (size_t r = 0; r < ARRAY_LEN(rates); r++)
			for (size_t l = 0; l < ARRAY_LEN(lens); l++) {
				setup();
				cf.coalesce_max = 100000;
				uint64_t wait_us = 0, charge = rates[r] * (lens[l] + UINT64_C(1280));
				for (int i = 0; i < 10; i++) {
					now_us += 1000;
					wait_us = coalesce_wait_us(&c, &cf, buffers[b], now_us, rates[r],
								   (uint64_t)rates[r] * lens[l]);
				}
				ck_assert_uint_le(wait_us, 100000);
				ck_assert_uint_le(wait_us * charge / 1000, buffers[b] / 4);
				if (charge * 100 < buffers[b] / 4)
					ck_assert_uint_eq(wait_us, MAX(50000u / rates[r], 1000u));
			}
}
END_TEST

/* 0: the kernel would not tell how large it is (a lent socket): the rate alone decides. */
START_TEST(unknown_buffer)
{
	uint64_t wait_us = 0;
	for (int i = 0; i < 10; i++) {
		now_us += 1000;
		wait_us = coalesce_wait_us(&c, &cf, 0, now_us, 84, 84 * 8900);
	}
	ck_assert_uint_eq(wait_us, 1000);
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
	tcase_add_test(tc, dense_traffic_gathers);
	tcase_add_test(tc, dense_traffic_waits_for_coalesce_max);
	tcase_add_test(tc, nothing_before_the_first_window_is_over);
	tcase_add_test(tc, hysteresis);
	tcase_add_test(tc, silence_ends_it);
	tcase_add_test(tc, full_drains_are_followed_at_once);
	tcase_add_test(tc, off_never_waits);
	tcase_add_test(tc, fixed_time);
	tcase_add_test(tc, never_waits_so_long_that_the_buffer_fills);
	tcase_add_test(tc, unknown_buffer);
	tcase_add_test(tc, polling);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
