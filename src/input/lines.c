/* SPDX-License-Identifier: MIT
 *
 * lines: the cutter, the hot loop of the program. Worker only, pure. A step looks at the 64 bytes from a line's start
 * at once: masks say where newlines, separators and control bytes are, so that a line of up to 63 bytes costs no loop
 * over its bytes and no state between steps. The masks are made by AVX2, SSE2, NEON or plain C; what they mean is
 * decided in one place, cut(). Does not find out what is too long: that is the stream's matter.
 */
#include "lines.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

enum { WINDOW = 64 };
_Static_assert(WINDOW <= (int)BATCH_SLACK, "a look that begins before the end may go this far over it");

/* Bit i: byte i of the window is one. */
struct masks {
	uint64_t newline, separator, control;
};
typedef struct masks look_fn(const char *s, char separator);

static inline uint64_t load64le(const char *s)
{
	uint64_t v;
	memcpy(&v, s, sizeof(v));
	return v;
}

#define EACH_BYTE(b) (UINT64_C(0x0101010101010101) * (b))

/* 0x80 in each byte of v that is 0, exactly: nothing carries from one byte into the next. */
static inline uint64_t zero_bytes(uint64_t v)
{
	return ~(((v & EACH_BYTE(0x7f)) + EACH_BYTE(0x7f)) | v | EACH_BYTE(0x7f));
}

static inline uint64_t gather_bits(uint64_t v)
{
	return (v >> 7) * UINT64_C(0x0102040810204080) >> 56;
}

static struct masks look_portable(const char *s, char separator)
{
	struct masks m = {0, 0, 0};
	for (unsigned i = 0; i < WINDOW; i += 8) {
		uint64_t v = load64le(s + i);
		m.newline |= gather_bits(zero_bytes(v ^ EACH_BYTE('\n'))) << i;
		m.separator |= gather_bits(zero_bytes(v ^ EACH_BYTE((unsigned char)separator))) << i;
		m.control |= gather_bits(zero_bytes(v & EACH_BYTE(0xe0)) | zero_bytes(v ^ EACH_BYTE(0x7f))) << i;
	}
	return m;
}

#if defined(__x86_64__)
static inline struct masks look_sse2(const char *s, char separator)
{
	const __m128i newlines = _mm_set1_epi8('\n'), separators = _mm_set1_epi8(separator);
	const __m128i last_control = _mm_set1_epi8(0x1f), deletes = _mm_set1_epi8(0x7f);
	struct masks m = {0, 0, 0};
#pragma GCC unroll 4
	for (unsigned i = 0; i < WINDOW; i += 16) {
		__m128i v = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
		__m128i control =
		    _mm_or_si128(_mm_cmpeq_epi8(_mm_min_epu8(v, last_control), v), _mm_cmpeq_epi8(v, deletes));
		m.newline |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(v, newlines)) << i;
		m.separator |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(v, separators)) << i;
		m.control |= (uint64_t)(uint32_t)_mm_movemask_epi8(control) << i;
	}
	return m;
}

#define AVX2 __attribute__((target("avx2,bmi,bmi2")))
AVX2 static inline struct masks look_avx2(const char *s, char separator)
{
	const __m256i newlines = _mm256_set1_epi8('\n'), separators = _mm256_set1_epi8(separator);
	const __m256i last_control = _mm256_set1_epi8(0x1f), deletes = _mm256_set1_epi8(0x7f);
	struct masks m = {0, 0, 0};
#pragma GCC unroll 2
	for (unsigned i = 0; i < WINDOW; i += 32) {
		__m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(s + i));
		__m256i control = _mm256_or_si256(_mm256_cmpeq_epi8(_mm256_min_epu8(v, last_control), v),
						  _mm256_cmpeq_epi8(v, deletes));
		m.newline |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, newlines)) << i;
		m.separator |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, separators)) << i;
		m.control |= (uint64_t)(uint32_t)_mm256_movemask_epi8(control) << i;
	}
	return m;
}
#elif defined(__aarch64__)
/* One bit for each of the 64 bytes, which are 0 or 0xff: NEON has no movemask, but it adds neighbours. */
static inline uint64_t gather_bytes(const uint8x16_t v[4])
{
	const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(UINT64_C(0x8040201008040201)));
	uint8x16_t low = vpaddq_u8(vandq_u8(v[0], bits), vandq_u8(v[1], bits));
	uint8x16_t high = vpaddq_u8(vandq_u8(v[2], bits), vandq_u8(v[3], bits));
	uint8x16_t sums = vpaddq_u8(low, high);
	return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)), 0);
}

