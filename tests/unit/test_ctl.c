/* SPDX-License-Identifier: MIT
 *
 * test_ctl: millracectl as a whole, against a control socket that this test serves, with counter pages that it fills.
 * Run from the top of the repository (the man page is compared with the table of commands).
 */
#include "suite.h"
#include "ctl_run.h"
#include <fcntl.h>
#include <regex.h>
#include <sys/wait.h>

static struct err test_err;
static struct stats *pages;
static pid_t master = -1;

/* -- the master --------------------------------------------------------------------------------------------------- */

static void answer(int sock, const char *ask, int main_fd)
{
	char text[128];
	unsigned file;
	snprintf(text, sizeof(text), "ok 1.2.3 %d\n", (int)getpid());
	if (strcmp(ask, "pages\n") == 0)
		net_send_fd(sock, text, strlen(text), main_fd);
	else if (sscanf(ask, "page %u", &file) == 1 && file < stats_files(pages))
		net_send_fd(sock, text, strlen(text), stats_reader_fd(pages, file));
	else if (strcmp(ask, "log debug\n") == 0)
		net_send_fd(sock, "ok\n", 3, -1);
	else if (strcmp(ask, "drain\n") == 0) { /* in pieces */
		net_send_fd(sock, "ok drai", 7, -1);
		net_send_fd(sock, "ning 3\nmore", 11, -1);
	} else if (strcmp(ask, "log hangup\n") != 0)
		net_send_fd(sock, "error no such level\n", 20, -1);
}

static _Noreturn void master_run(int listener, int main_fd)
{
	for (;;) {
		char ask[256] = "";
		int sock = accept(listener, NULL, NULL);
		if (read(sock, ask, sizeof(ask) - 1) > 0)
			answer(sock, ask, main_fd);
		close(sock);
	}
}

static void master_start(int main_fd)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", socket_path);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&sa, sizeof(sa)), 0);
	ck_assert_int_eq(listen(listener, 8), 0);
	master = fork();
	if (master == 0)
		master_run(listener, main_fd);
	close(listener);
}

static void master_end(void)
{
	if (master == -1)
		return;
	kill(master, SIGKILL);
	waitpid(master, NULL, 0);
	master = -1;
}

