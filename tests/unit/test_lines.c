/* SPDX-License-Identifier: MIT
 *
 * test_lines: the table of decisions, the cutting, and random lines against the reference, by each way of looking. */
#include "suite.h"
#include "../../src/input/lines.h"
#include "../fuzz/lines_reference.h"

#include <string.h>

#ifndef TEST_DATA
#define TEST_DATA "tests/data"
#endif

enum { ROOM = 1 << 17 };
static char buf[ROOM + BATCH_SLACK];
static struct line out[4096];

/* Each test runs once for each way of looking, `_i`. */
#define ADD_FOR_EACH_SCAN(tc, test) tcase_add_loop_test(tc, test, LINES_SCAN_PORTABLE, LINES_SCANS)
#define SKIP_WITHOUT_SCAN                                                                                              \
	if (!lines_scan_works((enum lines_scan)_i))                                                                    \
	return

static size_t cut_at_once(int scan, struct lines *ls, const char *bytes, size_t len, bool at_end, size_t *used)
{
	memcpy(buf, bytes, len);
	memset(buf + len, '|', BATCH_SLACK);
	char *at = buf;
	size_t n = lines_cut_by((enum lines_scan)scan, ls, &at, buf + len, at_end, out, ARRAY_LEN(out));
	if (used)
		*used = (size_t)(at - buf);
	const struct lines_counts *c = &ls->counts;
	ck_assert_uint_eq(c->received, c->to_outputs + c->invalid + c->empty + c->commands);
	ck_assert_uint_eq(memcmp(buf + len, "||||", 4), 0);
	return n;
}

/* "\t \r \n \NNN" of the table, in place; returns the length. */
static size_t unescape(char *s)
{
	char *to = s;
	const char *begin = s;
	while (*s) {
		if (*s != '\\') {
			*to++ = *s++;
		} else if (s[1] >= '0' && s[1] <= '7') {
			int v = 0, k = 0;
			for (s++; k < 3 && *s >= '0' && *s <= '7'; k++)
				v = v * 8 + (*s++ - '0');
			*to++ = (char)v;
		} else {
			*to++ = s[1] == 'r' ? '\r' : s[1] == 't' ? '\t' : '\n';
			s += 2;
		}
	}
	return (size_t)(to - begin);
}

static void check_row(int scan, char *line, size_t len, char kind, bool validate, const char *key, size_t key_len)
{
	static const char *const endings[] = {"", "\n"};
	for (size_t e = 0; e < ARRAY_LEN(endings); e++) {
		struct lines ls = {.protocol = LINES_STATSD, .validate = validate};
		size_t ending = strlen(endings[e]), n, used;
		if (len + ending == 0)
			continue;
		memcpy(line + len, endings[e], ending);
		n = cut_at_once(scan, &ls, line, len + ending, true, &used);
		ck_assert_uint_eq(used, len + ending);
		ck_assert_uint_eq(ls.counts.received, 1);
		ck_assert_msg((kind == 'F') == (n == 1) && ls.counts.to_outputs == n &&
				  ls.counts.empty == (kind == 'E') && ls.counts.invalid == (kind == 'I'),
			      "'%.*s' validate %d: not %c", (int)len, line, validate, kind);
		if (n == 1) {
			ck_assert_uint_eq(out[0].len, len - (line[len - 1] == '\r'));
			ck_assert_ptr_eq(out[0].bytes, buf);
			ck_assert_uint_eq(out[0].key_len, key_len);
			ck_assert_int_eq(memcmp(out[0].bytes + out[0].key_at, key, key_len), 0);
			ck_assert_uint_eq(out[0].hash, hash_murmur3_32(key, key_len, HASH_STATSRELAY_SEED));
		}
	}
}

