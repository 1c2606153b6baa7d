/* SPDX-License-Identifier: MIT
 *
 * kafka_handover: what a worker that leaves has not sent goes to its successor, in memfds of 16 MiB: also what librdkafka
 * has, but for what is on its way. The successor maps them and produces from there: nothing is copied, and its limits,
 * which the records have passed once, do not matter. Worker only. Never waits for a broker: a look-up of its name may hang.
 *
 *   | file_head | saved | origin, if it has one | bytes: key, value | saved | … each on 8 bytes, in order
 *
 * A file is sealed before it is sent, and one that is not sealed is not believed: nothing in it changes behind a check.
 */
#include "kafka.h"

#include <errno.h>
#include <fcntl.h>
#include <handover.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	FILE_VERSION = 1,
	FILE_BYTES = 16 << 20,      /* the successor takes one while the next is written */
	FILE_MAX_BYTES = 128 << 20, /* what is taken */
	HEAD_MAX_BYTES = 4096,
	STAGE_BYTES = 256 << 10,
	PURGE_US = 15000,
	SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE,
};

/* Later versions only add to the ends of both: how long they are is said. */
struct file_head {
	uint32_t version;
	uint16_t head_bytes, saved_bytes;
	uint64_t messages;
};

struct saved {
	uint32_t bytes; /* key and value */
	uint32_t hash;
	uint32_t records;
	uint16_t key_len;
	uint16_t flags;
};
enum { SAVED_ORIGIN = 1, SAVED_KEY_BEFORE = 2 };

static size_t aligned(size_t n)
{
	return (n + 7) & ~(size_t)7;
}

/* -- giving ------------------------------------------------------------------------------------------------------- */

/* What is written next: many small messages take one call. */
struct stage {
	int fd;
	int r;
	size_t used, written;
	char bytes[STAGE_BYTES];
};

static void stage_flush(struct stage *s)
{
	if (s->r == 0)
		s->r = proc_write(s->fd, s->bytes, s->used);
	s->used = 0;
}

static void stage_put(struct stage *s, const void *bytes, size_t len)
{
	size_t whole = aligned(len);
	s->written += whole;
	if (s->used + whole > sizeof(s->bytes))
		stage_flush(s);
	if (whole > sizeof(s->bytes)) { /* of a build with longer messages */
		s->r = s->r ? s->r : proc_write(s->fd, bytes, len);
		s->r = s->r ? s->r : proc_write(s->fd, "\0\0\0\0\0\0\0", whole - len);
		return;
	}
	memcpy(s->bytes + s->used, bytes, len);
	memset(s->bytes + s->used + len, 0, whole - len);
	s->used += whole;
}

static void stage_put_message(struct stage *s, const struct message *m)
{
	struct saved saved = {.bytes = m->len + (m->has_key_before ? m->key_len : 0u),
			      .hash = m->hash,
			      .records = m->records,
			      .key_len = m->key_len,
			      .flags = (uint16_t)((m->has_origin ? SAVED_ORIGIN : 0) |
						  (m->has_key_before ? SAVED_KEY_BEFORE : 0))};
	stage_put(s, &saved, sizeof(saved));
	if (m->has_origin)
		stage_put(s, message_origin(m), sizeof(struct origin));
	stage_put(s, message_bytes(m), saved.bytes);
}

/* The first waiting messages, as many as a file holds; they stay where they are. */
static int write_file(const struct kafka *k, int fd, uint64_t *messages, uint64_t *records)
{
	static struct stage s;
	struct file_head head = {
	    .version = FILE_VERSION, .head_bytes = sizeof(head), .saved_bytes = sizeof(struct saved)};
	s.fd = fd;
	s.r = 0;
	s.used = s.written = 0;
	stage_put(&s, &head, sizeof(head));
	*records = 0;
	for (const struct message *m = k->waiting.first; m != NULL && s.written < FILE_BYTES; m = m->next) {
		stage_put_message(&s, m);
		head.messages++;
		*records += m->records;
	}
	stage_flush(&s);
	*messages = head.messages;
	if (s.r == 0 && pwrite(fd, &head, sizeof(head), 0) != sizeof(head))
		return -EIO;
	if (s.r == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == -1)
		return -errno;
	return s.r;
}

/* One file. What could not be sent waits as before. */
static int give_some(struct kafka *k, int channel, uint64_t deadline_us)
{
	struct handover msg = {.version = HANDOVER_VERSION, .type = HANDOVER_RECORDS};
	uint64_t messages;
	int fd = memfd_create("millrace-records", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd == -1)
		return -errno;
	snprintf(msg.name, sizeof(msg.name), "%s", k->out->cf->name);
	int r = write_file(k, fd, &messages, &msg.records);
	if (r == 0)
		r = handover_send(channel, &msg, sizeof(msg), fd, deadline_us);
	close(fd);
	if (r != 0)
		return r;
	k->backend->passed_records += msg.records;
	k->stats->passed_messages += messages;
	while (messages-- > 0)
		message_free(&k->pool, message_list_take(&k->waiting));
	return 0;
}

void kafka_hand_over(struct output *out, int channel, uint64_t deadline_us)
{
	struct kafka *k = out->impl;
	int r = 0;
	k->now_us = clock_us();
	kafka_end_all(k);
	kafka_probe_unpark(k);
	/* what waits for another attempt comes, too, and is unconfirmed; what comes later is sent from here */
	if (k->producer != NULL && k->producer->flight_messages > 0)
		producer_purge(k->producer, k->now_us + PURGE_US);
	message_list_prepend(&k->waiting, &k->back);
	message_list_prepend(&k->waiting, &k->refused);
	while (r == 0 && k->waiting.first != NULL)
		r = clock_us() < deadline_us ? give_some(k, channel, deadline_us) : -ETIMEDOUT;
	if (r != 0)
		log_warn("output \"%s\": cannot hand %llu records to the next worker: %s; sending them from here",
			 out->cf->name, (unsigned long long)k->waiting.records, strerror(-r));
	kafka_after_event(k);
}

