/* SPDX-License-Identifier: MIT
 *
 * The rows of the table of output types, each defined in its own file. Private to src/output.
 */
#ifndef OUTPUT_TYPES_H
#define OUTPUT_TYPES_H

#include <output.h>

/* Notes whether a backend is connected, and since when it is not. */
void output_mark_up(struct stats_backend *draft, bool is_up);

extern const struct output_type output_statsite;
#ifdef MILLRACE_KAFKA
extern const struct output_type output_kafka;
#endif

#endif
