/* SPDX-License-Identifier: MIT
 *
 * read: YAML nodes to structs, by the rows of the option table: names, types, ranges, doubles, what is required and
 * what belongs to which type. Knows four options by name, those whose value is a structure of its own. What an option
 * means beside others is check.c's.
 */
#include "mem.h"
#include "node.h"

#include <errno.h>
#include <string.h>

static void say_double(struct conf_load *ld, int line, const char *key, int first)
{
	conf_load_error(ld, line, key, "is given twice, first in line %d; allowed is once", first);
}

static void say_allowed(struct conf_load *ld, const struct conf_row *row, int line, const char *key, const char *what)
{
	struct text allowed = {0};
	conf_row_allowed(row, &allowed);
	conf_load_error(ld, line, key, "%s; allowed is %s", what, allowed.s ? allowed.s : "");
	text_free(&allowed);
}

static bool say_not_built(struct conf_load *ld, const char *absent, int line, const char *key)
{
	if (absent)
		conf_load_error(ld, line, key, "needs %s, and this millrace was built without %s", absent, absent);
	return absent != NULL;
}

static void read_scalar(struct conf_load *ld, const struct conf_row *row, const struct conf_node *node, const char *key,
			void *field)
{
	struct text why = {0};
	if (node->kind != CONF_NODE_SCALAR) {
		say_allowed(ld, row, node->line, key, "is a list or a map");
		return;
	}
	int rc = conf_value_parse(row, node->is_null ? "" : node->text, field, &why);
	if (rc == -ENOMEM)
		ld->no_memory = true;
	else if (rc != 0)
		conf_load_error(ld, node->line, key, "%s", why.s ? why.s : "is not understood");
	else if (strncmp(row->type, "ENUM_", 5) == 0)
		say_not_built(ld, conf_word_not_built(*(enum conf_words *)field), node->line, key);
	text_free(&why);
}

static void read_list(struct conf_load *ld, const struct conf_row *row, const struct conf_node *node, const char *key,
		      struct conf_list *list)
{
	struct conf_node *const one = (struct conf_node *)node;
	struct conf_node *const *items = node->kind == CONF_NODE_LIST ? node->items : &one;
	size_t n = node->kind == CONF_NODE_LIST ? node->n : 1;
	if (n > CONF_LIST_MAX) {
		conf_load_error(ld, node->line, key, "has %zu entries; allowed are at most %d", n, CONF_LIST_MAX);
		return;
	}
	if (n == 0)
		say_allowed(ld, row, node->line, key, "is an empty list");
	for (size_t i = 0; i < n; i++) {
		if (items[i]->kind != CONF_NODE_SCALAR)
			say_allowed(ld, row, items[i]->line, key, "holds a list or a map");
		else if (items[i]->is_null || !*items[i]->text)
			say_allowed(ld, row, items[i]->line, key, "holds an empty text");
		else if (conf_list_add(ld, list, items[i]->text, items[i]->line) == -1)
			return;
	}
}

static void read_map_entry(struct conf_load *ld, const struct conf_row *row, const struct conf_node *name,
			   const struct conf_node *value, const char *key, struct conf_map *map)
{
	char path[CONF_KEY_SIZE];
	if (name->kind != CONF_NODE_SCALAR || value->kind != CONF_NODE_SCALAR) {
		say_allowed(ld, row, name->line, key, "holds a list or a map");
		return;
	}
	for (size_t i = 0; i < map->n; i++) {
		if (strcmp(map->keys[i], name->text) == 0) {
			say_double(ld, name->line, conf_key(path, key, name->text), map->lines[i]);
			return;
		}
	}
	conf_map_add(ld, map, name->text, value->is_null ? "" : value->text, name->line);
}

