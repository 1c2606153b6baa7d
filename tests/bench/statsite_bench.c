/* SPDX-License-Identifier: MIT
 *
 * ns of CPU a line of the statsite output (route, queue, send, acknowledgements, accounts), beside the least that a
 * sharding relay must do: copy the line to its backend's buffer and send() that at 64 KiB (shared/bench/limit_shard.c).
 * Both send the same lines to the same thread that drains; the CPU of the sending thread is counted.
 * usage: statsite_bench [lines in millions: 20] [backends: 10] [lines between two pumps: 2048]
 */
#include <arpa/inet.h>
#include <ev.h>
#include <net.h>
#include <output.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { BACKENDS_MOST = 1000, TEXT_LINES = 1 << 12, FULL = 65536 };

static struct conf_backend backends[BACKENDS_MOST];
static char text[TEXT_LINES * 64 + 128], hosts[BACKENDS_MOST][20];
static struct line lines[TEXT_LINES];
static int listener, drain_epoll;
static unsigned n_backends = 10, burst = 2048;
static uint16_t port;

static double cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *drain_thread(void *arg)
{
	(void)arg;
	for (;;) {
		struct epoll_event events[64];
		int n = epoll_wait(drain_epoll, events, 64, -1);
		for (int i = 0; i < n; i++) {
			int fd = events[i].data.fd;
			if (fd == listener) {
				struct epoll_event e = {.events = EPOLLIN};
				e.data.fd = accept(listener, NULL, NULL);
				epoll_ctl(drain_epoll, EPOLL_CTL_ADD, e.data.fd, &e);
			} else if (recv(fd, NULL, 1 << 20, MSG_TRUNC) <= 0) {
				close(fd);
			}
		}
	}
	return NULL;
}

static void init(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	socklen_t len = sizeof(a);
	struct epoll_event e = {.events = EPOLLIN};
	pthread_t thread;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	BUG_ON(bind(listener, (struct sockaddr *)&a, len) == -1 || listen(listener, 1024) == -1);
	getsockname(listener, (struct sockaddr *)&a, &len);
	port = ntohs(a.sin_port);
	drain_epoll = epoll_create1(0);
	e.data.fd = listener;
	epoll_ctl(drain_epoll, EPOLL_CTL_ADD, listener, &e);
	pthread_create(&thread, NULL, drain_thread, NULL);
	char *p = text;
	for (unsigned i = 0; i < TEXT_LINES; i++) {
		int key = sprintf(p, "service.%u.requests%u", (i * 2654435761u) % 1000, i % 37);
		int n = key + sprintf(p + key, ":%u|%s", i % 977, i % 3 ? "c" : "ms");
		lines[i] =
		    (struct line){p, (uint32_t)n, (uint32_t)key, hash_murmur3_32(p, (size_t)key, HASH_STATSRELAY_SEED), 0};
		p += n + 1;
	}
	for (unsigned i = 0; i < n_backends; i++) {
		snprintf(hosts[i], sizeof(hosts[i]), "127.0.%u.%u", 1 + i / 250, 1 + i % 250);
		backends[i] = (struct conf_backend){.host = hosts[i], .port = port, .weight = 1};
	}
}

static double run_least(uint64_t n_lines)
{
	int fds[BACKENDS_MOST];
	char **buf = calloc(n_backends, sizeof(*buf));
	size_t *used = calloc(n_backends, sizeof(*used));
	BUG_ON(buf == NULL || used == NULL);
	for (unsigned i = 0; i < n_backends; i++) {
		struct net_address a;
		net_address_parse(&a, hosts[i], port);
		fds[i] = socket(AF_INET, SOCK_STREAM, 0);
		buf[i] = malloc(FULL + 65536);
		BUG_ON(buf[i] == NULL || connect(fds[i], (struct sockaddr *)&a.sa, a.len) == -1);
	}
	double start = cpu_ns();
	for (uint64_t i = 0; i < n_lines; i++) {
		const struct line *l = &lines[i % TEXT_LINES];
		unsigned k = l->hash % n_backends;
		memcpy(buf[k] + used[k], l->bytes, l->len);
		used[k] += l->len;
		buf[k][used[k]++] = '\n';
		if (used[k] > FULL) {
			send(fds[k], buf[k], used[k], MSG_NOSIGNAL);
			used[k] = 0;
		}
	}
	double ns = cpu_ns() - start;
	for (unsigned i = 0; i < n_backends; i++) {
		close(fds[i]);
		free(buf[i]);
	}
	free(buf);
	free(used);
	return ns / (double)n_lines;
}

