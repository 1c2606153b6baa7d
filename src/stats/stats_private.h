/* SPDX-License-Identifier: MIT
 *
 * The files of the counter pages. Every offset and size is in the head, so that a reader built from another counter.def
 * finds its way; STATS_FORMAT changes when one of these structs does.
 *
 *   main file     head | field table | directory | master page; each begins on 4 KiB
 *   monitor file  monitor page                            further files: one page each, two for each slot, in order
 *   directory     sequence, n[] | entries of WORKER | entries of INPUT | …               written by the master
 *   page          sequence, used[] | stamps | published half | draft half                written by its one writer
 *   half          blocks of the page's scopes, one array each; a block is 64-bit counters, filled up to 64 bytes
 *
 *              slot page:   WORKER 1, INPUT 64, OUTPUT 64, BACKEND 10,064, KAFKA 64, BROKER 1,024
 *              master page: MASTER 1, SLOT 256, ENDPOINT 16,384, DEVICE 512
 *              monitor page: MONITOR 1, HOST 1, INTERFACE 64, PROCESS 256, PATH 128
 *
 * sequence  odd while blocks go from the draft to the published half.
 * stamps    for each block, the low half of the odd sequence number of its last publication. A copy of 10,000 backends
 *           takes longer than the pause between two publications, so a reader whose copy was disturbed takes again
 *           only the blocks that are stamped later than the sequence it began with, until nothing disturbs it. The same
 *           makes a second copy cheap.
 * used      how many blocks of a scope the writer ever asked for. Nobody reads or compares behind them: reading a hole
 *           of a memfd through a mapping allocates it (mm/shmem.c, SGP_CACHE).
 */
#ifndef STATS_PRIVATE_H
#define STATS_PRIVATE_H

#include <stats.h>

enum {
	STATS_FORMAT = 3,
	STATS_BLOCK_ALIGN = 64, /* a cache line: two blocks never share one */
	STATS_PAGE_ALIGN = 4096,
	STATS_FIELDS_MAX = 4096, /* what a reader accepts … */
	STATS_PAGE_BYTES_MAX = 1 << 30,
	STATS_FILE_SCOPES = 16,   /* length of the arrays below */
	/* the files, by number */
	STATS_FILE_MAIN = 0,
	STATS_FILE_MONITOR = 1,
	STATS_FILE_SLOTS = 2, /* from here on those of the slots' pages */
	STATS_FILES_MAX = STATS_FILE_SLOTS + STATS_SLOTS_MAX * STATS_SLOT_PAGES,
};
#define STATS_MAGIC "millrace"

/* Who writes a page. */
enum stats_owner { STATS_OWNER_SLOT, STATS_OWNER_MASTER, STATS_OWNER_MONITOR, STATS_OWNERS };

struct stats_scope_layout {
	uint32_t first_field, n_fields; /* in the field table */
	uint32_t max_entries;
	uint32_t block_bytes;
	uint32_t first_block; /* its number within the page: index of the stamps */
	uint32_t owner;
	uint64_t half_offset;      /* of its first block, from the start of each half */
	uint64_t directory_offset; /* of its first entry, in the file */
};

struct stats_page_layout {
	uint64_t offset; /* of the page in its file */
	uint64_t page_bytes;
	uint64_t stamps_offset, published_offset, draft_offset; /* in the page */
	uint64_t half_bytes;
	uint32_t n_blocks, reserved;
};

struct stats_head {
	char magic[8];
	uint32_t format;
	uint32_t slots;
	uint64_t file_bytes; /* of the main file */
	uint64_t fields_offset, directory_offset;
	uint32_t n_fields, field_bytes, entry_bytes, n_scopes;
	struct stats_page_layout pages[STATS_OWNERS];
	struct stats_scope_layout scopes[STATS_FILE_SCOPES];
};

struct stats_directory_head {
	uint64_t sequence;
	uint32_t n[STATS_FILE_SCOPES];
};

struct stats_page_head {
	uint64_t sequence;
	uint32_t used[STATS_FILE_SCOPES];
};

/* What the list of touched blocks needs to copy one. */
struct stats_touched {
	uint32_t block, offset, bytes;
};

struct stats_page {
	const struct stats_head *head;
	struct stats_page_head *shared;
	uint32_t *stamps;
	char *published, *draft;
	enum stats_owner owner;
	uint8_t *is_touched; /* by block */
	struct stats_touched *touched;
	unsigned n_touched;
};

/* One file as this process has it. */
struct stats_file {
	char *at; /* NULL: not there */
	uint64_t bytes;
	int fd; /* opened for reading only; -1: of a reader, and of a child */
};

