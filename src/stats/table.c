/* SPDX-License-Identifier: MIT
 *
 * table: the rows of counter.def as the field table that goes into the file. Any process, pure. What a counter means is
 * said in its row and nowhere else.
 */
#include "stats_private.h"
#include <string.h>

#define ROW_INDEX(type, name) (offsetof(struct type, name) / sizeof(uint64_t))
#define ROW_WORKER(name) ROW_INDEX(stats_worker, name)
#define ROW_INPUT(name) ROW_INDEX(stats_input, name)
#define ROW_OUTPUT(name) ROW_INDEX(stats_output, name)
#define ROW_BACKEND(name) ROW_INDEX(stats_backend, name)
#define ROW_KAFKA(name) ROW_INDEX(stats_kafka, name)
#define ROW_BROKER(name) ROW_INDEX(stats_broker, name)
#define ROW_MASTER(name) ROW_INDEX(stats_master, name)
#define ROW_SLOT(name) ROW_INDEX(stats_slot, name)
#define ROW_ENDPOINT(name) ROW_INDEX(stats_endpoint, name)
#define ROW_DEVICE(name) ROW_INDEX(stats_device, name)
#define ROW_MONITOR(name) ROW_INDEX(stats_monitor, name)
#define ROW_HOST(name) ROW_INDEX(stats_host, name)
#define ROW_INTERFACE(name) ROW_INDEX(stats_interface, name)
#define ROW_PROCESS(name) ROW_INDEX(stats_process, name)
#define ROW_PATH(name) ROW_INDEX(stats_path, name)

enum { NAME_BYTES = sizeof(((struct stats_field *)0)->name), HELP_BYTES = sizeof(((struct stats_field *)0)->help) };
#define COUNTER(scope, row, kind, ledger, text)                                                                        \
	_Static_assert(sizeof(#row) <= NAME_BYTES && sizeof(text) <= HELP_BYTES, "a text of " #row " is too long");
#include <tbl/counter.def>

const struct stats_field stats_table[] = {
#define COUNTER(scope, row, kind, ledger, text)                                                                        \
	{#row, text, STATS_##scope, STATS_KIND_##kind, STATS_LEDGER_##ledger, ROW_##scope(row)},
#include <tbl/counter.def>
};

unsigned stats_table_rows(void)
{
	return ARRAY_LEN(stats_table);
}

/* Names of the scopes as people and programs see them. */
static const char *const scope_words[STATS_SCOPES] = {
	"worker", "input", "output", "backend", "kafka", "broker", "master", "slot", "endpoint", "device", "monitor",
	"host",	  "interface", "process", "path",
};

const char *stats_scope_word(enum stats_scope scope)
{
	return (unsigned)scope < STATS_SCOPES ? scope_words[scope] : "?";
}

const char *stats_kind_word(unsigned kind)
{
	static const char *const words[] = {"counter", "gauge", "loss", "hint", "gauge"};
	return kind < ARRAY_LEN(words) ? words[kind] : "counter";
}

const char *stats_slot_state_word(uint64_t state)
{
	static const char *const words[] = {"vacant", "starting", "ready", "draining", "failed", "removed"};
	return state < ARRAY_LEN(words) ? words[state] : "?";
}

const char *stats_broker_state_word(uint64_t state)
{
	static const char *const words[] = {"idle", "down", "up"};
	return state < ARRAY_LEN(words) ? words[state] : "?";
}

int stats_field_find(const struct stats *st, enum stats_scope scope, const char *name)
{
	const struct stats_field *f;
	unsigned n = stats_fields(st, scope, &f);
	for (unsigned i = 0; i < n; i++)
		if (strcmp(f[i].name, name) == 0)
			return f[i].index;
	return -1;
}
