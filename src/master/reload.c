/* SPDX-License-Identifier: MIT
 *
 * reload: from a file that has changed to workers that run with it, one at a time. An error changes nothing until all is
 * checked and bound. The drawing is in reload.h. Master only.
 */
#include "reload.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOG_LINES = 20, ANSWER_BYTES = 60000 };

/* -- the end ------------------------------------------------------------------------------------------------------- */

static void reload_free(struct reload *r)
{
	ev_io_stop(r->m->loop, &r->io);
	ev_timer_stop(r->m->loop, &r->patience);
	generation_give_up(r->m, &r->next);
	if (r->has_moved)
		generation_close(r->m, &r->gone);
	conf_diff_free(&r->diff);
	conf_free(r->cf);
	text_free(&r->said);
	free(r->bytes);
	free(r);
}

static void count(struct master *m, bool failed)
{
	struct stats_master *st = stats_master(m->page);
	st->reloads += !failed;
	st->reload_failures += failed;
	st->reload_failed = m->reload_failed = failed;
	st->reloading = 0;
	if (!failed) {
		st->config_digest = conf_digest(m->cf);
		st->workers = m->n_slots;
	}
	stats_touch(m->page, STATS_MASTER, 0);
	stats_publish(m->page);
}

static void end(struct master *m, struct client *client, bool failed, struct text *t)
{
	count(m, failed);
	if (m->has_started && !m->is_draining)
		notify_ready(m);
	if (client)
		control_answer(client, t);
	text_free(t);
	if (m->reload_again && !m->is_draining) {
		m->reload_again = false;
		reload_begin(m, NULL);
	}
}

/* Lines are parted by tabs: an answer is one line. */
static void add_line(struct text *t, const char *line, size_t len)
{
	if (t->len + len > ANSWER_BYTES)
		return;
	text_add(t, "\t");
	text_add_bytes(t, line, len);
}

/* `why` has a sentence; `lines` may have more, one a line. */
static void refuse(struct master *m, struct client *client, const char *why, const struct text *lines)
{
	struct text t = {0};
	log_error("reload: %s", why);
	text_add(&t, "error %s", why);
	const char *at = lines && lines->s ? lines->s : "";
	for (unsigned n = 0; *at; n++) {
		size_t len = strcspn(at, "\n");
		if (n < LOG_LINES)
			log_error("reload: %.*s", (int)len, at);
		add_line(&t, at, len);
		at += len + (at[len] != '\0');
	}
	end(m, client, true, &t);
}

void reload_give_up(struct reload *r, const char *why, const struct text *lines)
{
	struct master *m = r->m;
	struct client *client = r->client;
	struct text copy = {0};
	if (lines && lines->s)
		text_add_bytes(&copy, lines->s, lines->len);
	m->reload = NULL;
	reload_free(r);
	refuse(m, client, why, &copy);
	text_free(&copy);
}

void reload_finish(struct reload *r, const char *how)
{
	struct master *m = r->m;
	struct client *client = r->client;
	struct text t = {0};
	size_t n = r->diff.n;
	if (n == 0 && r->class == CONF_RELOAD_NONE)
		text_add(&t, "ok nothing has changed");
	else
		text_add(&t, "ok %zu change%s, applied %s", n, n == 1 ? "" : "s", how);
	log_info("reload: %s", t.s ? t.s + 3 : "done");
	for (size_t i = 0; i < n; i++) {
		struct text line = {0};
		text_add(&line, "%s", r->diff.changes[i].text);
		if (i < LOG_LINES)
			log_info("reload: %s", line.s ? line.s : "");
		add_line(&t, line.s ? line.s : "", line.len);
		text_free(&line);
	}
	if (n > LOG_LINES)
		log_info("reload: and %zu more changes", n - LOG_LINES);
	if (n > 0 || r->class > CONF_RELOAD_NONE) {
		stats_master(m->page)->loaded_us = clock_real_us();
		stats_touch(m->page, STATS_MASTER, 0);
	}
	m->reload = NULL;
	reload_free(r);
	end(m, client, false, &t);
}

void reload_abort(struct master *m)
{
	struct reload *r = m->reload;
	m->reload_again = false;
	if (!r)
		return;
	if (r->child) {
		kill(r->child, SIGKILL);
		waitpid(r->child, NULL, 0);
	}
	reload_give_up(r, "millrace ends; the reload is given up.", NULL);
}

void reload_client_gone(struct master *m, const struct client *client)
{
	if (m->reload && m->reload->client == client)
		m->reload->client = NULL;
}

/* The class that covers it all. Workers that an earlier reload did not reach are rolled now. */
static enum conf_reload class_of(const struct reload *r)
{
	const struct master *m = r->m;
	enum conf_reload class = r->diff.reload;
	if (master_workers(r->cf) != m->n_slots_wanted)
		class = MAX(class, CONF_RELOAD_RESPAWN);
	if (registry_has_lost_path(&m->registry))
		class = MAX(class, CONF_RELOAD_REBIND);
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].generation < m->generation || m->slots[i].life.state == LIFE_FAILED)
			class = MAX(class, CONF_RELOAD_RESPAWN);
	return class;
}

/* -- CHECKING ------------------------------------------------------------------------------------------------------ */

/* A copy of a ring's mapping would keep the ring in its group. */
static void close_others(struct master *m, int mine)
{
	registry_leave_alone(&m->registry);
	proc_close_others(&mine, 1);
}

