/* SPDX-License-Identifier: MIT
 *
 * What the sink has seen: a text for people, one JSON object a line for programs, and --live. Reads counters and asks
 * the kernel what waits or was dropped in its sockets; changes nothing.
 */
#include <linux/sock_diag.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "sink.h"

enum { RANGES = 16 };

struct range {
	uint64_t first, last;
};

/* What the counters do not hold. */
struct waiting {
	uint64_t open, unfinished, unread_bytes, kernel_drops;
};

static const struct {
	const char *name;
	size_t at;
	bool numbered;
} rows[] = {
/* clang-format off */
#define ROW(f, numbered) {#f, offsetof(struct sink_counts, f), numbered}
	ROW(bytes, false), ROW(datagrams, false), ROW(lines, false),
	ROW(distinct, true), ROW(doubles, true), ROW(malformed, true), ROW(outside, true), ROW(out_of_order, true),
	ROW(connections, false), ROW(resets, false), ROW(peer_resets, false), ROW(partial, false), ROW(cut, false),
#undef ROW
	/* clang-format on */
};

static uint64_t row_value(const struct sink_counts *c, size_t i)
{
	uint64_t v;

	memcpy(&v, (const char *)c + rows[i].at, sizeof(v));
	return v;
}

void sink_counts_sum(const struct sink *s, struct sink_counts *sum)
{
	memset(sum, 0, sizeof(*sum));
	for (size_t i = 0; i < s->n_ports; i++) {
		for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
			uint64_t v = row_value(sum, r) + row_value(&s->ports[i].counts, r);

			memcpy((char *)sum + rows[r].at, &v, sizeof(v));
		}
	}
}

/* How many numbers there should be: --expect, else up to the highest that was seen. */
static uint64_t numbers_due(const struct sink *s)
{
	if (s->opts.expect)
		return MIN(s->opts.expect, SINK_NUMBERS);
	return s->any_number ? s->max_number + 1 : 0;
}

uint64_t sink_missing(const struct sink *s, const struct sink_counts *sum)
{
	return numbers_due(s) - sum->distinct;
}

/* The first ranges of numbers that are missing; a million numbers take 16,000 steps. */
static size_t missing_ranges(const struct sink *s, struct range ranges[RANGES])
{
	uint64_t due = numbers_due(s), i = 0;
	size_t n = 0;

	while (i < due && n < RANGES) {
		if (i % 64 == 0 && s->seen[i / 64] == UINT64_MAX) {
			i += 64;
			continue;
		}
		if (sink_number_seen(s, i)) {
			i++;
			continue;
		}
		ranges[n].first = s->opts.number_from + i;
		while (i < due && (i % 64 == 0 && !s->seen[i / 64] ? true : !sink_number_seen(s, i)))
			i += i % 64 == 0 && !s->seen[i / 64] && due - i >= 64 ? 64 : 1;
		ranges[n++].last = s->opts.number_from + i - 1;
	}
	return n;
}

static void port_waiting(const struct port *p, struct waiting *w)
{
	uint32_t mem[SK_MEMINFO_VARS];
	socklen_t len = sizeof(mem);

	if (!p->tcp && !getsockopt(p->fd, SOL_SOCKET, SO_MEMINFO, mem, &len) && len >= sizeof(mem))
		w->kernel_drops += mem[SK_MEMINFO_DROPS];
	for (const struct conn *c = p->conns; c; c = c->next) {
		int bytes = 0;

		w->open++;
		w->unfinished += c->mid_line;
		if (!ioctl(c->fd, FIONREAD, &bytes))
			w->unread_bytes += (uint64_t)bytes;
	}
}

static void add_counts(struct text *t, const struct sink *s, const struct sink_counts *c, const struct waiting *w)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (!rows[i].numbered || s->seen)
			text_add(t, "\"%s\":%llu,", rows[i].name, (unsigned long long)row_value(c, i));
	text_add(t, "\"open\":%llu,\"unfinished\":%llu,\"unread_bytes\":%llu,\"kernel_drops\":%llu",
		 (unsigned long long)w->open, (unsigned long long)w->unfinished, (unsigned long long)w->unread_bytes,
		 (unsigned long long)w->kernel_drops);
}

static double seconds(const struct sink *s)
{
	return (double)(s->last_us - s->first_us) / 1e6;
}

