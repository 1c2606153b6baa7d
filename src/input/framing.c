/* SPDX-License-Identifier: MIT
 *
 * framing: DogStatsD's messages on a stream become lines. Pure. Holds no bytes: a message of which a part has come is
 * passed on as far as it is there.
 */
#include "framing.h"

#include <string.h>

enum { HEAD_BYTES = 4 };

enum framing_mode framing_recognise(const char *s, size_t len)
{
	if (len >= 3 && (unsigned char)s[2] > FRAMING_MESSAGE_MAX >> 16)
		return FRAMING_LINES;
	if (len < HEAD_BYTES)
		return FRAMING_UNKNOWN;
	return s[3] == '\0' ? FRAMING_MESSAGES : FRAMING_LINES;
}

/* A byte of a length. */
static void add_to_head(struct framing *f, char byte)
{
	f->head |= (uint32_t)(unsigned char)byte << 8 * f->head_bytes;
	if (++f->head_bytes < HEAD_BYTES)
		return;
	f->left = f->head;
	f->head = f->head_bytes = 0;
	if (f->left <= FRAMING_MESSAGE_MAX)
		return;
	f->mode = FRAMING_LINES;
	f->left = 0;
}

size_t framing_unwrap(struct framing *f, char *text, size_t len)
{
	const char *from = text, *end = text + len;
	char *to = text; /* never ahead of `from`, but for the newline at the very end */
	bool lacks_newline = false;
	while (from < end && f->mode == FRAMING_MESSAGES) {
		if (f->left == 0) {
			add_to_head(f, *from++);
			if (lacks_newline)
				*to++ = '\n';
			lacks_newline = false;
			continue;
		}
		size_t n = MIN(f->left, (size_t)(end - from));
		memmove(to, from, n);
		to += n;
		from += n;
		f->left -= (uint32_t)n;
		lacks_newline = f->left == 0 && to[-1] != '\n';
	}
	if (lacks_newline)
		*to++ = '\n';
	memmove(to, from, (size_t)(end - from));
	return (size_t)(to - text) + (size_t)(end - from);
}

uint64_t framing_pack(const struct framing *f)
{
	return (uint64_t)f->mode | (uint64_t)f->head_bytes << 2 | (uint64_t)f->head << 4 | (uint64_t)f->left << 32;
}

struct framing framing_unpack(uint64_t packed)
{
	const struct framing f = {.mode = (enum framing_mode)(packed & 3),
				  .head_bytes = packed >> 2 & 3,
				  .head = packed >> 4 & 0xffffff,
				  .left = packed >> 32 & FRAMING_MESSAGE_MAX};
	return f.mode == FRAMING_MESSAGES ? f : (struct framing){.mode = f.mode};
}
