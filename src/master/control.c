/* SPDX-License-Identifier: MIT
 *
 * The control socket: one line asked, one line answered, then the connection ends. At most 16 clients and 5 seconds
 * each, and who comes when it is full takes the place of the oldest, so that one which hangs or floods harms nobody. Who
 * waits for an answer that takes its time keeps his place, and is known to others by number only: he may go away.
 * Everything that is only numbers is computed by millracectl from the pages' descriptor; what is left here is short.
 * Master only.
 */
#include "master.h"

#include <errno.h>
#include <event.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_MAX = CONTROL_CLIENTS_MAX, LINE_BYTES = 256, INVALID_SHOWN = 32, SOCKET_MODE = 0660 };
static const double client_seconds = 5;

struct client {
	struct control *control; /* NULL: free */
	int fd;
	struct ev_io io;
	struct ev_timer timeout;
	bool is_waiting; /* for control_answer */
	char line[LINE_BYTES];
	size_t len;
	uint64_t number; /* from 1, in the order in which they came */
};

struct control {
	struct master *m;
	int fd; /* -1: closed, since the configuration has no path any more */
	char *path;
	struct ev_io io;
	uint64_t n_clients;
	struct client clients[CLIENTS_MAX];
};

static void client_close(struct client *c)
{
	struct master *m = c->control->m;
	ev_io_stop(m->loop, &c->io);
	ev_timer_stop(m->loop, &c->timeout);
	close(c->fd);
	c->control = NULL;
}

/* -- the commands ------------------------------------------------------------------------------------------------- */

struct answer {
	struct text text;
	int fd; /* a descriptor to go with it, borrowed; -1: none */
	struct client *client;
	bool is_later; /* control_answer will be called */
};

static void ask_pages(struct master *m, const char *arg, struct answer *a)
{
	(void)arg;
	a->fd = stats_reader_fd(m->stats, 0);
	text_add(&a->text, "ok %s %d", MILLRACE_VERSION, (int)getpid());
}

/* The other files, one an answer: there may be more than a socket's buffer holds. */
static void ask_page(struct master *m, const char *arg, struct answer *a)
{
	uint64_t file;
	bool is_number = text_parse_uint(arg, &file) == 0 && file < stats_files(m->stats);
	a->fd = is_number ? stats_reader_fd(m->stats, (unsigned)file) : -1;
	if (a->fd == -1)
		text_add(&a->text, "error there are the pages 0 to %u", stats_files(m->stats) - 1);
	else
		text_add(&a->text, "ok %s %d", MILLRACE_VERSION, (int)getpid());
}

static void ask_log(struct master *m, const char *arg, struct answer *a)
{
	enum log_level level;
	char shown[64];
	if (log_level_parse(arg, &level) != 0) {
		text_add(&a->text, "error \"%s\" is no log level; allowed are error, warn, info and debug",
			 text_escape(shown, sizeof shown, arg, strlen(arg)));
		return;
	}
	master_set_log_level(m, level);
	text_add(&a->text, "ok log level is %s", arg);
}

static void ask_drain(struct master *m, const char *arg, struct answer *a)
{
	(void)arg;
	master_drain(m, m->cf->drain_timeout);
	text_add(&a->text, "ok draining");
}

static uint64_t answer_later(struct master *m, struct answer *a)
{
	a->is_later = a->client->is_waiting = true;
	ev_timer_stop(m->loop, &a->client->timeout);
	return a->client->number;
}

static void ask_reload(struct master *m, const char *arg, struct answer *a)
{
	(void)arg;
	if (m->reload) {
		text_add(&a->text, "error a reload is under way; ask again when it is done");
		return;
	}
	reload_begin(m, answer_later(m, a));
}

static void ask_upgrade(struct master *m, const char *arg, struct answer *a)
{
	(void)arg;
	upgrade_begin(m, answer_later(m, a));
}

/* The newest last. */
struct shown_line {
	struct invalid_line line;
	const char *input;
	unsigned slot;
};

static int by_time(const void *a, const void *b)
{
	uint64_t x = ((const struct shown_line *)a)->line.at_us, y = ((const struct shown_line *)b)->line.at_us;
	return (x > y) - (x < y);
}

static size_t keep_newest(struct shown_line *shown, size_t n)
{
	qsort(shown, n, sizeof(*shown), by_time);
	if (n <= INVALID_SHOWN)
		return n;
	memmove(shown, shown + n - INVALID_SHOWN, INVALID_SHOWN * sizeof(*shown));
	return INVALID_SHOWN;
}

