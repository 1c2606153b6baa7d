/* SPDX-License-Identifier: MIT
 *
 * lines_grammar: what follows the key of a line, in full. The cutter comes here with the lines that are not of its
 * plain form. Pure. Does not convert numbers: it reads their decimal digits, so that no locale, no rounding and no
 * strtod("0x10") has a say.
 */
#include "lines.h"

#include <string.h>

/* A number's magnitude, read off its digits: 0.DDD... x 10^exponent, where the first D is at `first` and not 0. */
struct decimal {
	bool negative, zero;
	long exponent;
	const char *first, *digits_end; /* the digits may have a point among them */
};

static inline bool is_digit(char ch)
{
	return ch >= '0' && ch <= '9';
}

static inline const char *skip_digits(const char *s, const char *end)
{
	while (s < end && is_digit(*s))
		s++;
	return s;
}

/* The exponent after "e", added to d's. Returns where it ends, NULL when it is none. */
static const char *exponent_scan(struct decimal *d, const char *p, const char *end)
{
	bool down = p < end && *p == '-';
	if (p < end && (*p == '-' || *p == '+'))
		p++;
	const char *digits_end = skip_digits(p, end);
	if (p == digits_end)
		return NULL;
	long e = 0;
	for (; p < digits_end && e < 10000000;
	     p++) /* stays above any exponent that one line's digits could take back */
		e = e * 10 + (*p - '0');
	d->exponent += down ? -e : e;
	return digits_end;
}

/* The decimal number at s. Returns where it ends, NULL when there is none. */
static const char *decimal_scan(struct decimal *d, const char *s, const char *end)
{
	d->negative = s < end && *s == '-';
	if (s < end && (*s == '-' || *s == '+'))
		s++;
	const char *point = skip_digits(s, end), *digits_end = point;
	size_t digits = (size_t)(point - s);
	if (point < end && *point == '.') {
		digits_end = skip_digits(point + 1, end);
		digits += (size_t)(digits_end - point - 1);
	}
	if (digits == 0)
		return NULL;
	const char *first = s;
	while (first < digits_end && (*first == '0' || *first == '.'))
		first++;
	d->zero = first == digits_end;
	d->first = first;
	d->digits_end = digits_end;
	d->exponent = d->zero ? 0 : first < point ? point - first : point + 1 - first;
	if (digits_end < end && (*digits_end == 'e' || *digits_end == 'E'))
		return exponent_scan(d, digits_end + 1, end);
	return digits_end;
}

/* Finite when converted to a double, which rounds 2^1024 - 2^970 and all above to infinity. */
static bool decimal_is_finite(const struct decimal *d)
{
	static const char bound[] = "179769313486231580793728971405303415079934132710037826936173778980444968292764"
				    "750946649017977587207096330286416692887910946555547851940402630657488671505820"
				    "681908902000708383676273854845817711531764475730270069855571366959622842914819"
				    "860834936475292719074168444365510704342711559699508093042880177904174497792";
	if (d->zero || d->exponent < 309)
		return true;
	if (d->exponent > 309)
		return false;
	const char *b = bound;
	for (const char *p = d->first; p < d->digits_end && *b; p++) {
		if (*p == '.')
			continue;
		if (*p != *b)
			return *p < *b;
		b++;
	}
	return *b != '\0';
}

/* The finite number at s, as most are: up to 300 digits, which may have a point and a minus. Returns where it ends,
 * NULL when there is none. */
static inline const char *number_scan(const char *s, const char *end)
{
	const char *begin = s + (s < end && *s == '-'), *p = skip_digits(begin, end);
	if (LIKELY(p > begin && p - begin < 300)) {
		if (p < end && *p == '.')
			p = skip_digits(p + 1, end);
		if (LIKELY(p == end || (*p != 'e' && *p != 'E')))
			return p;
	}
	struct decimal d;
	p = decimal_scan(&d, s, end);
	return p && decimal_is_finite(&d) ? p : NULL;
}

