/* SPDX-License-Identifier: MIT
 *
 * ctl_top: "top": rates from two samples a second apart, a row per worker, packet input and backend. On a terminal it
 * takes the screen, else lines follow each other. Asks the daemon nothing after the first time, unless it has more
 * workers than then.
 */
#include "ctl.h"
#include <string.h>

enum { NUMBERS_MAX = 8, PLAIN_ROWS = 50, NAME_COLUMNS = 36 };

struct sample {
	struct stats_copy *copy;
	uint64_t at_us;
	struct proc_usage usage[STATS_SLOTS_MAX];
};

struct top {
	struct ctl *ctl;
	struct ctl_screen *screen; /* NULL: plain lines */
	struct sample samples[3];
	struct sample *a, *b; /* what is shown is from a to b */
	struct sample *base;  /* where the next second begins: at b, or where a pause ended */
	bool is_paused;
	struct top_row *rows;
	unsigned n_rows, rows_size;
	bool failed; /* no memory for rows */
};

/* One row of a table, before it is known whether there is room for it. */
struct top_row {
	char name[NAME_COLUMNS + 8], state[40];
	uint64_t n[NUMBERS_MAX];
	uint64_t rank; /* the higher, the more it matters */
};

/* What the columns hold. */
enum cell { CELL_COUNT, CELL_BYTES, CELL_PERCENT };
struct top_table {
	const char *heading; /* of all columns */
	unsigned n;          /* of numbers, behind name and state */
	enum cell cells[NUMBERS_MAX];
	bool keeps_order; /* as long as all fit */
};

static bool sample_take(struct top *top, struct sample *s)
{
	s->at_us = clock_us();
	if (ctl_take(top->ctl, s->copy) != CTL_OK)
		return false;
	ctl_processes(s->copy, s->usage);
	return true;
}

/* Per second, rounded; a total that went back (another millrace) is 0. */
static uint64_t rate_of(uint64_t before, uint64_t now, uint64_t us)
{
	return us && now > before ? (uint64_t)(((unsigned __int128)(now - before) * 1000000 + us / 2) / us) : 0;
}

static uint64_t rate(const struct top *top, uint64_t before, uint64_t now)
{
	return rate_of(before, now, top->b->at_us - top->a->at_us);
}

/* -- sums -----------------------------------------------------------------------------------------------------------
 */

static uint64_t inputs_sum(const struct stats_copy *c, int slot, const char *name)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++)
		n += stats_named(c, slot, STATS_INPUT, i, name);
	return n;
}

static uint64_t input_rate(const struct top *top, int slot, const char *name)
{
	return rate(top, inputs_sum(top->a->copy, slot, name), inputs_sum(top->b->copy, slot, name));
}

static uint64_t scope_lost(const struct stats_copy *c, int slot, enum stats_scope scope)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, scope); i++)
		n += ctl_lost(c, slot, scope, i);
	return n;
}

/* Of the sockets and rings of one slot; those that all slots share are nobody's. */
static uint64_t endpoints_sum(const struct stats_copy *c, unsigned slot, const char *name)
{
	uint64_t n = 0;
	char unit[24];
	snprintf(unit, sizeof(unit), "slot %u", slot);
	bool is_only = stats_copy_slots(c) == 1;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++)
		if (is_only || strcmp(stats_copy_entry(c, STATS_ENDPOINT, i)->unit, unit) == 0)
			n += stats_named(c, STATS_ALL, STATS_ENDPOINT, i, name);
	return n;
}

/* All that was lost in and before a worker. */
static uint64_t worker_lost(const struct stats_copy *c, unsigned slot)
{
	return scope_lost(c, (int)slot, STATS_INPUT) + scope_lost(c, (int)slot, STATS_OUTPUT) +
	       scope_lost(c, (int)slot, STATS_BACKEND) + endpoints_sum(c, slot, "dropped_datagrams") +
	       endpoints_sum(c, slot, "dropped_closed_datagrams") +
	       endpoints_sum(c, slot, "dropped_ring_packets");
}

/* -- rows -----------------------------------------------------------------------------------------------------------
 */

static struct top_row *row_new(struct top *top, const char *name, const char *state)
{
	static struct top_row nowhere;
	if (top->n_rows == top->rows_size) {
		unsigned size = MAX(2 * top->rows_size, 64u);
		struct top_row *rows = realloc(top->rows, size * sizeof(*rows));
		top->failed |= !rows;
		if (!rows)
			return &nowhere;
		top->rows = rows;
		top->rows_size = size;
	}
	struct top_row *row = &top->rows[top->n_rows++];
	*row = (struct top_row){.rank = 0};
	bool is_long = strlen(name) > NAME_COLUMNS;
	snprintf(row->name, sizeof(row->name), "%.*s%s", is_long ? NAME_COLUMNS - 3 : NAME_COLUMNS, name,
		 is_long ? "..." : "");
	snprintf(row->state, sizeof(row->state), "%s", state);
	return row;
}

