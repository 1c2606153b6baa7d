/* SPDX-License-Identifier: MIT
 *
 * kafka_producer: one rd_kafka_t of one worker: made after fork, fed by bursts to one explicit partition each, and its
 * events served from the worker's loop without ever waiting. Worker's thread only; what may block is in kafka_thread.c.
 *
 * Why an explicit partition, and not before the number of partitions is known: with an unassigned one, messages of a
 * batch during which the metadata arrives can be stranded in librdkafka (2.0.2).
 */
#include "kafka.h"

#include <errno.h>
#include <event.h>
#include <net.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* -- events ----------------------------------------------------------------------------------------------------------
 */

static void reports(struct kafka *k, rd_kafka_event_t *event)
{
	const rd_kafka_message_t *rkm;
	bool was_alone = rd_kafka_event_message_count(event) == 1; /* an event has the reports of one batch */
	uint64_t bytes = 0;
	while ((rkm = rd_kafka_event_message_next(event)) != NULL)
		if (!kafka_report(k, rkm, was_alone))
			bytes += rkm->len + rkm->key_len;
	if (bytes > 0 && k->producer->is_coarse)
		k->refused_bytes = k->refused_bytes ? MIN(k->refused_bytes, bytes) : bytes;
}

void producer_event(struct producer *p, rd_kafka_event_t *event)
{
	struct kafka *k = p->k;
	switch (rd_kafka_event_type(event)) {
	case RD_KAFKA_EVENT_DR:
		reports(k, event);
		break;
	case RD_KAFKA_EVENT_ERROR:
		kafka_error_event(k, event);
		break;
	case RD_KAFKA_EVENT_LOG:
		kafka_log_event(k, event);
		break;
	case RD_KAFKA_EVENT_STATS:
		kafka_stats_event(k, event);
		break;
	default:
		break;
	}
	rd_kafka_event_destroy(event); /* frees the messages of reports */
}

static void hear_news(struct producer *p)
{
	struct kafka *k = p->k;
	int partitions;
	rd_kafka_resp_err_t why;
	if (!producer_news(p, &partitions, &why))
		return;
	producer_tell_peers(p);
	if (partitions > 0)
		kafka_set_partitions(k, (unsigned)partitions);
	else
		kafka_topic_trouble(k, why);
}

void producer_serve(struct producer *p)
{
	rd_kafka_event_t *event;
	if (p == NULL)
		return;
	hear_news(p);
	while ((event = rd_kafka_queue_poll(p->events, 0)) != NULL)
		producer_event(p, event);
}

static void on_event(struct ev_loop *loop, struct ev_io *w, int revents)
{
	event_keep(loop, w, revents);
	struct producer *p = w->data;
	uint64_t n;
	if (read(w->fd, &n, sizeof(n)) == -1 && errno != EAGAIN && errno != EINTR)
		return;
	/* the rest is pump's, at the end of this turn; but not what makes room: it may start the next read */
	producer_serve(p);
	kafka_after_event(p->k);
}

/* -- handing over ------------------------------------------------------------------------------------------------- */

static void set_flight(struct kafka *k, const struct message *m)
{
	k->producer->flight_messages++;
	k->producer->flight_bytes += m->len;
	k->flight_records += m->records;
}

/* librdkafka did not take it. True when it is worth trying again later. */
static bool is_for_later(struct kafka *k, rd_kafka_resp_err_t why)
{
	if (why == RD_KAFKA_RESP_ERR__FATAL)
		k->producer->is_fatal = true;
	return why == RD_KAFKA_RESP_ERR__QUEUE_FULL || why == RD_KAFKA_RESP_ERR__FATAL || kafka_topic_may_come(k, why);
}

/* "10.0.0.1:1234", or nothing when the sender is not known. */
static void origin_format(const struct origin *o, char *buf, size_t size)
{
	struct sockaddr_storage from = {.ss_family = o->from.family};
	struct sockaddr_in *in4 = (struct sockaddr_in *)&from;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&from;
	if (o->from.family == AF_INET) {
		in4->sin_port = o->from.port;
		memcpy(&in4->sin_addr, o->from.address, sizeof(in4->sin_addr));
	} else {
		in6->sin6_port = o->from.port;
		memcpy(&in6->sin6_addr, o->from.address, sizeof(in6->sin6_addr));
	}
	if (o->from.family != 0)
		net_address_format(&from, buf, size);
}