struct stats {
	struct stats_head head; /* a copy: the file may be hostile and change after it was checked */
	struct stats_file files[STATS_FILES_MAX];
	unsigned n_files;
	bool is_reader;
	struct stats_field *fields; /* of a reader a copy, every string ends */
	struct stats_page *pages;   /* by number; NULL of a reader */
	struct stats_entry *entries[STATS_SCOPES];
	bool has_retired[STATS_SCOPES];
	unsigned n_entries[STATS_SCOPES]; /* of a reader and a child: as they were at its begin */
};

/* The rows of counter.def, ordered by scope. */
extern const struct stats_field stats_table[];
unsigned stats_table_rows(void);

/* Fills in every offset for so many slots. */
void stats_layout_make(struct stats_head *head, unsigned slots);
/* 0 when each part that the head names lies within the file and the parts fit together, else -EINVAL with err. */
int stats_layout_check(const struct stats_head *head, uint64_t file_bytes, struct err *err);

/* Who writes the blocks of a scope. */
static inline enum stats_owner stats_owner_of(enum stats_scope scope)
{
	return scope >= STATS_MONITOR ? STATS_OWNER_MONITOR : scope >= STATS_MASTER ? STATS_OWNER_MASTER : STATS_OWNER_SLOT;
}

/* All pages are numbered through: two of each slot, the master's, the monitor's. */
static inline unsigned stats_pages_n(const struct stats_head *head)
{
	return head->slots * STATS_SLOT_PAGES + 2;
}

static inline enum stats_owner stats_page_owner(const struct stats_head *head, unsigned page)
{
	unsigned master = head->slots * STATS_SLOT_PAGES;
	return page < master ? STATS_OWNER_SLOT : page == master ? STATS_OWNER_MASTER : STATS_OWNER_MONITOR;
}

/* The page with the scope's blocks: which of a slot's two; of other scopes slot and which do not matter. */
static inline unsigned stats_page_number(const struct stats_head *head, enum stats_scope scope, unsigned slot,
					 unsigned which)
{
	unsigned owner = head->scopes[scope].owner;
	return owner == STATS_OWNER_SLOT ? slot * STATS_SLOT_PAGES + which
					 : head->slots * STATS_SLOT_PAGES + owner - STATS_OWNER_MASTER;
}

/* Where page number `page` begins; NULL: it is not there. */
static inline char *stats_page_at(const struct stats *st, unsigned page)
{
	enum stats_owner owner = stats_page_owner(&st->head, page);
	unsigned file = owner == STATS_OWNER_SLOT     ? STATS_FILE_SLOTS + page
			: owner == STATS_OWNER_MASTER ? STATS_FILE_MAIN
						      : STATS_FILE_MONITOR;
	return file < st->n_files ? st->files[file].at + st->head.pages[owner].offset : NULL;
}

/* Room in the directory: of WORKER the slots are listed, although a page has one block of it. */
static inline uint32_t stats_listed_max(const struct stats_head *head, enum stats_scope scope)
{
	return scope == STATS_WORKER ? head->slots : head->scopes[scope].max_entries;
}

/* The counters of one block of one page; NULL: the page has none there. */
const uint64_t *stats_copy_block(const struct stats_copy *c, unsigned page, enum stats_scope scope, unsigned index);
/* A copy of this page alone, as it is now. False: it does not hold still. Names are not looked at. */
bool stats_copy_take_page(struct stats_copy *c, unsigned page);
/* … all of it, next time, whatever its stamps say. */
void stats_copy_forget_page(struct stats_copy *c, unsigned page);
/* The directory alone. 0 or -EAGAIN. */
int stats_copy_take_names(struct stats_copy *c);
/* How many blocks of the scope the page has. */
unsigned stats_copy_used(const struct stats_copy *c, unsigned page, enum stats_scope scope);
/* The equations of one slot page, as stats_check. */
unsigned stats_check_page(const struct stats_copy *c, unsigned page, struct text *t);

/* The blocks of a scope that are in use, whatever the writer said. */
unsigned stats_used(const struct stats_head *head, const struct stats_page_head *shared, enum stats_scope scope);
/* Prepares one page of a mapping for its writer. 0 or -ENOMEM. */
int stats_page_init(struct stats_page *p, const struct stats_head *head, char *page, enum stats_owner owner);
void stats_page_fini(struct stats_page *p);
/* Master: all of the page is this from now on, published. */
void stats_page_restore(struct stats_page *p, const char *half, const unsigned used[STATS_SCOPES]);

/* Copies the directory under its sequence number into arrays of max_entries each. 0 or -EAGAIN. */
int stats_directory_take(const struct stats *st, struct stats_entry *to[STATS_SCOPES], unsigned n[STATS_SCOPES],
			 uint64_t *sequence);
/* The pause before the next try for a sequence number to hold still; false when it was the last. */
bool stats_pause(unsigned tries);

#endif