START_TEST(table)
{
	SKIP_WITHOUT_SCAN;
	FILE *f = fopen(TEST_DATA "/statsd-lines.tsv", "r");
	ck_assert_msg(f != NULL, "no " TEST_DATA "/statsd-lines.tsv");
	char row[512];
	unsigned rows = 0;
	while (fgets(row, sizeof(row), f)) {
		if (row[0] == '#')
			continue;
		char *rest = row, *line = strsep(&rest, "\t"), *on = strsep(&rest, "\t"), *off = strsep(&rest, "\t");
		char *key = strsep(&rest, "\t");
		ck_assert(key && rest && strlen(on) == 1 && strlen(off) == 1);
		size_t len = unescape(line), key_len = unescape(key);
		char copy[512];
		memcpy(copy, line, len);
		check_row(_i, copy, len, *on, true, key, key_len);
		check_row(_i, copy, len, *off, false, key, key_len);
		struct ref r = ref_line(false, true, line, len);
		ck_assert_msg(r.kind == *on, "the reference on '%s'", line); /* who tests the test */
		rows++;
	}
	fclose(f);
	ck_assert_uint_ge(rows, 69);
}
END_TEST

static const struct {
	char kind;
	const char *line;
} more_statsd[] = {
	{'F', "a:1.797693134862315807e308|g"}, /* the largest double */
	{'F', "a:"
	  "17976931348623158079372897140530341507993413271003782693617377898044496829276475094664901797758"
	  "72070963302864166928879109465555478519404026306574886715058206819089020007083836762738548458177"
	  "11531764475730270069855571366959622842914819860834936475292719074168444365510704342711559699508"
	  "093042880177904174497791|g"}, /* the last that rounds to the largest double */
	{'I', "a:"
	  "17976931348623158079372897140530341507993413271003782693617377898044496829276475094664901797758"
	  "72070963302864166928879109465555478519404026306574886715058206819089020007083836762738548458177"
	  "11531764475730270069855571366959622842914819860834936475292719074168444365510704342711559699508"
	  "093042880177904174497792|g"}, /* the first that rounds to infinity */
	{'I', "a:1.797693134862315808e308|g"},
	{'I', "a:1e309|g"},
	{'I', "a:-1e309|g"},
	{'F', "a:0.0000001e315|g"},
	{'F', "a:0e999999999999999999999|g"},
	{'F', "a:1e-999999999999999999999|g"},
	{'I', "a:1e999999999999999999999|g"},
	{'I', "a:.|g"},
	{'I', "a:-|g"},
	{'I', "a:+.e1|g"},
	{'I', "a:1e|g"},
	{'I', "a:1e-|g"},
	{'F', "a:1E+05|g"},
	{'F', "a:-.5E-1|g"},
	{'I', "a:1.2.3|g"},
	{'I', "a:--1|g"},
	{'I', "a:1,5|g"},
	{'I', "a:1 |g"},
	{'F', "a:1234567|c"},
	{'F', "a:12345678|c"},
	{'F', "a:123456789012345678901234567890|c"},
	{'I', "a:1|ms "},
	{'F', "a:1|m"},
	{'I', "a:1|M"},
	{'I', "a:1|mm"},
	{'I', "a:1|cc"},
	{'I', "a:1|msx"},
	{'I', "a:1||c"},
	{'F', "a:1|C"},
	{'I', "a::1|c"},
	{'F', "a:1:2:3.5:-4|d|#x"},
	{'I', "a:1::3|d"},
	{'F', "a::|s"},
	{'F', "a:x\ty|s"}, /* any text; control bytes matter in keys only */
	{'F', "a:1|s|@0.5|#x"},
	{'F', "a|b:1|c"},
	{'I', "a\x7f:1|c"},
	{'I', "\ra:1|c"},
	{'F', "a:1|c|@1.000"},
	{'F', "a:1|c|@10e-1"},
	{'F', "a:1|c|@0.01e2"},
	{'I', "a:1|c|@1.0000000000000000000000001"},
	{'I', "a:1|c|@2"},
	{'I', "a:1|c|@-0.5"},
	{'I', "a:1|c|@-0"},
	{'I', "a:1|c|@1e-400"},
	{'I', "a:1|c|@nan"},
	{'I', "a:1|c|#x|@2"},
	{'I', "a:1|c|@0.5|@x"},
	{'F', "a:1|c|||"},
	{'F', "_sc|name|0|m:text"},
	{'F', "_sc|name|3|d:1656581400|h:web01|#env:prod,role:db|m:Redis: down"},
	{'I', "_sc|name|4"},
	{'I', "_sc|name|00"},
	{'I', "_sc|name|"},
	{'I', "_sc|name|ok"},
	{'I', "_sc|name"},
	{'I', "_sc||0"},
	{'I', "_sc|"},
	{'I', "_sc|a\tb|0"},
	{'F', "_sc:1|c"},
	{'F', "_scx|y:1|c"},
	{'F', "_e:1|c"},
	{'F', "_:1|c"},
	{'I', "_e{:1|c"},
	{'I', "_e{5,4}:12345|c"}, /* it begins as an event, and its text is too short */
	{'F', "_e{5,1}:12345|c"},
	{'F', "_e{8,14}:a:1|c is|\\nb|with:pipes"},
	{'F', "_e{1,0}:a|"},
	{'F', "_e{1,0}:a||t:error"},
	{'I', "_e{0,1}:|a"},
	{'I', "_e{1,1}:ab"},
	{'I', "_e{1,1}:a|bc"},
	{'I', "_e{1,1}:a|"},
	{'I', "_e{1,1}a|b"},
	{'I', "_e{1,1}"},
	{'I', "_e{1,1}:"},
	{'I', "_e{1}:a|b"},
	{'I', "_e{1,}:a|b"},
	{'I', "_e{,1}:a|b"},
	{'I', "_e{-1,1}:a|b"},
	{'I', "_e{+1,1}:a|b"},
	{'F', "_e{00000001,1}:a|b"},
	{'I', "_e{000000001,1}:a|b"},
	{'I', "_e{99999999,99999999}:a|b"},
	{'F', "a:1|c:2|ms"},
	{'F', "a:1|c:2|ms:x|s:3:4|d|@0.5|#t:u"},
	{'F', "a:1|c|@0.5:2|ms|@0.25:3|g"},
	{'F', "a:1|c|#t:2|ms"}, /* all of it is a tag and a section */
	{'I', "a:1|c:"},
	{'I', "a:1|c::2|c"},
	{'I', "a:1|c:2"},
	{'I', "a:1|c:2|"},
	{'I', "a:1|c:2|x"},
	{'I', "a:1|c:x|ms"},
	{'I', "a:1|c|@2:2|ms"},
	{'I', "a:1|c|@:2|ms"},
	{'I', "a:1|c|@0.5:"},
	{'I', "a:1|x:2|c"},
	{'F', "a:x|s:y:z|s"},
	{'I', "a:x|s:|s"},
	{'I', "a:1|cc:2|c"},
	{'I', "a:"},
	{'I', ":"},
	{'I', "a:|"},
};

