/* SPDX-License-Identifier: MIT
 *
 * descriptors: how many are open, for tests that look for one that stays.
 */
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

#include <fcntl.h>

static inline unsigned open_descriptors(void)
{
	unsigned n = 0;
	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) != -1;
	return n;
}

#endif