_Static_assert(FILE_MAX_BYTES / sizeof(struct saved) * sizeof(struct taken_message) < MESSAGE_PLACE_MAX,
	       "a message is too far from its table");

/* -- taking ------------------------------------------------------------------------------------------------------- */

/* NULL: it is none, or memory is short. */
static struct taken *taken_map(int fd)
{
	struct stat sb;
	struct file_head head;
	int seals = fd != -1 ? fcntl(fd, F_GET_SEALS) : -1;
	if (seals == -1 || (~seals & (F_SEAL_SHRINK | F_SEAL_WRITE)) != 0 || fstat(fd, &sb) == -1 ||
	    sb.st_size < (off_t)sizeof(head) || sb.st_size > FILE_MAX_BYTES)
		return NULL;
	size_t size = (size_t)sb.st_size;
	char *mapping = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (mapping == MAP_FAILED)
		return NULL;
	memcpy(&head, mapping, sizeof(head));
	uint64_t messages = MIN(head.messages, size / sizeof(struct saved));
	size_t table_bytes = sizeof(struct taken) + messages * sizeof(struct taken_message);
	struct taken *t = head.version == FILE_VERSION ? malloc(table_bytes) : NULL;
	if (t == NULL) {
		munmap(mapping, size);
		return NULL;
	}
	*t = (struct taken){.mapping = mapping, .mapping_bytes = size, .all_bytes = table_bytes + size};
	t->alive = (uint32_t)messages;
	return t;
}

/* The message at `at`, of which `left` bytes are there. Returns how many are its, or 0: it is none. */
static size_t read_message(struct taken_message *tm, const char *at, size_t left, size_t saved_bytes)
{
	struct saved s;
	if (left < saved_bytes)
		return 0;
	memcpy(&s, at, sizeof(s));
	size_t before = saved_bytes + (s.flags & SAVED_ORIGIN ? sizeof(struct origin) : 0);
	uint32_t key_before = s.flags & SAVED_KEY_BEFORE ? s.key_len : 0;
	if (before + s.bytes > left || s.key_len > s.bytes || key_before == s.bytes || s.records == 0 ||
	    s.records > UINT16_MAX)
		return 0;
	*tm = (struct taken_message){.bytes = at + before};
	tm->is.len = s.bytes - key_before;
	tm->is.hash = s.hash;
	tm->is.has_origin = (s.flags & SAVED_ORIGIN) != 0;
	tm->is.has_key_before = (s.flags & SAVED_KEY_BEFORE) != 0;
	tm->is.is_taken = true;
	tm->is.records = (uint16_t)s.records;
	tm->is.key_len = s.key_len;
	return MIN(aligned(before + s.bytes), left);
}

/* Its messages wait. Returns how many they are: up to the first that is none. */
static uint32_t taken_read(struct kafka *k, struct taken *t)
{
	struct file_head head;
	memcpy(&head, t->mapping, sizeof(head));
	size_t at = head.head_bytes, n, size = t->mapping_bytes;
	bool is_sound = head.saved_bytes >= sizeof(struct saved) && head.saved_bytes <= HEAD_MAX_BYTES &&
			head.saved_bytes % 8 == 0 && at >= sizeof(head) && at <= size && at % 8 == 0;
	uint32_t i;
	for (i = 0; is_sound && i < t->alive; i++, at += n) {
		struct message *m = &t->messages[i].is;
		n = read_message(&t->messages[i], t->mapping + at, size - at, head.saved_bytes);
		if (n == 0)
			break;
		m->place = (uint32_t)((char *)m - (char *)t) & MESSAGE_PLACE_MAX;
		message_list_add(&k->waiting, m);
	}
	return i;
}

/* Records of a file that cannot be taken over, as far as is known. */
static void count_lost(struct kafka *k, uint64_t records)
{
	uint64_t held;
	k->backend->taken_over_records += records;
	k->backend->dropped_memory_records += records;
	if (log_limit_pass(&k->log_limits[4], clock_us(), 5000, &held))
		log_error("output \"%s\": %llu records of the worker before are lost: no memory or descriptor to take "
			  "them over",
			  k->out->cf->name, (unsigned long long)records);
}

void kafka_take_over(struct output *out, const struct handover *msg, size_t len, int fd)
{
	struct kafka *k = out->impl;
	uint64_t before = k->waiting.records;
	struct taken *t = msg->type == HANDOVER_RECORDS ? taken_map(fd) : NULL;
	(void)len;
	if (t != NULL) {
		k->pool.outside_bytes += t->all_bytes;
		LIST_INSERT_HEAD(&k->taken, t, next);
		t->alive = taken_read(k, t);
		k->stats->taken_over_messages += t->alive;
		if (t->alive == 0)
			taken_free(&k->pool, t);
	}
	uint64_t records = k->waiting.records - before;
	k->backend->taken_over_records += records;
	/* each has a byte at least: more is not believed */
	if (records < msg->records)
		count_lost(k, MIN(msg->records - records, FILE_MAX_BYTES));
	if (fd != -1)
		close(fd);
	kafka_account(k);
}
