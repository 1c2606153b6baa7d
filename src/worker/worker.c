/* SPDX-License-Identifier: MIT
 *
 * The life of a worker: closes what is not its own, opens outputs and inputs, says READY, loops, drains, leaves. The
 * data path is in drain.c. Binds nothing, restarts nothing.
 */
#include "worker.h"

#include <errno.h>
#include <event.h>
#include <report.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* At the deadline what waits in the kernel's buffers is still read, to be counted; not longer than this. */
static const uint64_t discard_limit_us = 200000;
/* So long a master that is busy is waited for at the end, until it has room for the last words. */
static const uint64_t say_limit_us = 200000;

/* -- start ------------------------------------------------------------------------------------------------------- */

/* Capture handles, sockets and links of siblings: left open here they would keep a port or a fanout group alive. */
static bool close_others(const struct worker_setup *setup)
{
	size_t n = 2 + setup->cf->n_outputs + registry_keep_room(setup->registry);
	int *keep = calloc(n, sizeof *keep);
	if (keep == NULL)
		return false;
	n = 0;
	keep[n++] = setup->link;
	if (setup->channel != -1)
		keep[n++] = setup->channel;
	registry_keep(setup->registry, setup->slot, keep, &n);
	for (size_t i = 0; i < setup->cf->n_outputs; i++)
		keep[n++] = setup->outputs[i].file;
	proc_close_others(keep, n);
	free(keep);
	return true;
}

/* TERM to one worker: it makes place for the next, which goes on with the same sockets; to all processes at once: all
 * end. INT comes from the terminal to all. What it means is the master's to say. */
static void signalled(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct worker *w = io->data;
	struct signalfd_siginfo info;
	while (read(io->fd, &info, sizeof info) == sizeof info)
		if (info.ssi_signo == SIGTERM)
			link_say(w, LINK_TERM, "");
}

static int signals_init(struct worker *w, struct err *err)
{
	sigset_t wanted;
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGTERM);
	int fd = signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd == -1)
		return err_set(err, -errno, "Cannot make a signalfd: %s.", strerror(errno));
	proc_child_signals();
	ev_io_init(&w->signals, signalled, fd, EV_READ);
	w->signals.data = w;
	ev_io_start(w->loop, &w->signals);
	return 0;
}

static void answer_status(struct input *in, struct text *t)
{
	struct worker *w = in->worker;
	if (!w->all)
		w->all = stats_copy_new(w->setup->stats);
	if (w->all && stats_copy_take(w->all, NULL) == 0)
		report_statsrelay(w->all, t);
	else
		text_add(t, "\n");
}

/* Who an output talks to is left out of what we capture; the master knows it for the handles that it makes later. */
static void tell_peers(struct worker *w)
{
	struct text all = {0};
	for (size_t i = 0; i < w->n_outputs; i++)
		if (w->peers[i] && w->peers[i][0])
			text_add(&all, "%s%s", all.len ? "," : "", w->peers[i]);
	for (size_t i = 0; all.s && i < w->n_inputs; i++)
		input_exclude(&w->inputs[i], all.s);
	if (all.s)
		link_say(w, LINK_PEERS, all.s);
	text_free(&all);
}

static void peers_changed(struct output *out, const char *peers)
{
	struct worker *w = out->worker;
	free(w->peers[out->cf->index]);
	w->peers[out->cf->index] = strdup(peers);
	tell_peers(w);
}

static bool captures(const struct worker *w)
{
	for (size_t i = 0; i < w->cf->n_inputs; i++)
		if (w->inputs[i].type->endpoint->exclude && w->inputs[i].cf->exclude_own)
			return true;
	return false;
}

