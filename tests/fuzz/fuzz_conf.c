/* SPDX-License-Identifier: MIT
 *
 * fuzz_conf: any bytes as a configuration file. Either there is a tree and no error, or no tree and errors, a line each
 * that begins with the file's name; and what a tree is dumped as loads to a tree that is dumped as the same.
 */
#include <conf.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static void check_errors(const struct conf_errors *errors)
{
	size_t lines = 0;
	for (const char *line = errors->text.s; *line; line = strchr(line, '\n') + 1) {
		if (strncmp(line, "f:", 2) != 0 || !strchr(line, '\n'))
			abort();
		lines++;
	}
	if (errors->n == 0 || lines != MIN(errors->n, CONF_ERRORS_MAX + 1))
		abort();
	for (size_t i = 0; i < errors->text.len; i++) /* "…" is ours; all that came from the file is escaped */
		if ((unsigned char)errors->text.s[i] < ' ' && errors->text.s[i] != '\n')
			abort();
}

static void check_tree(const struct conf *cf)
{
	struct text first = {0}, second = {0};
	struct conf_errors errors;
	conf_warnings(cf, &second);
	text_free(&second);
	conf_dump(cf, &first);
	struct conf *again = conf_load_bytes("dump", first.s, first.len, NULL, &errors);
	if (!again)
		abort();
	conf_dump(again, &second);
	if (strcmp(first.s, second.s) != 0)
		abort();
	conf_free(again);
	text_free(&errors.text);
	text_free(&first);
	text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	struct conf_errors errors;
	struct conf *cf = conf_load_bytes("f", (const char *)input, size, NULL, &errors);
	if (cf && errors.n == 0)
		check_tree(cf);
	else if (cf)
		abort();
	else
		check_errors(&errors);
	conf_free(cf);
	text_free(&errors.text);
	return 0;
}
