/* SPDX-License-Identifier: MIT
 *
 * kafka_topic: which partitions of the topic are ours, and what becomes of records while it has none: held for a while,
 * since brokers need a moment for a topic that they just made, then counted as failed until that is cured. Worker only.
 * Asks nobody: answers come from kafka_thread.c.
 */
#include "kafka.h"

/* Which partitions are ours: with partition: worker those whose number modulo the workers is our slot. */
static unsigned count_targets(struct kafka *k, unsigned partitions)
{
	bool some = k->partition == CONF_PARTITION_WORKER;
	k->first_partition = some ? k->out->slot : 0;
	k->partition_step = some ? MAX(k->out->n_slots, 1) : 1;
	if (partitions <= k->first_partition)
		return 0;
	return (partitions - k->first_partition + k->partition_step - 1) / k->partition_step;
}

void kafka_set_partitions(struct kafka *k, unsigned partitions)
{
	unsigned targets = count_targets(k, partitions);
	if (k->is_asking)
		kafka_probe_restart(k); /* it may be another topic of the same name */
	k->is_asking = false;
	bool is_packed = (k->out->wants == OUTPUT_WANTS_LINES || k->out->cf->format == CONF_FORMAT_PCAP) &&
			 k->partition != CONF_PARTITION_RANDOM;
	if (partitions == 0 || partitions == k->n_partitions)
		return;
	if (targets == 0) {
		kafka_probe_init(k, 0);
		kafka_topic_trouble(k, RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION);
		return;
	}
	if (kafka_probe_init(k, targets) != 0 || (is_packed && kafka_builders_init(k, targets) != 0))
		return; /* no memory: as before, and asked again */
	if (kafka_takes_packets(k->out->cf) && kafka_times_init(k, targets) != 0)
		return;
	if (k->n_partitions != 0)
		log_info("output \"%s\": topic %s has %u partitions now, had %u", k->out->cf->name, k->out->cf->topic,
			 partitions, k->n_partitions);
	else if (k->is_topic_error_said)
		log_info("output \"%s\": topic %s is usable now", k->out->cf->name, k->out->cf->topic);
	k->n_partitions = partitions;
	k->stats->partitions = partitions;
	k->is_topic_error_said = k->is_giving_up = false;
	k->topic_error = RD_KAFKA_RESP_ERR_NO_ERROR;
	k->topic_error_us = 0;
}

/* A broker says that the topic is not there or not ours. librdkafka then forgets its partitions, and what it gets
 * meanwhile would strand in its queue of messages without partition until it asks again by itself, minutes later. */
void kafka_doubt_topic(struct kafka *k)
{
	if (k->is_asking)
		return;
	k->is_asking = true;
	if (k->producer != NULL)
		producer_ask(k->producer);
}

bool kafka_topic_may_come(struct kafka *k, rd_kafka_resp_err_t why)
{
	uint64_t now_us = clock_us();
	if ((why != RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC && why != RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION &&
	     why != RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART) ||
	    k->is_giving_up)
		return false;
	if (k->unknown_us == 0)
		k->unknown_us = now_us;
	if (now_us - k->unknown_us >= k->grace_us)
		return false;
	kafka_doubt_topic(k);
	return true;
}

static void say_topic_trouble(struct kafka *k, rd_kafka_resp_err_t why)
{
	const struct conf_output *cf = k->out->cf;
	char wait[32];
	k->is_topic_error_said = true;
	text_format_time(wait, sizeof(wait), k->grace_us);
	if (why == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION)
		log_error(
		    "output \"%s\": topic %s has no partition for worker %u: partition: worker needs at least as many "
		    "partitions as workers (%u); what this worker holds is given up after %s",
		    cf->name, cf->topic, k->out->slot, k->out->n_slots, wait);
	else
		log_error(
		    "output \"%s\": topic %s: %s; what it gets is counted as failed after %s, until that is cured",
		    cf->name, cf->topic, rd_kafka_err2str(why), wait);
}

/* There are no partitions to write to. Brokers need a moment for a topic that they just made, so records are held for
 * grace_us first. */
void kafka_topic_trouble(struct kafka *k, rd_kafka_resp_err_t why)
{
	if (k->n_targets > 0 && !k->is_asking)
		return; /* librdkafka knows better what becomes of an existing topic, as long as messages arrive */
	kafka_probe_init(k, 0);
	k->n_partitions = 0;
	k->stats->partitions = 0;
	if (k->topic_error == RD_KAFKA_RESP_ERR_NO_ERROR)
		k->topic_error_us = k->now_us;
	k->topic_error = why;
	if (!k->is_topic_error_said && why != RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE)
		say_topic_trouble(k, why);
	k->is_giving_up = k->now_us - k->topic_error_us >= k->grace_us;
}

void kafka_give_up_waiting(struct kafka *k)
{
	struct message *m;
	kafka_end_all(k);
	while ((m = message_list_take(&k->waiting)) != NULL) {
		kafka_fail(k, m, k->topic_error);
		message_free(&k->pool, m);
	}
}
