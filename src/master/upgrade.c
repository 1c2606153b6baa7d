/* SPDX-License-Identifier: MIT
 *
 * upgrade: the running program's side: see upgrade.h. Until the exec nothing has changed; an exec that fails returns.
 */
#include "upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ANSWER_LINES = 20 };
static const uint64_t flush_limit_us = 100000;
static const double again_seconds = 0.02;

struct upgrade {
	struct master *m;
	uint64_t client;
	int program, state, text, maps; /* -1: not open */
	struct try rehearsal;
	struct ev_timer again; /* rehearsed; workers are about to leave */
	uint64_t until_us;
};

extern char **environ;

/* -- the end of one that is not to be -------------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
	if (*fd != -1)
		close(*fd);
	*fd = -1;
}

static void upgrade_free(struct upgrade *u)
{
	close_fd(&u->program);
	close_fd(&u->state);
	close_fd(&u->text);
	close_fd(&u->maps);
	try_free(&u->rehearsal);
	ev_timer_stop(u->m->loop, &u->again);
	free(u);
}

/* `lines`: what the new program said, or NULL. */
static void fail(struct master *m, uint64_t client, const char *why, const char *lines)
{
	struct text t = {0};
	text_add(&t, "error Nothing has changed: %s", why);
	log_error("upgrade: Nothing has changed: %s", why);
	for (unsigned n = 0; lines && *lines && n < ANSWER_LINES; n++) {
		size_t len = strcspn(lines, "\n");
		log_error("upgrade: %.*s", (int)len, lines);
		text_add(&t, "\t");
		text_add_bytes(&t, lines, len);
		lines += len + (lines[len] != '\0');
	}
	control_answer(m, client, &t);
	text_free(&t);
}

static void give_up(struct upgrade *u, const char *why)
{
	struct master *m = u->m;
	m->upgrade = NULL;
	fail(m, u->client, why, u->rehearsal.said.s);
	upgrade_free(u);
}

void upgrade_abort(struct master *m)
{
	if (m->upgrade)
		give_up(m->upgrade, "millrace ends; the upgrade is given up.");
}

/* -- the program ----------------------------------------------------------------------------------------------------- */

/* As it was called, from where it was called: a daemon has gone elsewhere. */
static char program_path[2 * PATH_MAX];

void upgrade_remember(const char *argv0)
{
	char folder[PATH_MAX];
	if (program_path[0])
		return; /* the program before has said it */
	bool is_relative = argv0[0] != '/' && strchr(argv0, '/') && getcwd(folder, sizeof(folder));
	snprintf(program_path, sizeof(program_path), "%s%s%s", is_relative ? folder : "", is_relative ? "/" : "", argv0);
}

const char *upgrade_program(void)
{
	return program_path;
}

/* Once: what is rehearsed is what is executed, whatever stands at its path by then. */
static int open_program(void)
{
	const char *path = getenv("PATH");
	if (strchr(program_path, '/'))
		return open(program_path, O_PATH | O_CLOEXEC);
	for (const char *at = path ? path : ""; *at; at += strspn(at, ":")) {
		char file[3 * PATH_MAX];
		size_t len = strcspn(at, ":");
		snprintf(file, sizeof(file), "%.*s/%s", (int)len, at, program_path);
		int fd = access(file, X_OK) == 0 ? open(file, O_PATH | O_CLOEXEC) : -1;
		if (fd != -1)
			return fd;
		at += len;
	}
	errno = ENOENT;
	return -1;
}

static int make_file(const char *name)
{
	return memfd_create(name, MFD_CLOEXEC);
}

/* -- rehearsal ------------------------------------------------------------------------------------------------------- */

static int run(void *arg, struct text *said)
{
	const struct upgrade *u = arg;
	char how[UPGRADE_PLACE_BYTES];
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	for (unsigned i = 0; i < 3; i++)
		fcntl((const int[]){u->state, u->text, u->maps}[i], F_SETFD, 0);
	snprintf(how, sizeof(how), "rehearse %d %d %d", u->state, u->text, u->maps);
	setenv(UPGRADE_ENVIRONMENT, how, 1);
	privileges_over_exec();
	execveat(u->program, "", u->m->argv, environ, AT_EMPTY_PATH);
	const char *why = errno == ENOENT ? "it is a script, or its interpreter is not there" : strerror(errno);
	text_add(said, "The new program cannot be run: %s.", why);
	return EXIT_FAILURE;
}

