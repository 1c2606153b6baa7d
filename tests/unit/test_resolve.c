/* SPDX-License-Identifier: MIT
 *
 * net_resolve against a name server of its own (a UDP socket in the test that answers, refuses or stays silent), and
 * the text of addresses.
 */
#include "suite.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include "../../src/net/resolve.c"

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			ck_abort_msg("line %d: not true: %s", __LINE__, #cond);                                        \
	} while (0)

static struct ev_loop *loop;
static struct net_resolver *resolver;
static int server = -1;
static unsigned asked;

struct answer {
	unsigned calls;
	unsigned n;
	char address[128], second[128], why_not[128];
};

static void on_answer(void *arg, const struct net_address *a, unsigned n, const char *why_not)
{
	struct answer *got = arg;
	MUST((n == 0) != (why_not == NULL));
	got->calls++;
	got->n = n;
	if (n > 1)
		net_address_format(&a[1].sa, got->second, sizeof(got->second));
	if (n > 0)
		net_address_format(&a->sa, got->address, sizeof(got->address));
	else
		snprintf(got->why_not, sizeof(got->why_not), "%s", why_not);
}

/* Names that begin with "four" have an IPv4 address, "six" an IPv6 one, "both" both, "noway4"
 * both, of which the first is no host's, "none" no; "silent" no answer. */
static void serve(struct ev_loop *l, ev_io *w, int revents)
{
	(void)l, (void)revents;
	unsigned char q[512];
	struct sockaddr_in from;
	socklen_t from_len = sizeof(from);
	ssize_t n = recvfrom(w->fd, q, sizeof(q) - 64, 0, (struct sockaddr *)&from, &from_len);
	if (n < 17)
		return;
	asked++;
	const char *name = (const char *)q + 13;
	size_t end = 12;
	while (q[end] != 0)
		end += q[end] + 1u;
	unsigned type = (unsigned)q[end + 1] << 8 | q[end + 2];
	size_t len = end + 5;
	bool no_way = strncmp(name, "noway4", 6) == 0;
	bool four = strncmp(name, "four", 4) == 0 || strncmp(name, "both", 4) == 0 || no_way;
	bool six = strncmp(name, "six", 3) == 0 || strncmp(name, "both", 4) == 0 || no_way;
	if (strncmp(name, "silent", 6) == 0)
		return;
	q[2] = 0x81;
	q[3] = four || six ? 0x80 : 0x83; /* no such name */
	memset(q + 6, 0, 6);
	if ((type == 1 && four) || (type == 28 && six)) {
		size_t bytes = type == 1 ? 4 : 16;
		unsigned char head[12] = {0xc0, 12, 0, (unsigned char)type, 0, 1, 0, 0, 0, 60, 0, (unsigned char)bytes};
		q[7] = 1;
		memcpy(q + len, head, sizeof(head));
		const char *v4 = strncmp(name, "both", 4) == 0 ? "127.0.0.9" : no_way ? "255.255.255.255" : "192.0.2.7";
		inet_pton(type == 1 ? AF_INET : AF_INET6, type == 1 ? v4 : no_way ? "::1" : "2001:db8::7", q + len + 12);
		len += sizeof(head) + bytes;
	}
	sendto(w->fd, q, len, 0, (struct sockaddr *)&from, from_len);
}

static ev_io server_io;

static void begin(void)
{
	struct err err = {""};
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	char where[64];
	loop = ev_loop_new(EVFLAG_AUTO);
	resolver = net_resolver_new(loop, &err);
	MUST(resolver != NULL);
	server = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	MUST(bind(server, (struct sockaddr *)&a, len) == 0 && getsockname(server, (struct sockaddr *)&a, &len) == 0);
	snprintf(where, sizeof(where), "127.0.0.1:%u", ntohs(a.sin_port));
	MUST(ares_set_servers_ports_csv(resolver->channel, where) == ARES_SUCCESS);
	ev_io_init(&server_io, serve, server, EV_READ);
	ev_io_start(loop, &server_io);
}

static void end(void)
{
	net_resolver_free(resolver);
	ev_io_stop(loop, &server_io);
	ev_loop_destroy(loop);
	close(server);
}

static void ask_and_wait(struct answer *got, const char *host)
{
	*got = (struct answer){0};
	MUST(net_resolve(resolver, host, 8125, on_answer, got) != NULL);
	MUST(got->calls == 0); /* never from within the call */
	for (ev_tstamp until = ev_time() + 30; got->calls == 0 && ev_time() < until;)
		ev_run(loop, EVRUN_ONCE);
	MUST(got->calls == 1);
}

