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

/* The given property that librdkafka's words name first, else the one that they are about, so that the error has its
 * line; of two at one place the longer ("acks" is in "acks.x"). */
static const char *property_in(const struct conf_output *cf, const char *words)
{
	const struct conf_map *maps[] = {&cf->properties, &cf->topic_properties};
	static const struct {
		const char *words, *property;
	} others[] = {
	    {"ssl.key.pem", "ssl.key.location"},   {"ssl.certificate.pem", "ssl.certificate.location"},
	    {"ssl.ca.pem", "ssl.ca.location"},     {"rivate key", "ssl.key.location"},
	    {"SASL mechanism", "sasl.mechanisms"}, {"SASL mechanism", "sasl.mechanism"},
	    {"sasl.", "sasl.mechanisms"},          {"sasl.", "sasl.mechanism"},
	};
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
	for (size_t i = 0; i < ARRAY_LEN(others) && best == NULL; i++)
		if (strstr(words, others[i].words) != NULL && kafka_property(cf, others[i].property, NULL) != NULL)
			best = others[i].property;
	return best;
}

/* What librdkafka logs while it refuses a topic: its error code has no words. */
static char last_words[512];

static void remember(const rd_kafka_t *rk, int level, const char *facility, const char *words)
{
	(void)rk, (void)level, (void)facility;
	snprintf(last_words, sizeof(last_words), "%s", words);
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
	rd_kafka_conf_set(conf, "log.queue", "false", NULL, 0);
	rd_kafka_conf_set_log_cb(conf, remember);
	rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, words, sizeof(words));
	if (rk == NULL) {
		words[strcspn(words, "\n")] = '\0';
		kafka_where(cf, path, property_in(cf, words), errors);
		text_add(errors, "%s", words);
		if (strstr(words, "upported") != NULL || strstr(words, "provider") != NULL)
			text_add(errors, "; this librdkafka has: %s", features);
		text_add(errors, "\n");
	} else if (rd_kafka_topic_new(rk, cf->topic, topic_conf) == NULL) {
		const char *why = rd_kafka_err2str(rd_kafka_last_error());
		bool has_words = strstr(last_words, cf->topic) != NULL;
		kafka_where(cf, path, has_words ? property_in(cf, last_words) : NULL, errors);
		text_add(errors, "topic: %s%s%s\n", why, has_words ? ": " : "", has_words ? last_words : "");
	}
}

/* Allowed, and probably not meant. */
static void warn(const struct conf_output *cf, const char *path, struct text *errors)
{
	static const int scram_works = 0x02060100; /* librdkafka's pull request 4895 */
	const char *name = kafka_property(cf, "sasl.mechanisms", NULL) ? "sasl.mechanisms" : "sasl.mechanism";
	const char *mechanism = kafka_property(cf, name, NULL);
	const char *max = kafka_property(cf, "message.max.bytes", NULL);
	uint64_t max_bytes;
	if (mechanism != NULL && strncasecmp(mechanism, "SCRAM-", 6) == 0 && rd_kafka_version() < scram_works) {
		kafka_where(cf, path, name, errors);
		text_add(errors,
			 "librdkafka %s cannot log in with SCRAM to Kafka 4 (2.6.1 can); PLAIN over TLS and client "
			 "certificates work\n",
			 rd_kafka_version_str());
	}
	if (cf->format == CONF_FORMAT_LINES && max != NULL && text_parse_uint(max, &max_bytes) == 0 &&
	    max_bytes < cf->batch_bytes) {
		kafka_where(cf, path, "message.max.bytes", errors);
		text_add(errors, "is below batch_bytes (%llu): full messages will be refused; lower batch_bytes\n",
			 (unsigned long long)cf->batch_bytes);
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
	warn(cf, path, errors);
	return n;
}
