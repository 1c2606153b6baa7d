/* SPDX-License-Identifier: MIT
 *
 * The life of the master: makes everything that workers share, starts them, waits for signals, drains, says what was
 * left. Each step of the start that can be refused is refused with one sentence, and nothing stays behind.
 */
#include "master.h"

#include <errno.h>
#include <event.h>
#include <report.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Pages in the (sparse) file for more workers, which a reload may ask for. */
enum { SLOTS_ROOM = 64 };

/* -- signals ------------------------------------------------------------------------------------------------------- */

enum signal_action { SIGNAL_DRAIN, SIGNAL_QUIT, SIGNAL_REAP, SIGNAL_REOPEN, SIGNAL_RELOAD, SIGNAL_UPGRADE };

static const struct signal_row {
	int number;
	enum signal_action action;
	const char *name, *help;
} signals[] = {
#define SIGNAL(name, action, help) {SIG##name, SIGNAL_##action, "SIG" #name, help},
#include <tbl/signal.def>
};

/* Workers may not open files: they get them. */
static void reopen_files(struct master *m)
{
	struct err err = {""};
	if (log_file_fd() != -1) {
		int file = log_file_open(m->cf->log, &err);
		if (file >= 0)
			master_turn_log_to(m, LOG_TARGET_FILE, file);
		else
			log_error("%s", err.text);
	}
	for (size_t i = 0; i < m->n_outputs; i++) {
		output_open_file(&m->outputs[i]);
		if (m->outputs[i].file != -1)
			slots_tell_all(m, LINK_REOPEN, 0, m->outputs[i].cf->name, "", m->outputs[i].file);
	}
}

static void obey(struct master *m, const struct signal_row *row)
{
	switch (row->action) {
	case SIGNAL_DRAIN:
		master_drain(m, m->cf->drain_timeout);
		break;
	case SIGNAL_QUIT:
		master_drain(m, 0);
		break;
	case SIGNAL_REAP:
		process_reap_strangers();
		break;
	case SIGNAL_REOPEN:
		reopen_files(m);
		break;
	case SIGNAL_RELOAD:
		reload_begin(m, 0);
		break;
	case SIGNAL_UPGRADE:
		upgrade_begin(m, 0);
		break;
	}
}

static void signalled(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct master *m = io->data;
	struct signalfd_siginfo info;
	while (read(io->fd, &info, sizeof info) == sizeof info)
		for (size_t i = 0; i < ARRAY_LEN(signals); i++)
			if (signals[i].number == (int)info.ssi_signo)
				obey(m, &signals[i]);
}

static sigset_t signals_set(void)
{
	sigset_t set;
	sigemptyset(&set);
	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		sigaddset(&set, signals[i].number);
	return set;
}

void master_hold_signals(void)
{
	sigset_t set = signals_set();
	for (size_t i = 0; i < ARRAY_LEN(signals); i++)
		if (signals[i].action == SIGNAL_DRAIN || signals[i].action == SIGNAL_QUIT)
			sigdelset(&set, signals[i].number); /* nothing is there yet that must be taken away */
	sigprocmask(SIG_BLOCK, &set, NULL);
}

