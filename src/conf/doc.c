/* SPDX-License-Identifier: MIT
 *
 * doc: the option table for people: --help, the commented sample and the list of the man page. Pure.
 */
#include "args.h"
#include "load.h"

#include <string.h>

enum { HELP_WIDTH = 100, FLAG_COLUMN = 32, OPTION_COLUMN = 20, SAMPLE_WIDTH = 100 };

/* Words of s, each line begun with `prefix` (or `column` spaces), the first one at the present column `at`. */
static void add_wrapped(struct text *t, const char *s, size_t at, size_t column, const char *prefix, size_t width)
{
	bool is_first = true;
	while (*s) {
		size_t len = strcspn(s, " ");
		if (!is_first && at + 1 + len > width) {
			text_add(t, "\n%s%*s", prefix, (int)(column - strlen(prefix)), "");
			at = column;
			is_first = true;
		}
		text_add(t, "%s%.*s", is_first ? "" : " ", (int)len, s);
		at += len + !is_first;
		is_first = false;
		s += len + (s[len] == ' ');
	}
	text_add(t, "\n");
}

/* A label, and at the column its help. */
static void add_entry(struct text *t, const char *label, size_t column, const char *help)
{
	size_t len = strlen(label);
	text_add(t, "%s", label);
	if (len + 2 > column)
		text_add(t, "\n%*s", (int)column, "");
	else
		text_add(t, "%*s", (int)(column - len), "");
	add_wrapped(t, help, column, column, "", HELP_WIDTH);
}

static bool has_default(const struct conf_row *row)
{
	return row->def[0];
}

/* The help of a row and, in one sentence each, types, range and default. */
static void add_facts(struct text *t, const struct conf_row *row)
{
	struct text types = {0};
	text_add(t, "%s", row->help);
	if (conf_row_is_part(row))
		goto out;
	text_add(t, " Allowed: ");
	conf_row_allowed(row, t);
	if (has_default(row))
		text_add(t, "; default %s", row->def);
	text_add(t, ".");
out:
	if (conf_row_types(row, &types))
		text_add(t, " Only for type %s.", types.s ? types.s : "");
	text_free(&types);
}

/* -- help -- */

static void add_flag(struct text *t, const struct conf_flag *flag)
{
	struct text label = {0}, help = {0};
	bool may_lack = flag->argument[0] == '[';
	int len = (int)strlen(flag->argument) - 2 * may_lack;
	if (flag->letter)
		text_add(&label, "  -%c, --%s", flag->letter, flag->name);
	else
		text_add(&label, "      --%s", flag->name);
	if (flag->argument[0])
		text_add(&label, may_lack ? "[=%.*s]" : " %.*s", len, flag->argument + may_lack);
	if (flag->is_alias)
		text_add(&help, "The same as --%s.", flag->row->name);
	else if (flag->row && has_default(flag->row))
		text_add(&help, "%s Default: %s.", flag->help, flag->row->def);
	else
		text_add(&help, "%s", flag->help);
	if (!label.failed && !help.failed)
		add_entry(t, label.s, FLAG_COLUMN, help.s);
	text_free(&label);
	text_free(&help);
}

static const struct {
	enum conf_scope scope;
	const char *title;
} scopes[] = {
	{CONF_SCOPE_TOP, "top level"},
	{CONF_SCOPE_INPUT, "inputs.NAME"},
	{CONF_SCOPE_OUTPUT, "outputs.NAME"},
	{CONF_SCOPE_BACKEND, "outputs.NAME.backends, each"},
	{CONF_SCOPE_SECTION, "statsd and carbon (a statsrelay file)"},
};

void conf_help(struct text *t)
{
	struct conf_flag flags[CONF_FLAGS_MAX];
	size_t n = conf_flags(flags);
	text_add(t,
		 "Usage: millrace -c FILE [FLAGS]\n"
		 "       millrace --listen URL [--listen URL ...] --backend ADDRESS [--backend ADDRESS ...] [FLAGS]\n"
		 "\nFlags (they override the file):\n");
	for (size_t i = 0; i < n; i++)
		add_flag(t, &flags[i]);
	text_add(t, "\nOptions of the file (YAML):\n");
	for (size_t i = 0; i < ARRAY_LEN(scopes); i++) {
		text_add(t, "\n%s:\n", scopes[i].title);
		for (size_t j = 0; j < CONF_ROWS; j++) {
			struct text facts = {0};
			char label[64];
			if (conf_rows[j].scope != scopes[i].scope)
				continue;
			snprintf(label, sizeof(label), "  %s", conf_rows[j].name);
			add_facts(&facts, &conf_rows[j]);
			add_entry(t, label, OPTION_COLUMN, facts.s ? facts.s : "");
			text_free(&facts);
		}
	}
}

/* -- sample -- */