/* Of every process that a slot may have: of the worker that there is, and of the one before it. */
static size_t collect_invalid(struct master *m, struct shown_line *shown)
{
	struct invalid_line lines[INVALID_KEPT];
	size_t n = 0;
	for (size_t i = 0; i < m->n_inputs; i++) {
		for (unsigned k = 0; k < STATS_SLOT_PAGES * m->n_slots; k++) {
			unsigned slot = k / STATS_SLOT_PAGES, which = k % STATS_SLOT_PAGES;
			size_t taken = invalid_take(receive_batch(m->receive, slot, which, m->inputs[i].index), lines);
			while (taken > 0)
				shown[n++] = (struct shown_line){lines[--taken], m->inputs[i].cf->name, slot};
			n = keep_newest(shown, n);
		}
	}
	return n;
}

static void ask_invalid(struct master *m, const char *arg, struct answer *a)
{
	(void)arg;
	char when[64];
	struct shown_line *shown = calloc(INVALID_SHOWN + INVALID_KEPT, sizeof(*shown));
	if (!shown) {
		text_add(&a->text, "error no memory");
		return;
	}
	size_t n = collect_invalid(m, shown);
	text_add(&a->text, "ok");
	if (n == 0)
		text_add(&a->text, " no invalid line came yet");
	for (size_t i = 0; i < n; i++) {
		time_t seconds = (time_t)(shown[i].line.at_us / 1000000);
		struct tm tm;
		if (!gmtime_r(&seconds, &tm) || strftime(when, sizeof(when), "%FT%TZ", &tm) == 0)
			continue;
		text_add(&a->text, "%c%s input \"%s\" worker %u ", i == 0 ? ' ' : '\t', when, shown[i].input,
			 shown[i].slot);
		invalid_add(&shown[i].line, &a->text);
	}
	free(shown);
}

static const struct {
	const char *name;
	void (*ask)(struct master *m, const char *arg, struct answer *a);
	bool takes_arg;
} commands[] = {
#define CONTROL(name, word, args, help) {name, ask_##word, sizeof(args) > 1},
#include <tbl/control.def>
};

static void say(struct client *c, struct text *t, int fd)
{
	text_add(t, "\n");
	if (t->s)
		net_send_fd(c->fd, t->s, t->len, fd); /* fits the socket's buffer, or the client has its own trouble */
}

void control_answer(struct master *m, uint64_t client, struct text *t)
{
	for (size_t i = 0; m->control && i < CLIENTS_MAX; i++) {
		struct client *c = &m->control->clients[i];
		if (!c->control || !c->is_waiting || c->number != client)
			continue;
		say(c, t, -1);
		client_close(c);
	}
}

unsigned control_guests(const struct master *m, struct control_guest guests[CONTROL_CLIENTS_MAX])
{
	unsigned n = 0;
	for (size_t i = 0; m->control && i < CLIENTS_MAX; i++) {
		const struct client *c = &m->control->clients[i];
		if (c->control && (c->is_waiting || c->len == 0))
			guests[n++] = (struct control_guest){.fd = c->fd, .is_waiting = c->is_waiting};
	}
	return n;
}

/* True when the client is done. */
static bool answer(struct client *c, size_t len)
{
	struct answer a = {.fd = -1, .client = c};
	char *arg = strchr(c->line, ' '), shown[64];
	bool has_nul = strlen(c->line) < len;
	if (arg)
		*arg++ = '\0';
	size_t i = 0;
	while (i < ARRAY_LEN(commands) && strcmp(commands[i].name, c->line) != 0)
		i++;
	if (i == ARRAY_LEN(commands) || has_nul)
		text_add(&a.text, "error \"%s\" is no command of this millrace",
			 text_escape(shown, sizeof shown, c->line, strlen(c->line)));
	else if (commands[i].takes_arg != (arg != NULL))
		text_add(&a.text, "error %s takes %s", c->line, commands[i].takes_arg ? "one word" : "nothing");
	else
		commands[i].ask(c->control->m, arg ? arg : "", &a);
	if (!a.is_later)
		say(c, &a.text, a.fd);
	text_free(&a.text);
	return !a.is_later;
}

/* -- clients ------------------------------------------------------------------------------------------------------- */

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct client *c = io->data;
	if (c->is_waiting) { /* it has asked; it may have closed its side behind the command */
		ev_io_stop(c->control->m->loop, io);
		return;
	}
	ssize_t n = read(c->fd, c->line + c->len, sizeof c->line - 1 - c->len);
	if (n == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0) {
		c->len += (size_t)n;
		char *newline = memchr(c->line, '\n', c->len);
		if (!newline && c->len < sizeof c->line - 1)
			return;
		if (newline) {
			*newline = '\0';
			if (!answer(c, (size_t)(newline - c->line)))
				return;
		}
	}
	client_close(c);
}

static void timed_out(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	client_close(timer->data);
}

