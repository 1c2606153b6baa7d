/* SPDX-License-Identifier: MIT
 *
 * test_text: quantities, escapes, the growing string, and the sentence of an error.
 */
#include "suite.h"

#include <base.h>
#include <errno.h>
#include <string.h>

START_TEST(parse_bytes)
{
	static const struct {
		const char *s;
		int code;
		uint64_t bytes;
	} rows[] = {
	    {"0", 0, 0},
	    {"64", 0, 64},
	    {"64B", 0, 64},
	    {"64k", 0, 65536},
	    {"64K", 0, 65536},
	    {"64KiB", 0, 65536},
	    {"64kB", 0, 64000},
	    {"32M", 0, 32 * MIB},
	    {"32MiB", 0, 32 * MIB},
	    {"32 MiB", 0, 32 * MIB},
	    {"32MB", 0, 32000000},
	    {"1GiB", 0, GIB},
	    {"1.5KiB", 0, 1536},
	    {"0.001KiB", 0, 1},
	    {"18446744073709551615", 0, UINT64_MAX},
	    {"18446744073709551616", -ERANGE, 0},
	    {"99999999999999999999999", -ERANGE, 0},
	    {"17179869184GiB", -ERANGE, 0},
	    {"0.0001KiB", -ERANGE, 0}, /* not 0: 0 may mean "off" */
	    {"", -EINVAL, 0},
	    {"KiB", -EINVAL, 0},
	    {"-1", -EINVAL, 0},
	    {"+1", -EINVAL, 0},
	    {" 1", -EINVAL, 0},
	    {"1.5", -EINVAL, 0},
	    {"1.", -EINVAL, 0},
	    {".5k", -EINVAL, 0},
	    {"1e3", -EINVAL, 0},
	    {"0x10", -EINVAL, 0},
	    {"1Q", -EINVAL, 0},
	    {"1KiBx", -EINVAL, 0},
	    {"1s", -EINVAL, 0},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint64_t bytes = 4711;
		int r = text_parse_bytes(rows[i].s, &bytes);
		ck_assert_msg(r == rows[i].code, "'%s': %d", rows[i].s, r);
		ck_assert_msg(bytes == (r ? 4711 : rows[i].bytes), "'%s': %ju", rows[i].s, (uintmax_t)bytes);
	}
}
END_TEST

START_TEST(parse_time)
{
	static const struct {
		const char *s;
		int code;
		uint64_t us;
	} rows[] = {
	    {"250us", 0, 250},	   {"5ms", 0, 5000},
	    {"5s", 0, 5000000},	   {"5", 0, 5000000},
	    {"0.5", 0, 500000},	   {"1.5s", 0, 1500000},
	    {"10m", 0, 600000000}, {"10min", 0, 600000000},
	    {"1h", 0, 3600000000}, {"off", 0, 0},
	    {"OFF", 0, 0},	   {"0", 0, 0},
	    {"0.000001", 0, 1},	   {"0.0000001", -ERANGE, 0},
	    {"0.5us", -EINVAL, 0}, {"9999999999999h", -ERANGE, 0},
	    {"1d", -EINVAL, 0},	   {"ms", -EINVAL, 0},
	    {"", -EINVAL, 0},	   {"1KiB", -EINVAL, 0},
	    {"-5s", -EINVAL, 0},   {"0.33333333333333333333333333s", 0, 333333},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		uint64_t us = 4711;
		int r = text_parse_time(rows[i].s, &us);
		ck_assert_msg(r == rows[i].code, "'%s': %d", rows[i].s, r);
		ck_assert_msg(us == (r ? 4711 : rows[i].us), "'%s': %ju", rows[i].s, (uintmax_t)us);
	}
}
END_TEST

START_TEST(parse_uint_and_bool)
{
	uint64_t n = 7;
	bool b = true;
	ck_assert_int_eq(text_parse_uint("0", &n), 0);
	ck_assert_uint_eq(n, 0);
	ck_assert_int_eq(text_parse_uint("18446744073709551615", &n), 0);
	ck_assert(n == UINT64_MAX);
	ck_assert_int_eq(text_parse_uint("18446744073709551616", &n), -ERANGE);
	ck_assert_int_eq(text_parse_uint("18446744073709551616x", &n), -EINVAL);
	ck_assert_int_eq(text_parse_uint("", &n), -EINVAL);
	ck_assert_int_eq(text_parse_uint("-1", &n), -EINVAL);
	ck_assert_int_eq(text_parse_uint("1 ", &n), -EINVAL);
	ck_assert(n == UINT64_MAX);
	static const char *const words[] = {"no", "yes", "False", "TRUE", "off", "on"};
	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		ck_assert_int_eq(text_parse_bool(words[i], &b), 0);
		ck_assert_int_eq(b, i & 1);
	}
	ck_assert_int_eq(text_parse_bool("1", &b), -EINVAL);
	ck_assert_int_eq(text_parse_bool("", &b), -EINVAL);
}
END_TEST

