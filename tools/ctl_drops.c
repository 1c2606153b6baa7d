/* SPDX-License-Identifier: MIT
 *
 * ctl_drops: "drops": the path from the sockets to the backends, with what each step lost, and what to do about the
 * worst. What is a loss is said by the rows of counter.def (LOSS, HINT), and so is the advice.
 */
#include "ctl.h"
#include <string.h>

enum { SHOWN_MAX = 10 }; /* of one step; there may be 10,000 backends */

struct loss {
	const struct stats_field *field;
	enum stats_scope scope;
	unsigned index;
	uint64_t value, of; /* lost, of so many that came to this place, in the counter's unit */
};

struct losses {
	struct loss *rows;
	size_t n, size;
	bool failed;
};

static void loss_add(struct losses *losses, struct loss row)
{
	if (losses->n == losses->size) {
		size_t size = MAX(losses->size * 2, 32);
		struct loss *rows = realloc(losses->rows, size * sizeof(*rows));
		if (!rows) {
			losses->failed = true;
			return;
		}
		losses->rows = rows;
		losses->size = size;
	}
	losses->rows[losses->n++] = row;
}

/* "dropped_queue_full_records" counts "records". */
static const char *unit_of(const char *counter)
{
	const char *last = strrchr(counter, '_');
	return last ? last + 1 : counter;
}

/* All that came to the sockets of one input: what it read, and what the kernel dropped before it could. */
static uint64_t input_sent(const struct stats_copy *c, unsigned input, const char *unit)
{
	bool is_packets = strcmp(unit, "packets") == 0;
	uint64_t sum = is_packets ? 0 : stats_named(c, STATS_ALL, STATS_INPUT, input, "received_datagrams");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++)
		if (stats_copy_entry(c, STATS_ENDPOINT, i)->parent == input)
			sum += stats_named(c, STATS_ALL, STATS_ENDPOINT, i,
					   is_packets ? "passed_packets" : "dropped_datagrams");
	if (is_packets && sum == 0) /* DPDK: the workers filter */
		sum = stats_named(c, STATS_ALL, STATS_INPUT, input, "received_packets");
	return sum;
}

/* What came to the place in the unit of a counter: what the ledger calls in. */
static uint64_t arrived(const struct stats_copy *c, enum stats_scope scope, unsigned index, const char *unit)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	if (scope == STATS_ENDPOINT)
		return input_sent(c, stats_copy_entry(c, scope, index)->parent, unit);
	for (unsigned i = 0; i < n; i++) {
		bool in = f[i].ledger == STATS_LEDGER_DATAGRAMS_IN || f[i].ledger == STATS_LEDGER_LINES_IN ||
			  f[i].ledger == STATS_LEDGER_PACKETS_IN || f[i].ledger == STATS_LEDGER_RECORDS_IN;
		if (in && strcmp(unit_of(f[i].name), unit) == 0)
			return stats_value(c, STATS_ALL, scope, index, f[i].index);
	}
	return 0;
}

static void scope_collect(const struct stats_copy *c, enum stats_scope scope, unsigned kind, struct losses *to)
{
	const struct stats_field *f;
	unsigned n = stats_fields(stats_copy_of(c), scope, &f);
	for (unsigned i = 0; i < stats_copy_entries(c, scope); i++) {
		for (unsigned k = 0; k < n; k++) {
			struct loss row = {&f[k], scope, i, 0, 0};
			if (f[k].kind != kind || !f[k].name[0])
				continue;
			row.value = stats_value(c, STATS_ALL, scope, i, f[k].index);
			if (row.value == 0)
				continue;
			row.of = arrived(c, scope, i, unit_of(f[k].name));
			loss_add(to, row);
		}
	}
}

static double share(const struct loss *row)
{
	return row->of ? (double)row->value / (double)row->of : 0;
}

static int by_value(const void *a, const void *b)
{
	const struct loss *x = a, *y = b;
	return x->value < y->value ? 1 : x->value > y->value ? -1 : 0;
}

static void percent(char *buf, size_t size, const struct loss *row)
{
	double p = 100 * share(row);
	if (row->of == 0)
		snprintf(buf, size, "-");
	else
		snprintf(buf, size, p >= 10 ? "%.0f %%" : p >= 0.01 ? "%.2f %%" : "< 0.01 %%", p);
}

static void rows_show(const struct stats_copy *c, const struct losses *losses, struct text *t)
{
	struct ctl_table table = {.columns = 5, .left = 3};
	char name[600], part[32];
	for (size_t i = 0; i < MIN(losses->n, (size_t)SHOWN_MAX); i++) {
		const struct loss *row = &losses->rows[i];
		const char *unit = unit_of(row->field->name);
		ctl_entry_name(c, row->scope, row->index, name, sizeof(name));
		percent(part, sizeof(part), row);
		ctl_cell(&table, "   ");
		ctl_cell(&table, "%s", name);
		ctl_cell(&table, "%s", row->field->name);
		ctl_cell(&table, "%llu %s", (unsigned long long)row->value, unit);
		ctl_cell(&table, "%s", part);
	}
	if (losses->n)
		ctl_table_print(&table, t);
	if (losses->n > SHOWN_MAX)
		text_add(t, "     … and %zu more rows; millracectl stats shows all.\n", losses->n - SHOWN_MAX);
}

static unsigned long long total(const struct stats_copy *c, enum stats_scope scope, const char *name)
{
	unsigned long long sum = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, scope); i++)
		sum += stats_named(c, STATS_ALL, scope, i, name);
	return sum;
}

