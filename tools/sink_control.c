/* SPDX-License-Identifier: MIT
 *
 * Commands on stdin, one a line, for tests that change the sink's behaviour while it runs. Each is answered by one line
 * on stdout ("ok COMMAND", "error TEXT", or a report) after it took effect. The end of stdin ends only the commands.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "sink.h"

static bool port_exists(const struct sink *s, uint64_t number)
{
	for (size_t i = 0; i < s->n_ports; i++)
		if (s->ports[i].number == number)
			return true;
	return false;
}

/* "on", "off", or (for stall) a time. */
static int switch_parse(const char *word, bool time_too, bool *on, uint64_t *us)
{
	*us = 0;
	*on = true;
	if (!strcmp(word, "on"))
		return 0;
	if (time_too && word[0] >= '0' && word[0] <= '9')
		return text_parse_time(word, us);
	*on = false;
	return strcmp(word, "off") ? -EINVAL : 0;
}

static int run(struct sink *s, char *words[3], size_t n, struct err *err)
{
	bool takes_value = !strcmp(words[0], "stall") || !strcmp(words[0], "refuse") || !strcmp(words[0], "slow");
	size_t port_at = takes_value ? 2 : 1;
	uint64_t number = 0, value = 0;
	bool on = false;

	if (n < port_at)
		return err_set(err, -EINVAL, "%s needs a value", words[0]);
	if (n > port_at && (text_parse_uint(words[port_at], &number) || !port_exists(s, number)))
		return err_set(err, -EINVAL, "%s is not a port that this program listens on", words[port_at]);
	if (n > port_at + 1)
		return err_set(err, -EINVAL, "too many words after %s", words[0]);
	if (!strcmp(words[0], "stall")) {
		if (switch_parse(words[1], true, &on, &value))
			return err_set(err, -EINVAL, "stall takes on, off or a time like 500ms");
		sink_stall(s, (unsigned)number, on, value);
	} else if (!strcmp(words[0], "refuse")) {
		if (switch_parse(words[1], false, &on, &value))
			return err_set(err, -EINVAL, "refuse takes on or off");
		return sink_refuse(s, (unsigned)number, on, err);
	} else if (!strcmp(words[0], "slow")) {
		if (strcmp(words[1], "off") && text_parse_bytes(words[1], &value))
			return err_set(err, -EINVAL, "slow takes bytes a second, or off");
		sink_slow(s, (unsigned)number, value);
	} else if (!strcmp(words[0], "reset")) {
		sink_reset(s, (unsigned)number);
	} else if (!strcmp(words[0], "quit")) {
		s->done = true;
		s->drain = true;
	} else {
		return err_set(err, -EINVAL, "commands are stall, reset, refuse, slow, report and quit");
	}
	return 0;
}

static void command(struct sink *s, char *line)
{
	char copy[256], *words[4], *save = NULL;
	size_t n = 0;
	struct err err;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok_r(line, " \t\r", &save); w && n < 4; w = strtok_r(NULL, " \t\r", &save))
		words[n++] = w;
	if (!n)
		return;
	if (!strcmp(words[0], "report") && n == 1)
		sink_report(s, true);
	else if (run(s, words, n, &err))
		printf("error %s\n", err.text);
	else
		printf("ok %s\n", copy);
	fflush(stdout);
}

bool sink_control_ready(struct sink *s)
{
	static char buf[4096];
	static size_t len;
	char *line = buf, *nl;
	ssize_t r = read(STDIN_FILENO, buf + len, sizeof(buf) - 1 - len);

	if (r == -1)
		return errno == EINTR || errno == EAGAIN;
	len += (size_t)r;
	buf[len] = '\0';
	while ((nl = memchr(line, '\n', len - (size_t)(line - buf)))) {
		*nl = '\0';
		command(s, line);
		line = nl + 1;
	}
	len -= (size_t)(line - buf);
	memmove(buf, line, len);
	if (len == sizeof(buf) - 1) {
		printf("error a command is at most %zu bytes long\n", sizeof(buf) - 2);
		fflush(stdout);
		len = 0;
	}
	return r > 0;
}
