/* SPDX-License-Identifier: MIT
 *
 * pages: the files of the counter pages: made and named by the master, and what a child of it may still write. A file for
 * each page but the master's: who has a writable page of a file reaches all that lies behind it (mremap). Sizes are
 * sealed, so that no mapping can be cut (SIGBUS). Readers of other processes are in open.c.
 */
#include "stats_private.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int file_fill(struct stats_file *f, int fd, struct err *err)
{
	char path[40];
	if (ftruncate(fd, (off_t)f->bytes) == -1 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == -1 || fchmod(fd, 0400) == -1)
		return err_set(err, -errno, "Cannot size the counter pages: %s.", strerror(errno));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd == -1)
		return err_set(err, -errno, "Cannot open %s for reading: %s. Is /proc mounted?", path, strerror(errno));
	void *at = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return err_set(err, -errno, "Cannot map %llu bytes of counter pages: %s. Use fewer workers.",
			       (unsigned long long)f->bytes, strerror(errno));
	f->at = at;
	return 0;
}

static void file_close(struct stats_file *f)
{
	if (f->at)
		munmap(f->at, f->bytes);
	if (f->fd != -1)
		close(f->fd);
	*f = (struct stats_file){.fd = -1};
}

/* The next file. Only its mapping can write: what stays open is opened for reading. */
static int file_make(struct stats *st, const char *name, uint64_t bytes, struct err *err)
{
	struct stats_file *f = &st->files[st->n_files];
	*f = (struct stats_file){.fd = -1, .bytes = bytes};
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd == -1)
		return err_set(err, -errno, "Cannot make the counter pages (memfd_create): %s.", strerror(errno));
	int r = file_fill(f, fd, err);
	close(fd);
	if (r == 0)
		st->n_files++;
	else
		file_close(f);
	return r;
}

static int page_make(struct stats *st, unsigned page, struct err *err)
{
	if (stats_page_init(&st->pages[page], &st->head, stats_page_at(st, page), stats_page_owner(&st->head, page)) == 0)
		return 0;
	return err_set(err, -ENOMEM, "No memory for the counter pages.");
}

static int slot_pages_make(struct stats *st, unsigned slot, struct err *err)
{
	char name[40];
	int r = 0;
	for (unsigned which = 0; r == 0 && which < STATS_SLOT_PAGES; which++) {
		snprintf(name, sizeof(name), "millrace-page-%u.%u", slot, which);
		r = file_make(st, name, st->head.pages[STATS_OWNER_SLOT].page_bytes, err);
		if (r == 0)
			r = page_make(st, slot * STATS_SLOT_PAGES + which, err);
	}
	for (unsigned which = 0; r != 0 && which < STATS_SLOT_PAGES; which++)
		stats_page_fini(&st->pages[slot * STATS_SLOT_PAGES + which]);
	while (r != 0 && st->n_files > STATS_FILE_SLOTS + slot * STATS_SLOT_PAGES)
		file_close(&st->files[--st->n_files]);
	return r;
}

int stats_add_slot(struct stats *st, struct err *err)
{
	unsigned slot = stats_slots(st);
	char name[16];
	if (slot >= st->head.slots)
		return err_set(err, -ENOSPC, "There are counter pages for %u workers; restart for more.", st->head.slots);
	int r = slot_pages_make(st, slot, err);
	if (r != 0)
		return r;
	snprintf(name, sizeof(name), "%u", slot);
	stats_name(st, STATS_WORKER, slot, name, 0, 0, "");
	stats_name(st, STATS_SLOT, slot, name, 0, 0, "");
	stats_name(st, STATS_PROCESS, slot, name, 0, 0, "");
	return 0;
}

static int files_make(struct stats *st, struct err *err)
{
	const struct stats_head *head = &st->head;
	st->pages = calloc(stats_pages_n(head), sizeof(*st->pages));
	if (!st->pages)
		return err_set(err, -ENOMEM, "No memory for the counter pages.");
	int r = file_make(st, "millrace-counters", head->file_bytes, err);
	if (r == 0)
		r = file_make(st, "millrace-page-monitor", head->pages[STATS_OWNER_MONITOR].page_bytes, err);
	for (unsigned i = stats_pages_n(head) - 2; r == 0 && i < stats_pages_n(head); i++)
		r = page_make(st, i, err);
	return r;
}

