/* SPDX-License-Identifier: MIT
 *
 * The master's lines about numbers: what the kernel gave at the start, a line a second when asked for, the last
 * account at the end. Master only.
 */
#include "master.h"

#include <string.h>

typedef unsigned long long ull;

/* -- start ------------------------------------------------------------------------------------------------------- */

static void account_endpoint(const struct input *in, const struct endpoint *ep)
{
	char asked[32], got[32];
	uint64_t want = in->cf->receive_buffer;
	if (in->type->is_finite) {
		log_info("input \"%s\": reading %s", in->cf->name, ep->name);
		return;
	}
	if (in->type->is_packets) {
		log_info("input \"%s\": capturing on %s with %u handle%s%s%s%s%s", in->cf->name, ep->name, ep->n_fds,
			 ep->n_fds == 1 ? "" : "s", ep->receive_buffer_bytes ? ", ring " : "",
			 ep->receive_buffer_bytes ? text_format_bytes(got, sizeof got, ep->receive_buffer_bytes) : "",
			 in->cf->filter[0] ? ", filter " : "", in->cf->filter);
		return;
	}
	if (ep->receive_buffer_bytes == 0) {
		log_info("input \"%s\": listening on %s %s", in->cf->name, in->type->name, ep->name);
		return;
	}
	log_info("input \"%s\": listening on %s %s with %u socket%s, receive buffer %s each", in->cf->name,
		 in->type->name, ep->name, ep->n_fds, ep->n_fds == 1 ? "" : "s",
		 text_format_bytes(got, sizeof got, ep->receive_buffer_bytes));
	if (ep->receive_buffer_bytes < want)
		log_warn("input \"%s\": %s %s got a receive buffer of %s, asked for %s: set sysctl "
			 "net.core.rmem_max=%llu, or "
			 "start as root with CAP_NET_ADMIN",
			 in->cf->name, in->type->name, ep->name,
			 text_format_bytes(got, sizeof got, ep->receive_buffer_bytes),
			 text_format_bytes(asked, sizeof asked, want), (ull)want);
}

static void account_program(const struct master *m)
{
	const struct identity *id = &m->identity;
	struct text kept = {0};
	privileges_format(&kept, m->capabilities);
	log_info("millrace %s starts: %u worker%s%s as user %s, group %s; capabilities of the master: %s",
		 MILLRACE_VERSION, m->n_slots, m->n_slots == 1 ? "" : "s", m->cf->workers ? "" : " (one for each CPU)",
		 id->user, id->group, kept.s ? kept.s : "");
	text_free(&kept);
	if (id->uid == 0 && m->cf->user[0])
		log_warn(
		    "workers are root, without capabilities: any file of root's is theirs; let `user` name another");
	if (!m->cf->seccomp)
		log_warn("workers may make any system call: seccomp is false");
}

void account_start(struct master *m)
{
	char name[300];
	account_program(m);
	for (size_t i = 0; i < m->n_inputs; i++)
		for (unsigned k = 0; k < m->inputs[i].n_endpoints; k++)
			account_endpoint(&m->inputs[i], m->inputs[i].endpoints[k]);
	for (size_t i = 0; i < m->n_outputs; i++) {
		const struct output *out = &m->outputs[i];
		if (out->cf->type == CONF_OUTPUT_TYPE_KAFKA)
			log_info("output \"%s\": kafka, topic %s, format %s, overflow %s", out->cf->name,
				 output_backend_name(out, 0, name, sizeof name), conf_word(out->cf->format),
				 conf_word(out->overflow));
		else
			log_info("output \"%s\": %s, %u backend%s, overflow %s", out->cf->name, out->type->name,
				 out->n_backends, out->n_backends == 1 ? "" : "s", conf_word(out->overflow));
	}
}

/* -- each second ------------------------------------------------------------------------------------------------- */

struct read_total {
	uint64_t packets, bytes;
};

