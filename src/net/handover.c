/* SPDX-License-Identifier: MIT
 *
 * handover: sending on the direct channel between two workers. Worker only: it waits.
 */
#include <handover.h>

#include <base.h>
#include <errno.h>
#include <net.h>
#include <poll.h>
#include <time.h>

static const uint64_t pause_us = 1000;

int handover_send(int channel, const void *msg, size_t len, int fd, uint64_t deadline_us)
{
	for (;;) {
		int r = net_send_fd(channel, msg, len, fd);
		uint64_t now_us = clock_us();
		if ((r != -EAGAIN && r != -ETOOMANYREFS && r != -ENOBUFS) || now_us >= deadline_us)
			return r;
		if (r == -EAGAIN) {
			struct pollfd p = {.fd = channel, .events = POLLOUT};
			poll(&p, 1, (int)((deadline_us - now_us + pause_us - 1) / pause_us));
		} else {
			nanosleep(&(struct timespec){.tv_nsec = (long)pause_us * 1000}, NULL);
		}
	}
}