static inline struct masks look_neon(const char *s, char separator)
{
	const uint8x16_t newlines = vdupq_n_u8('\n'), separators = vdupq_n_u8((uint8_t)separator);
	const uint8x16_t first_text = vdupq_n_u8(0x20), deletes = vdupq_n_u8(0x7f);
	uint8x16_t newline[4], is_separator[4], control[4];
#pragma GCC unroll 4
	for (unsigned i = 0; i < 4; i++) {
		uint8x16_t v = vld1q_u8((const uint8_t *)s + (size_t)16 * i);
		newline[i] = vceqq_u8(v, newlines);
		is_separator[i] = vceqq_u8(v, separators);
		control[i] = vorrq_u8(vcltq_u8(v, first_text), vceqq_u8(v, deletes));
	}
	return (struct masks){gather_bytes(newline), gather_bytes(is_separator), gather_bytes(control)};
}
#endif

/* The bits below bit n. */
static inline uint64_t below(size_t n)
{
	return n < 64 ? (UINT64_C(1) << n) - 1 : UINT64_MAX;
}

/* Where the newline is in a line that has none in its first window; `left` when there is none before the end. */
static ALWAYS_INLINE size_t find_newline(const char *s, size_t left, look_fn *look)
{
	for (size_t from = WINDOW; from < left; from += WINDOW) {
		uint64_t newline = look(s + from, '\n').newline & below(left - from);
		if (newline)
			return from + (size_t)__builtin_ctzll(newline);
	}
	return left;
}

