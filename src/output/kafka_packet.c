/* SPDX-License-Identifier: MIT
 *
 * kafka_packet: packets become messages: one each, keyed by its time (format packet), or many as a whole pcap file
 * (format pcap). Decides the partition by the packet's flow, and keeps the time within a partition from falling. Worker
 * only; does not talk to librdkafka.
 */
#include "kafka.h"

#include <endian.h>
#include <packet.h>
#include <string.h>

static uint32_t packet_hash(struct kafka *k, const struct item *item)
{
	struct packet_view v;
	if (k->partition == CONF_PARTITION_RANDOM)
		return kafka_sticky(k);
	packet_decode(item->bytes, item->len, item->original_len, item->link_type, &v);
	return packet_flow_hash(&v);
}

/* -- time
 * -------------------------------------------------------------------------------------------------------------- */

int kafka_times_init(struct kafka *k, unsigned targets)
{
	uint64_t latest = 0;
	for (unsigned i = 0; i < k->n_times; i++)
		latest = MAX(latest, k->times_us[i]);
	uint64_t *times = calloc(MAX(targets, 1), sizeof(*times));
	if (times == NULL)
		return -1;
	for (unsigned i = 0; i < MAX(targets, 1); i++)
		times[i] =
		    latest; /* which partition had which is not known any more: flows move when partitions are added */
	free(k->times_us);
	k->times_us = times;
	k->n_times = MAX(targets, 1);
	return 0;
}

/* Two senders on two CPUs do put older packets behind newer ones in one ring (measured); readers that roll files by
 * time must not see that. */
static uint64_t rising(struct kafka *k, uint32_t hash, uint64_t time_us)
{
	uint64_t *last = &k->times_us[hash % k->n_times];
	if (k->partition != CONF_PARTITION_WORKER)
		return time_us;
	if (time_us < *last) {
		k->stats->time_raised_packets++;
		return *last;
	}
	return *last = time_us;
}

/* -- packet: one each
 * --------------------------------------------------------------------------------------------------- */

/* False: held back. */
static bool put_packet(struct kafka *k, const struct item *item, uint64_t now_us)
{
	if (UNLIKELY(item->link_type != PACKET_LINK_ETHERNET)) {
		k->backend->dropped_link_type_records++;
		if (!k->is_link_said)
			log_warn("output \"%s\": packets of link type %u are dropped: format packet is for Ethernet; "
				 "use pcap",
				 k->out->cf->name, item->link_type);
		k->is_link_said = true;
		return true;
	}
	if (UNLIKELY(item->len == 0 || item->len > builder_room(true, false) - KAFKA_TIME_KEY_BYTES)) {
		k->backend->dropped_too_long_records++;
		return true;
	}
	struct message *m = kafka_new_message(k, k->builders, item->len + KAFKA_TIME_KEY_BYTES, 0);
	if (UNLIKELY(m == NULL))
		return kafka_refuse(k);
	m->records = 1;
	m->hash = packet_hash(k, item);
	uint64_t key = htobe64(rising(k, m->hash, item->time_ns ? item->time_ns / 1000 : now_us));
	char *to = message_bytes(m);
	memcpy(to, &key, sizeof(key));
	memcpy(to + sizeof(key), item->bytes, item->len);
	builder_end_message(k->builders, m, item->len + KAFKA_TIME_KEY_BYTES);
	m->key_len = KAFKA_TIME_KEY_BYTES;
	m->has_key_before = true;
	m->len = item->len;
	kafka_add_waiting(k, m);
	return true;
}

/* -- pcap: many
 * ---------------------------------------------------------------------------------------------------------- */

static bool begin_file(struct kafka *k, struct builder *b, const struct item *item, uint32_t need, uint32_t hash)
{
	if (!kafka_begin_open(k, b, PACKET_PCAP_HEAD_BYTES + need - 1, hash))
		return false;
	b->at += packet_pcap_head(b->at, item->link_type, PACKET_MAX_BYTES);
	b->link_type = item->link_type;
	return true;
}

static bool put_record(struct kafka *k, const struct item *item, uint64_t now_us)
{
	uint32_t hash = packet_hash(k, item), need = PACKET_PCAP_RECORD_BYTES + item->len;
	struct builder *b = &k->builders[k->n_builders > 1 ? hash % k->n_builders : 0];
	if (UNLIKELY(PACKET_PCAP_HEAD_BYTES + need > builder_room(true, false))) {
		k->backend->dropped_too_long_records++;
		return true;
	}
	if (b->open != NULL && (b->link_type != item->link_type || (size_t)(b->limit - b->at) < need))
		kafka_end_open(k, b);
	if (b->open == NULL && !begin_file(k, b, item, need, hash))
		return kafka_refuse(k);
	uint64_t time_us = item->time_ns ? item->time_ns / 1000 : now_us;
	uint64_t raised_us = rising(k, hash, time_us);
	uint64_t time_ns = raised_us != time_us || !item->time_ns ? raised_us * 1000 : item->time_ns;
	b->at += packet_pcap_record(b->at, time_ns, item->len, item->original_len);
	memcpy(b->at, item->bytes, item->len);
	b->at += item->len;
	b->records++;
	k->open_records++;
	/* Which of several partitions is not known before their number is: then each packet is a file. */
	if (k->n_targets == 0 && k->partition != CONF_PARTITION_RANDOM)
		kafka_end_open(k, b);
	return true;
}

unsigned kafka_put_packets(struct kafka *k, const struct batch *b, unsigned first)
{
	bool is_pcap = k->out->cf->format == CONF_FORMAT_PCAP;
	uint64_t now_us = 0;
	unsigned i;
	for (i = first; i < b->n_items; i++) {
		const struct item *item = &b->items[i];
		if (UNLIKELY(item->time_ns == 0 && now_us == 0))
			now_us = clock_real_us();
		if (!(is_pcap ? put_record(k, item, now_us) : put_packet(k, item, now_us)))
			break;
	}
	return i;
}
