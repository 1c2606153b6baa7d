/* SPDX-License-Identifier: MIT
 *
 * log: one line for people, to stderr, a file, syslog or the journal. Any process; each sets its own name after fork. A
 * line is put together on the stack and leaves with one write(2), so that the lines of many processes do not mix. Never
 * waits for its reader: what he does not take is counted, and said later. Does not allocate, does not rotate files, and
 * does not know the time zone: gmtime_r may read /etc/localtime and allocate.
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
	enum log_target target;
	enum log_level level;
	int file;           /* -1: none */
	bool is_copied;     /* errors and warnings, to stderr */
	uint64_t lost;      /* lines that nobody took */
	uint64_t second_us; /* when the present second began, and how many lines it has had */
	unsigned lines;
} the_log = {.who = "millrace", .level = LOG_LEVEL_INFO, .file = -1};

static const char *const target_names[] = {
    [LOG_TARGET_STDERR] = "stderr",
    [LOG_TARGET_SYSLOG] = "syslog",
    [LOG_TARGET_JOURNAL] = "the journal",
    [LOG_TARGET_FILE] = "the file",
};

static const struct {
	const char *option, *shown;
	int priority;
} levels[] = {
    [LOG_LEVEL_ERROR] = {"error", "ERROR", LOG_ERR},
    [LOG_LEVEL_WARN] = {"warn", "WARN", LOG_WARNING},
    [LOG_LEVEL_INFO] = {"info", "INFO", LOG_INFO},
    [LOG_LEVEL_DEBUG] = {"debug", "DEBUG", LOG_DEBUG},
};

void log_open(const char *who, enum log_target target, enum log_level level)
{
	the_log.level = level;
	the_log.target = target;
	log_set_who(who);
}

/* A child's own connection: over the parent's, syslog and journal would take its lines for the parent's. */
void log_set_who(const char *who)
{
	snprintf(the_log.who, sizeof(the_log.who), "%s", who);
	the_log.is_copied = false;
	log_syslog_close();
	log_journal_close();
}

void log_turn_to(enum log_target target, int file)
{
	if (target == LOG_TARGET_FILE && file == -1)
		return; /* it was lost on the way: better the one before than none */
	if (the_log.file != -1)
		close(the_log.file);
	the_log.file = file;
	the_log.target = target;
}

int log_file_open(const char *path, struct err *err)
{
	/* non-blocking: a pipe that nobody reads is an error here and loses lines later, but stops nothing */
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);
	if (fd == -1) {
		char shown[300];
		return err_set(err, -errno, "log: \"%s\" cannot be opened: %s; its folder must be there, and writable.",
			       text_escape(shown, sizeof(shown), path, strlen(path)), strerror(errno));
	}
	return fd;
}

int log_file_fd(void)
{
	return the_log.file;
}

void log_copy_to_stderr(bool on)
{
	the_log.is_copied = on;
}

bool log_stderr_is_journal(void)
{
	struct stat st;
	unsigned long long device, inode;
	const char *stream = getenv("JOURNAL_STREAM"); /* man 5 systemd.exec: DEVICE:INODE of stdout or stderr */
	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == device && st.st_ino == inode;
}

void log_never_wait(void)
{
	struct stat st;
	if (fstat(STDERR_FILENO, &st) == -1 || !S_ISFIFO(st.st_mode))
		return;
	/* O_NONBLOCK belongs to the open file, which our parent and its other children write to as well: open it anew.
	 */
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

static int format_head(char *buf, size_t size, enum log_target target, enum log_level level)
{
	char stamp[48];
	switch (target) {
	case LOG_TARGET_SYSLOG:
		return log_syslog_head(buf, size, levels[level].priority, the_log.who);
	case LOG_TARGET_JOURNAL:
		return log_journal_head(buf, size, levels[level].priority, the_log.who);
	case LOG_TARGET_STDERR:
	case LOG_TARGET_FILE:
		break;
	}
	format_stamp(stamp, sizeof(stamp), clock_real_us());
	return snprintf(buf, size, "%s %s %s: ", stamp, levels[level].shown, the_log.who);
}

/* A pipe that nobody empties, a stopped terminal, a full disk cost the line, never time. */
static bool put_fd(int fd, const char *line, size_t len)
{
	struct pollfd room = {.fd = fd, .events = POLLOUT};
	if (poll(&room, 1, 0) != 1)
		return false;
	ssize_t n;
	while ((n = write(fd, line, len)) == -1 && errno == EINTR)
		;
	return n != -1;
}

static bool put(enum log_target target, enum log_level level, const char *text)
{
	char line[TEXT_BYTES + 256];
	int head = format_head(line, sizeof(line), target, level);
	size_t room = MIN(sizeof(line) - (size_t)head - 1, (size_t)TEXT_BYTES + 64);
	size_t len = (size_t)head + copy_without_controls(line + head, room, text);
	if (target == LOG_TARGET_SYSLOG)
		return log_syslog_put(line, len); /* it does not want a newline */
	line[len++] = '\n';
	return target == LOG_TARGET_JOURNAL
		   ? log_journal_put(line, len)
		   : put_fd(target == LOG_TARGET_FILE ? the_log.file : STDERR_FILENO, line, len);
}

/* Something that goes wrong 10,000 times a second is said often enough. */
static bool is_too_many(void)
{
	uint64_t now_us = clock_us();
	if (now_us - the_log.second_us >= 1000000) {
		the_log.second_us = now_us;
		the_log.lines = 0;
	}
	return ++the_log.lines > LOG_LINES_PER_SECOND;
}

static void put_or_count(enum log_level level, const char *text)
{
	if (is_too_many()) {
		the_log.lost++;
		return;
	}
	if (the_log.lost) {
		char lost[100];
		snprintf(lost, sizeof(lost), "%llu log lines were lost: %s did not take them, or they were too many",
			 (unsigned long long)the_log.lost, target_names[the_log.target]);
		if (put(the_log.target, LOG_LEVEL_WARN, lost))
			the_log.lost = 0;
	}
	if (the_log.lost || !put(the_log.target, level, text))
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

	put_or_count(level, text);
	if (the_log.is_copied && level <= LOG_LEVEL_WARN && the_log.target != LOG_TARGET_STDERR)
		put(LOG_TARGET_STDERR, level, text);
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
