/* SPDX-License-Identifier: MIT
 *
 * fastcapa: the command line and ini file of Metron's Fastcapa as a configuration of ours: a capture input with driver
 * dpdk for each port, a kafka output of packets. Pure; the file's bytes come from load.c. What has no meaning any more
 * is a note; what Fastcapa would have refused is an error.
 */
#include "fastcapa.h"
#include "mem.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum { PORTS_MAX = 32, TOPIC_MAX = 249 };
static const char output_name[] = "kafka";
static const uint64_t table_us = 5000000;

/* -- the command line -- */

/* Each option with what Fastcapa did without it. `old` names of options that two of its versions had. */
enum option {
	PORTS,
	RX_BURST,
	TX_BURST,
	DESCRIPTORS,
	TX_RING,
	QUEUES,
	TOPIC,
	FILE_PATH,
	STATISTICS,
	HELP,
	VERSION,
	DUMP,
	CONTROL
};
static const struct option_row {
	enum option option;
	const char *names[2];
	const char *argument;
	const char *help;
} option_rows[] = {
    {PORTS, {"-p"}, "MASK", "ports to read, a bit each, hexadecimal [0x01]"},
    {RX_BURST, {"-b"}, "N", "packets read from a queue at once, 1 to 1024 [32]"},
    {TX_BURST, {"-w"}, "N", "has no meaning any more"},
    {DESCRIPTORS, {"-d", "-r"}, "N", "receive descriptors of each queue [1024]"},
    {TX_RING, {"-x"}, "N", "has no meaning any more"},
    {QUEUES, {"-q"}, "N", "receive queues of each port; a worker process reads one [1]"},
    {TOPIC, {"-t"}, "TOPIC", "Kafka topic [pcap]"},
    {FILE_PATH, {"-c"}, "FILE", "ini file with librdkafka's properties in [kafka-global] and [kafka-topic]"},
    {STATISTICS, {"-s"}, "FILE", "append librdkafka's statistics to FILE, a JSON object a line; USR1 opens it anew"},
    {HELP, {"-h", "--help"}, "", "print this text and end"},
    {VERSION, {"--version"}, "", "print the version and what is built in, and end"},
    {DUMP, {"--dump"}, "", "print the same as a configuration file of millrace, and end"},
    {CONTROL, {"--control"}, "PATH", "control socket for millracectl"},
};

void conf_fastcapa_help(struct text *t)
{
	text_add(t, "fastcapa [ARGUMENTS OF THE EAL] -- [OPTIONS]\n\n"
		    "Reads packets with DPDK and writes each to Kafka, as Metron's Fastcapa did. This is millrace; see "
		    "millrace(8).\n\n");
	for (size_t i = 0; i < ARRAY_LEN(option_rows); i++) {
		const struct option_row *row = &option_rows[i];
		char names[40];
		snprintf(names, sizeof(names), "%s%s%s %s", row->names[0], row->names[1] ? ", " : "",
			 row->names[1] ? row->names[1] : "", row->argument);
		text_add(t, "  %-18s %s\n", names, row->help);
	}
}

bool conf_is_fastcapa(const char *argv0)
{
	const char *slash = argv0 ? strrchr(argv0, '/') : NULL;
	return argv0 && strcmp(slash ? slash + 1 : argv0, "fastcapa") == 0;
}

static void say(struct conf_errors *errors, const char *name, const char *value, const char *allowed)
{
	char shown[100];
	text_add(&errors->text, "fastcapa: %s: \"%s\" is not allowed; allowed is %s\n", name,
		 text_escape(shown, sizeof(shown), value, strlen(value)), allowed);
	errors->n++;
}

static void take_number(uint64_t *n, const char *name, const char *value, uint64_t min, uint64_t max,
			struct conf_errors *errors)
{
	char allowed[60];
	if (text_parse_uint(value, n) == 0 && *n >= min && *n <= max)
		return;
	snprintf(allowed, sizeof(allowed), "a whole number from %llu to %llu", (unsigned long long)min,
		 (unsigned long long)max);
	say(errors, name, value, allowed);
}

static void take_ports(struct conf_fastcapa *fc, const char *name, const char *value, struct conf_errors *errors)
{
	char *end;
	unsigned long long mask = isxdigit((unsigned char)value[0]) ? strtoull(value, &end, 16) : 0;
	fc->ports = (uint32_t)mask;
	if (mask == 0 || *end || mask >> PORTS_MAX)
		say(errors, name, value, "a hexadecimal mask of up to 32 ports with at least one of them (0x1)");
}