static void read_map(struct conf_load *ld, const struct conf_row *row, const struct conf_node *node, const char *key,
		     struct conf_map *map)
{
	if (node->is_null)
		return;
	if (node->kind != CONF_NODE_MAP)
		say_allowed(ld, row, node->line, key, "is no map");
	else if (node->n / 2 > CONF_LIST_MAX)
		conf_load_error(ld, node->line, key, "has %zu entries; allowed are at most %d", node->n / 2,
				CONF_LIST_MAX);
	else
		for (size_t i = 0; i < node->n; i += 2)
			read_map_entry(ld, row, node->items[i], node->items[i + 1], key, map);
}

static void read_option(struct conf_load *ld, const struct conf_row *row, const struct conf_node *node, const char *key,
			void *object)
{
	void *field = conf_row_field(row, object);
	if (say_not_built(ld, conf_row_not_built(row->index), node->line, key))
		return;
	if (strcmp(row->type, "LIST") == 0)
		read_list(ld, row, node, key, field);
	else if (strcmp(row->type, "MAP") == 0)
		read_map(ld, row, node, key, field);
	else
		read_scalar(ld, row, node, key, field);
}

static void list_keys(enum conf_scope scope, struct text *t)
{
	for (size_t i = 0; i < CONF_ROWS; i++)
		if (conf_rows[i].scope == scope)
			text_add(t, "%s%s", t->len ? ", " : "", conf_rows[i].name);
}

