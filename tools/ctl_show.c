/* SPDX-License-Identifier: MIT
 *
 * ctl_show: what the commands of millracectl need to show things: columns, names, sums, one flag. No decisions.
 */
#include "ctl.h"
#include <string.h>

int ctl_usage(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	fprintf(stderr, "millracectl: ");
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "\n");
	va_end(ap);
	return CTL_NOT_ASKED;
}

int ctl_print(struct text *t)
{
	int rc = CTL_OK;
	if (t->failed)
		rc = ctl_usage("No memory for the answer.");
	else if (t->len && (fwrite(t->s, 1, t->len, stdout) != t->len || fflush(stdout) != 0))
		rc = ctl_usage("Cannot write to standard output.");
	text_free(t);
	return rc;
}

bool ctl_flag(int argc, char **argv, const char *flag, bool *given, uint64_t *value)
{
	*given = argc > 1;
	if (argc == 1)
		return true;
	if (strcmp(argv[1], flag) != 0 || argc != (value ? 3 : 2)) {
		ctl_usage("%s takes only %s%s.", argv[0], flag, value ? " N" : "");
		return false;
	}
	if (value && (text_parse_uint(argv[2], value) != 0 || *value == 0)) {
		ctl_usage("%s %s: \"%s\" is no number from 1 on.", argv[0], flag, argv[2]);
		return false;
	}
	return true;
}

static void cell_take(struct ctl_table *table, char *cell)
{
	if (table->n == table->size) {
		size_t size = MAX(table->size * 2, 64);
		char **cells = realloc(table->cells, size * sizeof(*cells));
		if (!cells) {
			table->failed = true;
			free(cell);
			return;
		}
		table->cells = cells;
		table->size = size;
	}
	table->cells[table->n++] = cell;
}

void ctl_cell(struct ctl_table *table, const char *fmt, ...)
{
	char *cell = NULL;
	va_list ap;
	va_start(ap, fmt);
	if (vasprintf(&cell, fmt, ap) == -1)
		table->failed = true;
	else
		cell_take(table, cell);
	va_end(ap);
}

void ctl_heading(struct ctl_table *table, const char *words)
{
	for (const char *end; *words; words = *end ? end + 1 : end) {
		end = strchrnul(words, '|');
		ctl_cell(table, "%.*s", (int)(end - words), words);
	}
}

void ctl_table_print(struct ctl_table *table, struct text *t)
{
	enum { COLUMNS_MAX = 16 };
	int width[COLUMNS_MAX] = {0};
	BUG_ON(table->columns > COLUMNS_MAX);
	for (size_t i = 0; i < table->n; i++)
		width[i % table->columns] = MAX(width[i % table->columns], (int)strlen(table->cells[i]));
	for (size_t i = 0; i < table->n; i++) {
		unsigned column = (unsigned)(i % table->columns);
		bool last = column + 1 == table->columns;
		if (column >= table->left)
			text_add(t, "%*s", width[column], table->cells[i]);
		else
			text_add(t, "%-*s", last ? 0 : width[column], table->cells[i]);
		text_add(t, last ? "\n" : "  ");
		free(table->cells[i]);
	}
	t->failed |= table->failed;
	free(table->cells);
	*table = (struct ctl_table){0};
}

void ctl_entry_name(const struct stats_copy *c, enum stats_scope scope, unsigned index, char *buf, size_t size)
{
	const struct stats_entry *e = stats_copy_entry(c, scope, index);
	enum stats_scope above = stats_scope_is_below_output(scope) ? STATS_OUTPUT : STATS_INPUT;
	bool has_parent = stats_scope_is_below_output(scope) || scope == STATS_ENDPOINT || scope == STATS_DEVICE;
	has_parent = has_parent && e->parent < stats_copy_entries(c, above);
	char name[2 * sizeof(e->name)];
	snprintf(name, sizeof(name), "%s%s%s", has_parent ? stats_copy_entry(c, above, e->parent)->name : "",
		 has_parent ? "/" : "", e->name);
	text_escape(buf, size, name, strlen(name));
}

uint64_t ctl_lost(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	uint64_t sum = 0;
	for (unsigned i = 0; i < n; i++)
		if (f[i].kind == STATS_KIND_LOSS)
			sum += stats_value(c, slot, scope, index, f[i].index);
	return sum;
}

void ctl_processes(const struct stats_copy *c, struct proc_usage *usage)
{
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++) {
		uint64_t pid = stats_named(c, STATS_ALL, STATS_SLOT, slot, "pid");
		if (pid == 0 || proc_usage((int64_t)pid, &usage[slot]) != 0)
			usage[slot] = (struct proc_usage){0};
	}
}

uint64_t ctl_received(const struct stats_copy *c, int slot, unsigned input)
{
	return stats_named(c, slot, STATS_INPUT, input, "received_datagrams") +
	       stats_named(c, slot, STATS_INPUT, input, "received_packets");
}

bool ctl_reads_packets(const struct stats_copy *c)
{
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++) {
		const char *type = stats_copy_entry(c, STATS_INPUT, i)->unit;
		if (strcmp(type, "capture") == 0 || strcmp(type, "file") == 0)
			return true;
	}
	return false;
}
