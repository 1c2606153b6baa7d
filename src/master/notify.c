/* SPDX-License-Identifier: MIT
 *
 * notify: tells systemd how it goes (man 3 sd_notify): one datagram to NOTIFY_SOCKET. The protocol is stable and small,
 * so libsystemd is not needed for it. The watchdog is fed by the master's loop: when that hangs, systemd starts us
 * anew. Master only.
 */
#include "master.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

void notify_tell(const struct master *m, const char *text, int with)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	size_t len = m->notify_path ? strlen(m->notify_path) : 0;
	if (len == 0 || len >= sizeof sun.sun_path)
		return;
	memcpy(sun.sun_path, m->notify_path, len);
	if (sun.sun_path[0] == '@') /* an abstract name */
		sun.sun_path[0] = '\0';
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	bool is_told = fd != -1 && connect(fd, (const struct sockaddr *)&sun, size) == 0 &&
		       net_send_fd(fd, text, strlen(text), with) == 0;
	if (fd != -1 && !is_told)
		log_debug("cannot tell systemd \"%s\": %m", text);
	if (fd != -1)
		close(fd);
}

static void tell(const struct master *m, const char *text)
{
	notify_tell(m, text, -1);
}

static void feed(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	tell(timer->data, "WATCHDOG=1");
}

void notify_feed(struct master *m)
{
	if (ev_is_active(&m->watchdog))
		tell(m, "WATCHDOG=1");
}

/* WATCHDOG_PID is who systemd started: a daemon's is gone, and its child is not watched. */
static void watchdog_start(struct master *m)
{
	const char *every = getenv("WATCHDOG_USEC"), *whom = getenv("WATCHDOG_PID");
	uint64_t every_us, pid;
	if (!every || text_parse_uint(every, &every_us) != 0 || every_us == 0)
		return;
	if (whom && (text_parse_uint(whom, &pid) != 0 || pid != (uint64_t)getpid()))
		return;
	ev_timer_init(&m->watchdog, feed, 0, (double)every_us / 2e6);
	m->watchdog.data = m;
	ev_timer_again(m->loop, &m->watchdog);
	notify_feed(m); /* the program before has not had the time to */
}

void notify_init(struct master *m)
{
	const char *path = getenv("NOTIFY_SOCKET");
	if (!path || (path[0] != '/' && path[0] != '@'))
		return;
	m->notify_path = path;
	watchdog_start(m);
}

void notify_status(struct master *m)
{
	char text[100];
	unsigned ready = 0;
	for (unsigned i = 0; i < m->n_slots; i++)
		ready += m->slots[i].restart.state == RESTART_READY;
	if (!m->has_started || m->is_draining || ready == m->notified_ready)
		return;
	m->notified_ready = ready;
	snprintf(text, sizeof text, "STATUS=%u of %u workers serve.", ready, m->n_slots);
	tell(m, text);
}

void notify_ready(struct master *m)
{
	char text[100];
	m->notified_ready = m->n_slots;
	/* a daemon is not whom systemd has started */
	snprintf(text, sizeof text, "READY=1\nMAINPID=%d\nSTATUS=%u of %u workers serve.", (int)getpid(), m->n_slots,
		 m->n_slots);
	tell(m, text);
	store_update(m);
}

void notify_reloading(struct master *m)
{
	char text[100];
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now); /* which systemd 253 wants, to tell this reload from an earlier one */
	snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=Reloading.",
		 (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000);
	tell(m, text);
}

void notify_stopping(struct master *m)
{
	store_clear(m);
	tell(m, "STOPPING=1\nSTATUS=Delivering what was accepted.");
}
