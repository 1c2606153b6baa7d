/* SPDX-License-Identifier: MIT
 *
 * tree: how struct conf grows while it is read, and its end. Pure but for memory.
 */
#include "load.h"
#include "mem.h"

#include <string.h>

/* A list does not keep its room: whenever it has a multiple of 8 items it gets room for at least 8 more. */
static void *room_for(struct conf_load *ld, void *array, size_t n, size_t item_bytes)
{
	size_t size = n;
	void *grown = n % 8 ? array : conf_mem_grow(array, &size, n, item_bytes);
	if (!grown)
		ld->no_memory = true;
	return grown;
}

int conf_list_add(struct conf_load *ld, struct conf_list *list, const char *item, int line)
{
	char **items = room_for(ld, list->items, list->n, sizeof(*items));
	if (!items)
		return -1;
	list->items = items;
	int *lines = room_for(ld, list->lines, list->n, sizeof(*lines));
	if (!lines)
		return -1;
	list->lines = lines;
	char *copy = conf_mem_copy(item, strlen(item));
	if (!copy) {
		ld->no_memory = true;
		return -1;
	}
	items[list->n] = copy;
	lines[list->n++] = line;
	return 0;
}

int conf_map_add(struct conf_load *ld, struct conf_map *map, const char *key, const char *value, int line)
{
	struct conf_list keys = {map->keys, map->lines, map->n};
	char **values = room_for(ld, map->values, map->n, sizeof(*values));
	if (!values)
		return -1;
	map->values = values;
	char *copy = conf_mem_copy(value, strlen(value));
	if (!copy)
		ld->no_memory = true;
	int rc = copy ? conf_list_add(ld, &keys, key, line) : -1;
	map->keys = keys.items;
	map->lines = keys.lines;
	if (rc == 0)
		values[map->n++] = copy;
	else
		free(copy);
	return rc;
}

struct conf_input *conf_load_add_input(struct conf_load *ld, const char *name, int line)
{
	struct conf *cf = ld->cf;
	struct conf_input *inputs = conf_mem_grow(cf->inputs, &ld->inputs_size, cf->n_inputs, sizeof(*inputs));
	if (inputs)
		cf->inputs = inputs;
	struct conf_origin *origins =
		conf_mem_grow(ld->inputs, &ld->input_origins_size, cf->n_inputs, sizeof(*origins));
	if (origins)
		ld->inputs = origins;
	if (!inputs || !origins) {
		ld->no_memory = true;
		return NULL;
	}
	struct conf_input *in = &inputs[cf->n_inputs];
	in->index = cf->n_inputs++; /* from here on conf_free ends it */
	in->line = line;
	in->name = conf_mem_copy(name, strlen(name));
	if (conf_object_init(CONF_SCOPE_INPUT, in) != 0 || !in->name) {
		ld->no_memory = true;
		return NULL;
	}
	return in;
}

struct conf_output *conf_load_add_output(struct conf_load *ld, const char *name, int line)
{
	struct conf *cf = ld->cf;
	struct conf_output *outputs = conf_mem_grow(cf->outputs, &ld->outputs_size, cf->n_outputs, sizeof(*outputs));
	if (outputs)
		cf->outputs = outputs;
	struct conf_origin *origins =
		conf_mem_grow(ld->outputs, &ld->output_origins_size, cf->n_outputs, sizeof(*origins));
	if (origins)
		ld->outputs = origins;
	if (!outputs || !origins) {
		ld->no_memory = true;
		return NULL;
	}
	struct conf_output *out = &outputs[cf->n_outputs];
	out->index = cf->n_outputs++;
	out->line = line;
	out->name = conf_mem_copy(name, strlen(name));
	if (conf_object_init(CONF_SCOPE_OUTPUT, out) != 0 || !out->name) {
		ld->no_memory = true;
		return NULL;
	}
	return out;
}

void conf_free(struct conf *cf)
{
	if (!cf)
		return;
	for (size_t i = 0; i < cf->n_inputs; i++) {
		conf_object_fini(CONF_SCOPE_INPUT, &cf->inputs[i]);
		free(cf->inputs[i].name);
		free(cf->inputs[i].outputs);
	}
	for (size_t i = 0; i < cf->n_outputs; i++) {
		struct conf_output *out = &cf->outputs[i];
		for (size_t j = 0; j < out->n_backends; j++) {
			conf_object_fini(CONF_SCOPE_BACKEND, &out->backends[j]);
			free(out->backends[j].host);
		}
		conf_object_fini(CONF_SCOPE_OUTPUT, out);
		free(out->name);
		free(out->backends);
		free(out->shards);
	}
	for (size_t i = 0; i < cf->notes.n; i++)
		free(cf->notes.items[i]);
	free(cf->notes.items);
	free(cf->notes.lines);
	conf_object_fini(CONF_SCOPE_TOP, cf);
	free(cf->inputs);
	free(cf->outputs);
	free(cf->path);
	free(cf);
}
