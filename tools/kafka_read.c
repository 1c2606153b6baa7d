/* SPDX-License-Identifier: MIT
 *
 * millrace-kafka read: a topic to standard output. librdkafka's simple consumer with one queue for all partitions:
 * no consumer group, no commits, nothing left behind on the brokers. Messages of different partitions come in the
 * order in which brokers deliver them.
 */
#include "kafka.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <librdkafka/rdkafka.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define BATCH_MESSAGES 1000
/* rd_kafka_consume_batch_queue waits this long for a batch to fill: what a single message waits, and a signal. */
#define BATCH_MS 50
/* In slices, so that a signal ends the wait and errors are said as they come. */
#define METADATA_TRIES 10
#define METADATA_MS 1000

enum format { FORMAT_AUTO, FORMAT_PCAP, FORMAT_RAW, FORMAT_LINES };

struct reader {
	const char *topic;
	enum format format;
	int64_t offset; /* or RD_KAFKA_OFFSET_BEGINNING, RD_KAFKA_OFFSET_END */
	uint64_t max_messages;
	int32_t only_partition; /* -1: all */
	bool until_end;

	rd_kafka_t *rk;
	rd_kafka_topic_t *rkt;
	rd_kafka_queue_t *queue;
	bool *reading; /* by partition: started, end not seen yet */
	int32_t partitions, unfinished;
	uint64_t messages;
	bool failed, said_foreign, said_other_link, said_broken;

	struct kafka_stream stream;
	struct kafka_pcap pcap;
};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
	(void)number;
	stop = 1;
}

static void on_log(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
	(void)rk, (void)level;
	/* A connection that failed is said by on_error, too. */
	if (strcmp(facility, "FAIL") == 0)
		return;
	kafka_say("librdkafka: %s: %s", facility, text);
}

/* Once per change of state, librdkafka sees to that; it goes on trying. */
static void on_error(rd_kafka_t *rk, int code, const char *reason, void *opaque)
{
	(void)rk, (void)opaque;
	kafka_say("%s: %s", rd_kafka_err2name((rd_kafka_resp_err_t)code), reason);
}

/* -- messages ------------------------------------------------------------------------------------------------------ */

static void say_once(bool *said, const rd_kafka_message_t *m, const char *what)
{
	if (!*said)
		kafka_say("partition %" PRId32 " offset %" PRId64 ": %s", m->partition, m->offset, what);
	*said = true;
}

static void pcap_add(struct reader *r, const rd_kafka_message_t *m)
{
	switch (kafka_pcap_add(&r->pcap, &r->stream, m->key, m->key_len, m->payload, m->len)) {
	case KAFKA_PCAP_PACKET:
	case KAFKA_PCAP_FILE:
		break;
	case KAFKA_PCAP_FOREIGN:
		say_once(&r->said_foreign, m, "neither a packet (key of 8 bytes) nor a pcap file; left out, as will be "
					      "others like it");
		break;
	case KAFKA_PCAP_OTHER_LINK:
		say_once(&r->said_other_link, m, "another link type than the first message's; left out: a pcap stream "
						 "has one. Read such messages apart, by partition (-p) or offset (-o)");
		break;
	case KAFKA_PCAP_BROKEN:
		say_once(&r->said_broken, m, "a pcap file that ends within a packet; its whole packets are written");
		break;
	}
}

static void message_write(struct reader *r, const rd_kafka_message_t *m)
{
	if (r->format == FORMAT_AUTO)
		r->format = kafka_pcap_recognise(m->key, m->key_len, m->payload, m->len) == KAFKA_PCAP_FOREIGN ?
				    FORMAT_LINES :
				    FORMAT_PCAP;
	r->messages++;
	if (r->format == FORMAT_PCAP) {
		pcap_add(r, m);
		return;
	}
	kafka_stream_add(&r->stream, m->payload, m->len);
	if (r->format == FORMAT_LINES && (m->len == 0 || ((const char *)m->payload)[m->len - 1] != '\n'))
		kafka_stream_add(&r->stream, "\n", 1);
}

