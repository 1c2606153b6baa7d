/* SPDX-License-Identifier: MIT
 *
 * file: packets of pcap and pcapng files, from disk or standard input. The master lists and orders the files; worker 0
 * reads them, at the speed of the outputs. A file that is damaged is said and counted, and the next one is read. How
 * far the reading is lies in the receive batch: the successor of a killed worker goes on behind it (but not on standard
 * input, whose bytes are gone).
 */
#include "capture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <packet.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER_BYTES = 1 << 20 };
_Static_assert((int)BUFFER_BYTES >= (int)PACKET_READER_BUFFER_BYTES, "the buffer holds any packet");

struct one_file {
	char *path;
	uint64_t time_ns; /* of its first packet; UINT64_MAX: not known */
};

/* Of one path of an input: a file, or a folder's. */
struct files {
	struct one_file *list;
	size_t n, size;
};

/* Words of the receive batch: the file that is read, counted over all paths, and how many packets of it are given. */
enum { WORD_FILE, WORD_PACKETS };

struct file_source {
	struct capture_source cs;
	uint64_t *words;
	const char *path;  /* of the file that is read; NULL: none is left */
	int fd;            /* -1: the next one is still to be opened */
	uint64_t skip;     /* packets of this file that a predecessor gave */
	size_t begin, end; /* of the buffer: not used yet */
	bool is_eof;
	struct packet_reader reader;
	char buffer[BUFFER_BYTES];
};

/* Opened for reading; standard input is a copy. -1: errno. */
static int file_open_path(const char *path)
{
	return strcmp(path, "-") == 0 ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
}

/* -- master ---------------------------------------------------------------------------------------------------- */

static size_t file_check(const struct conf_input *cf, const char *path, struct text *errors)
{
	size_t wrong = 0;
	for (size_t i = 0; i < cf->path.n; i++) {
		const char *file = cf->path.items[i];
		char shown[300];
		if (strcmp(file, "-") == 0 || access(file, R_OK) == 0)
			continue;
		wrong++;
		text_add(errors, "%s:%d: inputs.%s.path: \"%s\" cannot be read: %s\n", path, cf->path.lines[i],
			 cf->name, text_escape(shown, sizeof shown, file, strlen(file)), strerror(errno));
	}
	return wrong;
}

static uint64_t first_time(const char *path)
{
	char *buffer = malloc(PACKET_READER_BUFFER_BYTES);
	struct packet_reader *r = malloc(sizeof *r);
	struct packet_record p;
	size_t used;
	uint64_t time_ns = UINT64_MAX;
	int fd = file_open_path(path);
	ssize_t n = buffer && r && fd != -1 ? read(fd, buffer, PACKET_READER_BUFFER_BYTES) : -1;
	if (n > 0) {
		packet_reader_init(r);
		if (packet_reader_next(r, buffer, (size_t)n, false, &used, &p) == PACKET_READ_PACKET)
			time_ns = p.time_ns;
	}
	if (fd != -1)
		close(fd);
	free(r);
	free(buffer);
	return time_ns;
}

static int add_file(struct files *files, const char *path, uint64_t time_ns)
{
	if (files->n == files->size) {
		size_t size = MAX(files->size * 2, 16);
		struct one_file *list = realloc(files->list, size * sizeof *list);
		if (!list)
			return -ENOMEM;
		files->list = list;
		files->size = size;
	}
	char *copy = strdup(path);
	if (!copy)
		return -ENOMEM;
	files->list[files->n++] = (struct one_file){copy, time_ns};
	return 0;
}

static int by_time(const void *a, const void *b)
{
	const struct one_file *x = a, *y = b;
	return x->time_ns != y->time_ns ? (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns)
					: strcmp(x->path, y->path);
}