START_TEST(more_decisions)
{
	SKIP_WITHOUT_SCAN;
	for (size_t i = 0; i < ARRAY_LEN(more_statsd); i++) {
		struct lines ls = {.protocol = LINES_STATSD, .validate = true};
		const char *line = more_statsd[i].line;
		size_t n = cut_at_once(_i, &ls, line, strlen(line), true, NULL);
		ck_assert_msg(n == (more_statsd[i].kind == 'F'), "'%s' is not %c", line, more_statsd[i].kind);
	}
	struct lines ls = {.protocol = LINES_STATSD, .validate = true};
	ck_assert_uint_eq(cut_at_once(_i, &ls, "a:1|c\0\n", 7, true, NULL), 0); /* no type of two bytes */
}
END_TEST

START_TEST(carbon)
{
	SKIP_WITHOUT_SCAN;
	static const struct {
		char on, off;
		const char *line;
	} rows[] = {
	    {'F', 'F', "a.b 1 1656581400"},
	    {'F', 'F', "a.b -1.5e3 1656581400.25"},
	    {'F', 'F', "a.b 1 -1"},
	    {'F', 'F', "a;env=prod 1 2"},
	    {'F', 'F', "a  1 \t 2"},
	    {'F', 'F', "a 1 2 "},
	    {'F', 'F', "a 1 2\r"},
	    {'I', 'F', "a 1 2 3"},
	    {'I', 'F', "a 1"},
	    {'I', 'F', "a 1 "},
	    {'I', 'F', "a "},
	    {'I', 'I', "a"},
	    {'I', 'I', " 1 2"},
	    {'I', 'F', "a\tb 1 2"},
	    {'I', 'I', "a\t1\t2"},
	    {'I', 'F', "a nan 2"},
	    {'I', 'F', "a 1e999 2"},
	    {'I', 'F', "a 0x1 2"},
	    {'I', 'F', "a 1 x"},
	    {'I', 'F', "a 1x 2"},
	    {'I', 'F', "a 12 1e999"},
	    {'F', 'F', "a:b|c 1 2"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		for (int validate = 0; validate < 2; validate++) {
			struct lines ls = {.protocol = LINES_CARBON, .validate = validate};
			const char *line = rows[i].line;
			size_t n = cut_at_once(_i, &ls, line, strlen(line), true, NULL);
			ck_assert_msg(n == ((validate ? rows[i].on : rows[i].off) == 'F'), "'%s' validate %d", line,
				      validate);
			if (n)
				ck_assert_uint_eq(out[0].key_len, strcspn(line, " "));
		}
	}
}
END_TEST

static bool count_status(void *arg, const char *bytes, size_t len)
{
	++*(unsigned *)arg;
	return len == 6 && memcmp(bytes, "status", 6) == 0;
}

START_TEST(cutting)
{
	SKIP_WITHOUT_SCAN;
	static const char bytes[] = "a:1|c\n\nstatus\r\nbad\nb:2|c\nc:3|c";
	unsigned asked = 0;
	size_t used, len = sizeof(bytes) - 1;
	struct lines ls = {.validate = true, .on_invalid = count_status, .on_invalid_arg = &asked};
	ck_assert_uint_eq(cut_at_once(_i, &ls, bytes, len, false, &used), 2);
	ck_assert_uint_eq(used, len - 5); /* "c:3|c" waits for its newline */
	ck_assert_uint_eq(asked, 2);
	ck_assert_uint_eq(ls.counts.commands, 1);
	ck_assert_uint_eq(ls.counts.invalid, 1);
	ck_assert_uint_eq(ls.counts.empty, 1);
	ck_assert_uint_eq(ls.counts.received, 5);
	ck_assert_uint_eq(cut_at_once(_i, &ls, bytes, len, true, &used), 3);
	ck_assert_uint_eq(used, len);

	/* a full `out` stops it, and it goes on from there */
	ls = (struct lines){.validate = true};
	char *at = buf;
	memcpy(buf, bytes, len);
	for (int i = 0; i < 3; i++)
		ck_assert_uint_eq(lines_cut_by((enum lines_scan)_i, &ls, &at, buf + len, true, out, 1), 1);
	ck_assert_ptr_eq(at, buf + len);
	ck_assert_uint_eq(lines_cut_by((enum lines_scan)_i, &ls, &at, buf + len, true, out, 1), 0);
	at = buf;
	ck_assert_uint_eq(lines_cut_by((enum lines_scan)_i, &ls, &at, buf + len, true, out, 0), 0);
	ck_assert_ptr_eq(at, buf);
	ck_assert_uint_eq(ls.counts.received, 6);

	/* what lies behind the end is no part of the line */
	memcpy(buf, "a:1|c\nx", 7);
	at = buf;
	ck_assert_uint_eq(lines_cut_by((enum lines_scan)_i, &ls, &at, buf + 3, true, out, 8), 0);
	ck_assert_ptr_eq(at, buf + 3);
	at = buf;
	ck_assert_uint_eq(lines_cut_by((enum lines_scan)_i, &ls, &at, buf + 5, false, out, 8), 0);
	ck_assert_ptr_eq(at, buf);
	at = buf;
	ck_assert_uint_eq(lines_cut(&ls, &at, buf + 6, false, out, 8), 1);
	ck_assert_ptr_eq(at, buf + 6);
}
END_TEST

/* Every length of key around the windows, with a control byte at each place. */
START_TEST(long_keys)
{
	SKIP_WITHOUT_SCAN;
	static char line[400];
	for (size_t key_len = 1; key_len < 200; key_len++) {
		memset(line, 'k', key_len);
		memcpy(line + key_len, ":1|c\n", 5);
		struct lines ls = {.validate = true};
		ck_assert_uint_eq(cut_at_once(_i, &ls, line, key_len + 5, false, NULL), 1);
		ck_assert_uint_eq(out[0].key_len, key_len);
		ck_assert_uint_eq(out[0].len, key_len + 4);
		for (size_t at = 0; at < key_len; at++) {
			line[at] = at % 2 ? 0x7f : 0x1f;
			ck_assert_uint_eq(cut_at_once(_i, &ls, line, key_len + 5, false, NULL), 0);
			line[at] = 'k';
		}
		line[key_len] = 'k';
		ck_assert_uint_eq(cut_at_once(_i, &ls, line, key_len + 5, false, NULL), 0); /* no separator at all */
	}
	static char big[LINE_MAX_BYTES];
	memset(big, 'k', sizeof(big));
	memcpy(big + sizeof(big) - 4, ":1|c", 4);
	struct lines ls = {.validate = true};
	ck_assert_uint_eq(cut_at_once(_i, &ls, big, sizeof(big), true, NULL), 1);
	ck_assert_uint_eq(out[0].key_len, sizeof(big) - 4);
}
END_TEST

static uint32_t random_state = 12345;

static uint32_t pick(uint32_t n)
{
	random_state = random_state * 1664525 + 1013904223;
	return (random_state >> 8) % n;
}

/* A line from pieces that are right, nearly right and wrong. */
static size_t random_line(char *to)
{
	static const char *const pieces[] = {
		"a", "app.web", ":", ":", "|", "|", "1", "12.5", "-3", "1e3", "+", ".", "c", "ms", "g", "s", "kv",
		"|c", "|ms", "|@0.5", "|@1", "|@2", "|#a:b,c", "\r", "\t", " ", "\xff", "\x7f", "1e309", "nan", "0x1",
		"_e{1,1}:a|", "_e{3,", "_sc|", "_sc|up|", "0}:", "C", "m",
		"name 1 2", " 17 18", "e", "E5", "00", "|g|@1e-1", "k2345678901234567890123456789012345678",
		"999999999"};
	size_t len = 0;
	for (uint32_t i = pick(9); i > 0; i--) {
		const char *piece = pieces[pick(ARRAY_LEN(pieces))];
		memcpy(to + len, piece, strlen(piece));
		len += strlen(piece);
		if (pick(40) == 0)
			to[len++] = (char)pick(256);
	}
	if (pick(2)) /* mostly well-formed lines, too */
		len += (size_t)sprintf(to + len, "k%u:%u%s|%s", pick(1000), pick(100000), pick(3) ? "" : ".5",
				       pick(2) ? "ms" : "c");
	for (size_t i = 0; i < len; i++)
		if (to[i] == '\n')
			to[i] = 'n';
	return len;
}

START_TEST(random_lines)
{
	SKIP_WITHOUT_SCAN;
	static char stream[100 * 1024];
	unsigned forwarded = 0, all = 0;
	for (int round = 0; round < 600; round++) {
		struct lines ls = {.protocol = round % 4 == 3 ? LINES_CARBON : LINES_STATSD, .validate = round % 8 < 6};
		struct ref expected[200];
		const char *starts[200];
		size_t len = 0, n_expected = 0;
		for (int i = 0; i < 200; i++) {
			char *line = stream + len;
			size_t line_len = random_line(line);
			struct ref r = ref_line(ls.protocol == LINES_CARBON, ls.validate, line, line_len);
			if (r.kind == 'F') {
				expected[n_expected] = r;
				starts[n_expected++] = line;
			}
			len += line_len;
			stream[len++] = '\n';
		}
		size_t n = cut_at_once(_i, &ls, stream, len, false, NULL);
		ck_assert_uint_eq(ls.counts.received, 200);
		for (size_t i = 0; i < MIN(n, n_expected); i++)
			ck_assert_msg(out[i].len == expected[i].len && out[i].key_at == expected[i].key_at &&
				  out[i].key_len == expected[i].key_len &&
					  out[i].bytes - buf == starts[i] - stream,
				      "expected '%.*s', got '%.*s'", (int)expected[i].len, starts[i], (int)out[i].len,
				      out[i].bytes);
		ck_assert_uint_eq(n, n_expected);
		forwarded += (unsigned)n;
		all += 200;
	}
	ck_assert(forwarded > all / 10 && forwarded < all * 9 / 10);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("lines");
	TCase *tc = tcase_create("lines");
	tcase_set_timeout(tc, 120); /* valgrind, sanitizers */
	ADD_FOR_EACH_SCAN(tc, table);
	ADD_FOR_EACH_SCAN(tc, more_decisions);
	ADD_FOR_EACH_SCAN(tc, carbon);
	ADD_FOR_EACH_SCAN(tc, cutting);
	ADD_FOR_EACH_SCAN(tc, long_keys);
	ADD_FOR_EACH_SCAN(tc, random_lines);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
