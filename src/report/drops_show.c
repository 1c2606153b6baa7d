/* SPDX-License-Identifier: MIT
 *
 * drops_show: the path as a table for people and as JSON, sums of its steps, the worst of them. Any process, pure.
 */
#include "drops_private.h"
#include <string.h>

enum { PLACES_SHOWN = 10 };

typedef unsigned long long ull;

/* -- steps -------------------------------------------------------------------------------------------------------- */

static bool step_exists(const struct report_drops *d, enum report_step step)
{
	const bool exists[REPORT_STEPS] = {
	    [REPORT_STEP_INTERFACE] = d->host.has_interfaces,
	    [REPORT_STEP_CARD] = d->has_capture,
	    [REPORT_STEP_FILTER] = d->has_capture,
	    [REPORT_STEP_RING] = d->has_capture,
	    [REPORT_STEP_HOST] = d->host.has_udp && d->has_sockets,
	    [REPORT_STEP_SOCKET] = d->has_sockets,
	    [REPORT_STEP_INVALID] = true,
	    [REPORT_STEP_WORKER] = true,
	    [REPORT_STEP_QUEUE] = d->has_statsite,
	    [REPORT_STEP_BACKEND] = d->has_statsite,
	    [REPORT_STEP_KAFKA_QUEUE] = d->has_kafka,
	    [REPORT_STEP_DELIVERY] = d->has_kafka,
	};
	return exists[step];
}

static bool step_sum(const struct report_drops *d, enum report_step step, const char *unit, struct report_step_sum *sum)
{
	*sum = (struct report_step_sum){.step = step, .unit = unit};
	bool found = false;
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *row = &d->drop[i];
		if (row->step != step || strcmp(row->unit, unit) != 0)
			continue;
		found |= row->came > 0 || row->lost > 0;
		sum->came = MAX(sum->came, row->came);
		sum->came_10s = MAX(sum->came_10s, row->came_10s);
		sum->lost += row->is_hint ? 0 : row->lost;
		sum->lost_10s += row->is_hint ? 0 : row->lost_10s;
	}
	return found;
}

static const char *first_unit(const struct report_drops *d, enum report_step step)
{
	for (unsigned i = 0; i < d->n; i++)
		if (d->drop[i].step == step)
			return d->drop[i].unit;
	return "packets";
}

unsigned report_drops_steps(const struct report_drops *d, struct report_step_sum to[STATS_PATH_MAX])
{
	static const char *const units[] = {"packets", "datagrams", "lines", "records", "connections", "times"};
	unsigned n = 0;
	for (enum report_step step = 0; step < REPORT_STEPS; step++) {
		unsigned before = n;
		if (!step_exists(d, step))
			continue;
		if (step == REPORT_STEP_FILTER) { /* what is behind the cards; it loses nothing */
			step_sum(d, REPORT_STEP_CARD, "packets", &to[n]);
			to[n] = (struct report_step_sum){.step = step,
							.unit = "packets",
							.came = to[n].came - MIN(to[n].lost, to[n].came),
							.came_10s = to[n].came_10s - MIN(to[n].lost_10s, to[n].came_10s)};
			n++;
			continue;
		}
		for (size_t i = 0; i < ARRAY_LEN(units); i++)
			n += step_sum(d, step, units[i], &to[n]);
		if (n == before) /* nothing came: shown all the same, so that the path is whole */
			step_sum(d, step, first_unit(d, step), &to[n++]);
	}
	return n;
}

static double sum_percent(const struct report_step_sum *sum, bool is_10s)
{
	return is_10s ? drops_percent(sum->lost_10s, sum->came_10s) : drops_percent(sum->lost, sum->came);
}

/* Whether the step is one to look at. Since the start only our own: what the host lost before us, nobody can change any
 * more. Of its last ten seconds the step "host" is not asked either: what of it is ours stands at the sockets. */
bool drops_is_asked(enum report_step step, bool is_10s)
{
	return is_10s ? step != REPORT_STEP_HOST : !drops_is_of_host(step);
}

static bool worst_of(const struct report_drops *d, bool is_10s, struct report_step_sum *worst)
{
	struct report_step_sum steps[STATS_PATH_MAX];
	unsigned n = report_drops_steps(d, steps);
	double most = 0;
	for (unsigned i = 0; i < n; i++) {
		double percent = sum_percent(&steps[i], is_10s);
		if (drops_is_asked(steps[i].step, is_10s) && percent > most) {
			most = percent;
			*worst = steps[i];
		}
	}
	return most > 0;
}

