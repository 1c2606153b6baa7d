/* SPDX-License-Identifier: MIT
 *
 * ctl_status: "status", "stats" and "check". Reads one copy of the counter pages and computes everything from it.
 */
#include "ctl.h"
#include <report.h>
#include <string.h>
#include <time.h>

static unsigned long long sum(const struct stats_copy *c, enum stats_scope scope, unsigned index, const char *name)
{
	return stats_named(c, STATS_ALL, scope, index, name);
}

static const char *since(char *buf, size_t size, uint64_t from_us, uint64_t now_us)
{
	if (from_us == 0 || from_us > now_us)
		return "-";
	uint64_t us = now_us - from_us, unit = us < 1000000 ? 1000 : 1000000;
	return text_format_time(buf, size, us / unit * unit);
}

static void status_head(const struct ctl *ctl, uint64_t now_us, struct text *t)
{
	char buf[32], shown[160];
	unsigned slots = 0, ready = 0;
	for (unsigned slot = 0; slot < stats_copy_slots(ctl->copy); slot++) {
		slots += !stats_copy_is_retired(ctl->copy, STATS_SLOT, slot);
		ready += stats_slot_is_ready(ctl->copy, slot);
	}
	text_add(t, "millrace %s, pid %lld, up %s, %u of %u workers ready\n",
		 text_escape(shown, sizeof(shown), ctl->version, strlen(ctl->version)), (long long)ctl->pid,
		 since(buf, sizeof(buf), sum(ctl->copy, STATS_MASTER, 0, "started_us"), now_us), ready, slots);
	text_add(t, "configuration %012llx, loaded %s ago%s%s\n\n", sum(ctl->copy, STATS_MASTER, 0, "config_digest"),
		 since(buf, sizeof(buf), sum(ctl->copy, STATS_MASTER, 0, "loaded_us"), now_us),
		 sum(ctl->copy, STATS_MASTER, 0, "reloading") ? "; a reload is under way" : "",
		 sum(ctl->copy, STATS_MASTER, 0, "reload_failed") ? "; the last reload failed, the log says why" : "");
}

static void status_workers(const struct stats_copy *c, uint64_t now_us, struct text *t)
{
	struct ctl_table table = {.columns = 8, .left = 2};
	char buf[32], memory[32];
	ctl_heading(&table, ctl_reads_packets(c) ? "worker|state|pid|ready for|starts|deaths|packets|memory"
						 : "worker|state|pid|ready for|starts|deaths|datagrams|memory");
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++) {
		uint64_t received = 0;
		if (stats_copy_is_retired(c, STATS_SLOT, slot))
			continue;
		for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++)
			received += ctl_received(c, (int)slot, i);
		ctl_cell(&table, "%u", slot);
		ctl_cell(&table, "%s%s", stats_slot_state_word(sum(c, STATS_SLOT, slot, "state")),
			 sum(c, STATS_SLOT, slot, "lent") ? ", lent" : "");
		ctl_cell(&table, "%llu", sum(c, STATS_SLOT, slot, "pid"));
		ctl_cell(&table, "%s", since(buf, sizeof(buf), sum(c, STATS_SLOT, slot, "ready_us"), now_us));
		ctl_cell(&table, "%llu", sum(c, STATS_SLOT, slot, "starts"));
		ctl_cell(&table, "%llu", sum(c, STATS_SLOT, slot, "deaths"));
		ctl_cell(&table, "%llu", (unsigned long long)received);
		ctl_cell(&table, "%s",
			 text_format_bytes(memory, sizeof(memory),
					   stats_named(c, (int)slot, STATS_WORKER, 0, "memory_bytes")));
	}
	ctl_table_print(&table, t);
}

static unsigned long long kernel_drops(const struct stats_copy *c, unsigned input)
{
	unsigned long long drops = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++)
		if (stats_copy_entry(c, STATS_ENDPOINT, i)->parent == input)
			drops += ctl_lost(c, STATS_ALL, STATS_ENDPOINT, i);
	return drops;
}

