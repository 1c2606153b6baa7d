/* SPDX-License-Identifier: MIT
 *
 * shards: which backend owns a key's hash, as one array in shared memory. The master fills it at the start, a child
 * of it at a reload, and every worker reads it: a rendezvous of 1,000 backends takes 0.9 s, which is never in anybody's
 * loop. Nothing changes a map afterwards; a new configuration gets a new one, sent as a descriptor.
 */
#include <output.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t shards_bytes(uint32_t n, uint32_t n_backends)
{
	return sizeof(struct shards) + (n + 1) / 2 * 2 * sizeof(uint16_t) + n_backends * sizeof(uint32_t);
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

struct shards *shards_make(const struct conf_output *cf, const uint32_t *blocks, int *fd)
{
	bool modulo = cf->hash == CONF_HASH_MODULO;
	uint32_t n = modulo ? (uint32_t)cf->n_shards : HASH_SLOTS, n_backends = (uint32_t)cf->n_backends;
	size_t bytes = shards_bytes(n, n_backends);
	BUG_ON(n == 0 || n_backends == 0); /* the check of the configuration refuses both */
	*fd = memfd_create("millrace-shards", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *m = MAP_FAILED;
	if (*fd != -1 && ftruncate(*fd, (off_t)bytes) == 0 &&
	    fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	if (m == MAP_FAILED) {
		if (*fd != -1)
			close(*fd);
		*fd = -1;
		return NULL;
	}
	struct shards *s = m;
	*s = (struct shards){.modulo = modulo, .n = n, .n_backends = n_backends};
	for (uint32_t i = 0; blocks && i < n_backends; i++)
		shards_blocks(s)[i] = blocks[i];
	return s;
}

bool shards_fill(struct shards *s, const struct conf_output *cf)
{
	if (s->modulo)
		memcpy(s->map, cf->shards, s->n * sizeof(*s->map));
	else if (fill_rendezvous(s->map, cf) == -1)
		return false;
	/* Whoever writes here by mistake ends himself, not the routing of all workers. */
	mprotect(s, shards_bytes(s->n, s->n_backends), PROT_READ);
	return true;
}

size_t shards_size(const struct shards *s)
{
	return shards_bytes(s->n, s->n_backends);
}

bool shards_fill_from(struct shards *s, const void *bytes, size_t len)
{
	struct shards head;
	size_t map_bytes = s->n * sizeof(*s->map);
	if (len < sizeof(head))
		return false;
	memcpy(&head, bytes, sizeof(head));
	if (head.modulo != s->modulo || head.n != s->n || head.n_backends != s->n_backends || len != shards_size(s))
		return false;
	memcpy(s->map, (const char *)bytes + offsetof(struct shards, map), map_bytes);
	for (uint32_t i = 0; i < s->n; i++)
		if (s->map[i] >= s->n_backends)
			return false;
	mprotect(s, shards_size(s), PROT_READ);
	return true;
}

struct shards *shards_new(const struct conf_output *cf)
{
	int fd;
	struct shards *s = shards_make(cf, NULL, &fd);
	if (s != NULL && !shards_fill(s, cf)) {
		shards_free(s);
		s = NULL;
	}
	if (fd != -1)
		close(fd);
	return s;
}

void shards_free(struct shards *s)
{
	if (s != NULL)
		munmap(s, shards_bytes(s->n, s->n_backends));
}
