/* SPDX-License-Identifier: MIT
 *
 * sheet: see sheet.h.
 */
#include "sheet.h"

#include <string.h>

typedef unsigned long long ull;

/* Of more backends than this only the worst are shown: nobody reads 10,000 rows, and no telephone draws them. */
enum { BACKENDS_SHOWN = 200 };

/* -- formats ---------------------------------------------------------------------------------------------------------
 */

static char *format_count(char *buf, size_t size, uint64_t n)
{
	char digits[24];
	int len = snprintf(digits, sizeof digits, "%llu", (ull)n);
	size_t at = 0;
	for (int i = 0; i < len && at + 2 < size; i++) {
		if (i && (len - i) % 3 == 0)
			buf[at++] = ',';
		buf[at++] = digits[i];
	}
	buf[at] = '\0';
	return buf;
}

static char *format_age(char *buf, size_t size, uint64_t us)
{
	ull s = us / 1000000;
	if (s >= 86400)
		snprintf(buf, size, "%llu d %llu h", s / 86400, s / 3600 % 24);
	else if (s >= 3600)
		snprintf(buf, size, "%llu h %llu min", s / 3600, s / 60 % 60);
	else if (s >= 60)
		snprintf(buf, size, "%llu min %llu s", s / 60, s % 60);
	else
		snprintf(buf, size, "%llu s", s);
	return buf;
}

char *sheet_format(char *buf, size_t size, enum sheet_format format, uint64_t n)
{
	switch (format) {
	case SHEET_BYTES:
	case SHEET_BYTE_RATE:
		return text_format_bytes(buf, size, n);
	case SHEET_AGE:
		return format_age(buf, size, n);
	case SHEET_SHARE:
		snprintf(buf, size, "%.*f %%", n && n < 1000 ? 4 : n % 10000 ? 1 : 0, (double)n / 1e4);
		return buf;
	case SHEET_TEXT:
	case SHEET_STATE:
	case SHEET_COUNT:
	case SHEET_LOST:
	case SHEET_RATE:
		break;
	}
	return format_count(buf, size, n);
}

void sheet_escape(struct text *t, const char *s)
{
	for (; *s; s++) {
		unsigned char ch = (unsigned char)*s;
		if (ch == '&' || ch == '<' || ch == '>' || ch == '"' || ch == '\'' || ch < 0x20 || ch == 0x7f)
			text_add(t, "&#%u;", ch < 0x20 || ch == 0x7f ? '?' : ch);
		else
			text_add_bytes(t, s, 1);
	}
}

/* -- one cell after the other ----------------------------------------------------------------------------------------
 */

struct column {
	const char *title;
	enum sheet_format format;
	unsigned priority; /* 1: always shown; 2: from tablets on; 3: on large screens */
	const char *help;
};

struct writer {
	struct monitor *m;
	struct text *t;
	const struct column *columns;
	unsigned n_columns, column, rows;
	bool is_json;
};

static const char *const format_words[] = {
    [SHEET_TEXT] = "text",   [SHEET_STATE] = "state", [SHEET_COUNT] = "count",
    [SHEET_LOST] = "lost",   [SHEET_BYTES] = "bytes", [SHEET_AGE] = "age",
    [SHEET_SHARE] = "share", [SHEET_RATE] = "rate",   [SHEET_BYTE_RATE] = "byte_rate",
};

static void cell_begin(struct writer *w)
{
	BUG_ON(w->column == w->n_columns);
	const struct column *col = &w->columns[w->column];
	if (w->is_json) {
		text_add(w->t, w->column ? "," : w->rows ? ",\n[" : "\n[");
		return;
	}
	text_add(w->t, "%s<td class=\"%s p%u\">", w->column ? "" : "<tr>", format_words[col->format], col->priority);
}

static void cell_end(struct writer *w)
{
	bool is_last = ++w->column == w->n_columns;
	text_add(w->t, w->is_json ? is_last ? "]" : "" : is_last ? "</td></tr>\n" : "</td>");
	if (is_last) {
		w->column = 0;
		w->rows++;
	}
}

static void put_text(struct writer *w, const char *s)
{
	cell_begin(w);
	if (w->is_json)
		text_add_json(w->t, s, strlen(s));
	else if (w->columns[w->column].format == SHEET_STATE) {
		text_add(w->t, "<span class=\"");
		sheet_escape(w->t, s);
		text_add(w->t, "\">");
		sheet_escape(w->t, s);
		text_add(w->t, "</span>");
	} else
		sheet_escape(w->t, s);
	cell_end(w);
}

