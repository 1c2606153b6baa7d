/* SPDX-License-Identifier: MIT
 *
 * The command lines of millrace-kafka mock: what a test says to make brokers fail. The table is at the end.
 */
#include "kafka_mock.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#define PARTITIONS_MAX 10000
#define ERRORS_MAX 10000
#define WORDS_MAX 64

/* -- words to values ---------------------------------------------------------------------------------------------- */

int mock_parse_int(const char *word, int64_t min, int64_t max, const char *what, int *value, struct err *err)
{
	uint64_t n;
	bool negative = word[0] == '-';

	if (text_parse_uint(word + negative, &n) != 0 || n > INT32_MAX || (negative ? -(int64_t)n : (int64_t)n) < min ||
	    (int64_t)n > max)
		return err_set(err, -EINVAL, "%s '%s' is not a number from %lld to %lld", what, word, (long long)min,
			       (long long)max);
	*value = negative ? -(int)n : (int)n;
	return 0;
}

/* A broker's number, or "all" (-1 for librdkafka). */
static int parse_broker(const struct mock *mock, const char *word, int *broker, struct err *err)
{
	if (strcmp(word, "all") == 0) {
		*broker = -1;
		return 0;
	}
	return mock_parse_int(word, 1, mock->brokers, "broker", broker, err);
}

/* An error by librdkafka's name ("NOT_ENOUGH_REPLICAS", "_TRANSPORT") or number. */
static int parse_error(const char *word, rd_kafka_resp_err_t *code, struct err *err)
{
	const struct rd_kafka_err_desc *descs;
	size_t n;
	uint64_t number;
	bool negative = word[0] == '-';

	rd_kafka_get_err_descs(&descs, &n);
	for (size_t i = 0; i < n; i++) {
		if (descs[i].name && strcasecmp(descs[i].name, word) == 0) {
			*code = descs[i].code;
			return 0;
		}
	}
	if (strcasecmp(word, "NO_ERROR") == 0) {
		*code = RD_KAFKA_RESP_ERR_NO_ERROR;
		return 0;
	}
	if (text_parse_uint(word + negative, &number) == 0 && number < 1000) {
		*code = (rd_kafka_resp_err_t)(negative ? -(int)number : (int)number);
		return 0;
	}
	return err_set(err, -EINVAL, "'%s' is no Kafka error: NOT_ENOUGH_REPLICAS is one, _TRANSPORT, or a number",
		       word);
}

/* A request type by name, for those that a producer or consumer sends, or by number. */
static int parse_api(const char *word, int *api, struct err *err)
{
	static const struct {
		const char *name;
		int key;
	} apis[] = { { "Produce", 0 },	       { "Fetch", 1 },	    { "ListOffsets", 2 },     { "Metadata", 3 },
		     { "FindCoordinator", 10 }, { "ApiVersion", 18 }, { "InitProducerId", 22 } };

	for (size_t i = 0; i < ARRAY_LEN(apis); i++) {
		if (strcasecmp(apis[i].name, word) == 0) {
			*api = apis[i].key;
			return 0;
		}
	}
	return mock_parse_int(word, 0, 1000, "API key", api, err);
}

/* -- commands ----------------------------------------------------------------------------------------------------- */

static int answer_of(rd_kafka_resp_err_t code, struct err *err)
{
	return code ? err_set(err, -EINVAL, "librdkafka: %s", rd_kafka_err2str(code)) : 0;
}

