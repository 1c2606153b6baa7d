/* SPDX-License-Identifier: MIT
 *
 * args: argv to struct conf_args by getopt_long. The flags are rows: those of FLAG, and one for each top-level option.
 * Values are parsed here only to refuse bad ones early; load.c applies them over the file.
 */
#include "args.h"
#include "load.h"
#include "mem.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>

#define FLAG(letter, name, argument, action, help) {letter, name, argument, CONF_FLAG_##action, NULL, help, false},
static const struct conf_flag flag_rows[] = {
#include <tbl/option.def>
};

#define OPTION_FLAG(letter, name, argument, option) {ROW_TOP_##option, letter, name, argument},
static const struct {
	enum conf_row_index row;
	int letter;
	const char *name, *argument;
} option_flags[] = {
#include <tbl/option.def>
};

/* Dashes for underscores: names of options are short, and each is made once. */
static const char *flag_name(const struct conf_row *row)
{
	static char names[CONF_ROWS][32];
	char *name = names[row->index];
	BUG_ON(strlen(row->name) >= sizeof(names[0]));
	for (size_t i = 0; i <= strlen(row->name); i++)
		name[i] = row->name[i] == '_' ? '-' : row->name[i];
	return name;
}

static const char *argument_of(const struct conf_row *row)
{
	static const struct {
		const char *type, *argument;
	} words[] = {{"BOOL", "[BOOL]"}, {"BYTES", "SIZE"}, {"TIME", "TIME"}, {"STRING", "TEXT"}};
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (strcmp(words[i].type, row->type) == 0)
			return words[i].argument;
	return strncmp(row->type, "ENUM_", 5) == 0 ? "WORD" : "N";
}

static size_t add_option_flags(struct conf_flag *flags, size_t n, const struct conf_row *row)
{
	struct conf_flag *flag = &flags[n++];
	*flag = (struct conf_flag){.name = flag_name(row), .argument = argument_of(row), .row = row, .help = row->help};
	for (size_t i = 0; i < ARRAY_LEN(option_flags); i++) {
		if (option_flags[i].row != row->index)
			continue;
		flag->letter = option_flags[i].letter ? option_flags[i].letter : flag->letter;
		flag->argument = option_flags[i].argument;
		if (option_flags[i].name[0])
			flags[n++] = (struct conf_flag){.name = option_flags[i].name,
							.argument = option_flags[i].argument,
							.row = row,
							.help = row->help,
							.is_alias = true};
	}
	return n;
}

size_t conf_flags(struct conf_flag flags[CONF_FLAGS_MAX])
{
	size_t n = 0;
	for (size_t i = 0; i < ARRAY_LEN(flag_rows); i++)
		flags[n++] = flag_rows[i];
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct conf_row *row = &conf_rows[i];
		bool is_text =
		    strcmp(row->type, "LIST") != 0 && strcmp(row->type, "MAP") != 0 && !conf_row_is_part(row);
		if (row->scope == CONF_SCOPE_TOP && is_text)
			n = add_option_flags(flags, n, row);
		BUG_ON(n + 4 > CONF_FLAGS_MAX);
	}
	return n;
}

/* -- values -- */

static int no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "there is not enough memory to read the command line");
}

/* `wrong` is freed. */
static int bad_value(const struct conf_flag *flag, struct text *wrong, struct err *err)
{
	int rc = err_set(err, -EINVAL, "--%s: %s", flag->name, wrong->s ? wrong->s : "is not understood");
	text_free(wrong);
	return rc;
}

static int check_value(const struct conf_flag *flag, enum conf_scope scope, const struct conf_row *row,
		       const char *value, struct err *err)
{
	struct conf top = {0};
	struct conf_input in = {0};
	void *object = scope == CONF_SCOPE_TOP ? (void *)&top : &in;
	struct text why = {0};
	int rc = conf_value_parse(row, value, conf_row_field(row, object), &why);
	conf_object_fini(scope, object);
	if (rc == 0 || rc == -ENOMEM) {
		text_free(&why);
		return rc == 0 ? 0 : no_memory(err);
	}
	return bad_value(flag, &why, err);
}

/* A flag given twice counts as the second time. */
static int set_top(struct conf_args *args, const char *key, const char *value, struct err *err)
{
	struct conf_load ld = {0};
	for (size_t i = 0; i < args->top.n; i++) {
		if (strcmp(args->top.keys[i], key) != 0)
			continue;
		char *copy = conf_mem_copy(value, strlen(value));
		if (!copy)
			return no_memory(err);
		free(args->top.values[i]);
		args->top.values[i] = copy;
		return 0;
	}
	return conf_map_add(&ld, &args->top, key, value, 0) == 0 ? 0 : no_memory(err);
}

