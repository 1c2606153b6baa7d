/* SPDX-License-Identifier: MIT
 *
 * upgrade: the old master's side: starts the binary anew, hands it what is bound, and ends when it serves. Until it says
 * READY nothing changes here; when it ends before GO, workers that have left get successors of ours. See upgrade.h.
 */
#include "upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What may be left to tell the new one when our last worker has gone. */
enum { DONE_LIMIT_US = 10 * 1000 * 1000 };

enum upgrade_stage { UPGRADE_STARTING, UPGRADE_LEAVING, UPGRADE_GONE };

struct upgrade {
	struct master *m;
	uint64_t client;
	enum upgrade_stage stage;
	pid_t pid;
	int pidfd;
	bool has_failed; /* it says so */
	struct net_link link;
	struct ev_timer patience;
};

/* One at a time is made. */
static struct upgrade_message msg;

/* -- messages ------------------------------------------------------------------------------------------------------ */

static int put(struct upgrade *u, int fd)
{
	return net_link_send(&u->link, &msg, UPGRADE_HEAD_BYTES + msg.kept_bytes, fd);
}

static int put_word(struct upgrade *u, enum upgrade_type type, int fd)
{
	msg = (struct upgrade_message){.version = UPGRADE_VERSION, .type = type, .number = (uint32_t)getpid()};
	return put(u, fd);
}

static int put_endpoint(struct upgrade *u, const struct input *in, const struct endpoint *ep)
{
	bool is_capture = in->type->is_packets;
	unsigned n = is_capture ? 1 : ep->n_fds;
	int r = 0;
	for (unsigned k = 0; r == 0 && k < n; k++) {
		msg = (struct upgrade_message){.version = UPGRADE_VERSION,
					       .type = UPGRADE_ENDPOINT,
					       .number = k,
					       .n = n,
					       .group = input_group(in, ep),
					       .address = ep->address};
		snprintf(msg.kind, sizeof(msg.kind), "%s", in->type->name);
		snprintf(msg.name, sizeof(msg.name), "%s", ep->name);
		r = put(u, is_capture ? -1 : ep->fds[k]);
	}
	return r;
}

static int put_socket(struct upgrade *u, enum upgrade_type type, const char *name, int fd)
{
	if (fd == -1)
		return 0;
	msg = (struct upgrade_message){.version = UPGRADE_VERSION, .type = type};
	snprintf(msg.name, sizeof(msg.name), "%s", name);
	return put(u, fd);
}

static int put_endpoints(struct upgrade *u)
{
	struct master *m = u->m;
	const char *path;
	int control = control_fd(m, &path), r = 0;
	for (size_t i = 0; i < m->n_inputs; i++)
		for (unsigned e = 0; r == 0 && e < m->inputs[i].n_endpoints; e++)
			r = put_endpoint(u, &m->inputs[i], &m->inputs[i].endpoints[e]);
	if (r == 0)
		r = put_socket(u, UPGRADE_CONTROL, path, control);
	if (r == 0)
		r = put_socket(u, UPGRADE_HTTP, m->cf->http, m->monitor.http_fd);
	return r == 0 ? put_word(u, UPGRADE_END, -1) : r;
}

static const char *input_name(const struct master *m, unsigned index)
{
	for (size_t i = 0; i < m->n_inputs; i++)
		if (m->inputs[i].index == index)
			return m->inputs[i].cf->name;
	return "";
}

static const char *output_name(const struct master *m, unsigned index)
{
	for (size_t i = 0; i < m->n_outputs; i++)
		if (m->outputs[i].index == index)
			return m->outputs[i].cf->name;
	return "";
}

/* What cannot be sent now stays and is sent the next time. */
static void put_kept(struct upgrade *u, struct slot *s)
{
	struct net_message *k;
	while ((k = STAILQ_FIRST(&s->kept)) != NULL) {
		const struct link_connection *c = (const void *)k->bytes;
		bool is_lines = c->head.type == LINK_LINES;
		msg = (struct upgrade_message){.version = UPGRADE_VERSION,
					       .type = is_lines ? UPGRADE_LINES : UPGRADE_CONNECTION,
					       .value = c->head.value,
					       .kept_bytes = is_lines ? 0 : (uint32_t)(k->len - sizeof(c->head))};
		snprintf(msg.name, sizeof(msg.name), "%s",
			 is_lines ? output_name(u->m, c->head.input) : input_name(u->m, c->head.input));
		memcpy(msg.kept, c->kept, msg.kept_bytes);
		if (put(u, k->fd) != 0)
			return;
		STAILQ_REMOVE_HEAD(&s->kept, next);
		net_message_free(k);
	}
}

/* -- the end, one way or the other --------------------------------------------------------------------------------- */

