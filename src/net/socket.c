/* SPDX-License-Identifier: MIT
 *
 * Listening sockets, made by the master before fork. Every refusal is one sentence that says what to do. Does not read
 * or write any payload, and asks no name server.
 */
#include <net.h>

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/filter.h>
#include <linux/sock_diag.h>
#include <netdb.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { LISTEN_BACKLOG = 4096 };

static int explain_bind(struct err *err, int code, const char *what, const char *name)
{
	switch (code) {
	case EADDRINUSE:
		return err_set(
		    err, -code,
		    "Cannot listen on %s %s: the address is in use by another program (ss -lnp shows which); stop "
		    "it or choose another port or path.",
		    what, name);
	case EACCES:
	case EPERM:
		return err_set(
		    err, -code,
		    "Cannot listen on %s %s: permission denied; ports below 1024 need root or CAP_NET_BIND_SERVICE, "
		    "a socket file needs a folder that this user may write to.",
		    what, name);
	case EADDRNOTAVAIL:
		return err_set(err, -code,
			       "Cannot listen on %s %s: this machine has no such address (ip address shows them).",
			       what, name);
	case ENOENT:
		return err_set(err, -code, "Cannot listen on %s %s: the folder does not exist; make it first.", what,
			       name);
	default:
		return err_set(err, -code, "Cannot listen on %s %s: %s.", what, name, strerror(code));
	}
}

int net_addresses_listen(struct net_address *a, unsigned max, const char *what, const char *host, uint16_t port,
			 struct err *err)
{
	if (net_address_parse(a, host, port) == 0)
		return 1;
	char service[8];
	int n = 0;
	struct addrinfo *found, hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_DGRAM};
	snprintf(service, sizeof service, "%u", port);
	int r = getaddrinfo(host, service, &hints, &found);
	if (r != 0)
		return err_set(err, -EINVAL, "Cannot listen on %s %s:%u: %s; give a numeric address of this machine.",
			       what, host, port, gai_strerror(r));
	for (const struct addrinfo *each = found; each && n < (int)max; each = each->ai_next, n++) {
		a[n] = (struct net_address){.len = each->ai_addrlen};
		memcpy(&a[n].sa, each->ai_addr, each->ai_addrlen);
	}
	freeaddrinfo(found);
	return n;
}

static int set_int(int fd, int level, int option, int value)
{
	return setsockopt(fd, level, option, &value, sizeof value);
}

static int inet_bind(const struct net_address *a, int type, int reuse_option, const char *what, struct err *err)
{
	char name[128];
	net_address_format(&a->sa, name, sizeof name);
	int fd = socket(a->sa.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return explain_bind(err, errno, what, name);
	if (reuse_option && set_int(fd, SOL_SOCKET, reuse_option, 1) == -1)
		goto failed;
	/* "" binds :: and takes IPv4 too; an IPv6 literal is that address only */
	if (a->sa.ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const void *)&a->sa;
		bool v6_only = a->v6_only || !IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr);
		if (set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, v6_only) == -1)
			goto failed;
	}
	if (bind(fd, (const struct sockaddr *)&a->sa, a->len) == -1)
		goto failed;
	return fd;
failed:
	explain_bind(err, errno, what, name);
	int code = -errno;
	close(fd);
	return code;
}

int net_udp_bind(const struct net_address *a, bool is_shared, struct err *err)
{
	int fd = inet_bind(a, SOCK_DGRAM, 0, "udp", err);
	if (fd < 0 || !is_shared || set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1) == 0)
		return fd;
	char name[128];
	int code = errno;
	close(fd);
	return explain_bind(err, code, "udp", net_address_format(&a->sa, name, sizeof name));
}

int net_udp_join(const struct net_address *a, struct err *err)
{
	return inet_bind(a, SOCK_DGRAM, SO_REUSEPORT, "udp", err);
}

int net_tcp_bind(const struct net_address *a, struct err *err)
{
	/* SO_REUSEADDR: connections of a former life in TIME_WAIT do not keep us from listening */
	return inet_bind(a, SOCK_STREAM, SO_REUSEADDR, "tcp", err);
}

int net_tcp_listen(const struct net_address *a, struct err *err)
{
	int fd = net_tcp_bind(a, err);
	if (fd < 0)
		return fd;
	if (listen(fd, LISTEN_BACKLOG) == -1) {
		char name[128];
		int code = errno;
		close(fd);
		return explain_bind(err, code, "tcp", net_address_format(&a->sa, name, sizeof name));
	}
	return fd;
}

/* A socket file stays behind when its program is killed. Nobody answers on such a one. */
static bool is_stale(const struct sockaddr_un *sun, int type)
{
	struct stat sb;
	if (lstat(sun->sun_path, &sb) == -1 || !S_ISSOCK(sb.st_mode))
		return false;
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd == -1)
		return false;
	bool refused = connect(fd, (const struct sockaddr *)sun, sizeof *sun) == -1 && errno == ECONNREFUSED;
	close(fd);
	return refused;
}

/* Two that start at once would find the same stale file, and the later one would take what the earlier has just bound.
 * Somebody who keeps the folder locked for longer keeps us only from this precaution. -1: not locked. */
static int lock_folder(const char *path)
{
	char copy[sizeof(struct sockaddr_un)];
	strcpy(copy, path); /* net_unix_bind has looked at its length */
	int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; fd != -1 && i < 100 && flock(fd, LOCK_EX | LOCK_NB) == -1; i++)
		usleep(10000);
	return fd;
}