static int open_outputs(struct worker *w, struct err *err)
{
	struct net_resolver *resolver = net_resolver_new(w->loop, err);
	if (!resolver)
		return -ENOMEM;
	for (size_t i = 0; i < w->n_outputs; i++) {
		struct output *out = &w->outputs[i];
		out->loop = w->loop;
		out->resolver = resolver;
		out->page = w->page;
		out->slot = w->slot;
		out->n_slots = w->setup->n_slots;
		out->on_room = drain_resume;
		out->on_peers = captures(w) ? peers_changed : NULL;
		out->awaits = w->stage == WORKER_AWAITING;
		out->worker = w;
		int r = out->type->open(out, err);
		if (r != 0)
			return r;
	}
	return 0;
}

static int open_inputs(struct worker *w, struct err *err)
{
	for (size_t i = 0; i < w->n_inputs; i++) {
		struct input *in = &w->inputs[i];
		in->loop = w->loop;
		in->page = w->page;
		in->slot = w->slot;
		in->receive = receive_batch(w->setup->receive, w->slot, w->setup->which, in->index);
		in->on_source = source_opened;
		in->on_readable = source_readable;
		in->on_end = source_closing;
		in->on_status = answer_status;
		in->on_pass = handover_give_connection;
		in->worker = w;
		w->has_finite |= in->type->is_finite;
		int r = input_open(in, err);
		if (r != 0)
			return r;
	}
	return 0;
}

static int open_channel(struct worker *w, struct err *err)
{
	int channel = w->setup->channel;
	if (channel == -1 || handover_open(w, channel, w->slot) == 0)
		return 0;
	return err_set(err, -ENOMEM, "Cannot start: no memory.");
}

/* -- turns ------------------------------------------------------------------------------------------------------- */

static void publish_all(struct worker *w)
{
	w->stats->loops++;
	w->stats->dense = w->dense_sources > 0;
	w->stats->memory_bytes = 0;
	for (size_t i = 0; i < w->n_outputs; i++)
		w->stats->memory_bytes += stats_output(w->page, w->outputs[i].index)->memory_bytes;
	stats_touch(w->page, STATS_WORKER, 0);
	for (size_t i = 0; i < w->n_inputs; i++)
		stats_touch(w->page, STATS_INPUT, w->inputs[i].index);
	stats_publish(w->page);
}

static bool outputs_are_empty(const struct worker *w)
{
	for (size_t i = 0; i < w->n_outputs; i++)
		if (w->outputs[i].type->pending(&w->outputs[i]) > 0)
			return false;
	return true;
}

/* A finite input is done when all that came from it is out of our hands. */
static void tell_done(struct worker *w)
{
	bool outputs_empty = outputs_are_empty(w);
	if (w->slot != 0) /* it has none of them */
		return;
	for (size_t i = 0; i < w->n_inputs; i++) {
		struct input *in = &w->inputs[i];
		if (!in->type->is_finite || in->has_told_done || in->sources || in->held || !outputs_empty)
			continue;
		struct link_message m = {.type = LINK_DONE, .slot = w->slot};
		snprintf(m.name, sizeof(m.name), "%s", in->cf->name);
		link_send(w, &m);
		in->has_told_done = true;
	}
}

static void go_on_draining(struct worker *w)
{
	if (w->stage == WORKER_DRAINING_INPUTS && inputs_are_empty(w)) {
		handover_give(w);
		link_say(w, LINK_LEFT, "");
		w->stage = WORKER_DRAINING_OUTPUTS;
		for (size_t i = 0; i < w->n_outputs; i++)
			w->outputs[i].type->drain(&w->outputs[i]);
	}
	if (w->stage == WORKER_DRAINING_OUTPUTS && outputs_are_empty(w)) {
		w->stage = WORKER_DONE;
		ev_break(w->loop, EVBREAK_ALL);
	}
}

