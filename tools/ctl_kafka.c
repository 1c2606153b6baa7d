/* SPDX-License-Identifier: MIT
 *
 * ctl_kafka: what "status" says of Kafka outputs: messages and brokers, a row for each output and worker.
 */
#include "ctl.h"
#include <string.h>

/* Each worker has a producer and connections of its own, so each has a row. */
static void broker_states(const struct stats_copy *c, int slot, unsigned output, char *buf, size_t size)
{
	unsigned up = 0, down = 0;
	struct text downs = {0};
	for (unsigned i = output * STATS_BROKERS_MAX; i < (output + 1) * STATS_BROKERS_MAX; i++) {
		if (i >= stats_copy_entries(c, STATS_BROKER) || !stats_block_exists(c, slot, STATS_BROKER, i))
			continue;
		uint64_t state = stats_named(c, slot, STATS_BROKER, i, "state");
		up += state == 2;
		if (state == 1)
			text_add(&downs, "%s %llu", down++ ? "," : "",
				 (unsigned long long)stats_named(c, slot, STATS_BROKER, i, "node"));
	}
	snprintf(buf, size, "%u up%s%s", up, down ? ", DOWN:" : "", downs.s ? downs.s : "");
	text_free(&downs);
}

void status_kafka(const struct stats_copy *c, struct text *t)
{
	static const char *const names[] = {"offered_messages",   "delivered_messages", "queued_messages",
					    "in_flight_messages", "failed_messages",    "offered_bytes",
					    "delivered_bytes"};
	struct ctl_table table = {.columns = 10, .left = 3};
	char name[300], brokers[200];
	bool some = false;
	ctl_heading(&table, "kafka|worker|brokers|messages|delivered|queued|in flight|failed|bytes|delivered");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_KAFKA); i++) {
		for (int slot = 0; slot < (int)stats_copy_slots(c); slot++) {
			if (!stats_block_exists(c, slot, STATS_KAFKA, i))
				continue;
			some = true;
			text_escape(name, sizeof(name), stats_copy_entry(c, STATS_KAFKA, i)->name,
				    strlen(stats_copy_entry(c, STATS_KAFKA, i)->name));
			broker_states(c, slot, i, brokers, sizeof(brokers));
			ctl_cell(&table, "%s", name);
			ctl_cell(&table, "%d", slot);
			ctl_cell(&table, "%s", brokers);
			for (size_t k = 0; k < ARRAY_LEN(names); k++)
				ctl_cell(&table, "%llu",
					 (unsigned long long)stats_named(c, slot, STATS_KAFKA, i, names[k]));
		}
	}
	struct text shown = {0};
	ctl_table_print(&table, &shown);
	if (some)
		text_add(t, "\n%s", shown.s ? shown.s : "");
	text_free(&shown);
}