static _Noreturn void check(struct reload *r, int fd)
{
	struct text errors = {0};
	signal(SIGPIPE, SIG_DFL);
	close_others(r->m, fd);
	size_t n = input_check(r->cf, &errors) + output_check(r->cf, &errors);
	for (size_t i = 0; n == 0 && i < r->next.n_outputs; i++)
		if (r->next.outputs[i].type->fill && !generation_shares(r->m, &r->next.outputs[i]))
			r->next.outputs[i].type->fill(&r->next.outputs[i]);
	for (size_t at = 0; at < errors.len;) {
		ssize_t done = write(fd, errors.s + at, errors.len - at);
		if (done <= 0)
			break;
		at += (size_t)done;
	}
	_exit(n == 0 ? 0 : 1);
}

static void checked(struct reload *r, int status)
{
	struct err err = {""};
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		reload_give_up(r,
			r->said.len ? "Nothing has changed, since the file has errors."
				    : "Nothing has changed: the process that checks the configuration died; try again.",
			&r->said);
		return;
	}
	if (generation_finish_outputs(r->m, &r->next, r->class == CONF_RELOAD_LIVE, &err) != 0) {
		reload_give_up(r, err.text, NULL);
		return;
	}
	if (r->class == CONF_RELOAD_LIVE)
		reload_apply_live(r);
	else
		reload_apply_rolling(r);
}

static void child_says(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)events;
	struct reload *r = io->data;
	char buf[4096];
	int status = -1;
	ssize_t n = read(io->fd, buf, sizeof buf);
	if (n == -1 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0) {
		text_add_bytes(&r->said, buf, (size_t)n);
		return;
	}
	ev_io_stop(loop, io);
	close(io->fd);
	while (waitpid(r->child, &status, 0) == -1 && errno == EINTR)
		;
	r->child = 0;
	checked(r, status);
}

static void begin_check(struct reload *r)
{
	struct master *m = r->m;
	int ends[2];
	struct err err = {""};
	if (generation_outputs(m, r->cf, &r->next, &err) != 0) {
		reload_give_up(r, err.text, NULL);
		return;
	}
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == -1) {
		reload_give_up(r, strerror(errno), NULL);
		return;
	}
	fcntl(ends[1], F_SETFL, 0);
	fflush(NULL);
	r->child = fork();
	if (r->child == 0)
		check(r, ends[1]);
	close(ends[1]);
	if (r->child == -1) {
		r->child = 0;
		close(ends[0]);
		reload_give_up(r, "Nothing has changed: no process to check the configuration; try again.", NULL);
		return;
	}
	ev_io_init(&r->io, child_says, ends[0], EV_READ);
	r->io.data = r;
	ev_io_start(m->loop, &r->io);
}

/* -- the beginning ------------------------------------------------------------------------------------------------- */

static const char *cannot(const struct master *m)
{
	if (m->is_draining || !m->has_started)
		return m->is_draining ? "millrace is draining." : "millrace has not started yet; try again.";
	if (m->upgrade || m->is_heir)
		return "an upgrade is under way; try again.";
	if (!m->args)
		return "fastcapa cannot be reloaded; restart it.";
	return m->args->path ? NULL : "There is no configuration file: millrace was started with flags only; restart it.";
}

static int read_and_parse(struct reload *r, struct text *errors)
{
	const char *path = r->m->args->path;
	struct stat st;
	/* a start may wait for who writes into a FIFO; the master's loop may not */
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
		text_add(errors, "%s: is no file; only a file can be read again\n", path);
		return -EINVAL;
	}
	int code = conf_read_file(path, &r->bytes, &r->len);
	if (code != 0) {
		text_add(errors, "%s: cannot be read: %s; give a readable YAML file\n", path, strerror(-code));
		return code;
	}
	struct conf_errors found;
	r->cf = conf_load_bytes(path, r->bytes, r->len, r->m->args, &found);
	*errors = found.text;
	return r->cf ? 0 : -EINVAL;
}

void reload_begin(struct master *m, struct client *client)
{
	if (m->reload) {
		m->reload_again = true;
		return;
	}
	const char *why = cannot(m);
	struct reload *r = why ? NULL : calloc(1, sizeof *r);
	if (!r) {
		refuse(m, client, why ? why : "Nothing has changed: no memory.", NULL);
		return;
	}
	struct text errors = {0};
	struct err err = {""};
	notify_reloading(m);
	r->m = m;
	r->client = client;
	ev_timer_init(&r->patience, reload_patience_over, 0, 0);
	r->patience.data = r;
	ev_init(&r->io, child_says);
	m->reload = r;
	stats_master(m->page)->reloading = 1;
	stats_touch(m->page, STATS_MASTER, 0);
	stats_publish(m->page);
	if (read_and_parse(r, &errors) != 0) {
		reload_give_up(r, "Nothing has changed, since the file has errors.", &errors);
	} else if (conf_align(r->cf, m->cf) != 0) {
		reload_give_up(r, "Nothing has changed: no memory.", NULL);
	} else {
		conf_diff(m->cf, r->cf, &r->diff);
		r->class = class_of(r);
		reload_refusals(r, &errors);
		if (rights_check(m, r->cf, &err) != 0)
			text_add(&errors, "%s\n", err.text);
		if (r->diff.no_memory || errors.failed)
			reload_give_up(r, "Nothing has changed: no memory.", NULL);
		else if (errors.len)
			reload_give_up(r, "Nothing has changed, since not all of it can be changed by a reload.", &errors);
		else if (r->class == CONF_RELOAD_NONE)
			reload_finish(r, "");
		else
			begin_check(r);
	}
	text_free(&errors);
}