static struct read_total read_by(const struct master *m, unsigned slot)
{
	struct read_total total = {0, 0};
	for (size_t i = 0; i < m->n_inputs; i++) {
		const struct input *in = &m->inputs[i];
		struct stats_input st;
		stats_sum(m->copy, (int)slot, STATS_INPUT, in->index, &st);
		total.packets += in->type->is_stream    ? st.reads
				 : in->type->is_packets ? st.received_packets
							: st.received_datagrams;
		total.bytes += st.received_bytes;
	}
	return total;
}

void account_second(struct master *m)
{
	static struct read_total before[STATS_SLOTS_MAX];
	if (!m->cf->per_second_stats || stats_copy_take(m->copy, NULL) != 0)
		return;
	struct text t = {0};
	struct read_total all = {0, 0};
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct read_total now = read_by(m, i);
		uint64_t packets = now.packets - before[i].packets, bytes = now.bytes - before[i].bytes;
		all.packets += packets;
		all.bytes += bytes;
		before[i] = now;
		text_add(&t, "%s worker %u %llu packets %llu bytes", i ? "," : ":", i, (ull)packets, (ull)bytes);
	}
	log_info("last second: %llu packets, %llu bytes%s", (ull)all.packets, (ull)all.bytes, t.s ? t.s : "");
	text_free(&t);
}

/* -- end --------------------------------------------------------------------------------------------------------- */

static struct stats_input sum_input(const struct master *m, unsigned index)
{
	struct stats_input sum;
	stats_sum(m->copy, STATS_ALL, STATS_INPUT, index, &sum);
	return sum;
}

static void account_packets(const char *name, const struct stats_input *sum)
{
	log_info("input \"%s\": %llu packets received = %llu to outputs + %llu dropped at the end + %llu lost at death",
		 name, (ull)sum->received_packets, (ull)sum->to_outputs_packets, (ull)sum->dropped_shutdown_packets,
		 (ull)sum->lost_at_death_packets);
}

static void account_datagrams(const char *name, const struct stats_input *sum)
{
	log_info("input \"%s\": %llu datagrams received = %llu to outputs + %llu empty + %llu dropped + %llu lost at "
		 "death",
		 name, (ull)sum->received_datagrams, (ull)sum->to_outputs_datagrams, (ull)sum->empty_datagrams,
		 (ull)sum->dropped_shutdown_datagrams, (ull)sum->lost_at_death_datagrams);
}

static void account_lines(const char *name, const struct stats_input *sum)
{
	uint64_t dropped = sum->dropped_too_long_lines + sum->dropped_truncated_lines + sum->dropped_shutdown_lines;
	log_info("input \"%s\": %llu lines received = %llu to outputs + %llu invalid + %llu empty + %llu commands + "
		 "%llu dropped + %llu lost at death",
		 name, (ull)sum->received_lines, (ull)sum->to_outputs_lines, (ull)sum->invalid_lines,
		 (ull)sum->empty_lines, (ull)sum->command_lines, (ull)dropped, (ull)sum->lost_at_death_lines);
}

static uint64_t sum_endpoints(const struct master *m, unsigned input, const char *counter)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < stats_copy_entries(m->copy, STATS_ENDPOINT); i++)
		if (stats_copy_entry(m->copy, STATS_ENDPOINT, i)->parent == input)
			sum += stats_named(m->copy, STATS_ALL, STATS_ENDPOINT, i, counter);
	return sum;
}

/* What was lost before we could read it. */
static void account_endpoints(const struct master *m, const struct input *in, const struct stats_input *sum)
{
	bool is_packets = in->type->is_packets;
	uint64_t received = is_packets ? sum->received_packets : sum->received_datagrams;
	uint64_t full = sum_endpoints(m, in->index, is_packets ? "dropped_ring_packets" : "dropped_datagrams");
	uint64_t closed =
		sum_endpoints(m, in->index, is_packets ? "dropped_dead_ring_packets" : "dropped_closed_datagrams");
	log_line(full + closed > 0 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		 "input \"%s\": %llu %s came = %llu received + %llu dropped at full %s + %llu unread in closed ones",
		 in->cf->name, (ull)(received + full + closed), is_packets ? "packets" : "datagrams", (ull)received,
		 (ull)full, is_packets ? "rings" : "sockets", (ull)closed);
}

