/* SPDX-License-Identifier: MIT
 *
 * conf: the configuration. YAML or a statsrelay file, overridden by flags, checked as a whole, in one tree of plain
 * structs that nothing changes afterwards. Master, millracectl and tests; workers only read the tree.
 */
#ifndef CONF_H
#define CONF_H

#include <base.h>

/* enum conf_input_type { CONF_INPUT_TYPE_UDP, … } and so on, from include/tbl/option.def */
#define ENUM(x, word, text) CONF_##x##_##word,
enum conf_words {
#include <tbl/option.def>
	CONF_WORDS
};

#define CONF_BYTES_AUTO UINT64_MAX /* only while a file is read: a tree has what it comes to */

struct conf_list {
	char **items;
	int *lines; /* where each stood in the file; 0: a flag or a default */
	size_t n;
};

struct conf_map {
	char **keys, **values;
	int *lines;
	size_t n;
};

/* C type of each option type. */
#define CONF_TYPE_BOOL bool
#define CONF_TYPE_UINT uint64_t
#define CONF_TYPE_BYTES uint64_t
#define CONF_TYPE_AUTO_BYTES uint64_t
#define CONF_TYPE_TIME uint64_t /* microseconds */
#define CONF_TYPE_REAL double
#define CONF_TYPE_STRING char * /* never NULL; "" for none */
#define CONF_TYPE_LIST struct conf_list
#define CONF_TYPE_MAP struct conf_map
#define CONF_TYPE_ENUM_INPUT_TYPE enum conf_words
#define CONF_TYPE_ENUM_OUTPUT_TYPE enum conf_words
#define CONF_TYPE_ENUM_PROTOCOL enum conf_words
#define CONF_TYPE_ENUM_FRAMING enum conf_words
#define CONF_TYPE_ENUM_SPREAD enum conf_words
#define CONF_TYPE_ENUM_DRIVER enum conf_words
#define CONF_TYPE_ENUM_FANOUT enum conf_words
#define CONF_TYPE_ENUM_RSS enum conf_words
#define CONF_TYPE_ENUM_HASH enum conf_words
#define CONF_TYPE_ENUM_OVERFLOW enum conf_words
#define CONF_TYPE_ENUM_FORMAT enum conf_words
#define CONF_TYPE_ENUM_PARTITION enum conf_words
#define CONF_TYPE_ENUM_LOG_LEVEL enum conf_words

/* An option's field in its struct. One scope at a time is not empty. */
#define CONF_FIELD_TOP(type, name)
#define CONF_FIELD_INPUT(type, name)
#define CONF_FIELD_OUTPUT(type, name)
#define CONF_FIELD_BACKEND(type, name)
#define CONF_FIELD_SECTION(type, name) /* of a statsrelay file: private to src/conf */

enum conf_transport { CONF_TRANSPORT_TCP, CONF_TRANSPORT_UDP };

/* One remote of an output. */
struct conf_backend {
#undef CONF_FIELD_BACKEND
#define CONF_FIELD_BACKEND(type, name) CONF_TYPE_##type name;
#define OPTION(scope, type, name, ...) CONF_FIELD_##scope(type, name)
#include <tbl/option.def>
#undef CONF_FIELD_BACKEND
#define CONF_FIELD_BACKEND(type, name)
	int line;
	/* made of the address by the check */
	char *host; /* without brackets */
	uint16_t port;
	enum conf_transport transport;
};

struct conf_output {
#undef CONF_FIELD_OUTPUT
#define CONF_FIELD_OUTPUT(type, name) CONF_TYPE_##type name;
#define OPTION(scope, type, name, ...) CONF_FIELD_##scope(type, name)
#include <tbl/option.def>
#undef CONF_FIELD_OUTPUT
#define CONF_FIELD_OUTPUT(type, name)
	char *name;
	int line;
	size_t index; /* in conf.outputs */
	/* Each remote once, in the order of the file; of a shard_map, in the order of its numbers. */
	struct conf_backend *backends; /* their names are set: HOST:PORT where none was given */
	size_t n_backends;
	/* hash: modulo: shard i belongs to backends[shards[i]]; several shards may share one. NULL for rendezvous. */
	uint16_t *shards;
	size_t n_shards;
	size_t n_inputs; /* that feed it; an output without one is an error */
};

