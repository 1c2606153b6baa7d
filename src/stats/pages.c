/* SPDX-License-Identifier: MIT
 *
 * pages: the file of the counter pages: made and named by the master before fork, mapped read only by readers of other
 * processes, who trust nothing in it. Its size is sealed, so that no mapping of it can be cut (SIGBUS).
 */
#include "stats_private.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The second descriptor is opened here and not later: the master may have given up the rights for it by then. */
static int file_make(struct stats *st, struct err *err)
{
	char path[40];
	st->fd = memfd_create("millrace-counters", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (st->fd == -1)
		return err_set(err, -errno, "Cannot make the counter pages (memfd_create): %s.", strerror(errno));
	if (ftruncate(st->fd, (off_t)st->head.file_bytes) == -1 ||
	    fcntl(st->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == -1 || fchmod(st->fd, 0400) == -1)
		return err_set(err, -errno, "Cannot size the counter pages: %s.", strerror(errno));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", st->fd);
	st->reader_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (st->reader_fd == -1)
		return err_set(err, -errno, "Cannot open %s for reading: %s. Is /proc mounted?", path, strerror(errno));
	st->file = mmap(NULL, st->head.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, st->fd, 0);
	if (st->file == MAP_FAILED) {
		st->file = NULL;
		return err_set(err, -errno, "Cannot map %llu bytes of counter pages: %s. Use fewer workers.",
			       (unsigned long long)st->head.file_bytes, strerror(errno));
	}
	return 0;
}

static int pages_make(struct stats *st, struct err *err)
{
	const struct stats_head *head = &st->head;
	unsigned n = stats_pages_n(head);
	st->pages = calloc(n, sizeof(*st->pages));
	if (!st->pages)
		return err_set(err, -ENOMEM, "No memory for the counter pages.");
	for (unsigned i = head->slots; i < n; i++) /* those of the slots come with them */
		if (stats_page_init(&st->pages[i], head, st->file + stats_page_offset(head, i),
				    stats_page_owner(head, i)) != 0)
			return err_set(err, -ENOMEM, "No memory for the counter pages.");
	return 0;
}

int stats_add_slot(struct stats *st, struct err *err)
{
	const struct stats_head *head = &st->head;
	unsigned slot = stats_slots(st);
	char name[16];
	if (slot >= head->slots)
		return err_set(err, -ENOSPC, "There are counter pages for %u workers; restart for more.", head->slots);
	if (stats_page_init(&st->pages[slot], head, st->file + stats_page_offset(head, slot), STATS_OWNER_SLOT) != 0)
		return err_set(err, -ENOMEM, "No memory for the counter page of worker %u.", slot);
	snprintf(name, sizeof(name), "%u", slot);
	stats_name(st, STATS_WORKER, slot, name, 0, 0, "");
	stats_name(st, STATS_SLOT, slot, name, 0, 0, "");
	stats_name(st, STATS_PROCESS, slot, name, 0, 0, "");
	return 0;
}

struct stats *stats_new(unsigned slots, unsigned room, struct err *err)
{
	room = MAX(slots, room);
	BUG_ON(slots < 1 || room > STATS_SLOTS_MAX);
	struct stats *st = calloc(1, sizeof(*st));
	if (!st) {
		err_set(err, -ENOMEM, "No memory for the counter pages.");
		return NULL;
	}
	st->fd = st->reader_fd = -1;
	stats_layout_make(&st->head, room);
	if (file_make(st, err) != 0 || pages_make(st, err) != 0) {
		stats_free(st);
		return NULL;
	}
	memcpy(st->file + st->head.fields_offset, stats_table, stats_table_rows() * sizeof(stats_table[0]));
	memcpy(st->file, &st->head, sizeof(st->head));
	st->fields = (struct stats_field *)(st->file + st->head.fields_offset);
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		st->entries[s] = (struct stats_entry *)(st->file + st->head.scopes[s].directory_offset);
	stats_name(st, STATS_MASTER, 0, "master", 0, 0, "");
	stats_name(st, STATS_MONITOR, 0, "monitor", 0, 0, "");
	stats_name(st, STATS_HOST, 0, "host", 0, 0, "");
	stats_drops_name(st);
	for (unsigned i = 0; i < slots; i++)
		if (stats_add_slot(st, err) != 0) {
			stats_free(st);
			return NULL;
		}
	return st;
}

void stats_free(struct stats *st)
{
	if (!st)
		return;
	for (unsigned i = 0; st->pages && i < stats_pages_n(&st->head); i++)
		stats_page_fini(&st->pages[i]);
	free(st->pages);
	if (st->fd == -1) { /* a reader's tables are its own, the master's lie in the file */
		free(st->fields);
		for (unsigned s = 0; s < STATS_SCOPES; s++)
			free(st->entries[s]);
	}
	if (st->file)
		munmap(st->file, st->head.file_bytes);
	if (st->fd != -1)
		close(st->fd);
	if (st->reader_fd != -1)
		close(st->reader_fd);
	free(st);
}

int stats_reader_fd(const struct stats *st, struct err *err)
{
	int fd = fcntl(st->reader_fd, F_DUPFD_CLOEXEC, 0);
	return fd == -1 ? err_set(err, -errno, "Cannot pass on the counter pages: %s.", strerror(errno)) : fd;
}

struct stats_page *stats_slot_page(struct stats *st, unsigned slot)
{
	BUG_ON(slot >= stats_slots(st));
	return &st->pages[slot];
}

struct stats_page *stats_master_page(struct stats *st)
{
	return &st->pages[st->head.slots];
}

struct stats_page *stats_monitor_page(struct stats *st)
{
	return &st->pages[st->head.slots + 1];
}

unsigned stats_entries_max(const struct stats *st, enum stats_scope scope)
{
	return stats_listed_max(&st->head, scope);
}

bool stats_scope_is_monitors(unsigned scope)
{
	return scope < STATS_SCOPES && stats_owner_of(scope) == STATS_OWNER_MONITOR;
}

unsigned stats_slots(const struct stats *st)
{
	return stats_entries(st, STATS_WORKER);
}

unsigned stats_room(const struct stats *st)
{
	return st->head.slots;
}

/* -- readers ----------------------------------------------------------------------------------------------------- */

static int file_open(struct stats *st, int fd, struct err *err)
{
	struct stat sb;
	int seals = fcntl(fd, F_GET_SEALS);
	if (seals == -1 || !(seals & F_SEAL_SHRINK) || fstat(fd, &sb) == -1)
		return err_set(err, -EINVAL, "This is not the descriptor of counter pages: its size is not sealed.");
	if ((uint64_t)sb.st_size < sizeof(st->head))
		return err_set(err, -EINVAL, "The counter pages are damaged: the file has only %lld bytes.",
			       (long long)sb.st_size);
	void *file = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		return err_set(err, -errno, "Cannot map the counter pages: %s.", strerror(errno));
	st->file = file;
	memcpy(&st->head, file, sizeof(st->head));
	int rc = stats_layout_check(&st->head, (uint64_t)sb.st_size, err);
	st->head.file_bytes = (uint64_t)sb.st_size; /* what stats_free unmaps */
	return rc;
}

/* A row that is not possible (a counter outside of its block) becomes one without a name, which nobody finds. */
static void field_tame(struct stats_field *f, enum stats_scope scope, unsigned n_fields)
{
	f->name[sizeof(f->name) - 1] = '\0';
	f->help[sizeof(f->help) - 1] = '\0';
	f->scope = (uint8_t)scope;
	if (f->kind > STATS_KIND_HINT)
		f->kind = STATS_KIND_COUNTER;
	if (f->ledger > STATS_LEDGER_PAYLOADS_OUT)
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
	memcpy(st->fields, st->file + head->fields_offset, head->n_fields * sizeof(*st->fields));
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		for (unsigned i = 0; i < head->scopes[s].n_fields; i++)
			field_tame(&st->fields[head->scopes[s].first_field + i], s, head->scopes[s].n_fields);
	uint64_t sequence;
	if (stats_directory_take(st, st->entries, st->n_entries, &sequence) != 0)
		return err_set(err, -EAGAIN, "The names of the counter pages change all the time; try again.");
	return 0;
}

struct stats *stats_open(int fd, struct err *err)
{
	struct stats *st = calloc(1, sizeof(*st));
	if (!st) {
		err_set(err, -ENOMEM, "No memory to read the counter pages.");
		return NULL;
	}
	st->fd = st->reader_fd = -1;
	if (file_open(st, fd, err) != 0 || tables_copy(st, err) != 0) {
		stats_free(st);
		return NULL;
	}
	return st;
}

unsigned stats_fields(const struct stats *st, enum stats_scope scope, const struct stats_field **first)
{
	const struct stats_scope_layout *l = &st->head.scopes[scope];
	*first = st->fields + l->first_field;
	return l->n_fields;
}