/* The oldest of those that are still to ask makes place. NULL: all wait for an answer. */
static struct client *free_place(struct control *control)
{
	struct client *oldest = NULL;
	for (size_t i = 0; i < CLIENTS_MAX; i++) {
		struct client *c = &control->clients[i];
		if (!c->control)
			return c;
		if (!c->is_waiting && (!oldest || c->number < oldest->number))
			oldest = c;
	}
	if (oldest)
		client_close(oldest);
	return oldest;
}

/* Takes fd. NULL: there is no place. */
static struct client *client_new(struct control *control, int fd)
{
	struct ev_loop *loop = control->m->loop;
	struct client *c = free_place(control);
	if (!c) {
		close(fd);
		return NULL;
	}
	*c = (struct client){.control = control, .fd = fd, .number = ++control->n_clients};
	ev_io_init(&c->io, readable, fd, EV_READ);
	ev_timer_init(&c->timeout, timed_out, client_seconds, 0);
	c->io.data = c->timeout.data = c;
	ev_io_start(loop, &c->io);
	ev_timer_start(loop, &c->timeout);
	return c;
}

static void acceptable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	int fd = accept4(io->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd != -1)
		client_new(io->data, fd);
}

uint64_t control_adopt(struct master *m, const struct control_guest *guest)
{
	if (!m->control) {
		close(guest->fd);
		return 0;
	}
	struct client *c = client_new(m->control, guest->fd);
	if (!c || !guest->is_waiting)
		return 0;
	c->is_waiting = true;
	ev_timer_stop(m->loop, &c->timeout);
	return c->number;
}

static int give_to_group(const struct conf *cf, const char *path, struct err *err)
{
	unsigned gid = getegid();
	int r = cf->control_group[0] ? identity_group(cf->control_group, "control_group", &gid, err) : 0;
	if (r == 0 && chown(path, (uid_t)-1, gid) == -1)
		r = err_set(err, -errno,
			    "control_group: \"%s\" cannot have the socket %s: %s; name a group that you are in.",
			    cf->control_group, path, strerror(errno));
	return r;
}

static void stop_listening(struct control *control)
{
	if (control->fd == -1)
		return;
	ev_io_stop(control->m->loop, &control->io);
	close(control->fd);
	unlink(control->path);
	free(control->path);
	control->path = NULL;
	control->fd = -1;
}

int control_move(struct master *m, const struct conf *cf, struct err *err)
{
	const char *path = cf->control;
	if (m->control && m->control->path && strcmp(m->control->path, path) == 0)
		return give_to_group(cf, path, err);
	struct control *control = m->control ? m->control : calloc(1, sizeof *control);
	char *copy = strdup(path);
	int fd = !control || !copy ? err_set(err, -ENOMEM, "No memory for the control socket.")
		 : path[0]	   ? net_unix_bind(path, SOCK_STREAM, SOCKET_MODE, err)
				   : -1;
	int r = path[0] && fd >= 0 ? give_to_group(cf, path, err) : fd;
	if (r < 0 && path[0]) {
		if (fd >= 0) {
			close(fd);
			unlink(path);
		}
		free(copy);
		if (control != m->control)
			free(control);
		return r;
	}
	if (!m->control) {
		control->m = m;
		control->fd = -1;
		m->control = control;
	}
	stop_listening(control);
	if (fd < 0) {
		free(copy);
		return 0;
	}
	control->fd = fd;
	control->path = copy;
	ev_io_init(&control->io, acceptable, fd, EV_READ);
	control->io.data = control;
	ev_io_start(m->loop, &control->io);
	return 0;
}

static int inherit(struct master *m)
{
	struct control *control = calloc(1, sizeof *control);
	if (!control || !(control->path = strdup(m->cf->control))) {
		free(control);
		return -ENOMEM;
	}
	control->m = m;
	control->fd = m->control_fd;
	ev_io_init(&control->io, acceptable, control->fd, EV_READ);
	control->io.data = control;
	ev_io_start(m->loop, &control->io);
	m->control = control;
	return 0;
}

int control_fd(const struct master *m, const char **path)
{
	*path = m->control ? m->control->path : NULL;
	return m->control ? m->control->fd : -1;
}

int control_open(struct master *m, struct err *err)
{
	if (m->control_fd != -1 && inherit(m) != 0)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	if (m->control)
		return give_to_group(m->cf, m->cf->control, err);
	return m->cf->control[0] ? control_move(m, m->cf, err) : 0;
}

void control_close(struct master *m)
{
	struct control *control = m->control;
	if (!control)
		return;
	m->control = NULL;
	for (size_t i = 0; i < CLIENTS_MAX; i++)
		if (control->clients[i].control)
			client_close(&control->clients[i]);
	stop_listening(control);
	free(control);
}
