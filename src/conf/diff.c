/* SPDX-License-Identifier: MIT
 *
 * diff: what a new configuration changes, and the reload class that covers it: that of the option's row, and for what
 * is added or removed as a whole the class of its kind. The new tree has the old one's order (align.c). Pure.
 */
#include "mem.h"
#include "rows.h"

#include <string.h>

const char *conf_reload_word(enum conf_reload reload)
{
	static const char *const words[] = {"nothing to do", "at once", "by rolling the workers",
					    "by new endpoints and rolling the workers", "by a restart only"};
	return words[reload];
}

/* A change without its text. */
static struct conf_change *add(struct conf_diff *d, enum conf_place place, size_t was, size_t is,
			       enum conf_reload reload)
{
	struct conf_change *grown = conf_mem_grow(d->changes, &d->size, d->n, sizeof(*grown));
	if (!grown) {
		d->no_memory = true;
		return NULL;
	}
	d->changes = grown;
	d->reload = MAX(d->reload, reload);
	grown[d->n] = (struct conf_change){.place = place, .was = was, .is = is, .reload = reload};
	return &grown[d->n++];
}

static void give_text(struct conf_diff *d, struct conf_change *c, struct text *t)
{
	d->no_memory |= t->failed;
	if (t->failed)
		text_free(t);
	c->text = t->s; /* taken */
}

static void whole(struct conf_diff *d, enum conf_place place, size_t was, size_t is, const char *part,
		  const char *name, enum conf_reload reload)
{
	struct text t = {0};
	struct conf_change *c = add(d, place, was, is, reload);
	if (!c)
		return;
	text_add(&t, "%s.%s: %s", part, name, was == SIZE_MAX ? "added" : "removed");
	give_text(d, c, &t);
}

/* Values of maps may be passwords. */
static void show(struct text *t, const struct conf_row *row, const char *before, const char *after)
{
	if (strcmp(row->type, "MAP") == 0)
		text_add(t, "changed");
	else
		text_add(t, "%s -> %s", before, after);
}

static void compare_option(struct conf_diff *d, const struct conf_row *row, enum conf_place place, size_t was,
			   size_t is, const char *prefix, const void *old, const void *new)
{
	struct text before = {0}, after = {0}, t = {0};
	conf_value_format(row, conf_row_field(row, old), &before);
	conf_value_format(row, conf_row_field(row, new), &after);
	d->no_memory |= before.failed || after.failed;
	bool differs = !d->no_memory && strcmp(before.s ? before.s : "", after.s ? after.s : "") != 0;
	struct conf_change *c = differs ? add(d, place, was, is, row->reload) : NULL;
	if (c) {
		c->option = row->name;
		text_add(&t, "%s%s: ", prefix, row->name);
		show(&t, row, before.s ? before.s : "", after.s ? after.s : "");
		give_text(d, c, &t);
	}
	text_free(&before);
	text_free(&after);
}

static void compare_options(struct conf_diff *d, enum conf_scope scope, enum conf_words type, enum conf_place place,
			    size_t was, size_t is, const char *prefix, const void *old, const void *new)
{
	for (size_t i = 0; i < CONF_ROWS; i++) {
		const struct conf_row *row = &conf_rows[i];
		if (row->scope == scope && !conf_row_is_part(row) && conf_row_applies(row, type))
			compare_option(d, row, place, was, is, prefix, old, new);
	}
}

/* -- backends: what both have comes first, in the old order -- */

static void change_backend(struct conf_diff *d, size_t output, const char *name, const struct conf_backend *be,
			   const char *what)
{
	char address[300];
	struct text t = {0};
	struct conf_change *c = add(d, CONF_PLACE_BACKEND, output, output, CONF_RELOAD_RESPAWN);
	if (!c)
		return;
	conf_backend_address(be, address, sizeof(address));
	text_add(&t, "outputs.%s.backends: ", name);
	if (strcmp(be->name, address) != 0)
		text_add(&t, "%s at ", be->name);
	text_add(&t, "%s %s", address, what);
	give_text(d, c, &t);
}

static void compare_weight(struct conf_diff *d, size_t output, const char *name, const struct conf_backend *old,
			   const struct conf_backend *new)
{
	char what[80];
	if (old->weight <= new->weight && old->weight >= new->weight)
		return;
	snprintf(what, sizeof(what), "weight %g -> %g", old->weight, new->weight);
	change_backend(d, output, name, new, what);
}

