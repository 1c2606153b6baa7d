/* SPDX-License-Identifier: MIT
 *
 * What the files of base share, and what their tests reach for. Not for other folders.
 */
#ifndef BASE_PRIVATE_H
#define BASE_PRIVATE_H

#include <base.h>
#include <stdbool.h>
#include <stddef.h>

/* Gives up the descriptor of syslog; the next line opens a new one. proc_close_others calls it: closed behind our back,
 * its number would come back as a socket or a file, and log lines would be written into that. */
void log_syslog_close(void);
/* "<30>Nov 30 12:00:00 millrace[4711]: WHO: ". Returns its length. */
int log_syslog_head(char *buf, size_t size, int priority, const char *who);
/* False: the line is lost. Never waits. */
bool log_syslog_put(const char *line, size_t len);

/* The same for systemd's journal: the head is fields, a line each, and the begin of the last one. */
void log_journal_close(void);
int log_journal_head(char *buf, size_t size, int priority, const char *who);
bool log_journal_put(const char *line, size_t len);

/* What proc_close_others does where the kernel has no close_range(2) (before 5.9): closes first..last by the entries of
 * /proc/self/fd, or one by one up to the limit without /proc. */
void proc_close_span_slowly(unsigned first, unsigned last);

/* Only the system calls of this role from now on. 0, or -errno with err. */
int seccomp_install(enum privileges_role role, struct err *err);

#endif
