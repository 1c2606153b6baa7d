/* SPDX-License-Identifier: MIT
 *
 * check: what a configuration means as a whole: who feeds whom, what is given twice, what contradicts. Each option by
 * itself was checked when it was read (value.c, read.c). Also links inputs to their outputs. Pure.
 */
#include "mem.h"
#include "node.h"

#include <string.h>

/* Where an option was given, or where its object begins. */
static int line_of(const struct conf_origin *origin, enum conf_row_index row, int object_line)
{
	return origin->rows[row].is_given ? origin->rows[row].line : object_line;
}

static char *option_key(char *buf, const char *part, const char *name, const char *option)
{
	char object[CONF_KEY_SIZE];
	return conf_key(buf, conf_key(object, part, name), option);
}

/* -- inputs: where they read -- */

/* Addresses of all inputs, to find one that is given twice. Keys are owned here; each begins with a type. */
struct endpoints {
	struct conf_names names;
	char **keys;
	int *lines;
	size_t n, keys_size, lines_size;
};

static bool has_port(enum conf_words type)
{
	return type == CONF_INPUT_TYPE_UDP || type == CONF_INPUT_TYPE_TCP;
}

/* The address in one spelling into text; false when it is wrong (said). */
static bool check_address(struct conf_load *ld, const struct conf_input *in, size_t i, const char *key,
			  struct text *text)
{
	const char *s = in->bind.items[i];
	struct conf_address a;
	struct text why = {0};
	char shown[120], same[300];
	if (has_port(in->type)) {
		bool ok = conf_address_parse(s, CONF_ADDRESS_BIND, &a, &why) == 0;
		if (ok)
			text_add(text, "%s %s", conf_word(in->type), conf_address_key(&a, same, sizeof(same)));
		else
			conf_load_error(ld, in->bind.lines[i], key, "%s", why.s ? why.s : "is no address");
		text_free(&why);
		return ok;
	}
	const char *fault = conf_path_fault(s);
	if (fault)
		conf_load_error(ld, in->bind.lines[i], key, "\"%s\" %s",
				text_escape(shown, sizeof(shown), s, strlen(s)), fault);
	else
		text_add(text, "path %s", s); /* a socket file is there once, whatever its type */
	return !fault;
}

static void check_double(struct conf_load *ld, struct endpoints *ends, struct text *text, int line, const char *key)
{
	char **keys = conf_mem_grow(ends->keys, &ends->keys_size, ends->n, sizeof(*keys));
	if (keys)
		ends->keys = keys;
	int *lines = conf_mem_grow(ends->lines, &ends->lines_size, ends->n, sizeof(*lines));
	if (lines)
		ends->lines = lines;
	size_t index = keys && lines && !text->failed ? conf_names_put(&ends->names, text->s, ends->n) : SIZE_MAX;
	if (index == SIZE_MAX) {
		ld->no_memory = true;
		return;
	}
	if (index < ends->n) {
		if (ends->lines[index])
			conf_load_error(ld, line, key, "is the same address as in line %d; each is allowed once",
					ends->lines[index]);
		else
			conf_load_error(ld, line, key, "is the same address as another one; each is allowed once");
		return;
	}
	keys[ends->n] = text->s; /* taken */
	lines[ends->n++] = line;
	*text = (struct text){0};
}

static void check_bind(struct conf_load *ld, const struct conf_input *in, struct endpoints *ends)
{
	char key[CONF_KEY_SIZE];
	option_key(key, "inputs", in->name, "bind");
	for (size_t i = 0; i < in->bind.n && !ld->no_memory; i++) {
		struct text text = {0};
		if (check_address(ld, in, i, key, &text))
			check_double(ld, ends, &text, in->bind.lines[i], key);
		text_free(&text);
	}
}

/* In two inputs it may stand: they have filters and outputs of their own. */
static void check_interfaces(struct conf_load *ld, const struct conf_input *in)
{
	char key[CONF_KEY_SIZE], shown[100];
	option_key(key, "inputs", in->name, "interface");
	for (size_t i = 0; i < in->interface.n; i++)
		for (size_t k = 0; k < i; k++)
			if (strcmp(in->interface.items[i], in->interface.items[k]) == 0)
				conf_load_error(ld, in->interface.lines[i], key,
						"names %s twice; each interface is allowed once",
						text_escape(shown, sizeof(shown), in->interface.items[i],
							    strlen(in->interface.items[i])));
}

/* Standard input is there once. */
static void check_paths(struct conf_load *ld, const struct conf_input *in, size_t *n_standard)
{
	char key[CONF_KEY_SIZE];
	for (size_t i = 0; i < in->path.n; i++)
		if (strcmp(in->path.items[i], "-") == 0 && (*n_standard)++ > 0)
			conf_load_error(ld, in->path.lines[i], option_key(key, "inputs", in->name, "path"),
					"\"-\", standard input, is read already; allowed is once");
}

