/* SPDX-License-Identifier: MIT
 *
 * prometheus: the counters in Prometheus' text format 0.0.4. Names, HELP and TYPE come from the rows of counter.def.
 * Any process, pure.
 *
 *   name    millrace_SCOPE_ROW; _total behind what only grows; microseconds become seconds
 *   labels  what an operator sums by. Inputs, outputs, backends and Kafka are summed over the workers, or 100 backends
 * and 8 workers would be 18,000 series of which nobody looks at one; WORKER, SLOT and ENDPOINT rows have a worker.
 *   broker  each worker has connections of its own: how many workers have it up, and the sum of their disconnects
 */
#include <report.h>
#include <string.h>

/* The label strings of all blocks of a scope, one behind the other; made once for all rows. */
struct labels {
	struct text text;
	struct span {
		size_t from, len;
		bool is_shown, is_retired; /* retired: what it counted stays, what it measured is gone */
	} * spans;
	unsigned n;
};

static void add_label_of(struct text *t, const char *separator, const char *name, const char *value, size_t len)
{
	text_add(t, "%s%s=\"", separator, name);
	for (const char *s = value; s < value + len; s++) {
		if (*s == '\\' || *s == '"')
			text_add_bytes(t, "\\", 1);
		text_add_bytes(t, *s == '\n' ? "\\n" : s, *s == '\n' ? 2 : 1);
	}
	text_add_bytes(t, "\"", 1);
}

static void add_label(struct text *t, const char *separator, const char *name, const char *value)
{
	add_label_of(t, separator, name, value, strlen(value));
}

static void add_backend_labels(struct text *t, const char *separator, const struct stats_entry *e)
{
	char given[sizeof(e->name)];
	add_label_of(t, separator, "backend", e->name, stats_backend_address_len(e->name));
	if (stats_backend_given_name(e->name, given, sizeof(given)))
		add_label(t, ",", "name", given);
}

static void add_labels(const struct stats_copy *c, enum stats_scope scope, unsigned index, struct text *t)
{
	const struct stats_entry *e = stats_copy_entry(c, scope, index), *parent = stats_entry_parent(c, scope, e);
	const char *separator = "{";
	if (stats_entries_max(stats_copy_of(c), scope) == 1)
		return;
	if (parent) {
		add_label(t, separator, stats_scope_is_below_output(scope) ? "output" : "input", parent->name);
		separator = ",";
	}
	if (scope == STATS_WORKER || scope == STATS_SLOT || scope == STATS_PROCESS) {
		add_label(t, separator, "worker", e->name);
	} else if (scope == STATS_BACKEND) {
		add_backend_labels(t, separator, e);
	} else if (scope != STATS_KAFKA) {
		add_label(t, separator, stats_scope_word(scope), e->name);
	}
	if (scope == STATS_ENDPOINT)
		add_label(t, ",", "worker", strncmp(e->unit, "slot ", 5) == 0 ? e->unit + 5 : "all");
	if (scope == STATS_BACKEND)
		add_label(t, ",", "transport", e->unit);
	text_add_bytes(t, "}", 1);
}

