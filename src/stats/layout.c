/* SPDX-License-Identifier: MIT
 *
 * layout: where everything lies in the files of the counter pages, and whether a head that somebody else wrote can be
 * trusted. Any process, pure. The drawing is in stats_private.h.
 */
#include "stats_private.h"
#include <errno.h>
#include <string.h>

static uint64_t align(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static void scopes_make(struct stats_head *head)
{
	const uint32_t blocks[STATS_SCOPES][2] = {
		[STATS_WORKER] = {1, sizeof(struct stats_worker)},
		[STATS_INPUT] = {STATS_INPUTS_MAX, sizeof(struct stats_input)},
		[STATS_OUTPUT] = {STATS_OUTPUTS_MAX, sizeof(struct stats_output)},
		[STATS_BACKEND] = {STATS_BACKENDS_MAX, sizeof(struct stats_backend)},
		[STATS_KAFKA] = {STATS_OUTPUTS_MAX, sizeof(struct stats_kafka)},
		[STATS_BROKER] = {STATS_OUTPUTS_MAX * STATS_BROKERS_MAX, sizeof(struct stats_broker)},
		[STATS_MASTER] = {1, sizeof(struct stats_master)},
		[STATS_SLOT] = {STATS_SLOTS_MAX, sizeof(struct stats_slot)},
		[STATS_ENDPOINT] = {STATS_ENDPOINTS_MAX, sizeof(struct stats_endpoint)},
		[STATS_DEVICE] = {STATS_DEVICES_MAX, sizeof(struct stats_device)},
		[STATS_MONITOR] = {1, sizeof(struct stats_monitor)},
		[STATS_HOST] = {1, sizeof(struct stats_host)},
		[STATS_INTERFACE] = {STATS_INTERFACES_MAX, sizeof(struct stats_interface)},
		[STATS_PROCESS] = {STATS_SLOTS_MAX, sizeof(struct stats_process)},
		[STATS_PATH] = {STATS_PATH_MAX, sizeof(struct stats_path)},
	};
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		struct stats_scope_layout *l = &head->scopes[s];
		l->owner = stats_owner_of(s);
		struct stats_page_layout *page = &head->pages[l->owner];
		l->max_entries = blocks[s][0];
		l->block_bytes = (uint32_t)align(blocks[s][1], STATS_BLOCK_ALIGN);
		l->first_block = page->n_blocks;
		l->half_offset = page->half_bytes;
		page->n_blocks += l->max_entries;
		page->half_bytes += (uint64_t)l->max_entries * l->block_bytes;
		for (unsigned i = 0; i < stats_table_rows(); i++) {
			if (stats_table[i].scope != s)
				continue;
			l->first_field = l->n_fields++ ? l->first_field : i;
		}
	}
}

static void page_make(struct stats_page_layout *page)
{
	page->stamps_offset = align(sizeof(struct stats_page_head), STATS_BLOCK_ALIGN);
	page->published_offset = align(page->stamps_offset + page->n_blocks * sizeof(uint32_t), STATS_PAGE_ALIGN);
	page->half_bytes = align(page->half_bytes, STATS_PAGE_ALIGN);
	page->draft_offset = page->published_offset + page->half_bytes;
	page->page_bytes = page->draft_offset + page->half_bytes;
}

void stats_layout_make(struct stats_head *head, unsigned slots)
{
	*head = (struct stats_head){.format = STATS_FORMAT, .slots = slots, .n_scopes = STATS_SCOPES};
	memcpy(head->magic, STATS_MAGIC, sizeof(head->magic));
	head->n_fields = stats_table_rows();
	head->field_bytes = sizeof(struct stats_field);
	head->entry_bytes = sizeof(struct stats_entry);
	scopes_make(head);
	head->fields_offset = align(sizeof(*head), STATS_PAGE_ALIGN);
	head->directory_offset =
		align(head->fields_offset + head->n_fields * sizeof(struct stats_field), STATS_PAGE_ALIGN);
	uint64_t at = head->directory_offset + sizeof(struct stats_directory_head);
	for (unsigned s = 0; s < STATS_SCOPES; s++) {
		struct stats_scope_layout *l = &head->scopes[s];
		l->directory_offset = align(at, STATS_BLOCK_ALIGN);
		at = l->directory_offset + stats_listed_max(head, s) * sizeof(struct stats_entry);
	}
	for (unsigned i = 0; i < STATS_OWNERS; i++)
		page_make(&head->pages[i]);
	struct stats_page_layout *master = &head->pages[STATS_OWNER_MASTER];
	master->offset = align(at, STATS_PAGE_ALIGN);
	head->file_bytes = master->offset + master->page_bytes;
}

