/* SPDX-License-Identifier: MIT
 *
 * The statsite output when things go wrong: connections lost in every way, system calls that fail or do half. sendmsg
 * and sendmmsg are the test's own here: they fail as told, else do what the real ones do.
 */
#include "statsite_rig.h"

#include <sys/resource.h>
#include <sys/stat.h>

static struct {
	int code;       /* errno of the next calls */
	unsigned times; /* so many */
	size_t most;    /* bytes of a short write; 0: all */
	unsigned long calls;
	bool meets_itself; /* a connect gets its target's port as its own */
} fault;

static bool fault_strikes(void)
{
	fault.calls++;
	if (fault.times == 0)
		return false;
	fault.times--;
	errno = fault.code;
	return true;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct iovec first = msg->msg_iov[0];
	struct msghdr shorter = *msg;
	if (fault_strikes())
		return -1;
	if (fault.most > 0) {
		first.iov_len = MIN(first.iov_len, fault.most);
		shorter.msg_iov = &first;
		shorter.msg_iovlen = 1;
	}
	return syscall(SYS_sendmsg, fd, &shorter, flags);
}

int sendmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags)
{
	if (fault_strikes())
		return -1;
	return (int)syscall(SYS_sendmmsg, fd, msgs, fault.most > 0 ? 1 : n, flags);
}

int connect(int fd, const struct sockaddr *to, socklen_t len)
{
	int one = 1;
	if (fault.meets_itself) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		(void)bind(fd, to, len); /* fails while the last such connection lingers */
	}
	return (int)syscall(SYS_connect, fd, to, len);
}

static bool is_quiet(void)
{
	return rig.out->type->pending(rig.out) == 0;
}

static void must_hold_bounds(void)
{
	uint64_t missing, doubled;
	rig_tally(&missing, &doubled);
	MUST(RIG_SUM(delivered_records) == rig.serial);
	MUST(missing <= RIG_SUM(at_risk_records));
	MUST(doubled <= RIG_SUM(resent_records));
	for (size_t i = 0; i < rig.n_peers; i++)
		MUST(rig.peers[i].broken == 0);
}

/* Reset with unread bytes in the peer's kernel, again and again. */
START_TEST(resets_keep_within_the_bounds)
{
	uint64_t missing, doubled;
	rig_init(2);
	rig_listen(0, 2);
	rig_open();
	RIG_WAIT(RIG_SUM(up) == 2);
	for (unsigned i = 0; i < 25; i++) {
		rig.peers[0].reads = i % 3 != 0;
		for (unsigned k = 0; k < 10; k++) {
			rig_send(300, i % 5 * 20);
			rig_turn();
		}
		if (i % 2)
			rig_rest(5);
		uint64_t disconnects = rig_backend(0)->disconnects;
		RIG_WAIT(rig.peers[0].fd != -1);
		peer_hang_up(&rig.peers[0], true);
		RIG_WAIT(rig_backend(0)->disconnects > disconnects);
		rig.peers[0].reads = true;
		RIG_WAIT(rig_backend(0)->up);
	}
	RIG_WAIT(is_quiet());
	rig_rest(20);
	must_hold_bounds();
	rig_tally(&missing, &doubled);
	MUST(missing > 0); /* the bound is not trivial: a connection did take lines with it */
	MUST(RIG_SUM(at_risk_records) < rig.serial);
	MUST(rig_backend(1)->disconnects == 0 && rig_backend(1)->at_risk_records == 0);
	rig_close();
}
END_TEST

/* A peer that reads all and then closes costs nothing, without traffic it is noticed at once. */
START_TEST(end_of_file_is_noticed_without_traffic)
{
	rig_init(1);
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up);
	rig_send(1000, 0);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == 1000);
	uint64_t start_us = clock_us();
	peer_hang_up(&rig.peers[0], false);
	RIG_WAIT(rig_backend(0)->disconnects == 1);
	MUST(clock_us() - start_us < 5000000); /* user_timeout is longer */
	RIG_WAIT(rig_backend(0)->up && rig.peers[0].fd != -1);
	MUST(rig_backend(0)->connects == 2);
	MUST(rig_backend(0)->resent_records == 0);
	rig_send(10, 0);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == 1010);
	rig_close();
}
END_TEST

