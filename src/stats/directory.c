/* SPDX-License-Identifier: MIT
 *
 * directory: the names of inputs, outputs, backends and endpoints in the file. Written by the master, now and then;
 * read by anybody under the directory's own sequence number.
 */
#include "stats_private.h"
#include <errno.h>
#include <string.h>
#include <time.h>

/* The writer needs nanoseconds, unless it was taken off its CPU in the middle: a few spins, then sleeps of 50 µs (about
 * 100 µs with the kernel's timer slack, man 7 time), 200 ms together. */
bool stats_pause(unsigned tries)
{
	if (tries < 64) {
		for (int i = 0; i < 32; i++)
			cpu_relax();
		return true;
	}
	nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	return tries < 2000;
}

static struct stats_directory_head *directory_head(const struct stats *st)
{
	return (struct stats_directory_head *)(st->files[STATS_FILE_MAIN].at + st->head.directory_offset);
}

static void put(struct stats *st, enum stats_scope scope, unsigned index, const struct stats_entry *e)
{
	struct stats_directory_head *d = directory_head(st);
	uint64_t sequence = d->sequence;
	st->n_entries[scope] = MAX(st->n_entries[scope], index + 1);
	__atomic_store_n(&d->sequence, sequence + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	st->entries[scope][index] = *e;
	d->n[scope] = st->n_entries[scope];
	__atomic_store_n(&d->sequence, sequence + 2, __ATOMIC_RELEASE);
}

void stats_name(struct stats *st, enum stats_scope scope, unsigned index, const char *name, unsigned parent,
		uint64_t feeds, const char *unit)
{
	BUG_ON(index >= stats_listed_max(&st->head, scope));
	struct stats_entry e = {.parent = parent, .feeds = feeds, .used = name ? STATS_USED : STATS_UNUSED};
	snprintf(e.name, sizeof(e.name), "%s", name ? name : "");
	snprintf(e.unit, sizeof(e.unit), "%s", name && unit ? unit : "");
	put(st, scope, index, &e);
}

void stats_retire(struct stats *st, enum stats_scope scope, unsigned index)
{
	struct stats_entry e = st->entries[scope][index];
	e.used = STATS_RETIRED;
	e.feeds = 0;
	st->has_retired[scope] = true;
	put(st, scope, index, &e);
}

int stats_place(const struct stats *st, enum stats_scope scope, const char *name, unsigned parent, const char *unit)
{
	unsigned n = stats_entries(st, scope), sibling = n, unnamed = n;
	for (unsigned i = 0; st->has_retired[scope] && i < n; i++) {
		const struct stats_entry *e = stats_entry(st, scope, i);
		if (e->used == STATS_UNUSED)
			unnamed = MIN(unnamed, i);
		if (e->used != STATS_RETIRED || e->parent != parent || strcmp(e->unit, unit) != 0)
			continue;
		if (strcmp(e->name, name) == 0)
			return (int)i;
		sibling = MIN(sibling, i);
	}
	if (unnamed < n || n < stats_listed_max(&st->head, scope))
		return (int)unnamed;
	return sibling < n ? (int)sibling : -1;
}

static bool take_once(const struct stats *st, struct stats_entry *to[STATS_SCOPES], unsigned n[STATS_SCOPES],
		      uint64_t *sequence)
{
	const struct stats_directory_head *d = directory_head(st);
	uint64_t before = __atomic_load_n(&d->sequence, __ATOMIC_ACQUIRE);
	if (before & 1)
		return false;
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		n[s] = MIN(__atomic_load_n(&d->n[s], __ATOMIC_RELAXED), stats_listed_max(&st->head, s));
		const char *from = st->files[STATS_FILE_MAIN].at + st->head.scopes[s].directory_offset;
		memcpy(to[s], from, n[s] * sizeof(struct stats_entry));
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	*sequence = before;
	return __atomic_load_n(&d->sequence, __ATOMIC_RELAXED) == before;
}

/* What the other parts rely on: strings end, a parent exists. */
static void entries_tame(struct stats_entry *to[STATS_SCOPES], const unsigned n[STATS_SCOPES])
{
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		for (unsigned i = 0; i < n[s]; i++) {
			struct stats_entry *e = &to[s][i];
			e->name[sizeof(e->name) - 1] = '\0';
			e->unit[sizeof(e->unit) - 1] = '\0';
			if (!e->name[0])
				snprintf(e->name, sizeof(e->name), "#%u", i);
			bool is_of_input = s == STATS_ENDPOINT || s == STATS_DEVICE;
			if (e->parent >= (stats_scope_is_below_output(s) ? n[STATS_OUTPUT]
					  : is_of_input		       ? n[STATS_INPUT]
									 : 1))
				e->parent = 0;
		}
	}
}

int stats_directory_take(const struct stats *st, struct stats_entry *to[STATS_SCOPES], unsigned n[STATS_SCOPES],
			 uint64_t *sequence)
{
	for (unsigned tries = 0; !take_once(st, to, n, sequence); tries++)
		if (!stats_pause(tries))
			return -EAGAIN;
	entries_tame(to, n);
	return 0;
}

unsigned stats_entries(const struct stats *st, enum stats_scope scope)
{
	return st->n_entries[scope];
}

const struct stats_entry *stats_entry(const struct stats *st, enum stats_scope scope, unsigned index)
{
	BUG_ON(index >= stats_entries(st, scope));
	return &st->entries[scope][index];
}