/* A name instead of a file (unix(7)): nothing of it stays behind, and nobody's mode guards it. Takes fd. */
static int bind_abstract(int fd, struct sockaddr_un *sun, int type, const char *what, struct err *err)
{
	char path[sizeof(sun->sun_path)];
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(sun->sun_path));
	strcpy(path, sun->sun_path);
	sun->sun_path[0] = '\0';
	if (bind(fd, (const struct sockaddr *)sun, len) == 0 && (type != SOCK_STREAM || listen(fd, LISTEN_BACKLOG) == 0))
		return fd;
	int code = errno;
	close(fd);
	return explain_bind(err, code, what, path);
}

int net_unix_bind(const char *path, int type, unsigned mode, struct err *err)
{
	const char *what = type == SOCK_DGRAM ? "unixgram" : "unix";
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof sun.sun_path)
		return err_set(err, -ENAMETOOLONG,
			       "Cannot listen on %s %s: the path is longer than %zu bytes; choose a shorter one.", what,
			       path, sizeof sun.sun_path - 1);
	strcpy(sun.sun_path, path);
	int fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return explain_bind(err, errno, what, path);
	if (path[0] == '@')
		return bind_abstract(fd, &sun, type, what, err);
	int lock = lock_folder(path), code = 0;
	if (is_stale(&sun, type))
		unlink(path);
	if (bind(fd, (const struct sockaddr *)&sun, sizeof sun) == -1) {
		code = errno;
	} else if (chmod(path, mode) == -1 || (type == SOCK_STREAM && listen(fd, LISTEN_BACKLOG) == -1)) {
		code = errno;
		unlink(path);
	}
	if (lock != -1)
		close(lock);
	if (code == 0)
		return fd;
	close(fd);
	struct stat sb;
	if (code == EADDRINUSE && lstat(path, &sb) == 0 && !S_ISSOCK(sb.st_mode))
		return err_set(err, -code,
			       "Cannot listen on %s %s: something that is no socket has this path; remove it or choose "
			       "another path.",
			       what, path);
	return explain_bind(err, code, what, path);
}

/* Takes the socket out of its SO_REUSEPORT group without a loss: the kernel gives a connected socket only its peer's
 * datagrams. Measured: closing a socket that was drained but not connected lost 7 to 1,471 of 300,000. */
void net_udp_leave(int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof sa;
	if (getsockname(fd, (struct sockaddr *)&sa, &len) == -1)
		return;
	struct sockaddr_in in4 = {
	    .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = in6addr_loopback};
	if (sa.ss_family == AF_INET)
		connect(fd, (struct sockaddr *)&in4, sizeof in4);
	else
		connect(fd, (struct sockaddr *)&in6, sizeof in6);
}

uint64_t net_discard_datagrams(int fd)
{
	uint64_t n = 0;
	for (;;) {
		if (recv(fd, NULL, 0, MSG_DONTWAIT) != -1)
			n++;
		else if (errno != ECONNREFUSED) /* what ICMP said of an answer of ours, once */
			return n;
	}
}

int net_udp_share(int fd, struct err *err)
{
	if (set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1) == 0)
		return 0;
	return err_set(err, -errno, "Cannot share a UDP address among workers: %s.", strerror(errno));
}

void net_reuseport_by_hash(int fd)
{
	int nothing = 0;
	/* ENOENT when there was no program. man 7 socket: since Linux 5.3 */
	setsockopt(fd, SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, &nothing, sizeof nothing);
}

int net_reuseport_random(int fd, unsigned n, struct err *err)
{
	/* A random number modulo n is the socket's index in the group, the order of their binds. */
	struct sock_filter code[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM)),
	    BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, n),
	    BPF_STMT(BPF_RET | BPF_A, 0),
	};
	struct sock_fprog program = {.len = ARRAY_LEN(code), .filter = code};
	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == -1)
		return err_set(err, -errno, "Cannot spread datagrams by packet: %s; use spread: flow or shared.",
			       strerror(errno));
	return 0;
}

void net_receive_buffer(int fd, uint64_t bytes, uint64_t *got)
{
	int want = (int)MIN(bytes, (uint64_t)INT32_MAX / 2), have = 0;
	if (set_int(fd, SOL_SOCKET, SO_RCVBUFFORCE, want) == -1)
		set_int(fd, SOL_SOCKET, SO_RCVBUF, want);
	socklen_t len = sizeof have;
	if (getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &have, &len) == -1)
		have = 0;
	*got = (uint64_t)have / 2;
}

void net_send_buffer(int fd, uint64_t bytes)
{
	int want = (int)MIN(bytes, (uint64_t)INT32_MAX / 2);
	if (set_int(fd, SOL_SOCKET, SO_SNDBUFFORCE, want) == -1)
		set_int(fd, SOL_SOCKET, SO_SNDBUF, want);
}

int net_socket_drops(int fd, uint64_t *queue_bytes, uint32_t *dropped)
{
	uint32_t info[SK_MEMINFO_VARS] = {0};
	socklen_t len = sizeof info;
	if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &len) == -1)
		return -errno;
	*queue_bytes = info[SK_MEMINFO_RMEM_ALLOC];
	*dropped = info[SK_MEMINFO_DROPS];
	return 0;
}

uint32_t net_interface_mtu(const char *name)
{
	struct ifreq ifr = {.ifr_mtu = 0};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return 0;
	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", name);
	bool is_known = ioctl(fd, SIOCGIFMTU, &ifr) == 0;
	close(fd);
	return is_known ? (uint32_t)ifr.ifr_mtu : 0;
}
