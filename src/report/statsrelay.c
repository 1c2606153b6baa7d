/* SPDX-License-Identifier: MIT
 *
 * statsrelay: the answer to "status" as statsrelay 1.6 gives it, for all workers together. Any process, pure. Order,
 * words and single spaces are those that its clients split on (uber/statsrelay, src/stats.c); what it counts is:
 *
 *   bytes_recv_udp   udp and unixgram inputs        bytes_recv_tcp   tcp and unix inputs
 *   last_reload      seconds since 1970; 0 before the first reload
 *   bytes_queued     a total there, in spite of its name: what was ever queued; equals bytes_sent when all is sent
 *   relayed_lines    offered and not lost           dropped_lines    lost, for whatever reason
 */
#include <report.h>
#include <string.h>

static void global(struct text *t, const char *name, const char *type, uint64_t value)
{
	text_add(t, "global %s %s %llu\n", name, type, (unsigned long long)value);
}

static void globals(const struct stats_copy *c, struct text *t)
{
	uint64_t datagram_bytes = 0, stream_bytes = 0, connections = 0, malformed = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++) {
		const char *type = stats_copy_entry(c, STATS_INPUT, i)->unit;
		bool stream = strcmp(type, "tcp") == 0 || strcmp(type, "unix") == 0;
		uint64_t bytes = stats_named(c, STATS_ALL, STATS_INPUT, i, "received_bytes");
		*(stream ? &stream_bytes : &datagram_bytes) += bytes;
		connections += stats_named(c, STATS_ALL, STATS_INPUT, i, "accepted_connections");
		malformed += stats_named(c, STATS_ALL, STATS_INPUT, i, "invalid_lines");
	}
	uint64_t started_us = stats_named(c, STATS_ALL, STATS_MASTER, 0, "started_us");
	uint64_t loaded_us = stats_named(c, STATS_ALL, STATS_MASTER, 0, "loaded_us");
	global(t, "bytes_recv_udp", "gauge", datagram_bytes);
	global(t, "bytes_recv_tcp", "gauge", stream_bytes);
	global(t, "total_connections", "gauge", connections);
	global(t, "last_reload", "timestamp", loaded_us > started_us ? loaded_us / 1000000 : 0);
	global(t, "malformed_lines", "gauge", malformed);
}

/* What is shown of a backend. Which counter belongs to which sum is found out once: there may be 10,000 backends, and
 * a worker answers between two drains. */
enum sum {
	SUM_OFFERED,
	SUM_LOST,
	SUM_SENT_BYTES,
	SUM_DELIVERED_BYTES,
	SUM_QUEUED_BYTES,
	SUM_NONE,
	SUMS = SUM_NONE + 1
};

static void sums_find(const struct stats_copy *c, uint8_t sum_of[256])
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), STATS_BACKEND, &f);
	memset(sum_of, SUM_NONE, 256);
	for (unsigned i = 0; i < n; i++)
		if (f[i].name[0])
			sum_of[f[i].index] = f[i].ledger == STATS_LEDGER_RECORDS_IN    ? SUM_OFFERED
					   : f[i].kind == STATS_KIND_LOSS              ? SUM_LOST
					   : strcmp(f[i].name, "sent_bytes") == 0      ? SUM_SENT_BYTES
					   : strcmp(f[i].name, "delivered_bytes") == 0 ? SUM_DELIVERED_BYTES
					   : strcmp(f[i].name, "queued_bytes") == 0    ? SUM_QUEUED_BYTES
										       : SUM_NONE;
}

static void backend(const struct stats_copy *c, unsigned index, const uint8_t sum_of[256], struct text *t)
{
	const struct stats_entry *e = stats_copy_entry(c, STATS_BACKEND, index);
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), STATS_BACKEND, &f);
	int address_len = (int)stats_backend_address_len(e->name); /* its readers split at spaces */
	unsigned long long sums[SUMS] = {0};
	for (unsigned i = 0; i < n && i < 256; i++)
		if (sum_of[i] != SUM_NONE)
			sums[sum_of[i]] += stats_value(c, STATS_ALL, STATS_BACKEND, index, i);
	const struct {
		const char *name, *type;
		unsigned long long value;
	} rows[] = {
		{"bytes_queued", "gauge", sums[SUM_DELIVERED_BYTES] + sums[SUM_QUEUED_BYTES]},
		{"bytes_sent", "gauge", sums[SUM_SENT_BYTES]},
		{"relayed_lines", "gauge", sums[SUM_OFFERED] - sums[SUM_LOST]},
		{"dropped_lines", "gauge", sums[SUM_LOST]},
		{"failing", "boolean", stats_backend_ups(c, index) == 0},
	};
	for (unsigned i = 0; i < ARRAY_LEN(rows); i++)
		text_add(t, "backend:%.*s:%s %s %s %llu\n", address_len, e->name, e->unit, rows[i].name, rows[i].type,
			 rows[i].value);
}

void report_statsrelay(const struct stats_copy *c, struct text *t)
{
	uint8_t sum_of[256];
	sums_find(c, sum_of);
	globals(c, t);
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_BACKEND); i++)
		if (stats_copy_entry(c, STATS_BACKEND, i)->used)
			backend(c, i, sum_of, t);
	text_add(t, "\n");
}
