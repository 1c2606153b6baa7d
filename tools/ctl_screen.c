/* SPDX-License-Identifier: MIT
 *
 * ctl_screen: a terminal as one screen for "top" and "drops --watch": ANSI sequences that every terminal since the
 * VT100 knows, the alternate screen of xterm, and keys one by one. Knows nothing of what it shows.
 */
#include "ctl.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"
#define LEAVE "\033[?25h\033[?1049l"

struct ctl_screen {
	struct termios before;
	sigset_t before_mask;
	int signals;
	bool has_keys; /* standard input is this terminal, too */
};

static bool write_all(const char *s, size_t len)
{
	while (len > 0) {
		ssize_t n = write(STDOUT_FILENO, s, len);
		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		s += n;
		len -= (size_t)n;
	}
	return true;
}

static bool terminal_take(struct ctl_screen *s)
{
	struct termios raw = s->before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* Ctrl-C and Ctrl-Z stay signals */
	raw.c_cc[VMIN] = 0;
	raw.c_cc[VTIME] = 0;
	if (s->has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	return write_all(ENTER, strlen(ENTER));
}

static void terminal_give(struct ctl_screen *s)
{
	write_all(LEAVE, strlen(LEAVE));
	if (s->has_keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &s->before);
}

struct ctl_screen *ctl_screen_open(void)
{
	const char *term = getenv("TERM");
	if (!isatty(STDOUT_FILENO) || !term || !term[0] || strcmp(term, "dumb") == 0)
		return NULL;
	struct ctl_screen *s = calloc(1, sizeof(*s));
	if (!s)
		return NULL;
	sigset_t set;
	sigemptyset(&set);
	const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH, SIGPIPE};
	for (size_t i = 0; i < ARRAY_LEN(taken); i++)
		sigaddset(&set, taken[i]);
	sigprocmask(SIG_BLOCK, &set, &s->before_mask);
	s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	s->has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &s->before) == 0;
	if (s->signals != -1 && terminal_take(s))
		return s;
	ctl_screen_close(s);
	return NULL;
}

void ctl_screen_close(struct ctl_screen *s)
{
	if (!s)
		return;
	terminal_give(s);
	if (s->signals != -1)
		close(s->signals);
	sigprocmask(SIG_SETMASK, &s->before_mask, NULL);
	free(s);
}

void ctl_screen_size(const struct ctl_screen *s, unsigned *lines, unsigned *columns)
{
	struct winsize ws = {0};
	*lines = *columns = UINT32_MAX;
	if (!s)
		return;
	bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0;
	*lines = is_known && ws.ws_row ? ws.ws_row : 24;
	*columns = is_known && ws.ws_col ? ws.ws_col : 80;
}

/* Bytes of at most so many characters. All that we print takes one column a character. */
static size_t cut(const char *s, size_t len, unsigned columns)
{
	size_t i = 0;
	for (; i < len; i++)
		if (((unsigned char)s[i] & 0xc0) != 0x80 && columns-- == 0)
			break;
	return i;
}

/* Home, then each line cleared behind its end and everything below: no flicker. No newline after the last line, or the
 * screen would roll. */
static void screen_text(const struct text *t, unsigned lines, unsigned columns, struct text *out)
{
	text_add(out, "\033[H");
	const char *line = t->s ? t->s : "";
	for (unsigned n = 0; n < lines && *line; n++) {
		size_t len = strcspn(line, "\n");
		text_add(out, "%s%.*s\033[K", n ? "\r\n" : "", (int)cut(line, len, columns), line);
		line += len + (line[len] == '\n');
	}
	text_add(out, "\033[J");
	out->failed |= t->failed;
}

int ctl_screen_draw(struct ctl_screen *s, const struct text *t)
{
	struct text out = {0};
	unsigned lines, columns;
	ctl_screen_size(s, &lines, &columns);
	screen_text(t, lines, columns, &out);
	bool is_good = !out.failed && write_all(out.s, out.len);
	text_free(&out);
	return is_good ? CTL_OK : CTL_NOT_ASKED;
}

/* Gives the terminal back, then lets the signal do what it does without us. After SIGTSTP we go on here when continued.
 */
static void signal_obey(struct ctl_screen *s, int number)
{
	sigset_t one, before;
	terminal_give(s);
	sigemptyset(&one);
	sigaddset(&one, number);
	signal(number, SIG_DFL);
	raise(number);
	sigprocmask(SIG_UNBLOCK, &one, &before);
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (s->has_keys)
		tcgetattr(STDIN_FILENO, &s->before); /* the shell may have changed it meanwhile */
	terminal_take(s);
}

static int signal_take(struct ctl_screen *s)
{
	struct signalfd_siginfo info;
	if (read(s->signals, &info, sizeof(info)) != sizeof(info) || info.ssi_signo == SIGPIPE)
		return CTL_KEY_NONE;
	if (info.ssi_signo != SIGWINCH)
		signal_obey(s, (int)info.ssi_signo);
	return CTL_KEY_RESIZED; /* drawn anew in any case */
}

int ctl_screen_wait(struct ctl_screen *s, uint64_t until_us)
{
	for (uint64_t now = clock_us();; now = clock_us()) {
		struct pollfd fds[] = {{.fd = s ? s->signals : -1, .events = POLLIN},
				       {.fd = s && s->has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
		int ms = now < until_us ? (int)((until_us - now + 999) / 1000) : 0;
		int n = poll(fds, ARRAY_LEN(fds), ms);
		if (n == 0)
			return CTL_KEY_NONE;
		if (n > 0 && fds[0].revents) {
			int key = signal_take(s);
			if (key)
				return key;
		}
		if (n > 0 && fds[1].revents) {
			unsigned char key;
			if (read(STDIN_FILENO, &key, 1) == 1)
				return key;
			s->has_keys = false; /* the terminal is gone */
		}
	}
}
