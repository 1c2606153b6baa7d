/* SPDX-License-Identifier: MIT
 *
 * child: a real child that says its last words, leaves messages unread and dies: what it said is heard before its exit,
 * and no descriptor stays; the next one starts from there.
 */
#include "suite.h"
#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <net.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../src/master/child.h"

enum { N = 400 }; /* more than the link holds */

static struct ev_loop *loop;
static char owner[] = "owner";
static uint32_t n_read, n_exits;
static bool has_spoken;

static __attribute__((noreturn)) void run(void *whose, int link)
{
	uint32_t number;
	int fd;
	net_send_fd(link, whose, sizeof(owner), STDERR_FILENO);
	for (int i = 0; i < 7;) /* reads seven, then dies */
		i += net_recv_fd(link, &number, sizeof(number), &fd) == sizeof(number);
	net_send_fd(link, &number, sizeof(number), -1);
	raise(SIGKILL);
	_exit(0);
}

static bool on_message(struct child *c, struct net_message *m)
{
	ck_assert_ptr_eq(c->owner, owner);
	ck_assert_uint_eq(n_exits, 0);
	if (m->len == sizeof(owner)) {
		ck_assert_str_eq(m->bytes, owner);
		ck_assert_int_ne(fcntl(m->fd, F_GETFD), -1);
		has_spoken = true;
	} else {
		memcpy(&n_read, m->bytes, sizeof(n_read));
		n_read++;
	}
	return false;
}

static void on_exit_of(struct child *c, int status)
{
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert(!child_is_there(c));
	n_exits++;
	ev_break(loop, EVBREAK_ALL);
}

static const struct child_type type = {
    .message_bytes = 64,
    .run = run,
    .on_message = on_message,
    .on_exit = on_exit_of,
};

/* It may have died already. */
static void send_number(struct child *c, uint32_t i)
{
	int r = child_send(c, &i, sizeof(i), STDERR_FILENO);
	ck_assert(r == 0 || (r == -EPIPE && i > 7));
}

START_TEST(last_words)
{
	static struct child c;
	const char *what;
	loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	child_init(&c, &type, owner);
	unsigned before = open_descriptors();
	for (int life = 0; life < 3; life++) {
		n_read = n_exits = has_spoken = 0;
		ck_assert_int_eq(child_start(&c, loop, &what), 0);
		for (uint32_t i = 0; i < N; i++)
			send_number(&c, i);
		ev_run(loop, 0);
		ck_assert(has_spoken);
		ck_assert_uint_eq(n_read, 7);
		ck_assert_uint_eq(n_exits, 1);
		ck_assert_uint_eq(open_descriptors(), before);
		ck_assert_int_ne(child_send(&c, owner, 1, -1), 0);
	}
	ev_loop_destroy(loop);
}
END_TEST

/* A program that was executed in place has the pid, its end of the link, and from one of today the pidfd, too: then it
 * needs no descriptor more. */
START_TEST(adopted)
{
	static struct child c;
	int pair[2], pidfd = -1;
	struct rlimit all;
	getrlimit(RLIMIT_NOFILE, &all);
	loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	ck_assert_int_eq(net_link_pair(pair), 0);
	pid_t pid = fork();
	if (pid == 0)
		run(owner, pair[1]);
	child_init(&c, &type, owner);
	close(pair[1]);
	if (_i) {
		pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
		setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 3, .rlim_max = all.rlim_max});
	}
	ck_assert_int_eq(child_adopt(&c, loop, pid, pidfd, pair[0]), 0);
	setrlimit(RLIMIT_NOFILE, &all);
	for (uint32_t i = 0; i < N; i++)
		send_number(&c, i);
	ev_run(loop, 0);
	ck_assert(has_spoken);
	ck_assert_uint_eq(n_read, 7);
	ev_loop_destroy(loop);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("child");
	TCase *tc = tcase_create("child");
	tcase_add_test(tc, last_words);
	tcase_add_loop_test(tc, adopted, 0, 2);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
