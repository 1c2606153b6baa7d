/* SPDX-License-Identifier: MIT
 *
 * shards: which backend owns a key's hash, as one array in shared memory. The master fills it once, before fork, and
 * every worker reads it: a rendezvous of 1,000 backends takes 0.9 s, which is never in a worker's loop. Nothing changes
 * a map afterwards; a new configuration gets a new one.
 */
#include <output.h>

#include <string.h>
#include <sys/mman.h>

static size_t shards_bytes(uint32_t n)
{
	return sizeof(struct shards) + n * sizeof(uint16_t);
}

/* The members' names are the backends' names, or their addresses. */
static int fill_rendezvous(uint16_t *map, const struct conf_output *cf)
{
	enum { ADDRESS_BYTES = 300 };
	int r = -1;
	struct hash_member *members = calloc(cf->n_backends, sizeof(*members));
	char(*addresses)[ADDRESS_BYTES] = calloc(cf->n_backends, sizeof(*addresses));
	if (members == NULL || addresses == NULL)
		goto out;
	for (size_t i = 0; i < cf->n_backends; i++) {
		const struct conf_backend *be = &cf->backends[i];
		bool is_named = be->name != NULL && be->name[0] != '\0';
		members[i].name = is_named ? be->name : conf_backend_address(be, addresses[i], ADDRESS_BYTES);
		members[i].weight = be->weight;
	}
	hash_rendezvous(map, members, cf->n_backends);
	r = 0;
out:
	free(members);
	free(addresses);
	return r;
}

struct shards *shards_new(const struct conf_output *cf)
{
	bool modulo = cf->hash == CONF_HASH_MODULO;
	uint32_t n = modulo ? (uint32_t)cf->n_shards : HASH_SLOTS;
	BUG_ON(n == 0 || cf->n_backends == 0); /* the check of the configuration refuses both */
	struct shards *s = mmap(NULL, shards_bytes(n), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return NULL;
	s->modulo = modulo;
	s->n = n;
	if (modulo) {
		memcpy(s->map, cf->shards, n * sizeof(*s->map));
	} else if (fill_rendezvous(s->map, cf) == -1) {
		shards_free(s);
		return NULL;
	}
	/* Whoever writes here by mistake ends himself, not the routing of all workers. */
	mprotect(s, shards_bytes(n), PROT_READ);
	return s;
}

void shards_free(struct shards *s)
{
	if (s != NULL)
		munmap(s, shards_bytes(s->n));
}
