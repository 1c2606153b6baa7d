/* SPDX-License-Identifier: MIT
 *
 * Datagram inputs: udp and unixgram. The master binds, each worker reads up to 64 datagrams a call into the slot's
 * hand. Cuts no lines and knows no outputs.
 */
#include "invalid.h"
#include "types.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* -- master ---------------------------------------------------------------------------------------------------- */

static int endpoint_ready(struct input *in, struct endpoint *ep, int fd, struct err *err)
{
	if (!ep->last_dropped)
		ep->last_dropped = calloc(in->n_slots, sizeof *ep->last_dropped);
	if (!ep->last_dropped) {
		close(fd);
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	}
	net_receive_buffer(fd, in->cf->receive_buffer, &ep->receive_buffer_bytes);
	ep->fds[ep->n_fds++] = fd;
	return 0;
}

static unsigned wanted_sockets(const struct input *in)
{
	return in->cf->spread == CONF_SPREAD_SHARED ? 1 : in->n_slots;
}

/* More sockets in the group; fewer is the reload's, who has them read empty first. */
static int udp_grow(struct input *in, struct endpoint *ep, struct err *err)
{
	int r = 0;
	while (r == 0 && ep->n_fds < wanted_sockets(in)) {
		int fd = net_udp_join(&ep->address, err);
		r = fd < 0 ? fd : endpoint_ready(in, ep, fd, err);
	}
	if (r == 0 && in->cf->spread == CONF_SPREAD_PACKET && ep->n_fds > 1)
		r = net_reuseport_random(ep->fds[0], MIN(ep->n_fds, wanted_sockets(in)), err);
	else if (r == 0 && ep->n_fds > 1)
		net_reuseport_by_hash(ep->fds[0]);
	return r;
}

static int udp_bind(struct input *in, struct endpoint *ep, struct err *err)
{
	int r = input_endpoint_address(in, ep, err);
	if (r != 0)
		return r;
	int fd = net_udp_bind(&ep->address, wanted_sockets(in) > 1, err);
	r = fd < 0 ? fd : endpoint_ready(in, ep, fd, err);
	return r == 0 ? udp_grow(in, ep, err) : r;
}

static int udp_adjust(struct input *in, struct endpoint *ep, struct err *err)
{
	for (unsigned i = 0; i < ep->n_fds; i++)
		net_receive_buffer(ep->fds[i], in->cf->receive_buffer, &ep->receive_buffer_bytes);
	if (wanted_sockets(in) <= ep->n_fds)
		return udp_grow(in, ep, err);
	if (!input_endpoint_room(ep, wanted_sockets(in)))
		return err_set(err, -ENOMEM, "No memory for more sockets.");
	int r = net_udp_share(ep->fds[0], err);
	return r == 0 ? udp_grow(in, ep, err) : r;
}

static void udp_retire(struct input *in, struct endpoint *ep)
{
	(void)in;
	for (unsigned i = 0; i < ep->n_fds; i++)
		net_udp_leave(ep->fds[i]);
}

static int unixgram_adjust(struct input *in, struct endpoint *ep, struct err *err)
{
	net_receive_buffer(ep->fds[0], in->cf->receive_buffer, &ep->receive_buffer_bytes);
	return input_adjust_mode(in, ep, err);
}

static int unixgram_bind(struct input *in, struct endpoint *ep, struct err *err)
{
	int fd = net_unix_bind(ep->name, SOCK_DGRAM, (unsigned)strtoul(in->cf->mode, NULL, 8), err);
	return fd < 0 ? fd : endpoint_ready(in, ep, fd, err);
}

/* -- worker ---------------------------------------------------------------------------------------------------- */

static int datagram_open(struct input *in, struct err *err)
{
	struct hand *h = in->hand;
	for (unsigned i = 0; i < BATCH_ITEMS; i++) {
		h->iovecs[i] = (struct iovec){h->slab[i], BATCH_ITEM_BYTES};
		h->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &h->iovecs[i], .msg_iovlen = 1}};
		if (in->wants_from)
			h->messages[i].msg_hdr.msg_name = &h->from[i];
		in->batch.items[i] = (struct item){.bytes = h->slab[i], .from = in->wants_from ? &h->from[i] : NULL};
	}
	for (unsigned i = 0; i < in->n_endpoints; i++) {
		struct endpoint *ep = &in->endpoints[i];
		/* the master's descriptor is closed with the others after fork; this copy is ours */
		struct source *s = source_new(in, ep, input_slot_fd(ep, in->slot), sizeof *s);
		if (!s)
			return err_set(err, -ENOMEM, "Cannot start: no memory.");
		s->receive_buffer_bytes = ep->receive_buffer_bytes;
	}
	return 0;
}

