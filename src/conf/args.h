/* SPDX-License-Identifier: MIT
 *
 * args: the flags of option.def as data, for the parser and for --help. Private to conf.
 */
#ifndef CONF_ARGS_H
#define CONF_ARGS_H

#include "rows.h"

enum conf_flag_action {
	CONF_FLAG_CONFIG,
	CONF_FLAG_CHECK,
	CONF_FLAG_DUMP,
	CONF_FLAG_LISTEN,
	CONF_FLAG_CAPTURE,
	CONF_FLAG_BACKEND,
	CONF_FLAG_KAFKA,
	CONF_FLAG_TOPIC,
	CONF_FLAG_RECEIVE_BUFFER,
	CONF_FLAG_VERBOSE,
	CONF_FLAG_VERSION,
	CONF_FLAG_HELP,
};

/* One spelling of a flag: of a FLAG row, or of a TOP option (`row`). */
struct conf_flag {
	int letter; /* or 0 */
	const char *name;
	const char *argument; /* "" none, "[X]" may be left out */
	enum conf_flag_action action;
	const struct conf_row *row; /* NULL: see action */
	const char *help;
	bool is_alias; /* of the flag before it */
};

enum { CONF_FLAGS_MAX = 100 };
/* All of them; returns how many. */
size_t conf_flags(struct conf_flag flags[CONF_FLAGS_MAX]);

#endif