const struct report_drop *drops_most(const struct report_drops *d, const struct report_step_sum *step, bool is_10s)
{
	const struct report_drop *most = NULL;
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *r = &d->drop[i];
		uint64_t lost = is_10s ? r->lost_10s : r->lost;
		if (r->step != step->step || strcmp(r->unit, step->unit) != 0 || r->is_hint || lost == 0)
			continue;
		if (!most || lost > (is_10s ? most->lost_10s : most->lost))
			most = r;
	}
	return most;
}

bool report_drops_worst(const struct report_drops *d, struct report_step_sum *step, const struct report_drop **row,
		       bool *is_10s)
{
	*is_10s = d->window_us > 0 && worst_of(d, true, step);
	*row = NULL;
	if (!*is_10s && !worst_of(d, false, step))
		return false;
	*row = drops_most(d, step, *is_10s);
	return *row != NULL;
}

/* -- places ------------------------------------------------------------------------------------------------------- */

void report_drops_place(const struct report_drops *d, const struct stats_copy *c, const struct report_drop *row,
		       unsigned place, char *buf, size_t size)
{
	char name[600] = "";
	unsigned i = place - 1;
	if (place > 0 && row->scope == STATS_INTERFACE && i < d->host.n_interfaces) {
		snprintf(name, sizeof(name), "%s", d->host.interfaces[i].name);
	} else if (place > 0 && row->scope < STATS_MONITOR && i < stats_copy_entries(c, row->scope)) {
		const struct stats_entry *e = stats_copy_entry(c, row->scope, i);
		bool is_below = row->scope == STATS_BACKEND;
		bool is_input = row->scope == STATS_ENDPOINT;
		enum stats_scope above = is_below ? STATS_OUTPUT : STATS_INPUT;
		bool has_parent = (is_below || is_input) && e->parent < stats_copy_entries(c, above);
		snprintf(name, sizeof(name), "%s%s%s%s%s",
			 has_parent ? stats_copy_entry(c, above, e->parent)->name : "", has_parent ? "/" : "", e->name,
			 is_input ? " " : "", is_input ? e->unit : "");
	}
	text_escape(buf, size, name, strlen(name));
}

/* -- text ---------------------------------------------------------------------------------------------------------- */

static void percent_show(char *buf, size_t size, uint64_t lost, uint64_t came)
{
	double p = drops_percent(lost, came);
	snprintf(buf, size, lost == 0 ? "-" : p >= 10 ? "%.0f %%" : p >= 0.01 ? "%.2f %%" : "< 0.01 %%", p);
}

/* The last two columns of numbers only when they are known. */
static void line_show(const struct report_drops *d, const char *name, const char *unit, const char *came, const char *lost,
		      const char *share, const char *lost_10s, const char *share_10s, const char *place, struct text *t)
{
	text_add(t, "%-30s %-10s%13s%12s%9s", name, unit, came, lost, share);
	if (d->window_us)
		text_add(t, "%13s%9s", lost_10s, share_10s);
	text_add(t, "%s%s\n", place[0] ? "  " : "", place);
}

static void heading(const struct report_drops *d, struct text *t)
{
	char recent[32];
	snprintf(recent, sizeof(recent), "in last %llu s", (ull)(d->window_us + 500000) / 1000000);
	line_show(d, "step", "", "in", "lost", "share", recent, "share", "most of it at", t);
}

static void reasons_show(const struct report_drops *d, const struct stats_copy *c, const struct report_step_sum *sum,
			 struct text *t)
{
	char place[600], name[80], lost[32], lost_10s[32];
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *row = &d->drop[i];
		if (row->step != sum->step || strcmp(row->unit, sum->unit) != 0 || row->is_hint || row->lost == 0)
			continue;
		report_drops_place(d, c, row, row->place_10s ? row->place_10s : row->place, place, sizeof(place));
		snprintf(name, sizeof(name), "  %s", row->name);
		snprintf(lost, sizeof(lost), "%llu", (ull)row->lost);
		snprintf(lost_10s, sizeof(lost_10s), "%llu", (ull)row->lost_10s);
		line_show(d, name, row->unit, "", lost, "", lost_10s, "", place, t);
	}
}

