/* SPDX-License-Identifier: MIT
 *
 * drops_advice: one sentence for each step of the path that loses, the worst first: what to do about it, from numbers that
 * are known. Any process, pure. Where nothing better is known, the counter's own row in counter.def says what to do.
 */
#include "drops_private.h"
#include <string.h>

enum {
	BUSY_PERCENT = 90,   /* of one CPU: such a worker cannot read faster */
	SKEWED_PERCENT = 80, /* of an input: flows that hash to one socket, not chance */
};

typedef unsigned long long ull;

struct advice {
	const struct report_drops *d;
	const struct stats_copy *c;
	const struct report_drop *row;
	bool is_10s;
	unsigned place; /* 1-based; 0: none */
	char at[600];
	struct text *t;
};

static uint64_t value(const struct advice *a, enum stats_scope scope, unsigned index, const char *name)
{
	return stats_named(a->c, STATS_ALL, scope, index, name);
}

static bool has_name(const struct advice *a, const char *part)
{
	return strstr(a->row->name, part) != NULL;
}

/* What the row itself says. */
static void by_row(const struct advice *a)
{
	text_add(a->t, "%s%s: %s", a->at, a->at[0] ? "" : report_step_word(a->row->step), a->row->help);
}

/* -- sockets ------------------------------------------------------------------------------------------------------- */

/* The full output that holds the input back, if that is why its sockets fill. */
static bool by_held(const struct advice *a, unsigned input)
{
	const struct stats_entry *in = stats_copy_entry(a->c, STATS_INPUT, input);
	if (value(a, STATS_INPUT, input, "held") == 0)
		return false;
	for (unsigned i = 0; i < MIN(stats_copy_entries(a->c, STATS_OUTPUT), 64u); i++) {
		if (!(in->feeds >> i & 1) || value(a, STATS_OUTPUT, i, "held_records") == 0)
			continue;
		text_add(a->t,
			 "output %s is full and holds input %s back (overflow: block), so its sockets fill: see its "
			 "backends "
			 "in millracectl status; overflow: drop_oldest would drop there instead",
			 stats_copy_entry(a->c, STATS_OUTPUT, i)->name, in->name);
		return true;
	}
	return false;
}

static bool by_buffer(const struct advice *a, unsigned block)
{
	char asked_text[32], got_text[32];
	uint64_t asked = value(a, STATS_ENDPOINT, block, "asked_buffer_bytes");
	uint64_t got = value(a, STATS_ENDPOINT, block, "receive_buffer_bytes");
	if (got >= asked)
		return false;
	text_add(a->t, "raise net.core.rmem_max to %llu: asked %s, got %s", (ull)asked,
		 text_format_bytes(asked_text, sizeof(asked_text), asked),
		 text_format_bytes(got_text, sizeof(got_text), got));
	return true;
}

/* The slot that reads most of an input, and its share; 0 when all of them read nothing. */
static unsigned busiest(const struct advice *a, unsigned input, unsigned *slot)
{
	uint64_t all = 0, most = 0;
	for (unsigned i = 0; i < a->d->n_slots; i++) {
		uint64_t n = drops_received(a->d, input, i);
		all += n;
		if (n > most) {
			most = n;
			*slot = i;
		}
	}
	return all ? (unsigned)(most * 100 / all) : 0;
}

/* Which sender sent how much is not counted; that one socket of a group gets nearly all shows that few senders do. */
static bool by_skew(const struct advice *a, unsigned input, const char *type)
{
	unsigned slot = 0, share = busiest(a, input, &slot), fair = 100 / a->d->n_slots;
	if (a->d->n_slots < 2 || share < MAX((unsigned)SKEWED_PERCENT, fair + fair / 2))
		return false;
	const char *name = stats_copy_entry(a->c, STATS_INPUT, input)->name;
	if (strcmp(type, "capture") == 0)
		text_add(a->t,
			 "worker %u reads %u %% of input %s: few flows carry nearly all; more workers will not help, a "
			 "narrower "
			 "filter or a larger ring_size will",
			 slot, share, name);
	else
		text_add(a->t,
			 "worker %u reads %u %% of input %s, so few senders send nearly all of it: spread: packet",
			 slot, share, name);
	return true;
}