/* n things of `bytes` each from `at` on lie within `size`, and `at` is aligned for counters. */
static bool fits(uint64_t at, uint64_t n, uint64_t bytes, uint64_t size)
{
	uint64_t total;
	return at % sizeof(uint64_t) == 0 && !__builtin_mul_overflow(n, bytes, &total) &&
	       !__builtin_add_overflow(at, total, &total) && total <= size;
}

static bool page_fits(const struct stats_page_layout *page, uint64_t file_bytes)
{
	return page->page_bytes % sizeof(uint64_t) == 0 && fits(page->offset, 1, page->page_bytes, file_bytes) &&
	       page->page_bytes >= sizeof(struct stats_page_head) &&
	       fits(page->stamps_offset, page->n_blocks, sizeof(uint32_t), page->page_bytes) &&
	       fits(page->published_offset, 1, page->half_bytes, page->page_bytes) &&
	       fits(page->draft_offset, 1, page->half_bytes, page->page_bytes);
}

static bool scope_fits(const struct stats_head *head, enum stats_scope scope)
{
	const struct stats_scope_layout *l = &head->scopes[scope];
	const struct stats_page_layout *page = &head->pages[stats_owner_of(scope)];
	return l->owner == stats_owner_of(scope) && l->max_entries >= 1 &&
	       l->max_entries <= 4 * STATS_ENDPOINTS_MAX && l->block_bytes % sizeof(uint64_t) == 0 &&
	       (uint64_t)l->n_fields * sizeof(uint64_t) <= l->block_bytes &&
	       (uint64_t)l->first_field + l->n_fields <= head->n_fields &&
	       (uint64_t)l->first_block + l->max_entries <= page->n_blocks &&
	       fits(l->half_offset, l->max_entries, l->block_bytes, page->half_bytes) &&
	       fits(l->directory_offset, stats_listed_max(head, scope), sizeof(struct stats_entry), head->file_bytes);
}

int stats_layout_check(const struct stats_head *head, uint64_t file_bytes, struct err *err)
{
	if (memcmp(head->magic, STATS_MAGIC, sizeof(head->magic)) != 0)
		return err_set(err, -EINVAL, "These are not the counter pages of a millrace.");
	if (head->format != STATS_FORMAT || head->field_bytes != sizeof(struct stats_field) ||
	    head->entry_bytes != sizeof(struct stats_entry) || head->n_scopes != STATS_SCOPES)
		return err_set(err, -EINVAL,
			       "The counter pages have format %u, but this program reads format %d: use the "
			       "millracectl "
			       "that came with the millrace that runs.",
			       head->format, STATS_FORMAT);
	bool good = head->file_bytes == file_bytes && head->slots >= 1 && head->slots <= STATS_SLOTS_MAX &&
		    head->n_fields <= STATS_FIELDS_MAX &&
		    fits(head->fields_offset, head->n_fields, sizeof(struct stats_field), file_bytes) &&
		    fits(head->directory_offset, 1, sizeof(struct stats_directory_head), file_bytes);
	/* the others are files of their own, whose size is compared when they come */
	for (unsigned i = 0; i < STATS_OWNERS && good; i++)
		good = page_fits(&head->pages[i], i == STATS_OWNER_MASTER ? file_bytes : STATS_PAGE_BYTES_MAX) &&
		       (i == STATS_OWNER_MASTER || head->pages[i].offset == 0);
	for (unsigned s = 0; s < STATS_SCOPES && good; s++)
		good = scope_fits(head, s);
	return good ? 0 : err_set(err, -EINVAL, "The counter pages are damaged: an offset or a size is not possible.");
}
