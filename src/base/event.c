/* SPDX-License-Identifier: MIT
 *
 * event: see event.h. libev stops a watcher when it is about to wait, and would call it only after that wait: up to a
 * minute.
 */
#include <event.h>

static struct ev_async wake; /* a process has one loop */

static void woken(struct ev_loop *loop, struct ev_async *async, int events)
{
	(void)loop, (void)async, (void)events;
}

static void about_to_wait(struct ev_loop *loop)
{
	if (ev_pending_count(loop) > 0)
		ev_async_send(loop, &wake);
}

void event_init(struct ev_loop *loop)
{
	ev_async_init(&wake, woken);
	ev_async_start(loop, &wake);
	ev_unref(loop);
	ev_set_loop_release_cb(loop, about_to_wait, NULL);
}
