/* SPDX-License-Identifier: MIT
 *
 * net: addresses, sockets, name resolution, what the kernel says about sockets.
 */
#ifndef NET_H
#define NET_H

#include <base.h>
#include <sys/socket.h>

struct ev_loop;

struct net_address {
	struct sockaddr_storage sa;
	socklen_t len;
};

/* Numeric addresses only, never asks a server: "" (all addresses, IPv6 and IPv4), "10.0.0.1", "::1". 0 or -EINVAL. */
int net_address_parse(struct net_address *a, const char *host, uint16_t port);
/* An address to listen on: as above, or a name that this machine knows ("localhost"), asked of the system's resolver,
 * which may wait: master, at the start only. 0, or -errno with err, in which `what` ("udp") and the address stand. */
int net_address_listen(struct net_address *a, const char *what, const char *host, uint16_t port, struct err *err);
/* "10.0.0.1:8125", "[::1]:8125", a path. buf of 128 bytes. Returns buf. */
char *net_address_format(const struct sockaddr_storage *sa, char *buf, size_t size);

/* -- listening sockets: master, before fork. Descriptors are non-blocking and close-on-exec. -errno with err. ------ */

/* An address that nobody else has. A first bind with SO_REUSEPORT beside another program of the same user would succeed
 * and take half of its traffic, so a shared address gets the option after it; further sockets join the first. */
int net_udp_bind(const struct net_address *a, bool is_shared, struct err *err);
int net_udp_join(const struct net_address *a, struct err *err);
int net_tcp_listen(const struct net_address *a, struct err *err);
/* A stale socket file (nobody answers) is replaced; one that is in use is an error. `type`: SOCK_STREAM or SOCK_DGRAM. */
int net_unix_bind(const char *path, int type, unsigned mode, struct err *err);
/* Takes a UDP socket out of its group without a loss: what it holds can still be read, nothing new comes. */
void net_udp_leave(int fd);
/* A socket that had its address for itself becomes the first of a group. 0 or -errno with err. */
int net_udp_share(int fd, struct err *err);
/* The spread of the group is by the sender again. */
void net_reuseport_by_hash(int fd);
/* Every datagram goes to one of the group's n sockets at random, whoever sent it. On any socket of the group. */
int net_reuseport_random(int fd, unsigned n, struct err *err);
/* Asks for `bytes`, beyond net.core.rmem_max when allowed; *got is what SO_RCVBUF says then, halved (the kernel doubles
 * what is asked for its own overhead). Never fails: a shortfall is seen in *got. */
void net_receive_buffer(int fd, uint64_t bytes, uint64_t *got);

/* SO_MEMINFO: bytes that wait in the socket's receive queue, and datagrams dropped since it was made. 0 or -errno. */
int net_socket_drops(int fd, uint64_t *queue_bytes, uint32_t *dropped);

/* -- descriptors over a socketpair ------------------------------------------------------------------------------- */

/* One message of `len` bytes with at most one descriptor (fd -1: none). 0 or -errno (-EAGAIN: try later). */
int net_send_fd(int sock, const void *msg, size_t len, int fd);
/* Returns the message's length (0: the peer is gone), or -errno. *fd is -1 or a descriptor that the caller owns. */
ssize_t net_recv_fd(int sock, void *msg, size_t size, int *fd);

/* -- names: worker, after fork --------------------------------------------------------------------------------------- */

/* Resolves off the loop's path, with c-ares. One resolver a process. */
struct net_resolver;
struct net_resolver *net_resolver_new(struct ev_loop *loop, struct err *err);
void net_resolver_free(struct net_resolver *r); /* cancels what is open; callbacks are not called any more */

/* Calls back exactly once, never from within this call: with an address (port filled in) and NULL, or with NULL and
 * the reason as text. Numeric hosts answer at the loop's next turn. Only the first address is given, IPv4 before IPv6.
 * The query can be cancelled until it called back. */
typedef void net_resolved_cb(void *arg, const struct net_address *a, const char *why_not);
struct net_query;
struct net_query *net_resolve(struct net_resolver *r, const char *host, uint16_t port, net_resolved_cb *cb, void *arg);
void net_query_cancel(struct net_query *q);

#endif
