/* SPDX-License-Identifier: MIT
 *
 * What all inputs share: the table of types (master), sources and the cutting of batches into lines (worker).
 * Reads no socket itself.
 */
#include <event.h>
#include <input.h>

#include "invalid.h"
#include "lines.h"
#include "types.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* -- the table --------------------------------------------------------------------------------------------------- */

/* What a connection's buffer holds of a sender that writes as fast as we let it. */
enum { STREAM_LATENCY_US = 2500 };

static const struct {
	enum conf_words word;
	const struct input_type *type;
} rows[] = {
    {CONF_INPUT_TYPE_UDP, &input_udp},
    {CONF_INPUT_TYPE_TCP, &input_tcp},
    {CONF_INPUT_TYPE_UNIX, &input_unix},
    {CONF_INPUT_TYPE_UNIXGRAM, &input_unixgram},
#ifdef MILLRACE_DPDK
    {CONF_INPUT_TYPE_CAPTURE, &input_dpdk}, /* first: it knows its devices */
#endif
#ifdef MILLRACE_PCAP
    {CONF_INPUT_TYPE_CAPTURE, &input_pcap},
#endif
    {CONF_INPUT_TYPE_FILE, &input_file},
};

/* Of a capture, the driver decides: the one that is named, or (auto) whose device it is. */
static bool reads(const struct input_type *type, const struct conf_input *cf, const char *device)
{
	if (cf->type != CONF_INPUT_TYPE_CAPTURE)
		return true;
	if (cf->port[0])
		return strcmp(type->name, conf_word(CONF_DRIVER_DPDK)) == 0;
	if (cf->driver != CONF_DRIVER_AUTO)
		return strcmp(type->name, conf_word(cf->driver)) == 0;
	return !type->is_mine || type->is_mine(cf, device);
}

static const struct input_type *type_of(const struct conf_input *cf, const char *device)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].word == cf->type && reads(rows[i].type, cf, device))
			return rows[i].type;
	return NULL;
}

struct input *input_named(struct input *inputs, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(inputs[i].cf->name, name) == 0)
			return &inputs[i];
	return NULL;
}

const struct input_type *input_type_of(const struct conf_input *cf)
{
	struct conf_list one;
	const struct conf_list *addresses = input_addresses(cf, &one);
	return type_of(cf, addresses->n > 0 ? addresses->items[0] : "");
}

const struct endpoint_ops *input_endpoint_ops(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(rows[i].type->name, name) == 0)
			return rows[i].type->endpoint;
	return NULL;
}

/* What all its devices are of decides about the options of an input. */
static size_t check_devices(const struct conf_input *cf, const char *path, struct text *errors)
{
	const struct conf_list *devices = &cf->interface;
	for (size_t i = 1; cf->type == CONF_INPUT_TYPE_CAPTURE && i < devices->n; i++)
		if (type_of(cf, devices->items[i]) != type_of(cf, devices->items[0])) {
			text_add(errors,
				 "%s:%d: inputs.%s.interface: \"%s\" and \"%s\" are not read by the same driver; "
				 "make an input for each, or name the driver\n",
				 path, devices->lines[i], cf->name, devices->items[0], devices->items[i]);
			return 1;
		}
	return 0;
}

size_t input_check(const struct conf *cf, struct text *errors)
{
	const char *path = cf->path ? cf->path : "command line";
	size_t n = 0;
	for (size_t i = 0; i < cf->n_inputs; i++) {
		const struct input_type *type = input_type_of(&cf->inputs[i]);
		n += check_devices(&cf->inputs[i], path, errors);
		if (type && type->endpoint->check)
			n += type->endpoint->check(&cf->inputs[i], path, errors);
	}
	return n;
}

#ifndef MILLRACE_DPDK
const char *input_dpdk_version(void)
{
	return NULL;
}
#endif

#ifndef MILLRACE_PCAP
const char *input_pcap_version(void)
{
	return NULL;
}
#endif

/* -- master ---------------------------------------------------------------------------------------------------- */

