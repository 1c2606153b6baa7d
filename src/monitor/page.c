/* SPDX-License-Identifier: MIT
 *
 * page: the monitor's page, and what its script asks for each second. page.html is the frame; what is filled in here is
 * there without a script too. Each table is one list of columns and one function that gives the rows, for both.
 */
#include "answers.h"
#include "sheet.h"

#include <string.h>

__asm__(".section .rodata\n"
	"page_frame: .incbin \"src/monitor/page.html\"\n"
	".byte 0\n"
	".previous\n");
extern const char page_frame[] __attribute__((visibility("hidden")));

/* -- tiles: a rate, and its last ten minutes -------------------------------------------------------------------------
 */

enum {
	SPARK_SHORTEST = 60,
	SPARK_HEIGHT = 60
}; /* seconds that fill one at least; the script's drawTile does the same */

static double rate_datagrams(const struct history_rate *r)
{
	return r->datagrams;
}
static double rate_lines(const struct history_rate *r)
{
	return r->lines;
}
static double rate_bytes(const struct history_rate *r)
{
	return r->bytes;
}
static double rate_delivered(const struct history_rate *r)
{
	return r->delivered;
}
static double rate_lost(const struct history_rate *r)
{
	return r->lost;
}

static const struct tile {
	const char *id, *title;
	bool is_bytes;
	double (*of)(const struct history_rate *r);
} tiles[] = {
    {"datagrams", "datagrams/s", false, rate_datagrams},
    {"lines", "lines/s", false, rate_lines},
    {"bytes", "bytes/s", true, rate_bytes},
    {"delivered", "delivered/s", false, rate_delivered},
    {"lost", "lost/s", false, rate_lost},
};

static void tile_html(const struct history *h, const struct tile *tile, struct text *t)
{
	uint64_t first, end;
	struct history_rate rate = {0};
	struct text line = {0};
	double most = 0;
	char now[40], peak[40];
	enum sheet_format format = tile->is_bytes ? SHEET_BYTES : SHEET_COUNT;
	history_range(h, &first, &end);
	int width = (int)MAX(end - first, (uint64_t)SPARK_SHORTEST + 1) - 1;
	for (uint64_t n = first; n < end && history_rate(h, n, &rate); n++)
		most = MAX(most, tile->of(&rate));
	sheet_format(now, sizeof now, format, (uint64_t)tile->of(&rate));
	sheet_format(peak, sizeof peak, format, (uint64_t)most);
	for (uint64_t n = first; n < end && history_rate(h, n, &rate); n++)
		text_add(&line, "%s%d %.1f", n == first ? "M" : "L", (int)(width - (end - 1 - n)),
			 SPARK_HEIGHT - 2 - tile->of(&rate) / (most > 0 ? most : 1) * (SPARK_HEIGHT - 4));
	text_add(
	    t,
	    "<article class=\"tile%s%s\" id=\"tile-%s\"><h2>%s</h2><p class=\"now\">%s</p><p class=\"peak\">at most "
	    "%s</p>"
	    "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><path class=\"area\" d=\"",
	    most > 0 ? " some" : "", tile->of(&rate) > 0 ? " now-some" : "", tile->id, tile->title, now, peak, width,
	    SPARK_HEIGHT);
	if (line.s)
		text_add(t, "%sL%d %dL%d %dZ", line.s, width, SPARK_HEIGHT, (int)(width - (end - 1 - first)),
			 SPARK_HEIGHT);
	text_add(t, "\"/><path class=\"line\" d=\"%s\"/></svg></article>\n", line.s ? line.s : "");
	text_free(&line);
}

static void tiles_html(struct monitor *m, struct text *t)
{
	for (size_t i = 0; i < ARRAY_LEN(tiles); i++)
		tile_html(&m->history, &tiles[i], t);
}

static void rates_json(struct monitor *m, uint64_t since, struct text *t)
{
	uint64_t first, end;
	struct history_rate r;
	history_range(&m->history, &first, &end);
	first = since > first && since <= end ? since : first;
	text_add(t, "\"from\":%llu,\"rates\":[", (unsigned long long)first);
	for (uint64_t n = first; n < end && history_rate(&m->history, n, &r); n++) {
		for (size_t i = 0; i < ARRAY_LEN(tiles); i++)
			text_add(t, "%s%.0f", i ? "," : n == first ? "[" : ",[", tiles[i].of(&r));
		text_add(t, "]");
	}
	text_add(t, "],\n");
}

/* -- the sentence at the top -----------------------------------------------------------------------------------------
 */

/* Lost in the last ten minutes, and now. */
static void losing(const struct history *h, double *sum, double *now)
{
	uint64_t first, end;
	struct history_rate r = {0};
	history_range(h, &first, &end);
	*sum = 0;
	for (uint64_t n = first; n < end; n++)
		if (history_rate(h, n, &r))
			*sum += r.lost;
	*now = r.lost;
}

