/* SPDX-License-Identifier: MIT
 *
 * kafka_report: what librdkafka says, in the account and in the log: reports by their status and reason, errors, its
 * own log lines, and which brokers are up (from its statistics). Worker's thread only. Log lines come once for each
 * change of state, never for each message.
 */
#include "kafka.h"
#include "types.h"

#include <stdio.h>
#include <string.h>
#include <syslog.h>

/* -- reports ---------------------------------------------------------------------------------------------------------
 */

/* Each reason has its counter; what is not in the list is `other`. */
static uint64_t *reason(struct stats_kafka *st, rd_kafka_resp_err_t why)
{
	switch ((int)why) {
	case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
	case RD_KAFKA_RESP_ERR__TIMED_OUT:
	case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
	case RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT:
		return &st->failed_timed_out_records;
	case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
	case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
	case RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE:
		return &st->failed_too_large_records;
	case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
	case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
	case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
	case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:
		return &st->failed_unknown_topic_records;
	case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
	case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
	case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
	case RD_KAFKA_RESP_ERR__AUTHENTICATION:
		return &st->failed_authorization_records;
	case RD_KAFKA_RESP_ERR_POLICY_VIOLATION:
	case RD_KAFKA_RESP_ERR_INVALID_RECORD:
	case RD_KAFKA_RESP_ERR_INVALID_TIMESTAMP:
	case RD_KAFKA_RESP_ERR_UNSUPPORTED_FOR_MESSAGE_FORMAT:
	case RD_KAFKA_RESP_ERR_UNSUPPORTED_COMPRESSION_TYPE:
		return &st->failed_policy_records;
	case RD_KAFKA_RESP_ERR__FATAL:
	case RD_KAFKA_RESP_ERR__PURGE_QUEUE:
	case RD_KAFKA_RESP_ERR__PURGE_INFLIGHT:
	case RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER:
	case RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH:
	case RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID:
		return &st->failed_fatal_records;
	default:
		return why > 0 ? &st->failed_broker_records : &st->failed_other_records;
	}
}

/* Behind a line that is limited: how many were not written since the last one. */
static const char *more(char *buf, size_t size, uint64_t held)
{
	buf[0] = '\0';
	if (held)
		snprintf(buf, size, " (%llu more of such lines held back)", (unsigned long long)held);
	return buf;
}

void kafka_fail(struct kafka *k, const struct message *m, rd_kafka_resp_err_t why)
{
	char topic[200], held_back[64];
	uint64_t held;
	k->backend->failed_records += m->records;
	const uint64_t *counter = reason(k->stats, why);
	if (!k->is_giving_up &&
	    (counter == &k->stats->failed_unknown_topic_records || counter == &k->stats->failed_authorization_records))
		kafka_doubt_topic(k);
	k->stats->failed_messages++;
	*reason(k->stats, why) += m->records;
	if (!k->is_giving_up && log_limit_pass(&k->log_limits[1], clock_us(), 10000, &held))
		log_warn(
		    "output \"%s\": topic %s: a message of %u bytes failed: %s%s",
		    k->out->cf->name, text_escape(topic, sizeof(topic), k->out->cf->topic, strlen(k->out->cf->topic)),
		    m->len, rd_kafka_err2str(why), more(held_back, sizeof(held_back), held));
}

static void count_delivered(struct kafka *k, const struct message *m)
{
	k->backend->delivered_records += m->records;
	k->backend->delivered_bytes += m->len;
	k->stats->delivered_messages++;
	k->stats->delivered_bytes += m->len;
}

/* At the end what was in librdkafka's queue was never sent: dropped like what was in ours. */
static void count_undelivered(struct kafka *k, const struct message *m, const rd_kafka_message_t *rkm)
{
	rd_kafka_msg_status_t status = rd_kafka_message_status(rkm);
	if (status == RD_KAFKA_MSG_STATUS_POSSIBLY_PERSISTED) {
		k->backend->unconfirmed_records += m->records;
		k->stats->unconfirmed_messages++;
	} else if (k->is_closing && rkm->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE) {
		k->backend->dropped_shutdown_records += m->records;
		k->stats->dropped_messages++;
	} else {
		kafka_fail(k, m, rkm->err);
	}
}

/* Certainly not written, and not for a reason of its own: refused for the size of its batch, or never sent by a
 * producer that a fatal error ended. */
