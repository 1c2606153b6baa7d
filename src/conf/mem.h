/* SPDX-License-Identifier: MIT
 *
 * mem: every allocation of conf, so that a test can let the nth one fail; and a set of names. Private to conf.
 */
#ifndef CONF_MEM_H
#define CONF_MEM_H

#include <base.h>

/* Zeroed; NULL when memory is short. Freed by free. */
void *conf_mem_new(size_t bytes);
/* NUL-terminated copy. NULL likewise. */
char *conf_mem_copy(const char *s, size_t len);
/* Room for item n of an array that has room for *size of them. The array (perhaps moved; new items zeroed), or NULL and
 * the old one is as it was. */
void *conf_mem_grow(void *array, size_t *size, size_t n, size_t item_bytes);

/* Names → their first index. Zeroed memory is an empty one. Names are borrowed. */
struct conf_names {
	struct conf_name {
		const char *name;
		size_t index;
	} *slots;
	size_t n, size;
};
/* Index under which the name was put first (`index` itself when it is new). SIZE_MAX when memory is short. */
size_t conf_names_put(struct conf_names *names, const char *name, size_t index);
void conf_names_free(struct conf_names *names);

#endif
