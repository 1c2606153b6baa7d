/* SPDX-License-Identifier: MIT
 *
 * fastcapa: Fastcapa's command line, as it was read. Private to conf.
 */
#ifndef CONF_FASTCAPA_H
#define CONF_FASTCAPA_H

#include "load.h"

struct conf_fastcapa {
	enum conf_action action;
	char **eal; /* borrowed from argv, as all texts are */
	size_t n_eal;
	uint32_t ports; /* mask */
	uint64_t rx_burst, descriptors, queues;
	const char *topic, *path, *statistics, *control; /* NULL: not given */
	bool has_tx_burst, has_tx_ring;
};

/* Help or version: then no file is read. */
bool conf_fastcapa_is_asked(enum conf_action action);
/* False: something is wrong; it is in `errors`. */
bool conf_fastcapa_parse(struct conf_fastcapa *fc, int argc, char **argv, struct conf_errors *errors);
/* The ini file's properties into the output; what is wrong is said. */
void conf_fastcapa_ini(struct conf_load *ld, struct conf_output *out, const char *bytes, size_t len);
/* The tree of it and of the ini file's bytes. */
void conf_read_fastcapa(struct conf_load *ld, const struct conf_fastcapa *fc, const char *bytes, size_t len);

#endif
