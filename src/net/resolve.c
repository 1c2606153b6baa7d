/* SPDX-License-Identifier: MIT
 *
 * resolve: names to addresses with c-ares under the libev loop. Worker, after fork. Rare work (at each connect), so it
 * may allocate, as c-ares does. Each query has a timer of its own: it brings the answer at the loop's next turn, also
 * when c-ares answers at once (a line of /etc/hosts), and ends a query that takes too long. Does not cache.
 *
 *   asked of c-ares ──► its callback: answered ──► timer: user's callback ──► freed
 *        │ too long: user's callback, or cancelled        freed when both c-ares and the user are done with it
 */
#include <net.h>

#include <ares.h>
#include <errno.h>
#include <ev.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

enum { QUERY_TIMEOUT_MS = 10000, SERVER_TIMEOUT_MS = 1500, SERVER_TRIES = 2 };

struct net_query {
	LIST_ENTRY(net_query) all;
	struct net_resolver *r;
	net_resolved_cb *cb; /* NULL: called back or cancelled */
	void *arg;
	ev_timer timer;
	bool is_in_ares;
	struct net_address addresses[NET_ADDRESSES_MAX];
	unsigned n_addresses;
	const char *why_not; /* fixed text */
	uint16_t port;
};

struct watch {
	LIST_ENTRY(watch) all;
	ev_io io;
};

struct net_resolver {
	struct ev_loop *loop;
	ares_channel channel;
	bool has_channel, is_closing;
	ev_timer timer; /* c-ares' own timeouts */
	LIST_HEAD(, net_query) queries;
	LIST_HEAD(, watch) watches;
	unsigned n_in_ares;
	struct timespec servers_changed; /* of /etc/resolv.conf when the channel was made */
};

/* -- c-ares under libev -------------------------------------------------------------------------------------------- */

/* c-ares tells whole milliseconds, cut: without one more the loop would spin for the last one. */
static void arm_timer(struct net_resolver *r)
{
	struct timeval tv;
	ev_timer_stop(r->loop, &r->timer);
	if (ares_timeout(r->channel, NULL, &tv) == NULL)
		return;
	ev_timer_set(&r->timer, (double)tv.tv_sec + (double)tv.tv_usec / 1e6 + 1e-3, 0.);
	ev_timer_start(r->loop, &r->timer);
}

static void on_ares_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct net_resolver *r = w->data;
	ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	arm_timer(r);
}

static void on_ares_io(struct ev_loop *loop, ev_io *w, int revents)
{
	(void)loop;
	struct net_resolver *r = w->data;
	int fd = w->fd; /* the watch may be freed by the call */
	ares_process_fd(r->channel, revents & EV_READ ? fd : ARES_SOCKET_BAD,
			revents & EV_WRITE ? fd : ARES_SOCKET_BAD);
	arm_timer(r);
}

static void on_ares_socket(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct net_resolver *r = arg;
	struct watch *w;
	LIST_FOREACH(w, &r->watches, all)
	{
		if (w->io.fd == fd)
			break;
	}
	if (w != NULL)
		ev_io_stop(r->loop, &w->io);
	if (!readable && !writable) {
		if (w != NULL)
			LIST_REMOVE(w, all);
		free(w);
		return;
	}
	if (w == NULL) {
		w = calloc(1, sizeof(*w));
		if (w == NULL)
			return; /* the query ends by its timeout */
		ev_init(&w->io, on_ares_io);
		w->io.data = r;
		LIST_INSERT_HEAD(&r->watches, w, all);
	}
	ev_io_set(&w->io, fd, (readable ? EV_READ : 0) | (writable ? EV_WRITE : 0));
	ev_io_start(r->loop, &w->io);
}

static int open_channel(struct net_resolver *r)
{
	struct stat st;
	struct ares_options options = {
	    .timeout = SERVER_TIMEOUT_MS,
	    .tries = SERVER_TRIES,
	    .sock_state_cb = on_ares_socket,
	    .sock_state_cb_data = r,
	};
	if (stat("/etc/resolv.conf", &st) == 0)
		r->servers_changed = st.st_mtim;
	int code =
	    ares_init_options(&r->channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);
	r->has_channel = code == ARES_SUCCESS;
	return code;
}

/* c-ares 1.18 reads the list of servers once; a worker lives for months. */
static void renew_channel(struct net_resolver *r)
{
	struct stat st;
	if (r->has_channel &&
	    (r->n_in_ares > 0 || stat("/etc/resolv.conf", &st) == -1 ||
	     (st.st_mtim.tv_sec == r->servers_changed.tv_sec && st.st_mtim.tv_nsec == r->servers_changed.tv_nsec)))
		return;
	if (r->has_channel) {
		ev_timer_stop(r->loop, &r->timer);
		ares_destroy(r->channel);
	}
	(void)open_channel(r); /* without one, queries are answered with a reason */
}

struct net_resolver *net_resolver_new(struct ev_loop *loop, struct err *err)
{
	int code = ares_library_init(ARES_LIB_INIT_ALL);
	struct net_resolver *r = code == ARES_SUCCESS ? calloc(1, sizeof(*r)) : NULL;
	if (r != NULL) {
		r->loop = loop;
		ev_init(&r->timer, on_ares_timer);
		r->timer.data = r;
		code = open_channel(r);
	}
	if (r == NULL || code != ARES_SUCCESS) {
		free(r);
		err_set(err, -ENOMEM, "Cannot start the resolver: %s.",
			r == NULL ? strerror(ENOMEM) : ares_strerror(code));
		return NULL;
	}
	return r;
}

