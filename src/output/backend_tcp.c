/* SPDX-License-Identifier: MIT
 *
 * backend_tcp: one TCP connection to a backend. Worker only. A line is delivered when the peer's kernel acknowledged
 * its last byte: TCP_INFO tells (tcp(7); tcpi_bytes_acked since Linux 4.1, tcpi_snd_wnd since 5.4), and still tells
 * after a reset, as long as the socket is open. What the peer sends is thrown away.
 */
#include "statsite.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

enum { SEND_PIECES = 64, READ_TIMES = 16, KEEPALIVE_IDLE_S = 30, KEEPALIVE_EVERY_S = 10, KEEPALIVE_TIMES = 3 };

static void set_option(int fd, int level, int option, int value)
{
	/* Each is a precaution, none a condition for sending. */
	(void)setsockopt(fd, level, option, &value, sizeof(value));
}

void backend_tcp_set_options(struct backend *be)
{
	if (be->fd != -1)
		set_option(be->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(be->st->out->cf->user_timeout / 1000));
}

int backend_tcp_connect(struct backend *be, const struct net_address *a)
{
	const struct conf_output *cf = be->st->out->cf;
	if (backend_socket(be, a->sa.ss_family, SOCK_STREAM) == -1)
		return -1;
	set_option(be->fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_option(be->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	set_option(be->fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
	set_option(be->fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
	set_option(be->fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_TIMES);
	backend_tcp_set_options(be);
	be->state = BACKEND_CONNECTING;
	if (connect(be->fd, (const struct sockaddr *)&a->sa, a->len) == -1) {
		if (errno != EINPROGRESS)
			return -1;
		bool is_last = be->n_tried >= be->n_addresses;
		double timeout_ms = is_last ? CONNECT_TIMEOUT_MS : NEXT_TIMEOUT_MS;
		ev_timer_set(&be->timer, MIN((double)cf->user_timeout / 1e6, timeout_ms / 1e3), 0.);
		ev_timer_start(be->st->out->loop, &be->timer);
		backend_watch(be);
		return 0;
	}
	backend_tcp_connected(be);
	return 0;
}

/* A connect to a free port of the ephemeral range may get that very port as its own and meet itself (simultaneous open,
 * RFC 9293 3.5): it would swallow lines and keep the real backend from binding its port. */
static bool is_own_end(int fd)
{
	struct sockaddr_storage own = {0}, peer = {0};
	socklen_t own_len = sizeof(own), peer_len = sizeof(peer);
	return getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 &&
	       getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 && own_len == peer_len &&
	       memcmp(&own, &peer, own_len) == 0;
}

static bool ask_kernel(int fd, struct tcp_info *info)
{
	socklen_t len = sizeof(*info);
	memset(info, 0, sizeof(*info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == -1)
		return false;
	if (len < offsetof(struct tcp_info, tcpi_snd_wnd) + sizeof(info->tcpi_snd_wnd))
		info->tcpi_snd_wnd = UINT32_MAX; /* not known: all is at risk */
	return true;
}

void backend_tcp_connected(struct backend *be)
{
	int code = 0;
	socklen_t len = sizeof(code);
	struct tcp_info info;
	if (getsockopt(be->fd, SOL_SOCKET, SO_ERROR, &code, &len) == -1)
		code = errno;
	if (code == 0 && is_own_end(be->fd))
		code = ECONNREFUSED;
	if (code == 0 && !ask_kernel(be->fd, &info))
		code = errno;
	if (code != 0) {
		backend_lost(be, strerror(code));
		return;
	}
	be->sent_bytes = be->acked_bytes = be->polled_at_bytes = 0;
	be->acked_base_bytes = info.tcpi_bytes_acked;
	risk_init(&be->risk);
	risk_acked(&be->risk, 0, 0, info.tcpi_snd_wnd);
	backend_up(be);
}

bool backend_tcp_settle(struct backend *be)
{
	struct tcp_info info;
	struct queue *q = &be->queue;
	if (be->sent_bytes == be->acked_bytes || !ask_kernel(be->fd, &info))
		return false;
	be->polled_at_bytes = be->sent_bytes;
	/* Between what we know and what we sent, whatever the kernel says. */
	uint64_t acked = MIN(info.tcpi_bytes_acked - be->acked_base_bytes, be->sent_bytes);
	uint64_t n = acked > be->acked_bytes ? acked - be->acked_bytes : 0;
	uint64_t lines = q->done_lines, bytes = q->done_bytes;
	be->acked_bytes += n;
	queue_acked(q, n);
	lines = q->done_lines - lines;
	be->draft->delivered_records += lines;
	be->draft->delivered_bytes += q->done_bytes - bytes;
	risk_acked(&be->risk, n, lines, info.tcpi_snd_wnd);
	if (be->acked_bytes == be->sent_bytes && !be->is_short && !be->is_leaving)
		statsite_settled(be);
	return n > 0;
}

static void count_sent(struct backend *be, uint64_t n)
{
	queue_sent(&be->queue, n);
	be->sent_bytes += n;
	be->draft->sent_bytes += n;
	be->draft->sends++;
	statsite_unsettled(be);
}

static uint64_t may_send_bytes(const struct backend *be)
{
	return be->is_leaving ? queue_begun_bytes(&be->queue) : queue_unsent_bytes(&be->queue);
}

void backend_tcp_send(struct backend *be)
{
	uint64_t left_bytes;
	struct queue *q = &be->queue;
	struct iovec iov[SEND_PIECES];
	uint64_t turn_bytes = 0;
	/* What the last 64 KiB brought is known by now; frees its chunks before new ones are taken. */
	if (be->sent_bytes - be->polled_at_bytes >= SEND_BYTES)
		backend_tcp_settle(be);
	while ((left_bytes = may_send_bytes(be)) > 0) {
		if (turn_bytes >= TURN_BYTES) {
			backend_set_blocked(be, true);
			return;
		}
		size_t n_pieces = queue_unsent(q, iov, SEND_PIECES, MIN(left_bytes, TURN_BYTES));
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n_pieces};
		ssize_t n = sendmsg(be->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n >= 0) {
			count_sent(be, (uint64_t)n);
			turn_bytes += (uint64_t)n;
			continue;
		}
		switch (errno) {
		case EINTR:
			continue;
		case EAGAIN:
			backend_set_blocked(be, true);
			return;
		case ENOBUFS:
		case ENOMEM:
			be->is_short = true;
			backend_set_blocked(be, true);
			statsite_unsettled(be);
			return;
		default:
			backend_lost(be, strerror(errno));
			return;
		}
	}
}

/* MSG_TRUNC on TCP: the kernel drops the bytes without copying them (tcp(7)). */
void backend_tcp_read(struct backend *be)
{
	for (int i = 0; i < READ_TIMES; i++) {
		ssize_t n = recv(be->fd, NULL, SEND_BYTES, MSG_TRUNC | MSG_DONTWAIT);
		if (n > 0)
			continue;
		if (n == 0)
			backend_lost(be, "closed by the peer");
		else if (errno == EINTR)
			continue;
		else if (errno != EAGAIN)
			backend_lost(be, strerror(errno));
		return;
	}
}

void backend_tcp_close(struct backend *be)
{
	/* Closed with unread bytes, the socket would send a reset, which makes the peer throw away what it has not read
	 * yet (RFC 2525 2.17). */
	for (int i = 0; i < READ_TIMES; i++)
		if (recv(be->fd, NULL, SEND_BYTES, MSG_TRUNC | MSG_DONTWAIT) <= 0)
			break;
	(void)shutdown(be->fd, SHUT_WR);
}
