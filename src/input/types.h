/* SPDX-License-Identifier: MIT
 *
 * The input types, a table of functions each.
 */
#ifndef INPUT_TYPES_H
#define INPUT_TYPES_H

#include <input.h>

extern const struct input_type input_udp, input_unixgram; /* datagram.c */
extern const struct input_type input_tcp, input_unix;     /* stream.c */
extern const struct input_type input_capture;		  /* capture.c */
extern const struct input_type input_file;		  /* file.c */

/* NULL: no type has this word. */
const struct input_type *input_type_of(enum conf_words word);
/* Master: ep->name → ep->address, for udp and tcp. 0, or -errno with err. */
int input_endpoint_address(const struct input *in, struct endpoint *ep, struct err *err);
/* Master, of unix and unixgram: the present `mode`; and: the path is free from now on. */
int input_adjust_mode(struct input *in, struct endpoint *ep, struct err *err);
void input_retire_path(struct input *in, struct endpoint *ep);

#endif
