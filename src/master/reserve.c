/* SPDX-License-Identifier: MIT
 *
 * reserve: libev ends the program when it cannot grow a table. So it gets what was put aside for it; the next attempt of
 * anybody else fails and is handled there. Master and its children.
 */
#include "master.h"

enum { RESERVE_BYTES = 256 * 1024 };
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

void reserve_init(void)
{
	reserve = malloc(RESERVE_BYTES);
	ev_set_allocator(allocate);
}
