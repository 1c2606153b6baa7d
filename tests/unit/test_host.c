/* SPDX-License-Identifier: MIT
 *
 * test_host: what the kernel says of the host: the parsers on sound and odd content, and the reader against the kernel.
 */
#include "suite.h"

#include <arpa/inet.h>
#include <base.h>
#include <errno.h>
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SNMP                                                                                                           \
	"Ip: Forwarding DefaultTTL\nIp: 1 64\nUdp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors "            \
	"SndbufErrors "                                                                                                \
	"InCsumErrors IgnoredMulti MemErrors\nUdp: 11 22 33 44 55 66 77 88 99\nUdpLite: InDatagrams\nUdpLite: 1\n"

START_TEST(udp_totals)
{
	struct net_udp_totals t;
	ck_assert(net_udp_totals_parse(&t, SNMP));
	ck_assert_uint_eq(t.in_datagrams, 11);
	ck_assert_uint_eq(t.no_ports, 22);
	ck_assert_uint_eq(t.in_errors, 33);
	ck_assert_uint_eq(t.rcvbuf_errors, 55);
	ck_assert_uint_eq(t.csum_errors, 77);
	ck_assert_uint_eq(t.mem_errors, 99);
	/* columns go by their names */
	ck_assert(net_udp_totals_parse(&t, "Udp: New RcvbufErrors InDatagrams\nUdp: 1 18446744073709551615 3"));
	ck_assert_uint_eq(t.rcvbuf_errors, UINT64_MAX);
	ck_assert_uint_eq(t.in_datagrams, 3);
	ck_assert_uint_eq(t.no_ports, 0);
}
END_TEST

START_TEST(udp_totals_odd)
{
	static const char *const odd[] = {"",
					  "\n\n",
					  "Udp:",
					  "Udp:\nUdp:\n",
					  "Udp: InDatagrams",
					  "Udp: InDatagrams\nTcp: 1\n",
					  "Udp: InDatagrams\nUdp: -1\n",
					  "Udp: InDatagrams\nUdp: x7\n",
					  "xUdp: InDatagrams\nxUdp: 1\n",
					  "Udp: NoPorts\nUdp: 7\n",
					  "Udp: InDatagrams NoPorts\nUdp:",
					  "UdpLite: InDatagrams\nUdpLite: 1\n"};
	struct net_udp_totals t;
	for (size_t i = 0; i < ARRAY_LEN(odd); i++)
		ck_assert_msg(!net_udp_totals_parse(&t, odd[i]), "%s", odd[i]);
	for (size_t len = 0; len < sizeof(SNMP); len++) { /* cut anywhere: nothing is read behind its end */
		char *cut = strndup(SNMP, len);
		net_udp_totals_parse(&t, cut);
		net_udp6_totals_parse(&t, cut);
		free(cut);
	}
}
END_TEST

START_TEST(udp6_totals)
{
	struct net_udp_totals t;
	ck_assert(net_udp6_totals_parse(&t, "Ip6InReceives \t5\nUdp6InDatagrams   \t7\nUdp6NoPorts 8\nUdp6InErrors 9\n"
					    "Udp6RcvbufErrors\t10\nUdp6InCsumErrors x\nUdp6MemErrors\nUdp6Rubbish 3"));
	ck_assert_uint_eq(t.in_datagrams, 7);
	ck_assert_uint_eq(t.no_ports, 8);
	ck_assert_uint_eq(t.in_errors, 9);
	ck_assert_uint_eq(t.rcvbuf_errors, 10);
	ck_assert_uint_eq(t.csum_errors, 0);
	ck_assert(!net_udp6_totals_parse(&t, "Udp6"));
	ck_assert(!net_udp6_totals_parse(&t, ""));
	ck_assert(!net_udp6_totals_parse(&t, "Udp6NoPorts 7"));
}
END_TEST