const struct conf_list *input_addresses(const struct conf_input *cf, struct conf_list *one)
{
	if (cf->type == CONF_INPUT_TYPE_FILE)
		return &cf->path;
	if (cf->type != CONF_INPUT_TYPE_CAPTURE)
		return &cf->bind;
	*one = (struct conf_list){.items = (char **)(uintptr_t)&cf->port, .n = 1};
	return cf->port[0] ? one : &cf->interface;
}

int input_make(struct input *in, const struct conf *cf, size_t place, unsigned n_slots, const struct input *like,
	       struct err *err)
{
	memset(in, 0, sizeof *in);
	in->conf = cf;
	in->cf = &cf->inputs[place];
	in->index = (unsigned)place;
	in->n_slots = n_slots;
	in->hold_us = in->cf->latency;
	in->type = input_type_of(in->cf);
	if (!in->type)
		return err_set(err, -ENOTSUP, "Input \"%s\": this millrace was built without driver %s.", in->cf->name,
			       conf_word(in->cf->driver));
	if (like) {
		in->index = like->index;
		in->is_done = like->is_done;
	}
	return 0;
}

int input_add_endpoint(struct input *in, struct endpoint *ep)
{
	struct endpoint **grown = realloc(in->endpoints, (in->n_endpoints + 1) * sizeof *grown);
	if (!grown)
		return -ENOMEM;
	in->endpoints = grown;
	grown[in->n_endpoints++] = ep;
	return 0;
}

void input_free(struct input *in)
{
	free(in->endpoints);
	memset(in, 0, sizeof *in);
}

uint64_t input_lost_at_death(struct input *in, struct receive_batch *r, struct stats_page *page, bool *is_believable)
{
	struct stats_input *st = stats_input(page, in->index);
	uint64_t lines = 0, datagrams = 0;
	if (!receive_unpublished(r, in->type->is_packets, in->wants_lines, &datagrams, &lines))
		*is_believable = false;
	lines += st->unfinished_lines;
	if (in->type->is_stream)
		datagrams = 0;
	if (in->type->is_packets) {
		st->received_packets += datagrams;
		st->lost_at_death_packets += datagrams;
	} else {
		st->received_datagrams += datagrams;
		st->lost_at_death_datagrams += datagrams;
	}
	st->received_lines += lines;
	st->lost_at_death_lines += lines;
	st->lost_at_death_connections += st->open_connections;
	st->unfinished_lines = st->open_connections = st->held = 0;
	receive_clear(r);
	stats_touch(page, STATS_INPUT, in->index);
	return lines + (in->wants_items ? datagrams : 0);
}

/* -- worker: sources ------------------------------------------------------------------------------------------- */

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct source *s = io->data;
	s->in->on_readable(s);
}

struct source *source_new(struct input *in, struct endpoint *ep, int fd, size_t size)
{
	struct source *s = calloc(1, size);
	if (!s) {
		if (fd != -1)
			close(fd);
		return NULL;
	}
	s->in = in;
	s->ep = ep;
	s->fd = fd;
	s->lent_by = -1;
	s->coalesce.latency_us = in->type->is_stream ? MIN(in->cf->latency, (uint64_t)STREAM_LATENCY_US) : in->cf->latency;
	s->coalesce.n_workers = in->type->is_stream ? 1 : in->n_slots;
	ev_io_init(&s->io, readable, fd, EV_READ);
	s->io.data = s;
	s->next = in->sources;
	s->prev = &in->sources;
	if (s->next)
		s->next->prev = &s->next;
	in->sources = s;
	in->on_source(s);
	return s;
}

void source_free(struct source *s)
{
	s->in->on_end(s);
	if (s->in->reading == s)
		s->in->reading = NULL;
	*s->prev = s->next;
	if (s->next)
		s->next->prev = s->prev;
	if (s->fd != -1)
		close(s->fd);
	free(s);
}

static bool note_invalid(void *arg, const char *line, size_t len)
{
	invalid_note(arg, line, len);
	return false;
}

