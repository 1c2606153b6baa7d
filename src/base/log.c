/* SPDX-License-Identifier: MIT
 *
 * log: one line for people, to stderr or syslog. Any process; each sets its own name after fork. A line is put together
 * on the stack and leaves with one write(2), so that the lines of many processes do not mix. Never waits for its reader:
 * what he does not take is counted, and said later. Does not allocate, does not open files or rotate them, and does not
 * know the time zone: gmtime_r may read /etc/localtime and allocate.
 */
#include "base_private.h"

#include <base.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

enum { TEXT_BYTES = 2048 };

static struct {
	char who[48];
	bool to_syslog;
	enum log_level level;
	uint64_t lost; /* lines that nobody took */
} the_log = {.who = "millrace", .level = LOG_LEVEL_INFO};

static const struct {
	const char *option, *shown;
	int priority;
} levels[] = {
	[LOG_LEVEL_ERROR] = {"error", "ERROR", LOG_ERR},
	[LOG_LEVEL_WARN] = {"warn", "WARN", LOG_WARNING},
	[LOG_LEVEL_INFO] = {"info", "INFO", LOG_INFO},
	[LOG_LEVEL_DEBUG] = {"debug", "DEBUG", LOG_DEBUG},
};

void log_open(const char *who, bool to_syslog, enum log_level level)
{
	snprintf(the_log.who, sizeof(the_log.who), "%s", who);
	the_log.level = level;
	the_log.to_syslog = to_syslog;
	log_syslog_close();
}

void log_never_wait(void)
{
	struct stat st;
	if (fstat(STDERR_FILENO, &st) == -1 || !S_ISFIFO(st.st_mode))
		return;
	/* O_NONBLOCK belongs to the open file, which our parent and its other children write to as well: open it anew. */
	int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd == -1)
		return;
	dup2(fd, STDERR_FILENO);
	close(fd);
}

void log_set_level(enum log_level level)
{
	the_log.level = level;
}

enum log_level log_get_level(void)
{
	return the_log.level;
}

int log_level_parse(const char *name, enum log_level *level)
{
	if (strcasecmp(name, "warning") == 0)
		name = "warn";
	for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
		if (strcasecmp(name, levels[i].option) == 0) {
			*level = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

/* "2026-11-30T12:00:00.123Z" by the calendar's arithmetic in eras of 400 years that begin in March. */
static int format_stamp(char *buf, size_t size, uint64_t real_us)
{
	uint64_t s = real_us / 1000000;
	unsigned day_s = (unsigned)(s % 86400), ms = (unsigned)(real_us / 1000 % 1000);
	uint64_t days = s / 86400 + 719468; /* since 0000-03-01 */
	unsigned era_day = (unsigned)(days % 146097);
	unsigned era_year = (era_day - era_day / 1460 + era_day / 36524 - era_day / 146096) / 365;
	unsigned year_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
	unsigned march_month = (5 * year_day + 2) / 153;
	unsigned day = year_day - (153 * march_month + 2) / 5 + 1;
	unsigned month = march_month < 10 ? march_month + 3 : march_month - 9;
	unsigned long long year = days / 146097 * 400 + era_year + (month <= 2);
	return snprintf(buf, size, "%04llu-%02u-%02uT%02u:%02u:%02u.%03uZ", year, month, day, day_s / 3600,
			day_s / 60 % 60, day_s % 60, ms);
}

/* A line stays a line, and a terminal stays sane, whatever the text holds. Returns the bytes written to `to`. */
static size_t copy_without_controls(char *to, size_t room, const char *text)
{
	static const char hex[] = "0123456789abcdef";
	size_t n = 0;
	for (const char *p = text; *p; p++) {
		unsigned char ch = (unsigned char)*p;
		if (n + 4 > room)
			break;
		if (ch == '\n') {
			to[n++] = '\\';
			to[n++] = 'n';
		} else if (ch < 0x20 || ch == 0x7f) {
			to[n++] = '\\';
			to[n++] = 'x';
			to[n++] = hex[ch >> 4];
			to[n++] = hex[ch & 15];
		} else {
			to[n++] = *p;
		}
	}
	return n;
}

static int format_head(char *buf, size_t size, enum log_level level)
{
	char stamp[48];
	if (the_log.to_syslog)
		return log_syslog_head(buf, size, levels[level].priority, the_log.who);
	format_stamp(stamp, sizeof(stamp), clock_real_us());
	return snprintf(buf, size, "%s %s %s: ", stamp, levels[level].shown, the_log.who);
}

/* A pipe that nobody empties, a stopped terminal, a full disk cost the line, never time. */
static bool put_stderr(const char *line, size_t len)
{
	struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&room, 1, 0) != 1)
		return false;
	ssize_t n;
	while ((n = write(STDERR_FILENO, line, len)) == -1 && errno == EINTR)
		;
	return n != -1;
}

/* `line` ends with a newline, which syslog does not want. */
static bool put(const char *line, size_t len)
{
	return the_log.to_syslog ? log_syslog_put(line, len - 1) : put_stderr(line, len);
}

static void put_or_count(const char *line, size_t len)
{
	if (the_log.lost) {
		char text[TEXT_BYTES];
		int n = format_head(text, sizeof(text), LOG_LEVEL_WARN);
		n += snprintf(text + n, sizeof(text) - (size_t)n, "%llu log lines were lost: %s did not take them\n",
			      (unsigned long long)the_log.lost, the_log.to_syslog ? "syslog" : "stderr");
		if (put(text, (size_t)n))
			the_log.lost = 0;
	}
	if (the_log.lost || !put(line, len))
		the_log.lost++;
}

void log_line(enum log_level level, const char *fmt, ...)
{
	if (level > the_log.level)
		return;
	int saved_errno = errno; /* for %m, and for who logs between a call and its check */
	char text[TEXT_BYTES];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (n < 0)
		text[0] = '\0';
	else if ((size_t)n >= sizeof(text))
		memcpy(text + sizeof(text) - 4, "...", 4);

	char line[TEXT_BYTES + 128];
	int head = format_head(line, sizeof(line), level);
	size_t len = (size_t)head + copy_without_controls(line + head, sizeof(line) - (size_t)head - 1, text);
	line[len++] = '\n';
	put_or_count(line, len);
	errno = saved_errno;
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_us, uint64_t every_ms, uint64_t *held)
{
	if (limit->last_us && now_us - limit->last_us < every_ms * 1000) {
		limit->held++;
		*held = 0;
		return false;
	}
	*held = limit->held;
	limit->held = 0;
	limit->last_us = MAX(now_us, 1); /* 0 means never */
	return true;
}
