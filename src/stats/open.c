/* SPDX-License-Identifier: MIT
 *
 * open: the counter pages of another process, by the descriptors that it gave. Nothing in them is trusted. Any process.
 */
#include "stats_private.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* The next file. */
static int file_open(struct stats *st, int fd, uint64_t at_least, struct err *err)
{
	struct stats_file *f = &st->files[st->n_files];
	struct stat sb;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals == -1 || !(seals & F_SEAL_SHRINK) || fstat(fd, &sb) == -1)
		return err_set(err, -EINVAL, "This is not the descriptor of counter pages: its size is not sealed.");
	if ((uint64_t)sb.st_size < at_least)
		return err_set(err, -EINVAL, "The counter pages are damaged: the file has only %lld bytes.",
			       (long long)sb.st_size);
	void *at = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return err_set(err, -errno, "Cannot map the counter pages: %s.", strerror(errno));
	*f = (struct stats_file){.at = at, .bytes = (uint64_t)sb.st_size, .fd = -1};
	st->n_files++;
	return 0;
}

static int main_open(struct stats *st, int fd, struct err *err)
{
	int r = file_open(st, fd, sizeof(st->head), err);
	if (r != 0)
		return r;
	memcpy(&st->head, st->files[STATS_FILE_MAIN].at, sizeof(st->head));
	return stats_layout_check(&st->head, st->files[STATS_FILE_MAIN].bytes, err);
}

int stats_open_next(struct stats *st, int fd, struct err *err)
{
	enum stats_owner owner = st->n_files == STATS_FILE_MONITOR ? STATS_OWNER_MONITOR : STATS_OWNER_SLOT;
	if (st->n_files >= STATS_FILE_SLOTS + st->head.slots * STATS_SLOT_PAGES)
		return err_set(err, -EINVAL, "There are more counter pages than there can be.");
	return file_open(st, fd, st->head.pages[owner].page_bytes, err);
}

/* A row that is not possible (a counter outside of its block) becomes one without a name, which nobody finds. */
static void field_tame(struct stats_field *f, enum stats_scope scope, unsigned n_fields)
{
	f->name[sizeof(f->name) - 1] = '\0';
	f->help[sizeof(f->help) - 1] = '\0';
	f->scope = (uint8_t)scope;
	if (f->kind > STATS_KIND_STATE)
		f->kind = STATS_KIND_COUNTER;
	if (f->ledger > STATS_LEDGER_BETWEEN)
		f->ledger = STATS_LEDGER_NONE;
	if (f->index >= n_fields) {
		f->index = 0;
		f->name[0] = '\0';
		f->ledger = STATS_LEDGER_NONE;
		f->kind = STATS_KIND_COUNTER;
	}
}

static int tables_copy(struct stats *st, struct err *err)
{
	const struct stats_head *head = &st->head;
	st->fields = calloc(MAX(head->n_fields, 1), sizeof(*st->fields));
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		st->entries[s] = calloc(stats_listed_max(head, s), sizeof(struct stats_entry));
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		if (!st->fields || !st->entries[s])
			return err_set(err, -ENOMEM, "No memory to read the counter pages.");
	memcpy(st->fields, st->files[STATS_FILE_MAIN].at + head->fields_offset, head->n_fields * sizeof(*st->fields));
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		for (unsigned i = 0; i < head->scopes[s].n_fields; i++)
			field_tame(&st->fields[head->scopes[s].first_field + i], s, head->scopes[s].n_fields);
	uint64_t sequence;
	if (stats_directory_take(st, st->entries, st->n_entries, &sequence) != 0)
		return err_set(err, -EAGAIN, "The names of the counter pages change all the time; try again.");
	return 0;
}

struct stats *stats_open(const int *fds, size_t n, struct err *err)
{
	struct stats *st = calloc(1, sizeof(*st));
	if (!st) {
		err_set(err, -ENOMEM, "No memory to read the counter pages.");
		return NULL;
	}
	st->is_reader = true;
	int r = n <= STATS_FILE_MONITOR ? err_set(err, -EINVAL, "The counter pages are not complete.")
					: main_open(st, fds[0], err);
	for (size_t i = 1; r == 0 && i < n; i++)
		r = stats_open_next(st, fds[i], err);
	if (r == 0)
		r = tables_copy(st, err);
	if (r == 0)
		return st;
	stats_free(st);
	return NULL;
}

unsigned stats_fields(const struct stats *st, enum stats_scope scope, const struct stats_field **first)
{
	const struct stats_scope_layout *l = &st->head.scopes[scope];
	*first = st->fields + l->first_field;
	return l->n_fields;
}