static void take_topic(struct conf_fastcapa *fc, const char *name, const char *value, struct conf_errors *errors)
{
	size_t len = strlen(value);
	bool ok = len > 0 && len <= TOPIC_MAX && strcmp(value, ".") != 0 && strcmp(value, "..") != 0;
	for (size_t i = 0; ok && i < len; i++)
		ok = isalnum((unsigned char)value[i]) || strchr("._-", value[i]);
	fc->topic = value;
	if (!ok)
		say(errors, name, value,
		    "the name of a topic: up to 249 letters, digits, dots, dashes and underscores");
}

static void take(struct conf_fastcapa *fc, const struct option_row *row, const char *name, const char *value,
		 struct conf_errors *errors)
{
	uint64_t n = 1;
	switch (row->option) {
	case PORTS:
		take_ports(fc, name, value, errors);
		break;
	case RX_BURST:
		take_number(&fc->rx_burst, name, value, 1, 1024, errors);
		break;
	case TX_BURST:
		take_number(&n, name, value, 1, UINT32_MAX, errors);
		fc->has_tx_burst = true;
		break;
	case DESCRIPTORS:
		take_number(&fc->descriptors, name, value, 1, 32768, errors);
		break;
	case TX_RING:
		take_number(&n, name, value, 1, UINT32_MAX, errors);
		fc->has_tx_ring = true;
		if (n & (n - 1))
			say(errors, name, value, "a power of 2");
		break;
	case QUEUES:
		take_number(&fc->queues, name, value, 1, 256, errors);
		break;
	case TOPIC:
		take_topic(fc, name, value, errors);
		break;
	case FILE_PATH:
		fc->path = value;
		break;
	case STATISTICS:
		fc->statistics = value;
		break;
	case CONTROL:
		fc->control = value;
		break;
	case HELP:
		fc->action = CONF_ACTION_HELP;
		break;
	case VERSION:
		fc->action = CONF_ACTION_VERSION;
		break;
	case DUMP:
		fc->action = CONF_ACTION_DUMP;
		break;
	}
}

/* "-b", "-b32", "--control", "--control=x": the row, and where a value within the word begins, or NULL. */
static const struct option_row *find_option(const char *word, const char **name, const char **value)
{
	for (size_t i = 0; i < ARRAY_LEN(option_rows); i++)
		for (size_t k = 0; k < ARRAY_LEN(option_rows[i].names) && option_rows[i].names[k]; k++) {
			*name = option_rows[i].names[k];
			size_t len = strlen(*name);
			bool is_long = (*name)[1] == '-', has_argument = option_rows[i].argument[0];
			if (strncmp(word, *name, len) != 0)
				continue;
			const char *rest = word + len;
			*value = *rest == '\0' ? NULL : is_long ? rest + 1 : rest;
			if (*rest == '\0' || (has_argument && (!is_long || *rest == '=')))
				return &option_rows[i];
		}
	return NULL;
}

static void parse_options(struct conf_fastcapa *fc, int argc, char **argv, struct conf_errors *errors)
{
	const char *name, *value;
	char shown[100];
	for (int i = 0; i < argc; i++) {
		const struct option_row *row = find_option(argv[i], &name, &value);
		if (!row) {
			text_add(&errors->text, "fastcapa: \"%s\" is no option; fastcapa -h lists them\n",
				 text_escape(shown, sizeof(shown), argv[i], strlen(argv[i])));
			errors->n++;
			return;
		}
		if (row->argument[0] && !value && i + 1 == argc) {
			text_add(&errors->text, "fastcapa: %s needs a value: %s %s\n", name, name, row->argument);
			errors->n++;
			return;
		}
		if (row->argument[0] && !value)
			value = argv[++i];
		take(fc, row, name, value ? value : "", errors);
	}
}

bool conf_fastcapa_is_asked(enum conf_action action)
{
	return action == CONF_ACTION_HELP || action == CONF_ACTION_VERSION;
}

