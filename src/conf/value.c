/* SPDX-License-Identifier: MIT
 *
 * value: the types of options: text to field, within the row's range, and back. Defaults, ranges, files and flags all
 * go through here. Pure but for strings, which are allocated. LIST and MAP are filled by the reader (read.c).
 */
#include "mem.h"
#include "rows.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* A field of any type without memory of its own. */
union number {
	bool boolean;
	uint64_t u;
	double real;
	enum conf_words word;
};

struct value_type {
	const char *name; /* of the row's type; "ENUM_" for all enums */
	int (*parse)(const struct conf_row *row, const char *s, void *field);
	bool (*is_below)(const void *a, const void *b); /* NULL: has no range */
	void (*format)(const void *field, struct text *t);
	void (*fini)(void *field);
};

/* -- parse -- */

static int parse_bool(const struct conf_row *row, const char *s, void *field)
{
	(void)row;
	return text_parse_bool(s, field);
}

static int parse_uint(const struct conf_row *row, const char *s, void *field)
{
	(void)row;
	return text_parse_uint(s, field);
}

static int parse_bytes(const struct conf_row *row, const char *s, void *field)
{
	(void)row;
	return text_parse_bytes(s, field);
}

static int parse_auto_bytes(const struct conf_row *row, const char *s, void *field)
{
	if (strcmp(s, "auto") != 0)
		return parse_bytes(row, s, field);
	*(uint64_t *)field = CONF_BYTES_AUTO;
	return 0;
}

static int parse_time(const struct conf_row *row, const char *s, void *field)
{
	(void)row;
	return text_parse_time(s, field);
}

/* strtod takes more than we want: spaces, hexadecimal, nan. conf runs in the C locale, whose point is a point. */
static int parse_real(const struct conf_row *row, const char *s, void *field)
{
	(void)row;
	char *end;
	if (!*s || s[strspn(s, "0123456789.eE+-")])
		return -EINVAL;
	double real = strtod(s, &end);
	if (*end)
		return -EINVAL;
	if (!isfinite(real))
		return -ERANGE;
	*(double *)field = real;
	return 0;
}

static int parse_string(const struct conf_row *row, const char *s, void *field)
{
	(void)row;
	char *copy = conf_mem_copy(s, strlen(s));
	if (!copy)
		return -ENOMEM;
	free(*(char **)field);
	*(char **)field = copy;
	return 0;
}

static int parse_enum(const struct conf_row *row, const char *s, void *field)
{
	enum conf_words word = conf_word_find(row->type + strlen("ENUM_"), s);
	if (word == CONF_WORDS)
		return -EINVAL;
	*(enum conf_words *)field = word;
	return 0;
}

/* -- range -- */

static bool uint_is_below(const void *a, const void *b)
{
	return *(const uint64_t *)a < *(const uint64_t *)b;
}

static bool real_is_below(const void *a, const void *b)
{
	return *(const double *)a < *(const double *)b;
}

/* "adaptive" and "auto" are within any range. */
static bool word_or_uint_is_below(const void *a, const void *b)
{
	if (*(const uint64_t *)a == UINT64_MAX || *(const uint64_t *)b == UINT64_MAX)
		return false;
	return uint_is_below(a, b);
}

/* -- format: exact, so that what is written is read as the same value -- */

struct unit {
	const char *name;
	uint64_t size;
};

static void format_units(uint64_t n, const struct unit *units, size_t n_units, struct text *t)
{
	size_t i = n_units - 1;
	while (n % units[i].size)
		i--;
	text_add(t, "%llu%s", (unsigned long long)(n / units[i].size), units[i].name);
}

static void format_bool(const void *field, struct text *t)
{
	text_add(t, "%s", *(const bool *)field ? "true" : "false");
}

static void format_uint(const void *field, struct text *t)
{
	text_add(t, "%llu", (unsigned long long)*(const uint64_t *)field);
}

static void format_bytes(const void *field, struct text *t)
{
	static const struct unit units[] = {{"", 1}, {"KiB", KIB}, {"MiB", MIB}, {"GiB", GIB}, {"TiB", GIB << 10}};
	uint64_t n = *(const uint64_t *)field;
	format_units(n, units, n ? ARRAY_LEN(units) : 1, t);
}

static void format_time(const void *field, struct text *t)
{
	static const struct unit units[] = {
		{"us", 1}, {"ms", 1000}, {"s", 1000000}, {"m", 60000000}, {"h", 3600000000}};
	uint64_t n = *(const uint64_t *)field;
	if (n)
		format_units(n, units, ARRAY_LEN(units), t);
	else
		text_add(t, "off");
}

static void format_real(const void *field, struct text *t)
{
	char buf[40];
	double real = *(const double *)field;
	for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back as the same number */
		snprintf(buf, sizeof(buf), "%.*g", digits, real);
		if (strtod(buf, NULL) == real)
			break;
	}
	text_add(t, "%s", buf);
}

static void format_string(const void *field, struct text *t)
{
	conf_text_yaml(t, *(char *const *)field);
}

