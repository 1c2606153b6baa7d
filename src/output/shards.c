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

enum { ADDRESS_BYTES = 300 };

/* What rendezvous hashing knows of the backends: names or addresses, and weights. */
struct members {
	struct hash_member *list;
	char (*addresses)[ADDRESS_BYTES];
};

static bool members_init(struct members *m, const struct conf_output *cf)
{
	m->list = calloc(cf->n_backends, sizeof(*m->list));
	m->addresses = calloc(cf->n_backends, sizeof(*m->addresses));
	for (size_t i = 0; m->list != NULL && m->addresses != NULL && i < cf->n_backends; i++) {
		const struct conf_backend *be = &cf->backends[i];
		bool is_named = be->name != NULL && be->name[0] != '\0';
		m->list[i].name = is_named ? be->name : conf_backend_address(be, m->addresses[i], ADDRESS_BYTES);
		m->list[i].weight = be->weight;
	}
	return m->list != NULL && m->addresses != NULL;
}

static void members_fini(struct members *m)
{
	free(m->list);
	free(m->addresses);
}

/* conf_align put what stays first, in its old order. */
static void match(const struct members *was, size_t n_was, const struct members *now, size_t n, uint16_t *now_of)
{
	size_t k = 0;
	for (size_t i = 0; i < n_was; i++) {
		bool is_next = k < n && strcmp(was->list[i].name, now->list[k].name) == 0;
		bool is_same = is_next && was->list[i].weight == now->list[k].weight;
		now_of[i] = is_same ? (uint16_t)k : (uint16_t)HASH_GONE;
		k += is_next;
	}
}

static bool fill_rendezvous(uint16_t *map, const struct conf_output *cf, const struct shards *like,
			    const struct conf_output *like_cf)
{
	struct members now = {0}, was = {0};
	uint16_t *now_of = like != NULL ? calloc(like_cf->n_backends, sizeof(*now_of)) : NULL;
	bool done = members_init(&now, cf);
	if (done && now_of != NULL && members_init(&was, like_cf)) {
		match(&was, like_cf->n_backends, &now, cf->n_backends, now_of);
		hash_rendezvous_change(map, now.list, cf->n_backends, like->map, now_of, like_cf->n_backends);
	} else if (done) {
		hash_rendezvous(map, now.list, cf->n_backends);
	}
	members_fini(&now);
	members_fini(&was);
	free(now_of);
	return done;
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

bool shards_fill(struct shards *s, const struct conf_output *cf, const struct shards *like,
		 const struct conf_output *like_cf)
{
	if (like != NULL && like->modulo)
		like = NULL;
	if (s->modulo)
		memcpy(s->map, cf->shards, s->n * sizeof(*s->map));
	else if (!fill_rendezvous(s->map, cf, like, like_cf))
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
	if (s != NULL && !shards_fill(s, cf, NULL, NULL)) {
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
