/* SPDX-License-Identifier: MIT
 *
 * state: what is written is read again, and a reader passes over what it does not know.
 */
#include "suite.h"
#include "../../src/master/state.c"

START_TEST(words_come_back)
{
	struct text t = {0};
	static const char *const words[] = {"plain", "", "-", "with blank", "50%", "line\nbreak", "\xc3\xbc", "%41"};
	struct state_line line;
	state_key(&t, "first");
	state_number(&t, -7);
	state_key(&t, "words");
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		state_word(&t, words[i]);
	ck_assert(!t.failed);
	int fd = state_fd(&t);
	ck_assert_int_ge(fd, 0);
	char *text = state_read(fd), *at = text;
	ck_assert_ptr_nonnull(text);
	ck_assert(state_next(&at, &line));
	ck_assert_str_eq(line.key, "first");
	ck_assert_int_eq(state_int(&line, 0, 0), -7);
	ck_assert_int_eq(state_int(&line, 1, 42), 42);
	ck_assert(state_next(&at, &line));
	ck_assert_uint_eq(line.n, ARRAY_LEN(words));
	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		ck_assert_str_eq(state_text(&line, (unsigned)i), words[i]);
	ck_assert_str_eq(state_text(&line, 100), "");
	ck_assert(!state_next(&at, &line));
	free(text);
	close(fd);
	text_free(&t);
}
END_TEST

/* Whatever is in it: each line ends within the text. */
START_TEST(any_text_is_read)
{
	static const char *const texts[] = {"", "\n\n\n", "key", "key ", "key %", "key %4", "key %zz 5x", " a b", "a  b"};
	struct state_line line;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		char *copy = strdup(texts[i]), *at = copy;
		while (state_next(&at, &line))
			ck_assert_int_eq(state_int(&line, 1, 9), 9);
		ck_assert_ptr_eq(at, copy + strlen(texts[i]));
		free(copy);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("state");
	TCase *tc = tcase_create("state");
	tcase_add_test(tc, words_come_back);
	tcase_add_test(tc, any_text_is_read);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