static void status_inputs(const struct stats_copy *c, struct text *t)
{
	static const char *const names[] = {"received_lines", "received_bytes", "invalid_lines"};
	struct ctl_table table = {.columns = 9, .left = 2};
	char name[300];
	ctl_heading(&table, ctl_reads_packets(c)
				? "input|type|packets|lines|bytes|invalid|lost|kernel drops|connections"
				: "input|type|datagrams|lines|bytes|invalid|lost|kernel drops|connections");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++) {
		if (stats_copy_is_retired(c, STATS_INPUT, i))
			continue;
		ctl_entry_name(c, STATS_INPUT, i, name, sizeof(name));
		ctl_cell(&table, "%s", name);
		ctl_cell(&table, "%s%s", stats_copy_entry(c, STATS_INPUT, i)->unit,
			 sum(c, STATS_INPUT, i, "held") ? ", held" : "");
		ctl_cell(&table, "%llu", (unsigned long long)ctl_received(c, STATS_ALL, i));
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			ctl_cell(&table, "%llu", sum(c, STATS_INPUT, i, names[k]));
		uint64_t lost = ctl_lost(c, STATS_ALL, STATS_INPUT, i) - sum(c, STATS_INPUT, i, "invalid_lines");
		ctl_cell(&table, "%llu", (unsigned long long)lost);
		ctl_cell(&table, "%llu", kernel_drops(c, i));
		ctl_cell(&table, "%llu", sum(c, STATS_INPUT, i, "open_connections"));
	}
	text_add(t, "\n");
	ctl_table_print(&table, t);
}

/* Removed by a reload, and still delivering what it holds. */
static bool is_busy(const struct stats_copy *c, unsigned i)
{
	return stats_named(c, STATS_ALL, STATS_BACKEND, i, "queued_records") +
		   stats_named(c, STATS_ALL, STATS_BACKEND, i, "in_flight_records") >
	       0;
}

static bool is_output_busy(const struct stats_copy *c, unsigned output)
{
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_BACKEND); i++)
		if (stats_copy_entry(c, STATS_BACKEND, i)->parent == output && is_busy(c, i))
			return true;
	return sum(c, STATS_OUTPUT, output, "held_records") > 0;
}

static void status_outputs(const struct stats_copy *c, struct text *t)
{
	struct ctl_table table = {.columns = 6, .left = 2};
	char name[300], memory[32];
	ctl_heading(&table, "output|records|offered|held|lost|memory");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_OUTPUT); i++) {
		if (stats_copy_is_retired(c, STATS_OUTPUT, i) && !is_output_busy(c, i))
			continue;
		ctl_entry_name(c, STATS_OUTPUT, i, name, sizeof(name));
		ctl_cell(&table, "%s", name);
		ctl_cell(&table, "%s", stats_copy_entry(c, STATS_OUTPUT, i)->unit);
		ctl_cell(&table, "%llu", sum(c, STATS_OUTPUT, i, "offered_records"));
		ctl_cell(&table, "%llu", sum(c, STATS_OUTPUT, i, "held_records"));
		ctl_cell(&table, "%llu", (unsigned long long)ctl_lost(c, STATS_ALL, STATS_OUTPUT, i));
		text_format_bytes(memory, sizeof(memory), sum(c, STATS_OUTPUT, i, "memory_bytes"));
		ctl_cell(&table, "%s", memory);
	}
	text_add(t, "\n");
	ctl_table_print(&table, t);
}

static void status_backends(const struct stats_copy *c, struct text *t)
{
	static const char *const names[] = {"offered_records", "delivered_records", "queued_records",
					    "in_flight_records"};
	struct ctl_table table = {.columns = 8, .left = 3};
	char name[600];
	unsigned ready = 0;
	for (unsigned slot = 0; slot < stats_copy_slots(c); slot++)
		ready += stats_slot_is_ready(c, slot);
	ctl_heading(&table, "backend|by|up in|offered|delivered|queued|in flight|lost");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_BACKEND); i++) {
		unsigned ups = stats_backend_ups(c, i);
		if (stats_copy_is_retired(c, STATS_BACKEND, i) && !is_busy(c, i))
			continue;
		ctl_entry_name(c, STATS_BACKEND, i, name, sizeof(name));
		ctl_cell(&table, "%s", name);
		ctl_cell(&table, "%s", stats_copy_entry(c, STATS_BACKEND, i)->unit);
		if (ups == 0)
			ctl_cell(&table, "DOWN");
		else
			ctl_cell(&table, "%u of %u", ups, ready);
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			ctl_cell(&table, "%llu", sum(c, STATS_BACKEND, i, names[k]));
		ctl_cell(&table, "%llu", (unsigned long long)ctl_lost(c, STATS_ALL, STATS_BACKEND, i));
	}
	text_add(t, "\n");
	ctl_table_print(&table, t);
}