static void report_json(const struct sink *s, const struct sink_counts *sum, const struct waiting *all)
{
	struct text t = {0};
	struct range ranges[RANGES];

	text_add(&t, "{");
	add_counts(&t, s, sum, all);
	text_add(&t, ",\"seconds\":%.6f", seconds(s));
	if (s->opts.expect)
		text_add(&t, ",\"expect\":%llu,\"reached\":%s", (unsigned long long)s->opts.expect,
			 s->reached ? "true" : "false");
	if (s->seen) {
		size_t n = missing_ranges(s, ranges);

		text_add(&t, ",\"missing\":%llu,\"max\":", (unsigned long long)sink_missing(s, sum));
		if (s->any_number)
			text_add(&t, "%llu", (unsigned long long)(s->opts.number_from + s->max_number));
		else
			text_add(&t, "null");
		text_add(&t, ",\"missing_ranges\":[");
		for (size_t i = 0; i < n; i++)
			text_add(&t, "%s[%llu,%llu]", i ? "," : "", (unsigned long long)ranges[i].first,
				 (unsigned long long)ranges[i].last);
		text_add(&t, "]");
	}
	text_add(&t, ",\"ports\":[");
	for (size_t i = 0; i < s->n_ports; i++) {
		const struct port *p = &s->ports[i];
		struct waiting w = {0};

		port_waiting(p, &w);
		text_add(&t, "%s{\"proto\":\"%s\",\"address\":", i ? "," : "", p->tcp ? "tcp" : "udp");
		text_add_json(&t, p->name, strlen(p->name));
		text_add(&t, ",\"port\":%u,\"stalled\":%s,\"refused\":%s,", p->number, p->stalled ? "true" : "false",
			 p->refused ? "true" : "false");
		add_counts(&t, s, &p->counts, &w);
		text_add(&t, "}");
	}
	text_add(&t, "]}\n");
	if (t.failed)
		fprintf(stderr, "millrace-sink: no memory for the report\n");
	else
		fwrite(t.s, 1, t.len, stdout);
	text_free(&t);
}

static void report_text(const struct sink *s, const struct sink_counts *sum, const struct waiting *all)
{
	struct range ranges[RANGES];
	double sec = seconds(s);

	for (size_t i = 0; i < s->n_ports; i++) {
		const struct port *p = &s->ports[i];

		printf("%s %-21s %12llu lines %14llu bytes", p->tcp ? "tcp" : "udp", p->name,
		       (unsigned long long)p->counts.lines, (unsigned long long)p->counts.bytes);
		if (p->tcp)
			printf(" %6llu connections", (unsigned long long)p->counts.connections);
		else
			printf(" %10llu datagrams", (unsigned long long)p->counts.datagrams);
		printf("%s%s\n", p->stalled ? ", stalled" : "", p->refused ? ", refuses" : "");
	}
	printf("total: %llu lines, %llu bytes in %.3f s (%.0f lines/s)", (unsigned long long)sum->lines,
	       (unsigned long long)sum->bytes, sec, sec > 0 ? (double)sum->lines / sec : 0);
	if (sum->datagrams)
		printf(", %llu datagrams", (unsigned long long)sum->datagrams);
	printf(", %llu connections (%llu open, %llu reset by us, %llu by the peer)\n",
	       (unsigned long long)sum->connections, (unsigned long long)all->open, (unsigned long long)sum->resets,
	       (unsigned long long)sum->peer_resets);
	if (sum->partial || sum->cut || all->unfinished || all->unread_bytes || all->kernel_drops)
		printf("not lines: %llu partial, %llu cut, %llu unfinished; %llu bytes unread, %llu datagrams dropped "
		       "by "
		       "the kernel\n",
		       (unsigned long long)sum->partial, (unsigned long long)sum->cut,
		       (unsigned long long)all->unfinished, (unsigned long long)all->unread_bytes,
		       (unsigned long long)all->kernel_drops);
	if (!s->seen)
		return;
	printf("numbers: %llu distinct, %llu missing, %llu doubles, %llu malformed, %llu outside, %llu out of order\n",
	       (unsigned long long)sum->distinct, (unsigned long long)sink_missing(s, sum),
	       (unsigned long long)sum->doubles, (unsigned long long)sum->malformed, (unsigned long long)sum->outside,
	       (unsigned long long)sum->out_of_order);
	if (sink_missing(s, sum)) {
		size_t n = missing_ranges(s, ranges);

		printf("missing:");
		for (size_t i = 0; i < n; i++)
			printf(" %llu-%llu", (unsigned long long)ranges[i].first, (unsigned long long)ranges[i].last);
		printf("%s\n", n == RANGES ? " ..." : "");
	}
}

void sink_report(struct sink *s, bool json)
{
	struct sink_counts sum;
	struct waiting all = {0};

	sink_counts_sum(s, &sum);
	for (size_t i = 0; i < s->n_ports; i++)
		port_waiting(&s->ports[i], &all);
	sink_out_flush(s);
	if (json)
		report_json(s, &sum, &all);
	else
		report_text(s, &sum, &all);
	fflush(stdout);
}

/* One line a second; the lines of each port since the last. With --json stdout is for JSON only. */
void sink_live(struct sink *s)
{
	FILE *f = s->opts.json ? stderr : stdout;
	uint64_t lines = 0, total = 0;

	for (size_t i = 0; i < s->n_ports; i++) {
		lines += s->ports[i].counts.lines - s->ports[i].live_lines;
		total += s->ports[i].counts.lines;
	}
	fprintf(f, "%10llu lines/s %12llu total", (unsigned long long)lines, (unsigned long long)total);
	for (size_t i = 0; i < s->n_ports; i++) {
		struct port *p = &s->ports[i];

		if (i < 10)
			fprintf(f, " | %s%u: %llu%s", p->tcp ? "" : "udp ", p->number,
				(unsigned long long)(p->counts.lines - p->live_lines),
				p->refused   ? " refuses"
				: p->stalled ? " stalled"
					     : "");
		p->live_lines = p->counts.lines;
	}
	fprintf(f, "\n");
	fflush(f);
}
