/* SPDX-License-Identifier: MIT
 *
 * http: see http.h. In the loop, no thread: libmicrohttpd's epoll descriptor is watched like any other. Answers GET and
 * HEAD only, keeps no session, gives no page of another origin the right to read anything (no CORS).
 */
#include "http.h"
#include "monitor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	CONNECTIONS_MAX = 64,
	CONNECTIONS_OF_ONE_MAX = 32, /* a proxy is one, too */
	CONNECTION_BYTES = 16 << 10, /* for a request's head */
	IDLE_SECONDS = 10,
	LEFT_SECONDS = 1,     /* for the answer to one who has said all that he will */
	REQUEST_SECONDS = 20, /* from its first byte to the last of the answer */
	SHARE_FACTOR = 10,    /* so making answers takes a tenth of the CPU at most */
	ANSWERS_MAX_BYTES = 64 << 20,
	SMALL_BYTES = 64 << 10
};

/* A connection's request began then. */
struct client {
	int fd; /* -1: free */
	uint64_t since_us;
};

/* The last answer of a route, for those who ask soon. */
struct kept {
	struct MHD_Response *response; /* NULL: none */
	unsigned status;
	uint64_t since, until_us;
	size_t bytes;
};

struct http {
	struct monitor *m;
	struct MHD_Daemon *daemon;
	struct ev_io io;
	struct ev_timer timer;
	bool is_retired; /* listens no more; each answer ends its connection */
	bool is_local; /* only reached by this machine's own programs, browsers among them */
	struct client clients[CONNECTIONS_MAX];
	struct kept kept[HTTP_ROUTES];
	bool has_closed;      /* a connection, in this run */
	size_t answers_bytes; /* of all that are not freed yet */
};

/* -- answers ------------------------------------------------------------------------------------------------------- */

/* The body's memory, which libmicrohttpd gives back when the last reader has it. */
struct body {
	struct http *h;
	size_t bytes;
	char *s;
};

static void body_free(void *arg)
{
	struct body *body = arg;
	body->h->answers_bytes -= body->bytes;
	free(body->s);
	free(body);
}

static void add_headers(struct MHD_Response *r, const char *type, const char *nonce)
{
	char policy[300] = "default-src 'none'; frame-ancestors 'none'";
	if (nonce[0])
		snprintf(policy, sizeof policy,
			 "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src "
			 "data:; "
			 "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			 nonce, nonce);
	MHD_add_response_header(r, "Content-Type", type);
	MHD_add_response_header(r, "Content-Security-Policy", policy);
	MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	MHD_add_response_header(r, "X-Frame-Options", "DENY");
	MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
	MHD_add_response_header(r, "Cross-Origin-Resource-Policy", "same-origin");
	MHD_add_response_header(r, "Cache-Control", "no-store");
}

/* NULL: no memory. */
static struct MHD_Response *response_of(struct http *h, const struct route *route, struct answer *a)
{
	struct body *body = a->body.failed ? NULL : calloc(1, sizeof *body);
	if (!body) {
		text_free(&a->body);
		return NULL;
	}
	*body = (struct body){.h = h, .bytes = a->body.size, .s = a->body.s}; /* taken */
	h->answers_bytes += body->bytes;
	struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback_cls(
	    a->body.len, a->body.s ? a->body.s : "", body_free, body);
	if (r && h->is_retired)
		MHD_add_response_header(r, "Connection", "close");
	if (r)
		add_headers(r, route->type, a->nonce);
	else
		body_free(body);
	return r;
}

static void make_nonce(struct answer *a)
{
	unsigned char bytes[16];
	if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != sizeof bytes)
		return; /* no script then: the page's tables are there without it */
	for (size_t i = 0; i < sizeof bytes; i++)
		snprintf(a->nonce + 2 * i, sizeof a->nonce - 2 * i, "%02x", bytes[i]);
}

static struct kept *answer_of(struct http *h, size_t index, uint64_t since)
{
	struct kept *kept = &h->kept[index];
	uint64_t begin_us = clock_us();
	if (kept->response && kept->since == since && begin_us < kept->until_us)
		return kept;
	struct answer a = {.status = MHD_HTTP_OK, .since = since};
	/* Slow readers hold that much, until http_second ends them; what is small is answered all the same. */
	if (h->answers_bytes > ANSWERS_MAX_BYTES && kept->bytes > SMALL_BYTES)
		return NULL;
	if (http_routes[index].is_page)
		make_nonce(&a);
	stats_copy_take(h->m->copy, NULL); /* else what the last second saw */
	http_routes[index].make(h->m, &a);
	size_t made_bytes = a.body.len;
	struct MHD_Response *response = response_of(h, &http_routes[index], &a);
	if (!response)
		return NULL;
	if (kept->response)
		MHD_destroy_response(kept->response); /* who reads it still has it */
	uint64_t now_us = clock_us();
	*kept = (struct kept){.response = response,
			      .status = a.status,
			      .since = since,
			      .bytes = made_bytes,
			      .until_us = now_us + SHARE_FACTOR * (now_us - begin_us)};
	return kept;
}