static int add_directory(const struct endpoint *ep, struct files *files)
{
	const char *path = ep->name;
	DIR *d = opendir(path);
	struct dirent *entry;
	int r = d ? 0 : -errno;
	while (r == 0 && (entry = readdir(d)) != NULL) {
		struct stat st;
		char *file = NULL;
		if (entry->d_name[0] == '.')
			continue;
		if (asprintf(&file, "%s/%s", path, entry->d_name) == -1)
			r = -ENOMEM;
		else if (stat(file, &st) == 0 && S_ISREG(st.st_mode))
			r = add_file(files, file, first_time(file));
		free(file);
	}
	if (d)
		closedir(d);
	if (r == 0 && files->n == 0)
		log_warn("input \"%s\": there is no file in %s", ep->cf->name, path);
	if (files->n > 0)
		qsort(files->list, files->n, sizeof *files->list, by_time);
	return r;
}

static int file_bind(struct endpoint *ep, struct err *err)
{
	struct files *files = calloc(1, sizeof *files);
	const char *path = ep->name;
	struct stat st;
	int r = 0;
	if (!files)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	ep->impl = files;
	if (strcmp(path, "-") == 0)
		r = add_file(files, path, 0);
	else if (stat(path, &st) == -1 || access(path, R_OK) == -1)
		r = -errno;
	else
		r = S_ISDIR(st.st_mode) ? add_directory(ep, files) : add_file(files, path, 0);
	return r == 0 ? 0 : err_set(err, r, "Input \"%s\": cannot read %s: %s.", ep->cf->name, path, strerror(-r));
}

static void file_unbind(struct endpoint *ep)
{
	struct files *files = ep->impl;
	if (!files)
		return;
	for (size_t i = 0; i < files->n; i++)
		free(files->list[i].path);
	free(files->list);
	free(files);
	ep->impl = NULL;
}

static void file_keep(struct endpoint *ep, unsigned slot, int *keep, size_t *n)
{
	(void)ep, (void)slot, (void)keep, (void)n; /* worker 0 opens the files; standard input stays open by itself */
}

/* -- worker 0 -------------------------------------------------------------------------------------------------- */

static int file_open(struct input *in, struct err *err)
{
	if (in->slot != 0)
		return 0;
	struct file_source *fs = (struct file_source *)source_new(in, NULL, -1, sizeof *fs);
	if (!fs)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	fs->fd = -1;
	fs->words = in->receive->words;
	fs->skip = fs->words[WORD_PACKETS];
	return 0;
}

static void damaged(struct file_source *fs, const char *path, const char *why)
{
	fs->cs.source.in->stats->damaged_files++;
	log_error("input \"%s\": %s: %s; %s left out", fs->cs.source.in->cf->name,
		  strcmp(path, "-") ? path : "standard input", why, fs->reader.offset ? "its rest is" : "it is");
}

static void next_file(struct file_source *fs)
{
	if (fs->fd != -1)
		close(fs->fd);
	fs->fd = -1;
	fs->begin = fs->end = fs->skip = 0;
	fs->is_eof = false;
	fs->words[WORD_PACKETS] = 0;
	fs->words[WORD_FILE]++;
}

static const char *path_of(const struct file_source *fs)
{
	const struct input *in = fs->cs.source.in;
	uint64_t n = fs->words[WORD_FILE];
	for (unsigned i = 0; i < in->n_endpoints; i++) {
		const struct files *files = in->endpoints[i]->impl;
		if (n < files->n)
			return files->list[n].path;
		n -= files->n;
	}
	return NULL;
}

/* The file that is to be read now is open. False: it cannot be, and is left out. */
static bool is_open(struct file_source *fs)
{
	const char *path = fs->path;
	if (fs->fd != -1)
		return true;
	packet_reader_init(&fs->reader);
	if (fs->skip && strcmp(path, "-") == 0) {
		damaged(fs, path, "the worker that read it was killed");
		return false;
	}
	fs->fd = file_open_path(path);
	if (fs->fd == -1)
		damaged(fs, path, strerror(errno));
	return fs->fd != -1;
}

