/* SPDX-License-Identifier: MIT
 *
 * The sink's ports: bind, listen, and the misbehaviour that tests ask for. A port that refuses stays bound,
 * so that nobody else gets its number: a TCP listener is shut down (Linux lets it listen again), a UDP socket is
 * connected away. Reading is sink_read.c.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hostport.h"
#include "sink.h"

static void socket_buffer(int fd, uint64_t bytes)
{
	int size = (int)MIN(bytes, (uint64_t)INT32_MAX / 2);

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)) == -1)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

static int port_socket(const struct sink *s, struct port *p, const char *address, struct err *err)
{
	/* Our own choice is far above what a test sends in a burst; --rcvbuf makes small windows. */
	uint64_t rcvbuf = s->opts.rcvbuf_bytes ? s->opts.rcvbuf_bytes : p->tcp ? 4 * MIB : 32 * MIB;
	int fd, on = 1;

	fd = socket(p->addr.ss_family, (p->tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return err_set(err, -errno, "no socket for %s: %s", address, strerror(errno));
	/* "[::]:P" and "0.0.0.0:P" side by side, as a daemon would have them. */
	if (p->addr.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (p->tcp)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	socket_buffer(fd, rcvbuf); /* before listen: the window scale is agreed in the handshake */
	if (bind(fd, (struct sockaddr *)&p->addr, p->addr_len) == -1) {
		int error = errno;

		close(fd);
		return err_set(err, -error, "cannot bind %s %s: %s%s", p->tcp ? "tcp" : "udp", address, strerror(error),
			       error == EADDRINUSE ? "; another program has this port" : "");
	}
	return fd;
}

/* Port 0: the kernel picks, then we bind to that number by name. A port that the kernel picked is given up by a
 * listener that is shut down and by a UDP socket that is disconnected (SOCK_BINDPORT_LOCK in the kernel's inet_bind);
 * a named one is kept. */
static int port_pick(const struct sink *s, struct port *p, const char *address, struct err *err)
{
	int rc = 0;

	for (int tries = 0; tries < 100; tries++) {
		int fd = port_socket(s, p, address, err);

		if (fd < 0)
			return fd;
		if (getsockname(fd, (struct sockaddr *)&p->addr, &p->addr_len) == -1)
			rc = -errno;
		close(fd);
		if (rc)
			return err_set(err, rc, "no name for %s: %s", address, strerror(-rc));
		fd = port_socket(s, p, address, err);
		if (fd >= 0 || fd != -EADDRINUSE)
			return fd;
		((struct sockaddr_in *)&p->addr)->sin_port = 0; /* the same place in sockaddr_in6 */
	}
	return -EADDRINUSE;
}

int sink_port_add(struct sink *s, const char *address, bool tcp, struct err *err)
{
	struct port *ports = realloc(s->ports, (s->n_ports + 1) * sizeof(*ports)), *p;
	int rc;

	if (!ports)
		return err_set(err, -ENOMEM, "out of memory");
	s->ports = ports;
	p = &ports[s->n_ports];
	memset(p, 0, sizeof(*p));
	p->fd = -1;
	p->tcp = tcp;
	p->watch.kind = tcp ? WATCH_LISTEN : WATCH_UDP;
	p->addr_len = sizeof(p->addr);
	rc = hostport_resolve(address, tcp ? SOCK_STREAM : SOCK_DGRAM, true, &p->addr, &p->addr_len, err);
	if (rc)
		return rc;
	if (((struct sockaddr_in *)&p->addr)->sin_port)
		p->fd = port_socket(s, p, address, err);
	else
		p->fd = port_pick(s, p, address, err);
	if (p->fd < 0)
		return p->fd;
	p->number = ntohs(((struct sockaddr_in *)&p->addr)->sin_port);
	hostport_format(p->name, sizeof(p->name), &p->addr, p->addr_len);
	p->slow_bytes = s->opts.slow_bytes;
	s->n_ports++;
	return 0;
}

static void watch_set(struct sink *s, int fd, struct watch *w, bool *watched, bool wanted)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = w};

	/* Out of the set, not without EPOLLIN: epoll reports EPOLLHUP and EPOLLERR regardless, in a busy loop. */
	if (fd != -1 && wanted != *watched && !epoll_ctl(s->epoll_fd, wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &ev))
		*watched = wanted;
}

bool sink_port_is_read(const struct port *p)
{
	return !p->stalled && (!p->slow_bytes || p->allowance_bytes > 0);
}

void sink_port_watch(struct sink *s, struct port *p)
{
	bool read = sink_port_is_read(p);

	watch_set(s, p->fd, &p->watch, &p->watched, p->tcp ? !p->refused : read);
	for (struct conn *c = p->conns; c; c = c->next)
		watch_set(s, c->fd, &c->watch, &c->watched, read);
}