/* From the card to the ring; only when packets are captured. */
static void packets_head(const struct stats_copy *c, struct text *t)
{
	unsigned long long passed = 0, filtered = total(c, STATS_INPUT, "filtered_packets");
	unsigned long long came = total(c, STATS_ENDPOINT, "interface_packets");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++)
		if (strcmp(stats_copy_entry(c, STATS_INPUT, i)->unit, "capture") == 0)
			passed += input_sent(c, i, "packets");
	if (passed + filtered + came == 0)
		return;
	text_add(t, "cards     %llu packets received by the interfaces, %llu missed by the cards\n", came,
		 total(c, STATS_ENDPOINT, "dropped_missed_packets") + total(c, STATS_ENDPOINT, "dropped_fifo_packets"));
	text_add(t, "filters   %llu packets let through", passed);
	if (filtered > 0) /* of a DPDK port; the kernel does not count what libpcap's filters leave out */
		text_add(t, ", %llu left out by the workers", filtered);
	text_add(t, "\n");
	text_add(t, "rings     %llu packets found the ring full, %llu were unread in rings of dead workers, %llu wait\n",
		 total(c, STATS_ENDPOINT, "dropped_ring_packets"), total(c, STATS_ENDPOINT, "dropped_dead_ring_packets"),
		 total(c, STATS_ENDPOINT, "ring_packets"));
}

static void kafka_head(const struct stats_copy *c, struct text *t)
{
	if (stats_copy_entries(c, STATS_KAFKA) == 0)
		return;
	text_add(t, "kafka     %llu messages wait, %llu in flight, %llu delivered\n",
		 total(c, STATS_KAFKA, "queued_messages"), total(c, STATS_KAFKA, "in_flight_messages"),
		 total(c, STATS_KAFKA, "delivered_messages"));
}

static void step_head(const struct stats_copy *c, enum stats_scope scope, struct text *t)
{
	if (scope == STATS_ENDPOINT)
		packets_head(c, t);
	if (scope == STATS_INPUT && total(c, scope, "received_packets"))
		text_add(t, "workers   %llu packets read, %llu handed on\n", total(c, scope, "received_packets"),
			 total(c, scope, "to_outputs_packets"));
	if (scope == STATS_ENDPOINT)
		text_add(t, "sockets   %llu datagrams dropped by the kernel, %llu bytes wait in their buffers\n",
			 total(c, scope, "dropped_datagrams"), total(c, scope, "queue_bytes"));
	else if (scope == STATS_INPUT)
		text_add(t, "inputs    %llu datagrams and %llu lines read, %llu lines handed to outputs\n",
			 total(c, scope, "received_datagrams"), total(c, scope, "received_lines"),
			 total(c, scope, "to_outputs_lines"));
	else if (scope == STATS_OUTPUT)
		text_add(t, "outputs   %llu records offered, %llu handed to backends, %llu held\n",
			 total(c, scope, "offered_records"), total(c, scope, "taken_records"),
			 total(c, scope, "held_records"));
	else
		kafka_head(c, t);
	if (scope == STATS_BACKEND)
		text_add(t, "backends  %llu records offered, %llu delivered, %llu queued, %llu in flight\n",
			 total(c, scope, "offered_records"), total(c, scope, "delivered_records"),
			 total(c, scope, "queued_records"), total(c, scope, "in_flight_records"));
}

static void advice(const struct stats_copy *c, const struct loss *worst, struct text *t)
{
	char name[600], part[32];
	if (!worst->field) {
		text_add(t, "\nNothing was lost.\n");
		return;
	}
	ctl_entry_name(c, worst->scope, worst->index, name, sizeof(name));
	percent(part, sizeof(part), worst);
	text_add(t, "\nThe worst: %s %s, %s (%s): %s\n", stats_scope_word(worst->scope), name, worst->field->name, part,
		 worst->field->help);
}

int ctl_drops(struct ctl *ctl, int argc, char **argv)
{
	static const enum stats_scope path[] = {STATS_ENDPOINT, STATS_INPUT, STATS_OUTPUT, STATS_BACKEND};
	struct losses losses = {0}, hints = {0};
	struct loss worst = {0};
	struct text t = {0};
	if (argc != 1)
		return ctl_usage("%s takes nothing behind it.", argv[0]);
	int rc = ctl_attach(ctl);
	if (rc != CTL_OK)
		return rc;
	for (size_t s = 0; s < ARRAY_LEN(path); s++) {
		losses.n = 0;
		scope_collect(ctl->copy, path[s], STATS_KIND_LOSS, &losses);
		scope_collect(ctl->copy, path[s], STATS_KIND_HINT, &hints);
		if (losses.n)
			qsort(losses.rows, losses.n, sizeof(losses.rows[0]), by_value);
		for (size_t i = 0; i < losses.n; i++)
			if (!worst.field || share(&losses.rows[i]) > share(&worst))
				worst = losses.rows[i];
		step_head(ctl->copy, path[s], &t);
		rows_show(ctl->copy, &losses, &t);
	}
	if (hints.n) {
		qsort(hints.rows, hints.n, sizeof(hints.rows[0]), by_value);
		text_add(&t, "perhaps lost as well, outside the account\n");
		rows_show(ctl->copy, &hints, &t);
	}
	advice(ctl->copy, &worst, &t);
	t.failed |= losses.failed || hints.failed;
	free(losses.rows);
	free(hints.rows);
	return ctl_print(&t);
}
