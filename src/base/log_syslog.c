/* SPDX-License-Identifier: MIT
 *
 * log_syslog: lines for the system's log, as syslog(3) would write them, but never waiting: syslog(3) blocks while a
 * syslogd that hangs leaves its queue full (10 messages; man 7 unix, max_dgram_qlen), and a relay would stop with it.
 */
#include "base_private.h"

#include <base.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

static int the_fd = -1;
static bool the_fd_is_stream; /* where each message ends with a NUL */

void log_syslog_close(void)
{
	if (the_fd != -1)
		close(the_fd);
	the_fd = -1;
}

int log_syslog_head(char *buf, size_t size, int priority, const char *who)
{
	time_t now = (time_t)(clock_real_us() / 1000000);
	struct tm tm;
	char stamp[32] = "";
	if (localtime_r(&now, &tm)) /* the form has no room for a zone */
		strftime(stamp, sizeof(stamp), "%b %e %H:%M:%S ", &tm);
	return snprintf(buf, size, "<%d>%smillrace[%d]: %s: ", LOG_DAEMON | priority, stamp, (int)getpid(), who);
}

static void connect_to(int type)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
	the_fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	the_fd_is_stream = type == SOCK_STREAM;
	if (the_fd == -1 || connect(the_fd, (const struct sockaddr *)&sun, sizeof(sun)) == 0)
		return;
	bool is_stream = errno == EPROTOTYPE;
	log_syslog_close();
	if (is_stream && type == SOCK_DGRAM)
		connect_to(SOCK_STREAM);
}

bool log_syslog_put(const char *line, size_t len)
{
	for (int i = 0; i < 2; i++) { /* a syslogd that was restarted has a new socket: once more */
		if (the_fd == -1)
			connect_to(SOCK_DGRAM);
		if (the_fd == -1)
			return false;
		struct iovec parts[] = {{(void *)(uintptr_t)line, len}, {(void *)(uintptr_t)"", the_fd_is_stream}};
		struct msghdr msg = {.msg_iov = parts, .msg_iovlen = ARRAY_LEN(parts)};
		ssize_t n = sendmsg(the_fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n == (ssize_t)(len + the_fd_is_stream))
			return true;
		if (n == -1 && (errno == EAGAIN || errno == ENOBUFS))
			return false;
		log_syslog_close(); /* also of a stream that took a part of the line */
	}
	return false;
}
