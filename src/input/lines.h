/* SPDX-License-Identifier: MIT
 *
 * lines: cuts received bytes into lines and tells the lines that a backend can use from those that only cost it time.
 * Worker only. Pure: no system call, clock, global or allocation, and no byte is written but *out and *ls.
 *
 * A forwarded line leaves as it came, without its newline and without one CR before it. `tests/data/statsd-lines.tsv`
 * is the table of decisions, docs/protocols.md explains them. In short, for statsd:
 *
 *   METRIC   KEY:VALUE|TYPE[|SECTION...][:VALUE|TYPE[|SECTION...]]...
 *            A further value follows a ':' behind a TYPE or a RATE; behind another SECTION a ':' is of that section.
 *   EVENT    _e{N,M}:TITLE|TEXT[|SECTION...]   TITLE of N bytes, not empty, is the key; TEXT of M bytes
 *   CHECK    _sc|NAME|STATUS[|SECTION...]      NAME, not empty, without control bytes, is the key; STATUS: 0, 1, 2 or 3
 *
 *   KEY      what stands before the first ':', not empty. Validation: no control bytes (below 0x20, and 0x7f).
 *   VALUE    up to the first '|'. TYPE s: any text, not empty. Others: numbers, more than one when separated by ':'.
 *   TYPE     c C g m ms h d kv s
 *   SECTION  "@RATE": a number above 0 (a rate below 1e-300 is no rate) and at most 1. Others pass, whatever they hold.
 *   number   decimal text: [+-] digits with at most one point, [e[+-]digits]; finite as a double.
 *
 * and for carbon: NAME VALUE TIME, the key being what stands before the first space, not empty, without control bytes;
 * VALUE and TIME are numbers as above (a time may be -1 or have a fraction), separated by one or more spaces or tabs;
 * the line may end with such.
 *
 * Without validation a line needs a key and its separator, nothing else. What begins as an event and is none is then
 * keyed by what stands before its first ':', as any line.
 */
#ifndef INPUT_LINES_H
#define INPUT_LINES_H

#include <batch.h>

enum lines_protocol { LINES_STATSD, LINES_CARBON };

struct lines_counts {
	uint64_t received, to_outputs, invalid, empty, commands; /* the first is the sum of the others, always */
};

struct lines {
	enum lines_protocol protocol;
	bool validate;
	/* Asked about each invalid line when not NULL; true: it was a command ("status" on a stream), counted as such.
	 * The bytes are borrowed for the call. */
	bool (*on_invalid)(void *arg, const char *bytes, size_t len);
	void *on_invalid_arg;
	struct lines_counts counts;
};

/* Cuts lines from *at up to `end` into out[max], stops when `out` is full or the bytes are used up, moves *at behind
 * what was consumed and adds it to the counts. Returns the number of lines in `out`; they point into the bytes.
 * `at_end` (end of a datagram or of a stream): bytes behind the last newline are a line, too. Otherwise they stay
 * unconsumed: the caller calls again with more bytes behind them, and decides what is too long.
 * All of [*at, end) is consumed unless the return value is `max` or bytes without newline are left.
 * May read BATCH_SLACK bytes from `end` on; what they hold does not matter. */
size_t lines_cut(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max);

/* The same by one way of looking for the structure of a line; lines_cut takes the fastest that works here. For tests
 * and benchmarks. */
enum lines_scan { LINES_SCAN_PORTABLE, LINES_SCAN_SSE2, LINES_SCAN_AVX2, LINES_SCAN_NEON, LINES_SCANS };
bool lines_scan_works(enum lines_scan scan);
size_t lines_cut_by(enum lines_scan scan, struct lines *ls, char **at, const char *end, bool at_end, struct line *out,
		    size_t max);

/* Where a line's key is. */
struct lines_key {
	uint32_t at, len;
};

/* A statsd line that begins with '_' may be an event or a service check: _WHOLE, or, when it only begins as one, _BROKEN.
 * The key of a check is its NAME wherever that is followed by a '|'; else what stands before the first ':', or none. */
enum lines_marked { LINES_NOT_MARKED, LINES_MARKED_BROKEN, LINES_MARKED_WHOLE };
enum lines_marked lines_find_marked(const char *s, size_t len, struct lines_key *key);

/* The part of the decisions that the cutter leaves to lines_grammar.c: `value` is what follows the first ':' of a
 * statsd line, or the first space of a carbon line. */
bool lines_statsd_is_valid(const char *value, const char *end);
bool lines_carbon_is_valid(const char *value, const char *end);

/* Why a line is invalid. */
enum lines_reason {
	LINES_UNKNOWN,
	LINES_NO_KEY,
	LINES_CONTROL_BYTE,
	LINES_NO_TYPE,
	LINES_UNKNOWN_TYPE,
	LINES_NO_NUMBER,
	LINES_EMPTY_SET,
	LINES_BAD_RATE,
	LINES_BAD_EVENT,
	LINES_BAD_CHECK,
	LINES_BAD_CARBON,
	LINES_REASONS
};
/* Of a line that was found to be invalid. */
enum lines_reason lines_reason(enum lines_protocol protocol, bool validate, const char *s, size_t len);
/* A clause, for any number. */
const char *lines_reason_text(uint32_t reason);

#endif