static bool goes_again(const struct kafka *k, const rd_kafka_message_t *rkm, bool was_alone)
{
	if (k->is_closing || rd_kafka_message_status(rkm) != RD_KAFKA_MSG_STATUS_NOT_PERSISTED)
		return false;
	if (rkm->err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE)
		return !was_alone && k->batch_bytes != 1;
	return k->producer->is_fatal &&
	       (rkm->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE || rkm->err == RD_KAFKA_RESP_ERR__FATAL);
}

/* Never sent, and purged by kafka_hand_over: what is reported too late to be handed over goes again from here. Or not
 * written since the topic is not there: it may come back. */
static bool comes_back(struct kafka *k, const rd_kafka_message_t *rkm)
{
	if (k->is_closing || rd_kafka_message_status(rkm) != RD_KAFKA_MSG_STATUS_NOT_PERSISTED)
		return false;
	return rkm->err == RD_KAFKA_RESP_ERR__PURGE_QUEUE || kafka_topic_may_come(k, rkm->err);
}

/* Delivered, says the report, and not where: librdkafka (2.0.2) also takes a later batch's acknowledgement for one of
 * those before it, which a broker may have refused and does not have. */
static void count_unplaced(struct kafka *k, const struct message *m)
{
	k->backend->unconfirmed_records += m->records;
	k->stats->unconfirmed_messages++;
	if (!k->is_unplaced_said)
		log_warn("output \"%s\": a message is reported as delivered without its offset: it may not be in the "
			 "topic; this and all others of this kind are counted as unconfirmed",
			 k->out->cf->name);
	k->is_unplaced_said = true;
}

bool kafka_report(struct kafka *k, const rd_kafka_message_t *rkm, bool was_alone)
{
	struct message *m = rkm->_private;
	struct producer *p = k->producer;
	BUG_ON(p->flight_messages == 0);
	p->flight_messages--;
	p->flight_bytes -= m->len;
	k->flight_records -= m->records;
	kafka_probe_report(k, rkm->partition, rkm->err == RD_KAFKA_RESP_ERR_NO_ERROR);
	if (LIKELY(rkm->err == RD_KAFKA_RESP_ERR_NO_ERROR)) {
		k->unknown_us = 0;
		if (UNLIKELY(rkm->offset < 0 && k->has_offsets))
			count_unplaced(k, m);
		else
			count_delivered(k, m);
		if (UNLIKELY(!k->is_up))
			kafka_set_up(k, true, "");
	} else if (goes_again(k, rkm, was_alone)) {
		message_list_add(&k->refused, m);
		p->is_coarse |= rkm->err == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
		return false;
	} else if (comes_back(k, rkm)) {
		message_list_add(&k->back, m);
		return true;
	} else {
		count_undelivered(k, m, rkm);
	}
	message_free(&k->pool, m);
	return true;
}

/* -- brokers ---------------------------------------------------------------------------------------------------------
 */

static uint64_t dropped(const struct kafka *k)
{
	return k->backend->dropped_memory_records;
}

void kafka_set_up(struct kafka *k, bool is_up, const char *why)
{
	char buf[32], text[300];
	uint64_t now_us = clock_us();
	output_mark_up(k->backend, is_up);
	if (is_up && k->is_down_said)
		log_info("output \"%s\": brokers are back after %s, %llu records dropped", k->out->cf->name,
			 text_format_time(buf, sizeof(buf), now_us - k->down_us),
			 (unsigned long long)(dropped(k) - k->dropped_at_down));
	if (!is_up && !k->is_down_said) {
		k->down_us = now_us;
		k->dropped_at_down = dropped(k);
		log_warn("output \"%s\": no broker can be reached: %s; holding up to %s", k->out->cf->name,
			 text_escape(text, sizeof(text), why, strlen(why)),
			 text_format_bytes(buf, sizeof(buf), (uint64_t)pool_limit_slabs(&k->pool) * POOL_SLAB_BYTES));
	}
	if (is_up && !k->is_up)
		k->backend->connects++;
	if (!is_up && k->is_up)
		k->backend->disconnects++;
	k->is_down_said = !is_up;
	k->is_up = is_up;
}

