/* SPDX-License-Identifier: MIT
 *
 * millrace-sink, a backend double for tests and demos: listens like a statsite, counts what it reads, verifies the
 * numbers that `millrace-replay --number` gave to the lines, and misbehaves on demand. This file: the loop, its
 * timers and the end. It relays nothing and knows nothing of the daemon.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "sink.h"

enum { EXIT_UNMET = 1, EXIT_USAGE = 2 };

/* One address on TCP, UDP or both. With both and port 0, UDP follows TCP's pick, which may be taken there: pick again.
 */
static int address_add_one(struct sink *s, const char *host, size_t host_len, uint64_t port, struct err *err)
{
	char address[512];

	for (int tries = 0;; tries++) {
		uint64_t udp_port = port;
		int rc = 0;

		if (s->opts.tcp) {
			snprintf(address, sizeof(address), "%.*s:%llu", (int)host_len, host, (unsigned long long)port);
			rc = sink_port_add(s, address, true, err);
			udp_port = rc ? 0 : s->ports[s->n_ports - 1].number;
		}
		if (rc || !s->opts.udp)
			return rc;
		snprintf(address, sizeof(address), "%.*s:%llu", (int)host_len, host, (unsigned long long)udp_port);
		rc = sink_port_add(s, address, false, err);
		if (rc != -EADDRINUSE || port || !s->opts.tcp || tries == 100)
			return rc;
		close(s->ports[--s->n_ports].fd);
	}
}

static int address_add(struct sink *s, const char *address, struct err *err)
{
	const char *colon = strrchr(address, ':');
	uint64_t port = 0;
	int rc = 0;

	if (!colon || text_parse_uint(colon + 1, &port))
		return err_set(err, -EINVAL, "\"%s\" is not an address: write HOST:PORT or [IPV6]:PORT", address);
	for (uint64_t i = 0; i < s->opts.ports && !rc; i++)
		rc = address_add_one(s, address, (size_t)(colon - address), port ? port + i : 0, err);
	return rc;
}

