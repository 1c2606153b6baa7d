/* SPDX-License-Identifier: MIT
 *
 * clock: the two clocks in microseconds. Any process; both calls stay in the vDSO.
 */
#include <base.h>
#include <time.h>

static uint64_t read_us(clockid_t id)
{
	struct timespec ts;
	BUG_ON(clock_gettime(id, &ts) == -1);
	return (uint64_t)ts.tv_sec * 1000000 + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t clock_us(void)
{
	return read_us(CLOCK_MONOTONIC);
}

uint64_t clock_real_us(void)
{
	return read_us(CLOCK_REALTIME);
}
