/* SPDX-License-Identifier: MIT
 *
 * Synthetic statsd lines. Without numbers: a list of ready-made datagrams that look like an application's. With
 * numbers: "m.kKEY:NUMBER|TYPE", formatted as they are needed, from a table of ready-made keys and a decimal counter
 * that is kept as text. The key follows from the number (NUMBER * 2654435761 mod keys), so that a reader can verify it.
 */
#include <errno.h>
#include <string.h>

#include "replay.h"

enum {
	KEY_BYTES = 16, /* "m.k1234567:" */
	DIGITS = 20,
	TYPE_BYTES = 8,
	NUMBERED_BYTES = KEY_BYTES + DIGITS + TYPE_BYTES,
	LINE_BYTES = 128,
	TEMPLATES = 512,	    /* at least: as many as the floor programs use */
	TEMPLATES_BYTES = 64 << 20, /* at most */
};

static const uint64_t key_step = 2654435761; /* a prime: all keys come before one comes again */

struct replay_numbers {
	uint64_t next, keys;
	size_t payload_bytes; /* of a datagram; 1 for one line */
	struct {
		char text[KEY_BYTES - 1];
		unsigned char len;
	} * key;
	size_t n_types, type_at;
	struct {
		char text[TYPE_BYTES]; /* "|ms\n" */
		size_t len;
	} type[8];
	char digits[DIGITS]; /* of next, right-aligned */
	size_t digits_at;
	size_t slot_bytes;
	char *buf; /* REPLAY_BATCH slots */
};

uint64_t replay_numbers_next(const struct replay_source *src)
{
	return src->numbers ? src->numbers->next : 0;
}

static int numbers_init(struct replay_source *src, const struct replay_opts *o, struct err *err)
{
	struct replay_numbers *m = calloc(1, sizeof(*m));
	char text[32];
	size_t len;

	src->numbers = m;
	if (!m)
		return err_set(err, -ENOMEM, "out of memory");
	m->next = o->number_from;
	m->keys = o->keys;
	m->payload_bytes = o->one ? 1 : o->payload_bytes;
	m->slot_bytes = m->payload_bytes + NUMBERED_BYTES;
	m->buf = malloc(REPLAY_BATCH * m->slot_bytes + NUMBERED_BYTES);
	m->key = calloc(m->keys, sizeof(*m->key));
	if (!m->buf || !m->key)
		return err_set(err, -ENOMEM, "no memory for %llu keys", (unsigned long long)m->keys);
	for (uint64_t i = 0; i < m->keys; i++) {
		len = (size_t)snprintf(text, sizeof(text), "m.k%06llu:", (unsigned long long)i);
		memcpy(m->key[i].text, text, len);
		m->key[i].len = (unsigned char)len;
	}
	m->n_types = o->n_types;
	m->type_at = m->next % m->n_types;
	for (size_t i = 0; i < m->n_types; i++)
		m->type[i].len = (size_t)snprintf(m->type[i].text, TYPE_BYTES, "|%s\n", o->types[i]);
	len = (size_t)snprintf(text, sizeof(text), "%llu", (unsigned long long)m->next);
	m->digits_at = DIGITS - len;
	memcpy(m->digits + m->digits_at, text, len);
	return 0;
}

/* Writes up to NUMBERED_BYTES at to (copies of constant length are the fast ones); returns the line's length. */
static size_t number_write(struct replay_numbers *m, char *to)
{
	uint64_t key = m->next * key_step % m->keys;
	size_t len = m->key[key].len, digits = DIGITS - m->digits_at, at = DIGITS;

	memcpy(to, m->key[key].text, KEY_BYTES - 1);
	for (size_t i = 0; i < digits; i++)
		to[len + i] = m->digits[m->digits_at + i];
	len += digits;
	memcpy(to + len, m->type[m->type_at].text, TYPE_BYTES);
	len += m->type[m->type_at].len;
	m->next++;
	if (++m->type_at == m->n_types)
		m->type_at = 0;
	while (at > m->digits_at && m->digits[at - 1] == '9')
		m->digits[--at] = '0';
	if (at > m->digits_at)
		m->digits[at - 1]++;
	else if (m->digits_at)
		m->digits[--m->digits_at] = '1';
	return len;
}

size_t replay_numbers_take(struct replay_source *src, struct datagram *d, size_t max)
{
	struct replay_numbers *m = src->numbers;
	size_t n = 0;

	for (; n < MIN(max, (size_t)REPLAY_BATCH) && src->lines_left; n++) {
		char *to = m->buf + n * m->slot_bytes;
		size_t len = 0;
		uint32_t lines = 0;
		/* The longest line that the keys, the types and this number can make. */
		size_t longest = m->key[m->keys - 1].len + DIGITS - m->digits_at + 1 + 4;

		do {
			len += number_write(m, to + len);
			lines++;
			if (src->lines_left != UINT64_MAX)
				src->lines_left--;
		} while (len + longest <= m->payload_bytes && src->lines_left);
		d[n] = (struct datagram){.bytes = to, .len = (uint32_t)len, .lines = lines};
	}
	return n;
}

static size_t line_format(char line[LINE_BYTES], const struct replay_opts *o, uint64_t k)
{
	uint64_t key = k * key_step % o->keys;

	return (size_t)snprintf(line, LINE_BYTES, "app.web%03llu.request.latency.k%06llu:%llu|%s\n",
				(unsigned long long)(key % 200), (unsigned long long)key,
				(unsigned long long)(k % 1000), o->types[k % o->n_types]);
}

static int templates_init(struct replay_source *src, const struct replay_opts *o, struct err *err)
{
	char *buf = malloc(o->payload_bytes + LINE_BYTES), line[LINE_BYTES];
	uint64_t k = 0;
	int rc = buf ? 0 : -ENOMEM;

	/* Enough for each key to come; a list that is too long for the caches costs the sender, so no more than that.
	 */
	for (size_t i = 0; !rc && (i < TEMPLATES || k < o->keys) && src->arena.len < TEMPLATES_BYTES; i++) {
		size_t len = 0, line_len = line_format(line, o, k);

		do {
			memcpy(buf + len, line, line_len);
			len += line_len;
			line_len = line_format(line, o, ++k);
		} while (!o->one && len + line_len <= o->payload_bytes);
		rc = replay_list_add(src, o, buf, len, 0);
	}
	free(buf);
	if (rc)
		return err_set(err, rc, "no memory for the lines");
	for (size_t i = 0; i < src->n; i++)
		src->list[i].bytes = src->arena.s + (uintptr_t)src->list[i].bytes;
	src->passes_left = UINT64_MAX;
	return 0;
}

int replay_lines_init(struct replay_source *src, const struct replay_opts *o, struct err *err)
{
	return o->number ? numbers_init(src, o, err) : templates_init(src, o, err);
}

void replay_lines_fini(struct replay_source *src)
{
	if (!src->numbers)
		return;
	free(src->numbers->key);
	free(src->numbers->buf);
	free(src->numbers);
	src->numbers = NULL;
}