/* More bytes behind those that are left. False: there are none now. */
static bool fill(struct file_source *fs)
{
	struct pollfd p = {.fd = fs->fd, .events = POLLIN};
	memmove(fs->buffer, fs->buffer + fs->begin, fs->end - fs->begin);
	fs->end -= fs->begin;
	fs->begin = 0;
	if (poll(&p, 1, 0) != 1) /* a pipe whose writer takes its time */
		return false;
	ssize_t n = read(fs->fd, fs->buffer + fs->end, sizeof fs->buffer - fs->end);
	if (n > 0)
		fs->end += (size_t)n;
	fs->is_eof = n == 0 || (n == -1 && errno != EINTR && errno != EAGAIN);
	return n != -1 || fs->is_eof;
}

enum step { STEP_ON, STEP_NEXT_FILE, STEP_WAIT };

static enum step read_packet(struct file_source *fs)
{
	struct packet_record p;
	size_t used = 0;
	const char *path = fs->path;
	enum packet_read r =
	    packet_reader_next(&fs->reader, fs->buffer + fs->begin, fs->end - fs->begin, fs->is_eof, &used, &p);
	switch (r) {
	case PACKET_READ_PACKET:
		if (fs->skip > 0)
			fs->skip--;
		else
			capture_copy(&fs->cs, p.bytes, p.len, p.original_len, p.time_ns, p.link_type);
		fs->begin += used;
		return STEP_ON;
	case PACKET_READ_MORE:
		fs->begin += used;
		return fill(fs) ? STEP_ON : STEP_WAIT;
	case PACKET_READ_END:
		fs->cs.source.in->stats->finished_files++;
		return STEP_NEXT_FILE;
	case PACKET_READ_CUT:
	case PACKET_READ_ERROR:
		damaged(fs, path, fs->reader.error);
		return STEP_NEXT_FILE;
	}
	return STEP_NEXT_FILE;
}

/* Up to `max` packets of one file, until the receive batch is full. */
static enum step read_batch(struct file_source *fs, unsigned max)
{
	struct receive_batch *r = fs->cs.source.in->receive;
	const char *slab_end = r->slab[0] + sizeof r->slab;
	enum step step = STEP_ON;
	while (step == STEP_ON && fs->cs.n < max &&
	       slab_end - fs->cs.at >= (ptrdiff_t)PACKET_MAX_BYTES + 2 * BATCH_SLACK)
		step = read_packet(fs);
	return step;
}

static void read_files(struct capture_source *cs, unsigned max)
{
	struct file_source *fs = (struct file_source *)cs;
	struct source *s = &cs->source;
	while (cs->n == 0 && !s->drained) {
		fs->path = path_of(fs);
		bool is_over = s->in->draining || !fs->path;
		enum step step = STEP_WAIT;
		if (!is_over)
			step = is_open(fs) ? read_batch(fs, max) : STEP_NEXT_FILE;
		s->ended |= is_over;
		s->drained = step == STEP_WAIT;
		fs->words[WORD_PACKETS] += cs->n;
		if (step == STEP_NEXT_FILE)
			next_file(fs);
	}
}

static unsigned file_read(struct source *s, struct batch *b)
{
	return capture_read(s, b, read_files);
}

static void file_drain(struct input *in)
{
	in->draining = true;
	if (in->sources)
		log_warn("input \"%s\": stopped before the end of its files", in->cf->name);
}

static void file_end(struct source *s)
{
	struct file_source *fs = (struct file_source *)s;
	if (fs->fd != -1)
		close(fs->fd);
	source_free(s);
}

static const struct endpoint_ops endpoint_file = {
    .name = "file",
    .is_device = true,
    .check = file_check,
    .bind = file_bind,
    .unbind = file_unbind,
    .keep = file_keep,
};

const struct input_type input_file = {
    .name = "file",
    .is_packets = true,
    .is_finite = true,
    .is_fixed = true,
    .endpoint = &endpoint_file,
    .open = file_open,
    .drain = file_drain,
    .read = file_read,
    .end = file_end,
};