static void check_mode(struct conf_load *ld, const struct conf_input *in)
{
	char key[CONF_KEY_SIZE], shown[40];
	const char *mode = in->mode;
	size_t len = strlen(mode);
	if (len >= 3 && len <= 4 && strspn(mode, "01234567") == len && (len == 3 || mode[0] == '0'))
		return;
	conf_load_error(ld, line_of(&ld->inputs[in->index], ROW_INPUT_mode, in->line),
			option_key(key, "inputs", in->name, "mode"),
			"\"%s\" is not understood; allowed is 000 to 0777, octal",
			text_escape(shown, sizeof(shown), mode, len));
}

/* -- inputs: where what they read goes -- */

static const char *nearest_output(const struct conf_load *ld, const char *name)
{
	const char *best = NULL;
	unsigned least = UINT32_MAX;
	for (size_t i = 0; i < ld->cf->n_outputs && ld->n_errors < CONF_ERRORS_MAX; i++) {
		unsigned d = conf_distance(name, ld->cf->outputs[i].name);
		if (d < least && conf_is_near(ld->cf->outputs[i].name, d)) {
			least = d;
			best = ld->cf->outputs[i].name;
		}
	}
	return best;
}

static void say_no_output(struct conf_load *ld, const char *name, int line, const char *key)
{
	struct text names = {0};
	char shown[100];
	const char *near = nearest_output(ld, name);
	for (size_t i = 0; i < ld->cf->n_outputs; i++)
		text_add(&names, "%s%s", i ? ", " : "", ld->cf->outputs[i].name);
	text_escape(shown, sizeof(shown), name, strlen(name));
	if (near)
		conf_load_error(ld, line, key, "\"%s\" is no output; did you mean %s?", shown, near);
	else
		conf_load_error(ld, line, key, "\"%s\" is no output; there are %s", shown, names.s ? names.s : "none");
	text_free(&names);
}

static void link_output(struct conf_load *ld, struct conf_input *in, size_t i, const char *key)
{
	const char *name = in->to.items[i];
	struct conf_output *out = NULL;
	for (size_t j = 0; j < ld->cf->n_outputs && !out; j++)
		if (strcmp(ld->cf->outputs[j].name, name) == 0)
			out = &ld->cf->outputs[j];
	if (!out) {
		say_no_output(ld, name, in->to.lines[i], key);
		return;
	}
	for (size_t j = 0; j < in->n_outputs; j++) {
		if (in->outputs[j] == out) {
			conf_load_error(ld, in->to.lines[i], key, "names %s twice; each output is allowed once", name);
			return;
		}
	}
	in->outputs[in->n_outputs++] = out;
	out->n_inputs++;
}

static void link_outputs(struct conf_load *ld, struct conf_input *in)
{
	char key[CONF_KEY_SIZE];
	option_key(key, "inputs", in->name, "to");
	in->outputs = conf_mem_new(MAX(ld->cf->n_outputs, 1) * sizeof(struct conf_output *));
	if (!in->outputs)
		ld->no_memory = true;
	for (size_t i = 0; i < in->to.n && !ld->no_memory; i++)
		link_output(ld, in, i, key);
}

/* -- outputs -- */

static void say_double_name(struct conf_load *ld, const struct conf_backend *be, const struct conf_backend *first,
			    const char *key)
{
	char shown[100], where[32] = "";
	if (first->line)
		snprintf(where, sizeof(where), ", first in line %d", first->line);
	conf_load_error(
		ld, be->line, key,
		"\"%s\" is a duplicate name%s; allowed is each once, so leave it out or give it a name of its own",
		text_escape(shown, sizeof(shown), be->name, strlen(be->name)), where);
}

static void check_backends(struct conf_load *ld, const struct conf_output *out)
{
	struct conf_names names = {0};
	char key[CONF_KEY_SIZE];
	bool some = out->n_backends == 0;
	if (out->hash != CONF_HASH_RENDEZVOUS)
		return; /* names and weights have no part in it */
	option_key(key, "outputs", out->name, "backends");
	for (size_t i = 0; i < out->n_backends; i++) {
		const struct conf_backend *be = &out->backends[i];
		size_t first = conf_names_put(&names, be->name, i);
		some |= be->weight > 0;
		if (first == SIZE_MAX)
			ld->no_memory = true;
		else if (first != i)
			say_double_name(ld, be, &out->backends[first], key);
	}
	if (!some)
		conf_load_error(ld, line_of(&ld->outputs[out->index], ROW_OUTPUT_backends, out->line), key,
				"all have weight 0; allowed is 0 for some, but at least one above 0");
	conf_names_free(&names);
}

