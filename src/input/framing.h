/* SPDX-License-Identifier: MIT
 *
 * framing: how lines lie in a stream: one behind the other, or, as DogStatsD's clients send them over unix sockets, in
 * messages, each behind its length (32 bits, little-endian). Worker only, pure.
 */
#ifndef INPUT_FRAMING_H
#define INPUT_FRAMING_H

#include <base.h>

enum framing_mode { FRAMING_UNKNOWN, FRAMING_LINES, FRAMING_MESSAGES };

/* No message is longer (DogStatsD's are of 8 KiB): what says so is no length. */
enum { FRAMING_MESSAGE_MAX = 0x3ffff };

/* Of one connection. */
struct framing {
	enum framing_mode mode;
	unsigned head_bytes; /* of a length that has begun … */
	uint32_t head;	     /* … and what they say */
	uint32_t left;	     /* bytes of the message that are still to come */
};

/* What a connection speaks, by its first bytes; FRAMING_UNKNOWN: these are too few. The third and fourth byte of a length
 * are below 4 and 0, which no text is. */
enum framing_mode framing_recognise(const char *s, size_t len);

/* Makes lines of messages, in place: takes the lengths out, ends each message with a newline. Returns how many bytes
 * there are then: at most len + 1. Where something is no length, the mode is FRAMING_LINES
 * afterwards, and what follows is text. */
size_t framing_unwrap(struct framing *f, char *text, size_t len);

/* As one number, for the connection's way to another worker. */
uint64_t framing_pack(const struct framing *f);
struct framing framing_unpack(uint64_t packed);

#endif
