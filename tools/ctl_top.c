/* SPDX-License-Identifier: MIT
 *
 * ctl_top: "top": rates from two copies of the counter pages a second apart, a row per worker and backend. On a
 * terminal the screen is drawn anew, else lines follow each other. Asks the daemon nothing after the first time.
 */
#include "ctl.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

struct sample {
	struct stats_copy *copy;
	uint64_t at_us;
};

static bool sample_take(struct sample *s)
{
	s->at_us = clock_us();
	return ctl_take(s->copy) == CTL_OK;
}

/* Per second, rounded; a total that went back (another millrace) is 0. */
static unsigned long long rate(uint64_t before, uint64_t now, uint64_t us)
{
	return us && now > before ? (unsigned long long)((unsigned __int128)(now - before) * 1000000 / us) : 0;
}

static uint64_t inputs_sum(const struct stats_copy *c, int slot, const char *name)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++)
		n += stats_named(c, slot, STATS_INPUT, i, name);
	return n;
}

static uint64_t scope_lost(const struct stats_copy *c, int slot, enum stats_scope scope)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, scope); i++)
		n += ctl_lost(c, slot, scope, i);
	return n;
}

/* All that a worker lost, wherever; its sockets' drops are those of the endpoints "slot N". */
static uint64_t worker_lost(const struct stats_copy *c, int slot)
{
	return scope_lost(c, slot, STATS_INPUT) + scope_lost(c, slot, STATS_OUTPUT) +
	       scope_lost(c, slot, STATS_BACKEND);
}

static uint64_t received(const struct stats_copy *c, int slot)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < stats_copy_entries(c, STATS_INPUT); i++)
		n += ctl_received(c, slot, i);
	return n;
}

static void top_workers(const struct sample *a, const struct sample *b, struct text *t)
{
	static const char *const names[] = {"received_lines", "received_bytes"};
	struct ctl_table table = {.columns = 8, .left = 2};
	uint64_t us = b->at_us - a->at_us;
	ctl_heading(&table, ctl_reads_packets(b->copy) ? "worker|state|pid|packets/s|lines/s|bytes/s|lost/s|dense"
						       : "worker|state|pid|datagrams/s|lines/s|bytes/s|lost/s|dense");
	for (unsigned slot = 0; slot < stats_slots(stats_copy_of(b->copy)); slot++) {
		ctl_cell(&table, "%u", slot);
		uint64_t pid = stats_named(b->copy, STATS_ALL, STATS_SLOT, slot, "pid");
		uint64_t state = stats_named(b->copy, STATS_ALL, STATS_SLOT, slot, "state");
		ctl_cell(&table, "%s", stats_slot_state_word(state));
		ctl_cell(&table, "%llu", (unsigned long long)pid);
		ctl_cell(&table, "%llu", rate(received(a->copy, (int)slot), received(b->copy, (int)slot), us));
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			ctl_cell(&table, "%llu",
				 rate(inputs_sum(a->copy, (int)slot, names[k]),
				      inputs_sum(b->copy, (int)slot, names[k]), us));
		ctl_cell(&table, "%llu", rate(worker_lost(a->copy, (int)slot), worker_lost(b->copy, (int)slot), us));
		ctl_cell(&table, "%s", stats_named(b->copy, (int)slot, STATS_WORKER, 0, "dense") ? "yes" : "no");
	}
	ctl_table_print(&table, t);
}

static void top_backends(const struct sample *a, const struct sample *b, struct text *t)
{
	static const char *const names[] = {"offered_records", "delivered_records", "sent_bytes"};
	struct ctl_table table = {.columns = 8, .left = 1};
	char name[600];
	uint64_t us = b->at_us - a->at_us;
	ctl_heading(&table, "backend|up in|offered/s|delivered/s|bytes/s|lost/s|queued|in flight");
	for (unsigned i = 0; i < stats_copy_entries(b->copy, STATS_BACKEND); i++) {
		ctl_entry_name(b->copy, STATS_BACKEND, i, name, sizeof(name));
		ctl_cell(&table, "%s", name);
		ctl_cell(&table, "%u", stats_backend_ups(b->copy, i));
		for (size_t k = 0; k < ARRAY_LEN(names); k++)
			ctl_cell(&table, "%llu",
				 rate(stats_named(a->copy, STATS_ALL, STATS_BACKEND, i, names[k]),
				      stats_named(b->copy, STATS_ALL, STATS_BACKEND, i, names[k]), us));
		ctl_cell(&table, "%llu",
			 rate(ctl_lost(a->copy, STATS_ALL, STATS_BACKEND, i),
			      ctl_lost(b->copy, STATS_ALL, STATS_BACKEND, i), us));
		ctl_cell(&table, "%llu",
			 (unsigned long long)stats_named(b->copy, STATS_ALL, STATS_BACKEND, i, "queued_records"));
		ctl_cell(&table, "%llu",
			 (unsigned long long)stats_named(b->copy, STATS_ALL, STATS_BACKEND, i, "in_flight_records"));
	}
	text_add(t, "\n");
	ctl_table_print(&table, t);
}

