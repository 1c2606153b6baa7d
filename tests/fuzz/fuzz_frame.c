/* SPDX-License-Identifier: MIT
 *
 * fuzz_frame: the frame decoder and the flow hash. The first byte of the input chooses the link type, the second how
 * much longer the frame was on the wire; the rest is the frame. What must hold: nothing is read beyond it (each copy is
 * alone in its memory), what the view points at lies within, a shorter capture says the same or "truncated", and the
 * same frame turned round has the same flow.
 */
#include <packet.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "fuzz_frame: %s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static uint8_t *exact(const uint8_t *bytes, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);
	memcpy(copy, bytes, len);
	return copy;
}

static void check_within(const struct packet_view *v)
{
	size_t address_bytes = v->ip_version == 4 ? 4 : 16;
	MUST(v->n_vlans <= PACKET_VLANS && v->original_len >= v->len);
	MUST(packet_verdict_name(v->verdict) != NULL);
	MUST(!v->macs || (v->macs == v->frame && v->len >= 12));
	MUST((v->ip_version != 0) == (v->source != NULL) && (v->source != NULL) == (v->destination != NULL));
	if (v->ip_version)
		MUST(v->source + address_bytes == v->destination &&
		     v->destination + address_bytes <= v->frame + v->len);
	MUST(v->is_fragment == (v->verdict == PACKET_FRAGMENT) && (v->is_fragment || !v->fragment_at));
	if (v->has_ports)
		MUST(v->ip_version && !v->is_fragment && v->l4_at + 4 <= v->len);
	if (v->verdict == PACKET_PAYLOAD)
		MUST(v->has_ports && v->protocol == 17 && v->payload_at == v->l4_at + 8 &&
		     v->payload_at + v->payload_bytes <= v->len);
	else
		MUST(!v->payload_at && !v->payload_bytes);
}

static void swap(uint8_t *a, uint8_t *b, size_t len)
{
	uint8_t t[16];
	memcpy(t, a, len);
	memcpy(a, b, len);
	memcpy(b, t, len);
}

static void check_turned(const struct packet_view *v, uint32_t link_type)
{
	uint8_t *copy = exact(v->frame, v->len);
	struct packet_view turned;
	if (v->macs)
		swap(copy, copy + 6, 6);
	if (v->ip_version)
		swap(copy + (v->source - v->frame), copy + (v->destination - v->frame), v->ip_version == 4 ? 4 : 16);
	if (v->has_ports)
		swap(copy + v->l4_at, copy + v->l4_at + 2, 2);
	MUST(packet_decode(copy, v->len, v->original_len, link_type, &turned) == v->verdict);
	MUST(packet_flow_hash(&turned) == packet_flow_hash(v));
	free(copy);
}

static void check_shorter(const struct packet_view *whole, uint32_t link_type)
{
	for (size_t len = 0; len < whole->len; len++) {
		uint8_t *copy = exact(whole->frame, len);
		struct packet_view v;
		packet_decode(copy, len, whole->original_len, link_type, &v);
		MUST(v.verdict == whole->verdict || v.verdict == PACKET_TRUNCATED);
		check_within(&v);
		if (v.verdict == PACKET_PAYLOAD)
			MUST(v.payload_at == whole->payload_at && v.payload_bytes == whole->payload_bytes);
		packet_flow_hash(&v);
		free(copy);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static const uint32_t links[] = {
		PACKET_LINK_ETHERNET,	PACKET_LINK_ETHERNET, PACKET_LINK_ETHERNET, PACKET_LINK_LINUX_SLL,
		PACKET_LINK_LINUX_SLL2, PACKET_LINK_NULL,     PACKET_LINK_LOOP,	    PACKET_LINK_RAW,
		PACKET_LINK_RAW_OLD,	PACKET_LINK_IPV4,     PACKET_LINK_IPV6,	    105,
	};
	if (size < 2 || size > 400)
		return 0;
	uint32_t link_type = links[input[0] % ARRAY_LEN(links)];
	size_t len = size - 2, original_len = len + input[1] * (input[1] & 1 ? 1 : 300);
	uint8_t *frame = exact(input + 2, len);
	struct packet_view v;
	MUST(packet_decode(frame, len, original_len, link_type, &v) == v.verdict);
	MUST((v.verdict == PACKET_UNKNOWN_LINK) == !packet_link_is_known(link_type));
	check_within(&v);
	check_turned(&v, link_type);
	check_shorter(&v, link_type);
	free(frame);
	return 0;
}
