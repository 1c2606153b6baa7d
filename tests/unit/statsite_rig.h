/* SPDX-License-Identifier: MIT
 *
 * A statsite output on a real loop, with real sockets as its backends; the account is checked after every turn. Lines
 * are "kNNN:SERIAL|c", so that the test knows what arrived where, in which order, and how often.
 */
#ifndef STATSITE_RIG_H
#define STATSITE_RIG_H

#include "suite.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../src/output/statsite.h"

/* check writes to a pipe at each of its own assertions, passed ones too. */
#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			ck_abort_msg("line %d: not true: %s", __LINE__, #cond);                                        \
	} while (0)

enum { RIG_BACKENDS = 1024, RIG_SERIALS = 1 << 20 };

struct peer {
	int listener, fd; /* of UDP: fd only */
	bool is_udp, reads;
	char part[70000]; /* an unfinished line */
	size_t part_len;
	size_t most; /* bytes that are read in a turn; 0: all */
	uint64_t lines, bytes, connections, broken, datagrams, longest, disordered;
	uint32_t last;
};

struct rig {
	struct ev_loop *loop;
	struct stats *stats;
	struct stats_copy *copy;
	struct conf conf;
	struct conf_output co;
	struct conf_backend cb[RIG_BACKENDS];
	struct output *out, outs[2]; /* the present one, and room for its successor */
	int receive_buffer; /* of peers; 0: as it is */
	struct peer peers[16];
	size_t n_peers;
	uint16_t ports[16];
	uint8_t seen[RIG_SERIALS];
	uint32_t serial, last;
	struct line lines[BATCH_LINES];
	char text[BATCH_LINES * 640 + 70000];
	struct batch batch;
	unsigned rooms;
	ev_timer wake;
};

static struct rig rig;

static inline const struct stats_backend *rig_backend(unsigned i)
{
	return stats_backend(rig.out->page, i);
}

static inline const struct stats_output *rig_output(void)
{
	return stats_output(rig.out->page, 0);
}

#define RIG_SUM(field)                                                                                                 \
	({                                                                                                             \
		uint64_t sum_ = 0;                                                                                     \
		for (unsigned i_ = 0; i_ < rig.co.n_backends; i_++)                                                    \
			sum_ += rig_backend(i_)->field;                                                                \
		sum_;                                                                                                  \
	})

/* -- peers --------------------------------------------------------------------------------------------------------- */

static inline void peer_listen(struct peer *p, uint16_t *port, bool is_udp)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_ANY)};
	socklen_t len = sizeof(a);
	int one = 1, fd = socket(AF_INET, (is_udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	MUST(fd != -1);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (rig.receive_buffer > 0)
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rig.receive_buffer, sizeof(rig.receive_buffer));
	MUST(bind(fd, (struct sockaddr *)&a, len) == 0);
	MUST(is_udp || listen(fd, 1024) == 0);
	MUST(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
	*port = ntohs(a.sin_port);
	p->is_udp = is_udp;
	p->reads = true;
	p->listener = is_udp ? -1 : fd;
	p->fd = is_udp ? fd : -1;
}

/* A port that nobody listens on, below the range of ephemeral ones, so that nobody meets himself there. */
static inline uint16_t free_port(void)
{
	static uint16_t next;
	for (next = next ? next : (uint16_t)(20000 + getpid() % 8000);; next++) {
		struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(next)};
		int fd = socket(AF_INET, SOCK_STREAM, 0), r = bind(fd, (struct sockaddr *)&a, sizeof(a));
		close(fd);
		if (r == 0)
			return next++;
	}
}

static inline void peer_line(struct peer *p, const char *s, size_t len)
{
	const char *colon = memchr(s, ':', len);
	unsigned long serial = colon != NULL ? strtoul(colon + 1, NULL, 10) : 0;
	if (s[0] != 'k' || colon == NULL || s[len - 1] != 'c' || serial >= RIG_SERIALS) {
		p->broken++;
		return;
	}
	p->lines++;
	rig.seen[serial]++;
	p->disordered += p->lines > 1 && serial <= p->last;
	p->last = (uint32_t)serial;
	rig.last = (uint32_t)serial;
}

static inline void peer_bytes(struct peer *p, const char *s, size_t len)
{
	p->bytes += len;
	while (len > 0) {
		const char *newline = memchr(s, '\n', len);
		size_t n = newline != NULL ? (size_t)(newline - s) : len;
		MUST(p->part_len + n <= sizeof(p->part));
		memcpy(p->part + p->part_len, s, n);
		p->part_len += n;
		if (newline == NULL)
			return;
		peer_line(p, p->part, p->part_len);
		p->part_len = 0;
		s += n + 1;
		len -= n + 1;
	}
}

