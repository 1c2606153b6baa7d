/* SPDX-License-Identifier: MIT
 *
 * state: what a master tells the program that it becomes (upgrade.h): lines of words, in a memfd. A reader passes over keys
 * that it does not know and words behind those that it asks for, so that either side may be the newer one.
 *
 *   millrace 0.2.0
 *   endpoint udp 127.0.0.1:8125 - 5 6
 *
 * Words are parted by one blank; a byte that is blank, a percent sign or no ASCII is %XX, an empty word is "-" (and "-" is
 * %2D). Pure but for state_fd and state_read.
 */
#ifndef MASTER_STATE_H
#define MASTER_STATE_H

#include <base.h>

enum { STATE_VERSION = 3, STATE_WORDS_MAX = 1024 };

/* One line begins; words are added to it. On a failed allocation t->failed. */
void state_key(struct text *t, const char *key);
void state_word(struct text *t, const char *word);
void state_number(struct text *t, int64_t number);

/* A reader goes through the lines one by one. The text is changed (words are decoded in place). */
struct state_line {
	const char *key;
	char *words[STATE_WORDS_MAX];
	unsigned n;
};
/* The next line, from *at on, which moves. False: that was all. */
bool state_next(char **at, struct state_line *line);
/* Word number i; "" when there are fewer. As a number: `otherwise` when it is none. */
const char *state_text(const struct state_line *line, unsigned i);
int64_t state_int(const struct state_line *line, unsigned i, int64_t otherwise);

/* The text in a memfd. -errno. */
int state_fd(const struct text *t);
/* … and out of it again, ended by '\0', to be freed. NULL: errno. */
char *state_read(int fd);

#endif