static void datagram_drain(struct input *in)
{
	in->draining = true;
	for (struct source *s = in->sources; s; s = s->next) {
		if (!input_ends(s))
			continue;
		if (in->type == &input_udp)
			net_udp_leave(s->fd);
		else
			shutdown(s->fd, SHUT_RD); /* senders see EPIPE, what waits can be read */
	}
}

/* The line that was cut is no line; what stands before it is whole. */
static void drop_cut_line(struct input *in, struct item *item)
{
	in->stats->truncated_datagrams++;
	if (!in->wants_lines)
		return;
	const char *newline = memrchr(item->bytes, '\n', item->len);
	item->len = newline ? (uint32_t)(newline + 1 - item->bytes) : 0;
	in->stats->received_lines++;
	in->stats->dropped_truncated_lines++;
}

/* For outputs that want them, and while invalid lines come. */
static void ask_for_senders(struct input *in)
{
	struct hand *h = in->hand;
	bool wanted = in->wants_from || invalid_wants_from(in);
	for (unsigned i = 0; i < BATCH_ITEMS; i++) {
		h->messages[i].msg_hdr.msg_name = wanted ? &h->from[i] : NULL;
		h->messages[i].msg_hdr.msg_namelen = wanted ? sizeof(h->from[i]) : 0;
	}
}

static unsigned datagram_read(struct source *s, struct batch *b)
{
	struct input *in = s->in;
	struct hand *h = in->hand;
	if (in->wants_from || UNLIKELY(in->invalid_at > 0))
		ask_for_senders(in);
	h->used = BATCH_ITEMS;
	int n = recvmmsg(s->fd, h->messages, BATCH_ITEMS, MSG_DONTWAIT, NULL);
	if (n <= 0) {
		/* EAGAIN, or an error that an earlier datagram of ours brought back (ICMP): there is nothing to read */
		s->drained = true;
		h->used = 0;
		return 0;
	}
	/* a short count says that the kernel met EAGAIN itself */
	s->drained = n < BATCH_ITEMS;
	h->used = (unsigned)n;
	uint64_t bytes = 0, empty = 0;
	for (int i = 0; i < n; i++) {
		struct item *item = &b->items[i];
		item->len = item->original_len = h->messages[i].msg_len;
		bytes += item->len;
		empty += item->len == 0;
		if (UNLIKELY(h->messages[i].msg_hdr.msg_flags & MSG_TRUNC))
			drop_cut_line(in, item);
	}
	/* a unix socket that was shut down for reading returns nothing, for ever, once it is empty */
	if (in->draining && input_ends(s) && empty == (unsigned)n && in->type == &input_unixgram) {
		s->drained = true;
		h->used = 0;
		return 0;
	}
	in->stats->reads++;
	in->stats->received_bytes += bytes;
	in->stats->received_datagrams += (unsigned)n;
	in->stats->empty_datagrams += empty;
	uint64_t *whole = in->discarding && in->wants_items ? &in->stats->dropped_shutdown_datagrams
							    : &in->stats->to_outputs_datagrams;
	*whole += (unsigned)n - empty;
	b->n_items = (unsigned)n;
	return (unsigned)n;
}

const struct input_type input_udp = {
    .name = "udp",
    .bind = udp_bind,
    .adjust = udp_adjust,
    .retire = udp_retire,
    .open = datagram_open,
    .drain = datagram_drain,
    .read = datagram_read,
    .end = source_free,
};

const struct input_type input_unixgram = {
    .name = "unixgram",
    .bind = unixgram_bind,
    .adjust = unixgram_adjust,
    .retire = input_retire_path,
    .open = datagram_open,
    .drain = datagram_drain,
    .read = datagram_read,
    .end = source_free,
};