START_TEST(numeric_hosts_need_no_server)
{
	struct answer got;
	begin();
	ask_and_wait(&got, "10.1.2.3");
	MUST(strcmp(got.address, "10.1.2.3:8125") == 0);
	ask_and_wait(&got, "fe80::1%nowhere");
	MUST(strcmp(got.why_not, "there is no such interface") == 0);
	ask_and_wait(&got, "::1");
	MUST(strcmp(got.address, "[::1]:8125") == 0);
	MUST(asked == 0);
	end();
}
END_TEST

START_TEST(names)
{
	struct answer got;
	begin();
	ask_and_wait(&got, "four.example.");
	MUST(strcmp(got.address, "192.0.2.7:8125") == 0);
	ask_and_wait(&got, "six.example.");
	MUST(strcmp(got.address, "[2001:db8::7]:8125") == 0);
	ask_and_wait(&got, "both.example.");
	MUST(got.n == 2 && strcmp(got.address, "127.0.0.9:8125") == 0 && strcmp(got.second, "[2001:db8::7]:8125") == 0);
	ask_and_wait(&got, "noway4.example.");
	MUST(got.n == 2 && strcmp(got.address, "[::1]:8125") == 0 && strcmp(got.second, "255.255.255.255:8125") == 0);
	ask_and_wait(&got, "none.example.");
	MUST(got.why_not[0] != '\0');
	ask_and_wait(&got, "localhost"); /* of /etc/hosts: c-ares answers at once */
	MUST(strcmp(got.address, "127.0.0.1:8125") == 0);
	end();
}
END_TEST

START_TEST(silence_ends)
{
	struct answer got;
	begin();
	uint64_t start_us = clock_us();
	unsigned turns = ev_iteration(loop);
	ask_and_wait(&got, "silent.example.");
	MUST(ev_iteration(loop) - turns < 100); /* of a loop that waits, and does not spin until its time has come */
	MUST(got.why_not[0] != '\0');
	MUST(clock_us() - start_us < 12000000);
	end();
}
END_TEST

START_TEST(cancelled_queries_are_not_heard)
{
	struct answer got = {0};
	begin();
	const char *hosts[] = {"10.0.0.1", "localhost", "four.example.", "silent.example."};
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		net_query_cancel(net_resolve(resolver, hosts[i], 1, on_answer, &got));
	for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
		net_resolve(resolver, hosts[i], 1, on_answer, &got);
	end(); /* with four open, and one that c-ares still has */
	MUST(got.calls == 0);
}
END_TEST

START_TEST(addresses)
{
	struct net_address a;
	struct sockaddr_storage un = {.ss_family = AF_UNIX};
	char buf[128];
	MUST(net_address_parse(&a, "", 80) == 0);
	MUST(strcmp(net_address_format(&a.sa, buf, sizeof(buf)), "[::]:80") == 0);
	MUST(net_address_parse(&a, "fe80::1%lo", 80) == 0);
	MUST(((struct sockaddr_in6 *)&a.sa)->sin6_scope_id > 0);
	MUST(strncmp(net_address_format(&a.sa, buf, sizeof(buf)), "[fe80::1%", 9) == 0);
	MUST(net_address_parse(&a, "fe80::1%7", 80) == 0);
	const char *wrong[] = {"localhost",   "1.2.3", "1.2.3.4.5",
			       "::1%nowhere", "[::1]", "256.0.0.1",
			       " 1.2.3.4",    "::g",   "1111:2222:3333:4444:5555:6666:7777:8888:9999:1111:2222"};
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		MUST(net_address_parse(&a, wrong[i], 80) == -EINVAL);
	strcpy(un.__ss_padding, "/run/x.sock");
	MUST(strcmp(net_address_format(&un, buf, sizeof(buf)), "/run/x.sock") == 0);
	memcpy(un.__ss_padding, "\0name", 6);
	MUST(strcmp(net_address_format(&un, buf, sizeof(buf)), "@name") == 0);
	un.ss_family = 99;
	MUST(strcmp(net_address_format(&un, buf, sizeof(buf)), "(family 99)") == 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("resolve");
	TCase *tc = tcase_create("resolve");
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, numeric_hosts_need_no_server);
	tcase_add_test(tc, names);
	tcase_add_test(tc, silence_ends);
	tcase_add_test(tc, cancelled_queries_are_not_heard);
	tcase_add_test(tc, addresses);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