static inline void peer_turn(struct peer *p)
{
	static char buf[1 << 18];
	ssize_t n;
	size_t size = p->most > 0 ? p->most : sizeof(buf);
	if (!p->is_udp && p->listener != -1 && p->fd == -1) {
		p->fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		p->connections += p->fd != -1;
		p->part_len = 0; /* a new connection begins with a whole line */
	}
	if (p->fd == -1 || !p->reads)
		return;
	while ((n = recv(p->fd, buf, size, MSG_DONTWAIT)) > 0) {
		peer_bytes(p, buf, (size_t)n);
		if (p->most > 0)
			return;
		if (p->is_udp) {
			if (p->part_len > 0) /* the longest line comes without its newline */
				peer_bytes(p, "\n", 1);
			p->datagrams++;
			p->longest = MAX(p->longest, (uint64_t)n);
		}
	}
	if (n == 0 && !p->is_udp) {
		close(p->fd);
		p->fd = -1;
	}
}

/* The connection ends: with a reset when `hard`, unread bytes are thrown away. */
static inline void peer_hang_up(struct peer *p, bool hard)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 0};
	if (hard)
		setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(p->fd);
	p->fd = -1;
}

/* -- turns --------------------------------------------------------------------------------------------------------- */

/* How many accounts of a slot do not balance. */
static inline unsigned rig_check_slot(int slot)
{
	unsigned wrong = 0;
	uint64_t offered = 0;
	for (unsigned i = 0; i < rig.co.n_backends; i++) {
		struct stats_backend sum_of, *d = &sum_of;
		MUST(stats_sum(rig.copy, slot, STATS_BACKEND, i, d));
		uint64_t in = 0, sum = 0;
		offered += d->offered_records;
#define COUNTER(scope, name, kind, ledger, ...) RIG_##scope(name, ledger)
#define RIG_WORKER(...)
#define RIG_INPUT(...)
#define RIG_OUTPUT(...)
#define RIG_MASTER(...)
#define RIG_SLOT(...)
#define RIG_ENDPOINT(...)
#define RIG_KAFKA(...)
#define RIG_BROKER(...)
#define RIG_DEVICE(...)
#define RIG_MONITOR(...)
#define RIG_HOST(...)
#define RIG_INTERFACE(...)
#define RIG_PROCESS(...)
#define RIG_PATH(...)
#define RIG_BACKEND(name, ledger)                                                                                      \
	in += (STATS_LEDGER_##ledger == STATS_LEDGER_RECORDS_IN) ? d->name : 0;                                            \
	sum += (STATS_LEDGER_##ledger == STATS_LEDGER_RECORDS_OUT) ? d->name : 0;
#include <tbl/counter.def>
		wrong += in != sum;
	}
	struct stats_output sum_of, *o = &sum_of;
	MUST(stats_sum(rig.copy, slot, STATS_OUTPUT, 0, o));
	wrong += o->offered_records != o->taken_records + o->held_records + o->dropped_shutdown_records;
	return wrong + (o->taken_records != offered);
}

static inline void rig_check(void)
{
	unsigned wrong = 0;
	for (unsigned slot = 0; slot < 2; slot++)
		stats_publish(stats_slot_page(rig.stats, slot, 0));
	MUST(stats_copy_take(rig.copy, NULL) == 0);
	for (int slot = 0; slot < 2; slot++)
		wrong += rig_check_slot(slot);
	if (wrong > 0)
		ck_abort_msg("%u accounts do not balance", wrong);
}

static inline void rig_turn(void)
{
	ev_run(rig.loop, EVRUN_ONCE);
	rig.out->type->pump(rig.out, clock_us());
	rig_check();
	for (size_t i = 0; i < rig.n_peers; i++)
		peer_turn(&rig.peers[i]);
}

#define RIG_WAIT(cond)                                                                                                 \
	do {                                                                                                           \
		uint64_t until_us_ = clock_us() + 8000000;                                                             \
		while (!(cond)) {                                                                                      \
			if (clock_us() > until_us_)                                                                    \
				ck_abort_msg("line %d: waited too long for: %s", __LINE__, #cond);                     \
			rig_turn();                                                                                    \
		}                                                                                                      \
	} while (0)

static inline void rig_rest(unsigned ms)
{
	uint64_t until_us = clock_us() + ms * UINT64_C(1000);
	while (clock_us() < until_us)
		rig_turn();
}

static inline void rig_on_room(struct output *out)
{
	(void)out;
	rig.rooms++;
}

static inline void rig_on_wake(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)w, (void)revents;
}

/* n lines with `extra` bytes of padding in the key, as one batch. */
static inline void rig_batch(unsigned n, unsigned extra)
{
	char *p = rig.text;
	rig.batch = (struct batch){.lines = rig.lines, .n_lines = n};
	for (unsigned i = 0; i < n; i++) {
		int head = sprintf(p, "k%u", (rig.serial * 7919u) % 1000u);
		memset(p + head, 'x', extra);
		uint32_t key = (uint32_t)head + extra;
		uint32_t len = key + (uint32_t)sprintf(p + key, ":%u|c", rig.serial++);
		rig.lines[i] = (struct line){p, len, key, hash_murmur3_32(p, key, HASH_STATSRELAY_SEED), 0};
		p += len + 1;
		MUST(p + BATCH_SLACK < rig.text + sizeof(rig.text));
	}
}

static inline void rig_send(unsigned n, unsigned extra)
{
	for (unsigned k; n > 0; n -= k) {
		k = MIN(n, BATCH_LINES);
		rig_batch(k, extra);
		rig.out->type->send(rig.out, &rig.batch);
		rig_check();
	}
}

/* Serials that were seen not at all, and more than once. */
static inline void rig_tally(uint64_t *missing, uint64_t *doubled)
{
	*missing = *doubled = 0;
	for (uint32_t i = 0; i < rig.serial; i++) {
		*missing += rig.seen[i] == 0;
		*doubled += rig.seen[i] > 1 ? rig.seen[i] - 1u : 0;
	}
}

/* -- beginning and end ------------------------------------------------------------------------------------------------
 */

/* n TCP backends on ports of their own that nobody listens on yet; change rig.co and rig.cb, then rig_open. */
static inline void rig_init(unsigned n)
{
	memset(&rig, 0, sizeof(rig));
	rig.out = &rig.outs[0];
	rig.co = (struct conf_output){
	    .type = CONF_OUTPUT_TYPE_STATSITE,
	    .hash = CONF_HASH_RENDEZVOUS,
	    .overflow = CONF_OVERFLOW_DROP_NEWEST,
	    .queue_limit = 64 * MIB,
	    .memory_limit = GIB,
	    .max_datagram = 1432,
	    .reconnect_min = 20000,
	    .reconnect_max = 200000,
	    .user_timeout = 30000000,
	    .name = (char *)"shards",
	    .backends = rig.cb,
	    .n_backends = n,
	    .n_inputs = 1,
	};
	rig.conf = (struct conf){.outputs = &rig.co, .n_outputs = 1, .drain_timeout = 5000000};
	for (unsigned i = 0; i < n; i++)
		rig.cb[i] = (struct conf_backend){.host = (char *)"127.0.0.1", .weight = 1};
	rig.n_peers = MIN(n, ARRAY_LEN(rig.peers));
	for (unsigned i = 0; i < rig.n_peers; i++) {
		rig.peers[i].listener = rig.peers[i].fd = -1;
		rig.peers[i].reads = true;
		rig.ports[i] = rig.cb[i].port = free_port();
	}
}

static inline void rig_listen(unsigned first, unsigned n)
{
	for (unsigned i = first; i < first + n; i++)
		peer_listen(&rig.peers[i], &rig.ports[i], rig.cb[i].transport == CONF_TRANSPORT_UDP);
}

static inline void rig_open(void)
{
	struct err err = {""};
	char name[300];
	log_open("test", false, LOG_LEVEL_ERROR);
	rig.loop = ev_loop_new(EVFLAG_AUTO);
	rig.stats = stats_new(2, 0, &err);
	MUST(rig.loop != NULL && rig.stats != NULL);
	MUST(output_init(rig.out, &rig.conf, 0, &err) == 0);
	stats_name(rig.stats, STATS_OUTPUT, 0, "shards", 0, 0, "lines");
	for (unsigned i = 0; i < rig.co.n_backends; i++)
		stats_name(rig.stats, STATS_BACKEND, i, conf_backend_address(&rig.cb[i], name, sizeof(name)), 0, 0,
			   "tcp");
	rig.copy = stats_copy_new(rig.stats);
	rig.out->loop = rig.loop;
	rig.out->resolver = net_resolver_new(rig.loop, &err);
	rig.out->page = stats_slot_page(rig.stats, 0, 0);
	rig.out->n_slots = 1;
	rig.out->on_room = rig_on_room;
	MUST(rig.copy != NULL && rig.out->resolver != NULL);
	ev_timer_init(&rig.wake, rig_on_wake, 0.001, 0.001);
	ev_timer_start(rig.loop, &rig.wake);
	MUST(rig.out->type->open(rig.out, &err) == 0);
}

static inline void rig_close(void)
{
	if (rig.out->impl != NULL)
		rig.out->type->close(rig.out);
	rig_check();
	MUST(rig_output()->memory_bytes == 0);
	MUST(RIG_SUM(queued_records) + RIG_SUM(in_flight_records) + RIG_SUM(queued_bytes) + RIG_SUM(up) == 0);
	net_resolver_free(rig.out->resolver);
	output_fini(rig.out);
	stats_copy_free(rig.copy);
	stats_free(rig.stats);
	ev_loop_destroy(rig.loop);
	for (size_t i = 0; i < rig.n_peers; i++) {
		if (rig.peers[i].fd != -1)
			close(rig.peers[i].fd);
		if (rig.peers[i].listener != -1)
			close(rig.peers[i].listener);
	}
}

#endif
