/* SPDX-License-Identifier: MIT
 *
 * floor_kafka BROKERS TOPIC COUNT BYTES [NAME=VALUE …]: the least that the usual way to Kafka costs: rd_kafka_produce
 * of a copy, partition chosen by librdkafka, reports counted. Payloads are statsd lines, made once. Prints ns of CPU a
 * message.
 */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PAYLOADS = 512 };

static long delivered, failed;

static void report(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
	(void)rk, (void)opaque;
	if (m->err)
		failed++;
	else
		delivered++;
}

static char *payloads_new(size_t bytes)
{
	char *all = malloc(PAYLOADS * bytes + 128);
	size_t at = 0;
	for (long k = 0; all && at < PAYLOADS * bytes; k++)
		at += (size_t)snprintf(all + at, 100, "app.web%03ld.request.latency.k%06ld:%ld|ms\n", k * 7 % 200,
				       k * 2654435761L % 10000, k % 1000);
	return all;
}

static void setup(rd_kafka_conf_t *conf, int argc, char **argv)
{
	char why[512];
	rd_kafka_conf_set(conf, "bootstrap.servers", argv[1], why, sizeof(why));
	rd_kafka_conf_set(conf, "linger.ms", "5", why, sizeof(why));
	for (int i = 5; i < argc; i++) {
		char *value = strchr(argv[i], '=');
		if (!value)
			exit(2);
		*value = '\0';
		if (rd_kafka_conf_set(conf, argv[i], value + 1, why, sizeof(why)) != RD_KAFKA_CONF_OK) {
			fprintf(stderr, "%s\n", why);
			exit(2);
		}
	}
	rd_kafka_conf_set_dr_msg_cb(conf, report);
}

int main(int argc, char **argv)
{
	char why[512];
	if (argc < 5)
		return 2;
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	setup(conf, argc, argv);
	rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
	long n = atol(argv[3]);
	size_t bytes = (size_t)atol(argv[4]);
	char *all = payloads_new(bytes);
	if (!rk || !all)
		return 1;
	rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, argv[2], NULL);
	for (long i = 0; i < n;) {
		if (rd_kafka_produce(topic, RD_KAFKA_PARTITION_UA, RD_KAFKA_MSG_F_COPY,
				     all + (size_t)(i % PAYLOADS) * bytes, bytes, NULL, 0, NULL)) {
			rd_kafka_poll(rk, 1);
			continue;
		}
		if (!(++i & 63))
			rd_kafka_poll(rk, 0);
	}
	rd_kafka_flush(rk, 30000);
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
		     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
	printf("delivered=%ld failed=%ld ns=%.0f\n", delivered, failed, cpu * 1e9 / (double)n);
	return 0;
}
