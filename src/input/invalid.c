/* SPDX-License-Identifier: MIT
 *
 * invalid: see the header. A flood of invalid lines costs a comparison each. Nobody asks the kernel who sent a datagram
 * until an invalid line came; so the first one's sender is not known, unless an output wants senders.
 */
#include "invalid.h"

#include "lines.h"
#include <netinet/in.h>
#include <packet.h>
#include <string.h>

enum { INVALID_A_SECOND = 4 };
static const double ask_seconds = 60;

bool invalid_wants_from(const struct input *in)
{
	return in->invalid_at > 0 && ev_now(in->loop) - in->invalid_at < ask_seconds;
}

/* Of a captured packet. */
static void find_source(const struct item *item, struct sockaddr_storage *from)
{
	struct sockaddr_in *in4 = (struct sockaddr_in *)from;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)from;
	struct packet_view v;
	if (packet_decode(item->bytes, item->len, item->original_len, item->link_type, &v) != PACKET_PAYLOAD)
		return;
	if (v.ip_version == 4) {
		*in4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(v.source_port)};
		memcpy(&in4->sin_addr, v.source, sizeof(in4->sin_addr));
	} else {
		*in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(v.source_port)};
		memcpy(&in6->sin6_addr, v.source, sizeof(in6->sin6_addr));
	}
}

static void find_sender(const struct input *in, struct sockaddr_storage *from)
{
	const struct receive_batch *r = in->receive;
	socklen_t len = sizeof(*from);
	from->ss_family = AF_UNSPEC;
	if (in->type->is_stream) {
		if (getpeername(in->reading->fd, (struct sockaddr *)from, &len) == -1)
			from->ss_family = AF_UNSPEC;
	} else if (in->type->is_packets) {
		find_source(&in->batch.items[in->cut_item], from);
	} else if (r->messages[in->cut_item].msg_hdr.msg_name && r->messages[in->cut_item].msg_hdr.msg_namelen > 0) {
		*from = r->from[in->cut_item];
	}
}

void invalid_note(struct input *in, const char *line, size_t len)
{
	struct invalid_lines *kept = &in->receive->invalid;
	double now = ev_now(in->loop);
	if (now - in->invalid_at >= 1) {
		in->invalid_at = now;
		in->n_invalid = 0;
	}
	if (in->n_invalid >= INVALID_A_SECOND)
		return;
	in->n_invalid++;
	struct invalid_line *l = &kept->lines[kept->n % INVALID_KEPT];
	*l = (struct invalid_line){.at_us = clock_real_us(),
				   .line_bytes = (uint32_t)len,
				   .reason = lines_reason(in->lines->protocol, in->lines->validate, line, len)};
	memcpy(l->text, line, MIN(len, sizeof(l->text)));
	find_sender(in, &l->from);
	kept->n++;
	struct text t = {NULL};
	invalid_add(l, &t);
	if (t.s)
		log_debug("input \"%s\": invalid line %s", in->cf->name, t.s);
	text_free(&t);
}

/* -- any process --------------------------------------------------------------------------------------------------- */

void invalid_add(const struct invalid_line *l, struct text *t)
{
	char shown[4 * INVALID_TEXT_BYTES + 1], from[128];
	size_t len = MIN(l->line_bytes, sizeof(l->text));
	if (l->from.ss_family == AF_INET || l->from.ss_family == AF_INET6)
		text_add(t, "from %s: ", net_address_format(&l->from, from, sizeof(from)));
	text_add(t, "\"%s\"", text_escape(shown, sizeof(shown), l->text, len));
	if (len < l->line_bytes)
		text_add(t, "… (%u bytes)", l->line_bytes);
	text_add(t, ": %s", lines_reason_text(l->reason));
}

size_t invalid_take(const struct receive_batch *r, struct invalid_line *out)
{
	size_t n = 0;
	for (size_t i = 0; r && i < INVALID_KEPT; i++) {
		out[n] = r->invalid.lines[i];
		n += out[n].at_us > 0;
	}
	return n;
}
