/* SPDX-License-Identifier: MIT
 *
 * text_grow: struct text, the string that grows; for pages, dumps and answers, never in a worker's loop (it allocates).
 * A failed allocation is remembered, so that callers check once at the end.
 */
#include <base.h>
#include <string.h>

static bool reserve(struct text *t, size_t more)
{
	if (t->failed)
		return false;
	size_t need;
	if (__builtin_add_overflow(t->len, more, &need) || __builtin_add_overflow(need, 1, &need)) {
		t->failed = true;
		return false;
	}
	if (need <= t->size)
		return true;
	size_t size = MAX(need, MAX(t->size * 2, 256));
	char *s = realloc(t->s, size);
	if (!s) {
		t->failed = true;
		return false;
	}
	t->s = s;
	t->size = size;
	return true;
}

void text_add(struct text *t, const char *fmt, ...)
{
	if (!reserve(t, 0))
		return;
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(t->s + t->len, t->size - t->len, fmt, ap);
	if (n < 0) {
		t->failed = true;
	} else if ((size_t)n < t->size - t->len) {
		t->len += (size_t)n;
	} else if (reserve(t, (size_t)n)) {
		vsnprintf(t->s + t->len, t->size - t->len, fmt, again);
		t->len += (size_t)n;
	}
	if (t->s)
		t->s[t->len] = '\0';
	va_end(again);
	va_end(ap);
}

void text_add_bytes(struct text *t, const void *bytes, size_t len)
{
	if (!reserve(t, len))
		return;
	if (len)
		memcpy(t->s + t->len, bytes, len);
	t->len += len;
	t->s[t->len] = '\0';
}

/* Length of the UTF-8 sequence at s (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF), 0: none. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
	if (s[0] < 0x80)
		return 1;
	size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
	if (s[0] < 0xc2 || s[0] > 0xf4 || left < n)
		return 0;
	for (size_t i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
	    (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

void text_add_json(struct text *t, const char *s, size_t len)
{
	const unsigned char *p = (const unsigned char *)s, *end = p + len;
	text_add_bytes(t, "\"", 1);
	while (p < end) {
		size_t n = utf8_length(p, (size_t)(end - p));
		if (n == 0)
			text_add_bytes(t, "\xef\xbf\xbd", 3);
		else if (*p == '"' || *p == '\\')
			text_add(t, "\\%c", *p);
		else if (*p == '\n')
			text_add_bytes(t, "\\n", 2);
		else if (*p < 0x20 || *p == 0x7f)
			text_add(t, "\\u%04x", *p);
		else
			text_add_bytes(t, p, n);
		p += MAX(n, 1);
	}
	text_add_bytes(t, "\"", 1);
}

void text_free(struct text *t)
{
	free(t->s);
	*t = (struct text){0};
}
