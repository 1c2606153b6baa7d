/* SPDX-License-Identifier: MIT
 *
 * The data path of a worker: sources are read greedily, with a budget; each batch goes to the outputs and into the
 * published counters before the next read. Decides when a source is read again: at once, when it is readable, or at a
 * tick (src/input/coalesce.c). Opens and closes nothing.
 */
#include "worker.h"

#include <errno.h>
#include <event.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* -- which source is read when --------------------------------------------------------------------------------- */

static void watch(struct source *s)
{
	if (s->is_watched || s->in->held || s->fd == -1)
		return;
	s->is_watched = true;
	ev_io_start(s->in->loop, &s->io);
}

static void unwatch(struct source *s)
{
	if (!s->is_watched)
		return;
	s->is_watched = false;
	ev_io_stop(s->in->loop, &s->io);
}

static void queue_add(struct source **list, struct source *s)
{
	BUG_ON(s->is_queued);
	s->is_queued = true;
	s->next_queued = *list;
	s->prev_queued = list;
	if (s->next_queued)
		s->next_queued->prev_queued = &s->next_queued;
	*list = s;
}

static void queue_remove(struct source *s)
{
	if (!s->is_queued)
		return;
	s->is_queued = false;
	*s->prev_queued = s->next_queued;
	if (s->next_queued)
		s->next_queued->prev_queued = s->prev_queued;
}

/* More is there: after outputs, timers and the link had their turn. */
static void read_next_turn(struct worker *w, struct source *s)
{
	queue_remove(s);
	queue_add(&w->ready, s);
	ev_idle_start(w->loop, &w->again);
}

static void read_at_tick(struct worker *w, struct source *s, uint64_t wait_us)
{
	uint64_t at_us = clock_us() + wait_us;
	unwatch(s);
	queue_remove(s);
	queue_add(&w->waiting, s);
	if (w->tick_is_set && w->tick_at_us <= at_us)
		return;
	struct itimerspec due = {.it_value = {.tv_sec = (time_t)(wait_us / 1000000),
					      .tv_nsec = (long)(wait_us % 1000000 * 1000)}};
	timerfd_settime(w->tick.fd, 0, &due, NULL);
	w->tick_is_set = true;
	w->tick_at_us = at_us;
}

/* -- the batch in hand ----------------------------------------------------------------------------------------- */

/* Offers what is in hand to each output that wants it. False: one of them is full and blocks. */
static bool offer(struct worker *w, struct input *in)
{
	struct batch *b = &in->batch;
	bool all = true;
	for (size_t i = 0; i < in->cf->n_outputs; i++) {
		struct output *out = &w->outputs[in->cf->outputs[i]->index];
		unsigned n = out->wants == OUTPUT_WANTS_LINES ? b->n_lines : b->n_items;
		if (b->taken[out->index] < n)
			out->type->send(out, b);
		all = all && b->taken[out->index] == n;
	}
	return all;
}

/* Outputs that want `what` have not seen this yet. */
static void offer_anew(struct worker *w, struct input *in, enum output_wants what)
{
	struct batch *b = &in->batch;
	for (size_t i = 0; i < in->cf->n_outputs; i++) {
		const struct output *out = &w->outputs[in->cf->outputs[i]->index];
		if (out->wants != what)
			continue;
		b->taken[out->index] = 0;
		b->offered &= ~(UINT64_C(1) << out->index);
	}
}

static void route_begin(struct worker *w, struct input *in)
{
	in->batch.n_lines = 0;
	offer_anew(w, in, OUTPUT_WANTS_ITEMS);
	offer_anew(w, in, OUTPUT_WANTS_LINES);
}

static void publish(struct worker *w, struct input *in)
{
	stats_touch(w->page, STATS_INPUT, in->index);
	stats_publish(w->page);
}

/* Hands what is in hand to all outputs and cuts on, until all is taken. False: an output holds it. */
static bool route(struct worker *w, struct input *in)
{
	for (;;) {
		if (!offer(w, in)) {
			publish(w, in);
			input_published(in, false);
			return false;
		}
		if (!in->wants_lines || input_cut(in) == 0)
			break;
		offer_anew(w, in, OUTPUT_WANTS_LINES);
	}
	publish(w, in);
	input_published(in, true);
	if (in->type->give)
		in->type->give(in->reading);
	in->reading = NULL;
	return true;
}

/* -- one source ------------------------------------------------------------------------------------------------ */

static void hold(struct worker *w, struct input *in)
{
	in->held = true;
	in->stats->held = 1;
	in->stats->holds++;
	for (struct source *s = in->sources; s; s = s->next) {
		unwatch(s);
		queue_remove(s);
	}
	if (!w->ready)
		ev_idle_stop(w->loop, &w->again);
}

/* Tells the source's coalescing what a drain found: how long to rest. */
static uint64_t found_now(struct worker *w, struct source *s, uint64_t found, uint64_t bytes)
{
	if (s->fd == -1)
		return s->poll_us = coalesce_poll_us(s->poll_us, found);
	if (s->in->type->is_paced)
		return 0;
	bool was_dense = s->coalesce.dense;
	/* of a stream, whose reads are as long as we let them become, the reads count */
	uint64_t wait_us = coalesce_wait_us(&s->coalesce, clock_us(), found, s->in->type->is_stream ? 0 : bytes);
	s->in->wait_us = wait_us;
	s->in->hold_us = coalesce_hold_us(&s->coalesce);
	w->dense_sources += (unsigned)s->coalesce.dense - (unsigned)was_dense;
	return w->stage == WORKER_SERVING ? wait_us : 0;
}

