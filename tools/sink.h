/* SPDX-License-Identifier: MIT
 *
 * millrace-sink, a backend double: what its files share. One process, one epoll loop, no threads.
 *
 *   millrace-sink.c   the loop, timers, the end
 *   sink_options.c    options to struct sink_opts, --help
 *   sink_ports.c      sockets: bind, listen; stall, slow, reset, refuse
 *   sink_read.c       accept, read, close
 *   sink_lines.c      bytes to lines: counts, sequence numbers, --out
 *   sink_report.c     the report (text, JSON), --live
 *   sink_control.c    commands on stdin
 */
#ifndef TOOLS_SINK_H
#define TOOLS_SINK_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base.h"

enum {
	SINK_READ_BYTES = 1 << 20,
	/* A longer line is malformed and skipped to its newline. Above any datagram and any line of a relay. */
	SINK_LINE_BYTES = 1 << 20,
	SINK_DATAGRAMS = 64, /* of one recvmmsg */
	SINK_DATAGRAM_BYTES = 65536,
	SINK_TICK_US = 10000, /* grain of --slow */
};

/* Numbers from number_from up to this many are verified; the bitmap takes 512 MiB of address space, touched lazily. */
#define SINK_NUMBERS (UINT64_C(1) << 32)

struct sink_opts {
	bool tcp, udp; /* what to listen on */
	uint64_t ports;
	const char *out_path;
	bool number, json, live, control_stdin, strict;
	uint64_t number_from, keys;  /* keys 0: the key of a numbered line is not verified */
	uint64_t expect;	     /* 0: none */
	uint64_t idle_us, settle_us; /* idle 0: none */
	uint64_t timeout_us;	     /* 0: none */
	uint64_t reset_lines, reset_us;
	uint64_t rcvbuf_bytes, slow_bytes, close_after_bytes;
	bool stall;
	uint64_t stall_us; /* with stall; 0: until told otherwise */
};

/* lines = distinct + doubles + malformed + outside, when numbers are verified. */
struct sink_counts {
	uint64_t bytes, datagrams, lines;
	uint64_t distinct, doubles, malformed, outside, out_of_order;
	uint64_t connections; /* accepted */
	uint64_t resets;      /* connections that we reset */
	uint64_t peer_resets;
	uint64_t partial; /* the peer ended a connection within a line: not a line */
	uint64_t cut;	  /* we did */
};

enum watch_kind { WATCH_SIGNAL, WATCH_STDIN, WATCH_LISTEN, WATCH_UDP, WATCH_CONN };

/* First member of all that epoll points to. */
struct watch {
	enum watch_kind kind;
};

struct port {
	struct watch watch;
	int fd;
	bool tcp, stalled, refused, watched;
	struct sockaddr_storage addr;
	socklen_t addr_len;
	unsigned number; /* the port number */
	char name[128];
	struct conn *conns;
	uint64_t stall_until_us; /* 0: until told otherwise */
	uint64_t slow_bytes;	 /* a second; 0: as fast as we can */
	int64_t allowance_bytes; /* of slow_bytes; a datagram may make it negative */
	uint64_t allowance_at_us;
	uint64_t reset_mark_lines; /* counts.lines at the last --reset-every */
	uint64_t live_lines;	   /* counts.lines at the last --live */
	uint64_t next_number;	   /* UDP: highest number seen + 1, for out_of_order */
	struct sink_counts counts;
};

/* A connection. Carry holds the begun line, when lines are looked at one by one. */
struct conn {
	struct watch watch;
	int fd; /* -1: closed, waits for sink_conns_bury */
	bool watched, mid_line, skipping;
	struct port *port;
	struct conn *prev, *next;
	char *carry;
	size_t carry_len, carry_size;
	uint64_t bytes, next_number;
};

struct sink {
	struct sink_opts opts;
	int epoll_fd, signal_fd;
	struct port *ports;
	size_t n_ports;
	struct conn *dead; /* events of this round may still point to them */
	char *buf;	   /* SINK_LINE_BYTES of carry, then SINK_READ_BYTES */
	uint64_t *seen;	   /* bitmap of numbers, or NULL */
	uint64_t max_number;
	bool any_number;
	struct sink_out *out;
	uint64_t start_us, first_us, last_us; /* of data; 0: none yet */
	bool touched;			      /* data came in this round */
	bool reached;			      /* --expect */
	bool done;
	bool drain; /* at the end, read what the kernel still holds */
};

/* sink_options.c. 0: run, addresses are argv[*first...]; 1: done (help was printed); -errno with a sentence. */
int sink_options_parse(struct sink_opts *o, int argc, char **argv, int *first, struct err *err);

/* sink_ports.c. Functions with `number` act on the ports of this number, 0 means all of them. */
int sink_port_add(struct sink *s, const char *address, bool tcp, struct err *err);
int sink_ports_start(struct sink *s, struct err *err);
void sink_ports_close(struct sink *s);
bool sink_port_is_read(const struct port *p);
/* Puts the port's sockets into the epoll set, or takes them out, as its state asks for. */
void sink_port_watch(struct sink *s, struct port *p);
void sink_stall(struct sink *s, unsigned number, bool on, uint64_t stall_us);
void sink_slow(struct sink *s, unsigned number, uint64_t slow_bytes);
void sink_reset(struct sink *s, unsigned number);
int sink_refuse(struct sink *s, unsigned number, bool on, struct err *err);
/* Ends stalls, hands out allowances. Returns when it wants to run next (0: not on its own account). */
uint64_t sink_ports_tick(struct sink *s, uint64_t now_us);

/* sink_read.c. What a function here closes stays in s->dead until sink_conns_bury. */
void sink_listen_ready(struct sink *s, struct port *p);
void sink_udp_ready(struct sink *s, struct port *p);
void sink_conn_ready(struct sink *s, struct conn *c);
void sink_port_close_conns(struct sink *s, struct port *p, bool rst);
void sink_conns_bury(struct sink *s);

/* sink_lines.c */
int sink_lines_init(struct sink *s, const char *out_path, struct err *err);
void sink_lines_fini(struct sink *s);
/* True when every line is looked at (--number, --out); else only newlines are counted. */
bool sink_lines_wanted(const struct sink *s);
uint64_t sink_newlines(const char *bytes, size_t len);
/* Takes the whole lines of bytes[len], counts them for p; returns the bytes taken. With `final`, the rest is a line. */
size_t sink_lines_take(struct sink *s, struct port *p, uint64_t *next_number, const char *bytes, size_t len,
		       bool final);
bool sink_number_seen(const struct sink *s, uint64_t number);
int sink_out_flush(struct sink *s);

/* sink_report.c */
void sink_counts_sum(const struct sink *s, struct sink_counts *sum);
uint64_t sink_missing(const struct sink *s, const struct sink_counts *sum);
void sink_report(struct sink *s, bool json);
void sink_live(struct sink *s);

/* sink_control.c. False at the end of stdin: stop watching it. */
bool sink_control_ready(struct sink *s);

#endif