/* How long what is in hand may stay, for a fuller segment. */
static void set_hold(struct worker *w)
{
	bool is_dense = w->dense_sources > 0 && w->stage == WORKER_SERVING;
	uint64_t hold_us = is_dense ? UINT64_MAX / 2 : 0, turn_us = 0;
	for (size_t i = 0; i < w->n_inputs && is_dense; i++) {
		hold_us = MIN(hold_us, w->inputs[i].hold_us);
		turn_us = MAX(turn_us, w->inputs[i].wait_us);
	}
	for (size_t i = 0; i < w->n_outputs; i++) {
		w->outputs[i].hold_us = hold_us;
		w->outputs[i].turn_us = turn_us;
	}
}

static void before_wait(struct ev_loop *loop, struct ev_prepare *prepare, int events)
{
	(void)loop, (void)events;
	struct worker *w = prepare->data;
	uint64_t now_us = clock_us();
	set_hold(w);
	for (size_t i = 0; i < w->n_outputs; i++)
		w->outputs[i].type->pump(&w->outputs[i], now_us);
	publish_all(w);
	if (w->stage > WORKER_SERVING)
		go_on_draining(w);
	else if (w->has_finite && w->stage == WORKER_SERVING)
		tell_done(w);
}

/* -- end --------------------------------------------------------------------------------------------------------- */

static void deadline_passed(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)timer, (void)events;
	ev_break(loop, EVBREAK_ALL);
}

static uint64_t left_behind(const struct worker *w)
{
	uint64_t left = 0;
	for (size_t i = 0; i < w->n_outputs; i++)
		left += stats_output(w->page, w->outputs[i].index)->dropped_shutdown_records;
	for (unsigned k = 0; k < stats_page_used(w->page, STATS_BACKEND); k++) { /* those that were removed, too */
		const struct stats_backend *be = stats_backend(w->page, k);
		left += be->dropped_shutdown_records + be->unconfirmed_records;
	}
	for (size_t i = 0; i < w->n_inputs; i++) {
		const struct stats_input *st = w->inputs[i].stats;
		left += st->dropped_shutdown_lines + st->dropped_shutdown_datagrams + st->dropped_shutdown_packets;
	}
	return left;
}

/* What is held back since an output is full goes with what that output holds. */
static void take_all_held(struct worker *w)
{
	for (size_t i = 0; i < w->n_outputs; i++)
		if (w->outputs[i].type->hand_over && !w->outputs[i].ends) {
			w->outputs[i].takes_all = true;
			drain_resume(&w->outputs[i]);
		}
}

void worker_drain(struct worker *w, uint64_t deadline_us, enum input_leave leave)
{
	double seconds = (double)deadline_us / 1e6;
	bool has_begun = w->stage > WORKER_SERVING || w->drain_awaits;
	if (has_begun && ev_timer_remaining(w->loop, &w->deadline) <= seconds)
		return;
	/* QUIT after TERM: a nearer deadline */
	ev_timer_stop(w->loop, &w->deadline);
	ev_timer_set(&w->deadline, seconds, 0);
	ev_timer_start(w->loop, &w->deadline);
	w->deadline_at_us = clock_us() + deadline_us;
	w->leave = leave;
	w->drain_awaits = w->stage == WORKER_AWAITING; /* what a predecessor hands over is ours to deliver */
	if (w->stage != WORKER_SERVING)
		return;
	w->stage = WORKER_DRAINING_INPUTS;
	if (leave != INPUT_ALL_END)
		handover_leave(w);
	w->left_before = left_behind(w);
	for (size_t i = 0; i < w->n_inputs; i++) {
		struct input *in = &w->inputs[i];
		in->leave = leave;
		for (unsigned k = 0; leave == INPUT_SLOT_ENDS && k < in->n_endpoints; k++)
			in->endpoints[k]->ends |= in->endpoints[k]->n_fds > 1;
		in->type->drain(in);
	}
	if (w->channel != -1)
		take_all_held(w);
	drain_all(w);
}

