/* SPDX-License-Identifier: MIT
 *
 * receive: the receive batches: what workers have read and not yet published. The master makes a file for each process
 * that a slot may have at a time, sparse, with room for a batch of each input; a worker keeps the mapping of its own.
 * What a dead worker left there is read as what comes from the network is: it may be anything.
 */
#include <input.h>

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

struct receive_file {
	struct receive_batch *batches; /* [STATS_INPUTS_MAX]; NULL: none, or given up */
	int fd;
};

struct receive {
	unsigned n_slots;
	struct receive_file files[STATS_SLOTS_MAX][STATS_SLOT_PAGES];
};

/* -- making ------------------------------------------------------------------------------------------------------ */

static const size_t file_bytes = STATS_INPUTS_MAX * sizeof(struct receive_batch);

static void file_close(struct receive_file *f)
{
	if (f->batches)
		munmap(f->batches, file_bytes);
	if (f->fd > 0)
		close(f->fd);
	*f = (struct receive_file){.fd = -1};
}

/* Touched only as far as datagrams are long and many. No dump: it is large, and traffic is nobody's to keep. */
static int file_make(struct receive_file *f, unsigned slot, unsigned which, struct err *err)
{
	char name[48];
	snprintf(name, sizeof(name), "millrace-receive-%u.%u", slot, which);
	f->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *m = MAP_FAILED;
	if (f->fd != -1 && ftruncate(f->fd, (off_t)file_bytes) == 0 && fchmod(f->fd, 0400) == 0 &&
	    fcntl(f->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		m = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
	if (m == MAP_FAILED)
		return err_set(err, -errno, "No memory for the receive buffers of worker %u: %s.", slot, strerror(errno));
	madvise(m, file_bytes, MADV_DONTDUMP);
	f->batches = m;
	return 0;
}

int receive_reach(struct receive *all, unsigned n_slots, struct err *err)
{
	BUG_ON(n_slots > STATS_SLOTS_MAX);
	for (; all->n_slots < n_slots; all->n_slots++) {
		struct receive_file *files = all->files[all->n_slots];
		int r = 0;
		for (unsigned which = 0; r == 0 && which < STATS_SLOT_PAGES; which++)
			r = file_make(&files[which], all->n_slots, which, err);
		for (unsigned which = 0; r != 0 && which < STATS_SLOT_PAGES; which++)
			file_close(&files[which]);
		if (r != 0)
			return r;
	}
	return 0;
}

struct receive *receive_new(unsigned n_slots, struct err *err)
{
	struct receive *all = calloc(1, sizeof(*all));
	if (all == NULL) {
		err_set(err, -ENOMEM, "No memory for the receive buffers.");
		return NULL;
	}
	if (receive_reach(all, n_slots, err) != 0) {
		receive_free(all);
		return NULL;
	}
	return all;
}

void receive_free(struct receive *all)
{
	for (unsigned slot = 0; all && slot < all->n_slots; slot++)
		for (unsigned which = 0; which < STATS_SLOT_PAGES; which++)
			file_close(&all->files[slot][which]);
	free(all);
}

struct receive_batch *receive_batch(struct receive *all, unsigned slot, unsigned which, unsigned input)
{
	BUG_ON(slot >= all->n_slots || which >= STATS_SLOT_PAGES || input >= STATS_INPUTS_MAX);
	return &all->files[slot][which].batches[input];
}

void receive_forget(struct receive *all, unsigned input)
{
	for (unsigned slot = 0; slot < all->n_slots; slot++)
		for (unsigned which = 0; which < STATS_SLOT_PAGES; which++)
			madvise(receive_batch(all, slot, which, input), sizeof(struct receive_batch), MADV_REMOVE);
}

int receive_fd(const struct receive *all, unsigned slot, unsigned which)
{
	return slot < all->n_slots && which < STATS_SLOT_PAGES ? all->files[slot][which].fd : -1;
}

void receive_child(struct receive *all, unsigned slot, unsigned which)
{
	for (unsigned s = 0; s < all->n_slots; s++)
		for (unsigned w = 0; w < STATS_SLOT_PAGES; w++) {
			struct receive_file *f = &all->files[s][w];
			if (s != slot || w != which)
				file_close(f);
			else
				close(f->fd); /* the mapping stays */
		}
}

/* -- of the program before us ---------------------------------------------------------------------------------------- */

struct receive_batch *receive_adopt(int fd, int64_t version)
{
	struct stat sb;
	void *m = MAP_FAILED;
	if (version == RECEIVE_VERSION && fstat(fd, &sb) == 0 && sb.st_size == (off_t)file_bytes)
		m = mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd != -1)
		close(fd);
	if (m == MAP_FAILED)
		return NULL;
	madvise(m, file_bytes, MADV_DONTDUMP);
	madvise(m, file_bytes, MADV_DONTFORK);
	return m;
}

void receive_let_go(struct receive_batch *batches)
{
	if (batches)
		munmap(batches, file_bytes);
}

/* -- after a death ----------------------------------------------------------------------------------------------- */

/* At most so many lines: one for each newline, and one for what follows the last. */
static uint64_t count_lines(const char *p, size_t len)
{
	uint64_t n = 1;
	for (size_t i = 0; i < len; i++)
		n += p[i] == '\n';
	return n;
}

/* Bytes [done, len) of what lies at `at` in the dead worker's memory: in the batch; or, a packet, in a device's memory,
 * which the kernel reads for us, since it need not be there. False: nowhere. */
static bool lines_at(const struct receive_batch *r, uintptr_t at, size_t done, size_t len, bool may_be_elsewhere,
		     uint64_t *lines)
{
	static char copy[2 * BATCH_ITEM_BYTES];
	uintptr_t offset = at - (uintptr_t)r->base;
	if (offset >= offsetof(struct receive_batch, slab) && offset <= sizeof(*r) && len <= sizeof(*r) - offset) {
		*lines += count_lines((const char *)r + offset + done, len - done);
		return true;
	}
	struct iovec to = {copy, len - done}, from = {(void *)(at + done), len - done};
	if (!may_be_elsewhere || process_vm_readv(getpid(), &to, 1, &from, 1, 0) != (ssize_t)to.iov_len)
		return false;
	*lines += count_lines(copy, to.iov_len);
	return true;
}

static bool item_unpublished(const struct receive_batch *r, unsigned i, size_t done, bool is_packets, bool with_lines,
			     uint64_t *items, uint64_t *lines)
{
	size_t len = r->messages[i].msg_len, cut = r->iovecs[i].iov_len;
	if (len == 0)
		return true;
	if (len > 2 * BATCH_ITEM_BYTES || (is_packets ? cut > len : len > cut))
		return false;
	++*items;
	if (is_packets)
		len = cut; /* of its payload, once that is found */
	if (done > len)
		return false;
	return !with_lines || done == len ||
	       lines_at(r, (uintptr_t)r->iovecs[i].iov_base, done, len, is_packets, lines);
}

bool receive_unpublished(const struct receive_batch *r, bool is_packets, bool with_lines, uint64_t *items, uint64_t *lines)
{
	unsigned used = r->used, first = r->done;
	bool is_good = used <= BATCH_ITEMS && first <= used;
	*items = *lines = 0;
	for (unsigned i = first; is_good && i < used; i++)
		is_good = item_unpublished(r, i, i == first ? r->done_bytes : 0, is_packets, with_lines, items, lines);
	if (r->datagrams_counted)
		*items = 0;
	if (!is_good)
		*items = *lines = 0;
	return is_good;
}

void receive_clear(struct receive_batch *r)
{
	r->used = r->done = r->datagrams_counted = 0;
	r->done_bytes = 0;
	for (unsigned i = 0; i < BATCH_ITEMS; i++)
		r->messages[i].msg_len = 0; /* the next worker may add packets one by one */
}
