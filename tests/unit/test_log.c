/* SPDX-License-Identifier: MIT
 *
 * test_log: what reaches stderr, byte by byte, and how often. Each test is a process of its own (check forks), whose
 * stderr is a pipe.
 */
#include "suite.h"

#include <base.h>
#include <errno.h>
#include <fcntl.h>
#include <regex.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char got[16384];
static int pipe_fds[2];

static void capture(void)
{
	ck_assert_int_eq(pipe2(pipe_fds, O_NONBLOCK), 0);
	ck_assert_int_eq(dup2(pipe_fds[1], STDERR_FILENO), STDERR_FILENO);
}

static const char *captured(void)
{
	ssize_t n = read(pipe_fds[0], got, sizeof(got) - 1);
	got[n > 0 ? n : 0] = '\0';
	return got;
}

static void check_matches(const char *s, const char *pattern)
{
	regex_t re;
	ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
	ck_assert_msg(regexec(&re, s, 0, NULL, 0) == 0, "'%s' is not '%s'", s, pattern);
	regfree(&re);
}

#define STAMP "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3}Z "

START_TEST(one_line)
{
	capture();
	char who[] = "worker 2";
	log_open(who, false, LOG_LEVEL_INFO);
	who[0] = 'X'; /* it was copied */
	errno = EBUSY;
	log_warn("backend %s down: %m", "10.0.0.7:8125");
	ck_assert_int_eq(errno, EBUSY);
	check_matches(captured(), STAMP "WARN worker 2: backend 10\\.0\\.0\\.7:8125 down: Device or resource busy\n$");

	struct tm tm = {0};
	time_t now = time(NULL);
	ck_assert_ptr_nonnull(strptime(got, "%Y-%m-%dT%H:%M:%S", &tm));
	ck_assert_int_le(labs((long)(timegm(&tm) - now)), 1);
}
END_TEST

START_TEST(levels)
{
	capture();
	log_open("master", false, LOG_LEVEL_INFO);
	log_debug("no");
	ck_assert_str_eq(captured(), "");
	log_info("yes");
	check_matches(captured(), STAMP "INFO master: yes\n$");
	log_set_level(LOG_LEVEL_DEBUG);
	log_debug("yes");
	check_matches(captured(), STAMP "DEBUG master: yes\n$");
	log_set_level(LOG_LEVEL_ERROR);
	log_warn("no");
	ck_assert_str_eq(captured(), "");
	log_error("yes");
	check_matches(captured(), STAMP "ERROR master: yes\n$");

	enum log_level level = LOG_LEVEL_DEBUG;
	ck_assert_int_eq(log_level_parse("Warning", &level), 0);
	ck_assert_int_eq(level, LOG_LEVEL_WARN);
	ck_assert_int_eq(log_level_parse("ERROR", &level), 0);
	ck_assert_int_eq(level, LOG_LEVEL_ERROR);
	ck_assert_int_eq(log_level_parse("loud", &level), -EINVAL);
	ck_assert_int_eq(level, LOG_LEVEL_ERROR);
}
END_TEST

START_TEST(hostile_text)
{
	capture();
	log_open("m", false, LOG_LEVEL_INFO);
	log_info("%s", "%s%n%x a\nERROR m: forged\x1b[2J\x7f na\xc3\xafve");
	check_matches(captured(), "Z INFO m: %s%n%x a\\\\nERROR m: forged\\\\x1b\\[2J\\\\x7f na\xc3\xafve\n$");
	log_open("%s%n", false, LOG_LEVEL_INFO);
	log_info("x");
	check_matches(captured(), "Z INFO %s%n: x\n$");

	char big[9000];
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	log_info("%s", big);
	size_t len = strlen(captured());
	ck_assert(len > 2000 && len < 2300);
	ck_assert_str_eq(got + len - 5, "x...\n");
	memset(big, '\n', sizeof(big) - 1);
	log_info("%s", big);
	len = strlen(captured());
	ck_assert(len > 2000 && len < 2300);
	ck_assert_ptr_eq(strchr(got, '\n'), got + len - 1);
}
END_TEST

START_TEST(nobody_reads)
{
	close(STDERR_FILENO);
	log_open("m", false, LOG_LEVEL_INFO);
	log_info("lost");
	log_open("m", true, LOG_LEVEL_INFO); /* there may be no syslog here: then nothing happens */
	log_info("millrace's unit test: %s", "%s%n");
	log_open("m", false, LOG_LEVEL_INFO);
}
END_TEST

/* A full pipe whose flags are the parent's: the lines are lost, counted and told; the pipe stays as the parent has it.
 */
