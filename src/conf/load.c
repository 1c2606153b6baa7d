/* SPDX-License-Identifier: MIT
 *
 * load: a file, bytes or only flags to one checked tree, or to all that is wrong with them, by line. The only file of
 * conf that makes system calls, and those are open, fstat, read and close (of the cgroup's limits, too).
 */
#include "fastcapa.h"
#include "load.h"
#include "mem.h"
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- the command line -- */

static void apply_flag(struct conf_load *ld, const struct conf_row *row, const char *flag, const char *value,
		       void *object)
{
	struct text why = {0};
	int rc = conf_value_parse(row, value, conf_row_field(row, object), &why);
	if (rc == -ENOMEM)
		ld->no_memory = true;
	else if (rc != 0)
		conf_load_error(ld, 0, flag, "%s", why.s ? why.s : "is not understood");
	text_free(&why);
}

static void apply_flags(struct conf_load *ld, const struct conf_args *args)
{
	for (size_t i = 0; i < args->top.n; i++) {
		const struct conf_row *row = conf_row_find(CONF_SCOPE_TOP, args->top.keys[i]);
		BUG_ON(!row || conf_row_is_part(row));
		char flag[64];
		snprintf(flag, sizeof(flag), "--%s", row->name);
		apply_flag(ld, row, flag, args->top.values[i], ld->cf);
	}
	const struct conf_row *row = &conf_rows[ROW_INPUT_receive_buffer];
	for (size_t i = 0; args->receive_buffer && i < ld->cf->n_inputs; i++)
		if (conf_row_applies(row, ld->cf->inputs[i].type))
			apply_flag(ld, row, "--receive-buffer", args->receive_buffer, &ld->cf->inputs[i]);
}

/* One input for each transport, one output for all backends, one for Kafka. */
static struct conf_input *add_input(struct conf_load *ld, const struct conf_args *args, enum conf_words type)
{
	struct conf_input *in = conf_load_add_input(ld, conf_word(type), 0);
	if (!in || (args->backends.n && conf_list_add(ld, &in->to, "backends", 0) == -1) ||
	    (args->kafka && conf_list_add(ld, &in->to, "kafka", 0) == -1))
		return NULL;
	in->type = type;
	return in;
}

static void load_captures(struct conf_load *ld, const struct conf_args *args)
{
	struct conf_input *in = args->captures.n ? add_input(ld, args, CONF_INPUT_TYPE_CAPTURE) : NULL;
	for (size_t i = 0; in && i < args->captures.n; i++)
		conf_list_add(ld, &in->interface, args->captures.items[i], 0);
}

static void load_endpoints(struct conf_load *ld, const struct conf_args *args)
{
	struct conf *cf = ld->cf;
	if (!args->backends.n && !args->kafka)
		conf_load_error(
		    ld, 0, "--backend",
		    "is missing; --listen and --capture need at least one --backend HOST:PORT, or --kafka BROKERS "
		    "--topic TOPIC");
	for (size_t i = 0; i < args->listen.n && !ld->no_memory; i++) {
		const char *url = args->listen.items[i], *address = strstr(url, "://");
		char scheme[16] = "";
		BUG_ON(!address); /* conf_args_parse looked */
		snprintf(scheme, sizeof(scheme), "%.*s", (int)MIN(address - url, 15), url);
		enum conf_words type = conf_word_find("INPUT_TYPE", scheme);
		struct conf_input *in = NULL;
		for (size_t j = 0; j < cf->n_inputs; j++)
			if (cf->inputs[j].type == type)
				in = &cf->inputs[j];
		if (!in)
			in = add_input(ld, args, type);
		if (!in)
			return;
		conf_list_add(ld, &in->bind, address + 3, 0);
	}
	load_captures(ld, args);
	if (args->kafka)
		conf_load_kafka(ld, args);
	struct conf_output *out = args->backends.n ? conf_load_add_output(ld, "backends", 0) : NULL;
	if (!out)
		return;
	out->type = CONF_OUTPUT_TYPE_STATSITE;
	conf_load_backends(ld, out, &args->backends);
}

/* -- the whole -- */

static void load_tree(struct conf_load *ld, const char *bytes, size_t len, const struct conf_args *args)
{
	struct conf_tree tree = {0};
	bool is_read = false;
	if (!bytes)
		load_endpoints(ld, args);
	else if (len > CONF_FILE_MAX_BYTES)
		conf_load_error(ld, 0, NULL, "is longer than %d MiB; that is no configuration",
				CONF_FILE_MAX_BYTES >> 20);
	else if (conf_tree_read(&tree, bytes, len, ld) == 0)
		is_read = conf_read_root(ld, tree.root);
	if (!ld->no_memory && (!bytes || is_read)) {
		if (args)
			apply_flags(ld, args);
		conf_check(ld);
	}
	conf_tree_free(&tree);
}

static void load_fastcapa(struct conf_load *ld, const struct conf_fastcapa *fc, const char *bytes, size_t len)
{
	conf_read_fastcapa(ld, fc, bytes, len);
	if (!ld->no_memory)
		conf_check(ld);
}