static void put(struct writer *w, uint64_t n)
{
	char shown[48];
	const struct column *col = &w->columns[w->column];
	cell_begin(w);
	if (w->is_json)
		text_add(w->t, "%llu", (ull)n);
	else if (col->format == SHEET_LOST && n)
		text_add(w->t, "<b>%s</b>", sheet_format(shown, sizeof shown, col->format, n));
	else if (col->format != SHEET_RATE && col->format != SHEET_BYTE_RATE)
		text_add(w->t, "%s", sheet_format(shown, sizeof shown, col->format, n));
	cell_end(w);
}

static uint64_t sum_of(const struct writer *w, enum stats_scope scope, unsigned index, const char *name)
{
	return stats_named(w->m->copy, STATS_ALL, scope, index, name);
}

/* What a reload removed keeps its totals, and is not listed. */
static bool is_present(const struct stats_entry *e)
{
	return e->used == STATS_USED;
}

/* -- the sheets ------------------------------------------------------------------------------------------------------
 */

static const struct column worker_columns[] = {
    {"worker", SHEET_TEXT, 1, ""},
    {"state", SHEET_STATE, 1, ""},
    {"CPU", SHEET_SHARE, 2, "of one, in the last second"},
    {"datagrams/s", SHEET_RATE, 1, ""},
    {"lines/s", SHEET_RATE, 1, ""},
    {"bytes/s", SHEET_BYTE_RATE, 2, ""},
    {"lines", SHEET_COUNT, 2, ""},
    {"waiting", SHEET_COUNT, 2, "records"},
    {"lost", SHEET_LOST, 1, "records"},
    {"up", SHEET_AGE, 3, ""},
    {"restarts", SHEET_COUNT, 3, ""},
    {"pid", SHEET_TEXT, 3, ""},
};

static void worker_rows(struct writer *w)
{
	uint64_t now_us = clock_real_us();
	for (unsigned slot = 0; slot < stats_copy_slots(w->m->copy); slot++) {
		struct report_totals totals;
		uint64_t pid = sum_of(w, STATS_SLOT, slot, "pid"), ready_us = sum_of(w, STATS_SLOT, slot, "ready_us");
		uint64_t starts = sum_of(w, STATS_SLOT, slot, "starts");
		char text[24];
		if (!is_present(stats_copy_entry(w->m->copy, STATS_SLOT, slot)))
			continue;
		report_totals_slot(w->m->copy, slot, &totals);
		snprintf(text, sizeof text, "%u", slot);
		put_text(w, text);
		put_text(w, stats_slot_state_word(sum_of(w, STATS_SLOT, slot, "state")));
		put(w, sum_of(w, STATS_PROCESS, slot, "cpu_percent") * 10000);
		put(w, totals.datagrams);
		put(w, totals.lines);
		put(w, totals.bytes);
		put(w, totals.lines);
		put(w, totals.waiting);
		put(w, totals.lost);
		put(w, pid && ready_us && now_us > ready_us ? now_us - ready_us : 0);
		put(w, starts ? starts - 1 : 0);
		snprintf(text, sizeof text, "%llu", (ull)pid);
		put_text(w, pid ? text : "");
	}
}

static const struct column input_columns[] = {
    {"input", SHEET_TEXT, 1, ""},
    {"type", SHEET_TEXT, 2, ""},
    {"datagrams/s", SHEET_RATE, 1, "datagrams, or packets of a capture"},
    {"lines/s", SHEET_RATE, 1, ""},
    {"bytes/s", SHEET_BYTE_RATE, 2, ""},
    {"datagrams", SHEET_COUNT, 3, "datagrams, or packets of a capture"},
    {"lines", SHEET_COUNT, 2, ""},
    {"invalid", SHEET_LOST, 2, "lines that no backend would understand"},
    {"lost in the kernel", SHEET_LOST, 1, "the buffer or ring was full"},
    {"connections", SHEET_COUNT, 3, "open now"},
};

static uint64_t kernel_losses(const struct writer *w, unsigned input)
{
	const struct stats_field *f;
	unsigned n = stats_fields(w->m->stats, STATS_ENDPOINT, &f);
	uint64_t sum = 0;
	for (unsigned i = 0; i < stats_copy_entries(w->m->copy, STATS_ENDPOINT); i++)
		if (stats_copy_entry(w->m->copy, STATS_ENDPOINT, i)->parent == input)
			for (unsigned k = 0; k < n; k++)
				if (f[k].kind == STATS_KIND_LOSS)
					sum += stats_value(w->m->copy, STATS_ALL, STATS_ENDPOINT, i, f[k].index);
	return sum;
}

