/* SPDX-License-Identifier: MIT
 *
 * Datagram inputs: udp and unixgram. The master binds, each worker reads up to 64 datagrams a call into the slot's
 * hand. Cuts no lines and knows no outputs.
 */
#include "types.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

/* -- master ---------------------------------------------------------------------------------------------------- */

static int endpoint_ready(struct input *in, struct endpoint *ep, int fd, struct err *err)
{
	if (!ep->last_dropped)
		ep->last_dropped = calloc(in->n_slots, sizeof *ep->last_dropped);
	if (!ep->last_dropped)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	net_receive_buffer(fd, in->cf->receive_buffer, &ep->receive_buffer_bytes);
	ep->fds[ep->n_fds++] = fd;
	return 0;
}

static int udp_bind(struct input *in, struct endpoint *ep, struct err *err)
{
	int r = input_endpoint_address(in, ep, err);
	if (r != 0)
		return r;
	bool one = in->cf->spread == CONF_SPREAD_SHARED || in->n_slots == 1;
	for (unsigned i = 0; r == 0 && i < (one ? 1 : in->n_slots); i++) {
		int fd = i == 0 ? net_udp_bind(&ep->address, !one, err) : net_udp_join(&ep->address, err);
		r = fd < 0 ? fd : endpoint_ready(in, ep, fd, err);
	}
	if (r == 0 && in->cf->spread == CONF_SPREAD_PACKET && ep->n_fds > 1)
		r = net_reuseport_random(ep->fds[0], ep->n_fds, err);
	return r;
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
		struct source *s = source_new(in, input_slot_fd(ep, in->slot), sizeof *s);
		if (!s)
			return err_set(err, -ENOMEM, "Cannot start: no memory.");
		s->receive_buffer_bytes = ep->receive_buffer_bytes;
	}
	return 0;
}

/* Takes the socket out of its SO_REUSEPORT group without a loss: the kernel gives a connected socket only its peer's
 * datagrams. Measured: closing a socket that was drained but not connected lost 7 to 1,471 of 300,000. */
static void leave_group(int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof sa;
	if (getsockname(fd, (struct sockaddr *)&sa, &len) == -1)
		return;
	struct sockaddr_in in4 = {
	    .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = in6addr_loopback};
	if (sa.ss_family == AF_INET)
		connect(fd, (struct sockaddr *)&in4, sizeof in4);
	else
		connect(fd, (struct sockaddr *)&in6, sizeof in6);
}

static void datagram_drain(struct input *in)
{
	in->draining = true;
	for (struct source *s = in->sources; s && !in->keeps_sockets; s = s->next)
		if (in->type == &input_udp)
			leave_group(s->fd);
		else
			shutdown(s->fd, SHUT_RD); /* senders see EPIPE, what waits can be read */
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

static unsigned datagram_read(struct source *s, struct batch *b)
{
	struct input *in = s->in;
	struct hand *h = in->hand;
	if (in->wants_from)
		for (unsigned i = 0; i < BATCH_ITEMS; i++)
			h->messages[i].msg_hdr.msg_namelen = sizeof h->from[i];
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
	if (in->draining && !in->keeps_sockets && empty == (unsigned)n && in->type == &input_unixgram) {
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
    .open = datagram_open,
    .drain = datagram_drain,
    .read = datagram_read,
    .end = source_free,
};

const struct input_type input_unixgram = {
    .name = "unixgram",
    .bind = unixgram_bind,
    .open = datagram_open,
    .drain = datagram_drain,
    .read = datagram_read,
    .end = source_free,
};
