/* SPDX-License-Identifier: MIT
 *
 * event: what every watcher of a descriptor does first. libev stops one whose descriptor the kernel does not take into its
 * set now (epoll_ctl: ENOMEM, ENOSPC), and calls it once more with EV_ERROR: nobody would hear of that descriptor again.
 */
#ifndef EVENT_H
#define EVENT_H

#include <ev.h>

/* Tries again until the kernel takes it; the caller goes on, as if there were something to read or to write. */
static inline void event_keep(struct ev_loop *loop, struct ev_io *io, int events)
{
	if (events & EV_ERROR)
		ev_io_start(loop, io);
}

#endif