/* With headers each message takes a call of its own: rd_kafka_produce_batch has none. */
static rd_kafka_resp_err_t produce_with_headers(struct kafka *k, const struct message *m, int32_t partition)
{
	const struct origin *o = message_origin(m);
	char sender[128] = "", received[24];
	char *key = message_bytes(m), *value = message_value(m);
	origin_format(o, sender, sizeof(sender));
	int received_len = snprintf(received, sizeof(received), "%llu", (unsigned long long)o->time_us);
	const rd_kafka_vu_t parts[] = {
	    {.vtype = RD_KAFKA_VTYPE_RKT, .u.rkt = k->producer->topic},
	    {.vtype = RD_KAFKA_VTYPE_PARTITION, .u.i32 = partition},
	    {.vtype = RD_KAFKA_VTYPE_VALUE, .u.mem = {value, m->len}},
	    {.vtype = RD_KAFKA_VTYPE_KEY, .u.mem = {m->key_len ? key : NULL, m->key_len}},
	    {.vtype = RD_KAFKA_VTYPE_TIMESTAMP, .u.i64 = (int64_t)(o->time_us / 1000)},
	    {.vtype = RD_KAFKA_VTYPE_OPAQUE, .u.ptr = (void *)(uintptr_t)m},
	    {.vtype = RD_KAFKA_VTYPE_HEADER, .u.header = {"received_us", received, received_len}},
	    {.vtype = RD_KAFKA_VTYPE_HEADER, .u.header = {"sender", sender, (ssize_t)strlen(sender)}},
	};
	size_t n = ARRAY_LEN(parts) - (sender[0] == '\0');
	rd_kafka_error_t *error = rd_kafka_produceva(k->producer->rk, parts, n);
	rd_kafka_resp_err_t why = error ? rd_kafka_error_code(error) : RD_KAFKA_RESP_ERR_NO_ERROR;
	if (error)
		rd_kafka_error_destroy(error);
	return why;
}

static bool has_origin(const rd_kafka_message_t *rkm)
{
	return ((const struct message *)rkm->_private)->has_origin;
}

static void produce(struct kafka *k, int32_t partition, unsigned n)
{
	/* A burst may have both kinds: of this configuration, and taken over from a worker that had another one. */
	for (unsigned i = 0, end; i < n; i = end) {
		const struct message *m = k->burst[i]._private;
		for (end = i + 1; !m->has_origin && end < n && !has_origin(&k->burst[end]); end++)
			;
		if (m->has_origin)
			k->burst[i].err = produce_with_headers(k, m, partition);
		else
			rd_kafka_produce_batch(k->producer->topic, partition, 0, k->burst + i, (int)(end - i));
	}
}

/* One burst to one partition. What was refused for now goes to `back`. False: no more now. */
static bool hand_over_burst(struct kafka *k, uint32_t target, unsigned n, struct message_list *back)
{
	bool goes_on = true;
	produce(k, (int32_t)(k->first_partition + target * k->partition_step), n);
	k->backend->sends++;
	for (unsigned i = 0; i < n; i++) {
		struct message *m = k->burst[i]._private;
		rd_kafka_resp_err_t why = k->burst[i].err;
		if (LIKELY(why == RD_KAFKA_RESP_ERR_NO_ERROR)) {
			k->backend->sent_bytes += m->len;
			set_flight(k, m);
		} else if (is_for_later(k, why)) {
			message_list_add(back, m);
			goes_on = false;
		} else {
			kafka_fail(k, m, why);
			message_free(&k->pool, m);
		}
		if (UNLIKELY(why != RD_KAFKA_RESP_ERR_NO_ERROR))
			kafka_probe_undo(k, target, back);
	}
	return goes_on;
}

/* Messages of the stage with this target, from `from` on, burst by burst, in their order. */
static bool hand_over_target(struct kafka *k, unsigned from, unsigned n_staged, struct message_list *back)
{
	uint32_t target = k->stage[from].target;
	unsigned n = 0;
	bool goes_on = true;
	for (unsigned i = from; i < n_staged; i++) {
		struct message *m = k->stage[i].message;
		if (k->stage[i].is_taken || k->stage[i].target != target)
			continue;
		k->stage[i].is_taken = true;
		if (!goes_on) {
			message_list_add(back, m);
			continue;
		}
		if (k->producer->is_idempotent && kafka_probe_parks(k, target, m))
			continue;
		k->burst[n++] = (rd_kafka_message_t){.payload = message_value(m),
						     .len = m->len,
						     .key = m->key_len ? message_bytes(m) : NULL,
						     .key_len = m->key_len,
						     ._private = m};
		if (n == KAFKA_BURST) {
			goes_on = hand_over_burst(k, target, n, back);
			n = 0;
		}
	}
	return n == 0 ? goes_on : hand_over_burst(k, target, n, back);
}

static unsigned stage(struct kafka *k)
{
	struct producer *p = k->producer;
	uint64_t room = k->window - MIN(k->window, p->flight_messages), bytes = p->flight_bytes;
	unsigned n = 0;
	while (n < MIN(room, KAFKA_STAGE) && k->waiting.first != NULL) {
		struct message *m = k->waiting.first;
		bytes += m->len + m->key_len;
		if (bytes > k->flight_limit_bytes && (n > 0 || p->flight_messages > 0))
			break;
		message_list_take(&k->waiting);
		k->stage[n].message = m;
		k->stage[n].target = m->hash % k->n_targets;
		k->stage[n++].is_taken = false;
	}
	return n;
}