static enum MHD_Result refuse(struct http *h, struct MHD_Connection *connection, unsigned status, const char *sentence)
{
	struct MHD_Response *r =
	    MHD_create_response_from_buffer(strlen(sentence), (void *)(uintptr_t)sentence, MHD_RESPMEM_PERSISTENT);
	if (!r)
		return MHD_NO;
	add_headers(r, "text/plain; charset=utf-8", "");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, "Allow", "GET, HEAD");
	if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
		MHD_add_response_header(r, "Retry-After", "1");
	h->m->counters->http_refused_requests++;
	enum MHD_Result result = MHD_queue_response(connection, status, r);
	MHD_destroy_response(r);
	return result;
}

/* -- requests ------------------------------------------------------------------------------------------------------ */

/* A page of the network that makes a name of its own mean 127.0.0.1 (DNS rebinding) would be of our origin: on loopback
 * only names are known that no stranger can give out. */
static bool is_host_local(const char *host)
{
	char name[256];
	struct in6_addr v6;
	struct in_addr v4;
	bool in_brackets = host[0] == '[';
	size_t len = strcspn(host + in_brackets, in_brackets ? "]" : ":");
	if (len >= sizeof name)
		return false;
	memcpy(name, host + in_brackets, len);
	name[len] = '\0';
	if (in_brackets)
		return inet_pton(AF_INET6, name, &v6) == 1;
	if (len && name[len - 1] == '.')
		name[len - 1] = '\0';
	return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, &v4) == 1;
}

static enum MHD_Result requested(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
				 const char *version, const char *upload, size_t *upload_bytes, void **request)
{
	static char seen;
	struct http *h = arg;
	size_t i = 0;
	uint64_t since = 0;
	(void)version, (void)upload;
	bool is_get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
	if (!*request && is_get) {
		*request = &seen; /* the head is there; a second call tells that the request is whole */
		return MHD_YES;
	}
	if (!is_get) /* answered before its body: the connection then ends */
		return refuse(h, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "Only GET and HEAD are answered here.\n");
	if (*upload_bytes) {
		*upload_bytes = 0; /* a GET with a body: nobody reads it */
		return MHD_YES;
	}
	const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host");
	if (h->is_local && host && !is_host_local(host))
		return refuse(
		    h, connection, MHD_HTTP_MISDIRECTED_REQUEST,
		    "This millrace listens on loopback and answers to localhost and to addresses only: let a proxy say "
		    "Host: localhost.\n");
	while (i < HTTP_ROUTES && strcmp(http_routes[i].path, url) != 0)
		i++;
	if (i == HTTP_ROUTES)
		return refuse(h, connection, MHD_HTTP_NOT_FOUND,
			      "There is nothing here; there are /, /metrics, /healthz, /readyz and /api/status.\n");
	const char *value = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "since");
	if (value && text_parse_uint(value, &since) != 0)
		since = 0;
	struct kept *kept = answer_of(h, i, since);
	if (!kept)
		return refuse(h, connection, MHD_HTTP_SERVICE_UNAVAILABLE,
			      "There is no memory for this answer now; ask again in a few seconds.\n");
	h->m->counters->http_requests++;
	return MHD_queue_response(connection, kept->status, kept->response);
}

/* -- connections --------------------------------------------------------------------------------------------------- */

static struct client *client_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	return info ? info->socket_context : NULL;
}

static void connected(void *arg, struct MHD_Connection *connection, void **place,
		      enum MHD_ConnectionNotificationCode what)
{
	struct http *h = arg;
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct client *client = *place;
	if (what == MHD_CONNECTION_NOTIFY_CLOSED && client) {
		client->fd = -1;
		*place = NULL;
		h->has_closed = true;
	}
	for (size_t i = 0; what == MHD_CONNECTION_NOTIFY_STARTED && info && !*place && i < CONNECTIONS_MAX; i++)
		if (h->clients[i].fd == -1) {
			h->clients[i] = (struct client){.fd = info->connect_fd, .since_us = clock_us()};
			*place = &h->clients[i];
		}
}

