/* SPDX-License-Identifier: MIT
 *
 * answers: what stands at each path of the monitor's HTTP server, from the copy of the pages that was just taken. The
 * page itself is in page.c.
 */
#include "answers.h"

#include <string.h>

static struct report_program program_of(const struct monitor *m)
{
	return (struct report_program){
	    .version = MILLRACE_VERSION, .pid = m->setup->master_pid, .now_us = clock_real_us()};
}

bool answer_is_ready(const struct monitor *m, struct text *why)
{
	unsigned waits = 0, first = 0;
	for (unsigned slot = 0; slot < stats_copy_slots(m->copy); slot++) {
		uint64_t state = stats_named(m->copy, STATS_ALL, STATS_SLOT, slot, "state");
		if (state == STATS_SLOT_READY || state == STATS_SLOT_REMOVED) /* nobody waits for one that is removed */
			continue;
		first = waits++ ? first : slot;
	}
	if (waits)
		text_add(why, "worker %u is %s", first,
			 stats_slot_state_word(stats_named(m->copy, STATS_ALL, STATS_SLOT, first, "state")));
	if (waits > 1)
		text_add(why, ", and %u more are not ready", waits - 1);
	if (stats_named(m->copy, STATS_ALL, STATS_MASTER, 0, "reload_failed"))
		text_add(why, "%sthe last reload failed: the file is not what is in effect", waits ? "; " : "");
	return why->len == 0;
}

static void make_metrics(struct monitor *m, struct answer *a)
{
	struct report_program program = program_of(m);
	report_prometheus(m->copy, &program, &a->body);
}

static void make_healthz(struct monitor *m, struct answer *a)
{
	(void)m;
	text_add(&a->body, "ok\n");
}

static void make_readyz(struct monitor *m, struct answer *a)
{
	struct text why = {0};
	bool ready = answer_is_ready(m, &why);
	a->status = ready ? 200 : 503;
	text_add(&a->body, "%s\n", ready ? "ready" : why.s ? why.s : "not ready");
	text_free(&why);
}

static void make_status(struct monitor *m, struct answer *a)
{
	struct report_program program = program_of(m);
	report_status_json(m->copy, &program, &a->body);
}

const struct route http_routes[] = {
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", make_metrics, false},
    {"/healthz", "text/plain; charset=utf-8", make_healthz, false},
    {"/readyz", "text/plain; charset=utf-8", make_readyz, false},
    {"/api/status", "application/json", make_status, false},
    {"/api/page", "application/json", page_json, false},
    {"/", "text/html; charset=utf-8", page_html, true},
};
_Static_assert(ARRAY_LEN(http_routes) == HTTP_ROUTES, "HTTP_ROUTES counts them");