/* From here on each waits for the loop: what the start makes must be taken away. */
static void signals_block(void)
{
	sigset_t set = signals_set();
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static int signals_init(struct master *m, struct err *err)
{
	sigset_t set = signals_set();
	int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	if (fd == -1)
		return err_set(err, -errno, "Cannot make a signalfd: %s.", strerror(errno));
	ev_io_init(&m->signals, signalled, fd, EV_READ);
	m->signals.data = m;
	ev_set_priority(&m->signals, EV_MAXPRI); /* what the whole group was told comes before what a worker says of it */
	ev_io_start(m->loop, &m->signals);
	return 0;
}

/* -- stages -------------------------------------------------------------------------------------------------------- */

void master_stop(struct master *m, int exit_code)
{
	m->exit_code = exit_code;
	reload_abort(m);
	upgrade_abort(m);
	m->is_draining = true;
	slots_kill(m);
	if (slots_are_gone(m))
		ev_break(m->loop, EVBREAK_ALL);
}

static void deadline_passed(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	struct master *m = timer->data;
	if (m->is_draining) {
		log_error("workers did not leave in time: killing them");
		m->has_left = true;
		slots_kill(m);
		return;
	}
	for (unsigned i = 0; i < m->n_slots; i++)
		if (!m->slots[i].was_ready)
			log_error("worker %u is not ready after start_timeout%s%s", i, m->slots[i].now->why[0] ? ": " : "",
				  m->slots[i].now->why);
	master_stop(m, MASTER_EXIT_ERROR);
}

static void set_deadline(struct master *m, double seconds)
{
	ev_timer_stop(m->loop, &m->deadline);
	ev_timer_set(&m->deadline, seconds, 0);
	ev_timer_start(m->loop, &m->deadline);
}

static void drain(struct master *m, uint64_t deadline_us)
{
	if (!m->is_draining)
		account_drain(m);
	m->is_draining = true;
	set_deadline(m, (double)(deadline_us + MASTER_LATE_US) / 1e6);
	slots_drain(m, deadline_us);
}

void master_drain(struct master *m, uint64_t deadline_us)
{
	if (m->is_draining && deadline_us > 0)
		return;
	log_info("draining: at most %.1f s", (double)deadline_us / 1e6);
	reload_abort(m);
	upgrade_abort(m);
	if (!m->is_draining)
		notify_stopping(m);
	drain(m, deadline_us);
}

void master_look(struct master *m)
{
	slots_look(m); /* may end what a step of the rolling waits for */
	reload_look(m);
	slots_look(m);
}

/* -- the start and the end of serving ------------------------------------------------------------------------------ */

static void end_when_done(struct master *m);

void master_ready(struct master *m)
{
	if (m->has_started || m->is_draining)
		return;
	for (unsigned i = 0; i < m->n_slots; i++)
		if (!m->slots[i].was_ready)
			return;
	m->has_started = true;
	ev_timer_stop(m->loop, &m->deadline);
	log_info("millrace is serving with %u worker%s", m->n_slots, m->n_slots == 1 ? "" : "s");
	notify_ready(m);
	daemon_ready(m);
	end_when_done(m); /* short files may be done already */
}

static void end_when_done(struct master *m)
{
	for (size_t i = 0; i < m->n_inputs; i++)
		if (!m->inputs[i].is_done)
			return;
	if (m->is_draining || !m->has_started)
		return;
	log_info("all files are read and delivered");
	m->is_done = true;
	master_drain(m, m->cf->drain_timeout);
}

void master_set_log_level(struct master *m, enum log_level level)
{
	log_set_level(level);
	slots_tell_all(m, LINK_LOG, level, "", "", -1);
	monitor_child_tell(m, LINK_LOG, level, -1);
}

void master_turn_log_to(struct master *m, enum log_target target, int file)
{
	log_turn_to(target, file);
	slots_tell_all(m, LINK_REOPEN, target, "", "", file);
	monitor_child_tell(m, LINK_REOPEN, target, file);
}

void master_input_done(struct master *m, const char *name)
{
	struct input *in = input_named(m->inputs, m->n_inputs, name);
	if (in == NULL || !in->type->is_finite) /* no worker ends the others by a word */
		return;
	in->is_done = true;
	end_when_done(m);
}

static void every_second(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	struct master *m = timer->data;
	registry_count(&m->registry);
	stats_publish(m->page);
	stats_belief_look(m->belief, clock_us());
	if (m->has_started && !m->is_draining)
		slots_renew_stale(m);
	if (m->has_started && !m->is_draining && registry_look_at_paths(&m->registry))
		reload_begin(m, 0); /* binds them anew */
	account_second(m);
	table_second(m);
}

static void look_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	master_look(timer->data);
}

/* -- start ------------------------------------------------------------------------------------------------------------
 */

