/* SPDX-License-Identifier: MIT
 *
 * host_reader: reads /proc/net and asks rtnetlink, again and again through the same descriptors. The monitor once a
 * second, millracectl. Understands nothing of it: host.c does.
 */
#include <net.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum file { FILE_SNMP, FILE_SNMP6, FILE_UDP, FILE_UDP6, FILES };
static const char *const file_names[FILES] = {"snmp", "snmp6", "udp", "udp6"};

enum { ANSWER_BYTES = 64 * 1024, TEXT_FIRST_BYTES = 16 * 1024, TEXT_MAX_BYTES = 32 * 1024 * 1024 };

struct net_host_reader {
	int files[FILES], rtnetlink; /* -1: not to be had */
	uint32_t asked;
	char *text; /* of one file; ends with NUL */
	size_t text_size;
	unsigned sockets_size;
	struct net_host host;
	_Alignas(struct nlmsghdr) char answer[ANSWER_BYTES];
};

/* Two processes see the same interfaces when their /proc/PID/ns/net is the same file. Who may not look is taken to be
 * in the same: that is so of all who may not, but in odd containers. */
static bool is_same_network(int64_t pid)
{
	char path[40];
	struct stat ours, theirs;
	snprintf(path, sizeof path, "/proc/%lld/ns/net", (long long)pid);
	if (pid == 0 || stat("/proc/self/ns/net", &ours) == -1 || stat(path, &theirs) == -1)
		return true;
	return ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

static int rtnetlink_open(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	struct timeval limit = {.tv_sec = 1}; /* the kernel answers within the call; this is for the impossible */
	if (fd != -1)
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	return fd;
}

struct net_host_reader *net_host_open(int64_t pid)
{
	struct net_host_reader *r = calloc(1, sizeof *r);
	char path[64], who[24] = "self";
	if (!r)
		return NULL;
	r->text = malloc(TEXT_FIRST_BYTES);
	r->text_size = TEXT_FIRST_BYTES;
	if (!r->text) {
		free(r);
		return NULL;
	}
	if (pid != 0)
		snprintf(who, sizeof who, "%lld", (long long)pid);
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "/proc/%s/net/%s", who, file_names[i]);
		r->files[i] = open(path, O_RDONLY | O_CLOEXEC);
	}
	r->rtnetlink = is_same_network(pid) ? rtnetlink_open() : -1;
	return r;
}

void net_host_close(struct net_host_reader *r)
{
	if (!r)
		return;
	for (unsigned i = 0; i < FILES; i++)
		if (r->files[i] != -1)
			close(r->files[i]);
	if (r->rtnetlink != -1)
		close(r->rtnetlink);
	free(r->host.sockets);
	free(r->text);
	free(r);
}

static bool text_room(struct net_host_reader *r, size_t len)
{
	if (len + 1 < r->text_size)
		return true;
	char *text = r->text_size < TEXT_MAX_BYTES ? realloc(r->text, r->text_size * 2) : NULL;
	if (!text)
		return false;
	r->text = text;
	r->text_size *= 2;
	return true;
}

/* The whole file as one string; one that is not to be had is empty. */
static void file_read(struct net_host_reader *r, enum file file)
{
	size_t len = 0;
	ssize_t n = 1;
	while (r->files[file] != -1 && n > 0 && text_room(r, len)) {
		n = pread(r->files[file], r->text + len, r->text_size - 1 - len, (off_t)len);
		len += n > 0 ? (size_t)n : 0;
	}
	r->text[len] = '\0';
}

static void sockets_read(struct net_host_reader *r, enum file file)
{
	struct net_host *h = &r->host;
	file_read(r, file);
	for (char *line = r->text, *rest = line; (line = strsep(&rest, "\n"));) {
		struct net_udp_socket found;
		if (!net_udp_socket_parse(&found, line) || h->n_sockets == NET_HOST_SOCKETS_MAX)
			continue;
		if (h->n_sockets == r->sockets_size) {
			unsigned size = MAX(2 * r->sockets_size, 64u);
			struct net_udp_socket *sockets = realloc(h->sockets, size * sizeof *sockets);
			if (!sockets)
				return;
			h->sockets = sockets;
			r->sockets_size = size;
		}
		h->sockets[h->n_sockets++] = found;
	}
}

static bool interfaces_read(struct net_host_reader *r)
{
	struct {
		struct nlmsghdr head;
		struct ifinfomsg info;
	} ask = {.head = {.nlmsg_len = sizeof ask,
			  .nlmsg_type = RTM_GETLINK,
			  .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
			  .nlmsg_seq = ++r->asked}};
	struct net_host *h = &r->host;
	int more = send(r->rtnetlink, &ask, sizeof ask, 0) == sizeof ask;
	bool was_asked = more;
	while (more > 0) {
		ssize_t n = recv(r->rtnetlink, r->answer, sizeof r->answer, 0);
		if (n == -1 && errno == EINTR)
			continue;
		if (n < (ssize_t)sizeof(struct nlmsghdr))
			return false;
		if (((const struct nlmsghdr *)(const void *)r->answer)->nlmsg_seq != r->asked)
			continue; /* the rest of an answer that was given up */
		more = net_interfaces_parse(h->interfaces, NET_INTERFACES_MAX, &h->n_interfaces, r->answer, (size_t)n);
	}
	return was_asked && more == 0;
}

const struct net_host *net_host_read(struct net_host_reader *r, bool with_sockets)
{
	struct net_host *h = &r->host;
	h->n_interfaces = h->n_sockets = 0;
	file_read(r, FILE_SNMP);
	h->has_udp = net_udp_totals_parse(&h->udp, r->text);
	file_read(r, FILE_SNMP6); /* absent where IPv6 is switched off */
	net_udp6_totals_parse(&h->udp6, r->text);
	h->has_interfaces = r->rtnetlink != -1 && interfaces_read(r);
	for (enum file i = FILE_UDP; with_sockets && i <= FILE_UDP6; i++)
		sockets_read(r, i);
	return h;
}