bool conf_fastcapa_parse(struct conf_fastcapa *fc, int argc, char **argv, struct conf_errors *errors)
{
	*fc = (struct conf_fastcapa){.action = CONF_ACTION_RUN,
				     .ports = 1,
				     .rx_burst = 32,
				     .descriptors = 1024,
				     .queues = 1,
				     .topic = "pcap",
				     .eal = argv + 1};
	int n = 0;
	while (1 + n < argc && strcmp(argv[1 + n], "--") != 0) {
		if (strcmp(argv[1 + n], "-h") == 0 || strcmp(argv[1 + n], "--help") == 0)
			fc->action = CONF_ACTION_HELP;
		if (strcmp(argv[1 + n], "--version") == 0)
			fc->action = CONF_ACTION_VERSION;
		n++;
	}
	fc->n_eal = (size_t)n;
	if (2 + n < argc)
		parse_options(fc, argc - 2 - n, argv + 2 + n, errors);
	if (conf_fastcapa_is_asked(fc->action) || errors->n > 0)
		return errors->n == 0;
	if (!fc->path) {
		text_add(&errors->text, "fastcapa: -c is missing behind \"--\"; give a file that names brokers: "
					"[kafka-global] and metadata.broker.list = HOST:PORT\n");
		errors->n++;
	}
	return errors->n == 0;
}

static bool has_property(const struct conf_output *out, const char *key)
{
	for (size_t i = 0; i < out->properties.n; i++)
		if (strcmp(out->properties.keys[i], key) == 0)
			return true;
	return false;
}

/* librdkafka's default in Fastcapa's days, and in its README. Measured: 20,000 packets/s to 256 partitions are as many
 * requests with our 5 ms, which one broker answered after 6.6 s. */
static void set_linger(struct conf_load *ld, struct conf_output *out)
{
	if (!has_property(out, "queue.buffering.max.ms") && !has_property(out, "linger.ms"))
		conf_map_add(ld, &out->properties, "queue.buffering.max.ms", "1000", 0);
}

/* -- the tree -- */

static void set_text(struct conf_load *ld, char **field, const char *value)
{
	char *copy = conf_mem_copy(value, strlen(value));
	if (!copy) {
		ld->no_memory = true;
		return;
	}
	free(*field);
	*field = copy;
}

static void add_port(struct conf_load *ld, const struct conf_fastcapa *fc, unsigned port)
{
	char name[16], number[16];
	uint64_t min = 0;
	snprintf(name, sizeof(name), "port%u", port);
	snprintf(number, sizeof(number), "%u", port);
	struct conf_input *in = conf_load_add_input(ld, name, 0);
	if (!in)
		return;
	in->type = CONF_INPUT_TYPE_CAPTURE;
	in->driver = CONF_DRIVER_DPDK;
	in->rx_burst = fc->rx_burst;
	BUG_ON(text_parse_uint(conf_rows[ROW_INPUT_rx_descriptors].min, &min) != 0);
	in->rx_descriptors = MAX(fc->descriptors, min);
	set_text(ld, &in->port, number);
	for (size_t i = 0; i < fc->n_eal; i++)
		conf_list_add(ld, &in->eal, fc->eal[i], 0);
	conf_list_add(ld, &in->to, output_name, 0);
}

static void add_notes(struct conf_load *ld, const struct conf_fastcapa *fc)
{
	const char *name = ld->name;
	ld->name = "fastcapa";
	if (fc->has_tx_burst)
		conf_load_note(ld, 0, "-w",
			       "has no meaning any more: a worker reads packets and hands them to Kafka itself");
	if (fc->has_tx_ring)
		conf_load_note(ld, 0, "-x", "has no meaning any more: there is no ring between reading and Kafka");
	ld->name = name;
}

void conf_read_fastcapa(struct conf_load *ld, const struct conf_fastcapa *fc, const char *bytes, size_t len)
{
	struct conf *cf = ld->cf;
	cf->workers = fc->queues;
	cf->packet_table = table_us;
	if (fc->control)
		set_text(ld, &cf->control, fc->control);
	for (unsigned port = 0; port < PORTS_MAX && !ld->no_memory; port++)
		if (fc->ports >> port & 1)
			add_port(ld, fc, port);
	struct conf_output *out = ld->no_memory ? NULL : conf_load_add_output(ld, output_name, 0);
	if (!out)
		return;
	out->type = CONF_OUTPUT_TYPE_KAFKA;
	out->format = CONF_FORMAT_PACKET;
	out->partition = CONF_PARTITION_RANDOM; /* librdkafka's own choice by a key that is a time is one by chance */
	set_text(ld, &out->topic, fc->topic);
	if (fc->statistics)
		set_text(ld, &out->statistics_file, fc->statistics);
	conf_fastcapa_ini(ld, out, bytes, len);
	set_linger(ld, out);
	ld->outputs[out->index].rows[ROW_OUTPUT_properties].is_given = true; /* so that missing brokers are said */
	add_notes(ld, fc);
}
