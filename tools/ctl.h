/* SPDX-License-Identifier: MIT
 *
 * What the files of millracectl share. Everything that is shown comes from a copy of the counter pages.
 */
#ifndef CTL_H
#define CTL_H

#include <base.h>
#include <stats.h>

#ifndef MILLRACE_VERSION
#define MILLRACE_VERSION "0.0.0"
#endif

/* Exit codes, as millracectl(1) documents them. */
enum { CTL_OK = 0, CTL_BAD = 1, CTL_NOT_ASKED = 2 };

struct ctl {
	const char *socket;
	char version[64]; /* of the millrace that runs */
	int64_t pid;
	struct stats *st;
	struct stats_copy *copy;
};

/* Asks one line and takes the one of the answer, without its newline. *fd: -1, or what came with it. 0, or -errno with
 * err when nobody answered. */
int ctl_ask(const char *socket_path, const char *line, char *answer, size_t size, int *fd, struct err *err);
/* Gets and maps the counter pages. CTL_OK, or the exit code after it said why. */
int ctl_attach(struct ctl *ctl);
void ctl_detach(struct ctl *ctl);
/* Takes a copy, patiently: a worker may have died a moment ago. CTL_OK or the exit code after it said why. */
int ctl_take(struct ctl *ctl, struct stats_copy *c);
int ctl_usage(const char *fmt, ...) PRINTF_LIKE(1, 2); /* says so, returns CTL_NOT_ASKED */
/* Writes and frees the text; CTL_OK, or CTL_NOT_ASKED when memory or standard output failed. */
int ctl_print(struct text *t);

/* The one option of a command: argv[1] is `flag`, and with `value` not NULL a number from 1 on follows. False and a
 * sentence when something else stands there. */
bool ctl_flag(int argc, char **argv, const char *flag, bool *given, uint64_t *value);

/* Columns that fit their contents: the first `left` ones are text, the rest are numbers at the right. */
struct ctl_table {
	unsigned columns, left;
	char **cells;
	size_t n, size;
	bool failed;
};
void ctl_cell(struct ctl_table *table, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* A row of words, for headings: "name|type|lines". */
void ctl_heading(struct ctl_table *table, const char *words);
void ctl_table_print(struct ctl_table *table, struct text *t); /* and frees */

/* The terminal as one screen that is drawn anew. Signals are taken in between, so that it is always given back as it was:
 * at the end, at Ctrl-C, Ctrl-Z and TERM. */
struct ctl_screen;
/* NULL: standard output is no terminal that can do it, or there is no memory; then plain lines do. */
struct ctl_screen *ctl_screen_open(void);
void ctl_screen_close(struct ctl_screen *s); /* NULL is fine */
/* Lines and columns that there are now. NULL: no limit. */
void ctl_screen_size(const struct ctl_screen *s, unsigned *lines, unsigned *columns);
/* What does not fit is cut at the right and below. CTL_OK, or CTL_NOT_ASKED when it cannot be written. */
int ctl_screen_draw(struct ctl_screen *s, const struct text *t);
/* Waits so long (NULL: just that) or until something happens: a key, CTL_KEY_RESIZED; CTL_KEY_NONE: the time is over. */
enum { CTL_KEY_NONE = 0, CTL_KEY_RESIZED = 256 };
int ctl_screen_wait(struct ctl_screen *s, uint64_t until_us);

/* CPU and memory of each slot's process; zeros where there is none. usage[slots]. */
void ctl_processes(const struct stats_copy *c, struct proc_usage *usage);
/* The pages stay readable after millrace has ended; only when its process is gone it is asked again. */
bool ctl_has_ended(const struct ctl *ctl);

/* "output/backend", "input" … */
void ctl_entry_name(const struct stats_copy *c, enum stats_scope scope, unsigned index, char *buf, size_t size);
/* What is lost for certain in one block: all LOSS counters together, whatever their unit. */
uint64_t ctl_lost(const struct stats_copy *c, int slot, enum stats_scope scope, unsigned index);
/* Datagrams, or packets, that an input read. */
uint64_t ctl_received(const struct stats_copy *c, int slot, unsigned input);
/* Whether an input is one of packets: capture or file. */
bool ctl_reads_packets(const struct stats_copy *c);

/* Of "status": a row for each Kafka output and worker; nothing when there is none. */
void status_kafka(const struct stats_copy *c, struct text *t);

#define COMMAND(name, word, args, help) int ctl_##word(struct ctl *ctl, int argc, char **argv);
#include <tbl/control.def>

#endif
