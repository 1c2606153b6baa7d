/* SPDX-License-Identifier: MIT
 *
 * kafka_conf: what the file says, as librdkafka's configuration: our defaults, then what was given, then what we need.
 * The master reads key and certificate files, since workers may not. Makes no producer. Values never go into a message
 * here: some of them are passwords (librdkafka's words may quote a value that it refuses; of passwords it refuses
 * none).
 */
#include "kafka.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PEM_MAX_BYTES = 4 << 20 };

/* format pcap lingers longer: its packets have waited for batch_delay anyway, and fewer requests cost less. Nor is it
 * compressed: lz4 alone would take 430 of 1,040 ns a packet (docs/measured.md). */
static const struct {
	const char *name, *alias, *value, *value_of_pcap;
} defaults[] = {
    {"client.id", NULL, "millrace", NULL},
    {"linger.ms", "queue.buffering.max.ms", "5", "20"},
    {"compression.codec", "compression.type", "lz4", "none"},
    {"statistics.interval.ms", NULL, "1000", NULL}, /* the states of the brokers */
};

const char *kafka_property(const struct conf_output *cf, const char *name, const char *alias)
{
	const struct conf_map *maps[] = {&cf->topic_properties, &cf->properties};
	for (size_t m = 0; m < ARRAY_LEN(maps); m++)
		for (size_t i = maps[m]->n; i-- > 0;)
			if (strcmp(maps[m]->keys[i], name) == 0 ||
			    (alias != NULL && strcmp(maps[m]->keys[i], alias) == 0))
				return maps[m]->values[i];
	return NULL;
}

const char *kafka_excludes_idempotence(const struct conf_output *cf)
{
	uint64_t n;
	const char *acks = kafka_property(cf, "acks", "request.required.acks");
	const char *retries = kafka_property(cf, "retries", "message.send.max.retries");
	const char *flight = kafka_property(cf, "max.in.flight.requests.per.connection", "max.in.flight");
	const char *order = kafka_property(cf, "queuing.strategy", NULL);
	if (kafka_property(cf, "enable.idempotence", NULL) != NULL)
		return NULL; /* then librdkafka says what does not fit */
	if (acks != NULL && strcmp(acks, "all") != 0 && strcmp(acks, "-1") != 0)
		return "acks";
	if (retries != NULL && text_parse_uint(retries, &n) == 0 && n == 0)
		return "retries";
	if (flight != NULL && text_parse_uint(flight, &n) == 0 && n > 5)
		return "max.in.flight";
	return order != NULL && strcmp(order, "lifo") == 0 ? "queuing.strategy" : NULL;
}

static int property_line(const struct conf_output *cf, const char *property, const char **map_name)
{
	const struct conf_map *maps[] = {&cf->properties, &cf->topic_properties};
	static const char *const names[] = {"properties", "topic_properties"};
	for (size_t m = 0; property != NULL && m < ARRAY_LEN(maps); m++)
		for (size_t i = 0; i < maps[m]->n; i++)
			if (strcmp(maps[m]->keys[i], property) == 0) {
				*map_name = names[m];
				return maps[m]->lines[i];
			}
	return cf->line;
}

void kafka_where(const struct conf_output *cf, const char *path, const char *property, struct text *t)
{
	const char *map_name = NULL;
	char shown[200];
	int line = property_line(cf, property, &map_name);
	if (path[0] != '\0' && line > 0)
		text_add(t, "%s:%d: ", path, line);
	else if (path[0] != '\0')
		text_add(t, "%s: ", path);
	text_add(t, "outputs.%s", cf->name);
	if (map_name != NULL)
		text_add(t, ".%s.%s", map_name, text_escape(shown, sizeof(shown), property, strlen(property)));
	text_add(t, ": ");
}

/* -- files -------------------------------------------------------------------------------------------------------- */

/* 0 or -errno. */
static int read_pem(const char *path, char **text)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY), r = 0;
	if (fd == -1)
		return -errno;
	if (fstat(fd, &st) == -1)
		r = -errno;
	else if (!S_ISREG(st.st_mode))
		r = -EISDIR;
	else if (st.st_size > PEM_MAX_BYTES)
		r = -EFBIG;
	size_t len = 0;
	char *bytes = r == 0 ? calloc(1, (size_t)st.st_size + 1) : NULL;
	if (r == 0 && bytes == NULL)
		r = -ENOMEM;
	while (r == 0 && len < (size_t)st.st_size) {
		ssize_t n = read(fd, bytes + len, (size_t)st.st_size - len);
		if (n == -1 && errno != EINTR)
			r = -errno;
		if (n == 0)
			break;
		len += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	if (r == 0)
		*text = bytes;
	else
		free(bytes);
	return r;
}

