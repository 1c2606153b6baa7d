/* SPDX-License-Identifier: MIT
 *
 * ctl_drops: "drops": the path from the wire to the backends, with what each step lost. What the pages do not have, the
 * kernel's own numbers, is read here. The last ten seconds are the monitor's, or measured here.
 */
#include "ctl.h"
#include <net.h>
#include <report.h>
#include <string.h>

enum { SECONDS_MAX = 3600 };

struct drops_options {
	bool json, watch;
	uint64_t seconds; /* 0: ask the monitor */
};

struct drops {
	struct ctl *ctl;
	const struct drops_options *options;
	struct net_host_reader *host;
	struct proc_usage usage[STATS_SLOTS_MAX];
	struct report_drops *path;
};

static int options_read(struct drops_options *o, int argc, char **argv)
{
	*o = (struct drops_options){0};
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			o->json = true;
		else if (strcmp(argv[i], "--watch") == 0)
			o->watch = true;
		else if (strcmp(argv[i], "--seconds") != 0)
			return ctl_usage("drops takes only --json, --watch and --seconds N.");
		else if (++i == argc || text_parse_uint(argv[i], &o->seconds) != 0 || o->seconds < 1 ||
			 o->seconds > SECONDS_MAX)
			return ctl_usage("drops --seconds: \"%s\" is no number from 1 to %d.", i < argc ? argv[i] : "",
					 SECONDS_MAX);
	}
	if (o->watch && o->seconds)
		return ctl_usage("drops takes --watch or --seconds N, not both.");
	return CTL_OK;
}

static int path_sample(struct drops *d)
{
	int rc = ctl_take(d->ctl, d->ctl->copy);
	if (rc != CTL_OK)
		return rc;
	ctl_processes(d->ctl->copy, d->usage);
	struct report_seen seen = {
	    .host = net_host_read(d->host, true),
	    .usage = d->usage,
	    .now_us = clock_us(),
	    .now_real_us = clock_real_us(),
	};
	report_drops_add(d->path, d->ctl->copy, &seen);
	return CTL_OK;
}

static void path_show(struct drops *d, struct text *t)
{
	char shown[160];
	/* one who has watched for ten seconds needs no monitor; before, its ten seconds are more than ours */
	if (!d->options->seconds && report_drops_window_us(d->path) < 9 * 1000000)
		report_drops_recall(d->path, d->ctl->copy);
	if (d->options->json) {
		report_drops_json(d->path, d->ctl->copy, t);
		return;
	}
	text_add(t, "millrace %s, pid %lld\n",
		 text_escape(shown, sizeof(shown), d->ctl->version, strlen(d->ctl->version)), (long long)d->ctl->pid);
	report_drops_text(d->path, d->ctl->copy, t);
}

static int show_once(struct drops *d)
{
	struct text t = {0};
	int rc = path_sample(d);
	if (rc == CTL_OK && d->options->seconds) {
		ctl_screen_wait(NULL, clock_us() + d->options->seconds * 1000000);
		rc = ctl_has_ended(d->ctl) ? ctl_usage("millrace has ended.") : path_sample(d);
	}
	if (rc != CTL_OK)
		return rc;
	path_show(d, &t);
	return ctl_print(&t);
}

/* Samples are a second apart; a key or a resize in between only draws. */
static int show_again(struct drops *d, struct ctl_screen *screen)
{
	uint64_t next_us = clock_us();
	int rc = CTL_OK, key = CTL_KEY_NONE;
	while (rc == CTL_OK && key != 'q' && key != 'Q') {
		struct text t = {0};
		if (key == CTL_KEY_NONE) {
			rc = path_sample(d);
			next_us += 1000000;
		}
		if (rc != CTL_OK)
			break;
		path_show(d, &t);
		if (!screen) {
			text_add(&t, "%s", d->options->json ? "" : "\n");
			rc = ctl_print(&t);
		} else {
			rc = ctl_screen_draw(screen, &t);
			text_free(&t);
		}
		key = ctl_screen_wait(screen, next_us);
		if (key == CTL_KEY_NONE && ctl_has_ended(d->ctl))
			return CTL_BAD;
	}
	return rc;
}

int ctl_drops(struct ctl *ctl, int argc, char **argv)
{
	struct drops_options options;
	int rc = options_read(&options, argc, argv);
	if (rc == CTL_OK)
		rc = ctl_attach(ctl);
	if (rc != CTL_OK)
		return rc;
	struct drops d = {
	    .ctl = ctl, .options = &options, .host = net_host_open(ctl->pid), .path = report_drops_new(ctl->st)};
	if (!d.host || !d.path) {
		rc = ctl_usage("No memory for the path.");
	} else if (options.watch) {
		struct ctl_screen *screen = options.json ? NULL : ctl_screen_open();
		rc = show_again(&d, screen);
		ctl_screen_close(screen);
		if (rc == CTL_BAD)
			rc = ctl_usage("millrace has ended.");
	} else {
		rc = show_once(&d);
	}
	net_host_close(d.host);
	report_drops_free(d.path);
	return rc;
}
