/* SPDX-License-Identifier: MIT
 *
 * lines_reference: the decisions about one line a second time, written as slowly and plainly as possible, from
 * tests/data/statsd-lines.tsv and the head of src/input/lines.h, sharing no code with them: copies, strtod, splits.
 * For tests/unit/test_lines.c and tests/fuzz/fuzz_lines.c.
 */
#ifndef LINES_REFERENCE_H
#define LINES_REFERENCE_H

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct ref {
	char kind; /* F, I or E, as in the table */
	size_t len, key_at, key_len;
};

static inline bool ref_number(const char *s, size_t len, double *value)
{
	char *copy = malloc(len + 1), *end;
	memcpy(copy, s, len);
	copy[len] = '\0';
	bool ok = len > 0 && strspn(copy, "0123456789+-.eE") == len;
	if (ok) {
		*value = strtod(copy, &end);
		ok = end == copy + len && isfinite(*value);
	}
	free(copy);
	return ok;
}

/* Sign of the number's distance from the power of ten that strtod rounded it to: 1.00000000000000000001 is 1.0 to
 * strtod, and only its digits say that it is above 1. */
static inline int ref_distance(const char *s, size_t len)
{
	char digits[2] = {'0', '0'}; /* the first that is not 0, and the largest after it */
	for (size_t i = 0; i < len && s[i] != 'e' && s[i] != 'E'; i++) {
		if (!isdigit((unsigned char)s[i]))
			continue;
		if (digits[0] == '0')
			digits[0] = s[i];
		else if (s[i] > digits[1])
			digits[1] = s[i];
	}
	return digits[0] == '9' ? -1 : digits[1] > '0';
}

static inline bool ref_rate(const char *s, size_t len)
{
	double v;
	if (!ref_number(s, len, &v) || v < 1e-300 || v > 1)
		return false;
	return !(v == 1 && ref_distance(s, len) > 0) && !(v <= 1e-300 && ref_distance(s, len) < 0);
}

/* The part of s up to `ch`; what follows it is at *s afterwards, NULL after the last part. */
static inline size_t ref_part(const char **s, size_t *left, char ch)
{
	size_t n = 0;
	while (n < *left && (*s)[n] != ch)
		n++;
	if (n == *left) {
		*s = NULL;
		*left = 0;
	} else {
		*s += n + 1;
		*left -= n + 1;
	}
	return n;
}

static inline size_t ref_find(const char *s, size_t len, char ch)
{
	size_t n = 0;
	while (n < len && s[n] != ch)
		n++;
	return n;
}

static inline bool ref_statsd(const char *s, size_t left)
{
	static const char *const types[] = {"c", "C", "g", "m", "ms", "h", "d", "kv", "s"};
	const char *value = s, *type, *set, *next = NULL; /* next: the line's next value */
	size_t value_len = ref_part(&s, &left, '|'), type_len;
	bool known = false;
	if (!s)
		return false;
	const char *end = s + left;
	type = s;
	type_len = ref_part(&s, &left, '|');
	size_t colon = ref_find(type, type_len, ':');
	if (colon < type_len) {
		next = type + colon + 1;
		type_len = colon;
	}
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		known = known || (strlen(types[i]) == type_len && memcmp(types[i], type, type_len) == 0);
	if (!known)
		return false;
	set = *type == 's' ? value : NULL;
	if (set && value_len == 0)
		return false;
	while (!set && value) {
		const char *one = value;
		double v;
		if (!ref_number(one, ref_part(&value, &value_len, ':'), &v))
			return false;
	}
	while (s && !next) {
		const char *section = s;
		size_t len = ref_part(&s, &left, '|');
		if (len == 0 || section[0] != '@')
			continue;
		colon = ref_find(section, len, ':');
		if (colon < len)
			next = section + colon + 1;
		if (!ref_rate(section + 1, colon - 1))
			return false;
	}
	return !next || ref_statsd(next, (size_t)(end - next));
}

/* The digits up to `stop`, 1 to 8 of them, as a number; -1: they are not. */
static inline long ref_length(const char **s, size_t *left, char stop)
{
	const char *digits = *s;
	size_t n = ref_part(s, left, stop);
	char copy[9] = "";
	if (!*s || n < 1 || n > 8)
		return -1;
	memcpy(copy, digits, n);
	return strspn(copy, "0123456789") == n ? atol(copy) : -1;
}

/* 'F': an event, 'I': it only begins as one, with the key as of any line. */
static inline struct ref ref_event(const char *line, size_t len)
{
	const char *s = line + 3;
	size_t left = len - 3;
	const struct ref broken = {'I', len, 0, ref_find(line, len, ':')};
	long title = ref_length(&s, &left, ','), text = title < 1 ? -1 : ref_length(&s, &left, '}');
	if (text < 0 || left < 1 || *s != ':')
		return broken;
	s++;
	left--;
	if (left < (size_t)(title + 1 + text) || s[title] != '|')
		return broken;
	if (left > (size_t)(title + 1 + text) && s[title + 1 + text] != '|')
		return broken;
	return (struct ref){'F', len, (size_t)(s - line), (size_t)title};
}

static inline struct ref ref_check(const char *line, size_t len)
{
	size_t name = ref_find(line + 4, len - 4, '|');
	if (name == len - 4 || name == 0)
		return (struct ref){'I', len, 0, ref_find(line, len, ':')};
	struct ref r = {'F', len, 4, name};
	for (size_t i = 4; i < 4 + name; i++)
		if ((line[i] >= 0 && line[i] < 32) || line[i] == 127)
			r.kind = 'I';
	const char *status = line + 4 + name + 1;
	size_t left = len - (size_t)(status - line), status_len = ref_find(status, left, '|');
	if (status_len != 1 || !strchr("0123", *status) || *status == '\0')
		r.kind = 'I';
	return r;
}

static inline bool ref_carbon(const char *s, size_t left)
{
	int fields = 0;
	while (left > 0) {
		size_t n = 0;
		double v;
		while (n < left && s[n] != ' ' && s[n] != '\t')
			n++;
		if (n > 0 && !ref_number(s, n, &v))
			return false;
		fields += n > 0;
		n += n < left;
		s += n;
		left -= n;
	}
	return fields == 2;
}

/* One line, without its newline. */
static inline struct ref ref_line(bool carbon, bool validate, const char *s, size_t len)
{
	struct ref r = {'I', len, 0, 0};
	if (r.len > 0 && s[r.len - 1] == '\r')
		r.len--;
	if (r.len == 0)
		return (struct ref){'E', 0, 0, 0};
	bool event = !carbon && r.len >= 3 && memcmp(s, "_e{", 3) == 0;
	if (event || (!carbon && r.len >= 4 && memcmp(s, "_sc|", 4) == 0)) {
		r = event ? ref_event(s, r.len) : ref_check(s, r.len);
		if (!validate && r.key_len > 0 && r.key_len < r.len)
			r.kind = 'F';
		return r;
	}
	while (r.key_len < r.len && s[r.key_len] != (carbon ? ' ' : ':'))
		r.key_len++;
	if (r.key_len == 0 || r.key_len == r.len)
		return r;
	for (size_t i = 0; validate && i < r.key_len; i++)
		if ((s[i] >= 0 && s[i] < 32) || s[i] == 127)
			return r;
	const char *rest = s + r.key_len + 1;
	size_t left = r.len - r.key_len - 1;
	if (!validate || (carbon ? ref_carbon(rest, left) : ref_statsd(rest, left)))
		r.kind = 'F';
	return r;
}

#endif
