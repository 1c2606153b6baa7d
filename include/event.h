/* SPDX-License-Identifier: MIT
 *
 * event: what every watcher of a descriptor does first. libev stops one whose descriptor the kernel does not take into its
 * set now (epoll_ctl: ENOMEM, ENOSPC), and calls it once more with EV_ERROR: nobody would hear of that descriptor again.
 */
#ifndef EVENT_H
#define EVENT_H

#include <ev.h>

/* Once for each loop: what libev stops is told at once. */
void event_init(struct ev_loop *loop);

/* Tries again until the kernel takes it; the caller goes on, as if there were something to read or to write. */
static inline void event_keep(struct ev_loop *loop, struct ev_io *io, int events)
{
	if (!(events & EV_ERROR))
		return;
	ev_io_set(io, io->fd, io->events & (EV_READ | EV_WRITE)); /* else libev believes that the kernel has it */
	ev_io_start(loop, io);
}

#endif
