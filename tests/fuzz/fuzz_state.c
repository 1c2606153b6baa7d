/* SPDX-License-Identifier: MIT
 *
 * fuzz_state: what a program is told by the one that it was executed in place of. What must hold: every word lies in the
 * text, and what was read and is written again is the same when it is read once more.
 */
#include <base.h>
#include <string.h>

#include "../../src/master/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "fuzz_state: %s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* `again`: the same is written there. Returns the number of lines. */
static unsigned read_all(char *text, size_t size, struct text *again)
{
	static struct state_line line;
	unsigned n = 0;
	char *at = text;
	for (; state_next(&at, &line); n++) {
		MUST(line.n <= STATE_WORDS_MAX && at >= text && at <= text + size);
		MUST(line.key >= text && line.key <= text + size);
		state_key(again, line.key);
		for (unsigned i = 0; i < line.n; i++) {
			MUST(line.words[i] >= text && line.words[i] + strlen(line.words[i]) <= text + size);
			state_int(&line, i, 0);
			state_word(again, state_text(&line, i));
		}
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	char *text = malloc(size + 1);
	struct text once = {0}, twice = {0};
	memcpy(text, input, size);
	text[size] = '\0';
	unsigned n = read_all(text, size, &once);
	free(text);
	if (n > 0 && !once.failed) {
		char *copy = strdup(once.s);
		MUST(read_all(copy, once.len, &twice) <= n);
		MUST(twice.len <= once.len);
		free(copy);
	}
	text_free(&once);
	text_free(&twice);
	return 0;
}