struct conf_input {
#undef CONF_FIELD_INPUT
#define CONF_FIELD_INPUT(type, name) CONF_TYPE_##type name;
#define OPTION(scope, type, name, ...) CONF_FIELD_##scope(type, name)
#include <tbl/option.def>
#undef CONF_FIELD_INPUT
#define CONF_FIELD_INPUT(type, name)
	char *name;
	int line;
	size_t index; /* in conf.inputs */
	struct conf_output **outputs; /* `to`, looked up; at least one, none twice */
	size_t n_outputs;
};

struct conf {
#undef CONF_FIELD_TOP
#define CONF_FIELD_TOP(type, name) CONF_TYPE_##type name;
#define OPTION(scope, type, name, ...) CONF_FIELD_##scope(type, name)
#include <tbl/option.def>
#undef CONF_FIELD_TOP
#define CONF_FIELD_TOP(type, name)
	struct conf_input *inputs;
	size_t n_inputs;
	struct conf_output *outputs;
	size_t n_outputs;
	char *path; /* the file; NULL: none was needed */
	bool is_statsrelay;
	struct conf_list notes; /* what loading understood and does not honour: see conf_warnings */
};

/* CONF_BACKENDS_MAX: of all outputs together. CONF_SHARDS_MAX, CONF_LIST_MAX (bind, to): of one output, of one list. */
enum {
	CONF_INPUTS_MAX = 64,
	CONF_OUTPUTS_MAX = 64,
	CONF_BACKENDS_MAX = 10000,
	CONF_SHARDS_MAX = 65536,
	CONF_LIST_MAX = 1024,
	CONF_ERRORS_MAX = 1000, /* further ones are only counted */
	CONF_FILE_MAX_BYTES = 64 << 20
};

/* All that is wrong, a line each, by line: "FILE:LINE: KEY: what, and what is allowed". LINE or KEY are left out where
 * there is none; the file is "command line" when there is no file. */
struct conf_errors {
	struct text text;
	size_t n;
};

/* What the command line says. Flags override the file. */
enum conf_action { CONF_ACTION_RUN, CONF_ACTION_CHECK, CONF_ACTION_DUMP, CONF_ACTION_HELP, CONF_ACTION_VERSION };
struct conf_args {
	enum conf_action action;
	const char *path;
	struct conf_map top;	       /* top-level options that were given as flags: key → value as text */
	struct conf_list listen;       /* udp://HOST:PORT, tcp://…, unix://PATH, unixgram://PATH */
	struct conf_list captures;     /* --capture INTERFACE */
	struct conf_list backends;     /* --backend ADDRESS */
	const char *kafka, *topic;     /* --kafka BROKERS, --topic TOPIC */
	const char *receive_buffer;    /* --receive-buffer: overrides every input */
};

/* Reads argv (getopt_long moves its words); args borrow from it. Values are checked here. --listen, --capture and
 * --backend together with a file are an error. 0; or -EINVAL or -ENOMEM with one sentence in err, args then hold
 * nothing. */
int conf_args_parse(struct conf_args *args, int argc, char **argv, struct err *err);
void conf_args_free(struct conf_args *args);
/* The text of --help, with the options of the file, from the tables. */
void conf_help(struct text *t);

/* Reads the file (when args->path), applies the flags, checks all of it. A new tree, freed by conf_free; or NULL with
 * every error in `errors` (text_free it). With neither file nor --listen nor --capture: NULL and one error that says
 * what to do. */
struct conf *conf_load(const struct conf_args *args, struct conf_errors *errors);
/* The same for bytes in memory; `name` stands in the errors for the file. For reload and fuzzing. */
struct conf *conf_load_bytes(const char *name, const char *bytes, size_t len, const struct conf_args *args,
			     struct conf_errors *errors);
/* Called as Metron's Fastcapa ("fastcapa", in whatever folder): its command line and ini file as a tree of ours. *action
 * is RUN, DUMP or HELP; with HELP there is neither tree nor error. */
bool conf_is_fastcapa(const char *argv0);
struct conf *conf_load_fastcapa(int argc, char **argv, enum conf_action *action, struct conf_errors *errors);
void conf_fastcapa_help(struct text *t);
void conf_free(struct conf *cf);

