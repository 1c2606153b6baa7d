/* SPDX-License-Identifier: MIT
 *
 * reload: from a file that has changed to workers that run with it, one at a time. An error changes nothing until all is
 * checked and bound. The drawing is in reload.h. Master only.
 */
#include "reload.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOG_LINES = 20, ANSWER_BYTES = 60000, CHECK_LIMIT_US = 60 * 1000 * 1000, CHECK_NICE = 10 };

/* -- the end ------------------------------------------------------------------------------------------------------- */

static void reload_free(struct reload *r)
{
	generation_give_up(r->m, &r->next);
	if (r->has_moved)
		generation_close(r->m, &r->gone);
	if (r->is_resume)
		registry_sweep(&r->m->registry);
	reload_own_close(r, r->cf);
	conf_diff_free(&r->diff);
	conf_free(r->cf);
	try_free(&r->check);
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

static void end(struct master *m, uint64_t client, bool failed, struct text *t)
{
	count(m, failed);
	if (m->has_started && !m->is_draining)
		notify_ready(m);
	control_answer(m, client, t);
	text_free(t);
	if (m->reload_again && !m->is_draining) {
		m->reload_again = false;
		reload_begin(m, 0);
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
static void refuse(struct master *m, uint64_t client, const char *why, const struct text *lines)
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
	uint64_t client = r->client;
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
	uint64_t client = r->client;
	struct text t = {0};
	size_t n = r->diff.n;
	if (r->is_resume)
		text_add(&t, "ok upgraded: millrace %s serves now, as process %d", MILLRACE_VERSION, (int)getpid());
	else if (n == 0 && r->class == CONF_RELOAD_NONE)
		text_add(&t, "ok nothing has changed");
	else
		text_add(&t, "ok %zu change%s, applied %s", n, n == 1 ? "" : "s", how);
	log_info("%s: %s", r->is_resume ? "upgrade" : "reload", t.s ? t.s + 3 : "done");
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
	if (r)
		reload_give_up(r, "millrace ends; the reload is given up.", NULL);
}

/* The class that covers it all. Only what the master itself has can change at once. Workers that an earlier reload did not
 * reach are rolled now. */
static enum conf_reload class_of(const struct reload *r)
{
	const struct master *m = r->m;
	enum conf_reload class = r->diff.reload;
	if (master_workers(r->cf) != m->n_slots_wanted)
		class = MAX(class, CONF_RELOAD_RESPAWN);
	if (registry_has_lost_path(&m->registry))
		class = MAX(class, CONF_RELOAD_REBIND);
	for (unsigned i = 0; i < m->n_slots; i++)
		if (m->slots[i].now->generation < m->generation || m->slots[i].restart.state == RESTART_FAILED)
			class = MAX(class, CONF_RELOAD_RESPAWN);
	return class;
}

/* -- CHECKING ------------------------------------------------------------------------------------------------------ */

/* It takes the time of a CPU, and workers come first. */
static int check(void *arg, struct text *errors)
{
	struct reload *r = arg;
	if (nice(CHECK_NICE) == -1)
		log_debug("nice: %s", strerror(errno));
	stats_child_none(r->m->stats);
	receive_child(r->m->receive, RECEIVE_NOBODY, 0);
	size_t n = input_check(r->cf, errors) + output_check(r->cf, errors);
	for (size_t i = 0; n == 0 && i < r->next.n_outputs; i++) {
		struct output *out = &r->next.outputs[i];
		struct err err = {""};
		const struct output *former = generation_former(r->m, out);
		if (out->type->fill && !generation_shares(r->m, out) && out->type->fill(out, former, &err) != 0) {
			text_add(errors, "%s", err.text);
			n++;
		}
	}
	return n == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void check_failed(struct reload *r, int status)
{
	struct text why = {0};
	text_add(&why, "Nothing has changed");
	if (r->check.said.len) {
		text_add(&why, ", since the file has errors.");
	} else {
		text_add(&why, ": ");
		process_report(&r->check.process, "the process that checks the configuration", status, &why);
		text_add(&why, "%s; try again.", r->check.is_late ? ", since it took too long" : "");
	}
	reload_give_up(r, why.s ? why.s : "Nothing has changed: no memory.", &r->check.said);
	text_free(&why);
}

static void checked(struct try *check, int status)
{
	struct reload *r = check->owner;
	struct err err = {""};
	if (status != 0)
		check_failed(r, status);
	else if (generation_finish_outputs(r->m, &r->next, r->class == CONF_RELOAD_AT_ONCE, &err) != 0)
		reload_give_up(r, err.text, NULL);
	else if (r->class == CONF_RELOAD_AT_ONCE)
		reload_apply_at_once(r);
	else
		reload_apply_rolling(r);
}

static void begin_check(struct reload *r)
{
	struct text why = {0};
	struct err err = {""};
	if (generation_outputs(r->m, r->cf, &r->next, &err) != 0) {
		reload_give_up(r, err.text, NULL);
		return;
	}
	r->check.owner = r;
	r->check.on_end = checked;
	int code = try_start(&r->check, r->m->loop, check, r, CHECK_LIMIT_US);
	if (code == 0)
		return;
	text_add(&why, "Nothing has changed: no process to check the configuration: %s; try again.", strerror(-code));
	reload_give_up(r, why.s ? why.s : "Nothing has changed: no memory.", NULL);
	text_free(&why);
}

/* -- the beginning ------------------------------------------------------------------------------------------------- */

static const char *cannot(const struct master *m)
{
	if (m->is_draining || !m->has_started)
		return m->is_draining ? "millrace is draining." : "millrace has not started yet; try again.";
	if (m->upgrade)
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

void reload_begin(struct master *m, uint64_t client)
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
	reload_own_init(&r->own);
	r->m = m;
	r->client = client;
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
		if (rights_check(r->cf, m->capabilities, &err) != 0)
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

void reload_resume(struct master *m, uint64_t client)
{
	struct reload *r = calloc(1, sizeof(*r));
	if (!r) {
		refuse(m, client, "The workers of the program before go on: no memory to replace them; reload.", NULL);
		return;
	}
	reload_own_init(&r->own);
	r->m = m;
	r->client = client;
	r->class = CONF_RELOAD_RESPAWN;
	r->stage = RELOAD_ROLLING;
	r->is_resume = true;
	m->reload = r;
	reload_look(m);
}
