/* SPDX-License-Identifier: MIT
 *
 * link: what a full link, too many descriptors in flight, and an end that goes away do to messages: they wait, they come
 * in order, an end that is left holds them for another reader. Real sockets, one process.
 */
#include "suite.h"
#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <net.h>
#include <net_link.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 4096 };

static struct ev_loop *loop;
static struct net_link a, b;
static uint32_t n_heard, n_with_fd;
static bool has_ended, keeps;
static struct net_messages kept = STAILQ_HEAD_INITIALIZER(kept);

struct numbered {
	uint32_t number;
	char rest[SIZE - sizeof(uint32_t)];
};

static bool on_message(struct net_link *l, struct net_message *m)
{
	(void)l;
	const struct numbered *msg = (const void *)m->bytes;
	ck_assert_uint_eq(m->len, sizeof(*msg));
	ck_assert_uint_eq(msg->number, n_heard);
	n_heard++;
	n_with_fd += m->fd != -1 && fcntl(m->fd, F_GETFD) != -1;
	if (keeps)
		STAILQ_INSERT_TAIL(&kept, m, next);
	return keeps;
}

static void on_end(struct net_link *l)
{
	(void)l;
	has_ended = true;
}

static void set_up(void)
{
	int pair[2];
	loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	n_heard = n_with_fd = 0;
	has_ended = keeps = false;
	ck_assert_int_eq(net_link_pair(pair), 0);
	a = (struct net_link){.on_message = on_message, .on_end = on_end};
	b = a;
	net_link_open(&a, loop, pair[0], SIZE);
	net_link_open(&b, loop, pair[1], SIZE);
}

static void tear_down(void)
{
	struct net_message *m;
	net_link_close(&a);
	net_link_close(&b);
	while ((m = STAILQ_FIRST(&kept)) != NULL) {
		STAILQ_REMOVE_HEAD(&kept, next);
		net_message_free(m);
	}
	ev_loop_destroy(loop);
}

static void send_numbered(uint32_t number, int fd)
{
	struct numbered msg = {.number = number};
	ck_assert_int_eq(net_link_send(&a, &msg, sizeof(msg), fd), 0);
}

static void run_until(uint32_t n)
{
	uint64_t until_us = clock_us() + 5000000;
	while (n_heard < n && clock_us() < until_us)
		ev_run(loop, EVRUN_ONCE);
	ck_assert_uint_eq(n_heard, n);
}

START_TEST(full)
{
	for (uint32_t i = 0; i < 1000; i++)
		send_numbered(i, i % 2 ? STDERR_FILENO : -1);
	ck_assert(!STAILQ_EMPTY(&a.outbox));
	run_until(1000);
	ck_assert_uint_eq(n_with_fd, 500);
	ck_assert(STAILQ_EMPTY(&a.outbox));
	ck_assert(net_link_flush(&a, 0));
}
END_TEST

/* The other end has room for messages, the user has none for descriptors. */
START_TEST(too_many_in_flight)
{
	struct rlimit limit = {.rlim_cur = 20, .rlim_max = 20};
	if (geteuid() != 0)
		return; /* the limit counts what other tests of this user have in flight */
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(setresuid(54321, 54321, 54321), 0); /* nobody else's: with CAP_SYS_RESOURCE there is no limit */
	uint32_t n = 0;
	while (STAILQ_EMPTY(&a.outbox))
		send_numbered(n++, STDERR_FILENO);
	ck_assert_uint_lt(n, 100);
	ck_assert(ev_is_active(&a.again) && !ev_is_active(&a.writable)); /* it does not spin */
	send_numbered(n++, -1); /* behind it */
	run_until(n);
	ck_assert_uint_eq(n_with_fd, n - 1);
}
END_TEST

/* What waits in the socket comes to whoever has that end, what waits in the outbox goes with it; no descriptor stays. */
START_TEST(left)
{
	struct net_message *m;
	unsigned before = open_descriptors();
	int far = fcntl(b.fd, F_DUPFD_CLOEXEC, 0);
	for (uint32_t i = 0; i < 500; i++)
		send_numbered(i, STDERR_FILENO);
	ev_run(loop, EVRUN_NOWAIT); /* some are read */
	uint32_t number = n_heard;
	ck_assert(number > 0 && number < 500 && !STAILQ_EMPTY(&a.outbox));
	const struct numbered *queued = (const void *)STAILQ_FIRST(&a.outbox)->bytes;
	uint32_t first_queued = queued->number;
	net_link_close(&b);
	net_link_close(&a);
	for (; net_link_recover(far, SIZE, &m) == 1; number++) {
		ck_assert_uint_eq(((const struct numbered *)(const void *)m->bytes)->number, number);
		ck_assert(fcntl(m->fd, F_GETFD) != -1);
		net_message_free(m);
	}
	close(far);
	ck_assert_uint_eq(number, first_queued);
	ck_assert_uint_eq(open_descriptors(), before - 4); /* two ends with their reserves */
	ck_assert_int_eq(net_link_send(&a, "", 1, -1), -EPIPE);
}
END_TEST

START_TEST(end)
{
	send_numbered(0, -1);
	net_link_close(&a);
	while (!has_ended)
		ev_run(loop, EVRUN_ONCE);
	ck_assert_uint_eq(n_heard, 1);
	ck_assert_int_eq(net_link_send(&b, "", 1, -1), -EPIPE);
	ck_assert(!net_link_flush(&b, UINT64_MAX) || STAILQ_EMPTY(&b.outbox));
}
END_TEST

/* A descriptor comes only when it has room: until then its message waits in the socket. */
START_TEST(no_descriptor)
{
	int taken[1024], n = 0, fd;
	struct rlimit limit = {.rlim_cur = 128, .rlim_max = 128};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	send_numbered(0, STDERR_FILENO);
	send_numbered(1, STDERR_FILENO);
	while ((fd = dup(STDERR_FILENO)) != -1)
		taken[n++] = fd;
	keeps = true; /* the first one takes the reserve's place */
	for (int i = 0; i < 20; i++)
		ev_run(loop, EVRUN_ONCE);
	ck_assert_uint_eq(n_heard, 1);
	close(taken[--n]);
	close(taken[--n]);
	run_until(2);
	ck_assert_uint_eq(n_with_fd, 2);
}
END_TEST

/* Many at once: not one comes without its descriptor, however few are free. */
START_TEST(few_descriptors)
{
	enum { MESSAGES = 200, LIMIT = 300 };
	int taken[LIMIT], n = 0, fd;
	struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	for (uint32_t i = 0; i < MESSAGES / 2; i++)
		send_numbered(i, STDERR_FILENO);
	while ((fd = dup(STDERR_FILENO)) != -1)
		taken[n++] = fd;
	keeps = true;
	for (uint32_t heard = 1; heard < MESSAGES / 2; heard++) { /* one more is free, at either end of them */
		close(heard % 2 ? taken[--n] : taken[heard]);
		for (int i = 0; i < 20; i++)
			ev_run(loop, EVRUN_NOWAIT);
		ck_assert_uint_eq(n_with_fd, n_heard);
	}
	while (n > MESSAGES / 2)
		close(taken[--n]);
	run_until(MESSAGES / 2);
	ck_assert_uint_eq(n_with_fd, MESSAGES / 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("link");
	TCase *tc = tcase_create("link");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, full);
	tcase_add_test(tc, too_many_in_flight);
	tcase_add_test(tc, left);
	tcase_add_test(tc, end);
	tcase_add_test(tc, no_descriptor);
	tcase_add_test(tc, few_descriptors);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