/* [s, end) is a number above 0 and at most 1. */
static bool is_rate(const char *s, const char *end)
{
	struct decimal d;
	if (decimal_scan(&d, s, end) != end || d.negative || d.zero || d.exponent < -299 || d.exponent > 1)
		return false;
	if (d.exponent < 1)
		return true;
	if (*d.first != '1')
		return false;
	for (const char *p = d.first + 1; p < d.digits_end; p++)
		if (*p != '0' && *p != '.')
			return false;
	return true;
}

static const char *find_pipe(const char *s, const char *end)
{
	const char *p = s < end ? memchr(s, '|', (size_t)(end - s)) : NULL;
	return p ? p : end;
}

/* Where the type's text ends, NULL when it is none of ours. */
static inline const char *type_scan(const char *type, const char *end, bool *is_set)
{
	size_t len = end - type >= 2 && type[1] != '|' && type[1] != ':' ? 2 : 1;
	if (type == end || (end - type > (ptrdiff_t)len && type[len] != '|' && type[len] != ':'))
		return NULL;
	*is_set = len == 1 && *type == 's';
	bool known = len == 1 ? *type == 'c' || *type == 'g' || *type == 's' || *type == 'h' || *type == 'd' ||
				    *type == 'm' || *type == 'C'
			      : memcmp(type, "ms", 2) == 0 || memcmp(type, "kv", 2) == 0;
	return known ? type + len : NULL;
}

/* What follows a type. Returns the ':' before the line's next value, `end`, or NULL: a rate is none. */
static const char *sections_scan(const char *p, const char *end)
{
	while (p < end && *p == '|') {
		const char *section = p + 1;
		if (section == end || *section != '@') {
			p = find_pipe(section, end);
			continue;
		}
		for (p = section + 1; p < end && *p != '|' && *p != ':';)
			p++;
		if (!is_rate(section + 1, p))
			return NULL;
	}
	return p;
}

/* The value with its type and sections at `value`, as sections_scan; *why: what it lacks. */
static inline const char *metric_scan(const char *value, const char *end, enum lines_reason *why)
{
	/* Numbers are read up to what is none, without looking for the '|' first: sets and wrong lines are rare. */
	bool is_set;
	const char *p = number_scan(value, end);
	while (p && p < end && *p == ':')
		p = number_scan(p + 1, end);
	bool numbers = p && p < end && *p == '|';
	const char *pipe = numbers ? p : find_pipe(value, end);
	*why = LINES_NO_TYPE;
	if (pipe == end)
		return NULL;
	const char *type_end = type_scan(pipe + 1, end, &is_set);
	*why = LINES_UNKNOWN_TYPE;
	if (!type_end)
		return NULL;
	*why = is_set ? LINES_EMPTY_SET : LINES_NO_NUMBER;
	if (is_set ? value == pipe : !numbers)
		return NULL;
	*why = LINES_BAD_RATE;
	return sections_scan(type_end, end);
}

bool lines_statsd_is_valid(const char *value, const char *end)
{
	enum lines_reason why;
	const char *p = metric_scan(value, end, &why);
	while (p && p < end)
		p = metric_scan(p + 1, end, &why);
	return p != NULL;
}

/* -- events and service checks ------------------------------------------------------------------------------------ */

/* The number at *s, of at most 8 digits, and `stop` behind it; *s is behind that afterwards. */
static bool length_scan(const char **s, const char *end, char stop, size_t *length)
{
	const char *digits_end = skip_digits(*s, end);
	if (digits_end == *s || digits_end - *s > 8 || digits_end == end || *digits_end != stop)
		return false;
	*length = 0;
	for (; *s < digits_end; ++*s)
		*length = *length * 10 + (size_t)(**s - '0');
	++*s;
	return true;
}

/* `p` is behind "_e{". */
static bool is_event(const char *s, const char *p, const char *end, struct lines_key *key)
{
	size_t title, text;
	if (!length_scan(&p, end, ',', &title) || !length_scan(&p, end, '}', &text) || p == end || *p++ != ':')
		return false;
	if (title == 0 || (size_t)(end - p) < title + 1 + text || p[title] != '|')
		return false;
	const char *text_end = p + title + 1 + text;
	*key = (struct lines_key){(uint32_t)(p - s), (uint32_t)title};
	return text_end == end || *text_end == '|';
}