static void input_rows(struct writer *w)
{
	for (unsigned i = 0; i < stats_copy_entries(w->m->copy, STATS_INPUT); i++) {
		const struct stats_entry *e = stats_copy_entry(w->m->copy, STATS_INPUT, i);
		uint64_t read =
		    sum_of(w, STATS_INPUT, i, "received_datagrams") + sum_of(w, STATS_INPUT, i, "received_packets");
		if (!is_present(e))
			continue;
		put_text(w, e->name);
		put_text(w, e->unit);
		put(w, read);
		put(w, sum_of(w, STATS_INPUT, i, "received_lines"));
		put(w, sum_of(w, STATS_INPUT, i, "received_bytes"));
		put(w, read);
		put(w, sum_of(w, STATS_INPUT, i, "received_lines"));
		put(w, sum_of(w, STATS_INPUT, i, "invalid_lines"));
		put(w, kernel_losses(w, i));
		put(w, sum_of(w, STATS_INPUT, i, "open_connections"));
	}
}

static const struct column backend_columns[] = {
    {"backend", SHEET_TEXT, 1, ""},
    {"output", SHEET_TEXT, 2, ""},
    {"state", SHEET_STATE, 1, ""},
    {"records/s", SHEET_RATE, 1, "lines, datagrams or packets"},
    {"bytes/s", SHEET_BYTE_RATE, 2, ""},
    {"delivered", SHEET_COUNT, 2, "records"},
    {"waiting", SHEET_COUNT, 1, "records"},
    {"lost", SHEET_LOST, 1, "records"},
    {"connections lost", SHEET_COUNT, 3, ""},
};

static const char *backend_state(const struct writer *w, unsigned index, unsigned ready)
{
	unsigned ups = stats_backend_ups(w->m->copy, index);
	return ups == 0 ? "down" : ups < ready ? "partly up" : "up";
}

static void backend_row(struct writer *w, unsigned index, const struct report_totals *totals, unsigned ready)
{
	const struct stats_entry *e = stats_copy_entry(w->m->copy, STATS_BACKEND, index);
	char name[300];
	bool is_plain = strcmp(e->unit, "tcp") == 0;
	snprintf(name, sizeof name, is_plain ? "%s" : "%s (%s)", e->name, e->unit);
	put_text(w, name);
	put_text(w, stats_copy_entry(w->m->copy, STATS_OUTPUT, e->parent)->name);
	put_text(w, backend_state(w, index, ready));
	put(w, totals->delivered);
	put(w, totals->delivered_bytes);
	put(w, totals->delivered);
	put(w, totals->waiting);
	put(w, totals->lost);
	put(w, sum_of(w, STATS_BACKEND, index, "disconnects"));
}

/* Those that lost most, then those that hold most, then as they stand. */
static int worse(const void *a, const void *b, void *arg)
{
	const struct report_totals *totals = arg, *x = &totals[*(const unsigned *)a], *y = &totals[*(const unsigned *)b];
	if (x->lost != y->lost)
		return x->lost > y->lost ? -1 : 1;
	if (x->waiting != y->waiting)
		return x->waiting > y->waiting ? -1 : 1;
	return *(const unsigned *)a < *(const unsigned *)b ? -1 : 1;
}

static void backend_rows(struct writer *w)
{
	unsigned all = stats_copy_entries(w->m->copy, STATS_BACKEND), n = 0, ready = 0;
	struct report_totals *totals = calloc(MAX(all, 1), sizeof *totals);
	unsigned *order = calloc(MAX(all, 1), sizeof *order);
	for (unsigned slot = 0; slot < stats_copy_slots(w->m->copy); slot++)
		ready += stats_slot_is_ready(w->m->copy, slot);
	if (!totals || !order)
		w->t->failed = true;
	else
		report_totals_backends(w->m->copy, totals, all);
	for (unsigned i = 0; !w->t->failed && i < all; i++)
		if (is_present(stats_copy_entry(w->m->copy, STATS_BACKEND, i)))
			order[n++] = i;
	if (n > BACKENDS_SHOWN)
		qsort_r(order, n, sizeof *order, worse, totals);
	for (unsigned i = 0; i < MIN(n, (unsigned)BACKENDS_SHOWN); i++)
		backend_row(w, order[i], &totals[order[i]], ready);
	free(totals);
	free(order);
}

