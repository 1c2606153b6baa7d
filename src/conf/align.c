/* SPDX-License-Identifier: MIT
 *
 * align: gives a new tree the order of the one that is in effect, so that what both have stands at the same place, and
 * the digest by which configurations are compared. Pure.
 */
#include "mem.h"
#include "rows.h"

#include <errno.h>
#include <string.h>

bool conf_backend_is_same(const struct conf_backend *a, const struct conf_backend *b)
{
	return a->port == b->port && a->transport == b->transport && strcmp(a->name, b->name) == 0 &&
	       strcmp(a->host, b->host) == 0;
}

uint64_t conf_digest(const struct conf *cf)
{
	struct text t = {0};
	conf_dump(cf, &t);
	uint64_t digest = hash_64(t.s ? t.s : "", t.len) >> 16;
	text_free(&t);
	return digest;
}

/* -- names of both trees → a place in the old one -- */

struct places {
	struct conf_names names;
	char **texts; /* the memory of `names`, where it is not the tree's */
	size_t n_texts;
	bool failed;
};

static void put(struct places *p, const char *name, size_t index)
{
	p->failed |= conf_names_put(&p->names, name, index) == SIZE_MAX;
}

static void places_end(struct places *p)
{
	for (size_t i = 0; i < p->n_texts; i++)
		free(p->texts[i]);
	free(p->texts);
	conf_names_free(&p->names);
}

/* order[i]: where the new thing i goes; old_place[i]: its place in the old tree, n_old or more when it is new. */
static void number(const size_t *old_place, size_t n, size_t n_old, size_t *order, size_t *by_old)
{
	size_t next = 0;
	for (size_t i = 0; i < n_old; i++)
		by_old[i] = SIZE_MAX;
	for (size_t i = 0; i < n; i++)
		if (old_place[i] < n_old)
			by_old[old_place[i]] = i;
	for (size_t i = 0; i < n_old; i++)
		if (by_old[i] != SIZE_MAX)
			order[by_old[i]] = next++;
	for (size_t i = 0; i < n; i++)
		if (old_place[i] >= n_old)
			order[i] = next++;
}

/* Moves items of `bytes` each: item i to order[i]. */
static bool move(void *items, size_t n, size_t bytes, const size_t *order)
{
	char *copy = conf_mem_new(n * bytes);
	if (!copy)
		return false;
	for (size_t i = 0; i < n; i++)
		memcpy(copy + order[i] * bytes, (char *)items + i * bytes, bytes);
	memcpy(items, copy, n * bytes);
	free(copy);
	return true;
}

/* The order of n things whose places are in `p`; NULL: no memory. */
static size_t *order_of(struct places *p, char *const *names, size_t n, size_t n_old)
{
	size_t *place = conf_mem_new(n * sizeof(*place)), *order = conf_mem_new(n * sizeof(*order));
	size_t *by_old = conf_mem_new(n_old * sizeof(*by_old));
	if (place && order && by_old) {
		for (size_t i = 0; i < n; i++) {
			place[i] = conf_names_put(&p->names, names[i], n_old + i);
			p->failed |= place[i] == SIZE_MAX;
		}
		number(place, n, n_old, order, by_old);
	}
	bool is_whole = place && order && by_old && !p->failed;
	free(place);
	free(by_old);
	if (is_whole)
		return order;
	free(order);
	return NULL;
}

/* -- backends -- */

static char *backend_key(struct places *p, const struct conf_backend *be)
{
	struct text t = {0};
	text_add(&t, "%s %s %u %d", be->name, be->host, be->port, be->transport);
	if (t.failed) {
		p->failed = true;
		text_free(&t);
		return NULL;
	}
	return p->texts[p->n_texts++] = t.s;
}

static int align_backends(struct conf_output *out, const struct conf_output *like)
{
	struct places p = {.texts = conf_mem_new((out->n_backends + like->n_backends) * sizeof(char *))};
	char **names = conf_mem_new(out->n_backends * sizeof(*names));
	size_t *order = NULL;
	if (!p.texts || !names)
		p.failed = true;
	for (size_t i = 0; i < like->n_backends && !p.failed; i++) {
		const char *key = backend_key(&p, &like->backends[i]);
		if (key)
			put(&p, key, i);
	}
	for (size_t i = 0; i < out->n_backends && !p.failed; i++)
		names[i] = backend_key(&p, &out->backends[i]);
	if (!p.failed)
		order = order_of(&p, names, out->n_backends, like->n_backends);
	bool done = order && move(out->backends, out->n_backends, sizeof(*out->backends), order);
	for (size_t i = 0; done && i < out->n_shards; i++)
		out->shards[i] = (uint16_t)order[out->shards[i]];
	free(order);
	free(names);
	places_end(&p);
	return done ? 0 : -1;
}

/* -- inputs and outputs -- */

static int align_outputs(struct conf *cf, const struct conf *like)
{
	struct places p = {0};
	char **names = conf_mem_new(cf->n_outputs * sizeof(*names));
	size_t *order = NULL;
	for (size_t i = 0; i < like->n_outputs; i++)
		put(&p, like->outputs[i].name, i);
	for (size_t i = 0; names && i < cf->n_outputs; i++)
		names[i] = cf->outputs[i].name;
	if (names && !p.failed)
		order = order_of(&p, names, cf->n_outputs, like->n_outputs);
	bool done = order && move(cf->outputs, cf->n_outputs, sizeof(*cf->outputs), order);
	for (size_t i = 0; done && i < cf->n_inputs; i++)
		for (size_t k = 0; k < cf->inputs[i].n_outputs; k++)
			cf->inputs[i].outputs[k] = &cf->outputs[order[cf->inputs[i].outputs[k] - cf->outputs]];
	for (size_t i = 0; done && i < cf->n_outputs; i++)
		cf->outputs[i].index = i;
	free(order);
	free(names);
	places_end(&p);
	return done ? 0 : -1;
}

static int align_inputs(struct conf *cf, const struct conf *like)
{
	struct places p = {0};
	char **names = conf_mem_new(cf->n_inputs * sizeof(*names));
	size_t *order = NULL;
	for (size_t i = 0; i < like->n_inputs; i++)
		put(&p, like->inputs[i].name, i);
	for (size_t i = 0; names && i < cf->n_inputs; i++)
		names[i] = cf->inputs[i].name;
	if (names && !p.failed)
		order = order_of(&p, names, cf->n_inputs, like->n_inputs);
	bool done = order && move(cf->inputs, cf->n_inputs, sizeof(*cf->inputs), order);
	for (size_t i = 0; done && i < cf->n_inputs; i++)
		cf->inputs[i].index = i;
	free(order);
	free(names);
	places_end(&p);
	return done ? 0 : -1;
}

static const struct conf_output *output_named(const struct conf *cf, const char *name)
{
	for (size_t i = 0; i < cf->n_outputs; i++)
		if (strcmp(cf->outputs[i].name, name) == 0)
			return &cf->outputs[i];
	return NULL;
}

int conf_align(struct conf *cf, const struct conf *like)
{
	if (align_outputs(cf, like) != 0 || align_inputs(cf, like) != 0)
		return -ENOMEM;
	for (size_t i = 0; i < cf->n_outputs; i++) {
		const struct conf_output *old = output_named(like, cf->outputs[i].name);
		if (old && cf->outputs[i].n_backends && old->n_backends && align_backends(&cf->outputs[i], old) != 0)
			return -ENOMEM;
	}
	return 0;
}
