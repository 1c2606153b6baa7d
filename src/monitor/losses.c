/* SPDX-License-Identifier: MIT
 *
 * losses: the log of what is lost: a line when a kind of loss begins, one a minute while it goes on, one when it is over.
 * The account at the end is the master's, who says of workers' deaths and shutdowns, too.
 */
#include "monitor.h"

#include <string.h>

enum { AGAIN_US = 60 * 1000000 };

typedef unsigned long long ull;

static bool is_told(const struct report_drop *row)
{
	bool is_hosts = row->step == REPORT_STEP_INTERFACE || row->step == REPORT_STEP_HOST;
	return !row->is_hint && !is_hosts && !strstr(row->name, "lost_at_death") && !strstr(row->name, "shutdown");
}

static void say(struct monitor *m, const struct report_drop *row, struct loss *loss, uint64_t now_us)
{
	char lasted[32];
	struct text t = {NULL};
	report_drops_row_advice(m->drops, m->copy, row, &t);
	if (loss->since_us == now_us)
		log_warn("%s loses %s: %llu so far (%s): %s", report_step_word(row->step), row->unit,
			 (ull)(row->lost - loss->at_begin), row->name, t.s ? t.s : row->help);
	else
		log_warn("%s goes on losing %s: %llu in %s (%s): %s", report_step_word(row->step), row->unit,
			 (ull)(row->lost - loss->at_begin),
			 text_format_time(lasted, sizeof(lasted), now_us - loss->since_us), row->name,
			 t.s ? t.s : row->help);
	text_free(&t);
	loss->said_us = now_us;
}

static void look(struct monitor *m, const struct report_drop *row, struct loss *loss, uint64_t now_us)
{
	char lasted[32];
	bool grows = row->lost > loss->last;
	if (grows && loss->since_us == 0) {
		loss->since_us = now_us;
		loss->at_begin = loss->last;
		say(m, row, loss, now_us);
	} else if (grows && now_us - loss->said_us >= AGAIN_US) {
		say(m, row, loss, now_us);
	} else if (!grows && loss->since_us != 0 && now_us - loss->grew_us >= AGAIN_US) {
		log_info("%s loses no %s any more: %llu were lost in %s (%s)", report_step_word(row->step), row->unit,
			 (ull)(row->lost - loss->at_begin),
			 text_format_time(lasted, sizeof(lasted), loss->grew_us - loss->since_us), row->name);
		loss->since_us = 0;
	}
	if (grows)
		loss->grew_us = now_us;
	loss->last = row->lost;
}

void losses_log(struct monitor *m)
{
	const struct report_drop *rows;
	unsigned n = report_drops_all(m->drops, &rows);
	uint64_t now_us = clock_us();
	for (unsigned i = 0; i < n; i++) {
		if (!m->has_losses)
			m->losses[i].last = rows[i].lost; /* our predecessor said it */
		else if (is_told(&rows[i]))
			look(m, &rows[i], &m->losses[i], now_us);
	}
	m->has_losses = true;
}