/* What could not be handed over any more is read and counted. */
static void discard_inputs(struct worker *w)
{
	uint64_t until = clock_us() + discard_limit_us;
	for (size_t i = 0; i < w->n_inputs; i++) {
		struct input *in = &w->inputs[i];
		in->discarding = true;
		while (in->wants_lines && in->reading && input_cut(in) > 0)
			;
		in->reading = NULL;
		input_published(in, true); /* the next batch is cut from its start */
		while (in->sources) {
			struct source *s = in->sources;
			while (!s->ended && clock_us() < until && in->type->read(s, &in->batch) > 0) {
				in->reading = s;
				while (in->wants_lines && input_cut(in) > 0)
					;
				input_published(in, true);
			}
			in->reading = NULL;
			in->type->end(s);
		}
	}
}

void worker_go(struct worker *w)
{
	w->stage = WORKER_SERVING;
	for (size_t i = 0; i < w->n_outputs; i++)
		if (w->outputs[i].type->go)
			w->outputs[i].type->go(&w->outputs[i]);
	drain_begin(w);
	if (!w->drain_awaits)
		return;
	double left = ev_timer_remaining(w->loop, &w->deadline);
	w->drain_awaits = false;
	worker_drain(w, left > 0 ? (uint64_t)(left * 1e6) : 0, w->leave);
}

static _Noreturn void leave(struct worker *w)
{
	if (w->stage != WORKER_DONE)
		discard_inputs(w);
	for (size_t i = 0; i < w->n_outputs; i++)
		w->outputs[i].type->close(&w->outputs[i]);
	publish_all(w);
	net_link_flush(&w->link, clock_us() + say_limit_us);
	_exit(left_behind(w) > w->left_before ? WORKER_EXIT_LEFT : WORKER_EXIT_CLEAN);
}

void worker_run(const struct worker_setup *setup)
{
	struct worker w = {
	    .setup = setup,
	    .cf = setup->cf,
	    .slot = setup->slot,
	    .page = stats_slot_page(setup->stats, setup->slot, setup->which),
	    .inputs = setup->inputs,
	    .outputs = setup->outputs,
	    .n_inputs = setup->cf->n_inputs,
	    .n_outputs = setup->cf->n_outputs,
	    .stage = setup->channel == -1 ? WORKER_SERVING : WORKER_AWAITING,
	    .channel = -1,
	    .link = {.fd = -1},
	};
	struct err err = {""};
	char who[16];
	snprintf(who, sizeof who, "worker %u", setup->slot);
	log_set_who(who);
	snprintf(who, sizeof who, "millrace/%u", setup->slot);
	proc_set_title(who);
	receive_child(setup->receive, setup->slot, setup->which);
	bool is_safe = stats_child_worker(setup->stats, setup->slot, setup->which, &err) == 0;
	if (!close_others(setup))
		link_fatal(&w, "No memory.");
	if (setup->cf->daemon)
		proc_leave_terminal();
	LIST_INIT(&w.takeovers);
	w.stats = stats_worker(w.page);
	/* before anything that starts threads: librdkafka's would keep what they began with */
	is_safe = is_safe && privileges_drop(setup->identity, PRIVILEGES_WORKER, setup->cf->seccomp, &err) == 0;
	w.loop = is_safe ? ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV) : NULL;
	if (is_safe && !w.loop)
		err_set(&err, -ENOMEM, "Cannot make an event loop: %s.", strerror(errno));
	if (w.loop) {
		event_init(w.loop);
		link_init(&w);
	}
	if (!w.loop || signals_init(&w, &err) != 0 || drain_init(&w, &err) != 0 || open_outputs(&w, &err) != 0 ||
	    open_inputs(&w, &err) != 0 || open_channel(&w, &err) != 0)
		link_fatal(&w, err.text);
	ev_timer_init(&w.deadline, deadline_passed, 0, 0);
	ev_prepare_init(&w.before_wait, before_wait);
	w.before_wait.data = &w;
	ev_prepare_start(w.loop, &w.before_wait);
	w.left_before = left_behind(&w);
	link_say(&w, LINK_READY, "");
	ev_run(w.loop, 0);
	leave(&w);
}
