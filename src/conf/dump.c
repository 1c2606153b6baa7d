/* SPDX-License-Identifier: MIT
 *
 * dump: a tree as a YAML file that loads to the same tree, every option by its row. Pure.
 */
#include "load.h"

#include <string.h>

/* Length of the UTF-8 sequence at s and its code point; a byte that begins none stands for itself. */
static size_t decode(const unsigned char *s, uint32_t *code)
{
	size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 1;
	*code = n == 1 ? s[0] : s[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80) { /* the NUL at the end included */
			*code = s[0];
			return 1;
		}
		*code = *code << 6 | (s[i] & 0x3f);
	}
	return n;
}

void conf_text_yaml(struct text *t, const char *s)
{
	const unsigned char *p = (const unsigned char *)s;
	uint32_t code;
	text_add(t, "\"");
	while (*p) {
		p += decode(p, &code);
		if (code == '"' || code == '\\')
			text_add(t, "\\%c", (int)code);
		else if (code >= 0x20 && code < 0x7f)
			text_add(t, "%c", (int)code);
		else
			text_add(t, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
	}
	text_add(t, "\"");
}

/* Not given, and nothing that a file may say: an empty list, the other one of two, what is not built in. */
static bool is_unsaid(const struct conf_row *row, const void *object)
{
	const char *example;
	const void *field = conf_row_field(row, object);
	if (conf_row_not_built(row->index))
		return true;
	if (strcmp(row->type, "LIST") == 0)
		return ((const struct conf_list *)field)->n == 0;
	return conf_row_instead(row->index, &example) < CONF_ROWS && strcmp(row->type, "STRING") == 0 &&
	       (*(char *const *)field)[0] == '\0';
}

static void add_options(struct text *t, enum conf_scope scope, enum conf_words type, const char *indent,
			const void *object)
{
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct conf_row *row = &conf_rows[i];
		if (row->scope != scope || conf_row_is_part(row) || !conf_row_applies(row, type) ||
		    is_unsaid(row, object))
			continue;
		text_add(t, "%s%s: ", indent, row->name);
		conf_value_format(row, conf_row_field(row, object), t);
		text_add(t, "\n");
	}
}

static void add_backend(struct text *t, const struct conf_backend *be)
{
	const char *before = "{ ";
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct conf_row *row = &conf_rows[i];
		if (row->scope != CONF_SCOPE_BACKEND)
			continue;
		text_add(t, "%s%s: ", before, row->name);
		conf_value_format(row, conf_row_field(row, be), t);
		before = ", ";
	}
	text_add(t, " }\n");
}

static void add_backends(struct text *t, const struct conf_output *out)
{
	if (out->shards) {
		text_add(t, "    shard_map:\n");
		for (size_t i = 0; i < out->n_shards; i++) {
			text_add(t, "      %zu: ", i);
			add_backend(t, &out->backends[out->shards[i]]);
		}
	} else if (out->n_backends) {
		text_add(t, "    backends:\n");
		for (size_t i = 0; i < out->n_backends; i++) {
			text_add(t, "      - ");
			add_backend(t, &out->backends[i]);
		}
	}
}

void conf_dump(const struct conf *cf, struct text *t)
{
	add_options(t, CONF_SCOPE_TOP, CONF_WORDS, "", cf);
	text_add(t, "inputs:\n");
	for (size_t i = 0; i < cf->n_inputs; i++) {
		text_add(t, "  %s:\n", cf->inputs[i].name);
		add_options(t, CONF_SCOPE_INPUT, cf->inputs[i].type, "    ", &cf->inputs[i]);
	}
	text_add(t, "outputs:\n");
	for (size_t i = 0; i < cf->n_outputs; i++) {
		text_add(t, "  %s:\n", cf->outputs[i].name);
		add_options(t, CONF_SCOPE_OUTPUT, cf->outputs[i].type, "    ", &cf->outputs[i]);
		add_backends(t, &cf->outputs[i]);
	}
}