/* -- queries ------------------------------------------------------------------------------------------------------ */

static void query_free_if_done(struct net_query *q)
{
	if (q->is_in_ares || q->cb != NULL)
		return;
	ev_timer_stop(q->r->loop, &q->timer);
	LIST_REMOVE(q, all);
	free(q);
}

static void call_back_at_next_turn(struct net_query *q)
{
	ev_timer_stop(q->r->loop, &q->timer);
	ev_timer_set(&q->timer, 0., 0.);
	ev_timer_start(q->r->loop, &q->timer);
}

static void on_query_timer(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct net_query *q = w->data;
	net_resolved_cb *cb = q->cb;
	q->cb = NULL;
	if (q->n_addresses == 0 && q->why_not == NULL)
		q->why_not = "the name servers take too long";
	if (cb != NULL)
		cb(q->arg, q->addresses, q->n_addresses, q->n_addresses > 0 ? NULL : q->why_not);
	query_free_if_done(q);
}

/* Whether there is a way to it from here: asks the kernel's tables, sends nothing. */
static bool has_route(const struct net_address *a)
{
	int fd = socket(a->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd == -1)
		return errno != EAFNOSUPPORT;
	bool has = connect(fd, (const struct sockaddr *)&a->sa, a->len) == 0;
	close(fd);
	return has;
}

/* In the order of the name servers' answer, but first those that there is a way to, and of these IPv4 before IPv6. */
static void keep_addresses(struct net_query *q, const struct ares_addrinfo *result)
{
	struct net_address all[NET_ADDRESSES_MAX];
	unsigned ranks[NET_ADDRESSES_MAX], n = 0;
	for (const struct ares_addrinfo_node *node = result->nodes; node != NULL && n < NET_ADDRESSES_MAX;
	     node = node->ai_next) {
		if (node->ai_family != AF_INET && node->ai_family != AF_INET6)
			continue;
		all[n] = (struct net_address){.len = node->ai_addrlen};
		memcpy(&all[n].sa, node->ai_addr, node->ai_addrlen);
		net_address_set_port(&all[n], q->port);
		ranks[n] = (has_route(&all[n]) ? 0 : 2) + (node->ai_family == AF_INET6);
		n++;
	}
	for (unsigned rank = 0; rank < 4; rank++)
		for (unsigned i = 0; i < n; i++)
			if (ranks[i] == rank)
				q->addresses[q->n_addresses++] = all[i];
}

static void on_ares_answer(void *arg, int status, int timeouts, struct ares_addrinfo *result)
{
	(void)timeouts;
	struct net_query *q = arg;
	q->is_in_ares = false;
	q->r->n_in_ares--;
	if (status == ARES_SUCCESS && result != NULL)
		keep_addresses(q, result);
	if (result != NULL)
		ares_freeaddrinfo(result);
	if (q->n_addresses == 0)
		q->why_not = status == ARES_SUCCESS ? "the name has no address" : ares_strerror(status);
	if (q->cb == NULL || q->r->is_closing)
		query_free_if_done(q);
	else
		call_back_at_next_turn(q);
}

static void ask(struct net_query *q, const char *host)
{
	struct net_resolver *r = q->r;
	const struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_flags = ARES_AI_NOSORT};
	renew_channel(r);
	if (!r->has_channel) {
		q->why_not = "no resolver";
		call_back_at_next_turn(q);
		return;
	}
	q->is_in_ares = true;
	r->n_in_ares++;
	ev_timer_set(&q->timer, QUERY_TIMEOUT_MS / 1e3, 0.);
	ev_timer_start(r->loop, &q->timer);
	ares_getaddrinfo(r->channel, host, NULL, &hints, on_ares_answer, q);
	arm_timer(r);
}

struct net_query *net_resolve(struct net_resolver *r, const char *host, uint16_t port, net_resolved_cb *cb, void *arg)
{
	struct net_query *q = calloc(1, sizeof(*q));
	if (q == NULL)
		return NULL;
	q->r = r;
	q->cb = cb;
	q->arg = arg;
	q->port = port;
	ev_init(&q->timer, on_query_timer);
	q->timer.data = q;
	LIST_INSERT_HEAD(&r->queries, q, all);
	q->n_addresses = net_address_parse(&q->addresses[0], host, port) == 0;
	if (q->n_addresses == 0 && strchr(host, ':') != NULL)
		q->why_not = "there is no such interface"; /* of fe80::1%eth9; no name has a colon */
	if (q->n_addresses > 0 || q->why_not != NULL)
		call_back_at_next_turn(q);
	else
		ask(q, host);
	return q;
}

void net_query_cancel(struct net_query *q)
{
	q->cb = NULL;
	ev_timer_stop(q->r->loop, &q->timer);
	query_free_if_done(q);
}

void net_resolver_free(struct net_resolver *r)
{
	struct net_query *q;
	if (r == NULL)
		return;
	r->is_closing = true;
	LIST_FOREACH(q, &r->queries, all)
	q->cb = NULL;
	if (r->has_channel)
		ares_destroy(r->channel); /* calls back what is open: those are freed there */
	while ((q = LIST_FIRST(&r->queries)) != NULL)
		net_query_cancel(q);
	ev_timer_stop(r->loop, &r->timer);
	ares_library_cleanup();
	free(r);
}