START_TEST(udp_socket)
{
	struct net_udp_socket s;
	ck_assert(net_udp_socket_parse(
	    &s, " 6082: 0100007F:1FBD 00000000:0000 07 00000001:00001200 00:00000000 00000000     0    "
		"    0 4711 2 0000000000000000 5         "));
	ck_assert_uint_eq(s.inode, 4711);
	ck_assert_uint_eq(s.port, 8125);
	ck_assert_uint_eq(s.queue_bytes, 0x1200);
	ck_assert_uint_eq(s.dropped, 5);
	ck_assert(net_udp_socket_parse(
	    &s, "6082: 00000000000000000000000000000000:1FBD 00000000000000000000000000000000:0000 07 "
		"00000000:0000000A 00:00000000 00000000 65534 0 4294967296 2 ffff888000000000 4294967295"));
	ck_assert_uint_eq(s.inode, UINT64_C(1) << 32);
	ck_assert_uint_eq(s.queue_bytes, 10);
	ck_assert_uint_eq(s.dropped, UINT32_MAX);
	ck_assert(!net_udp_socket_parse(&s, ""));
	ck_assert(
	    !net_udp_socket_parse(&s, "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt"));
	ck_assert(
	    !net_udp_socket_parse(&s, "6082: 0100007F:1FBD 00000000:0000 07 00000001:00001200 00:0 0 0 0 4711 2 0"));
}
END_TEST

/* -- rtnetlink -------------------------------------------------------------------------------------------------------
 */

static _Alignas(struct nlmsghdr) char answer[4096];
static size_t answer_len;

static struct nlmsghdr *message_begin(uint16_t type)
{
	struct nlmsghdr *m = (void *)(answer + answer_len);
	memset(m, 0, NLMSG_LENGTH(sizeof(struct ifinfomsg)));
	m->nlmsg_type = type;
	m->nlmsg_len = NLMSG_LENGTH(sizeof(struct ifinfomsg));
	return m;
}

static void attribute(struct nlmsghdr *m, uint16_t type, const void *bytes, size_t len)
{
	struct rtattr *a = (void *)((char *)m + NLMSG_ALIGN(m->nlmsg_len));
	a->rta_type = type;
	a->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), bytes, len);
	m->nlmsg_len = NLMSG_ALIGN(m->nlmsg_len) + (uint32_t)RTA_ALIGN(a->rta_len);
}

static void link_add(const char *name, int ifindex, unsigned short type, const char *kind, size_t stats_bytes)
{
	struct nlmsghdr *m = message_begin(RTM_NEWLINK);
	struct ifinfomsg *info = NLMSG_DATA(m);
	struct rtnl_link_stats64 st = {.rx_packets = 10,
				       .rx_missed_errors = 2,
				       .rx_fifo_errors = 3,
				       .rx_dropped = 4,
				       .rx_errors = UINT64_C(1) << 40};
	info->ifi_index = ifindex;
	info->ifi_type = type;
	attribute(m, IFLA_IFNAME, name, strlen(name) + 1);
	if (stats_bytes)
		attribute(m, IFLA_STATS64, &st, stats_bytes);
	if (kind) {
		char nested[64];
		struct rtattr *a = (void *)nested;
		a->rta_type = IFLA_INFO_KIND;
		a->rta_len = (uint16_t)RTA_LENGTH(strlen(kind) + 1);
		strcpy(RTA_DATA(a), kind);
		attribute(m, IFLA_LINKINFO, nested, a->rta_len);
	}
	answer_len += NLMSG_ALIGN(m->nlmsg_len);
}

