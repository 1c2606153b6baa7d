/* SPDX-License-Identifier: MIT
 *
 * page: the writer's side of one counter page: draft blocks, the list of what was touched, publication, and taking over
 * the page of a dead worker, in which there may be anything. The worker, or the master when it is dead.
 */
#include "stats_private.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

int stats_page_init(struct stats_page *p, const struct stats_head *head, char *page, enum stats_owner owner)
{
	const struct stats_page_layout *l = &head->pages[owner];
	*p = (struct stats_page){.head = head, .owner = owner};
	p->shared = (struct stats_page_head *)page;
	p->stamps = (uint32_t *)(page + l->stamps_offset);
	p->published = page + l->published_offset;
	p->draft = page + l->draft_offset;
	p->is_touched = calloc(l->n_blocks, sizeof(*p->is_touched));
	p->touched = calloc(l->n_blocks, sizeof(*p->touched));
	return p->is_touched && p->touched ? 0 : -ENOMEM;
}

void stats_page_fini(struct stats_page *p)
{
	free(p->is_touched);
	free(p->touched);
	*p = (struct stats_page){0};
}

/* Every way to a block leads through here, so `used` covers it before its draft changes. */
static inline const struct stats_scope_layout *block_use(struct stats_page *p, enum stats_scope scope, unsigned index)
{
	const struct stats_scope_layout *l = &p->head->scopes[scope];
	BUG_ON(index >= l->max_entries || p->owner != l->owner);
	if (UNLIKELY(index >= p->shared->used[scope]))
		__atomic_store_n(&p->shared->used[scope], index + 1, __ATOMIC_RELEASE);
	return l;
}

unsigned stats_used(const struct stats_head *head, const struct stats_page_head *shared, enum stats_scope scope)
{
	return MIN(__atomic_load_n(&shared->used[scope], __ATOMIC_ACQUIRE), head->scopes[scope].max_entries);
}

unsigned stats_page_used(const struct stats_page *p, enum stats_scope scope)
{
	return p->head->scopes[scope].owner == p->owner ? stats_used(p->head, p->shared, scope) : 0;
}

static inline void *draft_block(struct stats_page *p, enum stats_scope scope, unsigned index)
{
	const struct stats_scope_layout *l = block_use(p, scope, index);
	return p->draft + l->half_offset + (size_t)index * l->block_bytes;
}

struct stats_worker *stats_worker(struct stats_page *p)
{
	return draft_block(p, STATS_WORKER, 0);
}

struct stats_input *stats_input(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_INPUT, index);
}

struct stats_output *stats_output(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_OUTPUT, index);
}

struct stats_backend *stats_backend(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_BACKEND, index);
}

struct stats_kafka *stats_kafka(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_KAFKA, index);
}

struct stats_broker *stats_broker(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_BROKER, index);
}

struct stats_master *stats_master(struct stats_page *p)
{
	return draft_block(p, STATS_MASTER, 0);
}

struct stats_slot *stats_slot(struct stats_page *p, unsigned slot)
{
	return draft_block(p, STATS_SLOT, slot);
}

struct stats_endpoint *stats_endpoint(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_ENDPOINT, index);
}

struct stats_device *stats_device(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_DEVICE, index);
}

struct stats_monitor *stats_monitor(struct stats_page *p)
{
	return draft_block(p, STATS_MONITOR, 0);
}

struct stats_host *stats_host(struct stats_page *p)
{
	return draft_block(p, STATS_HOST, 0);
}

struct stats_interface *stats_interface(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_INTERFACE, index);
}

struct stats_process *stats_process(struct stats_page *p, unsigned slot)
{
	return draft_block(p, STATS_PROCESS, slot);
}

struct stats_path *stats_path(struct stats_page *p, unsigned index)
{
	return draft_block(p, STATS_PATH, index);
}

void stats_touch(struct stats_page *p, enum stats_scope scope, unsigned index)
{
	const struct stats_scope_layout *l = block_use(p, scope, index);
	uint32_t block = l->first_block + index;
	if (p->is_touched[block])
		return;
	p->is_touched[block] = 1;
	struct stats_touched *t = &p->touched[p->n_touched++];
	t->block = block;
	t->offset = (uint32_t)(l->half_offset + (uint64_t)index * l->block_bytes);
	t->bytes = l->n_fields * (uint32_t)sizeof(uint64_t);
}

/* Readers that see a new counter see its stamp and the odd number too: on x86 stores stay in order, so the fence costs
 * nothing and only holds the compiler. memcpy, since a torn block is thrown away by the sequence number anyway. */