static void compare_backends(struct conf_diff *d, size_t output, const struct conf_output *old,
			     const struct conf_output *new)
{
	size_t k = 0, before = d->n;
	for (size_t i = 0; i < old->n_backends; i++) {
		if (k < new->n_backends && conf_backend_is_same(&old->backends[i], &new->backends[k]))
			compare_weight(d, output, new->name, &old->backends[i], &new->backends[k++]);
		else
			change_backend(d, output, new->name, &old->backends[i], "removed");
	}
	for (; k < new->n_backends; k++)
		change_backend(d, output, new->name, &new->backends[k], "added");
	bool same_shards = old->n_shards == new->n_shards &&
			   (old->n_shards == 0 ||
			    memcmp(old->shards, new->shards, old->n_shards * sizeof(*old->shards)) == 0);
	if (d->n == before && !same_shards) {
		struct text t = {0};
		struct conf_change *c = add(d, CONF_PLACE_BACKEND, output, output, CONF_RELOAD_RESPAWN);
		if (!c)
			return;
		text_add(&t, "outputs.%s: other shards", new->name);
		give_text(d, c, &t);
	}
}

/* -- inputs and outputs -- */

static void compare_input(struct conf_diff *d, const struct conf *old, size_t i, const struct conf *new, size_t k)
{
	char prefix[100];
	const struct conf_input *a = &old->inputs[i], *b = &new->inputs[k];
	snprintf(prefix, sizeof(prefix), "inputs.%s.", b->name);
	compare_options(d, CONF_SCOPE_INPUT, b->type, CONF_PLACE_INPUT, i, k, prefix, a, b);
}

static void compare_output(struct conf_diff *d, const struct conf *old, size_t i, const struct conf *new, size_t k)
{
	char prefix[100];
	const struct conf_output *a = &old->outputs[i], *b = &new->outputs[k];
	snprintf(prefix, sizeof(prefix), "outputs.%s.", b->name);
	compare_options(d, CONF_SCOPE_OUTPUT, b->type, CONF_PLACE_OUTPUT, i, k, prefix, a, b);
	if (a->type == b->type)
		compare_backends(d, k, a, b);
}

static void compare_inputs(struct conf_diff *d, const struct conf *old, const struct conf *new)
{
	size_t k = 0;
	for (size_t i = 0; i < old->n_inputs; i++) {
		if (k < new->n_inputs && strcmp(old->inputs[i].name, new->inputs[k].name) == 0)
			compare_input(d, old, i, new, k++);
		else
			whole(d, CONF_PLACE_INPUT, i, SIZE_MAX, "inputs", old->inputs[i].name, CONF_RELOAD_REBIND);
	}
	for (; k < new->n_inputs; k++)
		whole(d, CONF_PLACE_INPUT, SIZE_MAX, k, "inputs", new->inputs[k].name, CONF_RELOAD_REBIND);
}

static void compare_outputs(struct conf_diff *d, const struct conf *old, const struct conf *new)
{
	size_t k = 0;
	for (size_t i = 0; i < old->n_outputs; i++) {
		if (k < new->n_outputs && strcmp(old->outputs[i].name, new->outputs[k].name) == 0)
			compare_output(d, old, i, new, k++);
		else
			whole(d, CONF_PLACE_OUTPUT, i, SIZE_MAX, "outputs", old->outputs[i].name, CONF_RELOAD_RESPAWN);
	}
	for (; k < new->n_outputs; k++)
		whole(d, CONF_PLACE_OUTPUT, SIZE_MAX, k, "outputs", new->outputs[k].name, CONF_RELOAD_RESPAWN);
}

void conf_diff(const struct conf *old, const struct conf *cf, struct conf_diff *d)
{
	*d = (struct conf_diff){0};
	compare_options(d, CONF_SCOPE_TOP, CONF_WORDS, CONF_PLACE_TOP, 0, 0, "", old, cf);
	compare_inputs(d, old, cf);
	compare_outputs(d, old, cf);
}

void conf_diff_free(struct conf_diff *d)
{
	for (size_t i = 0; i < d->n; i++)
		free(d->changes[i].text);
	free(d->changes);
	*d = (struct conf_diff){0};
}
