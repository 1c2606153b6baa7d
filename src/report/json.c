/* SPDX-License-Identifier: MIT
 *
 * json: every counter with its labels, and the state of all summed over the workers, as JSON. For millracectl and the
 * monitor. Any process, pure. The keys are the names of the counters; docs of the rest are in millracectl(1).
 */
#include <report.h>
#include <string.h>

static void add_string(struct text *t, const char *key, const char *s)
{
	text_add(t, ",\"%s\":", key);
	text_add_json(t, s, strlen(s));
}

size_t stats_backend_address_len(const char *label)
{
	const char *given = strstr(label, " (");
	return given != NULL ? (size_t)(given - label) : strlen(label);
}

bool stats_backend_given_name(const char *label, char *buf, size_t size)
{
	size_t at = stats_backend_address_len(label), len = strlen(label);
	if (at + 3 > len)
		return false;
	snprintf(buf, size, "%.*s", (int)(len - at - 3), label + at + 2); /* between " (" and ")" */
	return true;
}

static void add_given_name(struct text *t, const char *label)
{
	char given[sizeof(((struct stats_entry *)0)->name)];
	if (stats_backend_given_name(label, given, sizeof(given)))
		add_string(t, "given_name", given);
}

static void add_number(struct text *t, const char *key, uint64_t value)
{
	text_add(t, ",\"%s\":%llu", key, (unsigned long long)value);
}

struct rows_json {
	struct text *t;
	const char *separator;
};

static void row_json(void *arg, const struct stats_row *row)
{
	struct rows_json *rows = arg;
	struct text *t = rows->t;
	unsigned scope = row->field->scope;
	text_add(t, "%s\n{\"name\":", rows->separator);
	text_add_json(t, row->field->name, strlen(row->field->name));
	add_string(t, "scope", stats_scope_word(scope));
	add_string(t, "kind", stats_kind_word(row->field->kind));
	if (row->worker != -1)
		add_number(t, "worker", (unsigned)row->worker);
	if (row->parent)
		add_string(t, stats_scope_is_below_output(scope) ? "output" : "input", row->parent->name);
	if (scope == STATS_SLOT || scope == STATS_PROCESS)
		text_add(t, ",\"slot\":%s", row->entry->name);
	else if (scope == STATS_BACKEND) {
		text_add(t, ",\"backend\":");
		text_add_json(t, row->entry->name, stats_backend_address_len(row->entry->name));
		add_given_name(t, row->entry->name);
	} else if (scope != STATS_WORKER && scope != STATS_MASTER && scope != STATS_MONITOR && scope != STATS_HOST)
		add_string(t, stats_scope_word(scope), row->entry->name);
	if (scope == STATS_BACKEND)
		add_string(t, "transport", row->entry->unit);
	if (scope == STATS_ENDPOINT)
		add_string(t, "of", row->entry->unit);
	text_add(t, ",\"value\":%llu}", (unsigned long long)row->value);
	rows->separator = ",";
}

void report_json(const struct stats_copy *c, struct text *t)
{
	struct rows_json rows = {t, ""};
	text_add(t, "{\"counters\":[");
	stats_each_row(c, row_json, &rows);
	text_add(t, "\n]}\n");
}

/* -- status ------------------------------------------------------------------------------------------------------ */

/* A slot's state is a word, "workers" is the list of them, and times are not summed. */
static bool is_said_otherwise(enum stats_scope scope, const char *name)
{
	return (scope == STATS_SLOT && strcmp(name, "state") == 0) ||
	       (scope == STATS_MASTER && strcmp(name, "workers") == 0) ||
	       (scope == STATS_BACKEND && strcmp(name, "down_us") == 0);
}

/* Every counter of a block under its own name, summed over the workers where the scope is theirs. */
static void add_counters(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index, struct text *t)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	for (unsigned i = 0; i < n; i++)
		if (f[i].name[0] && !is_said_otherwise(scope, f[i].name))
			add_number(t, f[i].name, stats_value(c, slot, scope, index, f[i].index));
}

static void worker_json(const struct stats_copy *c, unsigned slot, uint64_t now_us, struct text *t)
{
	uint64_t ready_us = stats_named(c, STATS_ALL, STATS_SLOT, slot, "ready_us");
	bool lives = stats_named(c, STATS_ALL, STATS_SLOT, slot, "pid") != 0;
	text_add(t, "{\"slot\":%u", slot);
	add_string(t, "state", stats_slot_state_word(stats_named(c, STATS_ALL, STATS_SLOT, slot, "state")));
	add_number(t, "uptime_us", lives && ready_us && now_us > ready_us ? now_us - ready_us : 0);
	uint64_t starts = stats_named(c, STATS_ALL, STATS_SLOT, slot, "starts");
	add_number(t, "restarts", starts ? starts - 1 : 0);
	add_counters(c, STATS_ALL, STATS_SLOT, slot, t);
	add_counters(c, (int)slot, STATS_WORKER, 0, t);
	text_add(t, "}");
}