START_TEST(nobody_empties)
{
	ck_assert_int_eq(pipe(pipe_fds), 0);
	ck_assert_int_eq(dup2(pipe_fds[1], STDERR_FILENO), STDERR_FILENO);
	ck_assert_int_gt(fcntl(pipe_fds[1], F_SETPIPE_SZ, 8192), 0); /* two pages: room is counted in whole ones */
	log_never_wait();
	ck_assert_int_eq(fcntl(pipe_fds[1], F_GETFL) & O_NONBLOCK, 0);
	log_open("m", false, LOG_LEVEL_INFO);
	alarm(5); /* it would wait for ever */
	int lost = 400;
	for (int i = 0; i < 400; i++)
		log_info("%d", i);
	captured();
	for (char *p = got; (p = strstr(p, "INFO")); p++)
		lost--;
	ck_assert_int_gt(lost, 0);
	log_info("again");
	char pattern[200];
	snprintf(pattern, sizeof(pattern), STAMP "WARN m: %d log lines were lost: .*\n.*INFO m: again\n$", lost);
	check_matches(captured(), pattern);
	log_info("and again");
	check_matches(captured(), STAMP "INFO m: and again\n$");

	/* Without a pipe of its own: a socket that its reader left full. */
	int pair[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	ck_assert_int_eq(dup2(pair[0], STDERR_FILENO), STDERR_FILENO);
	while (send(pair[0], pattern, sizeof(pattern), MSG_DONTWAIT) > 0)
		;
	log_never_wait();
	for (int i = 0; i < 50; i++)
		log_info("%d", i);
	alarm(0);
}
END_TEST

/* More than a log may have in a second: the rest is counted, and told in the next one. */
START_TEST(too_many)
{
	capture();
	ck_assert_int_gt(fcntl(pipe_fds[1], F_SETPIPE_SZ, 1 << 20), 0);
	log_open("m", LOG_TARGET_STDERR, LOG_LEVEL_INFO);
	int lines = 0;
	for (int i = 0; i < 3 * LOG_LINES_PER_SECOND; i++)
		log_info("x");
	for (size_t n; (n = strlen(captured())) > 0;)
		for (size_t i = 0; i < n; i++)
			lines += got[i] == '\n';
	ck_assert_int_ge(lines, LOG_LINES_PER_SECOND);
	ck_assert_int_le(lines, 2 * LOG_LINES_PER_SECOND + 1); /* the second may have changed meanwhile */
	uint64_t until_us = clock_us() + 10000000;
	do
		log_info("y");
	while (strlen(captured()) == 0 && clock_us() < until_us);
	check_matches(got,
		      STAMP "WARN m: [0-9]+ log lines were lost: stderr did not take them, or they were too many\n");
}
END_TEST

START_TEST(to_a_file)
{
	char path[] = "/tmp/millrace-test-XXXXXX", text[2000] = "";
	struct err err = {""};
	capture();
	int fd = mkstemp(path);
	ck_assert_int_ne(fd, -1);
	ck_assert_int_eq(log_file_fd(), -1);
	ck_assert_int_eq(log_file_open("/nothing/here", &err), -ENOENT);
	ck_assert_str_eq(
	    err.text, "log: \"/nothing/here\" cannot be opened: No such file or directory; its folder must be there, "
		      "and writable.");
	int file = log_file_open(path, &err);
	ck_assert_int_ge(file, 0);
	log_open("m", LOG_TARGET_STDERR, LOG_LEVEL_INFO);
	log_turn_to(LOG_TARGET_FILE, file);
	log_copy_to_stderr(true);
	log_info("one");
	log_warn("two");
	proc_close_others(NULL, 0); /* spares it; but not ours */
	log_set_who("w");           /* a child copies nothing to stderr */
	log_warn("three");
	fd = open(path, O_RDWR);
	ck_assert_int_eq(read(fd, text, sizeof(text)) > 0, 1);
	check_matches(text, STAMP "INFO m: one\n.*WARN m: two\n.*WARN w: three\n$");
	log_turn_to(LOG_TARGET_STDERR, -1);
	ck_assert_int_eq(log_file_fd(), -1);
	ck_assert_int_eq(fcntl(file, F_GETFD), -1); /* the one before is closed */
	unlink(path);
}
END_TEST

START_TEST(journal_stream)
{
	char stream[64];
	struct stat st;
	capture();
	ck_assert_int_eq(fstat(STDERR_FILENO, &st), 0);
	unsetenv("JOURNAL_STREAM");
	ck_assert(!log_stderr_is_journal());
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	ck_assert(log_stderr_is_journal());
	snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino + 1);
	setenv("JOURNAL_STREAM", stream, 1);
	ck_assert(!log_stderr_is_journal());
	setenv("JOURNAL_STREAM", "rubbish", 1);
	ck_assert(!log_stderr_is_journal());
}
END_TEST

START_TEST(limit)
{
	struct log_limit l = {0};
	uint64_t held = 99;
	ck_assert(log_limit_pass(&l, 5000000, 1000, &held));
	ck_assert_uint_eq(held, 0);
	for (int i = 1; i <= 3; i++)
		ck_assert(!log_limit_pass(&l, 5000000 + (uint64_t)i * 333333, 1000, &held));
	ck_assert(log_limit_pass(&l, 6000000, 1000, &held));
	ck_assert_uint_eq(held, 3);
	ck_assert(log_limit_pass(&l, 7000000, 1000, &held));
	ck_assert_uint_eq(held, 0);
	l = (struct log_limit){0};
	ck_assert(log_limit_pass(&l, 0, 1000, &held));
	ck_assert(!log_limit_pass(&l, 10, 1000, &held));
}
END_TEST

START_TEST(bug)
{
	BUG_ON(1 > 2);
	BUG_ON(2 > 1);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("log");
	TCase *tc = tcase_create("log");
	tcase_add_test(tc, one_line);
	tcase_add_test(tc, levels);
	tcase_add_test(tc, hostile_text);
	tcase_add_test(tc, nobody_reads);
	tcase_add_test(tc, nobody_empties);
	tcase_add_test(tc, too_many);
	tcase_add_test(tc, to_a_file);
	tcase_add_test(tc, journal_stream);
	tcase_add_test(tc, limit);
	tcase_add_test_raise_signal(tc, bug, SIGABRT);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
