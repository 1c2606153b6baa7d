/* SPDX-License-Identifier: MIT
 *
 * handover: sending on the direct channel between two workers. Worker only: it waits.
 */
#include <handover.h>

#include <base.h>
#include <net.h>

int handover_send(int channel, const void *msg, size_t len, int fd, uint64_t deadline_us)
{
	for (;;) {
		int r = net_send_fd(channel, msg, len, fd);
		uint64_t now_us = clock_us();
		if (!net_is_for_later(r) || now_us >= deadline_us)
			return r;
		net_wait_to_send(channel, r, deadline_us - now_us);
	}
}