static uint64_t kernel_drops(const struct stats_copy *c, unsigned input)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++)
		if (stats_copy_entry(c, STATS_ENDPOINT, i)->parent == input)
			sum += stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "dropped_datagrams");
	return sum;
}

static void input_json(const struct stats_copy *c, unsigned index, const struct stats_entry *e, struct text *t)
{
	add_string(t, "type", e->unit);
	text_add(t, ",\"to\":[");
	const char *comma = "";
	for (unsigned i = 0; i < MIN(stats_copy_entries(c, STATS_OUTPUT), 64u); i++) {
		if (!(e->feeds >> i & 1))
			continue;
		const char *name = stats_copy_entry(c, STATS_OUTPUT, i)->name;
		text_add(t, "%s", comma);
		text_add_json(t, name, strlen(name));
		comma = ",";
	}
	text_add(t, "]");
	add_number(t, "kernel_dropped_datagrams", kernel_drops(c, index));
}

static void backend_json(const struct stats_copy *c, unsigned index, const struct stats_entry *e, struct text *t)
{
	const struct stats_entry *output = stats_entry_parent(c, STATS_BACKEND, e);
	unsigned ups = stats_backend_ups(c, index), ready = 0;
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++)
		ready += stats_slot_is_ready(c, slot);
	add_given_name(t, e->name);
	add_string(t, "output", output ? output->name : "");
	add_string(t, "transport", e->unit);
	add_string(t, "state", ups == 0 ? "down" : ups < ready ? "partly up" : "up");
	add_number(t, "down_us", stats_backend_down_us(c, index));
}

static void list_json(const struct stats_copy *c, enum stats_scope scope, const char *key, struct text *t)
{
	const char *comma = "";
	text_add(t, ",\n\"%s\":[", key);
	for (unsigned i = 0; i < stats_copy_entries(c, scope); i++) {
		const struct stats_entry *e = stats_copy_entry(c, scope, i);
		if (!stats_block_exists(c, STATS_ALL, scope, i) || stats_copy_is_retired(c, scope, i))
			continue;
		text_add(t, "%s\n{\"name\":", comma);
		text_add_json(t, e->name,
			      scope == STATS_BACKEND ? stats_backend_address_len(e->name) : strlen(e->name));
		if (scope == STATS_INPUT)
			input_json(c, i, e, t);
		else if (scope == STATS_OUTPUT)
			add_string(t, "unit", e->unit);
		else if (scope == STATS_BACKEND)
			backend_json(c, i, e, t);
		add_counters(c, STATS_ALL, scope, i, t);
		text_add(t, "}");
		comma = ",";
	}
	text_add(t, "]");
}

/* Each worker's connections are its own, so nothing is summed here. */
static void brokers_json(const struct stats_copy *c, struct text *t)
{
	const char *comma = "";
	text_add(t, ",\n\"brokers\":[");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_BROKER); i++) {
		for (int slot = 0; slot < (int)stats_copy_slots(c); slot++) {
			if (!stats_block_exists(c, slot, STATS_BROKER, i))
				continue;
			const struct stats_entry *output =
				stats_entry_parent(c, STATS_BROKER, stats_copy_entry(c, STATS_BROKER, i));
			text_add(t, "%s\n{\"worker\":%d", comma, slot);
			add_string(t, "output", output ? output->name : "");
			add_number(t, "node", stats_named(c, slot, STATS_BROKER, i, "node"));
			add_string(t, "state", stats_broker_state_word(stats_named(c, slot, STATS_BROKER, i, "state")));
			add_number(t, "disconnects", stats_named(c, slot, STATS_BROKER, i, "disconnects"));
			text_add(t, "}");
			comma = ",";
		}
	}
	text_add(t, "]");
}

void report_status_json(const struct stats_copy *c, const struct report_program *program, struct text *t)
{
	uint64_t started_us = stats_named(c, STATS_ALL, STATS_MASTER, 0, "started_us");
	text_add(t, "{\"version\":");
	text_add_json(t, program->version, strlen(program->version));
	text_add(t, ",\"pid\":%lld", (long long)program->pid);
	add_number(t, "uptime_us", started_us && program->now_us > started_us ? program->now_us - started_us : 0);
	add_counters(c, STATS_ALL, STATS_MASTER, 0, t);
	text_add(t, ",\"config\":\"%012llx\"",
		 (unsigned long long)stats_named(c, STATS_ALL, STATS_MASTER, 0, "config_digest"));
	text_add(t, ",\n\"workers\":[");
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++) {
		if (stats_copy_is_retired(c, STATS_SLOT, slot))
			continue;
		text_add(t, slot ? ",\n" : "\n");
		worker_json(c, slot, program->now_us, t);
	}
	text_add(t, "]");
	list_json(c, STATS_INPUT, "inputs", t);
	list_json(c, STATS_OUTPUT, "outputs", t);
	list_json(c, STATS_BACKEND, "backends", t);
	list_json(c, STATS_KAFKA, "kafka", t);
	brokers_json(c, t);
	list_json(c, STATS_ENDPOINT, "endpoints", t);
	text_add(t, "}\n");
}