/* The key of a line whose first window holds no separator. */
static bool find_long_key(const char *s, size_t len, char separator, bool validate, size_t *key_len)
{
	if (len <= WINDOW)
		return false;
	const char *at = memchr(s + WINDOW, separator, len - WINDOW);
	if (!at)
		return false;
	for (const char *p = s; validate && p < at; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return false;
	*key_len = (size_t)(at - s);
	return true;
}

/* "DIGITS|TYPE" with 1 to 7 digits and a type of numbers, which is what nearly all lines are; a `false` means only that
 * the grammar must look. No branch that depends on how many digits or on which type: those mispredict. */
static inline bool is_plain(const char *value, const char *end)
{
	uint64_t v = load64le(value), x = v ^ EACH_BYTE('0');
	uint64_t others = (((x & EACH_BYTE(0x7f)) + EACH_BYTE(0x76)) | x) & EACH_BYTE(0x80); /* no digits */
	if (UNLIKELY(!others))
		return false;
	size_t digits = (size_t)__builtin_ctzll(others) / 8;
	const char *type = value + digits + 1;
	size_t type_len = (size_t)(end - type); /* huge when the end comes first */
	uint16_t t;
	memcpy(&t, type, sizeof(t));
	unsigned one = t & 0xff;
	bool known = ((type_len == 1) & ((one == 'c') | (one == 'g') | (one == 'h') | (one == 'd'))) |
		     ((type_len == 2) & ((t == ('m' | 's' << 8)) | (t == ('k' | 'v' << 8))));
	return (digits > 0) & (value[digits] == '|') & known;
}

static inline bool is_valid(enum lines_protocol protocol, const char *value, const char *end)
{
	if (protocol == LINES_CARBON)
		return lines_carbon_is_valid(value, end);
	return LIKELY(is_plain(value, end)) || lines_statsd_is_valid(value, end);
}

enum verdict { VERDICT_EMPTY, VERDICT_VALID, VERDICT_INVALID, VERDICT_NONE };

/* Of a line that is empty, or begins as DogStatsD's events and service checks do: a valid one is in *line. VERDICT_NONE: it
 * is as any other. */
static __attribute__((noinline)) enum verdict judge_rare(const char *s, size_t len, bool validate, struct line *line)
{
	struct lines_key key;
	if (len == 0)
		return VERDICT_EMPTY;
	enum lines_marked form = lines_find_marked(s, len, &key);
	if (form == LINES_NOT_MARKED)
		return VERDICT_NONE;
	if (key.len == 0 || (form == LINES_MARKED_BROKEN && validate))
		return VERDICT_INVALID;
	*line = (struct line){s, (uint32_t)len, key.len,
			      hash_murmur3_32(s + key.at, key.len, HASH_STATSRELAY_SEED), key.at};
	return VERDICT_VALID;
}

static ALWAYS_INLINE size_t cut(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max,
				look_fn *look)
{
	const enum lines_protocol protocol = ls->protocol;
	const char separator = protocol == LINES_CARBON ? ' ' : ':';
	const int mark = protocol == LINES_CARBON ? -1 : '_';
	const bool validate = ls->validate;
	const uint64_t control_counts = validate ? UINT64_MAX : 0;
	char *s = *at;
	size_t n = 0, invalid = 0, empty = 0, commands = 0;
	while (n < max && s < end) {
		const size_t left = (size_t)(end - s);
		struct masks m = look(s, separator);
		m.newline &= below(left);
		size_t len = LIKELY(m.newline) ? (size_t)__builtin_ctzll(m.newline) : find_newline(s, left, look);
		if (UNLIKELY(len == left) && !at_end)
			break;
		char *line = s;
		s += len + (len < left);
		if (len > 0 && line[len - 1] == '\r')
			len--;
		enum verdict verdict;
		if (LIKELY((len > 0) & (*line != mark)) || /* one branch for both */
		    (verdict = judge_rare(line, len, validate, &out[n])) == VERDICT_NONE) {
			const uint64_t key = m.separator & below(len);
			size_t key_len = 0;
			bool valid;
			if (LIKELY(key)) {
				key_len = (size_t)__builtin_ctzll(key);
				valid = key_len > 0 && !(m.control & control_counts & below(key_len));
			} else {
				valid = find_long_key(line, len, separator, validate, &key_len);
			}
			if (LIKELY(valid) && validate)
				valid = is_valid(protocol, line + key_len + 1, line + len);
			if (LIKELY(valid)) {
				out[n++] = (struct line){line, (uint32_t)len, (uint32_t)key_len,
							 hash_murmur3_32(line, key_len, HASH_STATSRELAY_SEED), 0};
				continue;
			}
			verdict = VERDICT_INVALID;
		}
		n += verdict == VERDICT_VALID;
		empty += verdict == VERDICT_EMPTY;
		if (verdict == VERDICT_INVALID)
			++*(ls->on_invalid && ls->on_invalid(ls->on_invalid_arg, line, len) ? &commands : &invalid);
	}
	*at = s;
	ls->counts.received += n + invalid + empty + commands;
	ls->counts.to_outputs += n;
	ls->counts.invalid += invalid;
	ls->counts.empty += empty;
	ls->counts.commands += commands;
	return n;
}

static size_t cut_portable(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max)
{
	return cut(ls, at, end, at_end, out, max, look_portable);
}

#if defined(__x86_64__)
static size_t cut_sse2(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max)
{
	return cut(ls, at, end, at_end, out, max, look_sse2);
}

AVX2 static size_t cut_avx2(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max)
{
	return cut(ls, at, end, at_end, out, max, look_avx2);
}
#elif defined(__aarch64__)
static size_t cut_neon(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max)
{
	return cut(ls, at, end, at_end, out, max, look_neon);
}
#endif

bool lines_scan_works(enum lines_scan scan)
{
#if defined(__x86_64__)
	if (scan == LINES_SCAN_SSE2)
		return true;
	if (scan == LINES_SCAN_AVX2)
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
		       __builtin_cpu_supports("bmi2");
#elif defined(__aarch64__)
	if (scan == LINES_SCAN_NEON)
		return true;
#endif
	return scan == LINES_SCAN_PORTABLE;
}

size_t lines_cut_by(enum lines_scan scan, struct lines *ls, char **at, const char *end, bool at_end, struct line *out,
		    size_t max)
{
#if defined(__x86_64__)
	if (scan == LINES_SCAN_AVX2)
		return cut_avx2(ls, at, end, at_end, out, max);
	if (scan == LINES_SCAN_SSE2)
		return cut_sse2(ls, at, end, at_end, out, max);
#elif defined(__aarch64__)
	if (scan == LINES_SCAN_NEON)
		return cut_neon(ls, at, end, at_end, out, max);
#endif
	(void)scan;
	return cut_portable(ls, at, end, at_end, out, max);
}

size_t lines_cut(struct lines *ls, char **at, const char *end, bool at_end, struct line *out, size_t max)
{
#if defined(__x86_64__)
	/* Three tests of a word that libgcc fills before main: cheaper than a pointer kept somewhere. */
	if (LIKELY(lines_scan_works(LINES_SCAN_AVX2)))
		return cut_avx2(ls, at, end, at_end, out, max);
	return cut_sse2(ls, at, end, at_end, out, max);
#elif defined(__aarch64__)
	return cut_neon(ls, at, end, at_end, out, max);
#else
	return cut_portable(ls, at, end, at_end, out, max);
#endif
}
