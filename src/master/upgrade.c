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
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum upgrade_stage { UPGRADE_STARTING, UPGRADE_LEAVING, UPGRADE_GONE };

struct upgrade {
	struct master *m;
	struct client *client;
	enum upgrade_stage stage;
	pid_t pid;
	int fd;
	struct ev_io io, writable;
	struct ev_timer patience;
	struct letters outbox;
};

/* -- letters ------------------------------------------------------------------------------------------------------- */

static void send_on(struct upgrade *u)
{
	struct letter *l;
	while ((l = STAILQ_FIRST(&u->outbox)) != NULL) {
		if (net_send_fd(u->fd, l->bytes, l->len, l->fd) == -EAGAIN) {
			ev_io_start(u->m->loop, &u->writable);
			return;
		}
		STAILQ_REMOVE_HEAD(&u->outbox, next);
		if (l->fd != -1)
			close(l->fd);
		free(l);
	}
	ev_io_stop(u->m->loop, &u->writable);
}

static void writable(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	send_on(io->data);
}

/* fd is duplicated. */
static void put(struct upgrade *u, const struct upgrade_message *msg, int fd)
{
	size_t len = UPGRADE_HEAD_BYTES + msg->kept_bytes;
	struct letter *l = malloc(sizeof *l + len);
	BUG_ON(!l);
	l->fd = fd == -1 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	l->len = len;
	memcpy(l->bytes, msg, len);
	STAILQ_INSERT_TAIL(&u->outbox, l, next);
}

static void put_word(struct upgrade *u, enum upgrade_type type, int fd)
{
	struct upgrade_message *msg = calloc(1, sizeof *msg);
	BUG_ON(!msg);
	msg->version = UPGRADE_VERSION;
	msg->type = type;
	msg->number = (uint32_t)getpid();
	put(u, msg, fd);
	free(msg);
}

static void put_endpoints(struct upgrade *u)
{
	struct master *m = u->m;
	const char *path;
	struct upgrade_message *msg = calloc(1, sizeof *msg);
	BUG_ON(!msg);
	for (size_t i = 0; i < m->n_inputs; i++)
		for (unsigned e = 0; e < m->inputs[i].n_endpoints; e++) {
			const struct endpoint *ep = &m->inputs[i].endpoints[e];
			bool is_capture = m->inputs[i].type->is_packets;
			for (unsigned k = 0; k < (is_capture ? 1 : ep->n_fds); k++) {
				*msg = (struct upgrade_message){.version = UPGRADE_VERSION,
								.type = UPGRADE_ENDPOINT,
								.number = k,
								.n = is_capture ? 1 : ep->n_fds,
								.group = input_group(&m->inputs[i], ep),
								.address = ep->address};
				snprintf(msg->kind, sizeof msg->kind, "%s", m->inputs[i].type->name);
				snprintf(msg->name, sizeof msg->name, "%s", ep->name);
				put(u, msg, is_capture ? -1 : ep->fds[k]);
			}
		}
	int control = control_fd(m, &path);
	if (control != -1) {
		*msg = (struct upgrade_message){.version = UPGRADE_VERSION, .type = UPGRADE_CONTROL};
		snprintf(msg->name, sizeof msg->name, "%s", path);
		put(u, msg, control);
	}
	if (m->keeper.http_fd != -1) {
		*msg = (struct upgrade_message){.version = UPGRADE_VERSION, .type = UPGRADE_HTTP};
		snprintf(msg->name, sizeof msg->name, "%s", m->cf->http);
		put(u, msg, m->keeper.http_fd);
	}
	free(msg);
	put_word(u, UPGRADE_END, -1);
	send_on(u);
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

static void put_connections(struct upgrade *u, struct slot *s)
{
	struct letter *l;
	struct upgrade_message *msg = calloc(1, sizeof *msg);
	BUG_ON(!msg);
	while ((l = STAILQ_FIRST(&s->connections)) != NULL) {
		const struct link_connection *c = (const void *)l->bytes;
		*msg = (struct upgrade_message){.version = UPGRADE_VERSION,
						.type = UPGRADE_CONNECTION,
						.value = c->head.value,
						.kept_bytes = (uint32_t)(l->len - sizeof c->head)};
		bool is_lines = c->head.type == LINK_LINES;
		if (is_lines) {
			msg->type = UPGRADE_LINES;
			msg->kept_bytes = 0;
		}
		snprintf(msg->name, sizeof msg->name, "%s",
			 is_lines ? output_name(u->m, c->head.input) : input_name(u->m, c->head.input));
		memcpy(msg->kept, c->kept, msg->kept_bytes);
		put(u, msg, l->fd);
		STAILQ_REMOVE_HEAD(&s->connections, next);
		close(l->fd);
		free(l);
	}
	free(msg);
}

/* -- the end, one way or the other --------------------------------------------------------------------------------- */

static void upgrade_free(struct upgrade *u)
{
	struct letter *l;
	ev_io_stop(u->m->loop, &u->io);
	ev_io_stop(u->m->loop, &u->writable);
	ev_timer_stop(u->m->loop, &u->patience);
	while ((l = STAILQ_FIRST(&u->outbox)) != NULL) {
		STAILQ_REMOVE_HEAD(&u->outbox, next);
		if (l->fd != -1)
			close(l->fd);
		free(l);
	}
	close(u->fd);
	free(u);
}

void upgrade_fini(struct master *m)
{
	if (m->upgrade)
		upgrade_free(m->upgrade);
	m->upgrade = NULL;
}

static void answer(struct client *client, const char *word, const char *text)
{
	struct text t = {0};
	text_add(&t, "%s %s", word, text);
	if (client)
		control_answer(client, &t);
	text_free(&t);
}

static void fail(struct upgrade *u, const char *why)
{
	struct master *m = u->m;
	struct client *client = u->client;
	bool had_begun = u->stage == UPGRADE_LEAVING;
	char text[300];
	if (u->pid > 0)
		kill(u->pid, SIGKILL); /* it has ended, or it must */
	snprintf(text, sizeof text, "Nothing has changed: the new millrace %s.", why);
	m->upgrade = NULL;
	upgrade_free(u);
	log_error("upgrade: %s", text);
	answer(client, "error", text);
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
	char text[100];
	for (unsigned i = 0; i < m->n_slots; i++)
		put_connections(u, &m->slots[i]);
	for (unsigned i = 0; i < stats_files(m->stats); i++)
		put_word(u, UPGRADE_COUNTERS, stats_reader_fd(m->stats, i));
	pidfile_leave(m);
	notify_heir(m, u->pid);
	keeper_leave(m);
	put_word(u, UPGRADE_GO, -1);
	send_on(u);
	u->stage = UPGRADE_GONE;
	m->owns_paths = false;
	ev_timer_stop(m->loop, &u->patience);
	snprintf(text, sizeof text, "upgraded: process %d serves now", (int)u->pid);
	log_info("upgrade: process %d serves now; this one delivers what it holds and ends", (int)u->pid);
	answer(u->client, "ok", text);
	u->client = NULL;
}

static void done(struct upgrade *u)
{
	put_word(u, UPGRADE_DONE, -1);
	send_on(u);
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
		if (s->life.state == LIFE_READY && !s->is_leaving)
			slots_leave(s, false);
		all_left &= s->pid == 0 || s->has_left;
		all_gone &= s->pid == 0;
	}
	if (all_left && u->stage == UPGRADE_LEAVING)
		go(u);
	for (unsigned i = 0; u->stage == UPGRADE_GONE && i < m->n_slots; i++)
		put_connections(u, &m->slots[i]);
	if (u->stage == UPGRADE_GONE)
		send_on(u);
	if (all_gone && u->stage == UPGRADE_GONE)
		done(u);
}

