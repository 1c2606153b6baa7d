/* SPDX-License-Identifier: MIT
 *
 * docs: writes to stdout the documents that come from the tables, so that no list is kept twice:
 *   docs sample           etc/millrace.yaml
 *   docs counters         docs/counters.md
 *   docs man TEMPLATE     TEMPLATE with its lines @FLAGS@, @OPTIONS@ and @SIGNALS@ replaced: etc/man/millrace.8
 * Not installed.
 */
#include <conf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *scope, *name, *kind, *ledger, *help;
} counters[] = {
#define COUNTER(scope, name, kind, ledger, help, ...) {#scope, #name, #kind, #ledger, help},
#include <tbl/counter.def>
};

static void add_counters(struct text *t)
{
	const char *scope = "";
	text_add(t,
		 "# Counters\n\nMade from include/tbl/counter.def. `millracectl stats` shows them; a ledger names the "
		 "equation that a counter belongs to (`millracectl check`).\n");
	for (size_t i = 0; i < ARRAY_LEN(counters); i++) {
		if (strcmp(scope, counters[i].scope) != 0)
			text_add(t, "\n## %s\n\n| counter | kind | ledger | what |\n| --- | --- | --- | --- |\n",
				 counters[i].scope);
		scope = counters[i].scope;
		text_add(t, "| `%s` | %s | %s | %s |\n", counters[i].name, counters[i].kind,
			 strcmp(counters[i].ledger, "NONE") ? counters[i].ledger : "", counters[i].help);
	}
}

static void add_signals(struct text *t)
{
	text_add(t, ".Bl -tag -width Ds\n");
#define SIGNAL(name, action, help) text_add(t, ".It Dv SIG" #name "\n%s\n", help);
#include <tbl/signal.def>
	text_add(t, ".El\n");
}

static int add_man(struct text *t, const char *path)
{
	char line[1024];
	FILE *f = fopen(path, "r");
	if (!f) {
		fprintf(stderr, "docs: %s: %s\n", path, strerror(errno));
		return 1;
	}
	while (fgets(line, sizeof line, f)) {
		if (strcmp(line, "@FLAGS@\n") == 0)
			conf_man_flags(t);
		else if (strcmp(line, "@OPTIONS@\n") == 0)
			conf_man_options(t);
		else if (strcmp(line, "@SIGNALS@\n") == 0)
			add_signals(t);
		else
			text_add(t, "%s", line);
	}
	fclose(f);
	return 0;
}

int main(int argc, char **argv)
{
	struct text t = {0};
	int r = 2;
	if (argc == 2 && strcmp(argv[1], "sample") == 0) {
		conf_sample(&t);
		r = 0;
	} else if (argc == 2 && strcmp(argv[1], "counters") == 0) {
		add_counters(&t);
		r = 0;
	} else if (argc == 3 && strcmp(argv[1], "man") == 0) {
		r = add_man(&t, argv[2]);
	} else {
		fprintf(stderr, "usage: docs sample | counters | man TEMPLATE\n");
	}
	fputs(t.s ? t.s : "", stdout);
	text_free(&t);
	return r;
}