static int span_compare(const void *a, const void *b, void *text)
{
	const struct span *x = *(struct span *const *)a, *y = *(struct span *const *)b;
	int order = memcmp((char *)text + x->from, (char *)text + y->from, MIN(x->len, y->len));
	return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* The same labels twice make the whole answer invalid. Names that stand twice (hash: modulo lets them) get their index.
 */
static void labels_part(struct labels *l)
{
	struct span **sorted = calloc(MAX(l->n, 1), sizeof(struct span *));
	unsigned n = 0;
	if (!sorted || l->text.failed || !l->text.s) {
		l->text.failed |= !sorted;
		free(sorted);
		return;
	}
	for (unsigned i = 0; i < l->n; i++)
		if (l->spans[i].len)
			sorted[n++] = &l->spans[i];
	qsort_r(sorted, n, sizeof(struct span *), span_compare, l->text.s);
	for (unsigned i = 1; i < n; i++) {
		struct span *s = sorted[i];
		const struct span *before = sorted[i - 1];
		if (s->len != before->len || memcmp(l->text.s + s->from, l->text.s + before->from, s->len) != 0)
			continue;
		sorted[i] = sorted[i - 1]; /* the next one is compared with what this one was */
		size_t from = l->text.len;
		text_add(&l->text, "%.*s,index=\"%u\"}", (int)s->len - 1, l->text.s + s->from,
			 (unsigned)(s - l->spans));
		*s = (struct span){
		    .from = from, .len = l->text.len - from, .is_shown = true, .is_retired = s->is_retired};
	}
	free(sorted);
}

static bool labels_make(struct labels *l, const struct stats_copy *c, enum stats_scope scope)
{
	l->n = stats_copy_entries(c, scope);
	if (scope == STATS_SLOT || scope == STATS_PROCESS)
		l->n = MIN(l->n, stats_copy_slots(c));
	l->spans = calloc(MAX(l->n, 1), sizeof(*l->spans));
	if (!l->spans)
		return false;
	for (unsigned i = 0; i < l->n; i++) {
		struct span *s = &l->spans[i];
		s->is_shown = stats_copy_entry(c, scope, i)->used && stats_block_exists(c, STATS_ALL, scope, i);
		s->is_retired = stats_copy_is_retired(c, scope, i);
		s->from = l->text.len;
		if (s->is_shown)
			add_labels(c, scope, i, &l->text);
		s->len = l->text.len - s->from;
	}
	labels_part(l);
	return !l->text.failed;
}

static void add_head(struct text *t, const char *name, const char *type, const char *help, const char *more)
{
	text_add(t, "# HELP %s ", name);
	for (const char *s = help; *s; s++)
		text_add(t, *s == '\\' ? "\\\\" : *s == '\n' ? "\\n" : "%c", *s);
	text_add(t, "%s\n# TYPE %s %s\n", more, name, type);
}

static void add_sample(struct text *t, const char *name, const struct labels *l, unsigned i, const char *value)
{
	text_add_bytes(t, name, strlen(name));
	if (l->spans[i].len)
		text_add_bytes(t, l->text.s + l->spans[i].from, l->spans[i].len);
	text_add_bytes(t, " ", 1);
	text_add_bytes(t, value, strlen(value));
	text_add_bytes(t, "\n", 1);
}

static bool is_summed(enum stats_scope scope)
{
	return scope < STATS_MASTER && scope != STATS_WORKER;
}

static void add_row(const struct stats_copy *c, const struct stats_field *f, const struct labels *l, struct text *t)
{
	size_t len = strlen(f->name);
	bool is_us = len > 3 && strcmp(f->name + len - 3, "_us") == 0;
	bool is_gauge = f->kind == STATS_KIND_GAUGE || f->kind == STATS_KIND_STATE;
	char name[128], value[32];
	snprintf(name, sizeof(name), "millrace_%s_%.*s%s%s", stats_scope_word(f->scope), (int)(is_us ? len - 3 : len),
		 f->name, is_us ? "_seconds" : "", is_gauge ? "" : "_total");
	add_head(t, name, is_gauge ? "gauge" : "counter", f->help,
		 is_gauge && is_summed(f->scope) ? " Summed over the workers." : "");
	for (unsigned i = 0; i < l->n; i++) {
		if (!l->spans[i].is_shown || (is_gauge && l->spans[i].is_retired))
			continue;
		int slot = f->scope == STATS_WORKER ? (int)i : STATS_ALL;
		unsigned long long n = stats_value(c, slot, f->scope, i, f->index);
		if (is_us)
			snprintf(value, sizeof(value), "%llu.%06llu", n / 1000000, n % 1000000);
		else
			snprintf(value, sizeof(value), "%llu", n);
		add_sample(t, name, l, i, value);
	}
}

/* The digest is a label of its own: a number of 48 bits says nothing as a curve. Times do not add up over workers. */
static bool is_said_otherwise(const struct stats_field *f)
{
	return (f->scope == STATS_MASTER && strcmp(f->name, "config_digest") == 0) ||
	       (f->scope == STATS_BACKEND && strcmp(f->name, "down_us") == 0);
}

static void add_scope(const struct stats_copy *c, enum stats_scope scope, struct text *t)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f), shown = 0;
	struct labels l = {0};
	if (!labels_make(&l, c, scope))
		t->failed = true;
	for (unsigned i = 0; i < l.n && l.spans; i++)
		shown += l.spans[i].is_shown;
	for (unsigned i = 0; i < n && shown && !t->failed; i++)
		if (f[i].name[0] && !is_said_otherwise(&f[i]))
			add_row(c, &f[i], &l, t);
	text_free(&l.text);
	free(l.spans);
}