int mock_topic_create(struct mock *mock, const char *spec, struct err *err)
{
	char name[250];
	const char *colon = strrchr(spec, ':');
	size_t len = colon ? (size_t)(colon - spec) : strlen(spec);
	int partitions = 1;
	rd_kafka_resp_err_t code;

	if (len == 0 || len >= sizeof(name) ||
	    strspn(spec, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") < len)
		return err_set(err, -EINVAL, "topic '%s' is not NAME:PARTITIONS, a name is 1 to 249 of a-zA-Z0-9._-",
			       spec);
	if (colon && mock_parse_int(colon + 1, 1, PARTITIONS_MAX, "the number of partitions", &partitions, err) != 0)
		return -EINVAL;
	memcpy(name, spec, len);
	name[len] = '\0';
	code = rd_kafka_mock_topic_create(mock->cluster, name, partitions, mock->brokers);
	return code ? err_set(err, -EINVAL, "topic '%s': %s", name, rd_kafka_err2str(code)) : 0;
}

static int cmd_topic(struct mock *mock, int n, char **words, struct err *err)
{
	(void)n;
	return mock_topic_create(mock, words[0], err);
}

/* The list of errors is repeated until there are COUNT. */
static int cmd_errors(struct mock *mock, int n, char **words, struct err *err)
{
	rd_kafka_resp_err_t codes[WORDS_MAX], *all;
	int api = 0, count = 0;

	if (parse_api(words[0], &api, err) != 0 || mock_parse_int(words[1], 1, ERRORS_MAX, "count", &count, err) != 0)
		return -EINVAL;
	for (int i = 2; i < n; i++) {
		if (parse_error(words[i], &codes[i - 2], err) != 0)
			return -EINVAL;
	}
	all = calloc((size_t)count, sizeof(*all));
	if (!all)
		return err_set(err, -ENOMEM, "no memory for %d errors", count);
	for (int i = 0; i < count; i++)
		all[i] = codes[i % (n - 2)];
	rd_kafka_mock_push_request_errors_array(mock->cluster, (int16_t)api, (size_t)count, all);
	free(all);
	return 0;
}

static int cmd_clear(struct mock *mock, int n, char **words, struct err *err)
{
	int api = 0;

	(void)n;
	if (parse_api(words[0], &api, err) != 0)
		return -EINVAL;
	rd_kafka_mock_clear_request_errors(mock->cluster, (int16_t)api);
	return 0;
}

static int cmd_down(struct mock *mock, int n, char **words, struct err *err)
{
	int broker = 0;

	(void)n;
	if (parse_broker(mock, words[0], &broker, err) != 0)
		return -EINVAL;
	return answer_of(rd_kafka_mock_broker_set_down(mock->cluster, broker), err);
}

static int cmd_up(struct mock *mock, int n, char **words, struct err *err)
{
	int broker = 0;

	(void)n;
	if (parse_broker(mock, words[0], &broker, err) != 0)
		return -EINVAL;
	return answer_of(rd_kafka_mock_broker_set_up(mock->cluster, broker), err);
}

static int cmd_rtt(struct mock *mock, int n, char **words, struct err *err)
{
	int broker = 0, ms = 0;

	(void)n;
	if (parse_broker(mock, words[0], &broker, err) != 0 ||
	    mock_parse_int(words[1], 0, 3600000, "delay", &ms, err) != 0)
		return -EINVAL;
	return answer_of(rd_kafka_mock_broker_set_rtt(mock->cluster, broker, ms), err);
}

static int cmd_topic_error(struct mock *mock, int n, char **words, struct err *err)
{
	rd_kafka_resp_err_t code;

	(void)n;
	if (parse_error(words[1], &code, err) != 0)
		return -EINVAL;
	rd_kafka_mock_topic_set_error(mock->cluster, words[0], code);
	return 0;
}

static int cmd_leader(struct mock *mock, int n, char **words, struct err *err)
{
	int partition = 0, broker = -1;

	(void)n;
	if (mock_parse_int(words[1], 0, PARTITIONS_MAX - 1, "partition", &partition, err) != 0 ||
	    (strcmp(words[2], "none") != 0 && mock_parse_int(words[2], 1, mock->brokers, "broker", &broker, err) != 0))
		return -EINVAL;
	return answer_of(rd_kafka_mock_partition_set_leader(mock->cluster, words[0], partition, broker), err);
}

static int cmd_quit(struct mock *mock, int n, char **words, struct err *err)
{
	(void)n, (void)words, (void)err;
	mock->quit = true;
	return 0;
}

static const struct command {
	const char *name, *args;
	int min, max;
	int (*run)(struct mock *mock, int n, char **words, struct err *err);
} commands[] = {
	{ "errors", "APIKEY COUNT ERR...", 3, WORDS_MAX, cmd_errors },
	{ "clear", "APIKEY", 1, 1, cmd_clear },
	{ "down", "N|all", 1, 1, cmd_down },
	{ "up", "N|all", 1, 1, cmd_up },
	{ "rtt", "N|all MS", 2, 2, cmd_rtt },
	{ "topic", "NAME:PARTITIONS", 1, 1, cmd_topic },
	{ "topic-error", "NAME ERR", 2, 2, cmd_topic_error },
	{ "leader", "NAME PARTITION N|none", 3, 3, cmd_leader },
	{ "quit", "", 0, 0, cmd_quit },
};

int mock_line_run(struct mock *mock, char *line, struct err *err)
{
	char *words[WORDS_MAX + 1], *rest = NULL;
	int n = 0;

	for (char *word = strtok_r(line, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
		if (n > WORDS_MAX)
			return err_set(err, -EINVAL, "more than %d words", WORDS_MAX);
		words[n++] = word;
	}
	if (n == 0)
		return err_set(err, -EINVAL, "an empty line");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		const struct command *c = &commands[i];

		if (strcmp(c->name, words[0]) != 0)
			continue;
		if (n - 1 < c->min || n - 1 > c->max)
			return err_set(err, -EINVAL, "usage: %s %s", c->name, c->args);
		return c->run(mock, n - 1, words + 1, err);
	}
	return err_set(err, -EINVAL, "'%s' is none of errors, clear, down, up, rtt, topic, topic-error, leader, quit",
		       words[0]);
}
