/* SPDX-License-Identifier: MIT
 *
 * http: the monitor's HTTP server: libmicrohttpd in the monitor's loop. Which page says what is in answers.c.
 *
 * It may be asked by anybody who reaches its address, so everything is bounded: connections, those of one address,
 * their memory and time, the memory of answers that slow readers hold, and the CPU: an answer that took long to make is
 * given to everybody who asks for it within ten times that long.
 */
#ifndef MONITOR_HTTP_H
#define MONITOR_HTTP_H

#include <base.h>

struct monitor;
struct http;

/* One answer in the making. */
struct answer {
	unsigned status;
	struct text body;
	uint64_t since; /* asked: only points of the history from this one on; 0: all */
	char nonce[33]; /* of the page: what its own script and style are known by */
};

/* The server on a listening descriptor, which it owns from now on. NULL with err. */
struct http *http_open(struct monitor *m, int fd, struct err *err);
/* Each second: ends connections whose request takes too long. */
void http_second(struct http *h);
/* Takes whoever has connected, then listens no more; connections go on. http_is_idle: there are none any more. */
void http_retire(struct http *h);
bool http_is_idle(const struct http *h);
/* Ends all that is left. h may be NULL. */
void http_close(struct http *h);

/* answers.c: what stands at each path. `type` is its Content-Type. NULL: nothing does. */
struct route {
	const char *path, *type;
	void (*make)(struct monitor *m, struct answer *a);
	bool is_page; /* with a script */
};
extern const struct route http_routes[];
enum { HTTP_ROUTES = 6 };

#endif