static const struct column kafka_columns[] = {
    {"output", SHEET_TEXT, 1, ""},
    {"brokers up", SHEET_TEXT, 1, "of those in the cluster's metadata"},
    {"partitions", SHEET_COUNT, 3, ""},
    {"messages/s", SHEET_RATE, 1, ""},
    {"bytes/s", SHEET_BYTE_RATE, 2, ""},
    {"delivered", SHEET_COUNT, 2, "messages"},
    {"waiting", SHEET_COUNT, 1, "messages"},
    {"unconfirmed", SHEET_LOST, 2, "messages: sent, and whether they arrived is unknown"},
    {"failed", SHEET_LOST, 1, "messages"},
};

static void kafka_rows(struct writer *w)
{
	for (unsigned i = 0; i < stats_copy_entries(w->m->copy, STATS_KAFKA); i++) {
		const struct stats_entry *e = stats_copy_entry(w->m->copy, STATS_KAFKA, i);
		uint64_t brokers = 0, up = 0, partitions = 0;
		char text[40];
		if (!is_present(e))
			continue;
		for (int slot = 0; slot < (int)stats_copy_slots(w->m->copy); slot++) { /* each worker has all of them */
			brokers = MAX(brokers, stats_named(w->m->copy, slot, STATS_KAFKA, i, "brokers"));
			up = MAX(up, stats_named(w->m->copy, slot, STATS_KAFKA, i, "brokers_up"));
			partitions = MAX(partitions, stats_named(w->m->copy, slot, STATS_KAFKA, i, "partitions"));
		}
		snprintf(text, sizeof text, "%llu of %llu", (ull)up, (ull)brokers);
		put_text(w, e->name);
		put_text(w, text);
		put(w, partitions);
		put(w, sum_of(w, STATS_KAFKA, i, "delivered_messages"));
		put(w, sum_of(w, STATS_KAFKA, i, "delivered_bytes"));
		put(w, sum_of(w, STATS_KAFKA, i, "delivered_messages"));
		put(w, sum_of(w, STATS_KAFKA, i, "queued_messages") + sum_of(w, STATS_KAFKA, i, "in_flight_messages"));
		put(w, sum_of(w, STATS_KAFKA, i, "unconfirmed_messages"));
		put(w, sum_of(w, STATS_KAFKA, i, "failed_messages") + sum_of(w, STATS_KAFKA, i, "dropped_messages"));
	}
}

/* -- the path of a datagram ------------------------------------------------------------------------------------------
 */

static const struct column path_columns[] = {
    {"step", SHEET_TEXT, 1, "from the wire to the backends"},
    {"came", SHEET_COUNT, 1, "since the start"},
    {"", SHEET_TEXT, 2, ""},
    {"lost", SHEET_LOST, 1, ""},
    {"share", SHEET_SHARE, 2, "of what came"},
    {"lost in 10 s", SHEET_LOST, 1, "in the last ten seconds"},
    {"share", SHEET_SHARE, 2, "of what came in them"},
};

/* In millionths. */
static uint64_t share_of(uint64_t lost, uint64_t came)
{
	return came ? (uint64_t)((double)lost / (double)came * 1e6 + 0.5) : 0;
}

/* All programs of the machine: not what we lost. */
static bool is_of_host(enum report_step step)
{
	return step == REPORT_STEP_INTERFACE || step == REPORT_STEP_HOST;
}

static void step_rows(struct writer *w, bool of_host)
{
	struct report_step_sum steps[STATS_PATH_MAX];
	unsigned n = report_drops_steps(w->m->drops, steps);
	for (unsigned i = 0; i < n; i++) {
		if (is_of_host(steps[i].step) != of_host)
			continue;
		put_text(w, report_step_word(steps[i].step));
		put(w, steps[i].came);
		put_text(w, steps[i].unit);
		put(w, steps[i].lost);
		put(w, share_of(steps[i].lost, steps[i].came));
		put(w, steps[i].lost_10s);
		put(w, share_of(steps[i].lost_10s, steps[i].came_10s));
	}
}

static void path_rows(struct writer *w)
{
	step_rows(w, false);
}

/* Not in the colour of a loss: most of it is of others and of long ago. */
static const struct column host_columns[] = {
    {"of", SHEET_TEXT, 1, ""},
    {"came", SHEET_COUNT, 1, ""},
    {"", SHEET_TEXT, 2, ""},
    {"dropped", SHEET_COUNT, 1, "for want of room"},
    {"share", SHEET_SHARE, 2, "of what came"},
    {"dropped in 10 s", SHEET_COUNT, 1, "in the last ten seconds"},
    {"share", SHEET_SHARE, 2, "of what came in them"},
};

static void host_rows(struct writer *w)
{
	step_rows(w, true);
}