/* Its peer is for another worker. */
static bool passes(const struct source *s)
{
	const struct input *in = s->in;
	return in->type->pass && (in->leave == INPUT_SLOT_ENDS || in->leave == INPUT_SLOT_STAYS) && !in->is_removed &&
	       !s->ended;
}

static void drain(struct worker *w, struct source *s)
{
	struct input *in = s->in;
	if (UNLIKELY(passes(s))) {
		queue_remove(s);
		if (!in->type->pass(s))
			in->type->end(s); /* it counts what is lost with it */
		return;
	}
	const uint64_t had_bytes = in->stats->received_bytes;
	uint64_t found = 0;
	s->drained = false;
	for (uint64_t budget = in->cf->budget; budget && !s->drained; budget--) {
		unsigned n = in->type->read(s, &in->batch);
		if (n == 0)
			break;
		found += in->type->is_stream ? 1 : n;
		in->reading = s;
		route_begin(w, in);
		if (!route(w, in)) {
			hold(w, in);
			return;
		}
	}
	uint64_t wait_us = found_now(w, s, found, in->stats->received_bytes - had_bytes);
	if (!s->drained) {
		in->stats->budget_hits += found > 0;
		read_next_turn(w, s);
	} else if (s->ended || in->draining) {
		in->type->end(s);
	} else if (wait_us > 0) {
		read_at_tick(w, s, wait_us);
	} else if (s->fd == -1) {
		read_next_turn(w, s);
	} else {
		queue_remove(s);
		watch(s);
	}
}

void source_readable(struct source *s)
{
	drain(s->in->worker, s);
}

void source_opened(struct source *s)
{
	struct worker *w = s->in->worker;
	if (w->stage == WORKER_AWAITING)
		return; /* drain_begin comes back to it */
	/* While a batch is held the hand is not free; resume() comes back to every source. */
	if (w->stage == WORKER_SERVING && s->fd != -1)
		watch(s);
	else if (!s->in->held)
		read_next_turn(w, s);
}

void source_closing(struct source *s)
{
	struct worker *w = s->in->worker;
	w->dense_sources -= s->coalesce.dense;
	unwatch(s);
	queue_remove(s);
}

static void let_go(struct worker *w, struct input *in);

static void resume(struct worker *w, struct input *in)
{
	struct source *s = in->reading;
	if (!route(w, in))
		return;
	in->held = false;
	in->stats->held = 0;
	if (in->leave == INPUT_SLOT_ENDS || in->leave == INPUT_SLOT_STAYS) {
		if (s && s->ended)
			in->type->end(s);
		let_go(w, in);
		return;
	}
	for (struct source *each = in->sources; each; each = each->next)
		if (each != s || !s->ended)
			read_next_turn(w, each);
	if (s && s->ended)
		in->type->end(s);
}

void drain_resume(struct output *out)
{
	struct worker *w = out->worker;
	for (size_t i = 0; i < w->n_inputs; i++) {
		struct input *in = &w->inputs[i];
		for (size_t k = 0; in->held && k < in->cf->n_outputs; k++)
			if (in->cf->outputs[k]->index == out->index)
				resume(w, in);
	}
}

/* -- the loop's events ----------------------------------------------------------------------------------------- */

static void read_list(struct worker *w, struct source **list)
{
	/* a source that is not done yet queues itself anew: take the list over first */
	struct source *todo = *list;
	*list = NULL;
	if (todo)
		todo->prev_queued = &todo;
	while (todo) {
		struct source *s = todo;
		queue_remove(s);
		drain(w, s);
	}
}

static void turn(struct ev_loop *loop, struct ev_idle *again, int events)
{
	(void)events;
	struct worker *w = again->data;
	read_list(w, &w->ready);
	if (!w->ready)
		ev_idle_stop(loop, again);
}

static void tick(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct worker *w = io->data;
	uint64_t expirations;
	if (read(io->fd, &expirations, sizeof expirations) == -1 && errno == EAGAIN)
		return;
	w->tick_is_set = false;
	read_list(w, &w->waiting);
}

/* While a batch is held back its source cannot end: resume() comes back to it. */
static void let_go(struct worker *w, struct input *in)
{
	for (struct source *s = in->sources, *next; s && !in->held; s = next) {
		next = s->next;
		unwatch(s);
		if (passes(s)) {
			if (!in->type->pass(s))
				in->type->end(s);
		} else if (in->leave != INPUT_ALL_END && !input_ends(s) && !in->type->is_packets &&
			   (s->ep || !in->is_removed)) {
			in->type->end(s); /* somebody else goes on with it */
		} else {
			read_next_turn(w, s);
		}
	}
}

void drain_all(struct worker *w)
{
	for (size_t i = 0; i < w->n_inputs; i++)
		let_go(w, &w->inputs[i]);
}

void drain_begin(struct worker *w)
{
	for (size_t i = 0; i < w->n_inputs; i++)
		for (struct source *s = w->inputs[i].sources; s; s = s->next)
			source_opened(s);
}

bool inputs_are_empty(const struct worker *w)
{
	for (size_t i = 0; i < w->n_inputs; i++)
		if (w->inputs[i].sources)
			return false;
	return true;
}

int drain_init(struct worker *w, struct err *err)
{
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	if (fd == -1)
		return err_set(err, -errno, "Cannot make a timer: %s.", strerror(errno));
	ev_io_init(&w->tick, tick, fd, EV_READ);
	w->tick.data = w;
	ev_io_start(w->loop, &w->tick);
	ev_idle_init(&w->again, turn);
	w->again.data = w;
	return 0;
}
