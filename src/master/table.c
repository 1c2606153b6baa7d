/* SPDX-License-Identifier: MIT
 *
 * Fastcapa's table on standard output: packets from the card to Kafka, from the counter pages of all workers. Master
 * only.
 *
 *          in                  queued            out                    drops
 *   nic    seen by the device  -                 -                      by the device and its rings
 *   rx     read by workers     -                 handed to outputs      given up at an end, lost at a death
 *   tx     offered to Kafka    held back         taken for Kafka        no memory, too long, wrong link type
 *   kaf    taken               with librdkafka   reported as delivered  failed, unconfirmed, given up, lost at a death
 *
 * In each row but the first, in = queued + out + drops.
 */
#include "master.h"

#include <string.h>

typedef unsigned long long ull;

struct table_row {
	uint64_t in, queued, out, drops;
};

/* What is a loss is said by the rows of counter.def. */
static uint64_t endpoint_losses(const struct master *m, unsigned endpoint)
{
	const struct stats_field *fields;
	const struct stats *st = stats_copy_of(m->copy);
	unsigned n = stats_fields(st, STATS_ENDPOINT, &fields);
	uint64_t sum = 0;
	for (unsigned i = 0; i < n; i++)
		if (fields[i].kind == STATS_KIND_LOSS)
			sum += stats_value(m->copy, STATS_ALL, STATS_ENDPOINT, endpoint, fields[i].index);
	return sum;
}

static void add_input(const struct master *m, const struct input *in, struct table_row *nic, struct table_row *rx)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		for (unsigned k = 0; k < in->endpoints[i]->n_fds; k++) {
			unsigned endpoint = in->endpoints[i]->blocks[k];
			nic->in += stats_named(m->copy, STATS_ALL, STATS_ENDPOINT, endpoint, "interface_packets");
			nic->drops += endpoint_losses(m, endpoint);
		}
	struct stats_input st;
	stats_sum(m->copy, STATS_ALL, STATS_INPUT, in->index, &st);
	rx->in += st.received_packets;
	rx->out += st.to_outputs_packets;
	rx->drops += st.dropped_shutdown_packets + st.lost_at_death_packets;
}

static void add_output(const struct master *m, const struct output *out, struct table_row *tx, struct table_row *kaf)
{
	struct stats_output st;
	struct stats_backend be;
	stats_sum(m->copy, STATS_ALL, STATS_OUTPUT, out->index, &st);
	stats_sum(m->copy, STATS_ALL, STATS_BACKEND, out->blocks[0], &be);
	uint64_t refused = be.dropped_queue_full_records + be.dropped_memory_records + be.dropped_too_long_records +
			   be.dropped_link_type_records;
	tx->in += st.offered_records;
	tx->queued += st.held_records;
	tx->out += st.taken_records - refused;
	tx->drops += refused + st.dropped_shutdown_records + st.lost_at_death_records;
	kaf->in += be.offered_records - refused;
	kaf->queued += be.queued_records + be.in_flight_records;
	kaf->out += be.delivered_records;
	kaf->drops += be.unconfirmed_records + be.failed_records + be.dropped_shutdown_records + be.lost_at_death_records;
}

static void print_row(const char *name, const struct table_row *row)
{
	printf("%-5s %16llu %16llu %16llu %16llu\n", name, (ull)row->in, (ull)row->queued, (ull)row->out,
	       (ull)row->drops);
}

static void table_print(struct master *m)
{
	struct table_row nic = {0}, rx = {0}, tx = {0}, kaf = {0};
	if (stats_copy_take(m->copy, NULL) != 0)
		return;
	for (size_t i = 0; i < m->n_inputs; i++)
		add_input(m, &m->inputs[i], &nic, &rx);
	for (size_t i = 0; i < m->n_outputs; i++)
		if (m->outputs[i].cf->type == CONF_OUTPUT_TYPE_KAFKA && m->outputs[i].wants == OUTPUT_WANTS_ITEMS)
			add_output(m, &m->outputs[i], &tx, &kaf);
	printf("%-5s %16s %16s %16s %16s\n", "", "in", "queued", "out", "drops");
	printf("%-5s %16llu %16s %16s %16llu\n", "[nic]", (ull)nic.in, "-", "-", (ull)nic.drops);
	print_row("[rx]", &rx);
	print_row("[tx]", &tx);
	print_row("[kaf]", &kaf);
	fflush(stdout);
}

void table_second(struct master *m)
{
	uint64_t now_us = clock_us();
	if (m->cf->packet_table == 0 || now_us < m->table_us)
		return;
	/* the second's timer is late by a little, and must not be by more each time */
	m->table_us = m->table_us ? m->table_us + m->cf->packet_table : now_us + m->cf->packet_table - 500000;
	if (m->table_us < now_us)
		m->table_us = now_us + m->cf->packet_table;
	table_print(m);
}

void table_last(struct master *m)
{
	if (m->has_started && m->cf->packet_table)
		table_print(m);
}