static int set_inherited(int fd, bool is_inherited)
{
	return fd == -1 ? 0 : fcntl(fd, F_SETFD, is_inherited ? 0 : FD_CLOEXEC);
}

/* Every descriptor that the state names. */
static void inherit_all(const struct master *m, bool is_inherited)
{
	const struct endpoint *ep;
	const char *path;
	struct control_guest guests[CONTROL_CLIENTS_MAX];
	for (unsigned n = control_guests(m, guests); n-- > 0;)
		set_inherited(guests[n].fd, is_inherited);
	set_inherited(control_fd(m, &path), is_inherited);
	set_inherited(m->monitor.http.fd, is_inherited);
	set_inherited(m->pid_file, is_inherited);
	TAILQ_FOREACH(ep, &m->registry.list, next)
	{
		for (unsigned k = 0; k < ep->n_fds; k++)
			set_inherited(ep->fds[k], is_inherited);
	}
	for (unsigned i = 0; i < m->n_slots; i++)
		for (unsigned k = 0; k < ARRAY_LEN(m->slots[i].processes); k++) {
			const struct child *c = &m->slots[i].processes[k].child;
			if (!child_is_there(c))
				continue;
			set_inherited(c->link.fd, is_inherited);
			set_inherited(receive_fd(m->receive, i, k), is_inherited);
			set_inherited(c->process.pidfd, is_inherited);
		}
	for (unsigned i = 0; i < stats_files(m->stats); i++)
		set_inherited(stats_reader_fd(m->stats, i), is_inherited);
}

/* What waits in outboxes would be lost: a worker that takes nothing now, is stopped, keeps us from it. */
static bool flush_links(struct master *m)
{
	uint64_t until_us = clock_us() + flush_limit_us;
	bool done = true;
	for (unsigned i = 0; i < m->n_slots; i++)
		for (unsigned k = 0; k < ARRAY_LEN(m->slots[i].processes); k++)
			if (child_is_there(&m->slots[i].processes[k].child))
				done &= net_link_flush(&m->slots[i].processes[k].child.link, until_us);
	return done;
}

static void describe_guests(const struct master *m, struct text *t)
{
	struct control_guest guests[CONTROL_CLIENTS_MAX];
	unsigned n = control_guests(m, guests);
	for (unsigned i = 0; i < n; i++) {
		state_key(t, "client");
		state_number(t, guests[i].fd);
		state_number(t, guests[i].is_waiting);
	}
}

/* Returns only when it fails: *why says how. */
static void execute(struct upgrade *u, char why[300])
{
	struct master *m = u->m;
	struct text t = {0};
	char how[UPGRADE_PLACE_BYTES];
	if (!flush_links(m)) {
		snprintf(why, 300, "a worker does not read what it is told; try again.");
		return;
	}
	state_describe(m, &t);
	describe_guests(m, &t);
	state_key(&t, "rehearsed");
	state_number(&t, u->text);
	state_number(&t, u->maps);
	int state = state_fd(&t);
	text_free(&t);
	if (state < 0) {
		snprintf(why, 300, "no memory.");
		return;
	}
	snprintf(how, sizeof(how), "resume %d", state);
	setenv(UPGRADE_ENVIRONMENT, how, 1);
	log_info("upgrade: executing %s in place", program_path);
	notify_reloading(m); /* READY is the new program's */
	notify_feed(m);
	fflush(NULL);
	inherit_all(m, true);
	for (unsigned i = 0; i < 3; i++)
		set_inherited((const int[]){state, u->text, u->maps}[i], true);
	uint64_t ambient = privileges_over_exec();
	execveat(u->program, "", m->argv, environ, AT_EMPTY_PATH);
	snprintf(why, 300, "the new program cannot be executed: %s.", strerror(errno));
	privileges_after_exec_failed(ambient);
	notify_ready(m);
	unsetenv(UPGRADE_ENVIRONMENT);
	inherit_all(m, false);
	set_inherited(u->text, false);
	set_inherited(u->maps, false);
	close(state);
}