START_TEST(format)
{
	static const struct {
		uint64_t n;
		const char *bytes, *time;
	} rows[] = {
	    {0, "0 B", "0 us"},
	    {17, "17 B", "17 us"},
	    {1023, "1023 B", "1 ms"},
	    {1024, "1 KiB", "1 ms"},
	    {1536, "1.5 KiB", "1.5 ms"},
	    {250000, "244.1 KiB", "250 ms"},
	    {999949, "976.5 KiB", "999.9 ms"},
	    {999950, "976.5 KiB", "1 s"},
	    {1048575, "1 MiB", "1 s"},
	    {12000000, "11.4 MiB", "12 s"},
	    {32 * MIB, "32 MiB", "33.6 s"},
	    {180000000, "171.7 MiB", "3 min"},
	    {3600000000, "3.4 GiB", "1 h"},
	    {UINT64_MAX, "16 EiB", "5124095576 h"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		char buf[16];
		ck_assert_str_eq(text_format_bytes(buf, sizeof(buf), rows[i].n), rows[i].bytes);
		ck_assert_str_eq(text_format_time(buf, sizeof(buf), rows[i].n), rows[i].time);
	}
}
END_TEST

START_TEST(escape)
{
	char buf[64];
	ck_assert_str_eq(text_escape(buf, sizeof(buf), "plain %s", 8), "plain %s");
	ck_assert_str_eq(text_escape(buf, sizeof(buf), "\n\r\t\"\\", 5), "\\n\\r\\t\\\"\\\\");
	ck_assert_str_eq(text_escape(buf, sizeof(buf), "\0\x1b\x7f\xff", 4), "\\x00\\x1b\\x7f\\xff");
	ck_assert_str_eq(text_escape(buf, sizeof(buf), "", 0), "");
	ck_assert_str_eq(text_escape(buf, 9, "12345678", 8), "12345678");
	ck_assert_str_eq(text_escape(buf, 9, "123456789", 9), "12345...");
	ck_assert_str_eq(text_escape(buf, 9, "1234\xff\xff", 6), "1234...");
	ck_assert_str_eq(text_escape(buf, 9, "12\xff\xff", 4), "12...");
	/* no size overruns, cuts an escape in two, or leaves out the NUL */
	for (size_t size = 0; size < 32; size++) {
		memset(buf, '#', sizeof(buf));
		ck_assert_ptr_eq(text_escape(buf, size, "a\n\x01z\\ \xff 0123456789", 18), buf);
		if (size)
			ck_assert_uint_lt(strnlen(buf, size), size);
		for (size_t i = size; i < sizeof(buf); i++)
			ck_assert_int_eq(buf[i], '#');
	}
}
END_TEST

START_TEST(growing)
{
	struct text t = {0};
	text_add(&t, "%s", "");
	ck_assert_str_eq(t.s, "");
	for (int i = 0; i < 1000; i++)
		text_add(&t, "%d,", i);
	ck_assert_uint_eq(t.len, 3890);
	ck_assert_uint_eq(strlen(t.s), t.len);
	text_add_bytes(&t, "a\0b", 3);
	ck_assert_uint_eq(t.len, 3893);
	ck_assert_int_eq(memcmp(t.s + 3890, "a\0b", 4), 0);
	text_add_bytes(&t, NULL, 0);
	char big[5000];
	memset(big, 'x', sizeof(big));
	text_add(&t, "%.*s", (int)sizeof(big), big);
	ck_assert_uint_eq(t.len, 8893);
	ck_assert(!t.failed);
	text_add_bytes(&t, big, SIZE_MAX - 10); /* cannot be had: remembered, nothing added */
	ck_assert(t.failed);
	text_add(&t, "more");
	ck_assert_uint_eq(t.len, 8893);
	text_free(&t);
	ck_assert(!t.s && !t.failed && t.len == 0);
	text_free(&t);
}
END_TEST

START_TEST(json)
{
	static const struct {
		const char *in, *out;
	} rows[] = {
	    {"", "\"\""},
	    {"a\"b\\c", "\"a\\\"b\\\\c\""},
	    {"\n\t\x01\x7f", "\"\\n\\u0009\\u0001\\u007f\""},
	    {"na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80", "\"na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80\""},
	    {"\xff", "\"\xef\xbf\xbd\""},
	    {"\xc3", "\"\xef\xbf\xbd\""},
	    {"\xc3(", "\"\xef\xbf\xbd(\""},
	    {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},				  /* overlong */
	    {"\xe0\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},		  /* overlong */
	    {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},		  /* a surrogate */
	    {"\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* above U+10FFFF */
	    {"\xf0\x80\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct text t = {0};
		text_add_json(&t, rows[i].in, strlen(rows[i].in));
		ck_assert_str_eq(t.s, rows[i].out);
		text_free(&t);
	}
	struct text t = {0};
	text_add_json(&t, "a\0b", 3);
	ck_assert_str_eq(t.s, "\"a\\u0000b\"");
	text_free(&t);
}
END_TEST

START_TEST(error_text)
{
	struct err err;
	ck_assert_int_eq(err_set(&err, -EINVAL, "\"%s\" is no port", "x"), -EINVAL);
	ck_assert_str_eq(err.text, "\"x\" is no port");
	ck_assert_int_eq(err_set(&err, -ENOENT, "line 3: %s", err.text), -ENOENT); /* wraps itself */
	ck_assert_str_eq(err.text, "line 3: \"x\" is no port");
	ck_assert_int_eq(err_set(NULL, -EINVAL, "%s", "nobody asks"), -EINVAL);
	char big[3000];
	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	err_set(&err, 0, "%s", big);
	ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
	ck_assert_str_eq(err.text + sizeof(err.text) - 5, "x...");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("text");
	TCase *tc = tcase_create("text");
	tcase_add_test(tc, parse_bytes);
	tcase_add_test(tc, parse_time);
	tcase_add_test(tc, parse_uint_and_bool);
	tcase_add_test(tc, format);
	tcase_add_test(tc, escape);
	tcase_add_test(tc, growing);
	tcase_add_test(tc, json);
	tcase_add_test(tc, error_text);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