static int signals_open(void)
{
	sigset_t set;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

static void signal_ready(struct sink *s)
{
	struct signalfd_siginfo si;

	while (read(s->signal_fd, &si, sizeof(si)) == (ssize_t)sizeof(si)) {
		if (si.ssi_signo == SIGUSR1)
			sink_report(s, s->opts.json);
		else
			s->done = s->drain = true;
	}
}

static void dispatch(struct sink *s, struct watch *w)
{
	switch (w->kind) {
	case WATCH_SIGNAL:
		signal_ready(s);
		break;
	case WATCH_STDIN:
		if (!sink_control_ready(s))
			epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
		break;
	case WATCH_LISTEN:
		sink_listen_ready(s, (struct port *)w);
		break;
	case WATCH_UDP:
		sink_udp_ready(s, (struct port *)w);
		break;
	case WATCH_CONN:
		sink_conn_ready(s, (struct conn *)w);
		break;
	}
}

static int turn(struct sink *s, int timeout_ms)
{
	struct epoll_event ev[256];
	int n = epoll_wait(s->epoll_fd, ev, ARRAY_LEN(ev), timeout_ms);

	s->touched = false;
	for (int i = 0; i < n; i++)
		dispatch(s, ev[i].data.ptr);
	sink_conns_bury(s);
	if (s->touched) {
		s->last_us = clock_us();
		if (!s->first_us)
			s->first_us = s->last_us;
	}
	if (s->opts.expect && !s->reached && (s->touched || s->done)) {
		struct sink_counts sum;

		sink_counts_sum(s, &sum);
		s->reached = (s->opts.number ? sum.distinct : sum.lines) >= s->opts.expect;
	}
	return n;
}

static void due(uint64_t *next, uint64_t at)
{
	if (!*next || at < *next)
		*next = at;
}

/* Runs what is due; returns when to wake up at the latest, 0 for never. */
static uint64_t timers_run(struct sink *s, uint64_t now, uint64_t *live_us, uint64_t *reset_us)
{
	const struct sink_opts *o = &s->opts;
	uint64_t next = sink_ports_tick(s, now), end = 0;

	if (o->live && now >= *live_us) {
		sink_live(s);
		*live_us += 1000000;
	}
	if (o->live)
		due(&next, *live_us);
	if (o->reset_us && now >= *reset_us) {
		sink_reset(s, 0);
		sink_conns_bury(s);
		*reset_us = now + o->reset_us;
	}
	if (o->reset_us)
		due(&next, *reset_us);
	if (s->reached)
		due(&end, s->last_us + o->settle_us);
	if (o->idle_us && s->last_us)
		due(&end, s->last_us + o->idle_us);
	if (o->timeout_us)
		due(&end, s->start_us + o->timeout_us);
	if (end) {
		s->done = s->done || now >= end;
		due(&next, end);
	}
	return next;
}

static void loop(struct sink *s)
{
	uint64_t live_us = s->start_us + 1000000, reset_us = s->start_us + s->opts.reset_us;

	while (!s->done) {
		uint64_t now = clock_us(), next = timers_run(s, now, &live_us, &reset_us);

		if (!s->done)
			turn(s, !next ? -1 : next <= now ? 0 : (int)MIN((next - now + 999) / 1000, (uint64_t)60000));
	}
	/* What the kernel acknowledged for us before the signal belongs into the report. Bounded: senders may go on. */
	for (uint64_t stop = clock_us() + 2000000; s->drain && clock_us() < stop;)
		if (turn(s, 0) <= 0)
			break;
}

/* 0 or EXIT_UNMET. */
static int verdict(struct sink *s)
{
	struct sink_counts sum;
	int rc = sink_out_flush(s);

	sink_counts_sum(s, &sum);
	if (rc) {
		fprintf(stderr, "millrace-sink: cannot write \"%s\": %s\n", s->opts.out_path, strerror(-rc));
		return EXIT_UNMET;
	}
	if (s->opts.expect && !s->reached)
		return EXIT_UNMET;
	if (!s->opts.strict)
		return 0;
	if (sum.doubles || sum.malformed || sum.outside || sum.partial)
		return EXIT_UNMET;
	if (s->opts.number)
		return sink_missing(s, &sum) ? EXIT_UNMET : 0;
	return s->opts.expect && sum.lines != s->opts.expect ? EXIT_UNMET : 0;
}

static int start(struct sink *s, char **argv, int argc, struct err *err)
{
	static struct watch signals = {WATCH_SIGNAL}, control = {WATCH_STDIN};
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &signals};
	struct rlimit files;
	int rc;

	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->signal_fd = signals_open();
	s->buf = malloc(SINK_LINE_BYTES + SINK_READ_BYTES);
	if (!s->buf || s->epoll_fd == -1 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, s->signal_fd, &ev) == -1)
		return err_set(err, -errno, "cannot start: %s", strerror(errno));
	rc = sink_lines_init(s, s->opts.out_path, err);
	for (int i = 0; i < argc && !rc; i++)
		rc = address_add(s, argv[i], err);
	if (!rc)
		rc = sink_ports_start(s, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < s->n_ports; i++)
		printf("listening %s %s\n", s->ports[i].tcp ? "tcp" : "udp", s->ports[i].name);
	fflush(stdout);
	ev.data.ptr = &control;
	/* A file or /dev/null is not for epoll: its commands are done at once. */
	if (s->opts.control_stdin && epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &ev) == -1)
		while (sink_control_ready(s))
			;
	return 0;
}

int main(int argc, char **argv)
{
	struct sink s = {.epoll_fd = -1, .signal_fd = -1};
	struct err err;
	int first, rc;

	rc = sink_options_parse(&s.opts, argc, argv, &first, &err);
	if (rc > 0)
		return 0;
	if (rc) {
		fprintf(stderr, "millrace-sink: %s\n", err.text);
		return EXIT_USAGE;
	}
	rc = start(&s, argv + first, argc - first, &err);
	if (rc) {
		fprintf(stderr, "millrace-sink: %s\n", err.text);
		rc = EXIT_USAGE;
	} else {
		s.start_us = clock_us();
		loop(&s);
		sink_report(&s, s.opts.json);
		rc = verdict(&s);
	}
	sink_ports_close(&s);
	sink_lines_fini(&s);
	free(s.buf);
	if (s.epoll_fd != -1)
		close(s.epoll_fd);
	if (s.signal_fd != -1)
		close(s.signal_fd);
	return rc;
}