/* 1,000 backends and many connections in each worker: take all descriptors that we may have. */
static void raise_open_files(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

unsigned master_workers(const struct conf *cf)
{
	return cf->workers ? (unsigned)cf->workers : proc_cpus();
}

/* What systemd had and nobody reads: of no input, or of more workers than there are. */
static void close_unread(struct master *m)
{
	registry_sweep(&m->registry);
	for (unsigned slot = STATS_SLOTS_MAX; slot-- > m->n_slots;)
		registry_close_slot(&m->registry, slot);
}

static int make_shared(struct master *m, struct err *err)
{
	const struct conf *cf = m->cf;
	struct generation g = {.n_slots = m->n_slots_wanted}, none;
	m->stats = stats_new(m->n_slots, MIN(MAX(SLOTS_ROOM, 4 * m->n_slots), STATS_SLOTS_MAX), err);
	m->receive = m->stats ? receive_new(m->n_slots, err) : NULL;
	if (!m->receive)
		return -ENOMEM;
	report_drops_name(m->stats);
	m->page = stats_master_page(m->stats);
	registry_init(&m->registry, m->stats);
	resume_endpoints(m);
	if (master_resumes())
		store_note_all(m);
	else
		store_adopt(m);
	int r = generation_outputs(m, cf, &g, err);
	if (r == 0)
		r = generation_inputs(m, cf, &g, err);
	if (r == 0)
		r = generation_finish_outputs(m, &g, false, err);
	for (size_t i = 0; r == 0 && i < g.n_outputs; i++)
		if (g.outputs[i].type->fill && !resume_fill(&g.outputs[i]))
			r = g.outputs[i].type->fill(&g.outputs[i], NULL, err);
	if (r != 0) {
		generation_give_up(m, &g);
		return r;
	}
	generation_enter(m, &g, &none);
	if (!master_resumes())
		close_unread(m);
	struct stats_master *st = stats_master(m->page);
	st->started_us = st->loaded_us = clock_real_us();
	st->workers = m->n_slots;
	st->config_digest = conf_digest(cf);
	stats_touch(m->page, STATS_MASTER, 0);
	stats_publish(m->page);
	m->copy = stats_copy_new(m->stats);
	m->belief = m->copy ? stats_belief_new(m->stats, m->copy) : NULL;
	return m->belief ? 0 : err_set(err, -ENOMEM, "Cannot start: no memory.");
}

static int start(struct master *m, struct err *err)
{
	resume_begin(m);
	int r = rights_reduce(m, err);
	if (r == 0 && m->cf->pid_file[0] && m->pid_file == -1) /* else the program before had it */
		r = m->pid_file = pidfile_open(m->cf->pid_file, err);
	m->pid_file = MAX(m->pid_file, -1);
	if (r < 0)
		return r;
	raise_open_files();
	reserve_init();
	m->loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	if (!m->loop)
		return err_set(err, -ENOMEM, "Cannot make an event loop: %s.", strerror(errno));
	event_init(m->loop);
	ev_timer_init(&m->deadline, deadline_passed, 0, 0);
	ev_timer_init(&m->slots_timer, look_again, 0, 0);
	ev_timer_init(&m->second, every_second, 1, 1);
	m->deadline.data = m->slots_timer.data = m->second.data = m;
	r = make_shared(m, err);
	if (r == 0)
		r = control_open(m, err);
	if (r == 0)
		r = slots_init(m, err);
	if (r == 0)
		r = signals_init(m, err);
	if (r == 0)
		account_start(m);
	if (r == 0)
		r = monitor_child_open(m, err);
	if (r != 0)
		return r;
	notify_init(m);
	ev_timer_start(m->loop, &m->second);
	if (!master_resumes())
		set_deadline(m, (double)m->cf->start_timeout / 1e6);
	resume_slots(m);
	slots_look(m);
	monitor_child_look(m);
	resume_go(m);
	return 0;
}

static void stop(struct master *m)
{
	control_close(m);
	monitor_child_close(m);
	slots_fini(m);
	if (m->stats)
		registry_close(&m->registry);
	for (size_t i = 0; i < m->n_inputs; i++)
		input_free(&m->inputs[i]);
	for (size_t i = 0; i < m->n_outputs; i++)
		output_fini(&m->outputs[i]);
	free(m->inputs);
	free(m->outputs);
	free(m->left_before);
	receive_free(m->receive);
	stats_belief_free(m->belief);
	stats_copy_free(m->copy);
	stats_free(m->stats);
	if (m->loop)
		ev_loop_destroy(m->loop);
	pidfile_close(m->cf->pid_file, &m->pid_file);
	conf_free((struct conf *)(uintptr_t)m->cf);
}

int master_run(struct conf **cf, const struct conf_args *args, char **argv)
{
	struct master m = {
	    .cf = *cf,
	    .args = args,
	    .n_slots = master_workers(*cf),
	    .pid_file = -1,
	    .ready_fd = -1,
	};
	struct err err = {""};
	bool is_parent = false;
	*cf = NULL;
	m.argv = argv;
	m.control_fd = -1;
	m.n_slots_wanted = m.n_slots;
	m.monitor.http.fd = -1;
	upgrade_remember(argv[0]);
	signals_block();
	int r = daemon_begin(&m, &is_parent, &err);
	if (is_parent)
		return m.exit_code;
	log_never_wait();
	if (r != 0 || start(&m, &err) != 0) {
		log_error("%s", err.text);
		stop(&m);
		return MASTER_EXIT_ERROR;
	}
	ev_run(m.loop, 0);
	if (m.has_started && (m.exit_code != MASTER_EXIT_ERROR || !store_is_there())) {
		registry_discard(&m.registry);
		stats_publish(m.page);
	}
	table_last(&m);
	int exit_code = m.exit_code;
	for (unsigned i = 0; i < m.n_slots; i++)
		roll_count_untaken(&m.slots[i]);
	if (m.has_started)
		account_last(&m);
	if (exit_code == MASTER_EXIT_DELIVERED && m.is_done && account_lost(&m) > 0)
		m.has_left = true;
	if (exit_code == MASTER_EXIT_DELIVERED && m.has_left)
		exit_code = MASTER_EXIT_LEFT;
	stop(&m);
	return exit_code;
}