/* The slot whose worker reads this socket or ring; -1: all do. */
static int slot_of(const struct advice *a, unsigned block)
{
	unsigned slot;
	const struct stats_entry *e = stats_copy_entry(a->c, STATS_ENDPOINT, block);
	return sscanf(e->unit, "slot %u", &slot) == 1 && slot < a->d->n_slots ? (int)slot : -1;
}

/* A worker that does not run cannot read. */
static bool by_absence(const struct advice *a, int only)
{
	for (unsigned slot = 0; slot < a->d->n_slots; slot++) {
		uint64_t state = value(a, STATS_SLOT, slot, "state");
		if (only != -1 && (unsigned)only != slot)
			continue;
		if (a->d->is_stopped[slot])
			text_add(a->t, "worker %u (pid %llu) is stopped by a signal and reads nothing: kill -CONT %llu",
				 slot, (ull)value(a, STATS_SLOT, slot, "pid"), (ull)value(a, STATS_SLOT, slot, "pid"));
		else if (value(a, STATS_SLOT, slot, "pid") == 0)
			text_add(a->t, "worker %u is %s: the log says why it does not run", slot,
				 stats_slot_state_word(state));
		else
			continue;
		return true;
	}
	return false;
}

static bool by_cpu(const struct advice *a, int only, const char *type)
{
	int most = -1;
	for (unsigned slot = 0; slot < a->d->n_slots; slot++)
		if ((only == -1 || (unsigned)only == slot) &&
		    (most == -1 || a->d->cpu_peak_percent[slot] > a->d->cpu_peak_percent[most]))
			most = (int)slot;
	if (most == -1 || a->d->cpu_peak_percent[most] < BUSY_PERCENT)
		return false;
	text_add(a->t, "worker %d is at %d %% CPU: add workers%s", most, a->d->cpu_peak_percent[most],
		 strcmp(type, "capture") == 0 ? ", or narrow the filter" : "");
	return true;
}

static void socket_advice(const struct advice *a)
{
	unsigned block = a->place - 1, input = stats_copy_entry(a->c, STATS_ENDPOINT, block)->parent;
	int slot = slot_of(a, block);
	char bytes[32];
	if (has_name(a, "dropped_closed") || input >= stats_copy_entries(a->c, STATS_INPUT)) {
		by_row(a);
		return;
	}
	const struct stats_entry *in = stats_copy_entry(a->c, STATS_INPUT, input);
	/* with CPU to spare, a larger buffer is the surer cure than another spread */
	bool is_idle = slot != -1 && a->d->cpu_peak_percent[slot] >= 0 && a->d->cpu_peak_percent[slot] < BUSY_PERCENT;
	if (by_absence(a, slot) || by_held(a, input) || (!is_idle && by_skew(a, input, in->unit)) ||
	    by_cpu(a, slot, in->unit) || by_buffer(a, block) || by_skew(a, input, in->unit))
		return;
	text_format_bytes(bytes, sizeof(bytes), value(a, STATS_ENDPOINT, block, "receive_buffer_bytes"));
	if (is_idle)
		text_add(a->t,
			 "bursts overrun the receive_buffer of %s of socket %s (its worker used %d %% of a CPU at "
			 "most): raise "
			 "receive_buffer",
			 bytes, a->at, a->d->cpu_peak_percent[slot]);
	else
		text_add(a->t,
			 "the receive_buffer of %s of socket %s is too small for what comes: raise receive_buffer, or "
			 "add workers",
			 bytes, a->at);
}

/* -- cards and rings ----------------------------------------------------------------------------------------------- */

static void interface_advice(const struct advice *a)
{
	text_add(a->t,
		 "interface %s lost %llu packets before the kernel had them (%s): larger rings (ethtool -g %s shows, "
		 "ethtool -G "
		 "%s rx N sets), or more queues (ethtool -L)",
		 a->at, (ull)(a->is_10s ? a->row->lost_10s : a->row->lost), a->row->name, a->at, a->at);
}