/* What the peer says is thrown away. */
START_TEST(peer_that_talks_is_not_heard)
{
	rig_init(1);
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up && rig.peers[0].fd != -1);
	for (int i = 0; i < 50; i++) {
		char noise[5000] = "";
		MUST(send(rig.peers[0].fd, noise, sizeof(noise), MSG_DONTWAIT) > 0);
		rig_send(100, 0);
		rig_turn();
	}
	RIG_WAIT(is_quiet() && rig.peers[0].lines == 5000);
	MUST(rig_backend(0)->disconnects == 0);
	/* unread bytes at the end must not turn the close into a reset */
	char noise[5000] = "";
	MUST(send(rig.peers[0].fd, noise, sizeof(noise), MSG_DONTWAIT) > 0);
	rig_send(1, 0);
	rig.peers[0].reads = false;
	rig.out->type->drain(rig.out);
	RIG_WAIT(is_quiet());
	rig.out->type->close(rig.out);
	rig.peers[0].reads = true;
	for (int i = 0; i < 1000 && rig.peers[0].fd != -1; i++, usleep(1000))
		peer_turn(&rig.peers[0]);
	MUST(rig.peers[0].lines == 5001);
	rig_close();
}
END_TEST

/* Writes of a few bytes: the peer sees whole lines all the same, and after a reset the first bytes begin a line. */
START_TEST(short_writes)
{
	rig_init(1);
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up);
	for (size_t most = 1; most < 40; most += 3) {
		fault.most = most;
		rig_send(100, most % 20);
		rig_turn();
		if (most % 4 == 0 && rig.peers[0].fd != -1) {
			uint64_t disconnects = rig_backend(0)->disconnects;
			peer_hang_up(&rig.peers[0], true);
			RIG_WAIT(rig_backend(0)->disconnects > disconnects);
		}
		RIG_WAIT(rig_backend(0)->up);
	}
	RIG_WAIT(is_quiet());
	fault.most = 0;
	rig_rest(20);
	must_hold_bounds();
	rig_close();
}
END_TEST

static void errors_pass(enum conf_transport transport)
{
	const int codes[] = {EINTR, EAGAIN, ENOBUFS, ENOMEM};
	rig_init(1);
	rig.cb[0].transport = transport;
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up);
	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		for (unsigned times = 1; times < 4; times++) {
			fault.code = codes[i];
			fault.times = times;
			rig_send(200, 0);
			unsigned long calls = fault.calls;
			RIG_WAIT(fault.times == 0 && is_quiet());
			MUST(fault.calls - calls < 40); /* waits, does not spin */
		}
	RIG_WAIT(rig.peers[0].lines == rig.serial);
	MUST(rig_backend(0)->disconnects == 0);
	uint64_t missing, doubled;
	rig_tally(&missing, &doubled);
	MUST(missing == 0 && doubled == 0);
}

START_TEST(tcp_errors_that_pass)
{
	errors_pass(CONF_TRANSPORT_TCP);
	fault.code = EPIPE; /* … and one that does not */
	fault.times = 1;
	rig_send(10, 0);
	RIG_WAIT(rig_backend(0)->disconnects == 1);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == rig.serial);
	rig_close();
}
END_TEST

START_TEST(udp_errors_that_pass)
{
	errors_pass(CONF_TRANSPORT_UDP);
	fault.code = EHOSTUNREACH;
	fault.times = 1;
	rig_send(10, 0);
	RIG_WAIT(rig_backend(0)->disconnects == 1);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == rig.serial);
	rig_close();
}
END_TEST

START_TEST(udp_refusals_are_a_hint)
{
	rig_init(1);
	rig.cb[0].transport = CONF_TRANSPORT_UDP;
	rig_open(); /* nobody listens */
	RIG_WAIT(rig_backend(0)->up);
	for (int i = 0; i < 20; i++) {
		rig_send(100, 0);
		RIG_WAIT(is_quiet());
	}
	RIG_WAIT(rig_backend(0)->refusals > 0);
	MUST(rig_backend(0)->delivered_records == rig.serial);
	MUST(rig_backend(0)->disconnects == 0);
	fault.code = ECONNREFUSED; /* for ever: waits for the tick, goes on */
	fault.times = 10;
	rig_send(1, 0);
	RIG_WAIT(is_quiet() && fault.times == 0);
	rig_close();
}
END_TEST

