/* SPDX-License-Identifier: MIT
 *
 * text: quantities from and to text as people write them in a configuration. Any process, pure. Does not use strtod or
 * strtoull: these take signs, spaces, hexadecimal and the locale's point.
 */
#include <base.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

struct unit {
	const char *name;
	uint64_t size;
};

static const struct unit byte_units[] = {
	{"", 1},
	{"B", 1},
	{"k", KIB},
	{"KiB", KIB},
	{"kB", 1000},
	{"M", MIB},
	{"MiB", MIB},
	{"MB", 1000000},
	{"G", GIB},
	{"GiB", GIB},
	{"GB", 1000000000},
	{"T", GIB << 10},
	{"TiB", GIB << 10},
	{"TB", 1000000000000},
};

static const struct unit time_units[] = {
	{"", 1000000}, {"us", 1}, {"ms", 1000}, {"s", 1000000}, {"m", 60000000}, {"min", 60000000}, {"h", 3600000000},
};

static bool is_digit(char ch)
{
	return ch >= '0' && ch <= '9';
}

/* digits[.digits][ ]unit, rounded down to a whole number. What is not 0 must not become 0: that means "off". */
static int parse_quantity(const char *s, const struct unit *units, size_t n_units, uint64_t *value)
{
	uint64_t whole = 0, fraction = 0, scale = 1;
	bool fits = true, some = false, digits = false;
	for (; is_digit(*s); s++, digits = true) {
		fits = fits && !__builtin_mul_overflow(whole, 10, &whole) &&
		       !__builtin_add_overflow(whole, (uint64_t)(*s - '0'), &whole);
		some |= *s != '0';
	}
	if (!digits)
		return -EINVAL;
	bool point = *s == '.';
	if (point && !is_digit(*++s))
		return -EINVAL;
	for (; point && is_digit(*s); s++) {
		some |= *s != '0';
		if (scale < UINT64_C(1000000000000)) { /* digits behind the 12th are below every unit's grain */
			fraction = fraction * 10 + (uint64_t)(*s - '0');
			scale *= 10;
		}
	}
	while (*s == ' ')
		s++;
	const struct unit *unit = NULL;
	for (size_t i = 0; i < n_units; i++)
		if (strcasecmp(s, units[i].name) == 0)
			unit = &units[i];
	if (!unit || (point && unit->size == 1 && !(fraction == 0)))
		return -EINVAL; /* half a byte */
	uint64_t product, rest = (uint64_t)((unsigned __int128)fraction * unit->size / scale);
	if (!fits || __builtin_mul_overflow(whole, unit->size, &product) ||
	    __builtin_add_overflow(product, rest, &product) || (some && product == 0))
		return -ERANGE;
	*value = product;
	return 0;
}

int text_parse_bytes(const char *s, uint64_t *bytes)
{
	return parse_quantity(s, byte_units, ARRAY_LEN(byte_units), bytes);
}

int text_parse_time(const char *s, uint64_t *us)
{
	if (strcasecmp(s, "off") == 0) {
		*us = 0;
		return 0;
	}
	return parse_quantity(s, time_units, ARRAY_LEN(time_units), us);
}

int text_parse_uint(const char *s, uint64_t *n)
{
	uint64_t value = 0;
	bool fits = true;
	if (!*s)
		return -EINVAL;
	for (; *s; s++) {
		if (!is_digit(*s))
			return -EINVAL;
		fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
		       !__builtin_add_overflow(value, (uint64_t)(*s - '0'), &value);
	}
	if (!fits)
		return -ERANGE;
	*n = value;
	return 0;
}

int text_parse_bool(const char *s, bool *b)
{
	static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		if (strcasecmp(s, words[i]) == 0) {
			*b = i & 1;
			return 0;
		}
	}
	return -EINVAL;
}

/* In the largest unit that holds it, with one decimal where it is not whole; 1,048,575 B are "1 MiB", not
 * "1024 KiB". */
static char *format_quantity(char *buf, size_t size, uint64_t value, const struct unit *units, size_t n)
{
	size_t i = 0;
	unsigned __int128 tenths = (unsigned __int128)value * 10;
	while (i + 1 < n) {
		uint64_t now = units[i].size, next = units[i + 1].size;
		tenths = ((unsigned __int128)value * 10 + now / 2) / now;
		if (tenths < (unsigned __int128)(next / now) * 10)
			break;
		i++;
		tenths = ((unsigned __int128)value * 10 + next / 2) / next;
	}
	unsigned long long whole = (unsigned long long)(tenths / 10);
	unsigned tenth = (unsigned)(tenths % 10);
	if (tenth)
		snprintf(buf, size, "%llu.%u %s", whole, tenth, units[i].name);
	else
		snprintf(buf, size, "%llu %s", whole, units[i].name);
	return buf;
}

char *text_format_bytes(char *buf, size_t size, uint64_t bytes)
{
	static const struct unit units[] = {{"B", 1},		{"KiB", KIB},	    {"MiB", MIB},      {"GiB", GIB},
					    {"TiB", GIB << 10}, {"PiB", GIB << 20}, {"EiB", GIB << 30}};
	return format_quantity(buf, size, bytes, units, ARRAY_LEN(units));
}

char *text_format_time(char *buf, size_t size, uint64_t us)
{
	static const struct unit units[] = {
	    {"us", 1}, {"ms", 1000}, {"s", 1000000}, {"min", 60000000}, {"h", 3600000000}};
	return format_quantity(buf, size, us, units, ARRAY_LEN(units));
}

/* One byte as text_escape shows it; returns its length, 1 to 4. */
static size_t escape_byte(char to[4], unsigned char ch)
{
	static const char hex[] = "0123456789abcdef";
	static const char plain[] = "\n\r\t\"\\", shown[] = "nrt\"\\";
	const char *at = ch ? strchr(plain, ch) : NULL;
	if (at) {
		to[0] = '\\';
		to[1] = shown[at - plain];
		return 2;
	}
	if (ch >= 0x20 && ch < 0x7f) {
		to[0] = (char)ch;
		return 1;
	}
	to[0] = '\\';
	to[1] = 'x';
	to[2] = hex[ch >> 4];
	to[3] = hex[ch & 15];
	return 4;
}

char *text_escape(char *buf, size_t size, const void *bytes, size_t len)
{
	const unsigned char *in = bytes;
	size_t n = 0, cut_at = 0; /* cut_at: the last end of an escape that leaves room for "..." */
	if (size == 0)
		return buf;
	for (size_t i = 0; i < len; i++) {
		char one[4];
		size_t k = escape_byte(one, in[i]);
		if (n + 4 <= size)
			cut_at = n;
		if (n + k + 1 > size) {
			n = cut_at;
			for (int dots = 0; dots < 3 && n + 1 < size; dots++)
				buf[n++] = '.';
			break;
		}
		memcpy(buf + n, one, k);
		n += k;
	}
	buf[n] = '\0';
	return buf;
}