/* statsrelay passes over a key of a section that it does not know, so such a file must not stop us. */
static void say_unknown(struct conf_load *ld, enum conf_scope scope, const struct conf_node *key_node, const char *key)
{
	struct text keys = {0};
	const char *near = ld->n_errors < CONF_ERRORS_MAX ? conf_row_nearest(scope, key_node->text) : NULL;
	if (scope == CONF_SCOPE_SECTION) {
		conf_load_note(ld, key_node->line, key, "is unknown and has no effect%s%s%s",
			       near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
		return;
	}
	list_keys(scope, &keys);
	if (near)
		conf_load_error(ld, key_node->line, key, "is unknown; did you mean %s?", near);
	else
		conf_load_error(ld, key_node->line, key, "is unknown; known here are %s", keys.s ? keys.s : "");
	text_free(&keys);
}

static void say_foreign(struct conf_load *ld, const struct conf_row *row, int line, const char *key,
			enum conf_words type)
{
	struct text types = {0};
	conf_row_types(row, &types);
	conf_load_error(ld, line, key, "does not belong to type %s; it is for %s only", conf_word(type),
			types.s ? types.s : "");
	text_free(&types);
}

/* A key of earlier versions: the row that its value is for, or NULL. Says what to write instead. */
static const struct conf_row *former_row(struct conf_load *ld, const struct conf_former *former,
					 const struct conf_node *name, const struct conf_node *value, const char *key)
{
	bool is_default = value->kind == CONF_NODE_SCALAR && strcmp(value->text, former->word) == 0;
	if (former->name[0] == '\0' || is_default) {
		conf_load_note(ld, name->line, key, "has no effect any more: %s", former->why);
		return NULL;
	}
	conf_load_note(ld, name->line, key, "is now %s, and read as that", former->name);
	return conf_row_find(former->scope, former->name);
}

static void read_pair(struct conf_load *ld, const struct conf_node *name, const struct conf_node *value,
		      enum conf_scope scope, const char *key, void *object, struct conf_origin *origin)
{
	char path[CONF_KEY_SIZE];
	if (name->kind != CONF_NODE_SCALAR) {
		conf_load_error(ld, name->line, key, "has a list or a map as a key; allowed is a word");
		return;
	}
	conf_key(path, key, name->text);
	const struct conf_row *row = conf_row_find(scope, name->text);
	const struct conf_former *former = conf_former_find(scope, name->text);
	if (former)
		row = former_row(ld, former, name, value, path);
	else if (!row)
		say_unknown(ld, scope, name, path);
	if (!row)
		return;
	if (origin->rows[row->index].is_given) {
		say_double(ld, name->line, path, origin->rows[row->index].line);
		return;
	}
	origin->rows[row->index].is_given = true;
	origin->rows[row->index].line = name->line;
	if (conf_row_is_part(row))
		origin->rows[row->index].node = value;
	else
		read_option(ld, row, value, path, object);
}

/* The type is read before anything else: what is not built in has options that we do not know. */
static const char *not_built(const struct conf_node *map, enum conf_scope scope)
{
	const struct conf_row *row = conf_row_find(scope, "type");
	for (size_t i = 0; row && i < map->n; i += 2)
		if (map->items[i]->kind == CONF_NODE_SCALAR && strcmp(map->items[i]->text, "type") == 0 &&
		    map->items[i + 1]->kind == CONF_NODE_SCALAR)
			return conf_word_not_built(
				conf_word_find(row->type + strlen("ENUM_"), map->items[i + 1]->text));
	return NULL;
}

static bool has_instead(const struct conf_origin *origin, enum conf_row_index row)
{
	const char *example;
	for (size_t i = 0; i < CONF_ROWS; i++)
		if (origin->rows[i].is_given && conf_row_instead(i, &example) == row)
			return true;
	return false;
}

static void check_missing(struct conf_load *ld, const struct conf_row *row, int line, const char *key,
			  const struct conf_origin *origin)
{
	char path[CONF_KEY_SIZE];
	const char *example = conf_row_required(row->index), *other;
	if (!example || origin->rows[row->index].is_given || has_instead(origin, row->index))
		return;
	struct text rest = {0};
	for (size_t i = 0; i < CONF_ROWS; i++)
		if (conf_row_instead(i, &other) == row->index)
			text_add(&rest, ", or %s", conf_rows[i].name);
	conf_load_error(ld, line, conf_key(path, key, row->name), "is missing; give for example %s: %s%s", row->name,
			example, rest.s ? rest.s : "");
	text_free(&rest);
}

/* What is given and does not belong, and what belongs and is not given. An unknown type settles neither. */
static void check_rows(struct conf_load *ld, enum conf_scope scope, int line, const char *key, const void *object,
		       struct conf_origin *origin)
{
	char path[CONF_KEY_SIZE];
	const char *example;
	const struct conf_row *type_row = conf_row_find(scope, "type");
	enum conf_words type = type_row ? *(enum conf_words *)conf_row_field(type_row, object) : CONF_WORDS;
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct conf_row *row = &conf_rows[i];
		if (row->scope != scope)
			continue;
		bool applies = conf_row_applies(row, type);
		enum conf_row_index other = conf_row_instead(i, &example);
		if (origin->rows[i].is_given && !applies && type != CONF_WORDS) {
			say_foreign(ld, row, origin->rows[i].line, conf_key(path, key, row->name), type);
			origin->rows[i].node = NULL;
		} else if (origin->rows[i].is_given && other < CONF_ROWS && origin->rows[other].is_given) {
			conf_load_error(ld, origin->rows[i].line, conf_key(path, key, row->name),
					"is given beside %s; allowed is one of the two", conf_rows[other].name);
			origin->rows[i].node = NULL;
		} else if (applies) {
			check_missing(ld, row, line, key, origin);
		}
	}
}

void conf_read_object(struct conf_load *ld, const struct conf_node *map, int line, enum conf_scope scope,
		      const char *key, void *object, struct conf_origin *origin)
{
	if (map->kind != CONF_NODE_MAP && !map->is_null) {
		conf_load_error(ld, map->line, key, "is no map of options; allowed is \"key: value\" pairs");
		return;
	}
	const char *absent = not_built(map, scope);
	if (absent) {
		char path[CONF_KEY_SIZE];
		say_not_built(ld, absent, line, conf_key(path, key, "type"));
		return;
	}
	for (size_t i = 0; i < map->n; i += 2)
		read_pair(ld, map->items[i], map->items[i + 1], scope, key, object, origin);
	check_rows(ld, scope, line, key, object, origin);
}

/* -- maps of name to object -- */

