/* SPDX-License-Identifier: MIT
 *
 * kafka: what can be said of a kafka output without librdkafka: that it has brokers, and that its inputs give what its
 * format takes. Also makes the output of --kafka. Pure. What librdkafka thinks of the properties is asked by
 * src/output.
 */
#include "load.h"

#include <string.h>
#include <strings.h>

void conf_load_kafka(struct conf_load *ld, const struct conf_args *args)
{
	struct conf_output *out = conf_load_add_output(ld, "kafka", 0);
	if (!out)
		return;
	out->type = CONF_OUTPUT_TYPE_KAFKA;
	if (conf_value_parse(&conf_rows[ROW_OUTPUT_topic], args->topic, &out->topic, NULL) != 0)
		ld->no_memory = true;
	if (args->captures.n)
		out->format = CONF_FORMAT_PACKET;
	conf_map_add(ld, &out->properties, "bootstrap.servers", args->kafka, 0);
}

static bool is_given(const struct conf_map *map, const char *key)
{
	for (size_t i = 0; i < map->n; i++)
		if (strcmp(map->keys[i], key) == 0 && map->values[i][0])
			return true;
	return false;
}

static int line_of(const struct conf_load *ld, const struct conf_output *out, enum conf_row_index row)
{
	const struct conf_origin *origin = &ld->outputs[out->index];
	return origin->rows[row].is_given ? origin->rows[row].line : out->line;
}

static void check_input(struct conf_load *ld, const struct conf_output *out, const struct conf_input *in,
			const char *key)
{
	bool is_stream = in->type == CONF_INPUT_TYPE_TCP || in->type == CONF_INPUT_TYPE_UNIX;
	int line = line_of(ld, out, ROW_OUTPUT_format);
	bool is_packets = out->format == CONF_FORMAT_PACKET || out->format == CONF_FORMAT_PCAP;
	for (size_t i = 0; out->format == CONF_FORMAT_PACKET && i < in->interface.n; i++)
		if (strcmp(in->interface.items[i], "any") == 0)
			conf_load_error(ld, line, key,
					"packet is for Ethernet, and interface any of input %s gives Linux's own "
					"headers; allowed is pcap",
					in->name);
	if (is_packets && conf_reads_packets(in->type))
		return;
	if (is_packets)
		conf_load_error(ld, line, key,
				"%s needs packets, and input %s of type %s reads none; allowed is lines%s",
				conf_word(out->format), in->name, conf_word(in->type), is_stream ? "" : " or datagram");
	else if (out->format == CONF_FORMAT_DATAGRAM && conf_reads_packets(in->type))
		conf_load_error(ld, line, key,
				"datagram needs datagrams, and input %s of type %s reads packets; allowed is packet, "
				"pcap, or lines of their UDP payload",
				in->name, conf_word(in->type));
	else if (out->format == CONF_FORMAT_DATAGRAM && is_stream)
		conf_load_error(ld, line, key,
				"datagram needs datagrams, and input %s of type %s is a stream; allowed is lines",
				in->name, conf_word(in->type));
}

/* A packet has neither a sender that asked for something nor a key before a colon. */
static void check_packets(struct conf_load *ld, const struct conf_output *out, const char *object)
{
	char key[CONF_KEY_SIZE];
	if (out->format != CONF_FORMAT_PACKET && out->format != CONF_FORMAT_PCAP)
		return;
	if (out->headers)
		conf_load_error(
		    ld, line_of(ld, out, ROW_OUTPUT_headers), conf_key(key, object, "headers"),
		    "is for lines and datagram; a packet has its time in the key and its sender in the frame");
	if (out->partition == CONF_PARTITION_KEY)
		conf_load_error(ld, line_of(ld, out, ROW_OUTPUT_partition), conf_key(key, object, "partition"),
				"key is for lines and datagram; allowed here is one of auto, flow, worker, random");
}

static const char *value_of(const struct conf_map *map, const char *key)
{
	for (size_t i = 0; i < map->n; i++)
		if (strcmp(map->keys[i], key) == 0)
			return map->values[i];
	return NULL;
}

/* librdkafka starts a program for each ticket of Kerberos, and that is what the filter is there to prevent. */
static void check_kerberos(struct conf_load *ld, const struct conf_output *out, const char *object)
{
	char key[CONF_KEY_SIZE];
	const char *protocol = value_of(&out->properties, "security.protocol");
	const char *mechanism = value_of(&out->properties, "sasl.mechanisms");
	if (!mechanism)
		mechanism = value_of(&out->properties, "sasl.mechanism");
	bool is_sasl = protocol && strncasecmp(protocol, "sasl", 4) == 0;
	if (ld->cf->seccomp && is_sasl && (!mechanism || strcasecmp(mechanism, "GSSAPI") == 0))
		conf_load_error(ld, line_of(ld, out, ROW_OUTPUT_properties), conf_key(key, object, "properties"),
				"sasl.mechanisms: GSSAPI runs kinit, which workers may not; set seccomp: false");
}

void conf_check_kafka(struct conf_load *ld, const struct conf_output *out)
{
	char key[CONF_KEY_SIZE], object[CONF_KEY_SIZE];
	conf_key(object, "outputs", out->name);
	if (!is_given(&out->properties, "bootstrap.servers") && !is_given(&out->properties, "metadata.broker.list") &&
	    ld->outputs[out->index].rows[ROW_OUTPUT_properties].is_given)
		conf_load_error(ld, line_of(ld, out, ROW_OUTPUT_properties), conf_key(key, object, "properties"),
				"name no broker; give bootstrap.servers: HOST:PORT,HOST:PORT");
	if (ld->outputs[out->index].rows[ROW_OUTPUT_topic].is_given && !out->topic[0])
		conf_load_error(ld, line_of(ld, out, ROW_OUTPUT_topic), conf_key(key, object, "topic"),
				"is empty; allowed is the name of a topic");
	check_packets(ld, out, object);
	check_kerberos(ld, out, object);
	conf_key(key, object, "format");
	for (size_t i = 0; i < ld->cf->n_inputs && !ld->no_memory; i++)
		for (size_t j = 0; j < ld->cf->inputs[i].n_outputs; j++)
			if (ld->cf->inputs[i].outputs[j] == out)
				check_input(ld, out, &ld->cf->inputs[i], key);
}