static void ring_advice(const struct advice *a)
{
	unsigned block = a->place - 1, input = stats_copy_entry(a->c, STATS_ENDPOINT, block)->parent;
	char bytes[32];
	if (!has_name(a, "dropped_ring") || input >= stats_copy_entries(a->c, STATS_INPUT)) {
		by_row(a);
		return;
	}
	int slot = slot_of(a, block);
	if (by_absence(a, slot) || by_held(a, input) || by_cpu(a, slot, "capture") || by_skew(a, input, "capture"))
		return;
	uint64_t ring = value(a, STATS_ENDPOINT, block, "receive_buffer_bytes");
	if (ring)
		text_add(a->t, "ring %s of %s is too small for the bursts: raise ring_size", a->at,
			 text_format_bytes(bytes, sizeof(bytes), ring));
	else
		by_row(a);
}

/* -- outputs ------------------------------------------------------------------------------------------------------- */

static void backend_down(const struct advice *a, uint64_t since_us)
{
	char ago[32];
	uint64_t us = a->d->now_real_us > since_us ? a->d->now_real_us - since_us : 0;
	text_add(a->t, "backend %s is down for %s: look at it, or at the way to it", a->at,
		 text_format_time(ago, sizeof(ago), us));
}

static void queue_advice(const struct advice *a)
{
	if (a->row->scope != STATS_BACKEND || !(has_name(a, "queue_full") || has_name(a, "memory"))) {
		by_row(a);
		return;
	}
	uint64_t down_us = stats_backend_down_us(a->c, a->place - 1);
	if (down_us) {
		backend_down(a, down_us);
		return;
	}
	text_add(a->t,
		 "backend %s is connected and too slow (%llu records wait for it): give it more CPU, spread its keys "
		 "over more "
		 "backends%s",
		 a->at,
		 (ull)(value(a, STATS_BACKEND, a->place - 1, "queued_records") +
		       value(a, STATS_BACKEND, a->place - 1, "in_flight_records")),
		 has_name(a, "memory") ? ", or raise memory_limit" : ", or raise queue_limit for bursts");
}

static void kafka_queue_advice(const struct advice *a)
{
	if (a->row->scope != STATS_BACKEND || !has_name(a, "memory")) {
		by_row(a);
		return;
	}
	uint64_t down_us = stats_backend_down_us(a->c, a->place - 1);
	char ago[32];
	if (down_us && stats_backend_ups(a->c, a->place - 1) == 0)
		text_add(
		    a->t, "no broker of %s can be reached for %s: look at the cluster, or at the way to it", a->at,
		    text_format_time(ago, sizeof(ago), a->d->now_real_us > down_us ? a->d->now_real_us - down_us : 0));
	else
		text_add(
		    a->t,
		    "the queue of Kafka output %s is full: its brokers take less than comes (%llu records wait): more "
		    "partitions or brokers, compression, or a larger memory_limit for bursts",
		    a->at,
		    (ull)(value(a, STATS_BACKEND, a->place - 1, "queued_records") +
			  value(a, STATS_BACKEND, a->place - 1, "in_flight_records")));
}

static void backend_advice(const struct advice *a)
{
	uint64_t down_us = a->row->scope == STATS_BACKEND ? stats_backend_down_us(a->c, a->place - 1) : 0;
	if (has_name(a, "lost_at_death"))
		text_add(a->t, "workers died with records for %s in hand: the log says which and why", a->at);
	else if (has_name(a, "shutdown"))
		text_add(a->t, "%s had records queued when its worker ended: raise drain_timeout", a->at);
	else if (down_us && a->row->step == REPORT_STEP_BACKEND)
		backend_down(a, down_us);
	else
		by_row(a);
}

static void worker_advice(const struct advice *a)
{
	uint64_t deaths = 0;
	for (unsigned slot = 0; slot < a->d->n_slots; slot++)
		deaths += value(a, STATS_SLOT, slot, "deaths");
	if (has_name(a, "lost_at_death"))
		text_add(a->t, "workers ended unasked %llu time%s since the start: the log says which and why",
			 (ull)deaths, deaths == 1 ? "" : "s");
	else
		by_row(a);
}