static void check_output(struct conf_load *ld, const struct conf_output *out)
{
	const struct conf_origin *origin = &ld->outputs[out->index];
	char key[CONF_KEY_SIZE];
	if (out->n_inputs == 0 && !ld->cf->is_statsrelay) /* there, its inputs have an error of their own */
		conf_load_error(ld, out->line, conf_key(key, "outputs", out->name),
				"is fed by no input; name it in an input's `to`, or remove it");
	check_backends(ld, out);
	if (out->type == CONF_OUTPUT_TYPE_KAFKA)
		conf_check_kafka(ld, out);
	if (out->reconnect_min > out->reconnect_max) {
		struct text limit = {0};
		enum conf_row_index row = origin->rows[ROW_OUTPUT_reconnect_max].is_given ? ROW_OUTPUT_reconnect_max
											  : ROW_OUTPUT_reconnect_min;
		conf_value_format(&conf_rows[ROW_OUTPUT_reconnect_min], &out->reconnect_min, &limit);
		conf_load_error(ld, line_of(origin, row, out->line),
				option_key(key, "outputs", out->name, conf_rows[row].name),
				"reconnect_max is below reconnect_min; allowed is %s or more", limit.s ? limit.s : "");
		text_free(&limit);
	}
}

/* A part with entries that were all refused has its errors already, and so has a command line without --backend. */
static void check_part(struct conf_load *ld, enum conf_row_index row, size_t n)
{
	const struct conf_node *node = ld->top->rows[row].node;
	if (n == 0 && ld->cf->path && (!node || node->is_null || (node->kind == CONF_NODE_MAP && node->n == 0)))
		conf_load_error(ld, ld->top->rows[row].line, conf_rows[row].name,
				"there are none; allowed is at least one");
}

static void check_http(struct conf_load *ld, struct endpoints *ends)
{
	const char *http = ld->cf->http;
	int line = ld->top->rows[ROW_TOP_http].line;
	struct conf_address a;
	struct text text = {0};
	char same[300];
	if (strcmp(http, "auto") == 0 || strcmp(http, "off") == 0)
		return;
	if (conf_address_parse(http, CONF_ADDRESS_HTTP, &a, &text) != 0) {
		conf_load_error(ld, line, "http", "%s", text.s ? text.s : "is no address");
	} else if (a.port != 0) {
		text_add(&text, "tcp %s", conf_address_key(&a, same, sizeof(same)));
		check_double(ld, ends, &text, line, "http");
	}
	text_free(&text);
}

static void check_top(struct conf_load *ld, struct endpoints *ends)
{
	struct conf *cf = ld->cf;
	char shown[120];
	if (!cf->is_statsrelay) {
		check_part(ld, ROW_TOP_inputs, cf->n_inputs);
		check_part(ld, ROW_TOP_outputs, cf->n_outputs);
	} else if (!cf->n_inputs && !ld->n_errors) {
		conf_load_error(ld, 0, NULL, "neither statsd: nor carbon: has a shard_map; allowed is at least one");
	}
	check_http(ld, ends);
	if (!cf->control[0])
		return;
	int line = ld->top->rows[ROW_TOP_control].line;
	const char *fault = conf_path_fault(cf->control);
	if (cf->control[0] == '@')
		fault = "is an abstract name, which anybody could use; allowed is the path of a socket file";
	struct text text = {0};
	text_add(&text, "path %s", cf->control);
	if (fault)
		conf_load_error(ld, line, "control", "\"%s\" %s",
				text_escape(shown, sizeof(shown), cf->control, strlen(cf->control)), fault);
	else
		check_double(ld, ends, &text, line, "control");
	text_free(&text);
}

void conf_check(struct conf_load *ld)
{
	struct conf *cf = ld->cf;
	struct endpoints ends = {0};
	size_t n_standard = 0;
	for (size_t i = 0; i < cf->n_inputs && !ld->no_memory; i++) {
		struct conf_input *in = &cf->inputs[i];
		if (in->type != CONF_WORDS)
			check_bind(ld, in, &ends);
		check_interfaces(ld, in);
		check_paths(ld, in, &n_standard);
		if (conf_row_applies(&conf_rows[ROW_INPUT_mode], in->type))
			check_mode(ld, in);
		link_outputs(ld, in);
	}
	for (size_t i = 0; i < cf->n_outputs && !ld->no_memory; i++)
		check_output(ld, &cf->outputs[i]);
	if (!ld->no_memory)
		check_top(ld, &ends);
	if (!ld->no_memory)
		conf_check_paths(ld);
	for (size_t i = 0; i < ends.n; i++)
		free(ends.keys[i]);
	free(ends.keys);
	free(ends.lines);
	conf_names_free(&ends.names);
}
