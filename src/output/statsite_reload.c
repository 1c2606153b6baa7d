/* SPDX-License-Identifier: MIT
 *
 * statsite_reload: a configuration changes while lines flow. Backends that stay keep connection, queue and counters; new
 * ones start; those that were removed get no new lines, deliver what they hold, and end. Worker only.
 *
 *                  removed                     empty, or nothing was delivered for leave_us
 *   backends[i] ─────────────► `finishing` list ────────────────────────────────────────────► closed, what is left counted
 */
#include "statsite.h"

#include <errno.h>
#include <string.h>

static bool leave(struct backend *be)
{
	struct statsite *st = be->st;
	if (!statsite_own_conf(be))
		return false;
	if (be->stuck_len > 0) { /* what waits for room here goes elsewhere now */
		be->stuck_len = 0;
		TAILQ_REMOVE(&st->stuck, be, stuck);
	}
	be->is_leaving = true;
	be->left_bytes = be->queue.done_bytes;
	be->left_us = clock_us();
	TAILQ_INSERT_TAIL(&st->finishing, be, finishing);
	if (queue_held_bytes(&be->queue) > 0)
		backend_hurry(be);
	return true;
}

/* One that comes back before it had ended goes on as it was: its block in the counters has one writer. */
static struct backend *add(struct statsite *st, const struct conf_backend *cf, uint32_t block)
{
	struct backend *be;
	TAILQ_FOREACH(be, &st->finishing, finishing)
	{
		if (be->is_leaving && be->block == block)
			break;
	}
	if (be != NULL && be->cf->port == cf->port && be->cf->transport == cf->transport &&
	    strcmp(be->cf->host, cf->host) == 0) {
		TAILQ_REMOVE(&st->finishing, be, finishing);
		be->is_leaving = false;
		statsite_disown_conf(be);
		be->cf = cf;
		return be;
	}
	if (be != NULL)
		statsite_finished(be);
	be = statsite_backend_new(st, cf, block);
	if (be != NULL)
		backend_start(be);
	return be;
}

/* The order is that of conf_align: what stays comes first, in its old order. */
static int change_backends(struct statsite *st, const struct conf_output *cf, struct shards *shards)
{
	struct backend **backends = calloc(cf->n_backends, sizeof(struct backend *));
	struct backend **changed = calloc(cf->n_backends, sizeof(struct backend *));
	size_t n = 0;
	if (backends == NULL || changed == NULL)
		goto no_memory;
	for (size_t i = 0; i < st->n_backends; i++) {
		struct backend *be = st->backends[i];
		if (n < cf->n_backends && conf_backend_is_same(be->cf, &cf->backends[n]))
			backends[n++] = be;
		else if (!leave(be))
			goto no_memory;
	}
	for (; n < cf->n_backends; n++) {
		backends[n] = add(st, &cf->backends[n], shards_blocks(shards)[n]);
		if (backends[n] == NULL)
			goto no_memory;
	}
	free(st->backends);
	free(st->changed);
	st->backends = backends;
	st->changed = changed;
	st->n_backends = n;
	st->shards = shards;
	return 0;
no_memory:
	return -ENOMEM; /* the process is about to end */
}

int statsite_reload(struct output *out, const struct conf_output *cf, void *shared)
{
	struct statsite *st = out->impl;
	st->now_us = clock_us();
	if (shared != NULL && change_backends(st, cf, shared) != 0)
		return -ENOMEM;
	out->cf = cf;
	for (size_t i = 0; i < st->n_backends; i++) {
		struct backend *be = st->backends[i];
		be->cf = &cf->backends[i];
		queue_set_limit(&be->queue, cf->queue_limit);
		if (backend_is_tcp(be))
			backend_tcp_set_options(be);
		backend_account(be);
	}
	if (shared != NULL) {
		shards_free(out->shared);
		out->shared = shared;
		out->n_backends = (unsigned)st->n_backends;
		out->blocks = shards_blocks(shared);
	}
	if (!TAILQ_EMPTY(&st->finishing))
		ev_timer_again(out->loop, &st->finish_timer);
	statsite_look_at_finishing(st);
	if (st->draft->held_records > 0) /* there may be room now, or no need to wait for it */
		ev_feed_event(out->loop, &st->room_event, EV_CUSTOM);
	statsite_after_event(st);
	return 0;
}