static int by_rank(const void *a, const void *b)
{
	const struct top_row *x = a, *y = b;
	if (x->rank != y->rank)
		return x->rank < y->rank ? 1 : -1;
	return strcmp(x->name, y->name);
}

static void row_show(const struct top_table *table, const struct top_row *row, struct ctl_table *to)
{
	char bytes[32];
	ctl_cell(to, "%s", row->name);
	ctl_cell(to, "%s", row->state);
	for (unsigned i = 0; i < table->n; i++) {
		if (table->cells[i] == CELL_BYTES)
			ctl_cell(to, "%s", text_format_bytes(bytes, sizeof(bytes), row->n[i]));
		else
			ctl_cell(to, table->cells[i] == CELL_PERCENT ? "%llu %%" : "%llu",
				 (unsigned long long)row->n[i]);
	}
}

/* At most `room` lines with the heading; those that matter come first, and the rest is one row. */
static void table_show(struct top *top, const struct top_table *table, unsigned room, struct text *t)
{
	struct ctl_table to = {.columns = 2 + table->n, .left = 2};
	unsigned n = top->n_rows, fit = room > 1 ? room - 1 : 0;
	if (n > 0 && fit > 0) {
		if (!table->keeps_order || n > fit)
			qsort(top->rows, n, sizeof(top->rows[0]), by_rank);
		ctl_heading(&to, table->heading);
		unsigned shown = n <= fit ? n : fit - 1;
		for (unsigned i = 0; i < shown; i++)
			row_show(table, &top->rows[i], &to);
		struct top_row rest = {.rank = 0};
		snprintf(rest.name, sizeof(rest.name), "and %u more", n - shown);
		for (unsigned i = shown; i < n; i++)
			for (unsigned k = 0; k < table->n; k++)
				rest.n[k] += top->rows[i].n[k];
		if (shown < n)
			row_show(table, &rest, &to);
		ctl_table_print(&to, t);
	}
	top->n_rows = 0;
}

static void workers_add(struct top *top)
{
	const struct stats_copy *a = top->a->copy, *b = top->b->copy;
	for (unsigned slot = 0; slot < stats_copy_slots(b); slot++) {
		const struct proc_usage *before = &top->a->usage[slot], *now = &top->b->usage[slot];
		bool is_same = now->started_ticks && before->started_ticks == now->started_ticks;
		char name[16], state[40];
		if (stats_copy_is_retired(b, STATS_SLOT, slot))
			continue;
		snprintf(name, sizeof(name), "%u", slot);
		snprintf(state, sizeof(state), "%s",
			 now->is_stopped ? "stopped"
					 : stats_slot_state_word(stats_named(b, STATS_ALL, STATS_SLOT, slot, "state")));
		struct top_row *row = row_new(top, name, state);
		row->n[0] = stats_named(b, STATS_ALL, STATS_SLOT, slot, "pid");
		row->n[1] = is_same ? rate(top, before->cpu_us, now->cpu_us) / 10000 : 0;
		row->n[2] =
		    input_rate(top, (int)slot, "received_datagrams") + input_rate(top, (int)slot, "received_packets");
		row->n[3] = input_rate(top, (int)slot, "received_lines");
		row->n[4] = input_rate(top, (int)slot, "received_bytes");
		row->n[5] = rate(top, worker_lost(a, slot), worker_lost(b, slot));
		row->n[6] = endpoints_sum(b, slot, "queue_bytes");
		row->n[7] = endpoints_sum(b, slot, "ring_packets");
		row->rank = (row->n[5] << 20) + row->n[1] * 1000 + (row->n[2] >> 10);
	}
}

static void taps_add(struct top *top)
{
	static const char *const names[] = {"interface_packets", "passed_packets"};
	const struct stats_copy *a = top->a->copy, *b = top->b->copy;
	char name[600], of[700];
	for (unsigned i = 0; i < stats_copy_entries(b, STATS_ENDPOINT); i++) {
		enum stats_endpoint_kind kind = stats_endpoint_kind(b, i);
		if ((kind != STATS_ENDPOINT_RING && kind != STATS_ENDPOINT_QUEUE) ||
		    stats_copy_is_retired(b, STATS_ENDPOINT, i))
			continue;
		ctl_entry_name(b, STATS_ENDPOINT, i, name, sizeof(name));
		snprintf(of, sizeof(of), "%s %s", name, stats_copy_entry(b, STATS_ENDPOINT, i)->unit);
		struct top_row *row =
		    row_new(top, of, stats_named(b, STATS_ALL, STATS_ENDPOINT, i, "is_up") ? "up" : "down");
		for (unsigned k = 0; k < ARRAY_LEN(names); k++)
			row->n[k] = rate(top, stats_named(a, STATS_ALL, STATS_ENDPOINT, i, names[k]),
					 stats_named(b, STATS_ALL, STATS_ENDPOINT, i, names[k]));
		row->n[2] =
		    rate(top, ctl_lost(a, STATS_ALL, STATS_ENDPOINT, i), ctl_lost(b, STATS_ALL, STATS_ENDPOINT, i));
		row->n[3] = stats_named(b, STATS_ALL, STATS_ENDPOINT, i, "ring_packets");
		row->rank = (row->n[2] << 20) + row->n[1];
	}
}