static void partition_end(struct reader *r, int32_t partition)
{
	if (partition < 0 || partition >= r->partitions || !r->reading[partition])
		return;
	r->reading[partition] = false;
	r->unfinished--;
}

/* An error that ends the reading of a partition, or one that librdkafka gets over by itself. */
static void message_error(struct reader *r, const rd_kafka_message_t *m)
{
	if (m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
		partition_end(r, m->partition);
		return;
	}
	kafka_say("partition %" PRId32 ": %s", m->partition, rd_kafka_message_errstr(m));
	if (m->err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET || m->err == RD_KAFKA_RESP_ERR_OFFSET_OUT_OF_RANGE ||
	    m->err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED || m->err == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION ||
	    m->err == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC || m->err == RD_KAFKA_RESP_ERR__FATAL) {
		r->failed = true;
		stop = 1;
	}
}

static void read_loop(struct reader *r)
{
	rd_kafka_message_t *batch[BATCH_MESSAGES];

	while (!stop && r->stream.error == 0 && r->messages < r->max_messages &&
	       !(r->until_end && r->unfinished == 0)) {
		ssize_t n = rd_kafka_consume_batch_queue(r->queue, BATCH_MS, batch, BATCH_MESSAGES);

		for (ssize_t i = 0; i < n; i++) {
			if (batch[i]->err)
				message_error(r, batch[i]);
			else if (r->messages < r->max_messages)
				message_write(r, batch[i]);
			rd_kafka_message_destroy(batch[i]);
		}
		rd_kafka_poll(r->rk, 0);
		if (n < BATCH_MESSAGES) {
			kafka_stream_flush(&r->stream);
			if (kafka_stream_is_closed(&r->stream))
				break;
		}
	}
}

/* -- life --------------------------------------------------------------------------------------------------------- */

/* Asks for the topic and starts each partition. A real broker does not create the topic for that; the mock, which only
 * knows Metadata requests older than that choice (version 2), does. */
static int partitions_start(struct reader *r, const char *brokers, struct err *err)
{
	const struct rd_kafka_metadata *meta = NULL;
	rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR__TRANSPORT;
	int ret = 0;

	for (int i = 0; i < METADATA_TRIES && code && !stop; i++) {
		code = rd_kafka_metadata(r->rk, 0, r->rkt, &meta, METADATA_MS);
		rd_kafka_poll(r->rk, 0);
	}
	if (code)
		return err_set(err, -EIO, "no answer from %s: %s", brokers, rd_kafka_err2str(code));
	if (meta->topic_cnt != 1 || meta->topics[0].err || meta->topics[0].partition_cnt == 0) {
		ret = err_set(err, -ENOENT, "topic '%s': %s", r->topic,
			      meta->topic_cnt == 1 && meta->topics[0].err ? rd_kafka_err2str(meta->topics[0].err) :
									    "it has no partition");
		goto out;
	}
	r->partitions = meta->topics[0].partition_cnt;
	if (r->only_partition >= r->partitions) {
		ret = err_set(err, -ENOENT, "topic '%s' has no partition %" PRId32 ": it has %" PRId32, r->topic,
			      r->only_partition, r->partitions);
		goto out;
	}
	r->reading = calloc((size_t)r->partitions, sizeof(*r->reading));
	if (!r->reading) {
		ret = err_set(err, -ENOMEM, "no memory for %" PRId32 " partitions", r->partitions);
		goto out;
	}
	for (int32_t p = 0; p < r->partitions; p++) {
		if (r->only_partition != -1 && r->only_partition != p)
			continue;
		if (rd_kafka_consume_start_queue(r->rkt, p, r->offset, r->queue) == -1) {
			ret = err_set(err, -EIO, "partition %" PRId32 ": %s", p,
				      rd_kafka_err2str(rd_kafka_last_error()));
			goto out;
		}
		r->reading[p] = true;
		r->unfinished++;
	}
out:
	rd_kafka_metadata_destroy(meta);
	return ret;
}