static void top_head(const struct ctl *ctl, const struct sample *a, const struct sample *b, struct text *t)
{
	uint64_t us = b->at_us - a->at_us;
	const char *what = ctl_reads_packets(b->copy) ? "packets" : "datagrams";
	unsigned long long came = rate(received(a->copy, STATS_ALL), received(b->copy, STATS_ALL), us);
	unsigned long long lines = rate(inputs_sum(a->copy, STATS_ALL, "received_lines"),
					inputs_sum(b->copy, STATS_ALL, "received_lines"), us);
	unsigned long long dropped = rate(scope_lost(a->copy, STATS_ALL, STATS_ENDPOINT),
					  scope_lost(b->copy, STATS_ALL, STATS_ENDPOINT), us);
	char shown[160];
	text_add(t, "millrace %s, pid %lld: ", text_escape(shown, sizeof(shown), ctl->version, strlen(ctl->version)),
		 (long long)ctl->pid);
	text_add(t, "%llu %s/s, %llu lines/s in; %llu %s/s dropped by the kernel\n", came, what, lines, dropped, what);
}

/* Home, then each line cleared behind its end and everything below: no flicker. What does not fit is cut, so that the
 * top stays on the screen. */
static void screen_draw(const struct text *plain, struct text *screen)
{
	struct winsize ws = {0};
	unsigned rows = ioctl(STDOUT_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_row > 2 ? ws.ws_row - 1u : 23;
	text_add(screen, "\033[H");
	for (const char *s = plain->s, *end; s && *s && rows > 0; s = end + 1, rows--) {
		end = strchrnul(s, '\n');
		text_add(screen, "%.*s\033[K\n", (int)(end - s), s);
		if (!*end)
			break;
	}
	text_add(screen, "\033[J");
}

/* The pages stay readable after millrace has ended; only then is it asked again. */
static bool has_ended(const struct ctl *ctl)
{
	char answer[256];
	struct err err;
	int fd = -1;
	if (kill((pid_t)ctl->pid, 0) == 0 || errno != ESRCH)
		return false;
	bool gone = ctl_ask(ctl->socket, "pages", answer, sizeof(answer), &fd, &err) != 0;
	if (fd != -1)
		close(fd);
	return gone;
}

static int top_show(const struct ctl *ctl, const struct sample *a, const struct sample *b, bool tty)
{
	struct text plain = {0}, screen = {0};
	top_head(ctl, a, b, &plain);
	top_workers(a, b, &plain);
	top_backends(a, b, &plain);
	if (!tty) {
		text_add(&plain, "\n");
		return ctl_print(&plain);
	}
	screen_draw(&plain, &screen);
	screen.failed |= plain.failed;
	text_free(&plain);
	return ctl_print(&screen);
}

int ctl_top(struct ctl *ctl, int argc, char **argv)
{
	bool given, tty = isatty(STDOUT_FILENO);
	uint64_t count = UINT64_MAX;
	if (!ctl_flag(argc, argv, "--count", &given, &count))
		return CTL_NOT_ASKED;
	int rc = ctl_attach(ctl);
	if (rc != CTL_OK)
		return rc;
	struct sample a = {.copy = stats_copy_new(ctl->st)}, b = {.copy = stats_copy_new(ctl->st)};
	if (!a.copy || !b.copy || !sample_take(&a))
		rc = a.copy && b.copy ? CTL_NOT_ASKED : ctl_usage("No memory for a copy of the counter pages.");
	if (rc == CTL_OK && tty)
		printf("\033[2J");
	for (uint64_t i = 0; i < count && rc == CTL_OK; i++) {
		nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
		rc = sample_take(&b) ? top_show(ctl, &a, &b, tty) : CTL_NOT_ASKED;
		struct sample last = a;
		a = b;
		b = last;
		if (rc == CTL_OK && i + 1 < count && has_ended(ctl)) {
			printf("millrace has ended; these were its last numbers.\n");
			break;
		}
	}
	stats_copy_free(a.copy);
	stats_copy_free(b.copy);
	return rc;
}