static void advise(const struct report_drops *d, const struct stats_copy *c, const struct report_drop *row, bool is_10s,
		   struct text *t)
{
	struct advice a = {.d = d, .c = c, .row = row, .is_10s = is_10s, .t = t};
	a.place = is_10s && row->place_10s ? row->place_10s : row->place;
	report_drops_place(d, c, row, a.place, a.at, sizeof(a.at));
	/* a place that another version's monitor named may not exist here */
	bool has_place = a.place > 0 && (row->scope >= STATS_MONITOR || a.place <= stats_copy_entries(c, row->scope));
	void (*const by_step[REPORT_STEPS])(const struct advice *a) = {
	    [REPORT_STEP_INTERFACE] = interface_advice,
	    [REPORT_STEP_CARD] = by_row,
	    [REPORT_STEP_FILTER] = by_row,
	    [REPORT_STEP_RING] = ring_advice,
	    [REPORT_STEP_HOST] = by_row,
	    [REPORT_STEP_SOCKET] = socket_advice,
	    [REPORT_STEP_INVALID] = by_row,
	    [REPORT_STEP_WORKER] = worker_advice,
	    [REPORT_STEP_QUEUE] = queue_advice,
	    [REPORT_STEP_BACKEND] = backend_advice,
	    [REPORT_STEP_KAFKA_QUEUE] = kafka_queue_advice,
	    [REPORT_STEP_DELIVERY] = backend_advice,
	};
	(has_place ? by_step[row->step] : by_row)(&a);
}

void report_drops_row_advice(const struct report_drops *d, const struct stats_copy *c, const struct report_drop *row,
			    struct text *t)
{
	advise(d, c, row, d->window_us > 0 && row->lost_10s > 0, t);
}

static void step_advice(const struct report_drops *d, const struct stats_copy *c, const char *begin,
			const struct report_step_sum *step, bool is_10s, struct text *t)
{
	uint64_t lost = is_10s ? step->lost_10s : step->lost;
	text_add(t, "%s: %s lost %.2f %% (%llu %s) %s: ", begin, report_step_word(step->step),
		 is_10s ? drops_percent(lost, step->came_10s) : drops_percent(lost, step->came), (ull)lost, step->unit,
		 is_10s ? "in the last seconds" : "since the start");
	advise(d, c, drops_most(d, step, is_10s), is_10s, t);
}

/* What the peers' kernels had acknowledged when connections were lost. */
static void risk_advice(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	char at[600];
	for (unsigned i = 0; i < d->n; i++) {
		const struct report_drop *row = &d->drop[i];
		bool is_told = strcmp(row->name, "at_risk_records") == 0 ||
			       strcmp(row->name, "lost_at_death_connections") == 0;
		if (!row->is_hint || row->lost == 0 || !is_told)
			continue;
		report_drops_place(d, c, row, row->place_10s ? row->place_10s : row->place, at, sizeof(at));
		if (row->scope == STATS_BACKEND)
			text_add(t,
				 "%sAt most %llu %s may be lost: a connection to %s was lost after its kernel had "
				 "acknowledged them, and whether they were read is not known",
				 t->len ? "\n" : "", (ull)row->lost, row->unit, at);
		else
			text_add(t,
				 "%sPerhaps lost: what waited in %llu connections of %s when their worker was killed",
				 t->len ? "\n" : "", (ull)row->lost, at);
	}
}

void report_drops_advice(const struct report_drops *d, const struct stats_copy *c, struct text *t)
{
	struct report_step_sum worst, steps[STATS_PATH_MAX];
	const struct report_drop *row;
	bool is_10s;
	if (report_drops_worst(d, &worst, &row, &is_10s)) {
		unsigned n = report_drops_steps(d, steps);
		step_advice(d, c, "The worst", &worst, is_10s, t);
		for (unsigned i = 0; i < n; i++) {
			bool is_worst = steps[i].step == worst.step && strcmp(steps[i].unit, worst.unit) == 0;
			bool is_now = d->window_us > 0 && steps[i].lost_10s > 0;
			if (is_worst || !drops_is_asked(steps[i].step, is_now) || !drops_most(d, &steps[i], is_now))
				continue;
			step_advice(d, c, "\nAlso", &steps[i], is_now, t);
		}
	}
	risk_advice(d, c, t);
}
