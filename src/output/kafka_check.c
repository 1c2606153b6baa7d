/* SPDX-License-Identifier: MIT
 *
 * kafka_check: whether librdkafka takes the configuration: rd_kafka_conf_set accepts what rd_kafka_new then refuses,
 * and rd_kafka_new starts threads, which must not happen in the master. So a child process tries, and its errors come
 * back through a pipe. Master (for -t and at the start), before any worker.
 */
#include "kafka.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_MS = 10000 };

/* The given property that librdkafka's words name first, so that the error has its line; of two at one place the longer
 * ("acks" is in "acks.x"). */
static const char *property_in(const struct conf_output *cf, const char *words)
{
	const struct conf_map *maps[] = {&cf->properties, &cf->topic_properties};
	const char *best = NULL, *best_at = NULL;
	for (size_t m = 0; m < ARRAY_LEN(maps); m++)
		for (size_t i = 0; i < maps[m]->n; i++) {
			const char *key = maps[m]->keys[i], *at = strstr(words, key);
			if (at == NULL ||
			    (best != NULL && (at > best_at || (at == best_at && strlen(key) < strlen(best)))))
				continue;
			best = key;
			best_at = at;
		}
	if (best == NULL && strstr(words, "SASL mechanism") != NULL)
		best = kafka_property(cf, "sasl.mechanisms", NULL) ? "sasl.mechanisms" : "sasl.mechanism";
	return best;
}

static void try_to_make(const struct conf_output *cf, const char *path, struct text *errors)
{
	struct kafka_shared sh = {0};
	rd_kafka_conf_t *conf;
	rd_kafka_topic_conf_t *topic_conf;
	char words[512] = "", features[512] = "";
	size_t size = sizeof(features);
	size_t n = kafka_files_read(&sh, cf, path, errors);
	n += kafka_conf_make(cf, n == 0 ? &sh : NULL, path, &conf, &topic_conf, errors);
	if (n > 0)
		return;
	rd_kafka_conf_get(conf, "builtin.features", features, &size);
	rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, words, sizeof(words));
	if (rk == NULL) {
		words[strcspn(words, "\n")] = '\0';
		kafka_where(cf, path, property_in(cf, words), errors);
		text_add(errors, "%s", words);
		if (strstr(words, "upported") != NULL || strstr(words, "provider") != NULL)
			text_add(errors, "; this librdkafka has: %s", features);
		text_add(errors, "\n");
	} else if (rd_kafka_topic_new(rk, cf->topic, topic_conf) == NULL) {
		kafka_where(cf, path, NULL, errors);
		text_add(errors, "topic: %s\n", rd_kafka_err2str(rd_kafka_last_error()));
	}
}

static _Noreturn void child(const struct conf_output *cf, const char *path, int fd)
{
	struct text errors = {0};
	signal(SIGPIPE, SIG_IGN);
	try_to_make(cf, path, &errors);
	for (size_t at = 0; at < errors.len;) {
		ssize_t n = write(fd, errors.s + at, errors.len - at);
		if (n <= 0)
			break;
		at += (size_t)n;
	}
	_exit(errors.len == 0 && !errors.failed ? 0 : 1); /* without waiting for librdkafka's threads */
}

/* Until the child closes its end, which it does by ending. False: it takes too long. */
static bool read_all(int fd, struct text *t)
{
	char buf[4096];
	uint64_t until_us = clock_us() + PATIENCE_MS * UINT64_C(1000);
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		uint64_t now_us = clock_us();
		int r = poll(&p, 1, now_us < until_us ? (int)((until_us - now_us) / 1000) + 1 : 0);
		if (r == -1 && errno == EINTR)
			continue;
		if (r <= 0)
			return false;
		ssize_t n = read(fd, buf, sizeof(buf));
		if (n <= 0)
			return true;
		text_add_bytes(t, buf, (size_t)n);
	}
}

size_t kafka_check(const struct conf_output *cf, const char *path, struct text *errors)
{
	int ends[2], status = 0;
	struct text said = {0};
	if (pipe2(ends, O_CLOEXEC) == -1) {
		kafka_where(cf, path, NULL, errors);
		text_add(errors, "cannot be checked: %s\n", strerror(errno));
		return 1;
	}
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0)
		child(cf, path, ends[1]);
	close(ends[1]);
	bool is_read = pid != -1 && read_all(ends[0], &said);
	close(ends[0]);
	if (pid != -1 && !is_read)
		kill(pid, SIGKILL);
	while (pid != -1 && waitpid(pid, &status, 0) == -1 && errno == EINTR)
		;
	size_t n = 0;
	for (size_t i = 0; i < said.len; i++)
		n += said.s[i] == '\n';
	text_add_bytes(errors, said.s ? said.s : "", said.len);
	if (n == 0 && (pid == -1 || !is_read || !WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
		kafka_where(cf, path, NULL, errors);
		text_add(errors, "librdkafka could not be tried: %s\n",
			 pid == -1  ? strerror(errno)
			 : !is_read ? "it takes too long"
				    : "it ended the process");
		n = 1;
	}
	text_free(&said);
	return n;
}