START_TEST(interfaces)
{
	struct net_interface found[4];
	unsigned n = 0;
	size_t whole = sizeof(struct rtnl_link_stats64);
	answer_len = 0;
	link_add("lo", 1, ARPHRD_LOOPBACK, NULL, whole);
	link_add("eth0", 2, ARPHRD_ETHER, NULL, whole);
	link_add("bond0", 3, ARPHRD_ETHER, "bond", whole);
	link_add("va", 4, ARPHRD_ETHER, "veth", whole);
	link_add("nothing", 5, ARPHRD_ETHER, NULL, 0);
	link_add("old", 6, ARPHRD_ETHER, "bonds", offsetof(struct rtnl_link_stats64, rx_missed_errors));
	ck_assert_int_eq(net_interfaces_parse(found, 4, &n, answer, answer_len), 1);
	ck_assert_uint_eq(n, 3);
	ck_assert_str_eq(found[0].name, "eth0");
	ck_assert_uint_eq(found[0].ifindex, 2);
	ck_assert_uint_eq(found[0].rx_packets, 10);
	ck_assert_uint_eq(found[0].rx_missed, 2);
	ck_assert_uint_eq(found[0].rx_fifo, 3);
	ck_assert_uint_eq(found[0].rx_dropped, 4);
	ck_assert_uint_eq(found[0].rx_errors, UINT64_C(1) << 40);
	ck_assert_str_eq(found[1].name, "va");
	ck_assert_str_eq(found[2].name, "old");
	ck_assert_uint_eq(found[2].rx_missed, 0);
	ck_assert_int_eq(net_interfaces_parse(found, 4, &n, answer, answer_len), 1); /* full */
	ck_assert_uint_eq(n, 4);
	answer_len = 0;
	struct nlmsghdr *m = message_begin(NLMSG_DONE);
	ck_assert_int_eq(net_interfaces_parse(found, 4, &n, answer, m->nlmsg_len), 0);
}
END_TEST

START_TEST(interfaces_odd)
{
	struct net_interface found[4];
	unsigned n = 0;
	answer_len = 0;
	ck_assert_int_eq(net_interfaces_parse(found, 4, &n, answer, 0), -EPROTO);
	struct nlmsghdr *m = message_begin(NLMSG_ERROR);
	struct nlmsgerr *e = NLMSG_DATA(m);
	m->nlmsg_len = NLMSG_LENGTH(sizeof(*e));
	e->error = -EPERM;
	ck_assert_int_eq(net_interfaces_parse(found, 4, &n, answer, m->nlmsg_len), -EPERM);
	m->nlmsg_len = NLMSG_LENGTH(0);
	ck_assert_int_eq(net_interfaces_parse(found, 4, &n, answer, m->nlmsg_len), -EPROTO);
	link_add("eth0", 2, ARPHRD_ETHER, "bond", sizeof(struct rtnl_link_stats64));
	link_add("a-name-of-20-letters", 2, ARPHRD_ETHER, NULL, sizeof(struct rtnl_link_stats64));
	size_t len = answer_len;
	for (size_t cut = 0; cut <= len; cut++) { /* cut anywhere, each alone in its memory */
		char *copy = malloc(cut ? cut : 1);
		memcpy(copy, answer, cut);
		n = 0;
		net_interfaces_parse(found, 4, &n, copy, cut);
		free(copy);
	}
	ck_assert_uint_eq(n, 1);
	ck_assert_str_eq(found[0].name, "a-name-of-20-le");
	for (size_t at = 0; at < len; at++) { /* any byte may be wrong */
		char *copy = malloc(len);
		memcpy(copy, answer, len);
		copy[at] = (char)0xff;
		n = 0;
		net_interfaces_parse(found, 4, &n, copy, len);
		free(copy);
	}
}
END_TEST

/* -- the reader ------------------------------------------------------------------------------------------------------
 */

static uint64_t inode_of(int fd)
{
	struct stat sb;
	ck_assert_int_eq(fstat(fd, &sb), 0);
	return sb.st_ino;
}