size_t kafka_files_read(struct kafka_shared *sh, const struct conf_output *cf, const char *path, struct text *errors)
{
	static const struct kafka_pem pems[] = {
	    {"ssl.key.location", "ssl.key.pem", NULL},
	    {"ssl.certificate.location", "ssl.certificate.pem", NULL},
	    {"ssl.ca.location", "ssl.ca.pem", NULL},
	};
	size_t n = 0;
	memcpy(sh->pems, pems, sizeof(pems));
	for (size_t i = 0; i < ARRAY_LEN(sh->pems); i++) {
		struct kafka_pem *pem = &sh->pems[i];
		const char *file = kafka_property(cf, pem->location, NULL);
		char shown[300];
		if (file == NULL || file[0] == '\0' || strcmp(file, "probe") == 0)
			continue;
		int r = read_pem(file, &pem->text);
		if (r == 0 || (r == -EISDIR && i == 2)) /* a folder of CAs is for everybody */
			continue;
		n++;
		kafka_where(cf, path, pem->location, errors);
		text_add(errors, "\"%s\" cannot be read: %s; give a readable file in PEM format\n",
			 text_escape(shown, sizeof(shown), file, strlen(file)), strerror(-r));
	}
	return n;
}

void kafka_shared_free(struct kafka_shared *sh)
{
	for (size_t i = 0; sh != NULL && i < ARRAY_LEN(sh->pems); i++) {
		if (sh->pems[i].text != NULL)
			explicit_bzero(sh->pems[i].text, strlen(sh->pems[i].text));
		free(sh->pems[i].text);
	}
	free(sh);
}

/* -- librdkafka's configuration ----------------------------------------------------------------------------------- */

/* Its words end with a newline now and then. */
static void say(const struct conf_output *cf, const char *path, const char *property, char *words, struct text *errors)
{
	char features[512] = "";
	size_t size = sizeof(features);
	size_t len = strcspn(words, "\n");
	words[len] = '\0';
	kafka_where(cf, path, property, errors);
	text_add_bytes(errors, words, len);
	if (strstr(words, "not supported") != NULL || strstr(words, "Unsupported") != NULL) {
		rd_kafka_conf_t *conf = rd_kafka_conf_new();
		rd_kafka_conf_get(conf, "builtin.features", features, &size);
		rd_kafka_conf_destroy(conf);
		text_add(errors, "; this librdkafka has: %s", features);
	}
	text_add(errors, "\n");
}

/* The name of the feature that the property needs and this librdkafka was built without, or NULL. */
static const char *missing_feature(const char *property, const char *value)
{
	static const struct {
		const char *property, *value, *feature;
	} needs[] = {
	    {"sasl.mechanisms", "GSSAPI", "sasl_gssapi"},
	    {"sasl.mechanism", "GSSAPI", "sasl_gssapi"},
	    {"sasl.mechanisms", "PLAIN", "sasl_plain"},
	    {"sasl.mechanism", "PLAIN", "sasl_plain"},
	    {"sasl.mechanisms", "SCRAM-SHA-256", "sasl_scram"},
	    {"sasl.mechanism", "SCRAM-SHA-256", "sasl_scram"},
	    {"sasl.mechanisms", "SCRAM-SHA-512", "sasl_scram"},
	    {"sasl.mechanism", "SCRAM-SHA-512", "sasl_scram"},
	    {"sasl.mechanisms", "OAUTHBEARER", "sasl_oauthbearer"},
	    {"sasl.mechanism", "OAUTHBEARER", "sasl_oauthbearer"},
	    {"sasl.oauthbearer.method", "oidc", "oidc"},
	    {"security.protocol", "ssl", "ssl"},
	    {"security.protocol", "sasl_ssl", "ssl"},
	    {"compression.codec", "zstd", "zstd"},
	    {"compression.type", "zstd", "zstd"},
	    {"compression.codec", "snappy", "snappy"},
	    {"compression.codec", "gzip", "gzip"},
	    {"compression.codec", "lz4", "lz4"},
	    {"plugin.library.paths", NULL, "plugins"},
	};
	char features[512] = "";
	size_t size = sizeof(features);
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	const char *missing = NULL;
	rd_kafka_conf_get(conf, "builtin.features", features, &size);
	rd_kafka_conf_destroy(conf);
	for (size_t i = 0; i < ARRAY_LEN(needs) && missing == NULL; i++) {
		char *at = features;
		size_t len = strlen(needs[i].feature);
		if (strcmp(needs[i].property, property) != 0 ||
		    (needs[i].value != NULL && strcasecmp(needs[i].value, value) != 0))
			continue;
		while ((at = strstr(at, needs[i].feature)) != NULL &&
		       !((at == features || at[-1] == ',') && (at[len] == ',' || at[len] == '\0')))
			at += len;
		missing = at == NULL ? needs[i].feature : NULL;
	}
	return missing;
}