static void upgrade_free(struct upgrade *u)
{
	struct net_messages undelivered = STAILQ_HEAD_INITIALIZER(undelivered);
	struct net_message *k;
	ev_timer_stop(u->m->loop, &u->patience);
	net_link_close(&u->link, &undelivered);
	while ((k = STAILQ_FIRST(&undelivered)) != NULL) {
		STAILQ_REMOVE_HEAD(&undelivered, next);
		net_message_free(k);
	}
	if (u->pidfd != -1)
		close(u->pidfd);
	free(u);
}

void upgrade_fini(struct master *m)
{
	if (m->upgrade)
		upgrade_free(m->upgrade);
	m->upgrade = NULL;
}

static void answer(struct master *m, uint64_t client, const char *word, const char *text)
{
	struct text t = {0};
	text_add(&t, "%s %s", word, text);
	control_answer(m, client, &t);
	text_free(&t);
}

static void fail(struct upgrade *u, const char *why)
{
	struct master *m = u->m;
	uint64_t client = u->client;
	bool had_begun = u->stage == UPGRADE_LEAVING;
	char text[300];
	if (u->pidfd != -1)
		syscall(SYS_pidfd_send_signal, u->pidfd, SIGKILL, NULL, 0); /* it has ended, or it must */
	snprintf(text, sizeof text, "Nothing has changed: the new millrace %s.", why);
	m->upgrade = NULL;
	upgrade_free(u);
	log_error("upgrade: %s", text);
	answer(m, client, "error", text);
	control_pause(m, false);
	if (had_begun)
		slots_look(m); /* who has left gets a successor of ours */
}

void upgrade_abort(struct master *m)
{
	if (m->upgrade && m->upgrade->stage != UPGRADE_GONE)
		fail(m->upgrade, "is given up, since this one ends");
}

static void patience_over(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	fail(timer->data, "did not become ready in time; its log lines say more");
}

/* -- READY, GO, DONE ----------------------------------------------------------------------------------------------- */

bool upgrade_is_leaving(const struct master *m)
{
	return m->upgrade && m->upgrade->stage >= UPGRADE_LEAVING;
}

static void go(struct upgrade *u)
{
	struct master *m = u->m;
	struct err err = {""};
	char text[100];
	int pages = stats_reader_fd(m->stats, &err);
	for (unsigned i = 0; i < m->n_slots; i++)
		put_kept(u, &m->slots[i]);
	if (pages >= 0) {
		put_word(u, UPGRADE_COUNTERS, pages);
		close(pages);
	}
	pidfile_leave(m);
	notify_heir(m, u->pid);
	monitor_child_leave(m);
	put_word(u, UPGRADE_GO, -1);
	u->stage = UPGRADE_GONE;
	m->owns_paths = false;
	ev_timer_stop(m->loop, &u->patience);
	snprintf(text, sizeof text, "upgraded: process %d serves now", (int)u->pid);
	log_info("upgrade: process %d serves now; this one delivers what it holds and ends", (int)u->pid);
	answer(m, u->client, "ok", text);
	u->client = 0;
}

static void done(struct upgrade *u)
{
	put_word(u, UPGRADE_DONE, -1);
	if (!net_link_flush(&u->link, clock_us() + DONE_LIMIT_US))
		log_error("upgrade: the new millrace does not take what this one has for it");
	u->m->is_draining = true; /* of nothing: all is done */
	ev_break(u->m->loop, EVBREAK_ALL);
}

void upgrade_look(struct master *m)
{
	struct upgrade *u = m->upgrade;
	if (!upgrade_is_leaving(m) || m->is_draining)
		return;
	bool all_left = true, all_gone = true;
	for (unsigned i = 0; i < m->n_slots; i++) {
		struct slot *s = &m->slots[i];
		if (s->restart.state == RESTART_READY && !s->now.is_leaving)
			slots_leave(s, false);
		all_left &= !child_is_there(&s->now.child) || s->now.has_left;
		all_gone &= !child_is_there(&s->now.child);
	}
	if (all_left && u->stage == UPGRADE_LEAVING)
		go(u);
	for (unsigned i = 0; u->stage == UPGRADE_GONE && i < m->n_slots; i++)
		put_kept(u, &m->slots[i]);
	if (all_gone && u->stage == UPGRADE_GONE)
		done(u);
}

static bool heard(struct net_link *l, struct net_message *k)
{
	struct upgrade *u = l->owner;
	const struct upgrade_message *head = (const void *)k->bytes;
	if (k->len < UPGRADE_HEAD_BYTES)
		return false;
	if (head->type == UPGRADE_READY && u->stage == UPGRADE_STARTING) {
		u->stage = UPGRADE_LEAVING;
		control_pause(u->m, true);
		upgrade_look(u->m);
	} else if (head->type == UPGRADE_FAILED) {
		u->has_failed = true;
	}
	return false;
}

