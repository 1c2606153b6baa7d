/* SPDX-License-Identifier: MIT
 *
 * millrace-replay's options: --help, values and their ranges, and what a run does by default. Each run is bounded.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <string.h>

#include "replay.h"

static const char help_text[] =
	"usage: millrace-replay [options] HOST:PORT|[IPV6]:PORT|unix:PATH [FILE]\n"
	"Sends the UDP payloads of FILE (pcap, pcapng, \"-\" is stdin), or synthetic statsd lines without FILE.\n"
	"\n"
	"  --tcp              a stream instead of datagrams (with unix:PATH, too)\n"
	"  --sources N        from N sockets, in turn by burst (1)\n"
	"  --group BYTES      pack payloads into datagrams of at most BYTES, cut at line ends\n"
	"pace (FILE: --speed 1; lines: --flat-out)\n"
	"  --pps N            N datagrams a second, on absolute due times\n"
	"  --burst N          with --pps: N datagrams back to back, 1 to 64 (1 up to 100000 pps, else pps/50000)\n"
	"  --speed X          X times as fast as recorded\n"
	"  --flat-out         as fast as the kernel takes them\n"
	"the end: the first of these (FILE: one pass; lines: 1000000)\n"
	"  --count N          N datagrams\n"
	"  --lines N          N lines\n"
	"  --time TIME        10s, 500ms, ...\n"
	"  --repeat N         N passes over FILE; 0: until --count, --lines or --time\n"
	"from a file\n"
	"  --port N           only payloads whose recorded destination port is N\n"
	"synthetic lines, \"app.web012.request.latency.k001234:123|ms\"\n"
	"  --number           numbered lines instead: \"m.k001234:NUMBER|c\", NUMBER = 0, 1, 2, ...\n"
	"  --number-from N    first number (0)\n"
	"  --keys N           distinct keys (10000); the key of a number is NUMBER * 2654435761 mod N\n"
	"  --types LIST       of c, ms, g, h, s, d, in turn (ms,c,g; with --number: c)\n"
	"  --bytes N          lines fill datagrams of at most N bytes (1432)\n"
	"  --one              one line a datagram\n"
	"output\n"
	"  --json             the last line as a JSON object on stdout; the lines of each second go to stderr\n"
	"  -q, --quiet        no line each second\n"
	"  -h, --help\n"
	"Exit: 0 done, 1 not all could be sent, 2 cannot start.\n";

enum {
	OPT_TCP = 256,
	OPT_SOURCES,
	OPT_GROUP,
	OPT_PPS,
	OPT_BURST,
	OPT_SPEED,
	OPT_FLAT_OUT,
	OPT_COUNT,
	OPT_LINES,
	OPT_TIME,
	OPT_REPEAT,
	OPT_PORT,
	OPT_NUMBER,
	OPT_NUMBER_FROM,
	OPT_KEYS,
	OPT_TYPES,
	OPT_BYTES,
	OPT_ONE,
	OPT_JSON,
};

static const struct option long_options[] = {
	{"tcp", no_argument, NULL, OPT_TCP},
	{"sources", required_argument, NULL, OPT_SOURCES},
	{"group", required_argument, NULL, OPT_GROUP},
	{"pps", required_argument, NULL, OPT_PPS},
	{"burst", required_argument, NULL, OPT_BURST},
	{"speed", required_argument, NULL, OPT_SPEED},
	{"flat-out", no_argument, NULL, OPT_FLAT_OUT},
	{"count", required_argument, NULL, OPT_COUNT},
	{"lines", required_argument, NULL, OPT_LINES},
	{"time", required_argument, NULL, OPT_TIME},
	{"repeat", required_argument, NULL, OPT_REPEAT},
	{"port", required_argument, NULL, OPT_PORT},
	{"number", no_argument, NULL, OPT_NUMBER},
	{"number-from", required_argument, NULL, OPT_NUMBER_FROM},
	{"keys", required_argument, NULL, OPT_KEYS},
	{"types", required_argument, NULL, OPT_TYPES},
	{"bytes", required_argument, NULL, OPT_BYTES},
	{"one", no_argument, NULL, OPT_ONE},
	{"json", no_argument, NULL, OPT_JSON},
	{"quiet", no_argument, NULL, 'q'},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

/* What was given, where that cannot be seen from the value. */
struct given {
	bool repeat, flat_out, lines_only; /* lines_only: an option that only synthetic lines have */
	uint64_t port;
};

static int parse_rate(const char *arg, double *rate)
{
	char *end;

	errno = 0;
	*rate = strtod(arg, &end);
	return end == arg || *end || errno || !isfinite(*rate) || *rate <= 0 || *rate > 1e9 ? -EINVAL : 0;
}

static int parse_range(const char *arg, uint64_t min, uint64_t max, uint64_t *n)
{
	return text_parse_uint(arg, n) || *n < min || *n > max ? -ERANGE : 0;
}

static int parse_size(const char *arg, uint64_t *bytes)
{
	return text_parse_bytes(arg, bytes) || !*bytes || *bytes > REPLAY_DATAGRAM_BYTES ? -ERANGE : 0;
}