static void completed(void *arg, struct MHD_Connection *connection, void **request, enum MHD_RequestTerminationCode why)
{
	(void)arg, (void)request, (void)why;
	struct client *client = client_of(connection);
	if (client)
		client->since_us = clock_us();
}

/* libmicrohttpd 0.9.75 takes a short read for the end of what is there, so an end that came with the bytes before it
 * gives no edge of its own, and the connection would stand until its timeout. */
static bool is_left(const struct client *client, uint64_t us)
{
	struct pollfd end = {.fd = client->fd, .events = POLLRDHUP};
	return us > LEFT_SECONDS * UINT64_C(1000000) && poll(&end, 1, 0) == 1;
}

void http_second(struct http *h)
{
	uint64_t now_us = clock_us();
	for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
		struct client *client = &h->clients[i];
		uint64_t us = now_us - client->since_us;
		if (client->fd != -1 && (us > REQUEST_SECONDS * UINT64_C(1000000) || is_left(client, us)))
			shutdown(client->fd, SHUT_RDWR); /* libmicrohttpd sees its end and closes it */
	}
}

/* -- in the loop --------------------------------------------------------------------------------------------------- */

static void run(struct http *h)
{
	MHD_UNSIGNED_LONG_LONG ms;
	h->has_closed = false;
	MHD_run(h->daemon);
	ev_timer_stop(h->m->loop, &h->timer);
	/* At its limit it left off listening, and begins again only in a run after the one that closed a connection. */
	if (h->has_closed)
		ms = 0;
	else if (MHD_get_timeout(h->daemon, &ms) != MHD_YES)
		return;
	ev_timer_set(&h->timer, (double)ms / 1e3, 0);
	ev_timer_start(h->m->loop, &h->timer);
}

static void readable(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	run(io->data);
}

static void due(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	run(timer->data);
}

static bool is_bound_locally(int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof sa;
	const struct sockaddr_in *in = (const void *)&sa;
	const struct sockaddr_in6 *in6 = (const void *)&sa;
	if (getsockname(fd, (struct sockaddr *)&sa, &len) == -1)
		return false;
	return sa.ss_family == AF_INET ? ntohl(in->sin_addr.s_addr) >> 24 == 127
				       : IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}

struct http *http_open(struct monitor *m, int fd, struct err *err)
{
	struct http *h = calloc(1, sizeof *h);
	if (!h) {
		err_set(err, -ENOMEM, "No memory for the HTTP server.");
		return NULL;
	}
	h->m = m;
	h->is_local = is_bound_locally(fd);
	for (size_t i = 0; i < CONNECTIONS_MAX; i++)
		h->clients[i].fd = -1;
	h->daemon = MHD_start_daemon(
	    MHD_USE_EPOLL, 0, NULL, NULL, requested, h, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)fd,
	    MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
	    (unsigned)CONNECTIONS_OF_ONE_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
	    MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_NOTIFY_CONNECTION, connected, h,
	    MHD_OPTION_NOTIFY_COMPLETED, completed, h, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
	const union MHD_DaemonInfo *info = h->daemon ? MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
	if (!info) {
		err_set(err, -EIO, "Cannot serve HTTP: libmicrohttpd does not start on the socket.");
		free(h);
		return NULL;
	}
	ev_io_init(&h->io, readable, info->epoll_fd, EV_READ);
	ev_timer_init(&h->timer, due, 0, 0);
	h->io.data = h->timer.data = h;
	ev_io_start(m->loop, &h->io);
	run(h);
	return h;
}

static void forget_answers(struct http *h)
{
	for (size_t i = 0; i < HTTP_ROUTES; i++)
		if (h->kept[i].response)
			MHD_destroy_response(h->kept[i].response);
	memset(h->kept, 0, sizeof(h->kept));
}

void http_retire(struct http *h)
{
	run(h);
	h->is_retired = true;
	forget_answers(h);
	MHD_socket fd = MHD_quiesce_daemon(h->daemon);
	if (fd != MHD_INVALID_SOCKET)
		close(fd);
}

bool http_is_idle(const struct http *h)
{
	for (size_t i = 0; i < CONNECTIONS_MAX; i++)
		if (h->clients[i].fd != -1)
			return false;
	return true;
}

void http_close(struct http *h)
{
	if (h == NULL)
		return;
	ev_io_stop(h->m->loop, &h->io);
	ev_timer_stop(h->m->loop, &h->timer);
	MHD_stop_daemon(h->daemon);
	forget_answers(h);
	free(h);
}