static void account_input(const struct master *m, const struct input *in)
{
	struct stats_input sum = sum_input(m, in->index);
	if (!in->type->is_stream && !in->type->is_finite)
		account_endpoints(m, in, &sum);
	if (in->type->is_packets)
		account_packets(in->cf->name, &sum);
	if (!in->type->is_packets && in->wants_items)
		account_datagrams(in->cf->name, &sum);
	if (in->wants_lines)
		account_lines(in->cf->name, &sum);
}

/* What a reload removed has no configuration any more: what it counted says what it was. */
static void account_removed_input(const struct master *m, unsigned index)
{
	const char *name = stats_copy_entry(m->copy, STATS_INPUT, index)->name;
	struct stats_input sum = sum_input(m, index);
	if (sum.received_packets)
		account_packets(name, &sum);
	if (sum.received_lines)
		account_lines(name, &sum);
	else if (sum.received_datagrams)
		account_datagrams(name, &sum);
}

/* All workers' accounts with one backend. */
static struct stats_backend sum_backend(const struct master *m, unsigned index)
{
	struct stats_backend sum;
	stats_sum(m->copy, STATS_ALL, STATS_BACKEND, index, &sum);
	return sum;
}

static uint64_t dropped_by(const struct stats_backend *be)
{
	return be->dropped_queue_full_records + be->dropped_memory_records + be->dropped_too_long_records +
	       be->dropped_link_type_records + be->dropped_shutdown_records;
}

/* What was dropped while it ran: the end of the program takes its counters along. */
static void say_why(const char *output, const struct stats_backend *be)
{
	const struct {
		const char *what;
		uint64_t n;
	} reasons[] = {
	    {"found a queue full", be->dropped_queue_full_records},
	    {"found memory_limit reached", be->dropped_memory_records},
	    {"were too long or empty", be->dropped_too_long_records},
	    {"had a link type other than Ethernet", be->dropped_link_type_records},
	};
	struct text t = {0};
	for (size_t i = 0; i < ARRAY_LEN(reasons); i++)
		if (reasons[i].n > 0)
			text_add(&t, "%s%llu %s", t.len ? ", " : "", (ull)reasons[i].n, reasons[i].what);
	if (t.s)
		log_warn("output \"%s\": of the dropped records %s", output, t.s);
	text_free(&t);
}

/* All workers' accounts with what the output itself held. */
static struct stats_output sum_output(const struct master *m, unsigned index)
{
	struct stats_output sum;
	stats_sum(m->copy, STATS_ALL, STATS_OUTPUT, index, &sum);
	return sum;
}

static void account_output(const struct master *m, unsigned index)
{
	const struct stats_entry *out = stats_copy_entry(m->copy, STATS_OUTPUT, index);
	static const uint64_t none[2];
	struct stats_backend all = {0};
	struct stats_output own = sum_output(m, index);
	for (unsigned i = 0; i < stats_copy_entries(m->copy, STATS_BACKEND); i++) {
		if (stats_copy_entry(m->copy, STATS_BACKEND, i)->parent != index)
			continue;
		struct stats_backend be = sum_backend(m, i);
		for (size_t k = 0; k < sizeof all / sizeof(uint64_t); k++)
			((uint64_t *)&all)[k] += ((uint64_t *)&be)[k];
		const uint64_t *before = i < m->n_left_before ? m->left_before[i] : none;
		uint64_t dropped = be.dropped_shutdown_records - before[0];
		uint64_t unconfirmed = be.unconfirmed_records - before[1];
		if (dropped + unconfirmed > 0)
			log_warn("output \"%s\" backend %s: left %llu undelivered, %llu sent and not confirmed",
				 out->name, stats_copy_entry(m->copy, STATS_BACKEND, i)->name, (ull)dropped,
				 (ull)unconfirmed);
	}
	say_why(out->name, &all);
	char untaken[64] = ""; /* by a worker that was killed as it took them over */
	if (all.passed_records > all.taken_over_records)
		snprintf(untaken, sizeof(untaken), " + %llu handed over and lost",
			 (ull)(all.passed_records - all.taken_over_records));
	log_info("output \"%s\": %llu offered = %llu delivered + %llu unconfirmed + %llu failed + %llu dropped + %llu "
		 "lost at death%s",
		 out->name, (ull)own.offered_records, (ull)all.delivered_records, (ull)all.unconfirmed_records,
		 (ull)all.failed_records, (ull)(dropped_by(&all) + own.dropped_shutdown_records),
		 (ull)(all.lost_at_death_records + own.lost_at_death_records), untaken);
}