static int add_listen(struct conf_args *args, const struct conf_flag *flag, const char *url, struct err *err)
{
	struct conf_load ld = {0};
	struct conf_address a;
	struct text why = {0};
	char scheme[16] = "", shown[120];
	const char *address = strstr(url, "://");
	if (address && address - url < (ptrdiff_t)sizeof(scheme))
		memcpy(scheme, url, (size_t)(address - url));
	enum conf_words type = conf_word_find("INPUT_TYPE", scheme);
	if (!address || type == CONF_WORDS || !conf_row_applies(&conf_rows[ROW_INPUT_bind], type)) {
		conf_row_types(&conf_rows[ROW_INPUT_bind], &why);
		int rc = err_set(err, -EINVAL,
				 "--%s: \"%s\" is no URL to read from; allowed is TYPE://ADDRESS with one of %s",
				 flag->name, text_escape(shown, sizeof(shown), url, strlen(url)), why.s ? why.s : "");
		text_free(&why);
		return rc;
	}
	address += 3;
	if (type == CONF_INPUT_TYPE_UDP || type == CONF_INPUT_TYPE_TCP)
		conf_address_parse(address, CONF_ADDRESS_BIND, &a, &why);
	else if (conf_path_fault(address))
		text_add(&why, "\"%s\" %s", text_escape(shown, sizeof(shown), url, strlen(url)),
			 conf_path_fault(address));
	if (why.len)
		return bad_value(flag, &why, err);
	return conf_list_add(&ld, &args->listen, url, 0) == 0 ? 0 : no_memory(err);
}

static int add_capture(struct conf_args *args, const struct conf_flag *flag, const char *interface, struct err *err)
{
	struct conf_load ld = {0};
	const char *absent = conf_word_not_built(CONF_INPUT_TYPE_CAPTURE);
	if (absent)
		return err_set(err, -EINVAL, "--%s needs %s, and this millrace was built without %s", flag->name,
			       absent, absent);
	if (!interface[0])
		return err_set(err, -EINVAL, "--%s: \"\" is no network interface", flag->name);
	return conf_list_add(&ld, &args->captures, interface, 0) == 0 ? 0 : no_memory(err);
}

static int add_backend(struct conf_args *args, const struct conf_flag *flag, const char *address, struct err *err)
{
	struct conf_load ld = {0};
	struct conf_address a;
	struct text why = {0};
	if (conf_address_parse(address, CONF_ADDRESS_BACKEND, &a, &why) != 0)
		return bad_value(flag, &why, err);
	return conf_list_add(&ld, &args->backends, address, 0) == 0 ? 0 : no_memory(err);
}

static int set_kafka(struct conf_args *args, const struct conf_flag *flag, const char *brokers, struct err *err)
{
	const char *absent = conf_word_not_built(CONF_OUTPUT_TYPE_KAFKA);
	if (absent)
		return err_set(err, -EINVAL, "--%s needs %s, and this millrace was built without %s", flag->name,
			       absent, absent);
	args->kafka = brokers;
	return 0;
}

static int set_path(struct conf_args *args, const char *path, struct err *err)
{
	if (args->path)
		return err_set(err, -EINVAL, "two configuration files are given; allowed is one");
	args->path = path;
	return 0;
}

/* -- the flags -- */

static int take_flag(struct conf_args *args, const struct conf_flag *flag, const char *value, struct err *err)
{
	switch (flag->action) {
	case CONF_FLAG_CONFIG:
		return set_path(args, value, err);
	case CONF_FLAG_CHECK:
		args->action = CONF_ACTION_CHECK;
		return value ? set_path(args, value, err) : 0;
	case CONF_FLAG_DUMP:
		args->action = CONF_ACTION_DUMP;
		return 0;
	case CONF_FLAG_LISTEN:
		return add_listen(args, flag, value, err);
	case CONF_FLAG_CAPTURE:
		return add_capture(args, flag, value, err);
	case CONF_FLAG_BACKEND:
		return add_backend(args, flag, value, err);
	case CONF_FLAG_KAFKA:
		return set_kafka(args, flag, value, err);
	case CONF_FLAG_TOPIC:
		args->topic = value;
		return 0;
	case CONF_FLAG_RECEIVE_BUFFER:
		args->receive_buffer = value;
		return check_value(flag, CONF_SCOPE_INPUT, &conf_rows[ROW_INPUT_receive_buffer], value, err);
	case CONF_FLAG_VERSION:
		args->action = CONF_ACTION_VERSION;
		return 0;
	case CONF_FLAG_HELP:
		args->action = CONF_ACTION_HELP;
		return 0;
	case CONF_FLAG_VERBOSE: /* handled by the caller: it gives way to --log-level */
		return 0;
	}
	return 0;
}

struct parser {
	struct conf_flag flags[CONF_FLAGS_MAX];
	struct option longs[CONF_FLAGS_MAX + 1];
	char shorts[3 * CONF_FLAGS_MAX + 2];
	size_t n;
};

enum { LONG = 0x100 }; /* what getopt_long returns for longs[i] is LONG + i */