int sink_ports_start(struct sink *s, struct err *err)
{
	for (size_t i = 0; i < s->n_ports; i++) {
		struct port *p = &s->ports[i];

		if (p->tcp && listen(p->fd, 1024) == -1)
			return err_set(err, -errno, "cannot listen on %s: %s", p->name, strerror(errno));
		sink_port_watch(s, p);
	}
	if (s->opts.stall)
		sink_stall(s, 0, true, s->opts.stall_us);
	return 0;
}

void sink_ports_close(struct sink *s)
{
	for (size_t i = 0; i < s->n_ports; i++) {
		sink_port_close_conns(s, &s->ports[i], false);
		if (s->ports[i].fd != -1)
			close(s->ports[i].fd);
	}
	sink_conns_bury(s);
	free(s->ports);
	s->ports = NULL;
	s->n_ports = 0;
}

#define FOR_PORTS(s, p, n)                                                                                             \
	for (struct port *p = (s)->ports; p < (s)->ports + (s)->n_ports; p++)                                          \
		if (!(n) || p->number == (n))

void sink_stall(struct sink *s, unsigned number, bool on, uint64_t stall_us)
{
	FOR_PORTS (s, p, number) {
		p->stalled = on;
		p->stall_until_us = on && stall_us ? clock_us() + stall_us : 0;
		sink_port_watch(s, p);
	}
}

void sink_slow(struct sink *s, unsigned number, uint64_t slow_bytes)
{
	FOR_PORTS (s, p, number) {
		p->slow_bytes = slow_bytes;
		p->allowance_bytes = 0;
		p->allowance_at_us = clock_us();
		sink_port_watch(s, p);
	}
}

void sink_reset(struct sink *s, unsigned number)
{
	FOR_PORTS (s, p, number)
		sink_port_close_conns(s, p, true);
}

/* A connected UDP socket gets nothing from others: they get ECONNREFUSED. Port 9 (discard) sends us nothing. */
static int udp_refuse(struct port *p, bool on)
{
	struct sockaddr_storage away = p->addr;
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	struct sockaddr_in6 *away6 = (struct sockaddr_in6 *)&away;
	struct sockaddr_in *away4 = (struct sockaddr_in *)&away;

	if (!on)
		return connect(p->fd, &none, sizeof(none));
	away4->sin_port = htons(9);
	if (away.ss_family == AF_INET && away4->sin_addr.s_addr == htonl(INADDR_ANY))
		away4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (away.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&away6->sin6_addr))
		away6->sin6_addr = in6addr_loopback;
	return connect(p->fd, (struct sockaddr *)&away, p->addr_len);
}

int sink_refuse(struct sink *s, unsigned number, bool on, struct err *err)
{
	FOR_PORTS (s, p, number) {
		int rc;

		if (p->refused == on)
			continue;
		p->refused = on;
		if (on)
			sink_port_watch(s, p);
		sink_port_close_conns(s, p, false);
		if (!p->tcp)
			rc = udp_refuse(p, on);
		else
			rc = on ? shutdown(p->fd, SHUT_RDWR) : listen(p->fd, 1024);
		if (rc == -1)
			return err_set(err, -errno, "cannot make %s %s connections: %s", p->name,
				       on ? "refuse" : "accept", strerror(errno));
		sink_port_watch(s, p);
	}
	return 0;
}

uint64_t sink_ports_tick(struct sink *s, uint64_t now_us)
{
	uint64_t next = 0;

	FOR_PORTS (s, p, 0) {
		if (p->stalled && p->stall_until_us && p->stall_until_us <= now_us)
			sink_stall(s, p->number, false, 0);
		if (p->stalled && p->stall_until_us)
			next = next ? MIN(next, p->stall_until_us) : p->stall_until_us;
		if (!p->slow_bytes)
			continue;
		if (now_us - p->allowance_at_us >= SINK_TICK_US) {
			uint64_t us = MIN(now_us - p->allowance_at_us, (uint64_t)1000000);
			uint64_t bytes = p->slow_bytes * us / 1000000;

			/* Time that has not made a whole byte yet stays; at most a tenth of a second is saved up. */
			p->allowance_at_us = now_us - (us - bytes * 1000000 / p->slow_bytes);
			p->allowance_bytes += (int64_t)bytes;
			p->allowance_bytes = MIN(p->allowance_bytes, (int64_t)MAX(p->slow_bytes / 10, (uint64_t)1));
			sink_port_watch(s, p);
		}
		next = next ? MIN(next, now_us + SINK_TICK_US) : now_us + SINK_TICK_US;
	}
	return next;
}
