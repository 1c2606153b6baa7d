/* SPDX-License-Identifier: MIT
 *
 * What stream.c (accepting, reading) and answer.c (the "status" command) share.
 */
#ifndef INPUT_STREAM_H
#define INPUT_STREAM_H

#include "framing.h"
#include "lines.h"
#include "types.h"

struct answer;

struct connection {
	struct source source;
	struct stream *stream;
	char *keep; /* an unfinished line */
	size_t keep_bytes;
	bool is_skipping;      /* to the newline of a line that is too long */
	struct framing framing;
	uint64_t last_us;      /* when something came, by clock_us */
	unsigned asked;        /* "status" commands in the batch in hand */
	struct sockaddr_storage from; /* the peer; not set unless an output wants it */
	struct answer *answer; /* that the peer has not wholly taken */
};

/* The listening sockets and connections of one input in one worker. */
struct stream {
	struct input *in;
	struct listener {
		struct ev_io io;
		struct stream *stream;
		struct endpoint *ep;
		int fd;
	} * listeners;
	unsigned n_listeners;
	int most_fds; /* nothing is accepted beyond this many descriptors */
	size_t pool_bytes;
	char *pool; /* room for the unfinished lines, touched only by them */
	char **free_keeps;
	size_t n_free;
	struct ev_timer pause, idle;
	struct log_limit pause_log;
};

/* Makes "status" a command. */
void stream_answers_init(struct stream *st);
/* Answers what c->asked; what the peer does not take at once goes on in the loop, even when c has ended. */
void stream_answer(struct connection *c);
void stream_answer_detach(struct connection *c);

#endif