/* What is perhaps no loss at all stands apart, with what it means. */
static void hints_show(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	char place[600];
	bool is_first = true;
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *row = &d->drop[i];
		if (!row->is_hint || row->lost == 0 || !step_exists(d, row->step))
			continue;
		report_drops_place(d, c, row, row->place_10s ? row->place_10s : row->place, place, sizeof(place));
		text_add(t, "%s  %s %llu %s%s%s%s: %s\n",
			 is_first ? "\nseen, and in no sum above: it need not be a loss\n" : "", row->name,
			 (ull)row->lost, row->unit, drops_is_of_host(row->step) ? " (since boot)" : "",
			 place[0] ? ", most at " : "", place, row->help);
		is_first = false;
	}
}

static void steps_show(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	struct report_step_sum steps[STATS_PATH_MAX];
	char came[32], lost[32], lost_10s[32], share[32], share_10s[32], name[64];
	unsigned n = report_drops_steps(d, steps);
	for (unsigned i = 0; i < n; i++) {
		const struct report_step_sum *s = &steps[i];
		percent_show(share, sizeof(share), s->lost, s->came);
		percent_show(share_10s, sizeof(share_10s), s->lost_10s, s->came_10s);
		snprintf(came, sizeof(came), "%llu", (ull)s->came);
		snprintf(name, sizeof(name), "%s%s", report_step_word(s->step),
			 drops_is_of_host(s->step) ? " (since boot)" : "");
		snprintf(lost, sizeof(lost), "%llu", (ull)s->lost);
		snprintf(lost_10s, sizeof(lost_10s), "%llu", (ull)s->lost_10s);
		line_show(d, name, s->unit, came, lost, share, lost_10s, share_10s, "", t);
		if (s->step == REPORT_STEP_FILTER && d->left_out_packets)
			text_add(t, "  left out %llu packets, as asked\n", (ull)d->left_out_packets);
		reasons_show(d, c, s, t);
	}
}

static uint64_t ours(const struct stats_copy *c)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++)
		sum += stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "dropped_datagrams");
	return sum;
}

static const struct net_udp_socket *socket_find(const struct net_host *h, uint64_t inode)
{
	for (unsigned i = 0; inode && i < h->n_sockets; i++)
		if (h->sockets[i].inode == inode)
			return &h->sockets[i];
	return NULL;
}

/* A socket of ours: what the master counted, and what /proc/net/udp says now. */
struct our_socket {
	const struct stats_entry *entry;
	const struct stats_entry *input;
	uint64_t inode, dropped, queue_bytes, got_bytes, asked_bytes, proc_dropped;
	bool is_in_proc;
};

static bool our_socket(const struct report_drops *d, const struct stats_copy *c, unsigned i, struct our_socket *s)
{
	*s = (struct our_socket){.entry = stats_copy_entry(c, STATS_ENDPOINT, i)};
	s->inode = stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "inode");
	s->dropped = stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "dropped_datagrams");
	s->queue_bytes = stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "queue_bytes");
	s->got_bytes = stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "receive_buffer_bytes");
	s->asked_bytes = stats_named(c, STATS_ALL, STATS_ENDPOINT, i, "asked_buffer_bytes");
	if (s->inode == 0 || s->entry->parent >= stats_copy_entries(c, STATS_INPUT))
		return false;
	s->input = stats_copy_entry(c, STATS_INPUT, s->entry->parent);
	const struct net_udp_socket *seen = socket_find(&d->host, s->inode);
	s->is_in_proc = seen != NULL;
	if (seen) {
		s->queue_bytes = seen->queue_bytes;
		s->proc_dropped = seen->dropped;
	}
	return true;
}

/* Those that dropped, then those that wait, then the others. */
static unsigned socket_rank(const struct our_socket *s)
{
	return s->dropped ? 0 : s->queue_bytes ? 1 : 2;
}

static void sockets_show(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	char bytes[32], got[32], asked[32], name[600];
	unsigned shown = 0, all = 0;
	struct our_socket s;
	for (unsigned rank = 0; rank < 3; rank++) {
		for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++) {
			if (!our_socket(d, c, i, &s) || socket_rank(&s) != rank)
				continue;
			if (all++ >= PLACES_SHOWN)
				continue;
			report_drops_place(d, c, &(struct report_drop){.scope = STATS_ENDPOINT}, i + 1, name,
					  sizeof(name));
			text_add(t, "%s  %s: %llu dropped, %s wait, buffer %s", shown++ ? "" : "\nsockets\n", name,
				 (ull)s.dropped, text_format_bytes(bytes, sizeof(bytes), s.queue_bytes),
				 text_format_bytes(got, sizeof(got), s.got_bytes));
			if (s.got_bytes < s.asked_bytes)
				text_add(t, " of %s asked", text_format_bytes(asked, sizeof(asked), s.asked_bytes));
			text_add(t, "\n");
		}
	}
	if (all > shown)
		text_add(t, "  … and %u more; millracectl drops --json has all\n", all - shown);
}