static void backend_state(const struct stats_copy *c, unsigned i, uint64_t now_real_us, char *buf, size_t size)
{
	uint64_t down_us = stats_backend_down_us(c, i);
	unsigned ups = stats_backend_ups(c, i), ready = 0;
	char ago[32];
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++)
		ready += stats_slot_is_ready(c, slot);
	if (ups == 0)
		snprintf(buf, size, "down %s",
			 down_us && now_real_us > down_us ? text_format_time(ago, sizeof(ago), now_real_us - down_us)
							  : "");
	else if (ups < ready)
		snprintf(buf, size, "up in %u/%u", ups, ready);
	else
		snprintf(buf, size, "up");
}

static void backends_add(struct top *top)
{
	static const char *const rates[] = {"offered_records", "delivered_records", "sent_bytes"};
	const struct stats_copy *a = top->a->copy, *b = top->b->copy;
	char name[600], state[40];
	uint64_t now_real_us = clock_real_us();
	for (unsigned i = 0; i < stats_copy_entries(b, STATS_BACKEND); i++) {
		const struct stats_entry *e = stats_copy_entry(b, STATS_BACKEND, i);
		if (e->used != STATS_USED)
			continue;
		ctl_entry_name(b, STATS_BACKEND, i, name, sizeof(name));
		backend_state(b, i, now_real_us, state, sizeof(state));
		struct top_row *row = row_new(top, name, state);
		for (unsigned k = 0; k < ARRAY_LEN(rates); k++)
			row->n[k] = rate(top, stats_named(a, STATS_ALL, STATS_BACKEND, i, rates[k]),
					 stats_named(b, STATS_ALL, STATS_BACKEND, i, rates[k]));
		if (strcmp(e->unit, "kafka") == 0)
			row->n[2] = rate(top, stats_named(a, STATS_ALL, STATS_BACKEND, i, "delivered_bytes"),
					 stats_named(b, STATS_ALL, STATS_BACKEND, i, "delivered_bytes"));
		row->n[3] = stats_named(b, STATS_ALL, STATS_BACKEND, i, "queued_records");
		row->n[4] = stats_named(b, STATS_ALL, STATS_BACKEND, i, "in_flight_records");
		row->n[5] =
		    rate(top, ctl_lost(a, STATS_ALL, STATS_BACKEND, i), ctl_lost(b, STATS_ALL, STATS_BACKEND, i));
		row->rank =
		    (row->n[5] << 32) + ((uint64_t)(strcmp(state, "up") != 0) << 48) + row->n[3] + (row->n[0] >> 4);
	}
}

/* -- the screen ------------------------------------------------------------------------------------------------------
 */

static void head_show(const struct top *top, struct text *t)
{
	char shown[160];
	unsigned long long packets = input_rate(top, STATS_ALL, "received_packets");
	text_add(t, "%smillrace %s, pid %lld: ", top->is_paused ? "PAUSED (p goes on)  " : "",
		 text_escape(shown, sizeof(shown), top->ctl->version, strlen(top->ctl->version)),
		 (long long)top->ctl->pid);
	text_add(t, "%llu datagrams/s, %llu lines/s",
		 (unsigned long long)input_rate(top, STATS_ALL, "received_datagrams"),
		 (unsigned long long)input_rate(top, STATS_ALL, "received_lines"));
	if (packets)
		text_add(t, ", %llu packets/s", packets);
	text_add(t, " in; %llu %s/s dropped by the kernel",
		 (unsigned long long)rate(top, scope_lost(top->a->copy, STATS_ALL, STATS_ENDPOINT),
					  scope_lost(top->b->copy, STATS_ALL, STATS_ENDPOINT)),
		 packets ? "datagrams and packets" : "datagrams");
	text_add(t, "%s\n", top->screen && !top->is_paused ? "   p pause, q quit" : "");
}

static unsigned lines_of(const struct text *t)
{
	unsigned n = 0;
	for (const char *s = t->s; s && *s; s++)
		n += *s == '\n';
	return n;
}

