/* SPDX-License-Identifier: MIT
 *
 * statsite_take: what the worker before us held. A backend goes on at the next byte of its connection, with the queue where
 * it lies. What has no place here is finished (statsite_finish.c), and its lines that were not begun go where they belong.
 * The other side may be of another build, or somebody else's: what is not believable is counted, and closed. Worker only.
 */
#include "statsite_handover.h"
#include "statsite.h"
#include "types.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

/* -- lines by their keys ------------------------------------------------------------------------------------------- */

/* What ended the key was known where the line was cut. An output of both protocols: only statsd has a '|'. */
static size_t key_length(const struct output *out, const char *line, size_t len)
{
	bool is_carbon = out->is_carbon && (!out->is_statsd || memchr(line, '|', len) == NULL);
	const char *end = memchr(line, is_carbon ? ' ' : ':', len);
	return end != NULL ? (size_t)(end - line) : len;
}

struct backend *statsite_owner(const struct statsite *st, const char *line, size_t len)
{
	size_t key = key_length(st->out, line, len);
	return st->backends[shards_backend(st->shards, hash_murmur3_32(line, key, HASH_STATSRELAY_SEED))];
}

bool statsite_take_line(struct backend *be, const char *line, uint32_t len)
{
	bool fits = queue_put_beyond(&be->queue, line, len);
	be->draft->taken_over_records++;
	if (fits)
		be->counted_lines++; /* offered to its last worker, not to this one */
	else
		be->draft->dropped_memory_records++;
	statsite_changed(be);
	return fits;
}

uint64_t statsite_take_lines(struct statsite *st, struct backend *to, const char *bytes, size_t len, uint64_t most)
{
	uint64_t n = 0;
	const char *end = bytes + len, *newline;
	for (; n < most && bytes < end && (newline = memchr(bytes, '\n', (size_t)(end - bytes))) != NULL;
	     bytes = newline + 1) {
		size_t line_len = (size_t)(newline - bytes);
		if (line_len > LINE_MAX_BYTES)
			continue; /* no worker writes such a one */
		statsite_take_line(to != NULL ? to : statsite_owner(st, bytes, line_len), bytes, (uint32_t)line_len);
		n++;
	}
	return n;
}

/* -- reading a message --------------------------------------------------------------------------------------------- */

/* A longer name was cut. */
static bool is_cut_of(const char *cut, const char *text)
{
	size_t len = strlen(cut);
	return strncmp(cut, text, len) == 0 && (text[len] == '\0' || len == HANDOVER_NAME_BYTES - 1);
}

static bool is_same(const struct backend *be, const struct handed_backend *h)
{
	return be->cf->port == h->port && is_cut_of(h->host, be->cf->host) &&
	       is_cut_of(h->backend, be->cf->name != NULL ? be->cf->name : "") &&
	       strcmp(h->transport, backend_is_tcp(be) ? "tcp" : "udp") == 0;
}

/* They come in their order, which is ours but for what was added or removed: the search goes on where it ended. */
static struct backend *find(struct statsite *st, const struct handed_backend *h)
{
	for (size_t i = 0; i < st->n_backends; i++) {
		size_t at = (st->i_taken + i) % st->n_backends;
		if (is_same(st->backends[at], h)) {
			st->i_taken = at + 1;
			return st->backends[at];
		}
	}
	return NULL;
}

/* In the account of who would have got them, as far as that can be told. */
static void lose(struct statsite *st, struct backend *be, uint64_t lines, const char *why)
{
	char who[LABEL_BYTES] = "a backend";
	if (be != NULL)
		backend_label(be, who, sizeof(who));
	else
		be = st->backends[0];
	be->draft->taken_over_records += lines;
	be->draft->dropped_memory_records += lines;
	backend_account(be);
	log_error("output %s: what the worker before held for %s cannot be taken over, %llu lines are lost: %s",
		  st->out->cf->name, who, (unsigned long long)lines, why);
}

static bool add_chunk(struct statsite *st, struct queue_part *part, const struct handed_chunk *h)
{
	struct region *r = region_find(&st->pool, h->region);
	struct chunk *c = r != NULL ? region_chunk(&st->pool, r, h->offset, h->room) : NULL;
	if (c == NULL)
		return false;
	c->begin = h->begin;
	c->used = h->used;
	c->lines = h->lines;
	queue_part_add(part, c);
	return true;
}

