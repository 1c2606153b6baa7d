/* SPDX-License-Identifier: MIT
 *
 * backends: the remotes of an output, from `backends:`, `shard_map:` or --backend, and for hash: modulo the map from
 * shard to remote, in which several shards may name one. Resolves nothing.
 */
#include "mem.h"
#include "node.h"

#include <errno.h>
#include <string.h>

struct remotes {
	struct conf_load *ld;
	struct conf_output *out;
	const char *key;
	size_t size;		/* room in out->backends */
	struct conf_names seen; /* with hash: modulo: what was written → index */
	char **texts;		/* the memory of `seen` */
	size_t n_texts, texts_size;
	bool is_over; /* there were more than there may be (said) */
};

/* The index of the same remote that was added before, else n_backends, else SIZE_MAX: no memory. */
static size_t find_same(struct remotes *r, const struct conf_backend *be)
{
	struct conf_address a = {.port = be->port, .transport = be->transport};
	char address[300], text[600];
	char **texts = conf_mem_grow(r->texts, &r->texts_size, r->n_texts, sizeof(*texts));
	if (!texts)
		return SIZE_MAX;
	r->texts = texts;
	snprintf(a.host, sizeof(a.host), "%s", be->host);
	snprintf(text, sizeof(text), "%s %s", conf_address_key(&a, address, sizeof(address)), be->name);
	char *copy = conf_mem_copy(text, strlen(text));
	if (!copy)
		return SIZE_MAX;
	texts[r->n_texts++] = copy;
	return conf_names_put(&r->seen, copy, r->out->n_backends);
}

static bool is_over(struct remotes *r, int line)
{
	r->is_over = r->ld->n_backends >= CONF_BACKENDS_MAX;
	if (r->is_over)
		conf_load_error(r->ld, line, r->key,
				"are too many backends; allowed are at most %d in all outputs together",
				CONF_BACKENDS_MAX);
	return r->is_over;
}

/* Takes the fields of `be`. Its index, or SIZE_MAX (said). */
static size_t add(struct remotes *r, struct conf_backend *be)
{
	struct conf_output *out = r->out;
	struct conf_backend *backends = NULL;
	size_t index = out->hash == CONF_HASH_MODULO ? find_same(r, be) : out->n_backends;
	if (index == out->n_backends && !is_over(r, be->line))
		backends = conf_mem_grow(out->backends, &r->size, out->n_backends, sizeof(*be));
	if (backends) {
		out->backends = backends;
		backends[out->n_backends++] = *be;
		r->ld->n_backends++;
		return index;
	}
	free(be->host);
	conf_object_fini(CONF_SCOPE_BACKEND, be);
	if (index < out->n_backends)
		return index;
	r->ld->no_memory |= !r->is_over;
	return SIZE_MAX;
}

/* Names stand in metrics and in the lines of `status`, which are split at spaces. */
static bool is_backend_name(const char *s)
{
	size_t len = 0;
	for (; s[len]; len++)
		if ((unsigned char)s[len] <= ' ' || s[len] == 0x7f)
			return false;
	return len <= 255;
}

/* Host, port, transport and the name that was left out. 0; -1: said. */
static int finish(struct remotes *r, struct conf_backend *be, const char *key)
{
	char path[CONF_KEY_SIZE], address[300];
	struct conf_address a;
	struct text why = {0};
	int rc = conf_address_parse(be->address, CONF_ADDRESS_BACKEND, &a, &why);
	if (rc != 0)
		conf_load_error(r->ld, be->line, key, "%s", why.s ? why.s : "is no address");
	text_free(&why);
	if (!is_backend_name(be->name)) {
		conf_load_error(r->ld, be->line, conf_key(path, key, "name"),
				"is no name; allowed are up to 255 bytes without spaces and control characters");
		rc = -1;
	}
	if (r->out->hash == CONF_HASH_MODULO && (be->weight < 1 || be->weight > 1)) {
		conf_load_error(r->ld, be->line, conf_key(path, key, "weight"),
				"has no effect with hash: modulo; allowed is 1, or give the backend more shards");
		rc = -1;
	}
	if (rc != 0)
		return -1;
	be->port = a.port;
	be->transport = a.transport;
	be->host = conf_mem_copy(a.host, strlen(a.host));
	if (be->host && !be->name[0]) {
		free(be->name);
		conf_backend_address(be, address, sizeof(address));
		be->name = conf_mem_copy(address, strlen(address));
	}
	if (be->host && be->name)
		return 0;
	r->ld->no_memory = true;
	return -1;
}

