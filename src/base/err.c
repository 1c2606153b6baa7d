/* SPDX-License-Identifier: MIT
 *
 * err: the sentence that a failed start or change gives to a person, and the end of a process that found a bug of ours.
 * Any process. Does not log: who asked decides where the sentence goes.
 */
#include <base.h>
#include <string.h>

int err_set(struct err *err, int code, const char *fmt, ...)
{
	if (!err)
		return code;
	/* Not straight into err->text: callers wrap a sentence ("backend %s: %s", name, err->text). */
	char text[sizeof(err->text)];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0)
		text[0] = '\0';
	else if ((size_t)n >= sizeof(text))
		memcpy(text + sizeof(text) - 4, "...", 4);
	memcpy(err->text, text, strlen(text) + 1);
	return code;
}

void base_bug(const char *what, const char *file, int line)
{
	log_error("bug: %s at %s:%d, please report it", what, file, line);
	abort();
}
