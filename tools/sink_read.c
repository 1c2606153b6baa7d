/* SPDX-License-Identifier: MIT
 *
 * The sink's traffic: accepts, reads datagrams and streams, closes connections. Only bytes that were really read are
 * counted, and only whole lines: what a connection leaves behind without newline is `partial` (the peer left it) or
 * `cut` (we closed within a line).
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sink.h"

static void conn_free(struct conn *c)
{
	free(c->carry);
	free(c);
}

void sink_conns_bury(struct sink *s)
{
	while (s->dead) {
		struct conn *c = s->dead;

		s->dead = c->next;
		conn_free(c);
	}
}

static void conn_close(struct sink *s, struct conn *c, bool by_peer, bool rst)
{
	struct port *p = c->port;

	if (rst) {
		struct linger now = {.l_onoff = 1, .l_linger = 0};

		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		p->counts.resets++;
	}
	if (c->mid_line && by_peer)
		p->counts.partial++;
	else if (c->mid_line)
		p->counts.cut++;
	close(c->fd);
	c->fd = -1;
	if (c->prev)
		c->prev->next = c->next;
	else
		p->conns = c->next;
	if (c->next)
		c->next->prev = c->prev;
	c->next = s->dead;
	s->dead = c;
}

void sink_port_close_conns(struct sink *s, struct port *p, bool rst)
{
	while (p->conns)
		conn_close(s, p->conns, false, rst);
}

void sink_listen_ready(struct sink *s, struct port *p)
{
	for (;;) {
		int fd = accept4(p->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct conn *c;

		if (fd == -1) /* EMFILE too: the client waits in the backlog until a connection ends */
			return;
		c = calloc(1, sizeof(*c));
		if (!c) {
			close(fd);
			return;
		}
		c->watch.kind = WATCH_CONN;
		c->fd = fd;
		c->port = p;
		c->next = p->conns;
		if (c->next)
			c->next->prev = c;
		p->conns = c;
		p->counts.connections++;
		sink_port_watch(s, p);
	}
}

static void port_charge(struct sink *s, struct port *p, size_t bytes)
{
	s->touched = true;
	p->counts.bytes += bytes;
	if (!p->slow_bytes)
		return;
	p->allowance_bytes -= (int64_t)bytes;
	if (p->allowance_bytes <= 0)
		sink_port_watch(s, p);
}

/* Memory of the first recvmmsg, kept for good. The stride is not a power of two: at 65,536 all datagrams would start in
 * the same set of the cache. */
void sink_udp_ready(struct sink *s, struct port *p)
{
	enum { STRIDE = SINK_DATAGRAM_BYTES + 4096 + 64 };
	static struct mmsghdr msgs[SINK_DATAGRAMS];
	static struct iovec iov[SINK_DATAGRAMS];
	static char *memory;
	int n;

	if (!memory) {
		memory = malloc((size_t)SINK_DATAGRAMS * STRIDE);
		BUG_ON(!memory);
		for (size_t i = 0; i < SINK_DATAGRAMS; i++) {
			iov[i] = (struct iovec){memory + i * STRIDE, SINK_DATAGRAM_BYTES};
			msgs[i].msg_hdr.msg_iov = &iov[i];
			msgs[i].msg_hdr.msg_iovlen = 1;
		}
	}
	if (!sink_port_is_read(p))
		return;
	n = recvmmsg(p->fd, msgs, p->slow_bytes ? 1 : SINK_DATAGRAMS, MSG_DONTWAIT, NULL);
	for (int i = 0; i < n; i++) {
		const char *bytes = iov[i].iov_base;
		size_t len = msgs[i].msg_len;

		p->counts.datagrams++;
		if (sink_lines_wanted(s))
			sink_lines_take(s, p, &p->next_number, bytes, len, true);
		else
			p->counts.lines += sink_newlines(bytes, len) + (len && bytes[len - 1] != '\n');
		port_charge(s, p, len);
	}
}

/* The carry comes before the bytes just read; returns the bytes that begin a line. */
static void conn_lines(struct sink *s, struct conn *c, char *bytes, size_t len)
{
	struct port *p = c->port;
	size_t taken = 0;

	if (!sink_lines_wanted(s)) {
		p->counts.lines += sink_newlines(bytes, len);
		c->mid_line = bytes[len - 1] != '\n';
		return;
	}
	if (c->skipping) {
		char *nl = memchr(bytes, '\n', len);

		if (!nl)
			return;
		taken = (size_t)(nl - bytes) + 1;
		c->skipping = false;
		p->counts.lines++;
		p->counts.malformed++;
	} else {
		bytes -= c->carry_len;
		len += c->carry_len;
		if (c->carry_len)
			memcpy(bytes, c->carry, c->carry_len);
	}
	taken += sink_lines_take(s, p, &c->next_number, bytes + taken, len - taken, false);
	c->carry_len = len - taken;
	c->mid_line = c->carry_len > 0;
	if (c->carry_len > c->carry_size && c->carry_len <= SINK_LINE_BYTES) {
		free(c->carry);
		c->carry_size = MAX(c->carry_len, (size_t)512);
		c->carry = malloc(c->carry_size);
		BUG_ON(!c->carry);
	}
	if (c->carry_len > SINK_LINE_BYTES) {
		c->carry_len = 0;
		c->skipping = true;
	} else if (c->carry_len) {
		memcpy(c->carry, bytes + taken, c->carry_len);
	}
}

void sink_conn_ready(struct sink *s, struct conn *c)
{
	struct port *p = c->port;
	char *bytes = s->buf + SINK_LINE_BYTES;
	size_t room = SINK_READ_BYTES;
	ssize_t r;

	if (c->fd == -1 || !sink_port_is_read(p))
		return;
	if (p->slow_bytes)
		room = MIN(room, (size_t)p->allowance_bytes);
	if (s->opts.close_after_bytes)
		room = MIN(room, s->opts.close_after_bytes - c->bytes);
	r = read(c->fd, bytes, room);
	if (r == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (r <= 0) {
		p->counts.peer_resets += r == -1;
		conn_close(s, c, true, false);
		return;
	}
	c->bytes += (size_t)r;
	conn_lines(s, c, bytes, (size_t)r);
	port_charge(s, p, (size_t)r);
	if (s->opts.close_after_bytes && c->bytes >= s->opts.close_after_bytes)
		conn_close(s, c, false, false);
	if (s->opts.reset_lines && p->counts.lines - p->reset_mark_lines >= s->opts.reset_lines) {
		p->reset_mark_lines = p->counts.lines;
		sink_port_close_conns(s, p, true);
	}
}
