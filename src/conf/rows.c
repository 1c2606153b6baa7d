/* SPDX-License-Identifier: MIT
 *
 * rows: the option table as arrays and the questions that the parser, the flags and the documentation ask it. Pure.
 * Nothing here knows a single option by name.
 */
#include "rows.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#define STRUCT_TOP struct conf
#define STRUCT_INPUT struct conf_input
#define STRUCT_OUTPUT struct conf_output
#define STRUCT_BACKEND struct conf_backend
#define STRUCT_SECTION struct conf_section

#define OPTION(scope, type, name, def, min, max, reload, help)                                                         \
	{ROW_##scope##_##name, CONF_SCOPE_##scope, #type, #name, def, min, max, CONF_RELOAD_##reload, help,            \
	 offsetof(STRUCT_##scope, name)},
#define PART(scope, name, help)                                                                                        \
	{ROW_##scope##_##name, CONF_SCOPE_##scope, "PART", #name, "", "", "", CONF_RELOAD_NONE, help, 0},
const struct conf_row conf_rows[CONF_ROWS] = {
#include <tbl/option.def>
};

struct word {
	enum conf_words word;
	const char *x, *text;
};

#define ENUM(x, word, text) {CONF_##x##_##word, #x, text},
static const struct word words[] = {
#include <tbl/option.def>
};

#define ENUM_ALIAS(x, word, text) {CONF_##x##_##word, #x, text},
static const struct word aliases[] = {
#include <tbl/option.def>
};

#define NOT_BUILT(x, word, what) {CONF_##x##_##word, #x, what},
static const struct word not_built[] = {
#include <tbl/option.def>
	{CONF_WORDS, "", ""},
};

#define NOT_BUILT_OPTION(scope, name, what) {ROW_##scope##_##name, what},
static const struct {
	enum conf_row_index row;
	const char *what;
} not_built_options[] = {
#include <tbl/option.def>
	{CONF_ROWS, ""},
};

#define ONLY(scope, name, type) {ROW_##scope##_##name, CONF_##scope##_TYPE_##type},
static const struct {
	enum conf_row_index row;
	enum conf_words type;
} only[] = {
#include <tbl/option.def>
};

struct link {
	enum conf_row_index row, other;
	const char *example;
};

#define REQUIRED(scope, name, example) {ROW_##scope##_##name, CONF_ROWS, example},
static const struct link required[] = {
#include <tbl/option.def>
};

#define INSTEAD(scope, name, other, example) {ROW_##scope##_##name, ROW_##scope##_##other, example},
static const struct link instead[] = {
#include <tbl/option.def>
};

#define FORMER(scope, key, name, word, why) {CONF_SCOPE_##scope, #key, name, word, why},
static const struct conf_former formers[] = {
#include <tbl/option.def>
};

const struct conf_row *conf_row_find(enum conf_scope scope, const char *key)
{
	for (size_t i = 0; i < CONF_ROWS; i++)
		if (conf_rows[i].scope == scope && strcmp(conf_rows[i].name, key) == 0)
			return &conf_rows[i];
	return NULL;
}

const struct conf_former *conf_former_find(enum conf_scope scope, const char *key)
{
	for (size_t i = 0; i < ARRAY_LEN(formers); i++)
		if (formers[i].scope == scope && strcmp(formers[i].key, key) == 0)
			return &formers[i];
	return NULL;
}

const char *conf_row_nearest(enum conf_scope scope, const char *key)
{
	const char *best = NULL;
	unsigned least = UINT32_MAX;
	for (size_t i = 0; i < CONF_ROWS; i++) {
		unsigned d = conf_rows[i].scope == scope ? conf_distance(key, conf_rows[i].name) : UINT32_MAX;
		if (d < least && conf_is_near(conf_rows[i].name, d)) {
			least = d;
			best = conf_rows[i].name;
		}
	}
	return best;
}

bool conf_row_applies(const struct conf_row *row, enum conf_words type)
{
	bool all = true;
	for (size_t i = 0; i < ARRAY_LEN(only); i++) {
		if (only[i].row != row->index)
			continue;
		if (only[i].type == type)
			return true;
		all = false;
	}
	return all;
}

bool conf_row_types(const struct conf_row *row, struct text *t)
{
	bool some = false;
	for (size_t i = 0; i < ARRAY_LEN(only); i++) {
		if (only[i].row != row->index)
			continue;
		text_add(t, "%s%s", some ? ", " : "", conf_word(only[i].type));
		some = true;
	}
	return some;
}

const char *conf_row_required(enum conf_row_index index)
{
	for (size_t i = 0; i < ARRAY_LEN(required); i++)
		if (required[i].row == index)
			return required[i].example;
	return NULL;
}

enum conf_row_index conf_row_instead(enum conf_row_index index, const char **example)
{
	for (size_t i = 0; i < ARRAY_LEN(instead); i++) {
		if (instead[i].row == index) {
			*example = instead[i].example;
			return instead[i].other;
		}
	}
	return CONF_ROWS;
}

bool conf_row_is_part(const struct conf_row *row)
{
	return strcmp(row->type, "PART") == 0;
}

static void add_words(struct text *t, const char *x)
{
	const char *before = "one of ";
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		if (strcmp(words[i].x, x) == 0) {
			text_add(t, "%s%s", before, words[i].text);
			before = ", ";
		}
	}
}

void conf_row_allowed(const struct conf_row *row, struct text *t)
{
	static const struct {
		const char *type, *what;
	} kinds[] = {
		{"BOOL", "true or false"},
		{"UINT", "a whole number"},
		{"BYTES", "a size"},
		{"AUTO_BYTES", "auto or a size"},
		{"TIME", "a time"},
		{"REAL", "a number"},
		{"STRING", "a text"},
		{"LIST", "a text or a list of texts"},
		{"MAP", "a map of names to texts"},
	};
	if (strncmp(row->type, "ENUM_", 5) == 0)
		add_words(t, row->type + 5);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (strcmp(kinds[i].type, row->type) == 0)
			text_add(t, "%s", kinds[i].what);
	if (row->min[0] || row->max[0])
		text_add(t, " from %s to %s", row->min, row->max);
}

const char *conf_word(enum conf_words word)
{
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (words[i].word == word)
			return words[i].text;
	return "";
}

const char *conf_word_not_built(enum conf_words word)
{
	for (size_t i = 0; i < ARRAY_LEN(not_built); i++)
		if (not_built[i].word == word && word != CONF_WORDS)
			return not_built[i].text;
	return NULL;
}

const char *conf_row_not_built(enum conf_row_index index)
{
	for (size_t i = 0; i < ARRAY_LEN(not_built_options); i++)
		if (not_built_options[i].row == index && index != CONF_ROWS)
			return not_built_options[i].what;
	return NULL;
}

static enum conf_words find_word(const struct word *in, size_t n, const char *x, const char *text)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(in[i].x, x) == 0 && strcasecmp(in[i].text, text) == 0)
			return in[i].word;
	return CONF_WORDS;
}

enum conf_words conf_word_find(const char *x, const char *text)
{
	enum conf_words word = find_word(words, ARRAY_LEN(words), x, text);
	return word == CONF_WORDS ? find_word(aliases, ARRAY_LEN(aliases), x, text) : word;
}

/* Edits between two short words, where two neighbours that changed places count as one (optimal string alignment). */
unsigned conf_distance(const char *a, const char *b)
{
	enum { LONGEST = 40 };
	unsigned rows[3][LONGEST + 1];
	size_t n = strlen(a), m = strlen(b);
	if (n > LONGEST || m > LONGEST)
		return UINT32_MAX;
	unsigned *before = rows[0], *last = rows[1], *now = rows[2];
	for (unsigned j = 0; j <= m; j++)
		last[j] = j;
	for (unsigned i = 1; i <= n; i++) {
		now[0] = i;
		for (size_t j = 1; j <= m; j++) {
			now[j] = MIN(MIN(last[j], now[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = MIN(now[j], before[j - 2] + 1);
		}
		unsigned *free_row = before;
		before = last;
		last = now;
		now = free_row;
	}
	return last[m];
}

bool conf_is_near(const char *b, unsigned distance)
{
	return distance <= MAX(1, MIN(4, strlen(b) / 3));
}
