/* SPDX-License-Identifier: MIT
 *
 * statsite_give: a worker that leaves hands its backends over: each with its connection, and with its queue, which stays
 * where it is. What was handed over is not touched here any more: the next worker may have gone on with it already.
 * Worker only; waits for the channel.
 */
#include "statsite_handover.h"
#include "statsite.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct giving {
	struct statsite *st;
	int channel;
	uint64_t deadline_us;
};

static struct handover head_of(const struct statsite *st, enum handover_type type, uint64_t records)
{
	struct handover h = {.version = HANDOVER_VERSION, .type = type, .records = records};
	snprintf(h.name, sizeof(h.name), "%s", st->out->cf->name);
	return h;
}

/* Each region once for each backend that has chunks there: so whoever comes after a receiver that died can go on. */
static int give_region(const struct giving *g, struct region *r)
{
	if (r->given_with == g->st->n_given)
		return 0;
	r->given_with = g->st->n_given;
	const struct handed_queues msg = {
	    .head = head_of(g->st, HANDOVER_QUEUES, 0), .sender = g->st->pool.own.id, .bytes = r->size};
	return handover_send(g->channel, &msg, sizeof(msg), r->fd, g->deadline_us);
}

static bool write_chunks(struct statsite *st, const struct handed_chunk *chunks, size_t n)
{
	size_t len = n * sizeof(*chunks), done = 0;
	while (done < len) {
		ssize_t w = pwrite(st->pool.own.fd, (const char *)chunks + done, len - done,
				   (off_t)(st->pool.own.size + st->given_chunks_bytes));
		if (w == -1 && errno == EINTR)
			continue;
		if (w <= 0)
			return false;
		done += (size_t)w;
		st->given_chunks_bytes += (uint64_t)w;
	}
	return true;
}

/* Tells of its chunks, and of the regions that they lie in. 0 or -errno. */
static int give_queue(const struct giving *g, const struct queue_part *part, struct handed_backend *msg)
{
	enum { AT_ONCE = 256 };
	struct handed_chunk chunks[AT_ONCE];
	struct statsite *st = g->st;
	size_t n = 0;
	msg->sender = st->pool.own.id;
	msg->chunks_at = st->pool.own.size + st->given_chunks_bytes;
	st->n_given++;
	int r = part->head != NULL ? give_region(g, &st->pool.own) : 0;
	bool is_before = true;
	for (const struct chunk *c = part->head; r == 0 && c != NULL; c = c->next) {
		is_before = is_before && c != part->send;
		msg->send_chunk += is_before;
		chunks[n++] = (struct handed_chunk){.region = c->region->id,
						    .offset = (uint64_t)(c->bytes - c->region->bytes),
						    .begin = c->begin,
						    .used = c->used,
						    .lines = c->lines,
						    .room = c->room};
		if ((n == AT_ONCE || c->next == NULL) && !write_chunks(st, chunks, n))
			return -ENOMEM;
		n = n == AT_ONCE ? 0 : n;
		r = give_region(g, c->region);
	}
	msg->n_chunks = part->n_chunks;
	msg->ack_off = part->ack_off;
	msg->ack_lines = part->ack_lines;
	msg->line_off = part->line_off;
	msg->send_off = part->send_off;
	msg->send_lines = part->send_lines;
	return r;
}

static void tell_risk(struct handed_risk *to, const struct risk *k)
{
	*to = (struct handed_risk){.bytes = k->bytes, .lines = k->lines, .window_bytes = k->window_bytes, .n = k->n};
	for (unsigned i = 0; i < k->n; i++) {
		to->at[i].bytes = k->at[i].bytes;
		to->at[i].lines = k->at[i].lines;
	}
}

static void tell_state(struct handed_backend *msg, struct backend *be)
{
	if (be->state == BACKEND_UP) {
		msg->is_up = 1;
		msg->user_timeout_ms = (uint32_t)(be->st->out->cf->user_timeout / 1000);
		msg->connected_us = be->connected_us;
		msg->sent_bytes = be->sent_bytes;
		msg->acked_bytes = be->acked_bytes;
		msg->acked_base_bytes = be->acked_base_bytes;
		tell_risk(&msg->risk, &be->risk);
	} else if (be->state == BACKEND_WAITING && !be->is_finishing) {
		msg->retry_us = (uint64_t)(MAX(ev_timer_remaining(be->st->out->loop, &be->timer), 0.) * 1e6);
	}
	if (be->state != BACKEND_UP)
		msg->is_refused = be->is_refused;
	msg->delay_us = be->delay_us;
	if (be->down_us != 0) {
		msg->down_us = be->down_us;
		msg->is_down_logged = be->is_down_logged;
		msg->dropped_since_down = backend_dropped_lines(be) - be->dropped_at_down;
	}
	if (be->is_dropping) {
		msg->is_dropping = 1;
		msg->dropping_since_us = be->dropping_since_us;
		msg->last_drop_us = be->last_drop_us;
		msg->dropped_since = backend_dropped_lines(be) - be->dropped_before;
	}
}

/* 0 or -errno: then it stays as it is. */
static int give(const struct giving *g, struct backend *be)
{
	struct handed_backend msg = {.port = be->cf->port};
	struct queue_part part;
	if (be->state == BACKEND_UP && backend_is_tcp(be))
		backend_tcp_settle(be);
	queue_part_of(&be->queue, &part);
	if (be->state != BACKEND_UP && part.head == NULL && be->delay_us == 0)
		return 0; /* the next worker would do the same without a word */
	msg.head = head_of(g->st, HANDOVER_BACKEND, part.held_lines);
	snprintf(msg.backend, sizeof(msg.backend), "%s", be->cf->name != NULL ? be->cf->name : "");
	snprintf(msg.host, sizeof(msg.host), "%s", be->cf->host);
	snprintf(msg.transport, sizeof(msg.transport), "%s", backend_is_tcp(be) ? "tcp" : "udp");
	tell_state(&msg, be);
	int r = give_queue(g, &part, &msg);
	if (r == 0)
		r = handover_send(g->channel, &msg, sizeof(msg), msg.is_up ? be->fd : -1, g->deadline_us);
	if (r == 0)
		backend_given(be);
	else
		backend_account(be);
	return r;
}

void statsite_hand_over(struct output *out, int channel, uint64_t deadline_us)
{
	struct statsite *st = out->impl;
	const struct giving g = {.st = st, .channel = channel, .deadline_us = deadline_us};
	struct backend *be, *next;
	int r = 0;
	st->now_us = clock_us();
	for (size_t i = 0; r == 0 && i < st->n_backends; i++)
		r = give(&g, st->backends[i]);
	/* The connections of others come after our own, so that what has a place there finds it. */
	for (be = TAILQ_FIRST(&st->finishing); r == 0 && be != NULL; be = next) {
		next = TAILQ_NEXT(be, finishing);
		r = give(&g, be);
		if (r == 0)
			statsite_finished(be);
	}
	if (r != 0)
		log_warn("output %s: cannot hand over all backends to the next worker: %s; %llu lines stay", out->cf->name,
			 strerror(-r), (unsigned long long)st->pending_lines);
	statsite_after_event(st);
}