static const struct column loss_columns[] = {
    {"what", SHEET_TEXT, 1, "the counter"}, {"step", SHEET_TEXT, 2, ""},
    {"most of it at", SHEET_TEXT, 2, ""},   {"lost", SHEET_LOST, 1, "since the start"},
    {"lost in 10 s", SHEET_LOST, 1, ""},
};

static void loss_rows(struct writer *w)
{
	const struct report_drop *all;
	unsigned n = report_drops_all(w->m->drops, &all);
	for (unsigned i = 0; i < n; i++) {
		const struct report_drop *d = &all[i];
		char place[400];
		if (d->lost == 0 || d->is_hint || is_of_host(d->step))
			continue;
		report_drops_place(w->m->drops, w->m->copy, d, d->lost_10s ? d->place_10s : d->place, place,
				  sizeof place);
		put_text(w, d->name);
		put_text(w, report_step_word(d->step));
		put_text(w, place);
		put(w, d->lost);
		put(w, d->lost_10s);
	}
}

static const struct sheet {
	const char *id, *title;
	const struct column *columns;
	unsigned n_columns;
	void (*rows)(struct writer *w);
} sheets[] = {
    {"path", "The path", path_columns, ARRAY_LEN(path_columns), path_rows},
    {"losses", "What was lost", loss_columns, ARRAY_LEN(loss_columns), loss_rows},
    {"workers", "Workers", worker_columns, ARRAY_LEN(worker_columns), worker_rows},
    {"inputs", "Inputs", input_columns, ARRAY_LEN(input_columns), input_rows},
    {"backends", "Backends", backend_columns, ARRAY_LEN(backend_columns), backend_rows},
    {"kafka", "Kafka", kafka_columns, ARRAY_LEN(kafka_columns), kafka_rows},
    {"host", "This machine since its start, all programs", host_columns, ARRAY_LEN(host_columns), host_rows},
};

/* -- all of them -----------------------------------------------------------------------------------------------------
 */

static void head_html(struct monitor *m, const struct sheet *s, struct text *t)
{
	text_add(t, "<h2>%s</h2>", s->title);
	if (s->rows == path_rows) {
		text_add(t, "<p class=\"advice\" id=\"advice\">");
		sheet_escape(t, m->advice.len ? m->advice.s : "");
		text_add(t, "</p>");
	}
	text_add(t, "<div class=\"scroll\"><table><thead><tr>");
	for (unsigned i = 0; i < s->n_columns; i++) {
		const struct column *col = &s->columns[i];
		text_add(t, "<th scope=\"col\" class=\"%s p%u\" data-format=\"%s\"", format_words[col->format],
			 col->priority, format_words[col->format]);
		if (col->help[0])
			text_add(t, " title=\"%s\"", col->help);
		text_add(t, ">%s</th>", col->title);
	}
	text_add(t, "</tr></thead><tbody>\n");
}

static void more_html(struct monitor *m, const struct sheet *s, unsigned rows, struct text *t)
{
	unsigned all = 0;
	if (s->rows != backend_rows)
		return;
	for (unsigned i = 0; i < stats_copy_entries(m->copy, STATS_BACKEND); i++)
		all += is_present(stats_copy_entry(m->copy, STATS_BACKEND, i));
	if (all > rows)
		text_add(t, "<p class=\"more\">The %u that lost or hold most, of %u.</p>", rows, all);
}

/* A sheet without rows is hidden, and the script shows it when there are some: a first loss, a Kafka output. */
void sheets_html(struct monitor *m, struct text *t)
{
	for (size_t i = 0; i < ARRAY_LEN(sheets); i++) {
		const struct sheet *s = &sheets[i];
		struct text rows = {0};
		struct writer w = {.m = m, .t = &rows, .columns = s->columns, .n_columns = s->n_columns};
		s->rows(&w);
		text_add(t, "<section id=\"%s\"%s>", s->id, w.rows ? "" : " hidden");
		head_html(m, s, t);
		text_add_bytes(t, rows.s ? rows.s : "", rows.len);
		text_add(t, "</tbody></table></div>");
		more_html(m, s, w.rows, t);
		text_add(t, "</section>\n");
		t->failed |= rows.failed;
		text_free(&rows);
	}
}

void sheets_json(struct monitor *m, struct text *t)
{
	for (size_t i = 0; i < ARRAY_LEN(sheets); i++) {
		struct writer w = {
		    .m = m, .t = t, .columns = sheets[i].columns, .n_columns = sheets[i].n_columns, .is_json = true};
		text_add(t, "%s\"%s\":[", i ? ",\n" : "", sheets[i].id);
		sheets[i].rows(&w);
		text_add(t, "]");
	}
}