/* The chunks of its queue. What is in `part` is to be given back even if it returns false. */
static bool read_chunks(struct statsite *st, const struct handed_backend *h, struct queue_part *part)
{
	enum { AT_ONCE = 256 };
	struct handed_chunk chunks[AT_ONCE];
	const struct region *r = h->n_chunks > 0 ? region_find(&st->pool, h->sender) : NULL;
	if (h->n_chunks > 0 && (r == NULL || h->chunks_at > INT64_MAX / 2))
		return false;
	for (uint32_t i = 0; i < h->n_chunks; i++) {
		uint32_t k = i % AT_ONCE;
		size_t n = MIN(h->n_chunks - i, AT_ONCE) * sizeof(chunks[0]);
		if (k == 0 && pread(r->fd, chunks, n, (off_t)(h->chunks_at + i * sizeof(chunks[0]))) != (ssize_t)n)
			return false;
		if (!add_chunk(st, part, &chunks[k]))
			return false;
		if (i == h->send_chunk)
			part->send = part->tail;
	}
	part->ack_off = h->ack_off;
	part->ack_lines = h->ack_lines;
	part->line_off = h->line_off;
	part->send_off = h->send_off;
	part->send_lines = h->send_lines;
	return true;
}

/* Bytes on the connection that are not acknowledged. */
static uint64_t flight_bytes(const struct queue_part *part)
{
	return part->flight_bytes - (part->ack_off - part->line_off);
}

static bool is_believable(const struct handed_backend *h, struct queue_part *part)
{
	if (!queue_part_check(part) || part->held_lines != h->head.records)
		return false;
	if (h->is_up && strcmp(h->transport, "tcp") == 0)
		return h->sent_bytes >= h->acked_bytes && h->sent_bytes - h->acked_bytes == flight_bytes(part);
	return part->flight_bytes == 0;
}

static bool is_socket(int fd, const char *transport)
{
	int protocol = 0;
	socklen_t len = sizeof(protocol);
	return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 &&
	       protocol == (strcmp(transport, "tcp") == 0 ? IPPROTO_TCP : IPPROTO_UDP);
}

/* Numbers that do not fit together make all of it at risk. */
static void read_risk(struct risk *k, const struct handed_risk *h)
{
	*k = (struct risk){.bytes = h->bytes, .lines = h->lines, .window_bytes = h->window_bytes};
	uint64_t bytes = 0, lines = 0;
	for (unsigned i = 0; i < MIN(h->n, RISK_CHECKPOINTS); i++) {
		if (h->at[i].bytes < bytes || h->at[i].bytes > h->bytes)
			return;
		if (h->at[i].lines < lines || h->at[i].lines > h->lines)
			return;
		bytes = h->at[i].bytes;
		lines = h->at[i].lines;
		k->at[k->n++] = (struct risk_checkpoint){.bytes = bytes, .lines = lines};
	}
}

/* -- a place for it ------------------------------------------------------------------------------------------------ */

/* Takes fd. -1: no descriptor was free when it came. */
static void take_connection(struct backend *be, const struct handed_backend *h, int fd)
{
	be->fd = fd;
	be->connected_us = MIN(h->connected_us, be->st->now_us);
	be->sent_bytes = be->polled_at_bytes = h->sent_bytes;
	be->acked_bytes = h->acked_bytes;
	be->acked_base_bytes = h->acked_base_bytes;
	read_risk(&be->risk, &h->risk);
	if (fd == -1) {
		be->state = BACKEND_UP;
		backend_lost(be, strerror(EMFILE));
		return;
	}
	backend_up_again(be);
	if (backend_is_tcp(be) && h->user_timeout_ms != be->st->out->cf->user_timeout / 1000)
		backend_tcp_set_options(be);
	if (be->sent_bytes != be->acked_bytes)
		statsite_unsettled(be);
}

static void take_trouble(struct backend *be, const struct handed_backend *h)
{
	uint64_t dropped = backend_dropped_lines(be);
	be->delay_us = MIN(h->delay_us, be->st->out->cf->reconnect_max);
	if (!h->is_up) {
		be->down_us = h->down_us;
		be->is_refused = h->is_refused != 0;
		be->is_down_logged = h->is_down_logged != 0;
		be->dropped_at_down = dropped - h->dropped_since_down;
	}
	if (h->is_dropping) {
		be->is_dropping = true;
		be->dropping_since_us = h->dropping_since_us;
		be->last_drop_us = MIN(h->last_drop_us, be->st->now_us);
		be->dropped_before = dropped - h->dropped_since;
	}
}

/* It goes on here as it was there. */
static void take_backend(struct backend *be, const struct handed_backend *h, struct queue_part *part, int fd)
{
	queue_prepend(&be->queue, part);
	be->counted_lines += part->held_lines;
	be->draft->taken_over_records += part->held_lines;
	*part = (struct queue_part){0};
	take_trouble(be, h);
	if (h->is_up) {
		take_connection(be, h, fd);
	} else {
		output_mark_up(be->draft, false);
		backend_wait(be, MIN(h->retry_us, be->delay_us));
		if (fd != -1)
			close(fd);
	}
	backend_account(be);
}