/* Each slot has one worker at most, and we know where it counts. */
static bool is_steady(struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++) {
		const struct slot *s = &m->slots[i];
		bool has_two = child_is_there(&s->processes[0].child) && child_is_there(&s->processes[1].child);
		if (has_two || s->next != NULL || s->taking != -1 || s->now->is_leaving)
			return false;
	}
	return m->reload == NULL && resume_is_done();
}

/* Who leaves has its deadline; so have we. */
static void execute_when_steady(struct upgrade *u)
{
	char why[300] = "workers have not finished what they had begun; try again.";
	if (!is_steady(u->m) && clock_us() < u->until_us) {
		ev_timer_again(u->m->loop, &u->again);
		return;
	}
	if (is_steady(u->m))
		execute(u, why);
	give_up(u, why);
}

static void look_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	execute_when_steady(timer->data);
}

static void rehearsed(struct try *t, int status)
{
	struct upgrade *u = t->owner;
	if (t->is_late)
		give_up(u, "the new millrace did not end its rehearsal in time; it said:");
	else if (status != 0)
		give_up(u, "the new millrace would not come up; it said:");
	else
		execute_when_steady(u);
}

/* -- the beginning --------------------------------------------------------------------------------------------------- */

/* No worker of this program could follow one of the program before. */
static bool has_old_workers(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].now->is_foreign && !m->slots[i].now->is_leaving && m->slots[i].next == NULL)
			return true;
	return false;
}

static const char *cannot(const struct master *m)
{
	for (size_t i = 0; i < m->n_inputs; i++)
		if (m->inputs[i].type->is_finite || m->inputs[i].type->is_fixed)
			return "DPDK ports and files cannot be handed over; restart instead.";
	if (m->is_draining || !m->has_started)
		return "millrace is starting or ending.";
	if (m->reload)
		return "a reload is under way; try again when it is done.";
	if (has_old_workers(m))
		return "workers of the program before still serve, since none of this one could start; reload first.";
	return m->upgrade ? "an upgrade is under way." : NULL;
}

static int prepare(struct upgrade *u)
{
	struct text t = {0};
	u->program = open_program();
	u->text = make_file("millrace-configuration");
	u->maps = make_file("millrace-maps");
	state_describe(u->m, &t);
	u->state = state_fd(&t);
	text_free(&t);
	if (u->program == -1 || u->text == -1 || u->maps == -1)
		return -errno;
	return MIN(u->state, 0);
}

void upgrade_begin(struct master *m, uint64_t client)
{
	const char *why = cannot(m);
	struct upgrade *u = why ? NULL : calloc(1, sizeof(*u));
	if (!u) {
		fail(m, client, why ? why : "no memory.", NULL);
		return;
	}
	u->m = m;
	u->client = client;
	u->program = u->state = u->text = u->maps = -1;
	u->until_us = clock_us() + 2 * m->cf->start_timeout + UPGRADE_EXTRA_US + m->cf->drain_timeout + MASTER_LATE_US;
	ev_timer_init(&u->again, look_again, 0, again_seconds);
	u->again.data = u;
	m->upgrade = u;
	int r = prepare(u);
	log_info("upgrade: rehearsing %s", program_path);
	if (r == 0) {
		int keep[] = {u->program, u->state, u->text, u->maps};
		memcpy(u->rehearsal.keep, keep, sizeof(keep));
		u->rehearsal.n_keep = ARRAY_LEN(keep);
		u->rehearsal.takes_output = true;
		u->rehearsal.owner = u;
		u->rehearsal.on_end = rehearsed;
		r = try_start(&u->rehearsal, m->loop, run, u, 2 * m->cf->start_timeout + UPGRADE_EXTRA_US);
	}
	if (r != 0) {
		char text[300];
		snprintf(text, sizeof(text), "the new program cannot be rehearsed: %s.", strerror(-r));
		give_up(u, text);
	}
}
