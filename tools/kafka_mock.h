/* SPDX-License-Identifier: MIT
 *
 * The two halves of millrace-kafka mock: its life (kafka_mock.c) and its commands (kafka_mock_control.c).
 */
#ifndef TOOLS_KAFKA_MOCK_H
#define TOOLS_KAFKA_MOCK_H

#include "kafka.h"

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

struct mock {
	rd_kafka_t *rk;
	rd_kafka_mock_cluster_t *cluster;
	int brokers; /* numbered from 1 */
	bool quit;
};

/* A number from min to max; `what` is for the error's text. */
int mock_parse_int(const char *word, int64_t min, int64_t max, const char *what, int *value, struct err *err);
/* NAME[:PARTITIONS], default 1; as many replicas as there are brokers. */
int mock_topic_create(struct mock *mock, const char *spec, struct err *err);
/* One command without its newline; the line is cut into words. */
int mock_line_run(struct mock *mock, char *line, struct err *err);

#endif