static void all_show(struct top *top, struct text *t)
{
	static const struct top_table workers = {
	    "worker|state|pid|cpu|packets/s|lines/s|bytes/s|drops/s|socket queue|ring queue",
	    8,
	    {CELL_COUNT, CELL_PERCENT, CELL_COUNT, CELL_COUNT, CELL_BYTES, CELL_COUNT, CELL_BYTES, CELL_COUNT},
	    true};
	static const struct top_table taps = {
	    "capture|state|interface/s|passed/s|drops/s|ring queue", 4, {CELL_COUNT}, true};
	static const struct top_table backends = {"backend|state|offered/s|delivered/s|bytes/s|queue|in flight|drops/s",
						  6,
						  {CELL_COUNT, CELL_COUNT, CELL_BYTES},
						  false};
	unsigned lines, columns;
	ctl_screen_size(top->screen, &lines, &columns);
	lines = top->screen ? lines : 4 * PLAIN_ROWS;
	head_show(top, t);
	workers_add(top);
	/* backends come last and get what is left, at least a third of the screen */
	table_show(top, &workers, top->screen ? MAX(lines / 3, 3u) : PLAIN_ROWS, t);
	taps_add(top);
	text_add(t, "%s", top->n_rows ? "\n" : "");
	table_show(top, &taps, top->screen ? MAX(lines / 4, 3u) : PLAIN_ROWS, t);
	backends_add(top);
	text_add(t, "\n");
	unsigned used = lines_of(t);
	table_show(top, &backends, top->screen ? (lines > used ? lines - used : 0) : PLAIN_ROWS, t);
	t->failed |= top->failed;
}

static int top_show(struct top *top)
{
	struct text t = {0};
	all_show(top, &t);
	if (!top->screen) {
		text_add(&t, "\n");
		return ctl_print(&t);
	}
	int rc = ctl_screen_draw(top->screen, &t);
	text_free(&t);
	return rc;
}

/* One that neither of these is. */
static struct sample *sample_other(struct top *top, const struct sample *x, const struct sample *y)
{
	struct sample *s = top->samples;
	while (s == x || s == y)
		s++;
	return s;
}

static bool pause_toggle(struct top *top)
{
	top->is_paused = !top->is_paused;
	if (top->is_paused)
		return true;
	top->base = sample_other(top, top->a, top->b); /* rates of what comes, not of the pause */
	return sample_take(top, top->base);
}

/* Until the second is over, or for as long as it is paused. *quits: q was pressed. */
static int top_wait(struct top *top, bool *quits)
{
	for (;;) {
		int key = ctl_screen_wait(top->screen, (top->is_paused ? clock_us() : top->base->at_us) + 1000000);
		*quits = key == 'q' || key == 'Q';
		if (*quits || (key == CTL_KEY_NONE && !top->is_paused))
			return CTL_OK;
		if ((key == 'p' || key == 'P' || key == ' ') && !pause_toggle(top))
			return CTL_NOT_ASKED;
		if (key != CTL_KEY_NONE && top->b && top_show(top) != CTL_OK)
			return CTL_NOT_ASKED;
	}
}

static int top_run(struct top *top, uint64_t count, bool *has_ended)
{
	bool quits = false;
	top->base = &top->samples[0];
	if (!sample_take(top, top->base))
		return CTL_NOT_ASKED;
	for (uint64_t i = 0; i < count && !*has_ended; i++) {
		if (top_wait(top, &quits) != CTL_OK)
			return CTL_NOT_ASKED;
		if (quits)
			return CTL_OK;
		top->a = top->base;
		top->b = sample_other(top, top->base, NULL);
		top->base = top->b;
		if (!sample_take(top, top->b) || top_show(top) != CTL_OK)
			return CTL_NOT_ASKED;
		*has_ended = i + 1 < count && ctl_has_ended(top->ctl);
	}
	return CTL_OK;
}

int ctl_top(struct ctl *ctl, int argc, char **argv)
{
	bool given, has_ended = false, has_memory = true;
	uint64_t count = UINT64_MAX;
	if (!ctl_flag(argc, argv, "--count", &given, &count))
		return CTL_NOT_ASKED;
	int rc = ctl_attach(ctl);
	if (rc != CTL_OK)
		return rc;
	struct top top = {.ctl = ctl};
	for (size_t i = 0; i < ARRAY_LEN(top.samples); i++) {
		top.samples[i].copy = stats_copy_new(ctl->st);
		has_memory &= top.samples[i].copy != NULL;
	}
	if (!has_memory) {
		rc = ctl_usage("No memory for a copy of the counter pages.");
	} else {
		top.screen = ctl_screen_open();
		rc = top_run(&top, count, &has_ended);
		ctl_screen_close(top.screen);
		if (has_ended)
			printf("millrace has ended; these were its last numbers.\n");
	}
	for (size_t i = 0; i < ARRAY_LEN(top.samples); i++)
		stats_copy_free(top.samples[i].copy);
	free(top.rows);
	return rc;
}