static void host_show(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	const struct net_udp_totals *u = &d->host.udp, *u6 = &d->host.udp6;
	if (!d->host.has_udp)
		return;
	text_add(t,
		 "\nhost, as netstat -anus: InDatagrams %llu, NoPorts %llu, InErrors %llu, RcvbufErrors %llu, "
		 "InCsumErrors %llu; "
		 "ours of these errors: %llu\n",
		 (ull)u->in_datagrams, (ull)u->no_ports, (ull)u->in_errors, (ull)u->rcvbuf_errors, (ull)u->csum_errors,
		 (ull)ours(c));
	if (u6->in_datagrams + u6->in_errors)
		text_add(
		    t,
		    "host, IPv6: InDatagrams %llu, NoPorts %llu, InErrors %llu, RcvbufErrors %llu, InCsumErrors %llu\n",
		    (ull)u6->in_datagrams, (ull)u6->no_ports, (ull)u6->in_errors, (ull)u6->rcvbuf_errors,
		    (ull)u6->csum_errors);
}

/* False: there is a worker of which nobody knows what it lost. */
static bool unbelievable_show(const struct stats_copy *c, struct text *t)
{
	bool is_known = true;
	for (unsigned i = 0; i < stats_copy_slots(c); i++) {
		ull n = stats_named(c, STATS_ALL, STATS_SLOT, i, "unbelievable_ends");
		if (n == 0)
			continue;
		text_add(t,
			 "%sworker %u's numbers were not to be believed when it ended (%llu time%s): what it lost then is "
			 "not known\n",
			 is_known ? "\n" : "", i, n, n == 1 ? "" : "s");
		is_known = false;
	}
	return is_known;
}

void report_drops_text(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	struct text advice = {0};
	heading(d, t);
	steps_show(d, c, t);
	if (!d->window_us)
		text_add(t,
			 "The last 10 s are not known: no monitor has run so long. --watch or --seconds N measures.\n");
	hints_show(d, c, t);
	sockets_show(d, c, t);
	host_show(d, c, t);
	report_drops_advice(d, c, &advice);
	bool is_known = unbelievable_show(c, t);
	if (advice.len || is_known)
		text_add(t, "\n%s\n", advice.len ? advice.s : "Nothing was lost.");
	t->failed |= advice.failed;
	text_free(&advice);
}

/* -- JSON -----------------------------------------------------------------------------------------------------------
 */

static void string_add(struct text *t, const char *key, const char *s)
{
	text_add(t, ",\"%s\":", key);
	text_add_json(t, s, strlen(s));
}

static void recent_json(const struct report_drops *d, uint64_t came_10s, uint64_t lost_10s, struct text *t)
{
	if (d->window_us)
		text_add(t, ",\"in_10s\":%llu,\"lost_10s\":%llu,\"percent_10s\":%.4f", (ull)came_10s, (ull)lost_10s,
			 drops_percent(lost_10s, came_10s));
	else
		text_add(t, ",\"in_10s\":null,\"lost_10s\":null,\"percent_10s\":null");
}

static void reasons_json(const struct report_drops *d, const struct stats_copy *c, const struct report_step_sum *sum,
			 struct text *t)
{
	char place[600];
	const char *comma = "";
	text_add(t, ",\"reasons\":[");
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *row = &d->drop[i];
		if (row->step != sum->step || strcmp(row->unit, sum->unit) != 0)
			continue;
		text_add(t, "%s{\"name\":", comma);
		text_add_json(t, row->name, strlen(row->name));
		text_add(t, ",\"is_hint\":%s,\"lost\":%llu,\"lost_10s\":", row->is_hint ? "true" : "false",
			 (ull)row->lost);
		text_add(t, d->window_us ? "%llu" : "null", (ull)row->lost_10s);
		report_drops_place(d, c, row, row->place_10s ? row->place_10s : row->place, place, sizeof(place));
		string_add(t, "most_at", place);
		text_add(t, "}");
		comma = ",";
	}
	text_add(t, "]");
}