/* `name` is behind "_sc|". */
static bool is_check(const char *s, const char *name, const char *end, struct lines_key *key)
{
	const char *status = find_pipe(name, end) + 1;
	if (status > end)
		return false;
	*key = (struct lines_key){(uint32_t)(name - s), (uint32_t)(status - 1 - name)};
	for (const char *p = name; p < status - 1; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return false;
	return status < end && *status >= '0' && *status <= '3' && (status + 1 == end || status[1] == '|');
}

enum lines_marked lines_find_marked(const char *s, size_t len, struct lines_key *key)
{
	const char *end = s + len;
	bool may_be_event = len >= 3 && memcmp(s, "_e{", 3) == 0;
	*key = (struct lines_key){0, 0};
	if (!may_be_event && (len < 4 || memcmp(s, "_sc|", 4) != 0))
		return LINES_NOT_MARKED;
	if (may_be_event ? is_event(s, s + 3, end, key) : is_check(s, s + 4, end, key))
		return LINES_MARKED_WHOLE;
	const char *colon = memchr(s, ':', len);
	if (may_be_event)
		*key = (struct lines_key){0, colon ? (uint32_t)(colon - s) : 0};
	else if (key->len == 0 && colon)
		*key = (struct lines_key){0, (uint32_t)(colon - s)};
	return LINES_MARKED_BROKEN;
}

static const char *skip_blanks(const char *s, const char *end)
{
	while (s < end && (*s == ' ' || *s == '\t'))
		s++;
	return s;
}

static const char *skip_field(const char *s, const char *end)
{
	while (s < end && *s != ' ' && *s != '\t')
		s++;
	return s;
}

bool lines_carbon_is_valid(const char *value, const char *end)
{
	value = skip_blanks(value, end);
	const char *value_end = skip_field(value, end);
	const char *time = skip_blanks(value_end, end), *time_end = skip_field(time, end);
	return time > value_end && skip_blanks(time_end, end) == end && number_scan(value, value_end) == value_end &&
	       number_scan(time, time_end) == time_end;
}

/* -- why a line is invalid ---------------------------------------------------------------------------------------- */

static enum lines_reason metric_reason(const char *value, const char *end)
{
	enum lines_reason why;
	const char *p = metric_scan(value, end, &why);
	while (p && p < end)
		p = metric_scan(p + 1, end, &why);
	return why;
}

enum lines_reason lines_reason(enum lines_protocol protocol, bool validate, const char *s, size_t len)
{
	struct lines_key key;
	bool is_carbon = protocol == LINES_CARBON;
	if (!is_carbon && lines_find_marked(s, len, &key) != LINES_NOT_MARKED)
		return s[1] == 'e' ? LINES_BAD_EVENT : LINES_BAD_CHECK;
	const char *separator = memchr(s, is_carbon ? ' ' : ':', len);
	if (!separator || separator == s)
		return LINES_NO_KEY;
	for (const char *p = s; validate && p < separator; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return LINES_CONTROL_BYTE;
	return is_carbon ? LINES_BAD_CARBON : metric_reason(separator + 1, s + len);
}

const char *lines_reason_text(uint32_t reason)
{
	static const char *const texts[LINES_REASONS] = {
	    [LINES_NO_KEY] = "there is no name with a separator behind it",
	    [LINES_CONTROL_BYTE] = "its name holds a control byte",
	    [LINES_NO_TYPE] = "a type is missing: no '|' behind a value",
	    [LINES_UNKNOWN_TYPE] = "its type is not known",
	    [LINES_NO_NUMBER] = "a value is no finite decimal number",
	    [LINES_EMPTY_SET] = "the member of a set is empty",
	    [LINES_BAD_RATE] = "a sample rate is not above 0 and at most 1",
	    [LINES_BAD_EVENT] = "an event whose lengths are not those of its title and text, or without a title",
	    [LINES_BAD_CHECK] = "a service check without a name, or whose status is not 0, 1, 2 or 3",
	    [LINES_BAD_CARBON] = "value and time are not two finite decimal numbers",
	};
	return reason < LINES_REASONS && texts[reason] ? texts[reason] : "not known";
}