/* All bytes of a file, malloced, and how many; at most CONF_FILE_MAX_BYTES and a little more. 0 or -errno. */
int conf_read_file(const char *path, char **bytes, size_t *len);
/* 48 bits of the hash of what conf_dump says: the same for configurations that mean the same. */
uint64_t conf_digest(const struct conf *cf);
/* Puts inputs, outputs and backends that `like` has too in its order, new ones behind them. What they mean does not
 * change. 0 or -ENOMEM. */
int conf_align(struct conf *cf, const struct conf *like);
/* A backend is the same as long as name, address and transport are. */
bool conf_backend_is_same(const struct conf_backend *a, const struct conf_backend *b);

/* What a change asks for: the cheapest class that covers it. */
enum conf_reload {
	CONF_RELOAD_NONE,
	CONF_RELOAD_AT_ONCE, /* the master has it, and tells others at most */
	CONF_RELOAD_RESPAWN, /* workers rolled one by one */
	CONF_RELOAD_REBIND,  /* … and endpoints made or given up before and after */
	CONF_RELOAD_RESTART, /* refused: only a restart does it */
};
enum conf_place { CONF_PLACE_TOP, CONF_PLACE_INPUT, CONF_PLACE_OUTPUT, CONF_PLACE_BACKEND };
struct conf_change {
	enum conf_place place;
	enum conf_reload reload;
	size_t was, is;	    /* index of the input or output; SIZE_MAX: it is new, or removed */
	const char *option; /* its name; NULL: the whole thing was added or removed */
	char *text;	    /* "outputs.shards.queue_limit: 64MiB -> 128MiB", "inputs.tap: added" */
};
struct conf_diff {
	struct conf_change *changes;
	size_t n, size;
	enum conf_reload reload; /* the dearest of all */
	bool no_memory;
};
/* What is different in `cf`, which was aligned to `old`. Freed by conf_diff_free. */
void conf_diff(const struct conf *old, const struct conf *cf, struct conf_diff *d);
void conf_diff_free(struct conf_diff *d);
const char *conf_reload_word(enum conf_reload reload); /* "live", "by rolling the workers", … */

/* What is worth a word and stops nothing, a line each in the form of the errors: for -t, and once in the log. */
void conf_warnings(const struct conf *cf, struct text *t);

/* The effective configuration as a YAML file that loads to the same tree (but path, lines, notes and is_statsrelay). */
void conf_dump(const struct conf *cf, struct text *t);
/* A commented sample with every option and its default, from the table: etc/millrace.yaml and the man page's list. */
void conf_sample(struct text *t);
void conf_man_flags(struct text *t);
void conf_man_options(struct text *t);

/* Whether inputs of this type read packets. */
static inline bool conf_reads_packets(enum conf_words type)
{
	return type == CONF_INPUT_TYPE_CAPTURE || type == CONF_INPUT_TYPE_FILE;
}
/* The word of an enum option ("drop_newest"). */
const char *conf_word(enum conf_words word);
/* block, drop_newest or drop_oldest: what `auto` means for this output. */
enum conf_words conf_overflow(const struct conf *cf, const struct conf_output *out);
/* "HOST:PORT", IPv6 in brackets, as the file wrote the host. buf of at least 300 bytes. */
char *conf_backend_address(const struct conf_backend *be, char *buf, size_t size);
/* … and the name that it was given: "10.0.0.1:9001 (east)". */
char *conf_backend_label(const struct conf_backend *be, char *buf, size_t size);
/* "10.0.0.1:8125", "[::1]:8125", "name:8125", ":8125" → host (malloced; "" for all addresses) and port. 0, -EINVAL
 * or -ENOMEM. */
int conf_split_address(const char *address, char **host, uint16_t *port);
/* Where log lines go: the one of `log`, `syslog` and `daemon` that decides. */
enum log_target conf_log_target(const struct conf *cf);
static inline enum log_level conf_log_level(const struct conf *cf)
{
	return (enum log_level)(cf->log_level - CONF_LOG_LEVEL_ERROR);
}
/* Where to serve HTTP; port 0: any. *may_lack: nobody asked for it, so go on without when it is in use. 0, -ENOENT (off),
 * -EINVAL or -ENOMEM. */
#define CONF_HTTP_AUTO "127.0.0.1:8126"
int conf_http_address(const struct conf *cf, char **host, uint16_t *port, bool *may_lack);

#endif