/* Lines that were not begun go elsewhere; what was begun is left of it. Returns how many lines went. */
static uint64_t take_unsent(struct statsite *st, struct backend *to, struct queue_part *part)
{
	struct chunk *send = part->send;
	uint64_t unsent_lines = part->held_lines - part->flight_lines, n;
	uint32_t cut = part->send_off;
	if (queue_part_is_mid_line(part)) {
		const char *newline = memchr(send->bytes + cut, '\n', send->used - cut);
		cut = newline != NULL ? (uint32_t)(newline + 1 - send->bytes) : send->used;
	}
	n = statsite_take_lines(st, to, send->bytes + cut, send->used - cut, unsent_lines);
	for (struct chunk *c = send->next, *next; c != NULL; c = next) {
		next = c->next;
		n += statsite_take_lines(st, to, c->bytes + c->begin, c->used - c->begin, unsent_lines - n);
		pool_give(&st->pool, c);
		part->n_chunks--;
	}
	send->next = NULL;
	send->used = cut;
	send->lines = part->send_lines;
	part->tail = send;
	part->held_bytes = part->held_lines = part->flight_bytes = part->flight_lines = 0;
	if (!queue_part_check(part)) /* nothing is left */
		queue_part_clear(part, &st->pool);
	return n;
}

/* There is no place for its connection: it is finished, and the lines go to `be`, or (NULL) to those who have their
 * keys. */
static void take_apart(struct statsite *st, struct backend *be, const struct handed_backend *h, struct queue_part *part,
		       int fd)
{
	bool is_tcp = strcmp(h->transport, "tcp") == 0;
	const struct conf_backend cf = {.name = (char *)(uintptr_t)h->backend,
					.host = (char *)(uintptr_t)h->host,
					.port = (uint16_t)h->port,
					.transport = is_tcp ? CONF_TRANSPORT_TCP : CONF_TRANSPORT_UDP};
	struct backend *account = be, *finishing = NULL;
	uint64_t lines = 0;
	if (part->head != NULL) {
		const struct chunk *c = part->head;
		if (account == NULL)
			account = statsite_owner(st, c->bytes + part->line_off, c->used - part->line_off);
		lines = take_unsent(st, be, part);
		lines += part->held_lines;
	}
	statsite_account_changed(st);
	if (account == NULL)
		account = st->backends[0];
	if (h->is_up && is_tcp)
		finishing = statsite_finish(st, &cf, account, part);
	if (finishing != NULL) {
		take_connection(finishing, h, fd);
		backend_account(finishing);
	} else {
		lines -= part->held_lines;
		queue_part_clear(part, &st->pool);
		if (fd != -1)
			close(fd);
	}
	if (lines < h->head.records)
		lose(st, account, h->head.records - lines, "they are not there, or there is no memory");
}

static void take_message(struct statsite *st, const struct handed_backend *h, int fd)
{
	struct queue_part part = {0};
	struct backend *be = find(st, h);
	const char *why = NULL;
	if (!read_chunks(st, h, &part))
		why = "its memory did not come";
	else if (!is_believable(h, &part) || (fd != -1 && h->is_up && !is_socket(fd, h->transport)))
		why = "the numbers do not fit together";
	if (why != NULL) {
		queue_part_clear(&part, &st->pool);
		lose(st, be, h->head.records, why);
		if (fd != -1)
			close(fd);
	} else if (be != NULL && be->state == BACKEND_ELSEWHERE) {
		take_backend(be, h, &part, fd);
	} else {
		take_apart(st, be, h, &part, fd);
	}
	region_awaited_no_more(&st->pool, h->sender);
}

static void take_region(struct statsite *st, const struct handed_queues *h, int fd)
{
	if (fd == -1 || region_open(&st->pool, fd, h->bytes, h->sender) == NULL)
		log_error("output %s: queue memory of the worker before cannot be mapped", st->out->cf->name);
	else if (!ev_is_active(&st->finish_timer))
		ev_timer_again(st->out->loop, &st->finish_timer);
}

void statsite_take_over(struct output *out, const struct handover *msg, size_t len, int fd)
{
	struct statsite *st = out->impl;
	struct handed_queues queues;
	struct handed_backend backend;
	st->now_us = clock_us();
	if (msg->type == HANDOVER_QUEUES && len >= sizeof(queues)) {
		memcpy(&queues, msg, sizeof(queues));
		take_region(st, &queues, fd);
	} else if (msg->type == HANDOVER_BACKEND && len >= sizeof(backend)) {
		memcpy(&backend, msg, sizeof(backend));
		backend.backend[sizeof(backend.backend) - 1] = '\0';
		backend.host[sizeof(backend.host) - 1] = '\0';
		backend.transport[sizeof(backend.transport) - 1] = '\0';
		take_message(st, &backend, fd);
	} else {
		lose(st, NULL, msg->records, "it comes in a form that this millrace does not know");
		if (fd != -1)
			close(fd);
	}
	statsite_after_event(st);
}

void statsite_go(struct output *out)
{
	struct statsite *st = out->impl;
	out->awaits = false;
	for (size_t i = 0; i < st->n_backends; i++) {
		struct backend *be = st->backends[i];
		if (be->state != BACKEND_ELSEWHERE)
			continue;
		output_mark_up(be->draft, false);
		backend_start(be);
		backend_account(be);
	}
}
