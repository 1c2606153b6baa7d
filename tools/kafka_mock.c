/* SPDX-License-Identifier: MIT
 *
 * millrace-kafka mock: a Kafka cluster inside librdkafka, to try millrace without a broker and to make brokers fail
 * on command. Everything of the cluster runs in librdkafka's threads; this one waits for signals and for lines.
 *
 * It is no store (librdkafka 2.0.2, src/rdkafka_mock.c): each partition keeps its newest 5 MiB or 100,000 produce
 * batches and forgets older ones at once.
 */
#include "kafka_mock.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define BROKERS_MAX 3

/* Reads what standard input has and answers each whole line. The end of the input ends the cluster: whoever held the
 * other end is gone. A line that does not fit is one error. */
static void control_read(struct mock *mock)
{
	static char buf[4096];
	static size_t len;
	static bool too_long;
	struct err err;
	ssize_t n = read(STDIN_FILENO, buf + len, sizeof(buf) - len);
	char *end;

	if (n <= 0) {
		mock->quit = n == 0 || (errno != EAGAIN && errno != EINTR);
		return;
	}
	len += (size_t)n;
	while (!mock->quit && (end = memchr(buf, '\n', len))) {
		*end++ = '\0';
		if (too_long)
			printf("error: a line of more than %zu bytes\n", sizeof(buf) - 1);
		else if (mock_line_run(mock, buf, &err) != 0)
			printf("error: %s\n", err.text);
		else
			printf("ok\n");
		fflush(stdout);
		too_long = false;
		len -= (size_t)(end - buf);
		memmove(buf, end, len);
	}
	if (len == sizeof(buf)) {
		too_long = true;
		len = 0;
	}
}

static int mock_open(struct mock *mock, struct err *err)
{
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	char text[512];

	/* This handle only keeps the cluster's books; without brokers of its own it would warn about that. */
	rd_kafka_conf_set(conf, "log_level", "4", NULL, 0);
	mock->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
	if (!mock->rk) {
		rd_kafka_conf_destroy(conf);
		return err_set(err, -EIO, "librdkafka does not start: %s", text);
	}
	mock->cluster = rd_kafka_mock_cluster_new(mock->rk, mock->brokers);
	return mock->cluster ? 0 : err_set(err, -EIO, "librdkafka does not start its mock cluster");
}

static void mock_close(struct mock *mock)
{
	if (mock->cluster)
		rd_kafka_mock_cluster_destroy(mock->cluster);
	if (mock->rk)
		rd_kafka_destroy(mock->rk);
}

static void mock_run(struct mock *mock, int signals, bool control)
{
	struct pollfd fds[] = { { .fd = signals, .events = POLLIN },
				{ .fd = control ? STDIN_FILENO : -1, .events = POLLIN } };

	while (!mock->quit) {
		if (poll(fds, ARRAY_LEN(fds), -1) == -1)
			continue; /* EINTR: a debugger, SIGCONT */
		if (fds[0].revents)
			break;
		if (fds[1].revents)
			control_read(mock);
	}
}

int kafka_mock_main(int argc, char **argv)
{
	static const struct option options[] = { { "brokers", required_argument, NULL, 'B' },
						 { "topic", required_argument, NULL, 't' },
						 { "control-stdin", no_argument, NULL, 'c' },
						 { "help", no_argument, NULL, 'h' },
						 { NULL, 0, NULL, 0 } };
	struct mock mock = { .brokers = 1 };
	struct err err;
	const char **topics = calloc((size_t)argc, sizeof(*topics));
	int n_topics = 0, signals = -1, code = 1, opt;
	bool control = false;
	sigset_t set;

	while (topics && (opt = getopt_long(argc, argv, "t:h", options, NULL)) != -1) {
		if (opt == 'B' && mock_parse_int(optarg, 1, BROKERS_MAX, "--brokers", &mock.brokers, &err) != 0)
			goto fail;
		else if (opt == 't')
			topics[n_topics++] = optarg;
		else if (opt == 'c')
			control = true;
		else if (opt == 'h') {
			kafka_usage(stdout);
			code = 0;
			goto out;
		} else if (opt == '?')
			goto out;
	}
	if (optind < argc) {
		err_set(&err, -EINVAL, "'%s' is not an option of mock; see millrace-kafka --help", argv[optind]);
		goto fail;
	}
	/* Blocked before librdkafka starts its threads, which inherit the mask: signals come to the signalfd only. */
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (signals == -1) {
		err_set(&err, -errno, "signalfd: %s", strerror(errno));
		goto fail;
	}
	if (!topics || mock_open(&mock, &err) != 0)
		goto fail;
	for (int i = 0; i < n_topics; i++) {
		if (mock_topic_create(&mock, topics[i], &err) != 0)
			goto fail;
	}
	printf("bootstrap.servers=%s\n", rd_kafka_mock_cluster_bootstraps(mock.cluster));
	fflush(stdout);
	mock_run(&mock, signals, control);
	code = 0;
	goto out;
fail:
	kafka_say("%s", topics ? err.text : "no memory");
out:
	mock_close(&mock);
	if (signals != -1)
		close(signals);
	free(topics);
	return code;
}
