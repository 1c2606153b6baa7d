/* SPDX-License-Identifier: MIT
 *
 * mem: every allocation of conf, so that tests/unit/test_conf.c can include this file and let the nth one fail; and a
 * hash set of names, because a file may hold tens of thousands of keys and each is looked up for a double.
 */
#include "mem.h"

#include <string.h>

void *conf_mem_new(size_t bytes)
{
	return calloc(1, MAX(bytes, 1));
}

char *conf_mem_copy(const char *s, size_t len)
{
	char *copy = malloc(len + 1);
	if (!copy)
		return NULL;
	if (len)
		memcpy(copy, s, len);
	copy[len] = '\0';
	return copy;
}

void *conf_mem_grow(void *array, size_t *size, size_t n, size_t item_bytes)
{
	if (n < *size)
		return array;
	size_t more = MAX(*size * 2, 8);
	char *grown = realloc(array, more * item_bytes);
	if (!grown)
		return NULL;
	memset(grown + *size * item_bytes, 0, (more - *size) * item_bytes);
	*size = more;
	return grown;
}

/* The slot of the name, or the free slot where it belongs. There is always a free one. */
static struct conf_name *find(struct conf_name *slots, size_t size, const char *name)
{
	size_t i = hash_murmur3_32(name, strlen(name), 0) & (size - 1);
	while (slots[i].name && strcmp(slots[i].name, name) != 0)
		i = (i + 1) & (size - 1);
	return &slots[i];
}

static bool grow(struct conf_names *names)
{
	size_t size = MAX(names->size * 2, 16);
	struct conf_name *slots = conf_mem_new(size * sizeof(*slots));
	if (!slots)
		return false;
	for (size_t i = 0; i < names->size; i++)
		if (names->slots[i].name)
			*find(slots, size, names->slots[i].name) = names->slots[i];
	free(names->slots);
	names->slots = slots;
	names->size = size;
	return true;
}

size_t conf_names_put(struct conf_names *names, const char *name, size_t index)
{
	if (names->n * 2 >= names->size && !grow(names))
		return SIZE_MAX;
	struct conf_name *slot = find(names->slots, names->size, name);
	if (slot->name)
		return slot->index;
	*slot = (struct conf_name){name, index};
	names->n++;
	return index;
}

void conf_names_free(struct conf_names *names)
{
	free(names->slots);
	*names = (struct conf_names){0};
}
