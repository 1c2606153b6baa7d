/* SPDX-License-Identifier: MIT
 *
 * log_journal: lines for systemd's journal in its own protocol (systemd's JOURNAL_NATIVE_PROTOCOL): a datagram of
 * FIELD=VALUE lines. Never waits: while journald is away or behind, the line is lost.
 */
#include "base_private.h"

#include <base.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int the_fd = -1;

void log_journal_close(void)
{
	if (the_fd != -1)
		close(the_fd);
	the_fd = -1;
}

int log_journal_head(char *buf, size_t size, int priority, const char *who)
{
	return snprintf(buf, size, "PRIORITY=%d\nSYSLOG_FACILITY=3\nSYSLOG_IDENTIFIER=millrace\nMESSAGE=%s: ", priority,
			who);
}

bool log_journal_put(const char *line, size_t len)
{
	static const struct sockaddr_un sun = {.sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket"};
	if (the_fd == -1)
		the_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* not connected: a journald that was restarted has a new socket */
	return the_fd != -1 && sendto(the_fd, line, len, MSG_NOSIGNAL | MSG_DONTWAIT, (const struct sockaddr *)&sun,
				      sizeof(sun)) == (ssize_t)len;
}