START_TEST(reader)
{
	struct net_host_reader *r = net_host_open(0);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sa);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	getsockname(fd, (struct sockaddr *)&sa, &len);
	const struct net_host *h = net_host_read(r, true);
	ck_assert(h->has_udp && h->has_interfaces);
	uint64_t before = h->udp.in_datagrams + h->udp.in_errors;
	int tiny = 1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &tiny, sizeof(tiny));
	for (int i = 0; i < 50; i++)
		ck_assert_int_eq(sendto(fd, "a:1|c\n", 6, 0, (struct sockaddr *)&sa, sizeof(sa)), 6);
	h = net_host_read(r, true);
	uint64_t queue_bytes;
	uint32_t dropped;
	ck_assert_int_eq(net_socket_drops(fd, &queue_bytes, &dropped), 0);
	ck_assert_uint_gt(dropped, 0);
	unsigned found = 0;
	for (unsigned i = 0; i < h->n_sockets; i++) {
		if (h->sockets[i].inode != inode_of(fd))
			continue;
		found++;
		ck_assert_uint_eq(h->sockets[i].port, ntohs(sa.sin_port));
		ck_assert_uint_eq(h->sockets[i].dropped, dropped);
		ck_assert_uint_eq(h->sockets[i].queue_bytes, queue_bytes);
	}
	ck_assert_uint_eq(found, 1);
	ck_assert_uint_ge(h->udp.in_datagrams + h->udp.in_errors, before + dropped);
	ck_assert_uint_eq(net_host_read(r, false)->n_sockets, 0);
	close(fd);
	net_host_close(r);
	net_host_close(NULL);
}
END_TEST

START_TEST(reader_of_nobody)
{
	struct net_host_reader *r = net_host_open(0x7fffffff);
	const struct net_host *h = net_host_read(r, true);
	ck_assert(!h->has_udp);
	ck_assert_uint_eq(h->udp.in_datagrams + h->n_sockets, 0);
	net_host_close(r);
}
END_TEST

/* -- a process -------------------------------------------------------------------------------------------------------
 */

START_TEST(usage)
{
	struct proc_usage u, later;
	ck_assert_int_eq(
	    proc_usage_parse("7 (a) R) b) T 1 2 3 4 -1 6 7 8 9 10 150 50 0 0 20 0 1 0 4242 1000000 3 184", &u), 0);
	ck_assert(u.is_stopped);
	ck_assert_uint_eq(u.cpu_us, 200 * 1000000 / (uint64_t)sysconf(_SC_CLK_TCK));
	ck_assert_uint_eq(u.memory_bytes, 3 * (uint64_t)sysconf(_SC_PAGESIZE));
	ck_assert_uint_eq(u.started_ticks, 4242);
	ck_assert_int_eq(proc_usage_parse("", &u), -EINVAL);
	ck_assert_int_eq(proc_usage_parse("7 (a) R 1 2", &u), -EINVAL);
	ck_assert_int_eq(proc_usage(0x7fffffff, &u), -ESRCH);
	ck_assert_int_eq(proc_usage(getpid(), &u), 0);
	ck_assert(!u.is_stopped && u.memory_bytes > 0);
	do
		ck_assert_int_eq(proc_usage(getpid(), &later), 0);
	while (later.cpu_us == u.cpu_us);
	ck_assert_uint_eq(later.started_ticks, u.started_ticks);
	pid_t pid = fork();
	if (pid == 0)
		for (;;)
			pause();
	kill(pid, SIGSTOP);
	waitpid(pid, NULL, WUNTRACED);
	ck_assert_int_eq(proc_usage(pid, &u), 0);
	ck_assert(u.is_stopped);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("host");
	TCase *tc = tcase_create("host");
	tcase_add_test(tc, udp_totals);
	tcase_add_test(tc, udp_totals_odd);
	tcase_add_test(tc, udp6_totals);
	tcase_add_test(tc, udp_socket);
	tcase_add_test(tc, interfaces);
	tcase_add_test(tc, interfaces_odd);
	tcase_add_test(tc, reader);
	tcase_add_test(tc, reader_of_nobody);
	tcase_add_test(tc, usage);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