/* Names stand in metrics, messages and paths: letters, digits, "_", "-", ".". */
static bool is_name(const char *s)
{
	static const char allowed[] = "-.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	size_t len = strlen(s);
	return len > 0 && len <= CONF_NAME_MAX && s[0] != '-' && s[0] != '.' && strspn(s, allowed) == len;
}

static void read_input(struct conf_load *ld, const struct conf_node *name, const struct conf_node *value,
		       const char *key)
{
	struct conf_input *in = conf_load_add_input(ld, name->text, name->line);
	if (in)
		conf_read_object(ld, value, name->line, CONF_SCOPE_INPUT, key, in, &ld->inputs[in->index]);
}

static void read_output(struct conf_load *ld, const struct conf_node *name, const struct conf_node *value,
			const char *key)
{
	char path[CONF_KEY_SIZE];
	struct conf_output *out = conf_load_add_output(ld, name->text, name->line);
	if (!out)
		return;
	struct conf_origin *origin = &ld->outputs[out->index];
	conf_read_object(ld, value, name->line, CONF_SCOPE_OUTPUT, key, out, origin);
	if (origin->rows[ROW_OUTPUT_backends].node)
		conf_read_backends(ld, out, origin->rows[ROW_OUTPUT_backends].node, conf_key(path, key, "backends"));
	if (origin->rows[ROW_OUTPUT_shard_map].node)
		conf_read_shard_map(ld, out, origin->rows[ROW_OUTPUT_shard_map].node, conf_key(path, key, "shard_map"));
}

typedef void read_object_fn(struct conf_load *, const struct conf_node *, const struct conf_node *, const char *);

static void read_named(struct conf_load *ld, const struct conf_node *map, const char *key, size_t max,
		       read_object_fn *read)
{
	struct conf_names names = {0};
	char path[CONF_KEY_SIZE];
	if (!map || map->is_null)
		return;
	if (map->kind != CONF_NODE_MAP) {
		conf_load_error(ld, map->line, key, "is no map; allowed is \"NAME: { type: …, … }\"");
		return;
	}
	if (map->n / 2 > max)
		conf_load_error(ld, map->items[2 * max]->line, key, "are %zu; allowed are at most %zu", map->n / 2,
				max);
	for (size_t i = 0; i < MIN(map->n, 2 * max); i += 2) {
		const struct conf_node *name = map->items[i];
		if (name->kind != CONF_NODE_SCALAR || !is_name(name->text)) {
			conf_load_error(
				ld, name->line, conf_key(path, key, name->text ? name->text : ""),
				"is no name; allowed are 1 to %d of A-Z a-z 0-9 _ - . beginning with none of - .",
				CONF_NAME_MAX);
			continue;
		}
		size_t first = conf_names_put(&names, name->text, i);
		if (first == SIZE_MAX)
			ld->no_memory = true;
		else if (first != i)
			say_double(ld, name->line, conf_key(path, key, name->text), map->items[first]->line);
		else
			read(ld, name, map->items[i + 1], conf_key(path, key, name->text));
	}
	conf_names_free(&names);
}

bool conf_read_root(struct conf_load *ld, const struct conf_node *root)
{
	if (!root || root->is_null) {
		conf_load_error(ld, 0, NULL, "is empty; it must name at least one input and one output");
		return false;
	}
	if (root->kind != CONF_NODE_MAP) {
		conf_load_error(ld, root->line, NULL, "is no map of options; allowed is \"key: value\" pairs");
		return false;
	}
	conf_read_object(ld, root, root->line, CONF_SCOPE_TOP, "", ld->cf, ld->top);
	read_named(ld, ld->top->rows[ROW_TOP_inputs].node, "inputs", CONF_INPUTS_MAX, read_input);
	read_named(ld, ld->top->rows[ROW_TOP_outputs].node, "outputs", CONF_OUTPUTS_MAX, read_output);
	conf_read_statsrelay(ld);
	return true;
}
