/* SPDX-License-Identifier: MIT
 *
 * invalid: the last invalid lines of each worker and input, with sender and reason, for `millracectl invalid` and the
 * debug log. The worker writes them into its receive batch, which the master reads.
 */
#ifndef INPUT_INVALID_H
#define INPUT_INVALID_H

#include <input.h>

/* Worker: a line was counted as invalid. At most INVALID_A_SECOND of an input are kept in a second. */
void invalid_note(struct input *in, const char *line, size_t len);
/* Worker: an invalid line came in the last seconds, so that it is worth asking the kernel for senders. */
bool invalid_wants_from(const struct input *in);

#endif