static int parse_types(struct replay_opts *o, const char *arg)
{
	static const char *const known[] = {"c", "ms", "g", "h", "s", "d"};

	o->n_types = 0;
	while (o->n_types < ARRAY_LEN(o->types)) {
		size_t len = strcspn(arg, ","), i = 0;

		while (i < ARRAY_LEN(known) && (strlen(known[i]) != len || memcmp(known[i], arg, len)))
			i++;
		if (i == ARRAY_LEN(known))
			return -EINVAL;
		o->types[o->n_types++] = known[i];
		if (!arg[len])
			return 0;
		arg += len + 1;
	}
	return -EINVAL;
}

static int option_take(struct replay_opts *o, struct given *g, int opt, const char *arg)
{
	switch (opt) {
	case OPT_TCP:
		o->stream = true;
		return 0;
	case OPT_SOURCES:
		return parse_range(arg, 1, 65535, &o->sources);
	case OPT_GROUP:
		return parse_size(arg, &o->group_bytes);
	case OPT_PPS:
		return parse_rate(arg, &o->pps);
	case OPT_BURST:
		return parse_range(arg, 1, REPLAY_BATCH, &o->burst);
	case OPT_SPEED:
		return parse_rate(arg, &o->speed);
	case OPT_FLAT_OUT:
		g->flat_out = true;
		return 0;
	case OPT_COUNT:
		return parse_range(arg, 1, UINT64_MAX - 1, &o->count_datagrams);
	case OPT_LINES:
		return parse_range(arg, 1, UINT64_MAX - 1, &o->count_lines);
	case OPT_TIME:
		return text_parse_time(arg, &o->time_us) || !o->time_us ? -EINVAL : 0;
	case OPT_REPEAT:
		g->repeat = true;
		return text_parse_uint(arg, &o->repeat);
	case OPT_PORT:
		return parse_range(arg, 1, 65535, &g->port);
	case OPT_NUMBER:
		g->lines_only = o->number = true;
		return 0;
	case OPT_NUMBER_FROM:
		g->lines_only = true;
		return parse_range(arg, 0, UINT64_C(1000000000000000000), &o->number_from);
	case OPT_KEYS:
		g->lines_only = true;
		return parse_range(arg, 1, REPLAY_KEYS, &o->keys);
	case OPT_TYPES:
		g->lines_only = true;
		return parse_types(o, arg);
	case OPT_BYTES:
		g->lines_only = true;
		return parse_size(arg, &o->payload_bytes);
	case OPT_ONE:
		g->lines_only = o->one = true;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case 'q':
		o->quiet = true;
		return 0;
	default:
		return -ENOENT;
	}
}

static int complete(struct replay_opts *o, const struct given *g, struct err *err)
{
	bool bounded = o->count_datagrams != UINT64_MAX || o->count_lines != UINT64_MAX || o->time_us;

	if ((o->pps > 0) + (o->speed > 0) + g->flat_out > 1)
		return err_set(err, -EINVAL, "--pps, --speed and --flat-out exclude each other");
	if (o->burst && !(o->pps > 0))
		return err_set(err, -EINVAL, "--burst needs --pps");
	if (!o->burst)
		o->burst = o->pps <= 100000 ? 1 : (uint64_t)MIN(o->pps / 50000, (double)REPLAY_BATCH);
	if (o->file) {
		if (g->lines_only)
			return err_set(err, -EINVAL,
				       "--number, --keys, --types, --bytes and --one make lines: not for a "
				       "file");
		if (g->repeat && !o->repeat && !bounded)
			return err_set(err, -EINVAL, "--repeat 0 needs an end: --count, --lines or --time");
		if (!(o->pps > 0) && !(o->speed > 0) && !g->flat_out)
			o->speed = 1;
		o->port = (unsigned)g->port;
		return 0;
	}
	if (g->repeat || g->port || o->speed > 0)
		return err_set(err, -EINVAL, "--repeat, --port and --speed are for a file, and none was given");
	if (!bounded)
		o->count_lines = 1000000;
	if (o->group_bytes) { /* lines pack themselves */
		o->payload_bytes = o->group_bytes;
		o->group_bytes = 0;
		o->one = false;
	}
	if (!o->n_types)
		parse_types(o, o->number ? "c" : "ms,c,g");
	return 0;
}

int replay_options_parse(struct replay_opts *o, int argc, char **argv, struct err *err)
{
	struct given g = {0};
	int opt, at = 0, rc;

	*o = (struct replay_opts){.repeat = 1,
				  .count_datagrams = UINT64_MAX,
				  .count_lines = UINT64_MAX,
				  .sources = 1,
				  .keys = 10000,
				  .payload_bytes = 1432};
	while ((opt = getopt_long(argc, argv, "hq", long_options, &at)) != -1) {
		if (opt == 'h') {
			fputs(help_text, stdout);
			return 1;
		}
		rc = option_take(o, &g, opt, optarg);
		if (rc == -ENOENT) /* getopt has said what is wrong */
			return err_set(err, -EINVAL, "see --help");
		if (rc)
			return err_set(err, -EINVAL, "--%s: \"%s\" is not a value that it takes; see --help",
				       long_options[at].name, optarg);
	}
	if (argc - optind < 1 || argc - optind > 2)
		return err_set(err, -EINVAL,
			       "write one target, HOST:PORT or unix:PATH, and at most one file; see --help");
	o->target = argv[optind];
	o->file = argv[optind + 1]; /* argv ends with NULL */
	return complete(o, &g, err);
}