static void pages_fill(void)
{
	struct stats_page *p = stats_slot_page(pages, 0, 0), *m = stats_master_page(pages);
	stats_name(pages, STATS_INPUT, 0, "metrics", 0, 1, "udp");
	stats_name(pages, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	stats_name(pages, STATS_BACKEND, 0, "10.0.0.1:8125", 0, 0, "tcp");
	stats_name(pages, STATS_BACKEND, 1, "10.0.0.2:8125", 0, 0, "udp");
	stats_name(pages, STATS_ENDPOINT, 0, "0.0.0.0:8125", 0, 0, "slot 0");
	*stats_input(p, 0) = (struct stats_input){.received_datagrams = 90,
						  .to_outputs_datagrams = 90,
						  .received_lines = 1000,
						  .to_outputs_lines = 996,
						  .invalid_lines = 4};
	*stats_output(p, 0) = (struct stats_output){.offered_records = 996, .taken_records = 996};
	*stats_backend(p, 0) = (struct stats_backend){.offered_records = 900,
						      .delivered_records = 450,
						      .dropped_queue_full_records = 450,
						      .up = 1,
						      .at_risk_records = 3};
	*stats_backend(p, 1) = (struct stats_backend){.offered_records = 96, .queued_records = 96};
	*stats_slot(m, 0) =
	    (struct stats_slot){.pid = 77, .state = 2, .ready_us = clock_real_us() - 90000000, .starts = 1};
	stats_master(m)->started_us = clock_real_us() - 120000000;
	stats_endpoint(m, 0)->dropped_datagrams = 10;
	for (unsigned i = 0; i < 2; i++) {
		stats_touch(p, STATS_BACKEND, i);
		stats_touch(m, STATS_SLOT, i);
	}
	stats_touch(p, STATS_INPUT, 0);
	stats_touch(p, STATS_OUTPUT, 0);
	stats_touch(m, STATS_MASTER, 0);
	stats_touch(m, STATS_ENDPOINT, 0);
	stats_publish(p);
	stats_publish(m);
}

static void setup(void)
{
	folder_make();
	pages = stats_new(2, 0, &test_err);
	pages_fill();
	master_start(stats_reader_fd(pages, 0));
}

static void teardown(void)
{
	master_end();
	stats_free(pages);
	folder_remove();
}

/* A line of the table that begins with these words, and has them in this order. */
static void assert_row(const char *words)
{
	char pattern[512] = "", all[512];
	regex_t re;
	snprintf(all, sizeof(all), "%s", words);
	for (char *rest = all, *word; (word = strsep(&rest, " "));) {
		size_t len = strlen(pattern);
		snprintf(pattern + len, sizeof(pattern) - len, "%s%s", len ? " +" : "^ *", word);
	}
	ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
	ck_assert_msg(regexec(&re, out, 0, NULL, 0) == 0, "no line \"%s\" in:\n%s", words, out);
	regfree(&re);
}

/* -- commands ------------------------------------------------------------------------------------------------------ */

START_TEST(test_status)
{
	ck_assert_int_eq(run("", "status"), 0);
	assert_contains("millrace 1.2.3, pid ");
	assert_contains("up 2 min, 1 of 2 workers ready\n");
	assert_contains("worker  state   pid  ready for");
	assert_contains("0       ready    77    1.5 min");
	assert_contains("1       vacant    0          -");
	assert_contains("shards/10.0.0.1:8125  tcp  1 of 1");
	assert_contains("shards/10.0.0.2:8125  udp  DOWN");
	ck_assert_int_eq(run("", "status --json"), 0);
	assert_contains("{\"version\":\"1.2.3\",\"pid\":");
	ck_assert_int_eq(run("", "status --jsn"), 2);
	ck_assert_int_eq(run("", "status --json more"), 2);
}
END_TEST

START_TEST(test_stats)
{
	ck_assert_int_eq(run("", "stats"), 0);
	assert_contains("received_lines{worker=0 input=metrics} 1000\n");
	assert_contains("offered_records{worker=0 output=shards backend=10.0.0.2:8125} 96\n");
	assert_contains("dropped_datagrams{input=metrics endpoint=0.0.0.0:8125} 10\n");
	assert_contains("pid{slot=0} 77\n");
	assert_contains("loops{worker=1} 0\n");
	assert_contains("loaded_us{} 0\n");
	ck_assert_int_eq(run("", "stats --json"), 0);
	assert_contains("{\"name\":\"received_lines\",\"scope\":\"input\",\"kind\":\"counter\",\"worker\":0,\"input\":"
			"\"metrics\","
			"\"value\":1000}");
	ck_assert_int_eq(run("", "stats --repeat 2"), 2);
}
END_TEST

START_TEST(test_check)
{
	ck_assert_int_eq(run("", "check"), 0);
	ck_assert_str_eq(out, "The ledger balances: 2 workers, 1 inputs, 1 outputs, 2 backends, 1 time.\n");
	ck_assert_int_eq(run("", "check --repeat 20"), 0);
	assert_contains("20 times");
	ck_assert_int_eq(run("", "check --repeat 0"), 2);
	ck_assert_int_eq(run("", "check --repeat x"), 2);
	struct stats_page *p = stats_slot_page(pages, 0, 0);
	stats_input(p, 0)->invalid_lines++;
	stats_touch(p, STATS_INPUT, 0);
	stats_publish(p);
	ck_assert_int_eq(run("", "check"), 1);
	ck_assert_str_eq(out, "worker 0 input metrics: received_lines 1000 ≠ to_outputs_lines 996 + invalid_lines 5\n");
	ck_assert_int_eq(run("", "check --repeat 20"), 1);
}
END_TEST

START_TEST(test_drops)
{
	ck_assert_int_eq(run("", "drops"), 0);
	assert_row("socket datagrams 100 10 10 %");
	assert_row("dropped_datagrams datagrams 10 metrics/0.0.0.0:8125 slot 0");
	assert_row("invalid lines 1000 4 0.40 %");
	assert_row("queue lines 996 450 45 %");
	assert_row("dropped_queue_full_records lines 450 shards/10.0.0.1:8125");
	assert_row("at_risk_records 3 lines, most at shards/10.0.0.1:8125:");
	assert_contains("\nAlso: socket lost 10.00 % (10 datagrams) since the start: ");
	assert_contains("\nAt most 3 lines may be lost: a connection to shards/10.0.0.1:8125 was lost");
	assert_contains("The last 10 s are not known");
	assert_contains(
	    "\nThe worst: queue lost 45.18 % (450 lines) since the start: "
	    "backend shards/10.0.0.1:8125 is connected and too slow");
	ck_assert_int_eq(run("", "drops --json"), 0);
	assert_contains("{\"window_us\":null,");
	assert_contains("{\"step\":\"socket\",\"unit\":\"datagrams\",\"since\":\"start\",\"in\":100,\"lost\":10,"
			"\"percent\":10.0000,"
			"\"in_10s\":null");
	ck_assert_int_eq(run("", "drops --json --seconds 1"), 0);
	assert_contains("\"in_10s\":0,\"lost_10s\":0,\"percent_10s\":0.0000");
	assert_contains("\"worst_10s\":null");
	ck_assert_int_eq(run("", "drops --seconds"), 2);
	ck_assert_int_eq(run("", "drops --seconds 0"), 2);
	ck_assert_int_eq(run("", "drops --watch --seconds 2"), 2);
	ck_assert_int_eq(run("", "drops all"), 2);
	memset(stats_backend(stats_slot_page(pages, 0, 0), 0), 0, sizeof(struct stats_backend));
	memset(stats_input(stats_slot_page(pages, 0, 0), 0), 0, sizeof(struct stats_input));
	memset(stats_endpoint(stats_master_page(pages), 0), 0, sizeof(struct stats_endpoint));
	for (unsigned i = 0; i < 30; i++) {
		stats_backend(stats_slot_page(pages, 0, 0), i)->failed_records = _i * (i + 1);
		stats_touch(stats_slot_page(pages, 0, 0), STATS_BACKEND, i);
	}
	stats_touch(stats_slot_page(pages, 0, 0), STATS_INPUT, 0);
	stats_touch(stats_master_page(pages), STATS_ENDPOINT, 0);
	stats_publish(stats_slot_page(pages, 0, 0));
	stats_publish(stats_master_page(pages));
	ck_assert_int_eq(run("", "drops"), 0);
	if (_i)
		assert_row("failed_records lines 465 shards/#29");
	else
		assert_contains("\nNothing was lost.\n");
}
END_TEST

START_TEST(test_top)
{
	ck_assert_int_eq(run("", "top --count 1"), 0);
	assert_contains("millrace 1.2.3, pid ");
	assert_contains(": 0 datagrams/s, 0 lines/s in; 0 datagrams/s dropped by the kernel\n");
	assert_row("0 ready 77 0 % 0 0 0 B 0 0 B 0");
	assert_row("1 vacant 0 0 % 0 0 0 B 0 0 B 0");
	assert_row("shards/10.0.0.2:8125 down 0 0 0 B 96 0 0");
	ck_assert_int_eq(run("", "top --count"), 2);
	ck_assert_uint_eq(rate_of(5, 10, 500000), 10);
	ck_assert_uint_eq(rate_of(10, 5, 500000), 0);
	ck_assert_uint_eq(rate_of(5, 10, 0), 0);
	struct text plain = {0}, screen = {0};
	text_add(&plain, "a\nb\xc3\xa9\xe2\x82\xac"
			 "def\n\nnever seen\n");
	screen_text(&plain, 3, 4, &screen);
	ck_assert_str_eq(screen.s, "\033[Ha\033[K\r\nb\xc3\xa9\xe2\x82\xac"
				   "d\033[K\r\n\033[K\033[J");
	text_free(&plain);
	text_free(&screen);
}
END_TEST

START_TEST(test_forward)
{
	ck_assert_int_eq(run("", "log debug"), 0);
	ck_assert_str_eq(out, "");
	ck_assert_int_eq(run("", "log loud"), 1);
	ck_assert_str_eq(out, "millracectl: no such level\n");
	ck_assert_int_eq(run("", "log"), 2);
	assert_contains("Write \"millracectl log LEVEL\".");
	ck_assert_int_eq(run("", "log a b"), 2);
	ck_assert_int_eq(run("", "log a\nb"), 2);
	ck_assert_int_eq(run("", "log hangup"), 2);
	assert_contains("it closed the connection");
	ck_assert_int_eq(run("", "drain"), 0);
	ck_assert_str_eq(out, "draining 3\n");
	ck_assert_int_eq(run("", "pages"), 0);
	assert_contains("1.2.3 ");
	ck_assert_int_eq(run("", "nothing"), 2);
	assert_contains("no command \"nothing\"");
}
END_TEST

START_TEST(test_nobody)
{
	master_end();
	ck_assert_int_eq(run("", "status"), 2);
	assert_contains("Connection refused");
	assert_contains("start one with --control");
	unlink(socket_path);
	ck_assert_int_eq(run("", "check"), 2);
	assert_contains("No such file or directory");
	master_start(-1); /* it has no pages */
	ck_assert_int_eq(run("", "check"), 2);
	assert_contains("gave no counter pages but \"ok 1.2.3");
	master_end();
	unlink(socket_path);
	master_start(open("/dev/null", O_RDONLY));
	ck_assert_int_eq(run("", "drops"), 2);
	assert_contains("not the descriptor of counter pages");
	memset(socket_path, 'x', sizeof(socket_path) - 1);
	char longest[256];
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	ck_assert_int_eq(control_connect(longest, 10, &test_err), -ENAMETOOLONG);
}
END_TEST

START_TEST(test_help_and_man)
{
	ck_assert_int_eq(run("", "--help"), 0);
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		assert_contains(commands[i].name);
	assert_contains("exit status:");
	ck_assert_int_eq(run("", "--version"), 0);
	assert_contains("millracectl ");
	ck_assert_int_eq(run("", "--no-such-option"), 2);
	ck_assert_int_eq(run("", "--man-commands"), 0);
	FILE *f = fopen("etc/man/millracectl.1", "r");
	ck_assert_msg(f != NULL, "run this test from the top of the repository");
	char man[32768];
	man[fread(man, 1, sizeof(man) - 1, f)] = '\0';
	fclose(f);
	ck_assert_msg(strstr(man, out) != NULL,
		      "put into etc/man/millracectl.1 what millracectl --man-commands prints:\n%s", out);
}
END_TEST

START_TEST(test_fdpass)
{
	int pair[2], got, more[2] = {0, 1};
	char buf[16];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair), 0);
	ck_assert_int_eq(net_recv_fd(pair[1], buf, sizeof(buf), &got), -EAGAIN);
	ck_assert_int_eq(net_send_fd(pair[0], "abc", 3, pair[0]), 0);
	ck_assert_int_eq(net_recv_fd(pair[1], buf, sizeof(buf), &got), 3);
	ck_assert_int_ge(got, 0);
	ck_assert(fcntl(got, F_GETFD) & FD_CLOEXEC);
	close(got);
	/* a peer that sends two: one arrives, none leaks */
	char control[CMSG_SPACE(sizeof(more))] __attribute__((aligned(8))) = {0};
	struct iovec iov = {"x", 1};
	struct msghdr mh = {
	    .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *cm = CMSG_FIRSTHDR(&mh);
	*cm = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(more)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(cm), more, sizeof(more));
	int before = dup(0);
	close(before);
	ck_assert_int_eq(sendmsg(pair[0], &mh, 0), 1);
	ck_assert_int_eq(net_recv_fd(pair[1], buf, sizeof(buf), &got), 1);
	ck_assert_int_eq(got, before);
	close(got);
	int after = dup(0);
	ck_assert_int_eq(after, before);
	close(after);
	close(pair[0]);
	ck_assert_int_eq(net_recv_fd(pair[1], buf, sizeof(buf), &got), 0);
	ck_assert_int_eq(net_send_fd(pair[1], "abc", 3, -1), -EPIPE);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("ctl");
	TCase *tc = tcase_create("ctl");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, test_status);
	tcase_add_test(tc, test_stats);
	tcase_add_test(tc, test_check);
	tcase_add_loop_test(tc, test_drops, 0, 2);
	tcase_add_test(tc, test_top);
	tcase_add_test(tc, test_forward);
	tcase_add_test(tc, test_nobody);
	tcase_add_test(tc, test_help_and_man);
	tcase_add_test(tc, test_fdpass);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