static void heard(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	struct upgrade *u = io->data;
	static struct upgrade_message msg;
	int fd;
	ssize_t n = net_recv_fd(io->fd, &msg, sizeof msg, &fd);
	if (fd != -1)
		close(fd);
	if (n == -EAGAIN || n == -EINTR)
		return;
	if (n >= (ssize_t)UPGRADE_HEAD_BYTES && msg.type == UPGRADE_READY && u->stage == UPGRADE_STARTING) {
		u->stage = UPGRADE_LEAVING;
		control_pause(u->m, true);
		upgrade_look(u->m);
		return;
	}
	if (u->stage == UPGRADE_GONE) { /* it is on its own; what we still hold is delivered */
		ev_io_stop(u->m->loop, io);
		return;
	}
	fail(u, msg.type == UPGRADE_FAILED && n >= (ssize_t)UPGRADE_HEAD_BYTES
			? "cannot be run"
			: "ended before it was ready; its log lines say more");
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
	struct upgrade_message msg = {.version = UPGRADE_VERSION, .type = UPGRADE_FAILED};
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

void upgrade_begin(struct master *m, struct client *client)
{
	const char *why = cannot(m);
	int pair[2] = {-1, -1};
	struct upgrade *u = why ? NULL : calloc(1, sizeof *u);
	if (u && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == -1) {
		free(u);
		u = NULL;
		why = strerror(errno);
	}
	if (!u) {
		log_error("upgrade: %s", why ? why : "no memory");
		answer(client, "error", why ? why : "no memory");
		return;
	}
	u->m = m;
	u->client = client;
	u->fd = pair[0];
	STAILQ_INIT(&u->outbox);
	ev_io_init(&u->io, heard, u->fd, EV_READ);
	ev_io_init(&u->writable, writable, u->fd, EV_WRITE);
	ev_timer_init(&u->patience, patience_over, 2 * (double)m->cf->start_timeout / 1e6 + 5, 0);
	u->io.data = u->writable.data = u->patience.data = u;
	m->upgrade = u;
	log_info("upgrade: starting %s", program);
	fflush(NULL);
	u->pid = start(m, pair[1]);
	close(pair[1]);
	if (u->pid == -1) {
		fail(u, "cannot be started");
		return;
	}
	ev_io_start(m->loop, &u->io);
	ev_timer_start(m->loop, &u->patience);
	put_endpoints(u);
}
