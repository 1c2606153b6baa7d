/* SPDX-License-Identifier: MIT
 *
 * millrace-sink's options: --help, values and their ranges.
 */
#include <errno.h>
#include <getopt.h>

#include "sink.h"

static const char help_text[] =
	"usage: millrace-sink [options] HOST:PORT|[IPV6]:PORT ...\n"
	"A statsd backend double: counts, verifies numbered lines, misbehaves on demand. Port 0 picks one;\n"
	"prints \"listening tcp|udp ADDRESS:PORT\" for each before it serves.\n"
	"\n"
	"  --tcp | --udp | --both  what to listen on (tcp)\n"
	"  --ports N               N ports for each address: consecutive, or N picked ones when PORT is 0 (1)\n"
	"counting\n"
	"  --number                verify the lines of `millrace-replay --number`: missing, doubles, malformed\n"
	"  --number-from N         their first number (0)\n"
	"  --keys N                verify that each number has the key that `millrace-replay --keys N` gave it\n"
	"  --out FILE              write every line that was read to FILE\n"
	"the end (else SIGTERM, SIGINT; these read first what the kernel still holds)\n"
	"  --expect N              N lines (with --number: N distinct ones); exit 1 when they did not come\n"
	"  --settle TIME           after --expect, wait for TIME without data, so that doubles show (200ms)\n"
	"  --idle TIME             TIME without data, once data came\n"
	"  --timeout TIME          TIME after the start, whatever came\n"
	"  --strict                exit 1 also for missing, doubles, malformed, outside, partial lines\n"
	"reports (SIGUSR1 prints one, too)\n"
	"  --json                  one JSON object on stdout instead of text\n"
	"  --live                  a line each second (to stderr with --json)\n"
	"misbehaviour\n"
	"  --stall[=TIME]          accept, but do not read (for TIME from the start)\n"
	"  --slow BYTES            read at most BYTES a second, each port\n"
	"  --rcvbuf BYTES          receive buffer of each socket (tcp 4MiB, udp 32MiB)\n"
	"  --reset-every N|TIME    reset a port's connections after each N lines, or all after each TIME (1s, 50ms)\n"
	"  --close-after BYTES     close each connection after BYTES\n"
	"  --control-stdin         commands on stdin, answered by \"ok ...\" or \"error ...\" on stdout:\n"
	"                          stall on|off|TIME, refuse on|off, slow BYTES|off, reset (each may be followed by\n"
	"                          a PORT), report, quit\n"
	"  -h, --help\n"
	"Exit: 0 done, 1 not what --expect or --strict ask for, 2 cannot start.\n";

enum {
	OPT_TCP = 256,
	OPT_UDP,
	OPT_BOTH,
	OPT_PORTS,
	OPT_NUMBER,
	OPT_NUMBER_FROM,
	OPT_KEYS,
	OPT_OUT,
	OPT_EXPECT,
	OPT_SETTLE,
	OPT_IDLE,
	OPT_TIMEOUT,
	OPT_STRICT,
	OPT_JSON,
	OPT_LIVE,
	OPT_STALL,
	OPT_SLOW,
	OPT_RCVBUF,
	OPT_RESET_EVERY,
	OPT_CLOSE_AFTER,
	OPT_CONTROL_STDIN,
};

static const struct option long_options[] = {
	{"tcp", no_argument, NULL, OPT_TCP},
	{"udp", no_argument, NULL, OPT_UDP},
	{"both", no_argument, NULL, OPT_BOTH},
	{"ports", required_argument, NULL, OPT_PORTS},
	{"number", no_argument, NULL, OPT_NUMBER},
	{"number-from", required_argument, NULL, OPT_NUMBER_FROM},
	{"keys", required_argument, NULL, OPT_KEYS},
	{"out", required_argument, NULL, OPT_OUT},
	{"expect", required_argument, NULL, OPT_EXPECT},
	{"settle", required_argument, NULL, OPT_SETTLE},
	{"idle", required_argument, NULL, OPT_IDLE},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"strict", no_argument, NULL, OPT_STRICT},
	{"json", no_argument, NULL, OPT_JSON},
	{"live", no_argument, NULL, OPT_LIVE},
	{"stall", optional_argument, NULL, OPT_STALL},
	{"slow", required_argument, NULL, OPT_SLOW},
	{"rcvbuf", required_argument, NULL, OPT_RCVBUF},
	{"reset-every", required_argument, NULL, OPT_RESET_EVERY},
	{"close-after", required_argument, NULL, OPT_CLOSE_AFTER},
	{"control-stdin", no_argument, NULL, OPT_CONTROL_STDIN},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static int option_take(struct sink_opts *o, int opt, const char *arg)
{
	switch (opt) {
	case OPT_TCP:
		o->tcp = true;
		return 0;
	case OPT_UDP:
		o->udp = true;
		return 0;
	case OPT_BOTH:
		o->tcp = o->udp = true;
		return 0;
	case OPT_PORTS:
		return text_parse_uint(arg, &o->ports) || !o->ports || o->ports > 65535 ? -EINVAL : 0;
	case OPT_NUMBER:
		o->number = true;
		return 0;
	case OPT_NUMBER_FROM:
		return text_parse_uint(arg, &o->number_from);
	case OPT_KEYS:
		return text_parse_uint(arg, &o->keys);
	case OPT_OUT:
		o->out_path = arg;
		return 0;
	case OPT_EXPECT:
		return text_parse_uint(arg, &o->expect) || !o->expect ? -EINVAL : 0;
	case OPT_SETTLE:
		return text_parse_time(arg, &o->settle_us);
	case OPT_IDLE:
		return text_parse_time(arg, &o->idle_us);
	case OPT_TIMEOUT:
		return text_parse_time(arg, &o->timeout_us);
	case OPT_STRICT:
		o->strict = true;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case OPT_LIVE:
		o->live = true;
		return 0;
	case OPT_STALL:
		o->stall = true;
		return arg ? text_parse_time(arg, &o->stall_us) : 0;
	case OPT_SLOW:
		return text_parse_bytes(arg, &o->slow_bytes);
	case OPT_RCVBUF:
		return text_parse_bytes(arg, &o->rcvbuf_bytes);
	case OPT_RESET_EVERY:
		/* A bare number is lines here; a time has its unit. */
		if (!text_parse_uint(arg, &o->reset_lines))
			return 0;
		o->reset_lines = 0;
		return text_parse_time(arg, &o->reset_us);
	case OPT_CLOSE_AFTER:
		return text_parse_bytes(arg, &o->close_after_bytes);
	case OPT_CONTROL_STDIN:
		o->control_stdin = true;
		return 0;
	default:
		return -ENOENT;
	}
}

int sink_options_parse(struct sink_opts *o, int argc, char **argv, int *first, struct err *err)
{
	int opt, at = 0, rc;

	*o = (struct sink_opts){.ports = 1, .settle_us = 200000};
	while ((opt = getopt_long(argc, argv, "h", long_options, &at)) != -1) {
		if (opt == 'h') {
			fputs(help_text, stdout);
			return 1;
		}
		rc = option_take(o, opt, optarg);
		if (rc == -ENOENT) /* getopt has said what is wrong */
			return err_set(err, -EINVAL, "see --help");
		if (rc)
			return err_set(err, -EINVAL, "--%s: \"%s\" is not a value that it takes; see --help",
				       long_options[at].name, optarg);
	}
	if (optind == argc)
		return err_set(err, -EINVAL, "no address was given; write HOST:PORT, or see --help");
	if (!o->udp)
		o->tcp = true;
	*first = optind;
	return 0;
}
