/* SPDX-License-Identifier: MIT
 *
 * backend_address: to which address a backend is connected. Worker only. A name is a set of addresses that changes: it is
 * asked before each round of attempts, and each resolve_interval while the backend is connected. While the name servers
 * fail, the addresses that are known stay.
 *
 *            asked                     failed: the next one
 *   start ─────────► first address ──────────────────────────► … ─► all failed: wait, start
 *     ▲                    │ connected
 *     │                    ▼ its address left the name, or it is as old as max_connection_age
 *     └───── closed ◄─── leaving: the line that was begun is sent, and what was sent is acknowledged
 */
#include "statsite.h"

#include <errno.h>
#include <string.h>

/* -- attempts ------------------------------------------------------------------------------------------------------ */

void backend_try_next(struct backend *be)
{
	be->address = be->addresses[(be->i_first + be->n_tried++) % be->n_addresses];
	if ((backend_is_tcp(be) ? backend_tcp_connect : backend_udp_connect)(be, &be->address) == -1)
		backend_lost(be, strerror(errno));
}

static unsigned find(const struct backend *be)
{
	unsigned i = 0;
	while (i < be->n_addresses && !net_address_is_same(&be->addresses[i], &be->address))
		i++;
	return i;
}

/* The one that it had stays the first that is tried, unless it did not hold. */
static void try_all(struct backend *be)
{
	unsigned at = find(be);
	be->i_first = at < be->n_addresses ? at + be->is_avoided : 0;
	be->n_tried = 0;
	backend_try_next(be);
}

/* Of a connection that another worker made, it is not known yet. */
static void learn(struct backend *be)
{
	be->address.len = sizeof(be->address.sa);
	if (getpeername(be->fd, (struct sockaddr *)&be->address.sa, &be->address.len) == -1)
		be->address = (struct net_address){0};
}

static bool keep(struct backend *be, const struct net_address *a, unsigned n)
{
	struct net_address *copy = malloc(n * sizeof(*copy));
	if (copy == NULL)
		return be->n_addresses > 0;
	memcpy(copy, a, n * sizeof(*copy));
	free(be->addresses);
	be->addresses = copy;
	be->n_addresses = n;
	return true;
}

static void on_resolved(void *arg, const struct net_address *a, unsigned n, const char *why_not)
{
	struct backend *be = arg;
	char name[LABEL_BYTES];
	be->query = NULL;
	be->st->now_us = clock_us();
	if (be->state == BACKEND_UP && be->address.len == 0)
		learn(be);
	if (n > 0 && !keep(be, a, n))
		why_not = strerror(ENOMEM);
	if (why_not != NULL && be->n_addresses > 0)
		log_debug("backend %s: %s; the addresses that are known stay", backend_label(be, name, sizeof(name)),
			  why_not);
	if (be->state != BACKEND_UP && be->n_addresses == 0)
		backend_lost(be, why_not);
	else if (be->state != BACKEND_UP)
		try_all(be);
	else if (find(be) == be->n_addresses)
		backend_leave(be, "the name has other addresses");
	else
		backend_ask_later(be);
	statsite_after_event(be->st);
}

static struct net_query *ask(struct backend *be)
{
	return net_resolve(be->st->out->resolver, be->cf->host, be->cf->port, on_resolved, be);
}

void backend_start(struct backend *be)
{
	be->state = BACKEND_RESOLVING;
	be->i_first = be->n_tried = be->n_addresses; /* none is to be tried before the answer */
	be->query = ask(be);
	if (be->query == NULL)
		backend_lost(be, strerror(ENOMEM));
}

/* -- while it is connected ----------------------------------------------------------------------------------------- */

/* Spread, so that workers and backends do not ask, or leave, in step. */
static uint64_t somewhat_less(struct backend *be, uint64_t us)
{
	return us - statsite_random(be->st, us / 4 + 1);
}

void backend_ask_later(struct backend *be)
{
	const struct conf_output *cf = be->st->out->cf;
	uint64_t now_us = clock_us(), wait_us = UINT64_MAX;
	struct net_address numeric;
	if (be->is_finishing)
		return;
	if (cf->max_connection_age > 0 && be->leave_us == 0)
		be->leave_us = be->connected_us + somewhat_less(be, cf->max_connection_age);
	if (be->leave_us > 0)
		wait_us = be->leave_us - MIN(be->leave_us, now_us);
	if (cf->resolve_interval > 0 && net_address_parse(&numeric, be->cf->host, be->cf->port) != 0)
		wait_us = MIN(wait_us, somewhat_less(be, cf->resolve_interval));
	if (wait_us == UINT64_MAX)
		return;
	ev_timer_stop(be->st->out->loop, &be->ask_timer);
	ev_timer_set(&be->ask_timer, (double)wait_us / 1e6, 0.);
	ev_timer_start(be->st->out->loop, &be->ask_timer);
}

static void on_ask(struct ev_loop *loop, ev_timer *w, int revents)
{
	(void)loop, (void)revents;
	struct backend *be = w->data;
	be->st->now_us = clock_us();
	if (be->st->is_draining)
		return;
	if (be->leave_us > 0 && be->st->now_us >= be->leave_us) {
		be->address = (struct net_address){0}; /* whichever is first now */
		backend_leave(be, "it is as old as max_connection_age");
	} else {
		be->query = ask(be);
		if (be->query == NULL)
			backend_ask_later(be);
	}
	statsite_after_event(be->st);
}

void backend_address_init(struct backend *be)
{
	ev_init(&be->ask_timer, on_ask);
	be->ask_timer.data = be;
}
