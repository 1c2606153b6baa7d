/* SPDX-License-Identifier: MIT
 *
 * Datagram inputs: udp and unixgram. A worker reads up to 64 datagrams a call into its receive batch. Binds nothing
 * (src/endpoint), cuts no lines and knows no outputs.
 */
#include "invalid.h"
#include "types.h"

#include <errno.h>
#include <string.h>

static int datagram_open(struct input *in, struct err *err)
{
	struct receive_batch *r = in->receive;
	for (unsigned i = 0; i < BATCH_ITEMS; i++) {
		r->iovecs[i] = (struct iovec){r->slab[i], BATCH_ITEM_BYTES};
		r->messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &r->iovecs[i], .msg_iovlen = 1}};
		if (in->wants_from)
			r->messages[i].msg_hdr.msg_name = &r->from[i];
		in->batch.items[i] = (struct item){.bytes = r->slab[i], .from = in->wants_from ? &r->from[i] : NULL};
	}
	(void)err;
	return 0;
}

static int datagram_open_endpoint(struct input *in, struct endpoint *ep, struct err *err)
{
	/* the master's descriptor is closed with the others after fork; this copy is ours */
	int fd = endpoint_fd(ep, in->slot);
	if (fd == -1)
		return 0;
	struct source *s = source_new(in, ep, fd, sizeof *s);
	if (!s)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	s->coalesce.receive_buffer_bytes = ep->receive_buffer_bytes;
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
		else /* senders see EPIPE; what waits can be read, and then MSG_DONTWAIT says EAGAIN */
			shutdown(s->fd, SHUT_RD);
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

/* For outputs that want them, and while invalid lines come; the next invalid line begins that anew. */
static void ask_for_senders(struct input *in)
{
	struct receive_batch *r = in->receive;
	bool wanted = in->wants_from || invalid_wants_from(in);
	if (!wanted)
		in->invalid_at = 0;
	for (unsigned i = 0; i < BATCH_ITEMS; i++) {
		r->messages[i].msg_hdr.msg_name = wanted ? &r->from[i] : NULL;
		r->messages[i].msg_hdr.msg_namelen = wanted ? sizeof(r->from[i]) : 0;
	}
}

static unsigned datagram_read(struct source *s, struct batch *b)
{
	struct input *in = s->in;
	struct receive_batch *r = in->receive;
	if (in->wants_from || UNLIKELY(in->invalid_at > 0))
		ask_for_senders(in);
	r->used = BATCH_ITEMS;
	int n = recvmmsg(s->fd, r->messages, BATCH_ITEMS, MSG_DONTWAIT, NULL);
	if (n <= 0) {
		/* EAGAIN, or an error that an earlier datagram of ours brought back (ICMP): there is nothing to read */
		s->drained = true;
		r->used = 0;
		return 0;
	}
	/* a short count says that the kernel met EAGAIN itself */
	s->drained = n < BATCH_ITEMS;
	r->used = (unsigned)n;
	uint64_t bytes = 0, empty = 0;
	for (int i = 0; i < n; i++) {
		struct item *item = &b->items[i];
		item->len = item->original_len = r->messages[i].msg_len;
		bytes += item->len;
		empty += item->len == 0;
		if (UNLIKELY(r->messages[i].msg_hdr.msg_flags & MSG_TRUNC))
			drop_cut_line(in, item);
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
    .endpoint = &endpoint_udp,
    .open = datagram_open,
    .open_endpoint = datagram_open_endpoint,
    .drain = datagram_drain,
    .read = datagram_read,
    .end = source_free,
};

const struct input_type input_unixgram = {
    .name = "unixgram",
    .endpoint = &endpoint_unixgram,
    .open = datagram_open,
    .open_endpoint = datagram_open_endpoint,
    .drain = datagram_drain,
    .read = datagram_read,
    .end = source_free,
};