/* Takes *conf. */
static int reader_open(struct reader *r, rd_kafka_conf_t **conf, struct err *err)
{
	char text[512];

	rd_kafka_conf_set_log_cb(*conf, on_log);
	rd_kafka_conf_set_error_cb(*conf, on_error);
	r->rk = rd_kafka_new(RD_KAFKA_CONSUMER, *conf, text, sizeof(text));
	if (!r->rk)
		return err_set(err, -EINVAL, "librdkafka does not start: %s", text);
	*conf = NULL;
	r->rkt = rd_kafka_topic_new(r->rk, r->topic, NULL);
	if (!r->rkt)
		return err_set(err, -EINVAL, "topic '%s': %s", r->topic, rd_kafka_err2str(rd_kafka_last_error()));
	r->queue = rd_kafka_queue_new(r->rk);
	return kafka_stream_init(&r->stream, STDOUT_FILENO) != 0 ? err_set(err, -ENOMEM, "no memory") : 0;
}

static void reader_close(struct reader *r)
{
	for (int32_t p = 0; r->reading && p < r->partitions; p++) {
		if (r->only_partition == -1 || r->only_partition == p)
			rd_kafka_consume_stop(r->rkt, p);
	}
	if (r->queue)
		rd_kafka_queue_destroy(r->queue);
	if (r->rkt)
		rd_kafka_topic_destroy(r->rkt);
	if (r->rk)
		rd_kafka_destroy(r->rk);
	kafka_stream_fini(&r->stream);
	free(r->reading);
}

/* Writes what is left, says what was left out. 0 or 1, the exit code. */
static int reader_finish(struct reader *r)
{
	if (r->format == FORMAT_PCAP)
		kafka_pcap_end(&r->pcap, &r->stream);
	kafka_stream_flush(&r->stream);
	if (r->pcap.foreign_messages || r->pcap.other_link_messages || r->pcap.broken_messages)
		kafka_say("%" PRIu64 " packets from %" PRIu64 " messages; left out: %" PRIu64
			  " messages that are no packets, %" PRIu64 " with another link type; %" PRIu64
			  " broken pcap files",
			  r->pcap.packets, r->messages, r->pcap.foreign_messages, r->pcap.other_link_messages,
			  r->pcap.broken_messages);
	if (r->stream.error && r->stream.error != EPIPE) {
		kafka_say("standard output: %s", strerror(r->stream.error));
		return 1;
	}
	return r->failed || r->pcap.other_link_messages || r->pcap.broken_messages;
}

/* -- arguments ---------------------------------------------------------------------------------------------------- */

static int property_set(rd_kafka_conf_t *conf, char *pair, struct err *err)
{
	char text[512], *equals = strchr(pair, '=');

	if (!equals)
		return err_set(err, -EINVAL, "-X '%s' is not property=value", pair);
	*equals = '\0';
	if (rd_kafka_conf_set(conf, pair, equals + 1, text, sizeof(text)) != RD_KAFKA_CONF_OK)
		return err_set(err, -EINVAL, "-X %s: %s", pair, text);
	return 0;
}

static int format_parse(const char *word, enum format *format, struct err *err)
{
	static const char *const names[] = { [FORMAT_PCAP] = "pcap", [FORMAT_RAW] = "raw", [FORMAT_LINES] = "lines" };

	for (size_t i = FORMAT_PCAP; i < ARRAY_LEN(names); i++) {
		if (strcmp(names[i], word) == 0) {
			*format = (enum format)i;
			return 0;
		}
	}
	return err_set(err, -EINVAL, "-f '%s' is none of pcap, raw, lines", word);
}

