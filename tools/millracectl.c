/* SPDX-License-Identifier: MIT
 *
 * millracectl: asks a running millrace, and what a configuration would do. The commands are the rows of control.def:
 * those of the master are forwarded, all others are computed here from the counter pages. Changes nothing itself.
 */
#include "ctl.h"
#include <getopt.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_DEFAULT "/run/millrace/control.sock"

struct command {
	const char *name, *args, *help;
	int (*run)(struct ctl *ctl, int argc, char **argv); /* NULL: asked of the master */
};

static const struct command commands[] = {
#define COMMAND(name, word, args, help) {name, args, help, ctl_##word},
#define CONTROL(name, word, args, help) {name, args, help, NULL},
#include <tbl/control.def>
};

/* Wrapped at 100 columns. */
static void help_text(const char *help)
{
	int column = 6;
	printf("     ");
	for (const char *end; *help; help = end + strspn(end, " ")) {
		end = strchrnul(help, ' ');
		if (column + 1 + (end - help) > 100) {
			printf("\n     ");
			column = 6;
		}
		column += printf(" %.*s", (int)(end - help), help);
	}
	printf("\n");
}

static int help(void)
{
	printf("usage: millracectl [-s SOCKET] COMMAND …\n\n"
	       "  -s, --socket SOCKET   the control socket of the millrace to ask; default: $MILLRACE_CONTROL,\n"
	       "                        else " CONTROL_DEFAULT "\n"
	       "  -h, --help            this text\n"
	       "  -V, --version         the version of millracectl\n\ncommands:\n");
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		printf("  %s%s%s\n", commands[i].name, commands[i].args[0] ? " " : "", commands[i].args);
		help_text(commands[i].help);
	}
	printf("\nexit status: 0 yes, done; 1 the answer is bad (the ledger does not balance, an error in a "
	       "configuration,\n"
	       "millrace refused); 2 there is no answer (no millrace, wrong usage)\n");
	return CTL_OK;
}

/* "[--count N]" in the man page's language, mdoc: " Oo Fl -count Ar N Oc". */
static void man_args(const char *args)
{
	for (const char *end; *args; args = end + strspn(end, " ")) {
		bool opens = *args == '[';
		args += opens;
		end = strchrnul(args, ' ');
		bool closes = end[-1] == ']', flag = *args == '-';
		int len = (int)(end - args) - closes - flag;
		printf("%s %s %.*s%s", opens ? " Oo" : "", flag ? "Fl" : "Ar", len, args + flag, closes ? " Oc" : "");
	}
}

/* A line for each sentence, as mdoc wants them. */
static void man_sentences(const char *help)
{
	for (; *help; help++) {
		bool ends = help[0] == '.' && help[1] == ' ';
		printf(ends ? ".\n" : "%c", *help);
		help += ends;
	}
	printf("\n");
}

/* The list of commands for the man page, which test_ctl compares with etc/man/millracectl.1. */
static int man_commands(void)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		printf(".It Cm %s", commands[i].name);
		man_args(commands[i].args);
		printf("\n");
		man_sentences(commands[i].help);
	}
	return CTL_OK;
}

static unsigned words(const char *s)
{
	unsigned n = 0;
	for (s += strspn(s, " "); *s; n++) {
		s += strcspn(s, " ");
		s += strspn(s, " ");
	}
	return n;
}

static int forward(const struct command *cmd, const struct ctl *ctl, int argc, char **argv)
{
	static char answer[65536];
	char line[256] = "";
	struct err err;
	int fd;
	size_t len = 0;
	if ((unsigned)argc - 1 != words(cmd->args))
		return ctl_usage("Write \"millracectl %s%s%s\".", cmd->name, *cmd->args ? " " : "", cmd->args);
	for (int i = 0; i < argc && len < sizeof(line); i++)
		len += (size_t)snprintf(line + len, sizeof(line) - len, "%s%s", i ? " " : "", argv[i]);
	if (len >= sizeof(line))
		return ctl_usage("%s: the command is too long.", argv[0]);
	if (ctl_ask(ctl->socket, line, answer, sizeof(answer), &fd, &err) != 0)
		return ctl_usage("%s", err.text);
	if (fd != -1)
		close(fd);
	for (char *tab; (tab = strchr(answer, '\t')) != NULL;) /* an answer of many lines */
		*tab = '\n';
	if (strncmp(answer, "ok", 2) == 0 && (answer[2] == '\0' || answer[2] == ' ')) {
		if (answer[2])
			printf("%s\n", answer + 3);
		return CTL_OK;
	}
	fprintf(stderr, "millracectl: %s\n", strncmp(answer, "error ", 6) == 0 ? answer + 6 : answer);
	return CTL_BAD;
}

static int command_run(struct ctl *ctl, int argc, char **argv)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
		if (strcmp(commands[i].name, argv[0]) != 0)
			continue;
		int rc = commands[i].run ? commands[i].run(ctl, argc, argv) : forward(&commands[i], ctl, argc, argv);
		ctl_detach(ctl);
		return rc;
	}
	return ctl_usage("There is no command \"%s\"; millracectl --help lists them.", argv[0]);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{"man-commands", no_argument, NULL, 'm'},
		{NULL, 0, NULL, 0},
	};
	struct ctl ctl = {.socket = getenv("MILLRACE_CONTROL")};
	if (!ctl.socket || !ctl.socket[0])
		ctl.socket = CONTROL_DEFAULT;
	/* "+": options behind the command are the command's own */
	for (int o; (o = getopt_long(argc, argv, "+s:hV", options, NULL)) != -1;) {
		if (o == 's')
			ctl.socket = optarg;
		else if (o == 'h')
			return help();
		else if (o == 'm')
			return man_commands();
		else if (o == 'V')
			return printf("millracectl %s\n", MILLRACE_VERSION) < 0;
		else
			return ctl_usage("Try millracectl --help.");
	}
	if (optind == argc)
		return ctl_usage("Say a command: status, top, drops, stats, check …; millracectl --help lists them.");
	return command_run(&ctl, argc - optind, argv + optind);
}