static void ended(struct net_link *l)
{
	struct upgrade *u = l->owner;
	if (u->stage != UPGRADE_GONE) /* then it is on its own, and what we still hold is delivered */
		fail(u, u->has_failed ? "cannot be run" : "ended before it was ready; its log lines say more");
}

/* -- the beginning ------------------------------------------------------------------------------------------------- */

static const char *cannot(const struct master *m)
{
	for (size_t i = 0; i < m->n_inputs; i++)
		if (m->inputs[i].type->is_finite || input_is_dpdk(&m->inputs[i]))
			return "DPDK ports and files cannot be handed over; restart instead.";
	return m->is_draining || !m->has_started ? "millrace is starting or ending."
	       : m->reload			 ? "A reload is under way; try again when it is done."
	       : m->upgrade || m->is_heir	 ? "An upgrade is under way."
						 : NULL;
}

/* As it was called, from where it was called: a daemon has gone elsewhere. */
static char program[2 * PATH_MAX];

void upgrade_remember(const char *argv0)
{
	char folder[PATH_MAX];
	bool is_relative = argv0[0] != '/' && strchr(argv0, '/') && getcwd(folder, sizeof folder);
	snprintf(program, sizeof program, "%s%s%s", is_relative ? folder : "", is_relative ? "/" : "", argv0);
}

static _Noreturn void run(struct master *m, int fd)
{
	char number[16];
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	proc_close_others(&fd, 1); /* libpcap's are not close-on-exec, and would keep rings in their group */
	fcntl(fd, F_SETFD, 0);
	snprintf(number, sizeof number, "%d", fd);
	setenv(UPGRADE_ENVIRONMENT, number, 1);
	snprintf(number, sizeof number, "%d", (int)getpid());
	if (getenv("WATCHDOG_PID"))
		setenv("WATCHDOG_PID", number, 1); /* systemd will watch the new one */
	execvp(program, m->argv);
	msg = (struct upgrade_message){.version = UPGRADE_VERSION, .type = UPGRADE_FAILED};
	net_send_fd(fd, &msg, UPGRADE_HEAD_BYTES, -1);
	_exit(127);
}

/* Not our child but init's: systemd waits only for a main process that is its own child when MAINPID= names it, and would
 * kill another one as soon as it told it to end. */
static pid_t start(struct master *m, int fd)
{
	int ends[2];
	pid_t heir = -1;
	if (pipe2(ends, O_CLOEXEC) == -1)
		return -1;
	pid_t between = fork();
	if (between == 0) {
		pid_t pid = fork();
		if (pid == 0)
			run(m, fd);
		_exit(write(ends[1], &pid, sizeof pid) == sizeof pid ? 0 : 1);
	}
	close(ends[1]);
	if (between > 0 && read(ends[0], &heir, sizeof heir) != sizeof heir)
		heir = -1;
	while (between > 0 && waitpid(between, NULL, 0) == -1 && errno == EINTR)
		;
	close(ends[0]);
	return heir;
}

static struct upgrade *upgrade_new(struct master *m, int link)
{
	struct upgrade *u = calloc(1, sizeof(*u));
	if (!u) {
		close(link);
		return NULL;
	}
	u->m = m;
	u->pidfd = -1;
	u->link.on_message = heard;
	u->link.on_end = ended;
	u->link.owner = u;
	net_link_open(&u->link, m->loop, link, sizeof(struct upgrade_message));
	ev_timer_init(&u->patience, patience_over, 2 * (double)m->cf->start_timeout / 1e6 + 5, 0);
	u->patience.data = u;
	ev_timer_start(m->loop, &u->patience);
	return u;
}

void upgrade_begin(struct master *m, uint64_t client)
{
	const char *why = cannot(m);
	int pair[2];
	int r = why ? 0 : net_link_pair(pair);
	if (!why && r != 0)
		why = strerror(-r);
	struct upgrade *u = why ? NULL : upgrade_new(m, pair[0]);
	if (!u) {
		if (!why)
			close(pair[1]);
		log_error("upgrade: %s", why ? why : "no memory");
		answer(m, client, "error", why ? why : "no memory");
		return;
	}
	u->client = client;
	m->upgrade = u;
	log_info("upgrade: starting %s", program);
	fflush(NULL);
	u->pid = start(m, pair[1]);
	u->pidfd = u->pid > 0 ? (int)syscall(SYS_pidfd_open, u->pid, 0) : -1;
	close(pair[1]);
	if (u->pid == -1)
		fail(u, "cannot be started");
	else if (put_endpoints(u) != 0)
		fail(u, "cannot be told what there is: no memory or descriptors");
}
