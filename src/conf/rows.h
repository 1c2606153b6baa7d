/* SPDX-License-Identifier: MIT
 *
 * rows: include/tbl/option.def as data, and the values that its rows describe. Private to conf.
 */
#ifndef CONF_ROWS_H
#define CONF_ROWS_H

#include <conf.h>

/* statsd: or carbon: of a statsrelay file. */
struct conf_section {
#undef CONF_FIELD_SECTION
#define CONF_FIELD_SECTION(type, name) CONF_TYPE_##type name;
#define OPTION(scope, type, name, ...) CONF_FIELD_##scope(type, name)
#include <tbl/option.def>
#undef CONF_FIELD_SECTION
#define CONF_FIELD_SECTION(type, name)
};

enum conf_scope {
	CONF_SCOPE_TOP,
	CONF_SCOPE_INPUT,
	CONF_SCOPE_OUTPUT,
	CONF_SCOPE_BACKEND,
	CONF_SCOPE_SECTION,
	CONF_SCOPES
};

#define OPTION(scope, type, name, ...) ROW_##scope##_##name,
#define PART(scope, name, ...) ROW_##scope##_##name,
enum conf_row_index {
#include <tbl/option.def>
	CONF_ROWS
};

struct conf_row {
	enum conf_row_index index;
	enum conf_scope scope;
	const char *type; /* "UINT", "ENUM_SPREAD", "PART" */
	const char *name, *def, *min, *max;
	enum conf_reload reload;
	const char *help;
	size_t offset; /* of the field in the scope's struct */
};

extern const struct conf_row conf_rows[CONF_ROWS];

/* A key of earlier versions. */
struct conf_former {
	enum conf_scope scope;
	const char *key, *name, *word, *why;
};

/* The row of a key, or NULL. */
const struct conf_row *conf_row_find(enum conf_scope scope, const char *key);
/* The same of a key of earlier versions. */
const struct conf_former *conf_former_find(enum conf_scope scope, const char *key);
/* The key of the scope that was probably meant, or NULL. */
const char *conf_row_nearest(enum conf_scope scope, const char *key);
/* Whether the key belongs to inputs or outputs of this type. */
bool conf_row_applies(const struct conf_row *row, enum conf_words type);
/* "tcp, unix" of the types that it belongs to; false when it belongs to all. */
bool conf_row_types(const struct conf_row *row, struct text *t);
/* The example of a required row, else NULL. */
const char *conf_row_required(enum conf_row_index index);
/* The row that this one may stand instead of, else CONF_ROWS; *example as in the table. */
enum conf_row_index conf_row_instead(enum conf_row_index index, const char **example);
bool conf_row_is_part(const struct conf_row *row);
/* "a whole number from 0 to 256": what a file may say. */
void conf_row_allowed(const struct conf_row *row, struct text *t);
static inline void *conf_row_field(const struct conf_row *row, const void *object)
{
	return (char *)object + row->offset;
}

/* Name of what this binary was built without and the word needs ("Kafka"), or NULL. */
const char *conf_word_not_built(enum conf_words word);
/* The same of an option. */
const char *conf_row_not_built(enum conf_row_index index);
/* The word of an enum, by any of its spellings and in any case, or CONF_WORDS. `x` as in ENUM_x. */
enum conf_words conf_word_find(const char *x, const char *text);
/* Edit distance, for suggestions; a large number for what is too long to matter. */
unsigned conf_distance(const char *a, const char *b);
/* Whether `a` at this distance may be a slip of the pen for `b`. */
bool conf_is_near(const char *b, unsigned distance);

/* -- values -- */

/* Text to field, with the row's range. 0; -EINVAL or -ERANGE with what is wrong added to `why`; -ENOMEM. Not for PART,
 * LIST and MAP. A field that holds a string already gives it up. */
int conf_value_parse(const struct conf_row *row, const char *s, void *field, struct text *why);
/* The value as it stands in a file. */
void conf_value_format(const struct conf_row *row, const void *field, struct text *t);
/* A scalar in YAML, with quotes where it needs them. */
void conf_text_yaml(struct text *t, const char *s);
/* All fields of the scope's struct: defaults (0 or -ENOMEM, what was made can be freed), and the end. */
int conf_object_init(enum conf_scope scope, void *object);
void conf_object_fini(enum conf_scope scope, void *object);

#endif