static void make_parser(struct parser *p)
{
	char *s = p->shorts;
	p->n = conf_flags(p->flags);
	*s++ = ':'; /* ':' for a missing argument, and no messages of getopt's */
	for (size_t i = 0; i < p->n; i++) {
		const struct conf_flag *flag = &p->flags[i];
		int has = !flag->argument[0]         ? no_argument
			  : flag->argument[0] == '[' ? optional_argument
						     : required_argument;
		p->longs[i] = (struct option){flag->name, has, NULL, LONG + (int)i};
		if (flag->letter)
			*s++ = (char)flag->letter;
		for (int colons = flag->letter ? has : 0; colons > 0; colons--)
			*s++ = ':';
	}
}

static const struct conf_flag *flag_of(const struct parser *p, int code)
{
	for (size_t i = 0; i < p->n; i++)
		if (code == LONG + (int)i || (code == p->flags[i].letter && code))
			return &p->flags[i];
	return NULL;
}

static int say_bad_flag(const struct parser *p, int code, char **argv, struct err *err)
{
	const struct conf_flag *flag = flag_of(p, optopt);
	char shown[100];
	if (code == ':' && flag)
		return err_set(err, -EINVAL, "--%s needs a value: --%s %s", flag->name, flag->name, flag->argument);
	if (optopt >= LONG && flag)
		return err_set(err, -EINVAL, "--%s takes no value", flag->name);
	if (optopt && optopt < LONG) {
		char letter = (char)optopt;
		return err_set(err, -EINVAL, "-%s is no flag; --help lists them",
			       text_escape(shown, sizeof(shown), &letter, 1));
	}
	const char *word = argv[optind - 1];
	return err_set(err, -EINVAL, "%s is no flag; --help lists them",
		       text_escape(shown, sizeof(shown), word, strlen(word)));
}

/* What is left behind the flags. statsrelay has -t FILE, with a space. */
static int take_rest(struct conf_args *args, int argc, char **argv, struct err *err)
{
	char shown[100];
	if (args->action == CONF_ACTION_CHECK && !args->path && optind == argc - 1)
		args->path = argv[optind++];
	if (optind < argc)
		return err_set(err, -EINVAL,
			       "\"%s\" is no flag; a file is given with -c FILE, and --help lists the flags",
			       text_escape(shown, sizeof(shown), argv[optind], strlen(argv[optind])));
	if (!args->kafka != !args->topic)
		return err_set(err, -EINVAL, "--kafka BROKERS and --topic TOPIC go together; give both");
	if (args->path && (args->listen.n || args->captures.n || args->backends.n || args->kafka))
		return err_set(
		    err, -EINVAL,
		    "--listen, --capture, --backend and --kafka are for a start without a file; write them into "
		    "%s, or leave out the file",
		    text_escape(shown, sizeof(shown), args->path, strlen(args->path)));
	if (args->listen.n && args->captures.n && args->kafka)
		return err_set(err, -EINVAL,
			       "--listen and --capture cannot both go to --kafka, which takes lines or packets: leave "
			       "out one, or write a file with two outputs");
	return 0;
}

static int parse(struct conf_args *args, int argc, char **argv, struct err *err)
{
	struct parser p = {0};
	bool is_verbose = false, has_level = false;
	int rc = 0, code;
	make_parser(&p);
	optind = 0; /* glibc: forget what was parsed before */
	opterr = 0;
	while (rc == 0 && (code = getopt_long(argc, argv, p.shorts, p.longs, NULL)) != -1) {
		const struct conf_flag *flag = code == '?' || code == ':' ? NULL : flag_of(&p, code);
		if (!flag)
			return say_bad_flag(&p, code, argv, err);
		const char *value = optarg ? optarg : "true";
		if (!flag->row)
			rc = take_flag(args, flag, optarg, err);
		else if ((rc = check_value(flag, CONF_SCOPE_TOP, flag->row, value, err)) == 0)
			rc = set_top(args, flag->row->name, value, err);
		is_verbose |= !flag->row && flag->action == CONF_FLAG_VERBOSE;
		has_level |= flag->row && flag->row->index == ROW_TOP_log_level;
		if (args->action == CONF_ACTION_HELP || args->action == CONF_ACTION_VERSION)
			return rc;
	}
	if (rc == 0 && is_verbose && !has_level)
		rc = set_top(args, conf_rows[ROW_TOP_log_level].name, conf_word(CONF_LOG_LEVEL_DEBUG), err);
	return rc == 0 ? take_rest(args, argc, argv, err) : rc;
}

int conf_args_parse(struct conf_args *args, int argc, char **argv, struct err *err)
{
	*args = (struct conf_args){.action = CONF_ACTION_RUN};
	int rc = parse(args, argc, argv, err);
	if (rc != 0)
		conf_args_free(args);
	return rc;
}

static void free_texts(char **texts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(texts[i]);
	free(texts);
}

void conf_args_free(struct conf_args *args)
{
	free_texts(args->top.keys, args->top.n);
	free_texts(args->top.values, args->top.n);
	free(args->top.lines);
	free_texts(args->listen.items, args->listen.n);
	free(args->listen.lines);
	free_texts(args->captures.items, args->captures.n);
	free(args->captures.lines);
	free_texts(args->backends.items, args->backends.n);
	free(args->backends.lines);
	*args = (struct conf_args){0};
}
