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
	bool v6_only; /* to listen on [::] without IPv4, which has a socket of its own */
};

/* Numeric addresses only, never asks a server: "" (all addresses, IPv6 and IPv4), "10.0.0.1", "::1". 0 or -EINVAL. */
int net_address_parse(struct net_address *a, const char *host, uint16_t port);
uint16_t net_address_port(const struct net_address *a);
void net_address_set_port(struct net_address *a, uint16_t port);
/* The same address, port and interface. */
bool net_address_is_same(const struct net_address *a, const struct net_address *b);
/* An address to listen on: as above, or a name that this machine knows ("localhost"), asked of the system's resolver,
 * which may wait: master, at the start and at a reload. All addresses of the name, at most `max`: returns how many, or
 * -errno with err, in which `what` ("udp") and the address stand. */
int net_addresses_listen(struct net_address *a, unsigned max, const char *what, const char *host, uint16_t port,
			 struct err *err);
/* "10.0.0.1:8125", "[::1]:8125", a path. buf of 128 bytes. Returns buf. */
char *net_address_format(const struct sockaddr_storage *sa, char *buf, size_t size);

/* -- listening sockets: master, before fork. Descriptors are non-blocking and close-on-exec. -errno with err. ------ */

/* An address that nobody else has. A first bind with SO_REUSEPORT beside another program of the same user would succeed
 * and take half of its traffic, so a shared address gets the option after it; further sockets join the first. */
int net_udp_bind(const struct net_address *a, bool is_shared, struct err *err);
int net_udp_join(const struct net_address *a, struct err *err);
/* … bound and not listened on. */
int net_tcp_bind(const struct net_address *a, struct err *err);
int net_tcp_listen(const struct net_address *a, struct err *err);
/* A stale socket file (nobody answers) is replaced; one that is in use is an error. "@name" is abstract: no file. `type`:
 * SOCK_STREAM or SOCK_DGRAM. */
int net_unix_bind(const char *path, int type, unsigned mode, struct err *err);
/* Takes a UDP socket out of its group without a loss: what it holds can still be read, nothing new comes. */
void net_udp_leave(int fd);
/* Throws away what waits in a datagram socket. Returns how many datagrams. */
uint64_t net_discard_datagrams(int fd);
/* The longest IP datagram that the interface carries; 0: there is no such interface. */
uint32_t net_interface_mtu(const char *name);
/* A socket that had its address for itself becomes the first of a group. 0 or -errno with err. */
int net_udp_share(int fd, struct err *err);
/* The spread of the group is by the sender again. */
void net_reuseport_by_hash(int fd);
/* Every datagram goes to one of the group's n sockets at random, whoever sent it. On any socket of the group. */
int net_reuseport_random(int fd, unsigned n, struct err *err);
/* Asks for `bytes`, beyond net.core.rmem_max when allowed; *got is what SO_RCVBUF says then, halved (the kernel doubles
 * what is asked for its own overhead). Never fails: a shortfall is seen in *got. */
void net_receive_buffer(int fd, uint64_t bytes, uint64_t *got);
/* Likewise for what is sent, and nobody asks what it got. */
void net_send_buffer(int fd, uint64_t bytes);

/* SO_MEMINFO: bytes that wait in the socket's receive queue, and datagrams dropped since it was made. 0 or -errno. */
int net_socket_drops(int fd, uint64_t *queue_bytes, uint32_t *dropped);

/* -- descriptors over a socketpair ------------------------------------------------------------------------------- */

/* One message of `len` bytes with at most one descriptor (fd -1: none). 0 or -errno (-EAGAIN: try later). */
int net_send_fd(int sock, const void *msg, size_t len, int fd);
/* What net_send_fd returned will be different later: the socket is full (EAGAIN), which POLLOUT tells the end of; or the
 * user has too many descriptors in flight (ETOOMANYREFS, man 7 unix), or the kernel no memory: only time helps. */
