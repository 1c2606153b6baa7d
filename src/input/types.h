/* SPDX-License-Identifier: MIT
 *
 * The rows of the table of inputs.
 */
#ifndef INPUT_TYPES_H
#define INPUT_TYPES_H

#include <input.h>

extern const struct input_type input_udp, input_unixgram; /* datagram.c */
extern const struct input_type input_tcp, input_unix;	  /* stream.c */
extern const struct input_type input_pcap;		  /* capture_pcap.c, when built in */
extern const struct input_type input_dpdk;		  /* dpdk.c, when built in */
extern const struct input_type input_file;		  /* file.c */

#endif