static void add_comment(struct text *t, const char *indent, const struct conf_row *row)
{
	struct text facts = {0};
	char prefix[32];
	add_facts(&facts, row);
	snprintf(prefix, sizeof(prefix), "%s# ", indent);
	text_add(t, "%s", prefix);
	add_wrapped(t, facts.s ? facts.s : "", strlen(prefix), strlen(prefix), prefix, SAMPLE_WIDTH);
	text_free(&facts);
}

/* What must be given stands there, all else behind "#" with its default. */
static void add_sample(struct text *t, const struct conf_row *row, const char *indent)
{
	const char *example = conf_row_required(row->index), *instead;
	bool is_instead = conf_row_instead(row->index, &instead) < CONF_ROWS;
	/* the sample's input is udp, its output a statsite; what others need stands behind "#" */
	bool is_foreign = (row->scope == CONF_SCOPE_OUTPUT && !conf_row_applies(row, CONF_OUTPUT_TYPE_STATSITE)) ||
			  (row->scope == CONF_SCOPE_INPUT && !conf_row_applies(row, CONF_INPUT_TYPE_UDP));
	if (conf_row_is_part(row) && !example && !is_instead)
		return; /* inputs and outputs: the caller's */
	add_comment(t, indent, row);
	if (example)
		text_add(t, "%s%s%s: %s\n", indent, is_foreign ? "# " : "", row->name, example);
	else if (is_instead)
		text_add(t, "%s# %s: %s\n", indent, row->name, instead);
	else
		text_add(t, "%s# %s: %s\n", indent, row->name, has_default(row) ? row->def : "\"\"");
}

static void add_samples(struct text *t, enum conf_scope scope, const char *indent)
{
	for (size_t i = 0; i < CONF_ROWS; i++)
		if (conf_rows[i].scope == scope)
			add_sample(t, &conf_rows[i], indent);
}

void conf_sample(struct text *t)
{
	text_add(t, "# millrace: every option, with its default behind \"#\". Check a change with: millrace -t -c "
		    "FILE\n\n");
	add_samples(t, CONF_SCOPE_TOP, "");
	text_add(t, "\n# %s\ninputs:\n  metrics:\n", conf_rows[ROW_TOP_inputs].help);
	add_samples(t, CONF_SCOPE_INPUT, "    ");
	text_add(t, "\n# %s\noutputs:\n  backends:\n", conf_rows[ROW_TOP_outputs].help);
	add_samples(t, CONF_SCOPE_OUTPUT, "    ");
	text_add(t, "    # What may stand in the map of one backend:\n");
	for (size_t i = 0; i < CONF_ROWS; i++)
		if (conf_rows[i].scope == CONF_SCOPE_BACKEND) {
			text_add(t, "    #   %s\n", conf_rows[i].name);
			add_comment(t, "    #     ", &conf_rows[i]);
		}
}

/* -- man page -- */

/* Text for mdoc: a backslash begins an escape everywhere, "." and "'" a request at the start of a line; each sentence
 * begins a line. */
static void add_roff(struct text *t, const char *s)
{
	for (bool at_start = true; *s; s++) {
		if (at_start && (*s == '.' || *s == '\''))
			text_add(t, "\\&");
		at_start = *s == ' ' && t->len > 0 && t->s && t->s[t->len - 1] == '.';
		text_add(t, at_start ? "\n" : *s == '\\' ? "\\e" : "%c", *s);
	}
}

void conf_man_flags(struct text *t)
{
	struct conf_flag flags[CONF_FLAGS_MAX];
	size_t n = conf_flags(flags);
	text_add(t, ".Bl -tag -width Ds\n");
	for (size_t i = 0; i < n; i++) {
		const struct conf_flag *flag = &flags[i];
		bool may_lack = flag->argument[0] == '[';
		text_add(t, ".It");
		if (flag->letter)
			text_add(t, " Fl %c ,", flag->letter);
		text_add(t, " Fl -%s", flag->name);
		if (flag->argument[0])
			text_add(t, " %s Ar %.*s", may_lack ? "Op" : "",
				 (int)strlen(flag->argument) - 2 * may_lack, flag->argument + may_lack);
		text_add(t, "\n");
		if (flag->is_alias)
			text_add(t, "The same as\n.Fl -%s .", flag->row->name);
		else
			add_roff(t, flag->help);
		text_add(t, "\n");
	}
	text_add(t, ".El\n");
}

void conf_man_options(struct text *t)
{
	for (size_t i = 0; i < ARRAY_LEN(scopes); i++) {
		text_add(t, ".Ss ");
		add_roff(t, scopes[i].title);
		text_add(t, "\n.Bl -tag -width Ds\n");
		for (size_t j = 0; j < CONF_ROWS; j++) {
			struct text facts = {0};
			if (conf_rows[j].scope != scopes[i].scope)
				continue;
			add_facts(&facts, &conf_rows[j]);
			text_add(t, ".It Cm %s\n", conf_rows[j].name);
			add_roff(t, facts.s ? facts.s : "");
			text_add(t, "\n");
			text_free(&facts);
		}
		text_add(t, ".El\n");
	}
}
