/* SPDX-License-Identifier: MIT
 *
 * millrace-replay, the load generator: sends the UDP payloads of a capture file, or synthetic statsd lines, at a pace.
 * This file: the loop, the pace, the reports. It sends; it never reads what comes back.
 */
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "replay.h"

enum { EXIT_UNSENT = 1, EXIT_USAGE = 2 };

/* Sleeping longer than this is a sleep up to SPIN_NS before, then a spin. Measured on Linux 6.18, 2 vCPUs, with a timer
 * slack of 1 ns: a sleep wakes 35 to 60 us late (median; 99 %: below 210) and costs 22 us of CPU. */
enum { SLEEP_NS = 120000, SPIN_NS = 60000 };

struct replay {
	struct replay_opts opts;
	struct replay_source src;
	struct replay_sender snd;
	uint64_t taken; /* datagrams from src */
	uint64_t start_ns, second_ns, end_ns;
	uint64_t second_datagrams, second_lines, second_bytes; /* at the last report */
	uint64_t max_late_ns;
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void report_second(struct replay *r, uint64_t now)
{
	const struct replay_sender *snd = &r->snd;
	double s = (double)(now - r->second_ns) / 1e9;

	if (!r->opts.quiet) {
		FILE *f = r->opts.json ? stderr : stdout;

		fprintf(f, "%6.1f s %10.0f packets/s %12.0f bytes/s %11.0f lines/s\n",
			(double)(now - r->start_ns) / 1e9, (double)(snd->datagrams - r->second_datagrams) / s,
			(double)(snd->bytes - r->second_bytes) / s, (double)(snd->lines - r->second_lines) / s);
		fflush(f);
	}
	r->second_ns = now;
	r->second_datagrams = snd->datagrams;
	r->second_lines = snd->lines;
	r->second_bytes = snd->bytes;
}

/* True when the run is over by time, signal or trouble. Prints the second's line when one is due. */
static bool is_over(struct replay *r, uint64_t now)
{
	if (now - r->second_ns >= 1000000000)
		report_second(r, now);
	return stop || r->snd.broken || (r->opts.time_us && now - r->start_ns >= r->opts.time_us * 1000);
}

/* When the next datagram is due; 0: at once. */
static uint64_t next_due_ns(const struct replay *r)
{
	if (r->opts.pps > 0)
		return r->start_ns + (uint64_t)((double)r->taken * 1e9 / r->opts.pps);
	if (r->opts.speed > 0)
		return r->start_ns + (uint64_t)((double)replay_source_at_ns(&r->src) / r->opts.speed);
	return 0;
}

/* Returns the time, at least due; less when the run is over. */
static uint64_t wait_until(struct replay *r, uint64_t due)
{
	uint64_t now = now_ns();

	while (now < due && !is_over(r, now)) {
		if (due - now > SLEEP_NS) {
			uint64_t until = MIN(due - SPIN_NS, now + 100000000);
			struct timespec t = {(time_t)(until / 1000000000), (long)(until % 1000000000)};

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
		}
		now = now_ns();
	}
	if (now > due && due)
		r->max_late_ns = MAX(r->max_late_ns, now - due);
	return now;
}

/* Waits first and takes then: what was taken and not sent is "unsent", and that is to mean trouble. */
static void run(struct replay *r)
{
	struct datagram d[REPLAY_BATCH];
	size_t max = r->opts.pps > 0 ? r->opts.burst : REPLAY_BATCH;

	r->start_ns = r->second_ns = now_ns();
	r->snd.stop = &stop;
	if (r->opts.time_us)
		r->snd.deadline_us = clock_us() + r->opts.time_us;
	while (r->taken < r->opts.count_datagrams) {
		uint64_t now = wait_until(r, next_due_ns(r)), until_at_ns = UINT64_MAX;
		size_t n;

		if (is_over(r, now))
			break;
		if (r->opts.speed > 0)
			until_at_ns = (uint64_t)((double)(now - r->start_ns) * r->opts.speed);
		n = replay_source_take(&r->src, d, MIN(max, r->opts.count_datagrams - r->taken), until_at_ns);
		if (!n)
			break;
		replay_send(&r->snd, d, n);
		r->taken += n;
	}
	r->end_ns = now_ns();
}

static const char *const error_names[SEND_ERRORS] = {
	[SEND_REFUSED] = "refused", [SEND_AGAIN] = "again", [SEND_NO_BUFFERS] = "no_buffers",
	[SEND_TOO_BIG] = "too_big", [SEND_RESET] = "reset", [SEND_OTHER] = "other",
};

static void summary_text(const struct replay *r, double s)
{
	const struct replay_sender *snd = &r->snd;

	printf("sent: %llu datagrams, %llu lines, %llu bytes in %.3f s: %.0f packets/s %.0f bytes/s %.0f lines/s",
	       (unsigned long long)snd->datagrams, (unsigned long long)snd->lines, (unsigned long long)snd->bytes, s,
	       (double)snd->datagrams / s, (double)snd->bytes / s, (double)snd->lines / s);
	if (r->opts.pps > 0 || r->opts.speed > 0)
		printf(", at most %.3f ms late", (double)r->max_late_ns / 1e6);
	if (snd->unsent_datagrams)
		printf("; unsent: %llu datagrams, %llu lines", (unsigned long long)snd->unsent_datagrams,
		       (unsigned long long)snd->unsent_lines);
	for (size_t i = 0; i < SEND_ERRORS; i++)
		if (snd->errors[i])
			printf("; %s: %llu", error_names[i], (unsigned long long)snd->errors[i]);
	if (r->opts.number)
		printf("; numbers: %llu to %llu", (unsigned long long)r->opts.number_from,
		       (unsigned long long)replay_numbers_next(&r->src) - 1);
	if (r->opts.file)
		printf("; file: %llu packets, %llu payloads, skipped %llu other, %llu fragments, %llu truncated",
		       (unsigned long long)r->src.packets, (unsigned long long)r->src.payloads,
		       (unsigned long long)r->src.skipped_other, (unsigned long long)r->src.skipped_fragments,
		       (unsigned long long)r->src.skipped_truncated);
	printf("\n");
}

static void summary_json(const struct replay *r, double s)
{
	const struct replay_sender *snd = &r->snd;

	printf("{\"datagrams\":%llu,\"lines\":%llu,\"bytes\":%llu,\"seconds\":%.6f,\"pps\":%.1f,\"bytes_per_s\":%.1f,"
	       "\"lines_per_s\":%.1f,\"max_late_us\":%llu,\"sources\":%llu,\"unsent_datagrams\":%llu,\"unsent_lines\":%"
	       "llu",
	       (unsigned long long)snd->datagrams, (unsigned long long)snd->lines, (unsigned long long)snd->bytes, s,
	       (double)snd->datagrams / s, (double)snd->bytes / s, (double)snd->lines / s,
	       (unsigned long long)r->max_late_ns / 1000, (unsigned long long)snd->n,
	       (unsigned long long)snd->unsent_datagrams, (unsigned long long)snd->unsent_lines);
	printf(",\"errors\":{");
	for (size_t i = 0; i < SEND_ERRORS; i++)
		printf("%s\"%s\":%llu", i ? "," : "", error_names[i], (unsigned long long)snd->errors[i]);
	printf("}");
	if (r->opts.number)
		printf(",\"number_from\":%llu,\"number_next\":%llu", (unsigned long long)r->opts.number_from,
		       (unsigned long long)replay_numbers_next(&r->src));
	if (r->opts.file)
		printf(",\"file\":{\"packets\":%llu,\"payloads\":%llu,\"skipped_other\":%llu,\"skipped_fragments\":%"
		       "llu,"
		       "\"skipped_truncated\":%llu}",
		       (unsigned long long)r->src.packets, (unsigned long long)r->src.payloads,
		       (unsigned long long)r->src.skipped_other, (unsigned long long)r->src.skipped_fragments,
		       (unsigned long long)r->src.skipped_truncated);
	printf("}\n");
}

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_handler = on_signal};
	struct replay r = {0};
	struct err err;
	double s;
	int rc = replay_options_parse(&r.opts, argc, argv, &err);

	if (rc > 0)
		return 0;
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	prctl(PR_SET_TIMERSLACK, 1);
	r.src.lines_left = r.opts.count_lines;
	if (!rc)
		rc = r.opts.file ? replay_pcap_load(&r.src, &r.opts, &err) : replay_lines_init(&r.src, &r.opts, &err);
	if (!rc)
		rc = replay_sender_open(&r.snd, &r.opts, &err);
	if (rc) {
		fprintf(stderr, "millrace-replay: %s\n", err.text);
		rc = EXIT_USAGE;
	} else {
		run(&r);
		s = MAX((double)(r.end_ns - r.start_ns) / 1e9, 1e-9);
		if (r.opts.json)
			summary_json(&r, s);
		else
			summary_text(&r, s);
		if (r.snd.last_error)
			fprintf(stderr, "millrace-replay: sending to %s failed: %s\n", r.opts.target,
				strerror(r.snd.last_error));
		rc = r.snd.failed ? EXIT_UNSENT : 0;
	}
	replay_sender_close(&r.snd);
	replay_source_fini(&r.src);
	return rc;
}