/* OAUTHBEARER takes its tokens from the program, which has none, or from these two. */
static bool is_without_token(const struct conf_output *cf, const char *property, const char *value)
{
	const char *method = kafka_property(cf, "sasl.oauthbearer.method", NULL);
	const char *unsecure = kafka_property(cf, "enable.sasl.oauthbearer.unsecure.jwt", NULL);
	return (strcmp(property, "sasl.mechanisms") == 0 || strcmp(property, "sasl.mechanism") == 0) &&
	       strcasecmp(value, "OAUTHBEARER") == 0 && (method == NULL || strcasecmp(method, "oidc") != 0) &&
	       (unsecure == NULL || strcasecmp(unsecure, "true") != 0);
}

static const char *pem_of(const struct kafka_shared *sh, const char *property, const char **name)
{
	for (size_t i = 0; sh != NULL && i < ARRAY_LEN(sh->pems); i++)
		if (sh->pems[i].text != NULL && strcmp(sh->pems[i].location, property) == 0) {
			*name = sh->pems[i].pem;
			return sh->pems[i].text;
		}
	return NULL;
}

static size_t set_given(const struct conf_output *cf, const struct kafka_shared *sh, const char *path,
			rd_kafka_conf_t *conf, rd_kafka_topic_conf_t *topic_conf, struct text *errors)
{
	char words[512];
	size_t n = 0;
	for (size_t i = 0; i < cf->properties.n; i++) {
		const char *name = cf->properties.keys[i], *value = cf->properties.values[i];
		const char *missing = missing_feature(name, value), *pem = pem_of(sh, name, &name);
		if (missing != NULL)
			snprintf(words, sizeof(words), "needs the feature %s; it is not supported by this librdkafka",
				 missing);
		else if (strcmp(name, "transactional.id") == 0)
			snprintf(words, sizeof(words), "transactions are not used here; remove it");
		else if (is_without_token(cf, name, value))
			snprintf(words, sizeof(words),
				 "OAUTHBEARER gets no token: give sasl.oauthbearer.method: oidc, or, for trials, "
				 "enable.sasl.oauthbearer.unsecure.jwt: true");
		else if (rd_kafka_conf_set(conf, name, pem ? pem : value, words, sizeof(words)) == RD_KAFKA_CONF_OK)
			continue;
		say(cf, path, cf->properties.keys[i], words, errors);
		n++;
	}
	for (size_t i = 0; i < cf->topic_properties.n; i++) {
		const char *name = cf->topic_properties.keys[i];
		if (rd_kafka_topic_conf_set(topic_conf, name, cf->topic_properties.values[i], words, sizeof(words)) ==
		    RD_KAFKA_CONF_OK)
			continue;
		say(cf, path, name, words, errors);
		n++;
	}
	return n;
}

static void set_defaults(const struct conf_output *cf, rd_kafka_conf_t *conf)
{
	for (size_t i = 0; i < ARRAY_LEN(defaults); i++)
		if (kafka_property(cf, defaults[i].name, defaults[i].alias) == NULL)
			rd_kafka_conf_set(conf, defaults[i].name,
					  cf->format == CONF_FORMAT_PCAP && defaults[i].value_of_pcap != NULL
					      ? defaults[i].value_of_pcap
					      : defaults[i].value,
					  NULL, 0);
	if (kafka_property(cf, "enable.idempotence", NULL) == NULL)
		rd_kafka_conf_set(conf, "enable.idempotence", kafka_excludes_idempotence(cf) ? "false" : "true", NULL,
				  0);
}

size_t kafka_conf_make(const struct conf_output *cf, const struct kafka_shared *sh, const char *path,
		       rd_kafka_conf_t **conf, rd_kafka_topic_conf_t **topic_conf, struct text *errors)
{
	*conf = rd_kafka_conf_new();
	set_defaults(cf, *conf);
	/* What was given without being a topic's own is the topic's default: start from a copy of it. */
	*topic_conf = NULL;
	rd_kafka_topic_conf_t *scratch = rd_kafka_topic_conf_new();
	size_t n = set_given(cf, sh, path, *conf, scratch, errors);
	rd_kafka_topic_conf_destroy(scratch);
	if (n == 0 && cf->topic_properties.n > 0) {
		*topic_conf = rd_kafka_conf_get_default_topic_conf(*conf) != NULL
				  ? rd_kafka_topic_conf_dup(rd_kafka_conf_get_default_topic_conf(*conf))
				  : rd_kafka_topic_conf_new();
		for (size_t i = 0; i < cf->topic_properties.n; i++)
			rd_kafka_topic_conf_set(*topic_conf, cf->topic_properties.keys[i],
						cf->topic_properties.values[i], NULL, 0);
	}
	rd_kafka_conf_set(*conf, "log.queue", "true", NULL, 0);
	rd_kafka_conf_enable_sasl_queue(*conf, 1);
	rd_kafka_conf_set_events(*conf,
				 RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG | RD_KAFKA_EVENT_STATS);
	if (n == 0)
		return 0;
	rd_kafka_conf_destroy(*conf);
	*conf = NULL;
	return n;
}
