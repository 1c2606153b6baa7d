/* SPDX-License-Identifier: MIT
 *
 * test_framing: what a stream begins with, messages cut at every place, lengths that are none, the way as a number. */
#include "suite.h"
#include "../../src/input/framing.h"

#include <string.h>

START_TEST(recognise)
{
	static const struct {
		const char *s;
		size_t len;
		enum framing_mode mode;
	} rows[] = {
	    {"", 0, FRAMING_UNKNOWN},
	    {"a:", 2, FRAMING_UNKNOWN},
	    {"a:1", 3, FRAMING_LINES},
	    {"\5\0", 2, FRAMING_UNKNOWN},
	    {"\5\0\0", 3, FRAMING_UNKNOWN},
	    {"\5\0\0\0", 4, FRAMING_MESSAGES},
	    {"\377\377\3\0", 4, FRAMING_MESSAGES},
	    {"\0\0\4", 3, FRAMING_LINES},
	    {"\0\0\0\1", 4, FRAMING_LINES},
	    {"\0\0\0\0", 4, FRAMING_MESSAGES}, /* an empty one */
	    {"\n\n\n", 3, FRAMING_LINES},
	    {"a:1|c\n", 6, FRAMING_LINES},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		ck_assert_msg(framing_recognise(rows[i].s, rows[i].len) == rows[i].mode, "row %zu", i);
}
END_TEST

static const char framed[] = "\5\0\0\0a:1|c\6\0\0\0b:1|c\n\0\0\0\0\13\0\0\0c:1|c\nd:2|g\2\0\0\0\n\n";
static const char unframed[] = "a:1|c\nb:1|c\nc:1|c\nd:2|g\n\n\n";

/* In two pieces, each at the end of its own allocation but for the byte that may be added. */
START_TEST(pieces)
{
	for (size_t cut = 0; cut < sizeof(framed); cut++) {
		struct framing f = {.mode = FRAMING_MESSAGES};
		char got[sizeof(framed) + 2];
		size_t at = 0, n = 0, len = sizeof(framed) - 1;
		for (int piece = 0; piece < 2; piece++) {
			size_t bytes = piece == 0 ? cut : len - cut;
			char *text = malloc(bytes + 1);
			memcpy(text, framed + at, bytes);
			at += bytes;
			bytes = framing_unwrap(&f, text, bytes);
			memcpy(got + n, text, bytes);
			n += bytes;
			free(text);
			f = framing_unpack(framing_pack(&f)); /* as if another worker went on */
			if (cut == len)
				break;
		}
		ck_assert_msg(n == sizeof(unframed) - 1 && memcmp(got, unframed, n) == 0, "cut at %zu: '%.*s'", cut,
			      (int)n, got);
		ck_assert(f.mode == FRAMING_MESSAGES && f.left == 0 && f.head_bytes == 0);
	}
}
END_TEST

START_TEST(no_length)
{
	char text[] = "\1\0\0\0x\0\0\4\0rest\n";
	struct framing f = {.mode = FRAMING_MESSAGES};
	size_t n = framing_unwrap(&f, text, sizeof(text) - 1);
	ck_assert(n == 7 && memcmp(text, "x\nrest\n", n) == 0 && f.mode == FRAMING_LINES && f.left == 0);
	f = framing_unpack(framing_pack(&f));
	ck_assert(f.mode == FRAMING_LINES);
	ck_assert(framing_unpack(UINT64_MAX).left <= FRAMING_MESSAGE_MAX);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("framing");
	TCase *tc = tcase_create("framing");
	tcase_add_test(tc, recognise);
	tcase_add_test(tc, pieces);
	tcase_add_test(tc, no_length);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