/* An address, or a map of options when `node` is one. Its index, or SIZE_MAX (said). */
static size_t read_remote(struct remotes *r, const char *address, const struct conf_node *node, int line,
			  const char *key)
{
	struct conf_backend be = {.line = line};
	struct conf_origin origin = {0};
	if (conf_object_init(CONF_SCOPE_BACKEND, &be) != 0) {
		r->ld->no_memory = true;
		goto out;
	}
	if (node) {
		size_t errors = r->ld->n_errors + r->ld->n_held_back;
		conf_read_object(r->ld, node, line, CONF_SCOPE_BACKEND, key, &be, &origin);
		if (r->ld->n_errors + r->ld->n_held_back != errors)
			goto out;
	} else if (conf_value_parse(&conf_rows[ROW_BACKEND_address], address, &be.address, NULL) != 0) {
		r->ld->no_memory = true;
		goto out;
	}
	if (finish(r, &be, key) == 0)
		return add(r, &be);
out:
	free(be.host);
	conf_object_fini(CONF_SCOPE_BACKEND, &be);
	return SIZE_MAX;
}

static size_t read_item(struct remotes *r, const struct conf_node *item, const char *key)
{
	if (item->kind == CONF_NODE_LIST || (item->kind == CONF_NODE_SCALAR && !*item->text)) {
		conf_load_error(r->ld, item->line, key,
				"is no address; allowed is HOST:PORT or { address: HOST:PORT, … }");
		return SIZE_MAX;
	}
	if (item->kind == CONF_NODE_MAP)
		return read_remote(r, NULL, item, item->line, key);
	return read_remote(r, item->text, NULL, item->line, key);
}

/* Room for n shards. */
static bool make_shards(struct remotes *r, size_t n)
{
	r->out->shards = conf_mem_new(n * sizeof(*r->out->shards));
	if (!r->out->shards)
		r->ld->no_memory = true;
	else
		r->out->n_shards = n;
	return r->out->shards;
}

static void end(struct remotes *r)
{
	for (size_t i = 0; i < r->n_texts; i++)
		free(r->texts[i]);
	free(r->texts);
	conf_names_free(&r->seen);
}

void conf_read_backends(struct conf_load *ld, struct conf_output *out, const struct conf_node *node, const char *key)
{
	struct remotes r = {.ld = ld, .out = out, .key = key};
	struct conf_node *const one = (struct conf_node *)node;
	struct conf_node *const *items = node->kind == CONF_NODE_LIST ? node->items : &one;
	size_t n = node->kind == CONF_NODE_LIST ? node->n : 1;
	if (n == 0 || node->is_null) {
		conf_load_error(ld, node->line, key, "is an empty list; allowed is at least one HOST:PORT");
		return;
	}
	if (n > CONF_SHARDS_MAX) {
		conf_load_error(ld, node->line, key, "has %zu entries; allowed are at most %d", n, CONF_SHARDS_MAX);
		return;
	}
	if (out->hash == CONF_HASH_MODULO && !make_shards(&r, n))
		return;
	for (size_t i = 0; i < n && !ld->no_memory && !r.is_over; i++) {
		size_t index = read_item(&r, items[i], key);
		if (out->shards && index != SIZE_MAX)
			out->shards[i] = (uint16_t)index;
	}
	end(&r);
}

void conf_load_backends(struct conf_load *ld, struct conf_output *out, const struct conf_list *addresses)
{
	struct remotes r = {.ld = ld, .out = out, .key = "--backend"};
	for (size_t i = 0; i < addresses->n && !ld->no_memory && !r.is_over; i++)
		read_remote(&r, addresses->items[i], NULL, 0, r.key);
	end(&r);
}

/* -- shard_map -- */