/* What "auto" comes to, so that the tree has sizes only. Bounds are those of the options. */
static void resolve_auto(struct conf *cf)
{
	struct cgroup_limits limits;
	uint64_t n = 0;
	cgroup_limits("", &limits);
	uint64_t memory = limits.memory_bytes ? limits.memory_bytes : UINT64_MAX;
	for (size_t i = 0; i < cf->n_outputs; i++)
		n += cf->outputs[i].memory_limit == CONF_BYTES_AUTO;
	for (size_t i = 0; i < cf->n_outputs; i++)
		if (cf->outputs[i].memory_limit == CONF_BYTES_AUTO)
			cf->outputs[i].memory_limit = MAX(MIB, MIN(GIB, memory / 2 / n / MIB * MIB));
	for (size_t i = 0; i < cf->n_inputs; i++)
		if (cf->inputs[i].receive_buffer == CONF_BYTES_AUTO)
			cf->inputs[i].receive_buffer = MAX(4 * KIB, MIN(32 * MIB, memory / 64 / KIB * KIB));
}

/* `fc` instead of `args`: the bytes are Fastcapa's. */
static struct conf *load(const char *name, const char *bytes, size_t len, const struct conf_args *args,
			 const struct conf_fastcapa *fc, struct conf_errors *errors)
{
	struct conf_load ld = {
	    .name = name, .cf = conf_mem_new(sizeof(struct conf)), .top = conf_mem_new(sizeof(struct conf_origin))};
	if (ld.cf && bytes)
		ld.cf->path = conf_mem_copy(name, strlen(name));
	if (!ld.cf || !ld.top || (bytes && !ld.cf->path) || conf_object_init(CONF_SCOPE_TOP, ld.cf) != 0)
		ld.no_memory = true;
	else if (fc)
		load_fastcapa(&ld, fc, bytes, len);
	else
		load_tree(&ld, bytes, len, args);
	if (conf_load_give_errors(&ld, errors)) {
		conf_free(ld.cf);
		ld.cf = NULL;
	} else {
		resolve_auto(ld.cf);
	}
	free(ld.top);
	free(ld.inputs);
	free(ld.outputs);
	return ld.cf;
}

struct conf *conf_load_bytes(const char *name, const char *bytes, size_t len, const struct conf_args *args,
			     struct conf_errors *errors)
{
	*errors = (struct conf_errors){0};
	return load(name, bytes ? bytes : "", len, args, NULL, errors);
}

/* Reads a little more than a file may have at most. 0 or -errno. */
static int read_all(int fd, char **bytes, size_t *len)
{
	size_t size = 0;
	while (*len <= CONF_FILE_MAX_BYTES) {
		char *grown = conf_mem_grow(*bytes, &size, *len, 1);
		if (!grown)
			return -ENOMEM;
		*bytes = grown;
		ssize_t n = read(fd, *bytes + *len, size - *len);
		if (n == -1 && errno == EINTR)
			continue;
		if (n == -1)
			return -errno;
		if (n == 0)
			break;
		*len += (size_t)n;
	}
	return 0;
}

int conf_read_file(const char *path, char **bytes, size_t *len)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	if (fd == -1)
		return -errno;
	int rc = fstat(fd, &st) == -1 ? -errno : S_ISDIR(st.st_mode) ? -EISDIR : read_all(fd, bytes, len);
	close(fd);
	return rc;
}

/* A tree of the file's bytes. */
static struct conf *load_file(const char *path, const char *what, const struct conf_args *args,
			      const struct conf_fastcapa *fc, struct conf_errors *errors)
{
	char *bytes = NULL;
	size_t len = 0;
	struct conf *cf = NULL;
	int rc = conf_read_file(path, &bytes, &len);
	if (rc == 0) {
		cf = load(path, bytes ? bytes : "", len, args, fc, errors);
	} else {
		text_add(&errors->text, "%s: cannot be read: %s; give a readable %s\n", path, strerror(-rc), what);
		errors->n++;
	}
	free(bytes);
	return cf;
}

struct conf *conf_load(const struct conf_args *args, struct conf_errors *errors)
{
	*errors = (struct conf_errors){0};
	if (args->path)
		return load_file(args->path, "YAML file", args, NULL, errors);
	if (args->listen.n || args->captures.n)
		return load("command line", NULL, 0, args, NULL, errors);
	text_add(&errors->text, "command line: no configuration; give a file with -c FILE, or "
				"--listen udp://HOST:PORT and --backend HOST:PORT (see --help)\n");
	errors->n = 1;
	return NULL;
}

struct conf *conf_load_fastcapa(int argc, char **argv, enum conf_action *action, struct conf_errors *errors)
{
	struct conf_fastcapa fc;
	*errors = (struct conf_errors){0};
	bool ok = conf_fastcapa_parse(&fc, argc, argv, errors);
	*action = fc.action;
	return ok && !conf_fastcapa_is_asked(fc.action) ? load_file(fc.path, "ini file", NULL, &fc, errors) : NULL;
}
