/* SPDX-License-Identifier: MIT
 *
 * check_paths: files that are no endpoints, where the log goes, and what --daemon asks of paths. Pure: looks at no
 * file.
 */
#include "node.h"

#include <string.h>

static bool is_word(const char *s)
{
	return strcmp(s, "stderr") == 0 || strcmp(s, "syslog") == 0 || strcmp(s, "journal") == 0;
}

enum log_target conf_log_target(const struct conf *cf)
{
	if (cf->syslog || strcmp(cf->log, "syslog") == 0)
		return LOG_TARGET_SYSLOG;
	if (strcmp(cf->log, "journal") == 0 || (!cf->log[0] && log_stderr_is_journal()))
		return LOG_TARGET_JOURNAL;
	if (!cf->log[0])
		return cf->daemon ? LOG_TARGET_SYSLOG : LOG_TARGET_STDERR;
	return strchr(cf->log, '/') ? LOG_TARGET_FILE : LOG_TARGET_STDERR;
}

static void check_one(struct conf_load *ld, enum conf_row_index row, const char *path, bool is_path,
		      const char *allowed)
{
	char shown[120];
	for (const char *p = path; *p; p++)
		is_path &= (unsigned char)*p >= 0x20 && *p != 0x7f;
	if (path[0] && !is_path)
		conf_load_error(ld, ld->top->rows[row].line, conf_rows[row].name,
				"\"%s\" is not understood; allowed is %s",
				text_escape(shown, sizeof(shown), path, strlen(path)), allowed);
}

/* A daemon's folder is /, so that it keeps no file system from being unmounted. */
static void check_absolute(struct conf_load *ld, int line, const char *key, const char *path)
{
	char shown[120];
	if (path[0] && path[0] != '/')
		conf_load_error(ld, line, key, "\"%s\" is not absolute, and a daemon's folder is /; begin it with /",
				text_escape(shown, sizeof(shown), path, strlen(path)));
}

static void check_daemon(struct conf_load *ld)
{
	const struct conf *cf = ld->cf;
	const struct conf_origin *top = ld->top;
	char object[CONF_KEY_SIZE], key[CONF_KEY_SIZE];
	if (strcmp(cf->log, "stderr") == 0)
		conf_load_error(ld, top->rows[ROW_TOP_log].line, "log",
				"a daemon has no stderr; name a file, syslog or journal");
	check_absolute(ld, top->rows[ROW_TOP_control].line, "control", cf->control);
	check_absolute(ld, top->rows[ROW_TOP_pid_file].line, "pid_file", cf->pid_file);
	if (!is_word(cf->log))
		check_absolute(ld, top->rows[ROW_TOP_log].line, "log", cf->log);
	for (size_t i = 0; i < cf->n_inputs; i++) {
		const struct conf_input *in = &cf->inputs[i];
		conf_key(key, conf_key(object, "inputs", in->name), "bind");
		for (size_t k = 0; conf_row_applies(&conf_rows[ROW_INPUT_mode], in->type) && k < in->bind.n; k++)
			check_absolute(ld, in->bind.lines[k], key, in->bind.items[k]);
		conf_key(key, object, "path");
		for (size_t k = 0; k < in->path.n; k++)
			check_absolute(ld, in->path.lines[k], key, in->path.items[k]);
	}
	for (size_t i = 0; i < cf->n_outputs; i++)
		check_absolute(ld, cf->outputs[i].line,
			       conf_key(key, conf_key(object, "outputs", cf->outputs[i].name), "statistics_file"),
			       cf->outputs[i].statistics_file);
}

void conf_check_paths(struct conf_load *ld)
{
	const struct conf *cf = ld->cf;
	check_one(ld, ROW_TOP_pid_file, cf->pid_file, true, "a path");
	if (!is_word(cf->log))
		check_one(ld, ROW_TOP_log, cf->log, strchr(cf->log, '/') != NULL,
			  "stderr, syslog, journal, or a path with a / in it");
	if (cf->syslog && cf->log[0] && strcmp(cf->log, "syslog") != 0)
		conf_load_error(ld, ld->top->rows[ROW_TOP_syslog].line, "syslog",
				"contradicts log; leave one of them out");
	if (cf->daemon)
		check_daemon(ld);
}
