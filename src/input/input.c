/* SPDX-License-Identifier: MIT
 *
 * What all inputs share: the table of types, endpoints and hands (master), sources and the cutting of batches into
 * lines (worker). Reads no socket itself.
 */
#include <input.h>

#include "invalid.h"
#include "lines.h"
#include "types.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const struct input_type *input_type_of(enum conf_words word)
{
	switch ((int)word) {
	case CONF_INPUT_TYPE_UDP:
		return &input_udp;
	case CONF_INPUT_TYPE_TCP:
		return &input_tcp;
	case CONF_INPUT_TYPE_UNIX:
		return &input_unix;
	case CONF_INPUT_TYPE_UNIXGRAM:
		return &input_unixgram;
	case CONF_INPUT_TYPE_CAPTURE:
		return &input_capture;
	case CONF_INPUT_TYPE_FILE:
		return &input_file;
	default:
		return NULL;
	}
}

size_t input_check(const struct conf *cf, struct text *errors)
{
	size_t n = 0;
	for (size_t i = 0; i < cf->n_inputs; i++) {
		const struct input_type *type = input_type_of(cf->inputs[i].type);
		if (type && type->check)
			n += type->check(&cf->inputs[i], cf->path ? cf->path : "command line", errors);
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

static int hands_new(struct input *in, struct err *err)
{
	if (!in->hands)
		in->hands = calloc(STATS_SLOTS_MAX, sizeof *in->hands);
	if (!in->hands)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	for (unsigned slot = 0; slot < in->n_slots; slot++) {
		if (in->hands[slot])
			continue;
		/* touched only as far as datagrams are long and many */
		void *m = mmap(NULL, sizeof(struct hand), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (m == MAP_FAILED)
			return err_set(err, -errno,
				       "Cannot start: no memory for the receive buffers of input \"%s\": %s.",
				       in->cf->name, strerror(errno));
		in->hands[slot] = m;
	}
	return 0;
}

int input_endpoint_address(const struct input *in, struct endpoint *ep, struct err *err)
{
	char *host;
	uint16_t port;
	if (conf_split_address(ep->name, &host, &port) != 0)
		return err_set(err, -EINVAL, "Cannot listen on %s %s: this is no HOST:PORT.", in->type->name, ep->name);
	int r = net_address_listen(&ep->address, in->type->name, host, port, err);
	free(host);
	return r;
}

int input_adjust_mode(struct input *in, struct endpoint *ep, struct err *err)
{
	if (chmod(ep->name, (mode_t)strtoul(in->cf->mode, NULL, 8)) == 0)
		return 0;
	return err_set(err, -errno, "Cannot change the mode of %s: %s.", ep->name, strerror(errno));
}

void input_retire_path(struct input *in, struct endpoint *ep)
{
	(void)in;
	unlink(ep->name);
}

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
	in->type = input_type_of(in->cf->type);
	if (!in->type)
		return err_set(err, -ENOTSUP, "Input \"%s\": this millrace was built without type %s.", in->cf->name,
			       conf_word(in->cf->type));
	if (like) {
		in->index = like->index;
		in->hands = like->hands;
		in->is_done = like->is_done;
	}
	struct conf_list one;
	in->endpoints = calloc(MAX(input_addresses(in->cf, &one)->n, 1), sizeof *in->endpoints);
	if (!in->endpoints)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	return hands_new(in, err);
}

bool input_endpoint_room(struct endpoint *ep, unsigned n)
{
	n = MAX(MAX(n, ep->n_fds), 1); /* slots that end are still there */
	int *fds = realloc(ep->fds, n * sizeof *fds);
	if (fds)
		ep->fds = fds;
	uint32_t *blocks = realloc(ep->blocks, n * sizeof *blocks);
	if (blocks)
		ep->blocks = blocks;
	uint32_t *last = ep->last_dropped ? realloc(ep->last_dropped, n * sizeof *last) : NULL;
	if (last)
		ep->last_dropped = last;
	for (unsigned i = ep->n_fds; last && i < n; i++)
		last[i] = 0;
	return fds && blocks && (last || !ep->last_dropped);
}

int input_add_endpoint(struct input *in, const char *address, struct endpoint *from, int group, struct err *err)
{
	struct endpoint *ep = &in->endpoints[in->n_endpoints];
	if (from) {
		*ep = *from;
		from->is_moved = true;
		ep->moved_from = from;
		ep->had_fds = from->n_fds;
		in->n_endpoints++;
		snprintf(ep->name, sizeof ep->name, "%s", address);
		return 0;
	}
	memset(ep, 0, sizeof *ep);
	ep->group = group;
	if (!input_endpoint_room(ep, in->n_slots)) {
		free(ep->fds);
		free(ep->blocks);
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	}
	snprintf(ep->name, sizeof ep->name, "%s", address);
	in->n_endpoints++;
	return in->type->bind(in, ep, err);
}

void input_return_endpoint(struct endpoint *ep)
{
	struct endpoint *from = ep->moved_from;
	for (; ep->n_fds > ep->had_fds; ep->n_fds--) { /* sockets that had joined already */
		net_udp_leave(ep->fds[ep->n_fds - 1]);
		close(ep->fds[ep->n_fds - 1]);
	}
	memcpy(ep->name, from->name, sizeof ep->name);
	*from = *ep;
	from->is_moved = false;
	from->moved_from = NULL;
	memset(ep, 0, sizeof *ep);
}

struct endpoint *input_find_endpoint(struct input *old, const struct input *in, const char *address)
{
	struct endpoint like = {.n_fds = 0};
	snprintf(like.name, sizeof like.name, "%s", address);
	bool has_port = in->type == &input_udp || in->type == &input_tcp;
	if (old->type != in->type || (has_port && input_endpoint_address(in, &like, NULL) != 0))
		return NULL;
	for (unsigned i = 0; i < old->n_endpoints; i++) {
		struct endpoint *ep = &old->endpoints[i];
		bool is_same = has_port ? ep->address.len == like.address.len &&
					      memcmp(&ep->address.sa, &like.address.sa, like.address.len) == 0
					: strcmp(ep->name, address) == 0;
		if (is_same && !ep->is_moved)
			return ep;
	}
	return NULL;
}

int input_inherit(struct input *in, const char *type, unsigned n_endpoints)
{
	static const struct input_type *const types[] = {&input_udp, &input_tcp, &input_unix, &input_unixgram,
							 &input_capture};
	memset(in, 0, sizeof *in);
	for (size_t i = 0; i < ARRAY_LEN(types); i++)
		if (strcmp(types[i]->name, type) == 0)
			in->type = types[i];
	in->endpoints = calloc(MAX(n_endpoints, 1), sizeof *in->endpoints);
	return in->type && in->endpoints ? 0 : -ENOENT;
}

int input_inherit_fd(struct input *in, const char *name, const struct net_address *address, unsigned k, unsigned n,
		     int group, int fd)
{
	struct endpoint *ep = &in->endpoints[in->n_endpoints - (k > 0)];
	if (k == 0) {
		memset(ep, 0, sizeof *ep);
		snprintf(ep->name, sizeof ep->name, "%s", name);
		ep->address = *address;
		ep->group = group;
		if (!input_endpoint_room(ep, n))
			return -ENOMEM;
		/* the kernel counts its drops since the socket was made: all of them are in our first look */
		bool has_drops = !in->type->is_stream && !in->type->is_packets;
		ep->last_dropped = has_drops ? calloc(n, sizeof *ep->last_dropped) : NULL;
		if (has_drops && !ep->last_dropped)
			return -ENOMEM;
		in->n_endpoints++;
	}
	if (fd != -1)
		ep->fds[ep->n_fds++] = fd;
	return 0;
}

void input_close_endpoint(struct input *in, struct endpoint *ep)
{
	if (in->type->unbind)
		in->type->unbind(in, ep);
	for (unsigned k = 0; !in->type->unbind && k < ep->n_fds; k++)
		close(ep->fds[k]);
	if (!in->type->unbind && ep->n_fds && ep->address.len == 0 && !ep->is_retired)
		unlink(ep->name); /* one that was retired may be somebody else's by now */
	free(ep->fds);
	free(ep->blocks);
	free(ep->last_dropped);
	memset(ep, 0, sizeof *ep);
}

void input_forget(struct input *in, bool keeps_hands)
{
	for (unsigned slot = 0; !keeps_hands && in->hands && slot < STATS_SLOTS_MAX; slot++)
		if (in->hands[slot])
			munmap(in->hands[slot], sizeof(struct hand));
	if (!keeps_hands)
		free(in->hands);
	free(in->endpoints);
	memset(in, 0, sizeof *in);
}

void input_fini(struct input *in)
{
	for (unsigned i = 0; i < in->n_endpoints; i++)
		if (!in->endpoints[i].is_moved)
			input_close_endpoint(in, &in->endpoints[i]);
	input_forget(in, false);
}

int input_slot_fd(const struct endpoint *ep, unsigned slot)
{
	return ep->fds[ep->n_fds == 1 ? 0 : slot];
}

void input_keep(struct input *in, unsigned slot, int *keep, size_t *n)
{
	if (in->type->keep) {
		in->type->keep(in, slot, keep, n);
		return;
	}
	for (unsigned i = 0; i < in->n_endpoints; i++)
		keep[(*n)++] = input_slot_fd(&in->endpoints[i], slot);
}

void input_leave_alone(struct input *in)
{
	size_t n = 0;
	if (in->type->keep)
		in->type->keep(in, INPUT_NO_SLOT, NULL, &n);
}

uint64_t input_died(struct input *in, unsigned slot, bool is_last, struct stats_page *master_page)
{
	return in->type->died ? in->type->died(in, slot, is_last, master_page) : 0;
}

void input_renew(struct input *in, unsigned slot, struct stats_page *master_page)
{
	if (in->type->renew)
		in->type->renew(in, slot, master_page);
}

void input_endpoint_drops(struct input *in, struct endpoint *ep, struct stats_page *master_page)
{
	(void)in;
	for (unsigned k = 0; ep->last_dropped && k < ep->n_fds; k++) {
		struct stats_endpoint *st = stats_endpoint(master_page, ep->blocks[k]);
		uint32_t dropped;
		struct stat sb;
		if (net_socket_drops(ep->fds[k], &st->queue_bytes, &dropped) != 0)
			continue;
		/* the kernel's counter has 32 bits */
		st->dropped_datagrams += (uint32_t)(dropped - ep->last_dropped[k]);
		st->inode = fstat(ep->fds[k], &sb) == 0 ? sb.st_ino : 0;
		ep->last_dropped[k] = dropped;
		stats_touch(master_page, STATS_ENDPOINT, ep->blocks[k]);
	}
}

void input_kernel_drops(struct input *in, struct stats_page *master_page)
{
	if (in->type->kernel_drops)
		in->type->kernel_drops(in, master_page);
	for (unsigned i = 0; i < in->n_endpoints; i++)
		input_endpoint_drops(in, &in->endpoints[i], master_page);
}

/* At most so many lines: one for each newline, and one for what follows the last. */
static uint64_t count_lines(const char *p, size_t len)
{
	uint64_t n = 1;
	for (size_t i = 0; i < len; i++)
		n += p[i] == '\n';
	return n;
}

uint64_t input_lost_at_death(struct input *in, unsigned slot, struct stats_page *page)
{
	struct hand *h = in->hands[slot];
	struct stats_input *st = stats_input(page, in->index);
	uint64_t lines = st->unfinished_lines, datagrams = 0;
	for (unsigned i = h->done; i < h->used; i++) {
		size_t len = h->messages[i].msg_len, done = i == h->done ? h->done_bytes : 0;
		if (len == 0)
			continue;
		datagrams++;
		if (in->type->is_packets)
			len = h->iovecs[i].iov_len; /* of its payload, once that is found */
		if (len > h->iovecs[i].iov_len) /* MSG_TRUNC of a hostile length never reaches here; be sure */
			len = h->iovecs[i].iov_len;
		if (in->wants_lines && done < len) /* of a packet: its payload is in memory of ours, or of the device */
			lines += count_lines((char *)h->iovecs[i].iov_base + done, len - done);
	}
	if (in->type->is_stream || h->datagrams_counted)
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
	h->used = h->done = 0;
	h->done_bytes = 0;
	for (unsigned i = 0; i < BATCH_ITEMS; i++)
		h->messages[i].msg_len = 0; /* the next tenant may add packets one by one */
	stats_touch(page, STATS_INPUT, in->index);
	return lines + (in->wants_items ? datagrams : 0);
}

/* -- worker: sources ------------------------------------------------------------------------------------------- */

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
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
	in->hand = in->hands[in->slot];
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
	return in->type->open(in, err);
}

int input_adopt(struct input *in, int fd, unsigned lent_by)
{
	struct source *s = source_new(in, NULL, fd, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->lent_by = (int)lent_by;
	return 0;
}

void input_reload(struct input *in, const struct conf *cf)
{
	in->conf = cf;
	in->cf = &cf->inputs[in->cf->index];
	if (in->type->reload)
		in->type->reload(in);
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
			begin = in->hand->iovecs[in->cut_item].iov_base;
			len = in->hand->iovecs[in->cut_item].iov_len;
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
	struct hand *h = in->hand;
	if (!batch_done) {
		h->done = in->cut_item;
		h->done_bytes = 0;
		/* cut_at NULL: at the begin of an item, or behind the last of them; on a stream what was kept before lies
		 * before iov_base */
		if (in->cut_at && in->cut_at > (char *)h->iovecs[in->cut_item].iov_base)
			h->done_bytes = (size_t)(in->cut_at - (char *)h->iovecs[in->cut_item].iov_base);
		h->datagrams_counted = true;
		return;
	}
	for (unsigned i = 0; i < h->used; i++)
		h->messages[i].msg_len = 0;
	h->used = h->done = 0;
	h->done_bytes = 0;
	h->datagrams_counted = false;
	in->cut_item = 0;
	in->cut_at = NULL;
	in->batch.n_items = in->batch.n_lines = 0;
}
