/* SPDX-License-Identifier: MIT
 *
 * The rows of the table of output types, each defined in its own file. Private to src/output.
 */
#ifndef OUTPUT_TYPES_H
#define OUTPUT_TYPES_H

#include <output.h>

extern const struct output_type output_statsite;
#ifdef MILLRACE_KAFKA
extern const struct output_type output_kafka;
#endif

#endif
