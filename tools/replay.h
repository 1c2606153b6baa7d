/* SPDX-License-Identifier: MIT
 *
 * millrace-replay, the load generator: what its files share. One process, one thread.
 *
 *   millrace-replay.c   options, the loop, pacing, reports
 *   replay_options.c    options to struct replay_opts, --help
 *   replay_lines.c      synthetic lines: templates, numbered lines
 *   replay_pcap.c       payloads of a capture file
 *   replay_frame.c      a captured frame to its UDP payload (pure)
 *   replay_send.c       sockets, sendmmsg, streams, errors by kind
 */
#ifndef TOOLS_REPLAY_H
#define TOOLS_REPLAY_H

#include <signal.h>

#include "base.h"

enum {
	REPLAY_BATCH = 64, /* datagrams of one sendmmsg */
	REPLAY_DATAGRAM_BYTES = 65507,
	REPLAY_KEYS = 10000000,
};

struct replay_opts {
	const char *target, *file; /* file NULL: synthetic lines */
	bool stream;
	double pps, speed; /* both 0: flat out */
	uint64_t burst;
	uint64_t repeat; /* of the file, 0: for ever */
	/* Bounds: the first that is reached ends the run; UINT64_MAX: none. */
	uint64_t count_datagrams, count_lines, time_us;
	uint64_t group_bytes; /* 0: payloads as they were */
	uint64_t sources;
	bool number, one, json, quiet;
	uint64_t number_from, keys, payload_bytes;
	const char *types[8];
	size_t n_types;
	unsigned port; /* of the file's payloads, 0: any */
};

struct datagram {
	const char *bytes;
	uint32_t len, lines;
	uint64_t at_ns; /* since the first of the file; 0 for synthetic ones */
};

/* Where datagrams come from: a list that is gone through again and again (file, templates), or, with `numbers`, lines
 * that are formatted as they are needed. What it gave is valid until the next replay_source_take. */
struct replay_source {
	struct datagram *list;
	size_t n, size, next;
	uint64_t passes_left, pass; /* UINT64_MAX: for ever */
	uint64_t span_ns;	    /* of a pass */
	struct text arena;	    /* the list's bytes */
	struct replay_numbers *numbers;
	uint64_t lines_left;					      /* UINT64_MAX: no bound */
	uint64_t skipped_other, skipped_fragments, skipped_truncated; /* packets of the file */
	uint64_t packets, payloads;
};

enum send_error {
	SEND_REFUSED,	 /* ECONNREFUSED: an earlier datagram's ICMP, or a unix socket without reader */
	SEND_AGAIN,	 /* EAGAIN: waited for the socket */
	SEND_NO_BUFFERS, /* ENOBUFS: waited a little */
	SEND_TOO_BIG,	 /* EMSGSIZE */
	SEND_RESET,	 /* ECONNRESET, EPIPE: the stream's peer went away */
	SEND_OTHER,
	SEND_ERRORS
};

struct replay_sender {
	int *fds;
	size_t n, next;
	bool stream;
	uint64_t datagrams, lines, bytes;	 /* that the kernel took */
	uint64_t unsent_datagrams, unsent_lines; /* made, but never taken */
	uint64_t unsent_in_a_row;
	uint64_t errors[SEND_ERRORS];
	int last_error; /* errno of the last SEND_OTHER, SEND_RESET */
	bool failed;	/* an error, not the end of the run, left datagrams unsent */
	bool broken;	/* no use to go on */
	const volatile sig_atomic_t *stop;
	uint64_t deadline_us; /* waiting ends then, too; 0: never */
};

/* replay_options.c. 0: run; 1: done (help was printed); -errno with a sentence. */
int replay_options_parse(struct replay_opts *o, int argc, char **argv, struct err *err);

/* replay_lines.c */
int replay_lines_init(struct replay_source *src, const struct replay_opts *o, struct err *err);
void replay_lines_fini(struct replay_source *src);
size_t replay_numbers_take(struct replay_source *src, struct datagram *d, size_t max);
uint64_t replay_numbers_next(const struct replay_source *src);

/* replay_pcap.c */
int replay_pcap_load(struct replay_source *src, const struct replay_opts *o, struct err *err);
/* Appends to the list, or (group_bytes) to its last datagram when it fits there. */
int replay_list_add(struct replay_source *src, const struct replay_opts *o, const char *bytes, size_t len,
		    uint64_t at_ns);
/* Up to max datagrams; 0 at the end. Of a file: after the first one only those recorded up to until_at_ns. */
size_t replay_source_take(struct replay_source *src, struct datagram *d, size_t max, uint64_t until_at_ns);
/* When the next datagram was recorded, since the file's first; passes add up. */
uint64_t replay_source_at_ns(const struct replay_source *src);
void replay_source_fini(struct replay_source *src);

/* replay_frame.c */
enum frame_result { FRAME_PAYLOAD, FRAME_OTHER, FRAME_FRAGMENT, FRAME_TRUNCATED };
/* linktype is a DLT_ value; *payload points into frame. A frame whose payload was not captured whole is truncated. */
enum frame_result replay_frame_payload(int linktype, const unsigned char *frame, size_t len, const char **payload,
				       size_t *payload_len, unsigned *port);
bool replay_frame_linktype_known(int linktype);

/* replay_send.c */
int replay_sender_open(struct replay_sender *snd, const struct replay_opts *o, struct err *err);
void replay_sender_close(struct replay_sender *snd);
/* Sends all of d[n] from the next source; waits where it must. */
void replay_send(struct replay_sender *snd, const struct datagram *d, size_t n);

#endif
