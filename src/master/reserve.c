/* SPDX-License-Identifier: MIT
 *
 * reserve: libev ends the program when it cannot grow a table. So it gets what was put aside for it; the next attempt of
 * anybody else fails and is handled there. It ends it, too, when it cannot have another epoll set, which it makes anew
 * whenever it hears of a descriptor that we have closed and a child has not: that it tries again. Master and its children.
 */
#include "master.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { RESERVE_BYTES = 256 * 1024, SAY_AGAIN_US = 60000000 };
static void *reserve;

static void *allocate(void *old, long size)
{
	if (size == 0) {
		free(old);
		return NULL;
	}
	void *new = realloc(old, (size_t)size);
	if (new == NULL && reserve != NULL) {
		free(reserve);
		reserve = NULL;
		new = realloc(old, (size_t)size);
		log_error("no memory for the event loop: it has its reserve");
	} else if (reserve == NULL) {
		reserve = malloc(RESERVE_BYTES);
	}
	return new;
}

static void try_again(const char *what)
{
	const struct timespec pause = {.tv_nsec = 1000000};
	static uint64_t said_us;
	int code = errno;
	if (code != EMFILE && code != ENFILE && code != ENOMEM) {
		log_error("%s: %s", what, strerror(code));
		abort();
	}
	if (said_us == 0 || clock_us() - said_us > SAY_AGAIN_US) {
		said_us = clock_us();
		log_error("%s: %s: the event loop stands still until it can be had", what, strerror(code));
	}
	nanosleep(&pause, NULL);
}

void reserve_init(void)
{
	ev_set_syserr_cb(try_again);
	reserve = malloc(RESERVE_BYTES);
	ev_set_allocator(allocate);
}
