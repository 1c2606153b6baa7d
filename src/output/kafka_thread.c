/* SPDX-License-Identifier: MIT
 *
 * kafka_thread: what librdkafka offers only as calls that wait: asking for the topic's metadata, flushing, purging,
 * destroying.
 * One thread for each producer, so that the worker's loop never waits. It touches nothing of the output but the fields
 * of struct producer that are meant for both, under the lock.
 */
#include "kafka.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	ASK_MS = 5000,      /* an answer may take so long */
	AGAIN_MS = 200,     /* while the topic is not known … */
	REFRESH_MS = 10000, /* … and when it is: partitions may be added */
	FLUSH_MS = 200,
};

static void ring(struct producer *p)
{
	uint64_t one = 1;
	if (write(p->event_fd, &one, sizeof(one)) == -1)
		return; /* full: it rings already */
}

static void answer(struct producer *p, int partitions, rd_kafka_resp_err_t why)
{
	pthread_mutex_lock(&p->lock);
	p->partitions = partitions;
	p->why = why;
	__atomic_fetch_add(&p->answers, 1, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&p->lock);
	ring(p);
}

/* True when the partitions are known. No broker is no answer: that is said by others. */
static bool ask(struct producer *p, int timeout_ms)
{
	const struct rd_kafka_metadata *meta;
	bool is_known = false;
	if (rd_kafka_metadata(p->rk, 0, p->topic, &meta, timeout_ms) != RD_KAFKA_RESP_ERR_NO_ERROR)
		return false;
	producer_note_peers(p, meta);
	for (int i = 0; i < meta->topic_cnt; i++) {
		const struct rd_kafka_metadata_topic *t = &meta->topics[i];
		if (strcmp(t->topic, rd_kafka_topic_name(p->topic)) != 0)
			continue;
		is_known = t->err == RD_KAFKA_RESP_ERR_NO_ERROR && t->partition_cnt > 0;
		answer(p, is_known ? t->partition_cnt : 0, t->err ? t->err : RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE);
	}
	rd_kafka_metadata_destroy(meta);
	return is_known;
}

/* Until there is something to do, at most so long. */
static void rest(struct producer *p, int ms)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += ms / 1000;
	until.tv_nsec += ms % 1000 * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	pthread_mutex_lock(&p->lock);
	if (!p->must_end && !p->must_flush && !p->must_ask && !p->must_purge)
		pthread_cond_timedwait(&p->wake, &p->lock, &until);
	p->must_ask = false;
	pthread_mutex_unlock(&p->lock);
}

static bool is_set(struct producer *p, const bool *flag)
{
	pthread_mutex_lock(&p->lock);
	bool is = *flag;
	pthread_mutex_unlock(&p->lock);
	return is;
}

/* Waits until each of librdkafka's threads has answered; a look-up that hangs holds one up for seconds. */
static void purge(struct producer *p)
{
	pthread_mutex_lock(&p->lock);
	bool must = p->must_purge;
	p->must_purge = false;
	pthread_mutex_unlock(&p->lock);
	if (!must)
		return;
	rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE);
	pthread_mutex_lock(&p->lock);
	p->is_purged = true;
	pthread_mutex_unlock(&p->lock);
}

static void *run(void *arg)
{
	struct producer *p = arg;
	bool is_known = false;
	while (!is_set(p, &p->must_end)) {
		bool flushes = is_set(p, &p->must_flush);
		purge(p);
		if (flushes && is_known) {
			rd_kafka_flush(p->rk, FLUSH_MS); /* meanwhile nothing lingers; reports are the loop's */
			nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
			continue;
		}
		is_known = ask(p, flushes ? FLUSH_MS : ASK_MS);
		rest(p, is_known ? REFRESH_MS : AGAIN_MS);
		if (flushes && !is_known)
			nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS / 4 * 1000000L}, NULL);
	}
	rd_kafka_topic_destroy(p->topic);
	rd_kafka_queue_destroy(p->events);
	rd_kafka_destroy(p->rk);
	return NULL;
}

int producer_thread_start(struct producer *p)
{
	int r = pthread_create(&p->thread, NULL, run, p);
	p->has_thread = r == 0;
	return -r;
}

bool producer_news(struct producer *p, int *partitions, rd_kafka_resp_err_t *why)
{
	/* asked before each look at the queue, so without the lock when nothing is new */
	if (__atomic_load_n(&p->answers, __ATOMIC_RELAXED) == 0)
		return false;
	pthread_mutex_lock(&p->lock);
	*partitions = p->partitions;
	*why = p->why;
	__atomic_store_n(&p->answers, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&p->lock);
	return true;
}

static void tell(struct producer *p, bool *flag)
{
	pthread_mutex_lock(&p->lock);
	*flag = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

void producer_ask(struct producer *p)
{
	tell(p, &p->must_ask);
}

void producer_flush(struct producer *p)
{
	tell(p, &p->must_flush);
}

/* Asked without waiting, so that it happens whatever the thread does; the thread asks once more and knows when all have
 * answered. */
void producer_purge(struct producer *p, uint64_t until_us)
{
	bool is_purged;
	rd_kafka_event_t *event;
	rd_kafka_purge(p->rk, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_NON_BLOCKING);
	pthread_mutex_lock(&p->lock);
	p->is_purged = false;
	p->must_purge = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	do {
		is_purged = is_set(p, &p->is_purged); /* before the look at what has come */
		while ((event = rd_kafka_queue_poll(p->events, is_purged ? 0 : 1)) != NULL)
			producer_event(p, event);
	} while (!is_purged && p->flight_messages > 0 && clock_us() < until_us);
	pthread_mutex_lock(&p->lock);
	p->must_purge = false; /* what goes to librdkafka from now on stays there */
	pthread_mutex_unlock(&p->lock);
}

static void begin_end(struct producer *p)
{
	if (p->must_end) /* only the loop sets it */
		return;
	ev_io_stop(p->k->out->loop, &p->io);
	rd_kafka_queue_io_event_enable(p->events, -1, NULL, 0);
	tell(p, &p->must_end);
}

bool producer_try_end(struct producer *p)
{
	begin_end(p);
	if (pthread_tryjoin_np(p->thread, NULL) != 0)
		return false;
	producer_free(p);
	return true;
}

bool producer_end(struct producer *p, uint64_t until_us)
{
	struct timespec until;
	uint64_t now_us = clock_us(), wait_us = until_us > now_us ? until_us - now_us : 0;
	begin_end(p);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += (long)(wait_us % 1000000 * 1000);
	until.tv_sec += (time_t)(wait_us / 1000000) + until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	if (pthread_timedjoin_np(p->thread, NULL, &until) != 0)
		return false;
	producer_free(p);
	return true;
}