bool net_is_for_later(int r);
/* … waits for that, at most most_us. */
void net_wait_to_send(int sock, int r, uint64_t most_us);
/* Returns the message's length (0: the peer is gone), or -errno. *fd is -1 or a descriptor that the caller owns. */
ssize_t net_recv_fd(int sock, void *msg, size_t size, int *fd);

/* -- names: worker, after fork --------------------------------------------------------------------------------------- */

/* Resolves off the loop's path, with c-ares. One resolver a process. */
struct net_resolver;
struct net_resolver *net_resolver_new(struct ev_loop *loop, struct err *err);
void net_resolver_free(struct net_resolver *r); /* cancels what is open; callbacks are not called any more */

enum { NET_ADDRESSES_MAX = 16 }; /* of one name */

/* Calls back exactly once, never from within this call: with n > 0 addresses (port filled in) and NULL, or with none and
 * the reason as text. Numeric hosts answer at the loop's next turn. First come those that this host has a way to, and of
 * these IPv4 before IPv6; else the order is that of the answer. The query can be cancelled until it called back. */
typedef void net_resolved_cb(void *arg, const struct net_address *a, unsigned n, const char *why_not);
struct net_query;
struct net_query *net_resolve(struct net_resolver *r, const char *host, uint16_t port, net_resolved_cb *cb, void *arg);
void net_query_cancel(struct net_query *q);

/* -- what the kernel says of the whole host: any process ----------------------------------------------------------- */

/* UDP of one family since the machine started: what netstat -s -u shows. in_errors contains the three kinds below it. */
struct net_udp_totals {
	uint64_t in_datagrams, no_ports, in_errors;
	uint64_t rcvbuf_errors, csum_errors, mem_errors;
};
/* Reads the text of /proc/net/snmp ("Udp:") or /proc/net/snmp6 ("Udp6InDatagrams"); what does not stand there is 0. True
 * when InDatagrams was found. Pure. */
bool net_udp_totals_parse(struct net_udp_totals *totals, const char *snmp);
bool net_udp6_totals_parse(struct net_udp_totals *totals, const char *snmp6);

/* One line of /proc/net/udp or udp6. False: it is none. Pure. */
struct net_udp_socket {
	uint64_t inode, queue_bytes, dropped;
	uint16_t port;
};
bool net_udp_socket_parse(struct net_udp_socket *s, const char *line);

/* What an interface received and lost since it was made: the numbers of /sys/class/net/NAME/statistics. */
struct net_interface {
	char name[16];
	unsigned ifindex;
	uint64_t rx_packets, rx_missed, rx_fifo, rx_dropped, rx_errors;
};
/* Adds the interfaces in one datagram of rtnetlink (RTM_NEWLINK) to to[*n], at most `max`; not lo, and not those that show
 * other interfaces' packets again (bonds, bridges, VLANs and their like). Returns 1 when more datagrams follow, 0 after
 * the last, or -errno that the kernel answered (-EPROTO: what is no answer). Pure. */
int net_interfaces_parse(struct net_interface *to, unsigned max, unsigned *n, const void *answer, size_t len);

enum { NET_INTERFACES_MAX = 64, NET_HOST_SOCKETS_MAX = 65536 };
struct net_host {
	bool has_udp, has_interfaces; /* else what follows was not to be had, and is 0 */
	struct net_udp_totals udp, udp6;
	unsigned n_interfaces;
	struct net_interface interfaces[NET_INTERFACES_MAX];
	unsigned n_sockets; /* UDP sockets of all programs; 0 when they were not asked for */
	struct net_udp_socket *sockets;
};

/* Reads them again and again, through descriptors that stay open. Of the network namespace of process `pid` (0: our own);
 * interfaces are known of our own only. Rtnetlink and not /sys/class/net: the latter shows the namespace that it was
 * mounted in. Reading needs no privileges, and but for the sockets allocates nothing. NULL: no memory. */
struct net_host_reader;
struct net_host_reader *net_host_open(int64_t pid);
void net_host_close(struct net_host_reader *r); /* NULL is fine */
/* The present numbers; valid until the next call. Sockets cost the most: the kernel walks its whole table. */
const struct net_host *net_host_read(struct net_host_reader *r, bool with_sockets);

#endif
