/* SPDX-License-Identifier: MIT
 *
 * load: what the parts that make one configuration share. Private to conf.
 */
#ifndef CONF_LOAD_H
#define CONF_LOAD_H

#include "rows.h"

struct conf_node;

/* Where the options of one object were given. */
struct conf_origin {
	struct {
		bool is_given;
		int line;
		const struct conf_node *node; /* of a PART; borrowed from the tree */
	} rows[CONF_ROWS];
};

struct conf_load {
	struct conf *cf;
	const char *name; /* stands for the file in messages */
	struct conf_load_error {
		int line;
		size_t order;
		char *text; /* without file and line */
	} *errors;
	size_t n_errors, errors_size, n_held_back;
	bool no_memory;
	struct conf_origin *top, *inputs, *outputs; /* of cf, cf->inputs[], cf->outputs[] */
	size_t inputs_size, outputs_size, input_origins_size, output_origins_size, n_backends;
};

/* An error. `line` 0 and `key` NULL: there is none. */
void conf_load_error(struct conf_load *ld, int line, const char *key, const char *fmt, ...) PRINTF_LIKE(4, 5);
/* All of them as text, sorted; ends the collection. True when there are some. */
bool conf_load_give_errors(struct conf_load *ld, struct conf_errors *errors);
/* A note for conf_warnings. */
void conf_load_note(struct conf_load *ld, int line, const char *key, const char *fmt, ...) PRINTF_LIKE(4, 5);

enum { CONF_KEY_SIZE = 300, CONF_NAME_MAX = 63 };
/* "a.b", with what is odd in b escaped, into buf[CONF_KEY_SIZE]. `a` may be "" . Returns buf. */
char *conf_key(char *buf, const char *a, const char *b);

/* A new input or output with its defaults, or NULL (memory, or more than there may be: said). */
struct conf_input *conf_load_add_input(struct conf_load *ld, const char *name, int line);
struct conf_output *conf_load_add_output(struct conf_load *ld, const char *name, int line);
/* 0 or -1 (ld->no_memory). */
int conf_list_add(struct conf_load *ld, struct conf_list *list, const char *item, int line);
int conf_map_add(struct conf_load *ld, struct conf_map *map, const char *key, const char *value, int line);

/* -- read.c: nodes to structs by the rows -- */

/* All keys of a map node into the scope's struct, which has its defaults. PARTs are left in `origin`. `line`: where the
 * object begins, for what is missing. */
void conf_read_object(struct conf_load *ld, const struct conf_node *map, int line, enum conf_scope scope,
		      const char *key, void *object, struct conf_origin *origin);
/* The whole file. False when there is no map of options at all (said). */
bool conf_read_root(struct conf_load *ld, const struct conf_node *root);

/* -- backends.c -- */

void conf_read_backends(struct conf_load *ld, struct conf_output *out, const struct conf_node *node, const char *key);
void conf_read_shard_map(struct conf_load *ld, struct conf_output *out, const struct conf_node *node, const char *key);
/* From the command line. */
void conf_load_backends(struct conf_load *ld, struct conf_output *out, const struct conf_list *addresses);

/* -- kafka.c -- */

/* The output of --kafka and --topic. */
void conf_load_kafka(struct conf_load *ld, const struct conf_args *args);
/* What is wrong with a kafka output beside its inputs, in what src/conf knows; the rest is librdkafka's. */
void conf_check_kafka(struct conf_load *ld, const struct conf_output *out);

/* -- statsrelay.c -- */

/* statsd: and carbon:, when origin of the top has them. */
void conf_read_statsrelay(struct conf_load *ld);

/* -- check.c -- */

/* What is wrong in a tree that was read, and the links from inputs to outputs. */
void conf_check(struct conf_load *ld);
/* check_paths.c: of the paths of files, the log, and a daemon. */
void conf_check_paths(struct conf_load *ld);

/* -- address.c -- */

struct conf_address {
	char host[256];
	uint16_t port;
	enum conf_transport transport;
};
enum conf_address_kind {
	CONF_ADDRESS_BIND,    /* HOST:PORT; no host: all addresses */
	CONF_ADDRESS_BACKEND, /* HOST:PORT[:tcp|:udp] */
	CONF_ADDRESS_HTTP    /* as BIND; port 0: any that is free */
};
/* 0, or -EINVAL with what is wrong and what is allowed in `why`. */
int conf_address_parse(const char *s, enum conf_address_kind kind, struct conf_address *a, struct text *why);
/* The same text for two spellings of one address; buf of at least 300 bytes. */
char *conf_address_key(const struct conf_address *a, char *buf, size_t size);
/* What is wrong with the path of a unix socket, or NULL. */
const char *conf_path_fault(const char *path);

#endif