struct verdict {
	const char *word; /* good, was, bad: a class of the style */
	char text[200];
};

static struct verdict verdict_of(const struct monitor *m)
{
	struct verdict v = {.word = "good"};
	double sum, now;
	char lost[40], rate[40];
	losing(&m->history, &sum, &now);
	sheet_format(lost, sizeof lost, SHEET_COUNT, m->totals.lost);
	sheet_format(rate, sizeof rate, SHEET_COUNT, (uint64_t)now);
	if (m->totals.lost == 0) {
		snprintf(v.text, sizeof v.text, "0 lost");
	} else if (sum == 0) {
		v.word = "was";
		snprintf(v.text, sizeof v.text, "0 lost in the last ten minutes, %s since the start", lost);
	} else if (now == 0) {
		v.word = "was";
		snprintf(v.text, sizeof v.text, "%s lost, some of it in the last ten minutes", lost);
	} else {
		v.word = "bad";
		snprintf(v.text, sizeof v.text, "losing %s a second, %s lost since the start", rate, lost);
	}
	return v;
}

static uint64_t uptime_us(const struct monitor *m)
{
	uint64_t started_us = stats_named(m->copy, STATS_ALL, STATS_MASTER, 0, "started_us"), now_us = clock_real_us();
	return started_us && now_us > started_us ? now_us - started_us : 0;
}

static void summary_html(struct monitor *m, struct text *t)
{
	struct verdict v = verdict_of(m);
	struct text why = {0};
	char up[40];
	bool ready = answer_is_ready(m, &why);
	sheet_format(up, sizeof up, SHEET_AGE, uptime_us(m));
	text_add(t, "<p id=\"verdict\" class=\"%s\">%s</p>\n<p id=\"facts\"><span id=\"ready\" class=\"%s\">", v.word,
		 v.text, ready ? "good" : "bad");
	sheet_escape(t, ready ? "ready" : why.s ? why.s : "not ready");
	text_add(t, "</span> <span>up <span id=\"up\">%s</span></span> <span>millrace %s, pid %lld</span>", up,
		 MILLRACE_VERSION, (long long)m->setup->master_pid);
	uint64_t digest = stats_named(m->copy, STATS_ALL, STATS_MASTER, 0, "config_digest");
	text_add(t, " <span id=\"digest\">");
	if (digest)
		text_add(t, "configuration %012llx", (unsigned long long)digest);
	text_add(t, "</span></p>\n");
	text_free(&why);
}

static void summary_json(struct monitor *m, struct text *t)
{
	struct verdict v = verdict_of(m);
	struct text why = {0};
	bool ready = answer_is_ready(m, &why);
	uint64_t digest = stats_named(m->copy, STATS_ALL, STATS_MASTER, 0, "config_digest");
	text_add(t, "\"pid\":%lld,\"up_us\":%llu,\"ready\":%s,\"why\":", (long long)m->setup->master_pid,
		 (unsigned long long)uptime_us(m), ready ? "true" : "false");
	text_add_json(t, why.s ? why.s : "", why.len);
	text_add(t, ",\"verdict\":[\"%s\",\"%s\"],\"digest\":\"", v.word, v.text);
	if (digest)
		text_add(t, "configuration %012llx", (unsigned long long)digest);
	text_add(t, "\",\"advice\":");
	text_add_json(t, m->advice.len ? m->advice.s : "", m->advice.len);
	text_add(t, ",\n");
	text_free(&why);
}

/* -- all of it -------------------------------------------------------------------------------------------------------
 */

void page_json(struct monitor *m, struct answer *a)
{
	struct text *t = &a->body;
	text_add(t, "{\"at_us\":%llu,\"monitor\":%llu,", (unsigned long long)clock_us(),
		 (unsigned long long)m->counters->started_us);
	summary_json(m, t);
	rates_json(m, a->since, t);
	text_add(t, "\"sheets\":{");
	sheets_json(m, t);
	text_add(t, "}}\n");
}

void page_html(struct monitor *m, struct answer *a)
{
	struct text *t = &a->body;
	const char *from = page_frame, *mark;
	while ((mark = strstr(from, "{{"))) {
		text_add_bytes(t, from, (size_t)(mark - from));
		if (strncmp(mark, "{{nonce}}", 9) == 0)
			text_add(t, "%s", a->nonce);
		else if (strncmp(mark, "{{summary}}", 11) == 0)
			summary_html(m, t);
		else if (strncmp(mark, "{{tiles}}", 9) == 0)
			tiles_html(m, t);
		else if (strncmp(mark, "{{sheets}}", 10) == 0)
			sheets_html(m, t);
		const char *end = strstr(mark, "}}");
		BUG_ON(!end);
		from = end + 2;
	}
	text_add(t, "%s", from);
}