static void format_enum(const void *field, struct text *t)
{
	text_add(t, "%s", conf_word(*(const enum conf_words *)field));
}

static void format_list(const void *field, struct text *t)
{
	const struct conf_list *list = field;
	text_add(t, "[");
	for (size_t i = 0; i < list->n; i++) {
		text_add(t, "%s", i ? ", " : "");
		conf_text_yaml(t, list->items[i]);
	}
	text_add(t, "]");
}

static void format_map(const void *field, struct text *t)
{
	const struct conf_map *map = field;
	text_add(t, "{");
	for (size_t i = 0; i < map->n; i++) {
		text_add(t, "%s", i ? ", " : " ");
		conf_text_yaml(t, map->keys[i]);
		text_add(t, ": ");
		conf_text_yaml(t, map->values[i]);
	}
	text_add(t, "%s}", map->n ? " " : "");
}

/* -- end -- */

static void fini_string(void *field)
{
	free(*(char **)field);
	*(char **)field = NULL;
}

static void fini_list(void *field)
{
	struct conf_list *list = field;
	for (size_t i = 0; i < list->n; i++)
		free(list->items[i]);
	free(list->items);
	free(list->lines);
	*list = (struct conf_list){0};
}

static void fini_map(void *field)
{
	struct conf_map *map = field;
	for (size_t i = 0; i < map->n; i++) {
		free(map->keys[i]);
		free(map->values[i]);
	}
	free(map->keys);
	free(map->values);
	free(map->lines);
	*map = (struct conf_map){0};
}

static const struct value_type types[] = {
	{"BOOL", parse_bool, NULL, format_bool, NULL},
	{"UINT", parse_uint, uint_is_below, format_uint, NULL},
	{"BYTES", parse_bytes, uint_is_below, format_bytes, NULL},
	{"AUTO_BYTES", parse_auto_bytes, word_or_uint_is_below, format_bytes, NULL},
	{"TIME", parse_time, uint_is_below, format_time, NULL},
	{"REAL", parse_real, real_is_below, format_real, NULL},
	{"STRING", parse_string, NULL, format_string, fini_string},
	{"LIST", NULL, NULL, format_list, fini_list},
	{"MAP", NULL, NULL, format_map, fini_map},
	{"ENUM_", parse_enum, NULL, format_enum, NULL},
};

static const struct value_type *type_of(const struct conf_row *row)
{
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (strcmp(types[i].name, row->type) == 0 ||
		    (strncmp(row->type, "ENUM_", 5) == 0 && types[i].parse == parse_enum))
			return &types[i];
	return NULL; /* PART */
}

static bool is_in_range(const struct conf_row *row, const struct value_type *type, const void *field)
{
	union number limit = {.u = 0};
	if (!type->is_below)
		return true;
	if (row->min[0]) {
		BUG_ON(type->parse(row, row->min, &limit) != 0);
		if (type->is_below(field, &limit))
			return false;
	}
	if (row->max[0]) {
		BUG_ON(type->parse(row, row->max, &limit) != 0);
		if (type->is_below(&limit, field))
			return false;
	}
	return true;
}

int conf_value_parse(const struct conf_row *row, const char *s, void *field, struct text *why)
{
	const struct value_type *type = type_of(row);
	union number before = {.u = 0};
	char shown[100];
	BUG_ON(!type || !type->parse);
	if (type->is_below)
		memcpy(&before, field, sizeof(before));
	int rc = type->parse(row, s, field);
	if (rc == 0 && !is_in_range(row, type, field)) {
		memcpy(field, &before, sizeof(before));
		rc = -ERANGE;
	}
	if (rc == 0 || rc == -ENOMEM)
		return rc;
	if (*s)
		text_add(why, "\"%s\" is %s; allowed is ", text_escape(shown, sizeof(shown), s, strlen(s)),
			 rc == -ERANGE ? "out of range" : "not understood");
	else
		text_add(why, "has no value; allowed is ");
	conf_row_allowed(row, why);
	return rc;
}

void conf_value_format(const struct conf_row *row, const void *field, struct text *t)
{
	const struct value_type *type = type_of(row);
	BUG_ON(!type);
	type->format(field, t);
}

int conf_object_init(enum conf_scope scope, void *object)
{
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct conf_row *row = &conf_rows[i];
		const struct value_type *type = row->scope == scope ? type_of(row) : NULL;
		void *field = conf_row_field(row, object);
		if (!type || !type->parse)
			continue;
		if (type->parse == parse_enum && !row->def[0])
			*(enum conf_words *)field = CONF_WORDS; /* not given */
		else if (row->def[0] || type->parse == parse_string) {
			int rc = conf_value_parse(row, row->def, field, NULL);
			if (rc == -ENOMEM)
				return rc;
			BUG_ON(rc != 0);
		}
	}
	return 0;
}

void conf_object_fini(enum conf_scope scope, void *object)
{
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct value_type *type = conf_rows[i].scope == scope ? type_of(&conf_rows[i]) : NULL;
		if (type && type->fini)
			type->fini(conf_row_field(&conf_rows[i], object));
	}
}