int ctl_status(struct ctl *ctl, int argc, char **argv)
{
	bool json;
	struct text t = {0};
	if (!ctl_flag(argc, argv, "--json", &json, NULL))
		return CTL_NOT_ASKED;
	int rc = ctl_attach(ctl);
	if (rc != CTL_OK)
		return rc;
	struct report_program program = {ctl->version, ctl->pid, clock_real_us()};
	if (json) {
		report_status_json(ctl->copy, &program, &t);
		return ctl_print(&t);
	}
	status_head(ctl, program.now_us, &t);
	status_workers(ctl->copy, program.now_us, &t);
	status_inputs(ctl->copy, &t);
	status_outputs(ctl->copy, &t);
	status_backends(ctl->copy, &t);
	status_kafka(ctl->copy, &t);
	return ctl_print(&t);
}

/* "received_lines{worker=0 input=metrics} 12" */
static void stats_line(void *arg, const struct stats_row *row)
{
	struct text *t = arg;
	char name[300];
	const char *space = "";
	text_add(t, "%s{", row->field->name);
	if (row->worker != -1) {
		text_add(t, "worker=%d", row->worker);
		space = " ";
	}
	if (row->parent) {
		text_escape(name, sizeof(name), row->parent->name, strlen(row->parent->name));
		text_add(t, "%s%s=%s", space, stats_scope_is_below_output(row->field->scope) ? "output" : "input", name);
		space = " ";
	}
	if (row->field->scope != STATS_WORKER && row->field->scope != STATS_MASTER &&
	    row->field->scope != STATS_MONITOR) {
		text_escape(name, sizeof(name), row->entry->name, strlen(row->entry->name));
		text_add(t, "%s%s=%s", space, stats_scope_word(row->field->scope), name);
	}
	text_add(t, "} %llu\n", (unsigned long long)row->value);
}

int ctl_stats(struct ctl *ctl, int argc, char **argv)
{
	bool json;
	struct text t = {0};
	if (!ctl_flag(argc, argv, "--json", &json, NULL))
		return CTL_NOT_ASKED;
	int rc = ctl_attach(ctl);
	if (rc != CTL_OK)
		return rc;
	if (json)
		report_json(ctl->copy, &t);
	else
		stats_each_row(ctl->copy, stats_line, &t);
	return ctl_print(&t);
}

int ctl_check(struct ctl *ctl, int argc, char **argv)
{
	bool repeat;
	uint64_t n = 1;
	unsigned wrong = 0;
	struct text t = {0};
	if (!ctl_flag(argc, argv, "--repeat", &repeat, &n))
		return CTL_NOT_ASKED;
	int rc = ctl_attach(ctl);
	for (uint64_t i = 0; i < n && rc == CTL_OK && wrong == 0; i++) {
		if (i > 0) {
			nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
			rc = ctl_take(ctl, ctl->copy);
		}
		wrong = rc == CTL_OK ? stats_check(ctl->copy, &t) : 0;
	}
	if (rc != CTL_OK || wrong) {
		int printed = ctl_print(&t);
		return rc != CTL_OK ? rc : printed != CTL_OK ? printed : CTL_BAD;
	}
	text_add(&t, "The ledger balances: %u workers, %u inputs, %u outputs, %u backends, %llu time%s.\n",
		 stats_copy_slots(ctl->copy), stats_copy_entries(ctl->copy, STATS_INPUT),
		 stats_copy_entries(ctl->copy, STATS_OUTPUT), stats_copy_entries(ctl->copy, STATS_BACKEND),
		 (unsigned long long)n, n == 1 ? "" : "s");
	return ctl_print(&t);
}