void stats_publish(struct stats_page *p)
{
	if (p->n_touched == 0)
		return;
	uint64_t sequence = p->shared->sequence;
	if (UNLIKELY(sequence & 1)) {
		log_error("a counter page was left in the middle of a publication: it is mended");
		sequence++;
	}
	__atomic_store_n(&p->shared->sequence, sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	for (const struct stats_touched *t = p->touched, *end = t + p->n_touched; t < end; t++) {
		p->is_touched[t->block] = 0;
		__atomic_store_n(&p->stamps[t->block], (uint32_t)sequence + 1, __ATOMIC_RELEASE);
		memcpy(p->published + t->offset, p->draft + t->offset, t->bytes);
	}
	p->n_touched = 0;
	__atomic_store_n(&p->shared->sequence, sequence + 2, __ATOMIC_RELEASE);
}

/* The list of the dead worker died with it, so every block in use is compared; equal ones are not written. */
static void make_equal(struct stats_page *p, bool publish, uint64_t sequence)
{
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		const struct stats_scope_layout *l = &p->head->scopes[s];
		for (uint32_t i = 0, n = stats_page_used(p, s); i < n; i++) {
			uint64_t offset = l->half_offset + i * (uint64_t)l->block_bytes;
			char *published = p->published + offset, *draft = p->draft + offset;
			if (memcmp(published, draft, l->block_bytes) == 0)
				continue;
			if (publish)
				p->stamps[l->first_block + i] = (uint32_t)sequence;
			memcpy(publish ? published : draft, publish ? draft : published, l->block_bytes);
		}
	}
}

static void forget_touched(struct stats_page *p)
{
	for (unsigned i = 0; i < p->n_touched; i++)
		p->is_touched[p->touched[i].block] = 0;
	p->n_touched = 0;
}

bool stats_adopt(struct stats_page *p)
{
	uint64_t sequence = __atomic_load_n(&p->shared->sequence, __ATOMIC_ACQUIRE);
	bool is_possible = true, cut_off = sequence & 1;
	forget_touched(p);
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		is_possible &= p->shared->used[s] <= stats_page_used(p, s);
		p->shared->used[s] = stats_page_used(p, s);
	}
	make_equal(p, cut_off, sequence);
	if (cut_off)
		__atomic_store_n(&p->shared->sequence, sequence + 1, __ATOMIC_RELEASE);
	return is_possible;
}

void stats_page_restore(struct stats_page *p, const char *half, const unsigned used[STATS_SCOPES])
{
	const struct stats_page_layout *l = &p->head->pages[p->owner];
	uint64_t sequence = p->shared->sequence | 1; /* readers wait */
	forget_touched(p);
	__atomic_store_n(&p->shared->sequence, sequence, __ATOMIC_RELEASE);
	if (madvise(p->published, 2 * l->half_bytes, MADV_REMOVE) == -1)
		memset(p->published, 0, 2 * l->half_bytes);
	for (uint32_t i = 0; i < l->n_blocks; i++)
		p->stamps[i] = (uint32_t)sequence;
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		const struct stats_scope_layout *sl = &p->head->scopes[s];
		p->shared->used[s] = sl->owner == p->owner ? used[s] : 0;
		memcpy(p->draft + sl->half_offset, half + sl->half_offset, (size_t)p->shared->used[s] * sl->block_bytes);
		memcpy(p->published + sl->half_offset, half + sl->half_offset,
		       (size_t)p->shared->used[s] * sl->block_bytes);
	}
	__atomic_store_n(&p->shared->sequence, sequence + 1, __ATOMIC_RELEASE);
}

/* -- the present --------------------------------------------------------------------------------------------------- */

/* Of the rows, what says how things are and is in no equation. */
static bool is_present(const struct stats_field *f)
{
	return (f->kind == STATS_KIND_GAUGE || f->kind == STATS_KIND_STATE) && f->ledger == STATS_LEDGER_NONE;
}

void stats_vacate(struct stats_page *p)
{
	for (unsigned k = 0; k < stats_table_rows(); k++) {
		const struct stats_field *f = &stats_table[k];
		for (unsigned i = 0, n = is_present(f) ? stats_page_used(p, f->scope) : 0; i < n; i++) {
			uint64_t *block = draft_block(p, f->scope, i);
			if (block[f->index] == 0)
				continue;
			block[f->index] = 0;
			stats_touch(p, f->scope, i);
		}
	}
	stats_publish(p);
}