void account_drain(struct master *m)
{
	if (stats_copy_take(m->copy, NULL) != 0)
		return;
	unsigned n = stats_copy_entries(m->copy, STATS_BACKEND);
	m->left_before = calloc(n, sizeof(*m->left_before));
	if (m->left_before == NULL)
		return;
	m->n_left_before = n;
	for (unsigned i = 0; i < n; i++) {
		struct stats_backend be = sum_backend(m, i);
		m->left_before[i][0] = be.dropped_shutdown_records;
		m->left_before[i][1] = be.unconfirmed_records;
	}
}

uint64_t account_lost(struct master *m)
{
	uint64_t lost = 0;
	if (stats_copy_take(m->copy, NULL) != 0)
		return 1;
	for (size_t i = 0; i < m->n_inputs; i++) {
		struct stats_input sum = sum_input(m, m->inputs[i].index);
		lost += sum.damaged_files + sum.dropped_shutdown_packets + sum.lost_at_death_packets +
			sum.lost_at_death_lines + sum.dropped_shutdown_lines;
	}
	for (unsigned i = 0; i < stats_copy_entries(m->copy, STATS_BACKEND); i++) {
		struct stats_backend be = sum_backend(m, i);
		lost += dropped_by(&be) + be.failed_records + be.unconfirmed_records + be.lost_at_death_records;
	}
	for (size_t i = 0; i < m->n_outputs; i++) {
		struct stats_output own = sum_output(m, m->outputs[i].index);
		lost += own.dropped_shutdown_records + own.lost_at_death_records;
	}
	return lost;
}

void account_last(struct master *m)
{
	struct text t = {0};
	if (stats_copy_take(m->copy, NULL) != 0)
		return;
	for (size_t i = 0; i < m->n_inputs; i++)
		account_input(m, &m->inputs[i]);
	for (unsigned i = 0; i < stats_copy_entries(m->copy, STATS_INPUT); i++)
		if (stats_copy_is_retired(m->copy, STATS_INPUT, i))
			account_removed_input(m, i);
	for (size_t i = 0; i < m->n_outputs; i++)
		account_output(m, m->outputs[i].index);
	for (unsigned i = 0; i < stats_copy_entries(m->copy, STATS_OUTPUT); i++)
		if (stats_copy_is_retired(m->copy, STATS_OUTPUT, i))
			account_output(m, i);
	for (unsigned i = 0; i < stats_copy_slots(m->copy); i++) {
		ull n = stats_named(m->copy, STATS_ALL, STATS_SLOT, i, "unbelievable_ends");
		if (n > 0)
			log_warn("worker %u's numbers were not to be believed when it ended (%llu time%s): what it did "
				 "just before is not in this account",
				 i, n, n == 1 ? "" : "s");
	}
	if (stats_check(m->copy, &t) > 0)
		log_error("the account does not balance: %s", t.s ? t.s : "");
	text_free(&t);
	free(m->left_before);
	m->left_before = NULL;
	m->n_left_before = 0;
}