static void no_room(struct output *out)
{
	(void)out;
}

static double run_statsite(uint64_t n_lines)
{
	struct conf_output co = {
	    .type = CONF_OUTPUT_TYPE_STATSITE,
	    .hash = CONF_HASH_RENDEZVOUS,
	    .overflow = CONF_OVERFLOW_BLOCK, /* as send() of the other one waits */
	    .queue_limit = 64 * MIB,
	    .memory_limit = GIB,
	    .max_datagram = 1432,
	    .reconnect_min = 250000,
	    .reconnect_max = 10000000,
	    .user_timeout = 30000000,
	    .name = (char *)"bench",
	    .backends = backends,
	    .n_backends = n_backends,
	};
	struct conf cf = {.outputs = &co, .n_outputs = 1};
	struct output out;
	struct err err = {""};
	struct stats *st = stats_new(1, 0, &err);
	BUG_ON(st == NULL || output_init(&out, &cf, 0, &err) < 0);
	out.loop = ev_loop_new(EVFLAG_AUTO);
	out.resolver = net_resolver_new(out.loop, &err);
	out.page = stats_slot_page(st, 0, 0);
	out.n_slots = 1;
	out.on_room = no_room;
	out.hold_us = 5000;
	BUG_ON(out.type->open(&out, &err) < 0);
	for (unsigned up = 0; up < n_backends;) {
		ev_run(out.loop, EVRUN_ONCE);
		up = 0;
		for (unsigned i = 0; i < n_backends; i++)
			up += (unsigned)stats_backend(out.page, i)->up;
	}
	double start = cpu_ns();
	struct batch b = {0};
	for (uint64_t i = 0; i < n_lines;) {
		for (unsigned k = 0; k < burst; k += BATCH_LINES) {
			b.lines = &lines[i % (TEXT_LINES - BATCH_LINES + 1)];
			b.n_lines = BATCH_LINES;
			b.taken[0] = 0;
			b.offered = 0;
			out.type->send(&out, &b);
			while (b.taken[0] < b.n_lines) {
				ev_run(out.loop, EVRUN_ONCE);
				out.type->send(&out, &b);
			}
			i += BATCH_LINES;
		}
		out.type->pump(&out, clock_us());
		stats_publish(out.page);
		ev_run(out.loop, EVRUN_NOWAIT);
	}
	out.type->drain(&out);
	while (out.type->pending(&out) > 0) {
		ev_run(out.loop, EVRUN_ONCE);
		out.type->pump(&out, clock_us());
	}
	double ns = cpu_ns() - start;
	uint64_t sends = 0, delivered = 0;
	for (unsigned i = 0; i < n_backends; i++) {
		sends += stats_backend(out.page, i)->sends;
		delivered += stats_backend(out.page, i)->delivered_records;
	}
	BUG_ON(delivered != stats_output(out.page, 0)->offered_records);
	out.type->close(&out);
	net_resolver_free(out.resolver);
	stats_free(st);
	ev_loop_destroy(out.loop);
	printf("  statsite: %.0f lines a send\n", (double)delivered / (double)sends);
	return ns / (double)delivered;
}

int main(int argc, char **argv)
{
	uint64_t n_lines = (argc > 1 ? strtoull(argv[1], NULL, 10) : 20) * 1000000;
	n_backends = argc > 2 ? (unsigned)MIN(strtoul(argv[2], NULL, 10), BACKENDS_MOST) : n_backends;
	burst = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : burst;
	log_open("bench", false, LOG_LEVEL_WARN);
	init();
	for (int i = 0; i < 3; i++) {
		double least = run_least(n_lines), ours = run_statsite(n_lines);
		printf("  %u backends: %.1f ns a line, memcpy and send alone %.1f: ratio %.2f\n", n_backends, ours,
		       least, ours / least);
	}
	return 0;
}