START_TEST(udp_too_long)
{
	rig_init(1);
	rig.cb[0].transport = CONF_TRANSPORT_UDP;
	rig_listen(0, 1);
	rig_open();
	RIG_WAIT(rig_backend(0)->up);
	fault.code = EMSGSIZE;
	fault.times = 1; /* a datagram of many lines: then one by one */
	rig_send(20, 0);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == 20);
	MUST(rig.peers[0].datagrams == 20);
	fault.times = 2; /* … and the first of them too */
	rig_send(20, 0);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == 39);
	MUST(rig_backend(0)->dropped_too_long_records == 1);
	MUST(rig.seen[20] == 0);
	rig_close();
}
END_TEST

/* The wait grows while nobody listens, and starts anew for a connection that lasted. */
START_TEST(retries_slow_down)
{
	rig_init(1);
	rig.co.reconnect_min = 10000;
	rig.co.reconnect_max = 160000;
	rig_open();
	rig_rest(1000);
	uint64_t failures = rig_backend(0)->connect_failures;
	MUST(failures >= 7 && failures <= 20);
	rig_send(100, 0);
	rig.out->type->drain(rig.out); /* hurries */
	rig_rest(300);
	MUST(rig_backend(0)->connect_failures - failures >= 10);
	rig_close();
}
END_TEST

/* Without the check it would take its own lines for delivered. */
START_TEST(a_connection_to_itself_is_refused)
{
	rig_init(1);
	fault.meets_itself = true;
	rig_open();
	rig_send(100, 0);
	RIG_WAIT(rig_backend(0)->connect_failures >= 2);
	MUST(rig_backend(0)->connects == 0 && rig_backend(0)->queued_records == 100);
	fault.meets_itself = false;
	rig_listen(0, 1);
	RIG_WAIT(is_quiet() && rig.peers[0].lines == 100);
	rig_close();
}
END_TEST

START_TEST(a_connect_that_hangs_is_given_up)
{
	int filler[4];
	rig_init(1);
	rig.co.user_timeout = 300000;
	rig_listen(0, 1);
	MUST(listen(rig.peers[0].listener, 0) == 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(rig.ports[0])};
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	for (size_t i = 0; i < ARRAY_LEN(filler); i++) {
		filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		MUST(connect(filler[i], (struct sockaddr *)&a, sizeof(a)) == 0 || errno == EINPROGRESS);
	}
	int listener = rig.peers[0].listener; /* nobody accepts: further SYNs are not answered */
	rig.peers[0].listener = -1;
	rig_open();
	RIG_WAIT(rig_backend(0)->connect_failures >= 1);
	MUST(rig_backend(0)->connects == 0);
	for (size_t i = 0; i < ARRAY_LEN(filler); i++)
		close(filler[i]);
	close(listener);
	rig_close();
}
END_TEST

/* More backends change their state than a log should have lines for. */
START_TEST(many_go_down_at_once)
{
	rig_init(60);
	rig.n_peers = 1;
	for (unsigned i = 0; i < 60; i++)
		rig.cb[i].port = rig.ports[0];
	rig_open();
	RIG_WAIT(RIG_SUM(connect_failures) >= 120);
	struct statsite *st = rig.out->impl;
	MUST(st->log_held == 40);
	rig_close();
}
END_TEST

int main(void)
{
	Suite *s = suite_create("statsite_faults");
	TCase *tc = tcase_create("faults");
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, resets_keep_within_the_bounds);
	tcase_add_test(tc, end_of_file_is_noticed_without_traffic);
	tcase_add_test(tc, peer_that_talks_is_not_heard);
	tcase_add_test(tc, short_writes);
	tcase_add_test(tc, tcp_errors_that_pass);
	tcase_add_test(tc, udp_errors_that_pass);
	tcase_add_test(tc, udp_refusals_are_a_hint);
	tcase_add_test(tc, udp_too_long);
	tcase_add_test(tc, retries_slow_down);
	tcase_add_test(tc, a_connection_to_itself_is_refused);
	tcase_add_test(tc, a_connect_that_hangs_is_given_up);
	tcase_add_test(tc, many_go_down_at_once);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
