/* SPDX-License-Identifier: MIT
 *
 * test_sheet: what the page is made of: numbers and names as text, and the history behind its curves.
 */
#include "suite.h"
#include "../../src/monitor/history.h"
#include "../../src/monitor/sheet.h"
#include <report.h>
#include <string.h>

START_TEST(test_format)
{
	static const struct {
		enum sheet_format format;
		uint64_t n;
		const char *text;
	} rows[] = {
	    {SHEET_COUNT, 0, "0"},
	    {SHEET_COUNT, 999, "999"},
	    {SHEET_COUNT, 1000, "1,000"},
	    {SHEET_LOST, 1234567, "1,234,567"},
	    {SHEET_RATE, UINT64_MAX, "18,446,744,073,709,551,615"},
	    {SHEET_BYTES, 1536, "1.5 KiB"},
	    {SHEET_BYTE_RATE, 17, "17 B"},
	    {SHEET_AGE, 59999999, "59 s"},
	    {SHEET_AGE, 61000000, "1 min 1 s"},
	    {SHEET_AGE, UINT64_C(3720000000), "1 h 2 min"},
	    {SHEET_AGE, UINT64_C(90000000000), "1 d 1 h"},
	    {SHEET_SHARE, 0, "0 %"},
	    {SHEET_SHARE, 1, "0.0001 %"},
	    {SHEET_SHARE, 123400, "12.3 %"},
	    {SHEET_SHARE, 1000000, "100 %"},
	};
	char buf[48];
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		ck_assert_str_eq(sheet_format(buf, sizeof buf, rows[i].format, rows[i].n), rows[i].text);
}
END_TEST

START_TEST(test_escape)
{
	struct text t = {0};
	sheet_escape(&t, "<img src=\"x\" onerror='a()'>&\n\x7f ä");
	ck_assert_str_eq(t.s, "&#60;img src=&#34;x&#34; onerror=&#39;a()&#39;&#62;&#38;&#63;&#63; ä");
	text_free(&t);
}
END_TEST

START_TEST(test_history)
{
	static struct history h;
	struct history_rate r;
	uint64_t first, end;
	history_range(&h, &first, &end);
	ck_assert(first == end && !history_rate(&h, 0, &r));
	history_add(&h, 1000000, &(struct report_totals){.lines = 100, .waiting = 7});
	history_range(&h, &first, &end);
	ck_assert(first == end && !history_rate(&h, 0, &r)); /* one point is no rate: what came before is not known */
	history_add(&h, 3000000, &(struct report_totals){.lines = 300, .lost = 1, .waiting = 9});
	history_range(&h, &first, &end);
	ck_assert(first == 1 && end == 2 && history_rate(&h, 1, &r));
	ck_assert(r.lines == 100 && r.lost == 0.5 && r.waiting == 9); /* a second that was late */
	ck_assert(!history_rate(&h, 2, &r) && !history_rate(&h, 0, &r));
	history_add(&h, 4000000, &(struct report_totals){.lines = 200}); /* taken out by a reload */
	ck_assert(history_rate(&h, 2, &r) && r.lines == 0);
	for (unsigned i = 0; i < 2 * HISTORY_POINTS; i++)
		history_add(&h, 5000000 + i * UINT64_C(1000000), &(struct report_totals){.lines = 200 + 10 * i});
	history_range(&h, &first, &end);
	ck_assert(end == 2 * HISTORY_POINTS + 3 && end - first == HISTORY_POINTS - 1);
	for (uint64_t n = first; n < end; n++)
		ck_assert(history_rate(&h, n, &r) && r.lines == 10);
	ck_assert(!history_rate(&h, first - 1, &r));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("sheet");
	TCase *tc = tcase_create("page");
	tcase_add_test(tc, test_format);
	tcase_add_test(tc, test_escape);
	tcase_add_test(tc, test_history);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
