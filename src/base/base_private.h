/* SPDX-License-Identifier: MIT
 *
 * What the files of base share, and what their tests reach for. Not for other folders.
 */
#ifndef BASE_PRIVATE_H
#define BASE_PRIVATE_H

/* Gives up the descriptor that syslog(3) holds; the next line opens a new one. proc_close_others calls it: closed
 * behind syslog's back, its number would come back as a socket or a file, and log lines would be written into that. */
void log_release_descriptor(void);

/* What proc_close_others does where the kernel has no close_range(2) (before 5.9): closes first..last by the entries of
 * /proc/self/fd, or one by one up to the limit without /proc. */
void proc_close_span_slowly(unsigned first, unsigned last);

#endif
