/* SPDX-License-Identifier: MIT
 *
 * state: see state.h.
 */
#include "state.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_BYTES_MAX = 64 << 20 };

void state_key(struct text *t, const char *key)
{
	if (t->len > 0)
		text_add(t, "\n");
	text_add(t, "%s", key);
}

void state_word(struct text *t, const char *word)
{
	text_add(t, " ");
	if (word[0] == '\0')
		text_add(t, "-");
	else if (strcmp(word, "-") == 0)
		text_add(t, "%%2D");
	else
		for (const unsigned char *p = (const unsigned char *)word; *p; p++)
			text_add(t, *p > ' ' && *p < 127 && *p != '%' ? "%c" : "%%%02X", *p);
}

void state_number(struct text *t, int64_t number)
{
	text_add(t, " %" PRId64, number);
}

static int hex(char c)
{
	const char *digits = "0123456789ABCDEF", *at = c ? strchr(digits, c) : NULL;
	return at ? (int)(at - digits) : -1;
}

static void decode(char *word)
{
	char *to = word;
	if (strcmp(word, "-") == 0)
		*word = '\0';
	for (char *from = word; *from; to++) {
		bool is_code = *from == '%' && hex(from[1]) >= 0 && hex(from[2]) >= 0;
		*to = is_code ? (char)(hex(from[1]) * 16 + hex(from[2])) : *from;
		from += is_code ? 3 : 1;
	}
	*to = '\0';
}

bool state_next(char **at, struct state_line *line)
{
	line->n = 0;
	*at += strspn(*at, "\n");
	if (**at == '\0')
		return false;
	char *text = *at, *end = text + strcspn(text, "\n");
	*at = end + (*end != '\0');
	*end = '\0';
	line->key = strsep(&text, " ");
	for (char *word; line->n < STATE_WORDS_MAX && (word = strsep(&text, " ")) != NULL;) {
		decode(word);
		line->words[line->n++] = word;
	}
	return true;
}

const char *state_text(const struct state_line *line, unsigned i)
{
	return i < line->n ? line->words[i] : "";
}

int64_t state_int(const struct state_line *line, unsigned i, int64_t otherwise)
{
	const char *word = state_text(line, i);
	char *end;
	errno = 0;
	long long n = strtoll(word, &end, 10);
	return errno != 0 || end == word || *end != '\0' ? otherwise : n;
}

int state_fd(const struct text *t)
{
	if (t->failed)
		return -ENOMEM;
	int fd = memfd_create("millrace-state", MFD_CLOEXEC);
	if (fd == -1)
		return -errno;
	int r = proc_write(fd, t->s, t->len);
	if (r == 0)
		return fd;
	close(fd);
	return r;
}

char *state_read(int fd)
{
	struct stat sb;
	if (fstat(fd, &sb) == -1)
		return NULL;
	if (sb.st_size > STATE_BYTES_MAX) {
		errno = EFBIG;
		return NULL;
	}
	size_t size = (size_t)sb.st_size, done = 0;
	char *text = malloc(size + 1);
	while (text && done < size) {
		ssize_t n = pread(fd, text + done, size - done, (off_t)done);
		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		done += (size_t)n;
	}
	if (text)
		text[done] = '\0';
	return text;
}