static void steps_json(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	struct report_step_sum steps[STATS_PATH_MAX];
	unsigned n = report_drops_steps(d, steps);
	text_add(t, "\"steps\":[");
	for (unsigned i = 0; i < n; i++) {
		const struct report_step_sum *s = &steps[i];
		text_add(
		    t,
		    "%s\n{\"step\":\"%s\",\"unit\":\"%s\",\"since\":\"%s\",\"in\":%llu,\"lost\":%llu,\"percent\":%.4f",
		    i ? "," : "", report_step_word(s->step), s->unit, drops_is_of_host(s->step) ? "machine" : "start",
		    (ull)s->came, (ull)s->lost, drops_percent(s->lost, s->came));
		recent_json(d, s->came_10s, s->lost_10s, t);
		if (s->step == REPORT_STEP_FILTER)
			text_add(t, ",\"left_out\":%llu", (ull)d->left_out_packets);
		reasons_json(d, c, s, t);
		text_add(t, "}");
	}
	text_add(t, "\n]");
}

static void sockets_json(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	const char *comma = "";
	struct our_socket s;
	text_add(t, ",\n\"sockets\":[");
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_ENDPOINT); i++) {
		if (!our_socket(d, c, i, &s))
			continue;
		text_add(t,
			 "%s\n{\"inode\":%llu,\"dropped\":%llu,\"queue_bytes\":%llu,\"receive_buffer_bytes\":%llu,"
			 "\"asked_buffer_bytes\":%llu,\"proc_dropped\":",
			 comma, (ull)s.inode, (ull)s.dropped, (ull)s.queue_bytes, (ull)s.got_bytes, (ull)s.asked_bytes);
		text_add(t, s.is_in_proc ? "%llu" : "null", (ull)s.proc_dropped);
		string_add(t, "input", s.input->name);
		string_add(t, "endpoint", s.entry->name);
		string_add(t, "of", s.entry->unit);
		text_add(t, "}");
		comma = ",";
	}
	text_add(t, "]");
}

static void udp_json(const char *key, const struct net_udp_totals *u, struct text *t)
{
	text_add(t, ",\"%s\":{\"InDatagrams\":%llu,\"NoPorts\":%llu,\"InErrors\":%llu,\"RcvbufErrors\":%llu,", key,
		 (ull)u->in_datagrams, (ull)u->no_ports, (ull)u->in_errors, (ull)u->rcvbuf_errors);
	text_add(t, "\"InCsumErrors\":%llu,\"MemErrors\":%llu}", (ull)u->csum_errors, (ull)u->mem_errors);
}

static void host_json(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	text_add(t, ",\n\"host\":{\"ours_dropped\":%llu", (ull)ours(c));
	if (d->host.has_udp) {
		udp_json("udp", &d->host.udp, t);
		udp_json("udp6", &d->host.udp6, t);
	}
	text_add(t, "},\n\"interfaces\":[");
	for (unsigned i = 0; i < d->host.n_interfaces; i++) {
		const struct net_interface *n = &d->host.interfaces[i];
		text_add(t, "%s\n{\"name\":", i ? "," : "");
		text_add_json(t, n->name, strlen(n->name));
		text_add(
		    t,
		    ",\"rx_packets\":%llu,\"rx_missed\":%llu,\"rx_fifo\":%llu,\"rx_dropped\":%llu,\"rx_errors\":%llu}",
		    (ull)n->rx_packets, (ull)n->rx_missed, (ull)n->rx_fifo, (ull)n->rx_dropped, (ull)n->rx_errors);
	}
	text_add(t, "]");
}

static void worst_json(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	struct report_step_sum worst;
	struct text advice = {0};
	if (d->window_us && worst_of(d, true, &worst))
		text_add(t, ",\n\"worst_10s\":{\"step\":\"%s\",\"unit\":\"%s\",\"lost\":%llu,\"percent\":%.4f}",
			 report_step_word(worst.step), worst.unit, (ull)worst.lost_10s,
			 drops_percent(worst.lost_10s, worst.came_10s));
	else
		text_add(t, ",\n\"worst_10s\":null");
	report_drops_advice(d, c, &advice);
	text_add(t, ",\n\"advice\":");
	text_add_json(t, advice.s ? advice.s : "", advice.len);
	t->failed |= advice.failed;
	text_free(&advice);
}

void report_drops_json(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	text_add(t, "{\"window_us\":");
	text_add(t, d->window_us ? "%llu" : "null", (ull)d->window_us);
	text_add(t, ",\n");
	steps_json(d, c, t);
	sockets_json(d, c, t);
	host_json(d, c, t);
	worst_json(d, c, t);
	text_add(t, "}\n");
}
