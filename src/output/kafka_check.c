/* SPDX-License-Identifier: MIT
 *
 * kafka_check: whether librdkafka takes the configuration: rd_kafka_conf_set accepts what rd_kafka_new then refuses,
 * and rd_kafka_new starts threads, which must not happen in the master. So a child process tries. Master (for -t and at
 * the start), before any worker.
 */
#include "kafka.h"

#include <process.h>
#include <string.h>

enum { LIMIT_US = 10 * 1000 * 1000 };

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

struct attempt {
	const struct conf_output *cf;
	const char *path;
};

static int attempt(void *arg, struct text *errors)
{
	const struct attempt *a = arg;
	try_to_make(a->cf, a->path, errors);
	return errors->len == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

size_t kafka_check(const struct conf_output *cf, const char *path, struct text *errors)
{
	struct try t = {0};
	struct attempt a = {.cf = cf, .path = path};
	int status = 0;
	int r = try_now(&t, attempt, &a, LIMIT_US, &status);
	size_t n = 0;
	for (size_t i = 0; i < t.said.len; i++)
		n += t.said.s[i] == '\n';
	text_add_bytes(errors, t.said.s ? t.said.s : "", t.said.len);
	if (n == 0 && (r != 0 || status != 0)) {
		const char *why = t.is_late ? "it takes too long" : "it ended the process";
		kafka_where(cf, path, NULL, errors);
		text_add(errors, "librdkafka could not be tried: %s\n", r != 0 ? strerror(-r) : why);
		n = 1;
	}
	try_free(&t);
	warn(cf, path, errors);
	return n;
}