static int offset_parse(const char *word, int64_t *offset, struct err *err)
{
	uint64_t n;

	if (strcmp(word, "beginning") == 0)
		*offset = RD_KAFKA_OFFSET_BEGINNING;
	else if (strcmp(word, "end") == 0)
		*offset = RD_KAFKA_OFFSET_END;
	else if (text_parse_uint(word, &n) == 0 && n <= INT64_MAX)
		*offset = (int64_t)n;
	else
		return err_set(err, -EINVAL, "-o '%s' is neither beginning, end nor an offset", word);
	return 0;
}

static int number_parse(char opt, const char *word, uint64_t min, uint64_t max, uint64_t *n, struct err *err)
{
	if (text_parse_uint(word, n) != 0 || *n < min || *n > max)
		return err_set(err, -EINVAL, "-%c '%s' is not a number from %" PRIu64 " to %" PRIu64, opt, word, min,
			       max);
	return 0;
}

static int arguments_parse(struct reader *r, rd_kafka_conf_t *conf, int argc, char **argv, const char **brokers,
			   struct err *err)
{
	uint64_t n = 0;
	int opt, ret = 0;

	while (ret == 0 && (opt = getopt(argc, argv, "b:t:f:o:n:p:X:eh")) != -1) {
		if (opt == 'b')
			*brokers = optarg;
		else if (opt == 't')
			r->topic = optarg;
		else if (opt == 'f')
			ret = format_parse(optarg, &r->format, err);
		else if (opt == 'o')
			ret = offset_parse(optarg, &r->offset, err);
		else if (opt == 'n')
			ret = number_parse('n', optarg, 1, UINT64_MAX, &r->max_messages, err);
		else if (opt == 'p' && (ret = number_parse('p', optarg, 0, INT32_MAX, &n, err)) == 0)
			r->only_partition = (int32_t)n;
		else if (opt == 'X')
			ret = property_set(conf, optarg, err);
		else if (opt == 'e')
			r->until_end = true;
		else if (opt != 'p')
			return err_set(err, -EINVAL, "see millrace-kafka --help");
	}
	if (ret != 0)
		return ret;
	if (optind < argc)
		return err_set(err, -EINVAL, "'%s' is not an option of read; see millrace-kafka --help", argv[optind]);
	if (!*brokers || !r->topic)
		return err_set(err, -EINVAL, "read needs the brokers (-b HOST:PORT) and a topic (-t NAME)");
	return 0;
}

int kafka_read_main(int argc, char **argv)
{
	/* First, so that -X overrides. An offset that retention took is an error, not a silent jump to the end. A broker
	 * holds a fetch at the end of its log for the wait: -e took 0.52 s with librdkafka's 500 ms. */
	static const char *const ours[][2] = { { "enable.partition.eof", "true" }, { "auto.offset.reset", "error" },
					       { "enable.auto.commit", "false" },  { "fetch.wait.max.ms", "100" },
					       { "log_level", "4" } };
	struct reader r = { .offset = RD_KAFKA_OFFSET_BEGINNING, .max_messages = UINT64_MAX, .only_partition = -1 };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	const char *brokers = NULL;
	struct err err;
	int code = 1;

	for (size_t i = 0; i < ARRAY_LEN(ours); i++)
		rd_kafka_conf_set(conf, ours[i][0], ours[i][1], NULL, 0);
	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		kafka_usage(stdout);
		rd_kafka_conf_destroy(conf);
		return 0;
	}
	signal(SIGPIPE, SIG_IGN);
	sigaction(SIGINT, &action, NULL); /* a second one ends the program, should a reader of ours not read */
	sigaction(SIGTERM, &action, NULL);
	if (arguments_parse(&r, conf, argc, argv, &brokers, &err) != 0)
		goto fail;
	rd_kafka_conf_set(conf, "bootstrap.servers", brokers, NULL, 0);
	if (reader_open(&r, &conf, &err) != 0 || partitions_start(&r, brokers, &err) != 0)
		goto fail;
	read_loop(&r);
	code = reader_finish(&r);
	goto out;
fail:
	kafka_say("%s", err.text);
out:
	reader_close(&r);
	if (conf)
		rd_kafka_conf_destroy(conf);
	return code;
}