/* -- brokers: which of an output's blocks is which broker, each worker says for itself
 * --------------------------------- */

struct broker {
	unsigned output;
	uint64_t node, ups, disconnects;
};

static void broker_add(struct broker *all, unsigned *n, const struct stats_copy *c, int slot, unsigned index)
{
	unsigned output = index / STATS_BROKERS_MAX, i = 0;
	uint64_t node = stats_named(c, slot, STATS_BROKER, index, "node");
	while (i < *n && (all[i].output != output || all[i].node != node))
		i++;
	if (i == *n)
		all[(*n)++] = (struct broker){.output = output, .node = node};
	all[i].ups += stats_named(c, slot, STATS_BROKER, index, "state") == STATS_BROKER_UP;
	all[i].disconnects += stats_named(c, slot, STATS_BROKER, index, "disconnects");
}

static void add_broker_row(const struct stats_copy *c, const struct broker *all, unsigned n, bool is_up, struct text *t)
{
	const char *name = is_up ? "millrace_broker_up" : "millrace_broker_disconnects_total";
	char node[24];
	if (is_up)
		add_head(t, name, "gauge",
			 "Workers that are connected to this broker. Those that lead none of the topic's "
			 "partitions need not be.",
			 "");
	else
		add_head(t, name, "counter", "Times that a worker was connected to it and then was not.", "");
	for (unsigned i = 0; i < n; i++) {
		snprintf(node, sizeof(node), "%llu", (unsigned long long)all[i].node);
		text_add_bytes(t, name, strlen(name));
		add_label(t, "{", "output", stats_copy_entry(c, STATS_OUTPUT, all[i].output)->name);
		add_label(t, ",", "broker", node);
		text_add(t, "} %llu\n", (unsigned long long)(is_up ? all[i].ups : all[i].disconnects));
	}
}

static void add_brokers(const struct stats_copy *c, struct text *t)
{
	unsigned n = 0, slots = stats_copy_slots(c);
	unsigned blocks =
	    MIN(stats_copy_entries(c, STATS_BROKER), stats_copy_entries(c, STATS_OUTPUT) * STATS_BROKERS_MAX);
	struct broker *all = calloc((size_t)slots * blocks + 1, sizeof(*all));
	if (!all)
		t->failed = true;
	for (unsigned i = 0; all && i < blocks; i++)
		for (unsigned slot = 0; slot < slots; slot++)
			if (stats_block_exists(c, (int)slot, STATS_BROKER, i))
				broker_add(all, &n, c, (int)slot, i);
	if (n) {
		add_broker_row(c, all, n, true, t);
		add_broker_row(c, all, n, false, t);
	}
	free(all);
}

void report_prometheus(const struct stats_copy *c, const struct report_program *program, struct text *t)
{
	uint64_t started_us = stats_named(c, STATS_ALL, STATS_MASTER, 0, "started_us");
	add_head(t, "millrace_build_info", "gauge", "1; the version is a label.", "");
	text_add(t, "millrace_build_info");
	add_label(t, "{", "version", program->version);
	text_add(t, "} 1\n");
	if (stats_field_find(stats_copy_of(c), STATS_MASTER, "config_digest") != -1) {
		unsigned long long digest = stats_named(c, STATS_ALL, STATS_MASTER, 0, "config_digest");
		add_head(t, "millrace_config_info", "gauge",
			 "1; the digest of the configuration in effect is a label: equal ones, equal configurations.",
			 "");
		text_add(t, "millrace_config_info{digest=\"%012llx\"} 1\n", digest);
	}
	add_head(t, "process_start_time_seconds", "gauge", "When millrace started, seconds since 1970.", "");
	text_add(t, "process_start_time_seconds %llu.%06llu\n", (unsigned long long)(started_us / 1000000),
		 (unsigned long long)(started_us % 1000000));
	for (unsigned scope = 0; scope < STATS_SCOPES; scope++)
		if (scope == STATS_BROKER)
			add_brokers(c, t);
		else
			add_scope(c, scope, t);
}
