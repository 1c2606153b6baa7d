/* SPDX-License-Identifier: MIT
 *
 * errors: what is wrong is collected while a file is read and checked, and given as text, by line, at the end; what is
 * only worth a word is kept in the tree for conf_warnings.
 */
#include "load.h"
#include "mem.h"

#include <string.h>

char *conf_key(char *buf, const char *a, const char *b)
{
	char shown[100], before[CONF_KEY_SIZE];
	text_escape(shown, sizeof(shown), b, strlen(b));
	snprintf(before, sizeof(before), "%s", a); /* a may lie in buf */
	snprintf(buf, CONF_KEY_SIZE, "%.190s%s%s", before, *before ? "." : "", shown);
	return buf;
}

void conf_load_error(struct conf_load *ld, int line, const char *key, const char *fmt, ...)
{
	struct text t = {0};
	char what[1024];
	va_list ap;
	if (ld->n_errors == CONF_ERRORS_MAX) {
		ld->n_held_back++;
		return;
	}
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	text_add(&t, "%s%s%s", key ? key : "", key ? ": " : "", what);
	struct conf_load_error *errors = conf_mem_grow(ld->errors, &ld->errors_size, ld->n_errors, sizeof(*errors));
	if (errors)
		ld->errors = errors;
	if (!errors || t.failed) {
		ld->no_memory = true;
		text_free(&t);
		return;
	}
	errors[ld->n_errors] = (struct conf_load_error){line, ld->n_errors, t.s};
	ld->n_errors++;
}

void conf_load_note(struct conf_load *ld, int line, const char *key, const char *fmt, ...)
{
	char what[512];
	struct text t = {0};
	va_list ap;
	if (ld->cf->notes.n == CONF_ERRORS_MAX)
		return;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (line)
		text_add(&t, "%s:%d: %s: %s", ld->name, line, key, what);
	else
		text_add(&t, "%s: %s: %s", ld->name, key, what);
	if (t.failed)
		ld->no_memory = true;
	else
		conf_list_add(ld, &ld->cf->notes, t.s, line);
	text_free(&t);
}

static int by_line(const void *a, const void *b)
{
	const struct conf_load_error *x = a, *y = b;
	return x->line != y->line ? (x->line > y->line) - (x->line < y->line)
				  : (x->order > y->order) - (x->order < y->order);
}

/* All errors as text; true when there are some. */
bool conf_load_give_errors(struct conf_load *ld, struct conf_errors *errors)
{
	if (ld->no_memory) {
		text_add(&errors->text, "%s: there is not enough memory to read the configuration\n", ld->name);
		errors->n++;
	}
	if (ld->n_errors)
		qsort(ld->errors, ld->n_errors, sizeof(*ld->errors), by_line);
	for (size_t i = 0; i < ld->n_errors; i++) {
		if (ld->errors[i].line)
			text_add(&errors->text, "%s:%d: %s\n", ld->name, ld->errors[i].line, ld->errors[i].text);
		else
			text_add(&errors->text, "%s: %s\n", ld->name, ld->errors[i].text);
		free(ld->errors[i].text);
	}
	if (ld->n_held_back)
		text_add(&errors->text, "%s: %zu further errors are not shown\n", ld->name, ld->n_held_back);
	errors->n += ld->n_errors + ld->n_held_back;
	free(ld->errors);
	return errors->n > 0;
}
