/* SPDX-License-Identifier: MIT
 *
 * process, try: real children. A signal reaches nobody but the child, no exit status is taken by another, strangers are
 * reaped, a function in a child says something, dies, hangs.
 */
#include "suite.h"

#include <errno.h>
#include <process.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_US = 20 * 1000 * 1000 };

static struct ev_loop *loop;
static int ended_with, n_ended;

static void on_exit_of(struct process *p, int status)
{
	ck_assert_int_eq(p->pid, 0);
	ended_with = status;
	n_ended++;
	ev_break(loop, EVBREAK_ALL);
}

static void set_up(void)
{
	loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	n_ended = 0;
	ended_with = -1;
}

static void tear_down(void)
{
	ev_loop_destroy(loop);
}

START_TEST(status)
{
	static struct process p;
	struct text t = {0};
	p.on_exit = on_exit_of;
	if (process_fork(&p) == 0)
		_exit(3);
	process_watch(&p, loop);
	ev_run(loop, 0);
	ck_assert(WIFEXITED(ended_with) && WEXITSTATUS(ended_with) == 3);
	process_report(&p, "worker 3", ended_with, &t);
	ck_assert(strstr(t.s, ") left with exit code 3 after "));
	ck_assert_int_eq(strncmp(t.s, "worker 3 (pid ", 14), 0);
	text_free(&t);
}
END_TEST

START_TEST(killed)
{
	static struct process p;
	struct text t = {0};
	p.on_exit = on_exit_of;
	if (process_fork(&p) == 0)
		for (;;)
			pause();
	process_watch(&p, loop);
	process_signal(&p, SIGKILL);
	ev_run(loop, 0);
	process_report(&p, "monitor", ended_with, &t);
	ck_assert(strstr(t.s, " killed by signal 9 (Killed) after "));
	process_signal(&p, SIGKILL); /* there is none */
	text_free(&t);
}
END_TEST

/* It has ended and was reaped behind our back: its number may be another's, and no signal goes there. */
START_TEST(number_of_another)
{
	static struct process p;
	int got = 0, code;
	sigset_t usr1;
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	if (process_fork(&p) == 0)
		_exit(0);
	ck_assert_int_eq(waitpid(p.pid, &code, 0), p.pid);
	p.pid = getpid(); /* as if */
	process_signal(&p, SIGUSR1);
	got = sigtimedwait(&usr1, NULL, &(struct timespec){.tv_nsec = 1000});
	ck_assert(got == -1 && errno == EAGAIN);
}
END_TEST

START_TEST(waited_for)
{
	static struct process p;
	int code;
	if (process_fork(&p) == 0)
		for (;;)
			pause();
	ck_assert(!process_wait(&p, clock_us() + 1000, &code));
	process_signal(&p, SIGKILL);
	ck_assert(process_wait(&p, clock_us() + LONG_US, &code));
	ck_assert(WIFSIGNALED(code) && p.pid == 0);
}
END_TEST

/* A grandchild whose parent died comes to us as to PID 1; ours keeps its status for its owner. */
START_TEST(strangers)
{
	static struct process ours;
	int ends[2];
	pid_t orphan = 0;
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	ck_assert_int_eq(pipe(ends), 0);
	pid_t between = fork();
	if (between == 0) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		_exit(write(ends[1], &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
	}
	ck_assert_int_eq(read(ends[0], &orphan, sizeof(orphan)), sizeof(orphan));
	ck_assert_int_eq(waitpid(between, NULL, 0), between);
	ours.on_exit = on_exit_of;
	if (process_fork(&ours) == 0)
		_exit(7);
	process_watch(&ours, loop);
	uint64_t until_us = clock_us() + LONG_US;
	while ((n_ended == 0 || kill(orphan, 0) == 0) && clock_us() < until_us)
		process_reap_strangers();
	ck_assert_int_eq(n_ended, 1);
	ck_assert_int_eq(WEXITSTATUS(ended_with), 7);
	ck_assert(kill(orphan, 0) == -1 && errno == ESRCH);
	ev_run(loop, EVRUN_NOWAIT);
	ck_assert_int_eq(n_ended, 1); /* once */
}
END_TEST

/* -- try ----------------------------------------------------------------------------------------------------------- */

static int says_much(void *arg, struct text *said)
{
	for (unsigned i = 0; i < *(unsigned *)arg; i++)
		text_add(said, "line %u\n", i);
	return 4;
}

static __attribute__((noreturn)) int hangs(void *arg, struct text *said)
{
	(void)arg;
	text_add(said, "never said");
	for (;;)
		pause();
}

static __attribute__((noreturn)) int dies(void *arg, struct text *said)
{
	(void)arg, (void)said;
	abort();
}

static void on_end(struct try *t, int code)
{
	ck_assert_ptr_eq(t->owner, loop);
	on_exit_of(&t->process, code);
}

static unsigned many = 50000; /* more than a pipe holds */

START_TEST(try_says)
{
	static struct try t;
	int code;
	ck_assert_int_eq(try_now(&t, says_much, &many, LONG_US, &code), 0);
	ck_assert_int_eq(WEXITSTATUS(code), 4);
	ck_assert(strstr(t.said.s, "line 49999\n"));
	size_t len = t.said.len;
	try_free(&t);
	t = (struct try){.on_end = on_end, .owner = loop};
	ck_assert_int_eq(try_start(&t, loop, says_much, &many, LONG_US), 0);
	ev_run(loop, 0);
	ck_assert_uint_eq(t.said.len, len);
	ck_assert_int_eq(WEXITSTATUS(ended_with), 4);
	ck_assert(!t.is_late);
	try_free(&t);
}
END_TEST

START_TEST(try_hangs)
{
	static struct try t;
	int code;
	ck_assert_int_eq(try_now(&t, hangs, NULL, 20000, &code), 0);
	ck_assert(t.is_late && WIFSIGNALED(code) && t.said.len == 0);
	try_free(&t);
	t = (struct try){.on_end = on_end, .owner = loop};
	ck_assert_int_eq(try_start(&t, loop, hangs, NULL, 20000), 0);
	ev_run(loop, 0);
	ck_assert(t.is_late && WIFSIGNALED(ended_with));
	try_free(&t);
	t = (struct try){.on_end = on_end, .owner = loop};
	ck_assert_int_eq(try_start(&t, loop, hangs, NULL, LONG_US), 0);
	try_free(&t); /* given up */
	ck_assert_int_eq(waitpid(-1, &code, WNOHANG), -1);
	ck_assert_int_eq(n_ended, 1);
}
END_TEST

START_TEST(try_dies)
{
	static struct try t;
	int code;
	ck_assert_int_eq(try_now(&t, dies, NULL, LONG_US, &code), 0);
	ck_assert(!t.is_late && WIFSIGNALED(code) && WTERMSIG(code) == SIGABRT);
	try_free(&t);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("process");
	TCase *tc = tcase_create("process");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, status);
	tcase_add_test(tc, killed);
	tcase_add_test(tc, number_of_another);
	tcase_add_test(tc, waited_for);
	tcase_add_test(tc, strangers);
	tcase_add_test(tc, try_says);
	tcase_add_test(tc, try_hangs);
	tcase_add_test(tc, try_dies);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
