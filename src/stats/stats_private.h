/* SPDX-License-Identifier: MIT
 *
 * The file of the counter pages. Every offset and size is in its head, so that a reader built from another counter.def
 * finds its way; STATS_FORMAT changes when one of these structs does.
 *
 *   file       head | field table | directory | slot page 0 … N-1 | master page | monitor page; each begins on 4 KiB
 *   directory  sequence, n[] | entries of WORKER | entries of INPUT | …                  written by the master
 *   page       sequence, used[] | stamps | published half | draft half                   written by its one writer
 *   half       blocks of the page's scopes, one array each; a block is 64-bit counters, filled up to 64 bytes
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
	STATS_FORMAT = 2,
	STATS_BLOCK_ALIGN = 64, /* a cache line: two blocks never share one */
	STATS_PAGE_ALIGN = 4096,
	STATS_FIELDS_MAX = 4096, /* what a reader accepts */
	STATS_FILE_SCOPES = 16,   /* length of the arrays below */
};
#define STATS_MAGIC "millrace"

/* Who writes a page, in the order of the file. */
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
	uint64_t first_offset; /* of the first page, in the file */
	uint64_t page_bytes;
	uint64_t stamps_offset, published_offset, draft_offset; /* in the page */
	uint64_t half_bytes;
	uint32_t n_pages, n_blocks;
};

struct stats_head {
	char magic[8];
	uint32_t format;
	uint32_t slots;
	uint64_t file_bytes;
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

struct stats {
	struct stats_head head; /* a copy: the file may be hostile and change after it was checked */
	char *file;
	int fd, reader_fd;          /* -1 of a reader */
	struct stats_field *fields; /* a copy, every string ends */
	struct stats_page *pages;   /* slots, master, monitor; NULL of a reader */
	struct stats_entry *entries[STATS_SCOPES];
	bool has_retired[STATS_SCOPES];
	unsigned n_entries[STATS_SCOPES]; /* of a reader: as they were when it was opened */
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

/* All pages are numbered through: slots, master, monitor. */
static inline unsigned stats_pages_n(const struct stats_head *head)
{
	return head->slots + 2;
}

static inline enum stats_owner stats_page_owner(const struct stats_head *head, unsigned page)
{
	return page < head->slots ? STATS_OWNER_SLOT : page == head->slots ? STATS_OWNER_MASTER : STATS_OWNER_MONITOR;
}

/* Where page number `page` begins in the file. */
static inline uint64_t stats_page_offset(const struct stats_head *head, unsigned page)
{
	const struct stats_page_layout *l = &head->pages[stats_page_owner(head, page)];
	return l->first_offset + (page < head->slots ? page : 0) * l->page_bytes;
}

/* Room in the directory: of WORKER the slots are listed, although a page has one block of it. */
static inline uint32_t stats_listed_max(const struct stats_head *head, enum stats_scope scope)
{
	return scope == STATS_WORKER ? head->slots : head->scopes[scope].max_entries;
}

/* Of what is below an output that output, of an ENDPOINT or DEVICE its input, else NULL. */
const struct stats_entry *stats_entry_parent(const struct stats_copy *c, enum stats_scope scope,
					     const struct stats_entry *e);
enum { STATS_BROKER_STATE_UP = 2 };

/* The counters of one block; NULL: out of range. */
const uint64_t *stats_copy_block(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index);

/* Prepares one page of a mapping for its writer. 0 or -ENOMEM. */
int stats_page_init(struct stats_page *p, const struct stats_head *head, char *page, enum stats_owner owner);
void stats_page_fini(struct stats_page *p);

/* Names the blocks of PATH. */
void stats_drops_name(struct stats *st);

/* Copies the directory under its sequence number into arrays of max_entries each. 0 or -EAGAIN. */
int stats_directory_take(const struct stats *st, struct stats_entry *to[STATS_SCOPES], unsigned n[STATS_SCOPES],
			 uint64_t *sequence);
/* The pause before the next try for a sequence number to hold still; false when it was the last. */
bool stats_pause(unsigned tries);

#endif
