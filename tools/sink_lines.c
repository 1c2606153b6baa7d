/* SPDX-License-Identifier: MIT
 *
 * Bytes to lines: counts them, checks the number of each (bitmap of those seen) and writes them to --out. A numbered
 * line is what `millrace-replay --number` makes, "m.kKEY:NUMBER|TYPE", to the byte: a line that was cut or glued to
 * another one is malformed. Opens no socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sink.h"

struct sink_out {
	int fd;
	int error; /* errno of the first write that failed */
	size_t len;
	char buf[1 << 20];
};

int sink_lines_init(struct sink *s, const char *out_path, struct err *err)
{
	if (s->opts.number) {
		void *map = mmap(NULL, SINK_NUMBERS / 8, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (map == MAP_FAILED)
			return err_set(err, -errno, "cannot map the 512 MiB for --number: %s", strerror(errno));
		s->seen = map;
	}
	if (out_path) {
		s->out = calloc(1, sizeof(*s->out));
		if (!s->out)
			return err_set(err, -ENOMEM, "out of memory");
		s->out->fd = open(out_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
		if (s->out->fd == -1)
			return err_set(err, -errno, "cannot write \"%s\": %s", out_path, strerror(errno));
	}
	return 0;
}

void sink_lines_fini(struct sink *s)
{
	if (s->seen)
		munmap(s->seen, SINK_NUMBERS / 8);
	s->seen = NULL;
	if (s->out && s->out->fd != -1)
		close(s->out->fd);
	free(s->out);
	s->out = NULL;
}

bool sink_lines_wanted(const struct sink *s)
{
	return s->seen || s->out;
}

int sink_out_flush(struct sink *s)
{
	struct sink_out *o = s->out;
	size_t done = 0;

	if (!o)
		return 0;
	while (done < o->len && !o->error) {
		ssize_t r = write(o->fd, o->buf + done, o->len - done);

		if (r == -1 && errno != EINTR)
			o->error = errno;
		else if (r > 0)
			done += (size_t)r;
	}
	o->len = 0;
	return -o->error;
}

static void out_line(struct sink *s, const char *line, size_t len)
{
	struct sink_out *o = s->out;

	if (o->len + len + 1 > sizeof(o->buf))
		sink_out_flush(s);
	if (len >= sizeof(o->buf)) /* SINK_LINE_BYTES is the bound of what comes here */
		return;
	memcpy(o->buf + o->len, line, len);
	o->buf[o->len + len] = '\n';
	o->len += len + 1;
}

/* 16 lanes of 255 at most, then into 64 bits. Measured: 0.05 ns a byte, a byte loop 0.46. */
uint64_t sink_newlines(const char *bytes, size_t len)
{
	uint64_t n = 0;

	while (len >= 16) {
		unsigned char lanes __attribute__((vector_size(16))) = {0};
		size_t blocks = MIN(len / 16, (size_t)255);

		len -= blocks * 16;
		for (; blocks; blocks--, bytes += 16) {
			unsigned char v __attribute__((vector_size(16)));

			memcpy(&v, bytes, 16);
			lanes -= (unsigned char __attribute__((vector_size(16))))(v == '\n');
		}
		for (int i = 0; i < 16; i++)
			n += lanes[i];
	}
	for (; len; len--)
		n += *bytes++ == '\n';
	return n;
}

/* At most 19 digits, so that no number wraps; "007" is not how we write 7. Returns the byte after them, or NULL. */
static const char *parse_digits(const char *c, const char *end, uint64_t *n)
{
	const char *from = c;
	uint64_t v = 0;

	for (; c < end && (unsigned char)(*c - '0') < 10; c++)
		v = v * 10 + (unsigned char)(*c - '0');
	*n = v;
	return c == from || c - from > 19 ? NULL : c;
}

static bool type_is_known(const char *c, const char *end)
{
	if (end - c == 1)
		return *c == 'c' || *c == 'g' || *c == 'h' || *c == 's' || *c == 'd';
	return end - c == 2 && c[0] == 'm' && c[1] == 's';
}

static bool numbered_parse(const char *line, size_t len, uint64_t keys, uint64_t *number)
{
	const char *c = line + 3, *end = line + len, *value;
	uint64_t key, n;

	if (len < 13 || memcmp(line, "m.k", 3))
		return false;
	value = parse_digits(c, end, &key);
	if (!value || value - c < 6 || value == end || *value++ != ':')
		return false;
	c = parse_digits(value, end, &n);
	if (!c || (*value == '0' && c - value > 1) || c == end || *c++ != '|' || !type_is_known(c, end))
		return false;
	if (keys && key != n * UINT64_C(2654435761) % keys)
		return false;
	*number = n;
	return true;
}

bool sink_number_seen(const struct sink *s, uint64_t number)
{
	return s->seen[number / 64] >> (number % 64) & 1;
}

static void number_take(struct sink *s, struct port *p, uint64_t *next_number, uint64_t number)
{
	uint64_t bit;

	if (number + 1 < *next_number)
		p->counts.out_of_order++;
	else
		*next_number = number + 1;
	number -= s->opts.number_from; /* a lower one wraps, so that it is outside, too */
	if (number >= (s->opts.expect ? MIN(s->opts.expect, SINK_NUMBERS) : SINK_NUMBERS)) {
		p->counts.outside++;
		return;
	}
	bit = UINT64_C(1) << (number % 64);
	if (s->seen[number / 64] & bit) {
		p->counts.doubles++;
		return;
	}
	s->seen[number / 64] |= bit;
	p->counts.distinct++;
	s->any_number = true;
	if (number > s->max_number)
		s->max_number = number;
}

size_t sink_lines_take(struct sink *s, struct port *p, uint64_t *next_number, const char *bytes, size_t len, bool final)
{
	const char *c = bytes, *end = bytes + len;

	while (c < end) {
		const char *nl = memchr(c, '\n', (size_t)(end - c));
		uint64_t number;
		size_t line_len;

		if (!nl && !final)
			break;
		line_len = (size_t)((nl ? nl : end) - c);
		p->counts.lines++;
		if (s->out)
			out_line(s, c, line_len);
		if (s->seen) {
			if (numbered_parse(c, line_len, s->opts.keys, &number))
				number_take(s, p, next_number, number);
			else
				p->counts.malformed++;
		}
		c += line_len + (nl != NULL);
	}
	return (size_t)(c - bytes);
}