static void tables_make(struct stats *st)
{
	char *file = st->files[STATS_FILE_MAIN].at;
	memcpy(file + st->head.fields_offset, stats_table, stats_table_rows() * sizeof(stats_table[0]));
	memcpy(file, &st->head, sizeof(st->head));
	st->fields = (struct stats_field *)(file + st->head.fields_offset);
	for (unsigned s = 0; s < STATS_SCOPES; s++)
		st->entries[s] = (struct stats_entry *)(file + st->head.scopes[s].directory_offset);
	stats_name(st, STATS_MASTER, 0, "master", 0, 0, "");
	stats_name(st, STATS_MONITOR, 0, "monitor", 0, 0, "");
	stats_name(st, STATS_HOST, 0, "host", 0, 0, "");
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
	stats_layout_make(&st->head, room);
	int r = files_make(st, err);
	if (r == 0)
		tables_make(st);
	for (unsigned i = 0; r == 0 && i < slots; i++)
		r = stats_add_slot(st, err);
	if (r == 0)
		return st;
	stats_free(st);
	return NULL;
}

void stats_free(struct stats *st)
{
	if (!st)
		return;
	for (unsigned i = 0; st->pages && i < stats_pages_n(&st->head); i++)
		stats_page_fini(&st->pages[i]);
	free(st->pages);
	if (st->is_reader) { /* its tables are its own, the master's lie in the file */
		free(st->fields);
		for (unsigned s = 0; s < STATS_SCOPES; s++)
			free(st->entries[s]);
	}
	while (st->n_files > 0)
		file_close(&st->files[--st->n_files]);
	free(st);
}

/* -- children ------------------------------------------------------------------------------------------------------ */

static int child(struct stats *st, unsigned own, struct err *err)
{
	for (unsigned i = 0; i < st->n_files; i++) {
		struct stats_file *f = &st->files[i];
		if (i != own && mmap(f->at, f->bytes, PROT_READ, MAP_SHARED | MAP_FIXED, f->fd, 0) == MAP_FAILED)
			return err_set(err, -errno, "Cannot map the counter pages for reading: %s.", strerror(errno));
		close(f->fd);
		f->fd = -1;
	}
	return 0;
}

int stats_child_worker(struct stats *st, unsigned slot, unsigned which, struct err *err)
{
	BUG_ON(slot >= stats_slots(st) || which >= STATS_SLOT_PAGES);
	return child(st, STATS_FILE_SLOTS + slot * STATS_SLOT_PAGES + which, err);
}

int stats_child_monitor(struct stats *st, struct err *err)
{
	return child(st, STATS_FILE_MONITOR, err);
}

void stats_child_none(struct stats *st)
{
	for (unsigned i = 0; i < st->n_files; i++)
		munmap(st->files[i].at, st->files[i].bytes);
}

unsigned stats_files(const struct stats *st)
{
	return st->n_files;
}

int stats_reader_fd(const struct stats *st, unsigned file)
{
	return file < st->n_files ? st->files[file].fd : -1;
}

/* -- what there is ------------------------------------------------------------------------------------------------- */

struct stats_page *stats_slot_page(struct stats *st, unsigned slot, unsigned which)
{
	BUG_ON(slot >= stats_slots(st) || which >= STATS_SLOT_PAGES);
	return &st->pages[slot * STATS_SLOT_PAGES + which];
}

struct stats_page *stats_master_page(struct stats *st)
{
	return &st->pages[stats_page_number(&st->head, STATS_MASTER, 0, 0)];
}

struct stats_page *stats_monitor_page(struct stats *st)
{
	return &st->pages[stats_page_number(&st->head, STATS_MONITOR, 0, 0)];
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