/* The number of a shard, or CONF_SHARDS_MAX (said). */
static uint64_t shard_number(struct conf_load *ld, const struct conf_node *name, const char *key)
{
	uint64_t number = CONF_SHARDS_MAX;
	char path[CONF_KEY_SIZE];
	if (name->kind == CONF_NODE_SCALAR && text_parse_uint(name->text, &number) == 0 && number < CONF_SHARDS_MAX)
		return number;
	conf_load_error(ld, name->line, conf_key(path, key, name->text ? name->text : ""),
			"is no shard number; allowed are the whole numbers from 0 to %d", CONF_SHARDS_MAX - 1);
	return CONF_SHARDS_MAX;
}

/* One error for each run of numbers that is missing, at the entry behind it. */
static void check_holes(struct conf_load *ld, const struct conf_node *map, const size_t *at, size_t n, const char *key)
{
	size_t missing = 0;
	for (size_t i = 0; i < n; i++) {
		if (!at[i]) {
			missing++;
			continue;
		}
		int line = map->items[at[i] - 1]->line;
		if (missing == 1)
			conf_load_error(ld, line, key,
					"has no shard %zu; allowed are the numbers from 0 on without a hole", i - 1);
		else if (missing)
			conf_load_error(ld, line, key,
					"has no shards %zu to %zu; allowed are the numbers from 0 on without a hole",
					i - missing, i - 1);
		missing = 0;
	}
}

/* at[number] = 1 + the place of its key in the map; returns the highest number plus 1. */
static size_t read_numbers(struct conf_load *ld, const struct conf_node *map, const char *key, size_t *at)
{
	char path[CONF_KEY_SIZE];
	size_t n = 0;
	for (size_t i = 0; i < map->n; i += 2) {
		const struct conf_node *name = map->items[i];
		uint64_t number = shard_number(ld, name, key);
		if (number == CONF_SHARDS_MAX)
			continue;
		if (at[number]) {
			conf_load_error(ld, name->line, conf_key(path, key, name->text),
					"is a duplicate shard number, first in line %d; allowed is each number once",
					map->items[at[number] - 1]->line);
			continue;
		}
		at[number] = i + 1;
		n = MAX(n, (size_t)number + 1);
	}
	return n;
}

/* In the order of the numbers, so that the order of the backends does not depend on that of the lines. */
static void read_shards(struct remotes *r, const struct conf_node *map, const size_t *at, size_t n)
{
	char path[CONF_KEY_SIZE];
	for (size_t i = 0; i < n && !r->ld->no_memory && !r->is_over; i++) {
		if (!at[i])
			continue;
		const struct conf_node *name = map->items[at[i] - 1];
		size_t index = read_item(r, map->items[at[i]], conf_key(path, r->key, name->text));
		if (index != SIZE_MAX)
			r->out->shards[i] = (uint16_t)index;
	}
}

void conf_read_shard_map(struct conf_load *ld, struct conf_output *out, const struct conf_node *node, const char *key)
{
	struct remotes r = {.ld = ld, .out = out, .key = key};
	if (node->kind != CONF_NODE_MAP || node->n == 0) {
		conf_load_error(ld, node->line, key, "is no map; allowed is { 0: HOST:PORT, 1: HOST:PORT, … }");
		return;
	}
	if (node->n / 2 > CONF_SHARDS_MAX) {
		conf_load_error(ld, node->line, key, "has %zu entries; allowed are at most %d", node->n / 2,
				CONF_SHARDS_MAX);
		return;
	}
	if (ld->outputs[out->index].rows[ROW_OUTPUT_hash].is_given && out->hash != CONF_HASH_MODULO)
		conf_load_error(ld, ld->outputs[out->index].rows[ROW_OUTPUT_hash].line, key,
				"means hash: modulo; leave out hash, or use backends instead of shard_map");
	out->hash = CONF_HASH_MODULO;
	size_t *at = conf_mem_new(CONF_SHARDS_MAX * sizeof(*at));
	if (at) {
		size_t n = read_numbers(ld, node, key, at);
		check_holes(ld, node, at, n, key);
		if (n && make_shards(&r, n))
			read_shards(&r, node, at, n);
	} else {
		ld->no_memory = true;
	}
	free(at);
	end(&r);
}