int input_open(struct input *in, struct err *err)
{
	receive_clear(in->receive);
	in->receive->base = in->receive;
	in->stats = stats_input(in->page, in->index);
	in->batch.items = calloc(BATCH_ITEMS, sizeof *in->batch.items);
	in->batch.lines = calloc(BATCH_LINES, sizeof *in->batch.lines);
	in->lines = calloc(1, sizeof *in->lines);
	if (!in->batch.items || !in->batch.lines || !in->lines)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	in->lines->protocol = in->cf->protocol == CONF_PROTOCOL_CARBON ? LINES_CARBON : LINES_STATSD;
	in->lines->validate = in->cf->validate;
	in->lines->on_invalid = note_invalid;
	in->lines->on_invalid_arg = in;
	int r = in->type->open ? in->type->open(in, err) : 0;
	for (unsigned i = 0; r == 0 && in->type->open_endpoint && i < in->n_endpoints; i++)
		r = in->type->open_endpoint(in, in->endpoints[i], err);
	return r;
}

int input_adopt(struct input *in, int fd, unsigned lent_by)
{
	struct source *s = source_new(in, NULL, fd, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->lent_by = (int)lent_by;
	return 0;
}

void input_exclude(struct input *in, const char *brokers)
{
	for (unsigned i = 0; in->type->exclude && in->cf->exclude_own && i < in->n_endpoints; i++)
		in->type->exclude(in, in->endpoints[i], brokers);
}

void input_release(struct input *in, unsigned lent_by)
{
	for (struct source *s = in->sources, *next; s; s = next) {
		next = s->next;
		if (s->lent_by != (int)lent_by)
			continue;
		if (in->held && in->reading == s)
			s->ended = true; /* its batch is in hand: it ends when that is handed over */
		else
			in->type->end(s);
	}
}

/* -- worker: from items to lines ------------------------------------------------------------------------------- */

static void count_cut(struct input *in)
{
	struct lines_counts *c = &in->lines->counts;
	struct stats_input *st = in->stats;
	st->received_lines += c->received;
	st->invalid_lines += c->invalid;
	st->empty_lines += c->empty;
	st->command_lines += c->commands;
	if (in->discarding)
		st->dropped_shutdown_lines += c->to_outputs;
	else
		st->to_outputs_lines += c->to_outputs;
	*c = (struct lines_counts){0};
}

unsigned input_cut(struct input *in)
{
	struct batch *b = &in->batch;
	size_t n = 0;
	while (n < BATCH_LINES && in->cut_item < b->n_items) {
		char *begin = b->items[in->cut_item].bytes;
		size_t len = b->items[in->cut_item].len;
		if (in->type->is_packets) {
			begin = in->receive->iovecs[in->cut_item].iov_base;
			len = in->receive->iovecs[in->cut_item].iov_len;
		}
		char *at = in->cut_at ? in->cut_at : begin, *end = begin + len;
		bool is_last = !in->type->is_stream || in->reading->ended;
		n += lines_cut(in->lines, &at, end, is_last, b->lines + n, BATCH_LINES - n);
		in->cut_at = at;
		if (n == BATCH_LINES && at < end)
			break;
		if (in->type->after)
			in->type->after(in->reading, at, (size_t)(end - at));
		in->cut_item++;
		in->cut_at = NULL;
	}
	count_cut(in);
	b->n_lines = in->discarding ? 0 : (unsigned)n;
	return (unsigned)n;
}

void input_published(struct input *in, bool batch_done)
{
	struct receive_batch *r = in->receive;
	if (!batch_done) {
		r->done = in->cut_item;
		r->done_bytes = 0;
		/* cut_at NULL: at the begin of an item, or behind the last of them; on a stream what was kept before lies
		 * before iov_base */
		if (in->cut_at && in->cut_at > (char *)r->iovecs[in->cut_item].iov_base)
			r->done_bytes = (size_t)(in->cut_at - (char *)r->iovecs[in->cut_item].iov_base);
		r->datagrams_counted = true;
		return;
	}
	for (unsigned i = 0; i < r->used; i++)
		r->messages[i].msg_len = 0;
	r->used = r->done = 0;
	r->done_bytes = 0;
	r->datagrams_counted = false;
	in->cut_item = 0;
	in->cut_at = NULL;
	in->batch.n_items = in->batch.n_lines = 0;
}