void kafka_error_event(struct kafka *k, rd_kafka_event_t *event)
{
	rd_kafka_resp_err_t why = rd_kafka_event_error(event);
	const char *what = rd_kafka_event_error_string(event);
	char text[512], fatal[400], held_back[64];
	uint64_t held;
	if (why == RD_KAFKA_RESP_ERR__FATAL || rd_kafka_event_error_is_fatal(event)) {
		rd_kafka_resp_err_t cause = rd_kafka_fatal_error(k->producer->rk, fatal, sizeof(fatal));
		k->producer->is_fatal = true;
		log_error("output \"%s\": fatal producer error %s: %s; making a new producer", k->out->cf->name,
			  rd_kafka_err2name(cause), text_escape(text, sizeof(text), fatal, strlen(fatal)));
		return;
	}
	if (why == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
		kafka_set_up(k, false, what ? what : "");
		return;
	}
	bool is_of_connection = why == RD_KAFKA_RESP_ERR__TRANSPORT || why == RD_KAFKA_RESP_ERR__RESOLVE ||
				why == RD_KAFKA_RESP_ERR__TIMED_OUT;
	if (is_of_connection)
		k->backend->connect_failures++;
	if (is_of_connection && k->is_down_said)
		return;
	if (log_limit_pass(&k->log_limits[2], clock_us(), 5000, &held))
		log_warn("output \"%s\": %s%s", k->out->cf->name,
			 text_escape(text, sizeof(text), what ? what : "", what ? strlen(what) : 0),
			 more(held_back, sizeof(held_back), held));
}

/* The library's own lines. What it says of failures comes as errors too, so here it is for those who debug. */
void kafka_log_event(struct kafka *k, rd_kafka_event_t *event)
{
	const char *facility, *line;
	char text[800], held_back[64];
	uint64_t held;
	int level;
	if (rd_kafka_event_log(event, &facility, &line, &level) != 0)
		return;
	text_escape(text, sizeof(text), line, strlen(line));
	bool is_error =
	    strcmp(facility, "FAIL") == 0 || strcmp(facility, "ERROR") == 0 || strcmp(facility, "FATAL") == 0;
	if (level > LOG_WARNING || is_error)
		log_debug("output \"%s\": librdkafka: %s: %s", k->out->cf->name, facility, text);
	else if (log_limit_pass(&k->log_limits[3], clock_us(), 5000, &held))
		log_warn("output \"%s\": librdkafka: %s: %s%s", k->out->cf->name, facility, text,
			 more(held_back, sizeof(held_back), held));
}

/* {"brokers":{"127.0.0.1:9092/1":{"name":…,"nodeid":1,…,"state":"UP",…},…},"topics":…}: STATISTICS.md of librdkafka.
 * The names cannot contain a quote, so keys are found as text. */
unsigned kafka_brokers_parse(const char *json, struct kafka_broker *brokers, unsigned max)
{
	static const char *const states[] = {"INIT", "DOWN", "UP"};
	const char *at = strstr(json, "\"brokers\":"), *end;
	unsigned n = 0;
	if (at == NULL)
		return 0;
	end = strstr(at, "\"topics\":");
	end = end ? end : at + strlen(at);
	while (n < max && (at = strstr(at, "\"nodeid\":")) != NULL && at < end) {
		int id;
		char state[24];
		const char *s = strstr(at, "\"state\":");
		if (sscanf(at, "\"nodeid\":%d", &id) != 1 || s == NULL ||
		    sscanf(s, "\"state\": \"%23[^\"]", state) != 1)
			break;
		at = s;
		if (id < 0)
			continue; /* a bootstrap address: the same broker has a number when it was reached */
		brokers[n] = (struct kafka_broker){.id = id, .state = STATS_BROKER_DOWN};
		for (unsigned i = 0; i < ARRAY_LEN(states); i++)
			if (strcmp(state, states[i]) == 0)
				brokers[n].state = i;
		n++;
	}
	return n;
}

void kafka_stats_event(struct kafka *k, rd_kafka_event_t *event)
{
	struct kafka_broker brokers[STATS_BROKERS_MAX];
	const char *json = rd_kafka_event_stats(event);
	if (json)
		kafka_statistics_write(k, json);
	unsigned n = json ? kafka_brokers_parse(json, brokers, ARRAY_LEN(brokers)) : 0, up = 0;
	for (unsigned i = 0; i < n; i++) {
		struct stats_broker *st = stats_broker(k->out->page, k->out->index * STATS_BROKERS_MAX + i);
		up += brokers[i].state == STATS_BROKER_UP;
		st->disconnects += st->state == STATS_BROKER_UP && brokers[i].state != STATS_BROKER_UP;
		st->node = (uint64_t)brokers[i].id;
		st->state = brokers[i].state;
		st->is_known = 1;
		stats_touch(k->out->page, STATS_BROKER, k->out->index * STATS_BROKERS_MAX + i);
	}
	k->stats->brokers = n;
	k->stats->brokers_up = up;
	if (up > 0 && !k->is_up)
		kafka_set_up(k, true, "");
	else if (n > 0 && up == 0 && k->is_up)
		kafka_set_up(k, false, "all of them are disconnected");
}
