/* SPDX-License-Identifier: MIT
 *
 * The counter pages as a reader of another process gets them.
 */
#ifndef STATS_RIG_H
#define STATS_RIG_H

#include <stats.h>

static inline struct stats *reader_open(const struct stats *st, struct err *err)
{
	int fds[STATS_SLOTS_MAX * STATS_SLOT_PAGES + 2];
	unsigned n = stats_files(st);
	for (unsigned i = 0; i < n; i++)
		fds[i] = stats_reader_fd(st, i);
	return stats_open(fds, n, err);
}

#endif