void producer_hand_over(struct kafka *k)
{
	struct producer *p = k->producer;
	struct message_list back;
	unsigned n;
	if (k->n_targets == 0 || k->is_asking)
		return;
	message_list_init(&back);
	while (p != NULL && !p->is_fatal && !p->is_coarse && back.first == NULL && (n = stage(k)) > 0)
		for (unsigned i = 0; i < n; i++) {
			if (k->stage[i].is_taken)
				continue;
			/* after a refusal the others of the stage are still looked at, so that none is forgotten */
			hand_over_target(k, i, n, &back);
		}
	message_list_prepend(&k->waiting, &back);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

void producer_free(struct producer *p)
{
	if (p == NULL)
		return;
	if (p->event_fd != -1)
		close(p->event_fd);
	free(p->peers);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->wake);
	free(p);
}

/* What was made of librdkafka; before there is a thread. */
static int give_up_half_built(struct producer *p, rd_kafka_conf_t *conf, rd_kafka_topic_conf_t *topic_conf)
{
	if (topic_conf != NULL)
		rd_kafka_topic_conf_destroy(topic_conf);
	if (conf != NULL)
		rd_kafka_conf_destroy(conf);
	if (p->topic != NULL)
		rd_kafka_topic_destroy(p->topic);
	if (p->events != NULL)
		rd_kafka_queue_destroy(p->events);
	if (p->rk != NULL)
		rd_kafka_destroy(p->rk);
	return -EINVAL;
}

static int make(struct producer *p, struct err *err)
{
	struct kafka *k = p->k;
	rd_kafka_conf_t *conf;
	rd_kafka_topic_conf_t *topic_conf;
	struct text errors = {0};
	char number[24], why[512] = "";
	if (kafka_conf_make(k->out->cf, k->shared, "", &conf, &topic_conf, &errors) > 0) {
		err_set(err, -EINVAL, "%s", errors.s ? errors.s : "no memory");
		text_free(&errors);
		return -EINVAL;
	}
	/* Both limits are kept here (stage), where one message always fits. */
	snprintf(number, sizeof(number), "%llu", (unsigned long long)MAX(k->window, 1));
	rd_kafka_conf_set(conf, "queue.buffering.max.messages", number, NULL, 0);
	rd_kafka_conf_set(conf, "queue.buffering.max.kbytes", "2147483647", NULL, 0);
	snprintf(number, sizeof(number), "%llu", (unsigned long long)k->batch_bytes);
	if (k->batch_bytes > 0)
		rd_kafka_conf_set(conf, "batch.size", number, NULL, 0);
	size_t size = sizeof(number);
	p->is_idempotent = rd_kafka_conf_get(conf, "enable.idempotence", number, &size) == RD_KAFKA_CONF_OK &&
			   strcmp(number, "true") == 0;
	p->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof(why));
	if (p->rk == NULL) {
		err_set(err, -EINVAL, "Output \"%s\": %s.", k->out->cf->name, why);
		return give_up_half_built(p, conf, topic_conf);
	}
	p->events = rd_kafka_queue_get_main(p->rk);
	rd_kafka_set_log_queue(p->rk, p->events);
	rd_kafka_error_t *error = rd_kafka_sasl_background_callbacks_enable(p->rk); /* tokens of OAUTHBEARER */
	if (error != NULL)
		rd_kafka_error_destroy(error); /* another mechanism needs none */
	p->topic = rd_kafka_topic_new(p->rk, k->out->cf->topic, topic_conf);
	if (p->topic == NULL) {
		err_set(err, -EINVAL, "Output \"%s\": topic %s: %s.", k->out->cf->name, k->out->cf->topic,
			rd_kafka_err2str(rd_kafka_last_error()));
		return give_up_half_built(p, NULL, topic_conf);
	}
	rd_kafka_queue_io_event_enable(p->events, p->event_fd, &(uint64_t){1}, sizeof(uint64_t));
	int r = producer_thread_start(p);
	if (r != 0) {
		err_set(err, r, "Output \"%s\": cannot start a thread: %s.", k->out->cf->name, strerror(-r));
		return give_up_half_built(p, NULL, NULL);
	}
	return 0;
}

struct producer *producer_new(struct kafka *k, struct err *err)
{
	struct producer *p = calloc(1, sizeof(*p));
	if (p == NULL) {
		err_set(err, -ENOMEM, "Output \"%s\": no memory.", k->out->cf->name);
		return NULL;
	}
	p->k = k;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->wake, NULL);
	p->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (p->event_fd == -1)
		err_set(err, -errno, "Output \"%s\": cannot make an eventfd: %s.", k->out->cf->name, strerror(errno));
	if (p->event_fd == -1 || make(p, err) != 0) {
		producer_free(p);
		return NULL;
	}
	ev_io_init(&p->io, on_event, p->event_fd, EV_READ);
	p->io.data = p;
	ev_io_start(k->out->loop, &p->io);
	return p;
}
