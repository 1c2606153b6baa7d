/* SPDX-License-Identifier: MIT
 *
 * statsite_finish: connections that have no place here: of a backend that the configuration does not have any more, or has
 * a connection of its own to. What was begun on it is sent and confirmed there; lines that were not begun have gone to
 * those who have their keys now. Should it break, what is not confirmed goes there as well. Worker only.
 *
 *                                               empty, or nothing was delivered for leave_us
 *   handed over, or removed ───► finishing list ─────────────────────────────────────────────► closed, what is left counted
 */
#include "statsite.h"

#include <errno.h>
#include <string.h>

bool statsite_own_conf(struct backend *be)
{
	struct conf_backend *cf = calloc(1, sizeof(*cf));
	if (cf == NULL)
		return false;
	*cf = *be->cf;
	cf->name = strdup(be->cf->name != NULL ? be->cf->name : "");
	cf->host = strdup(be->cf->host);
	cf->address = strdup(be->cf->address != NULL ? be->cf->address : "");
	be->own_cf = cf;
	if (cf->name == NULL || cf->host == NULL || cf->address == NULL)
		return false;
	be->cf = cf;
	return true;
}

void statsite_disown_conf(struct backend *be)
{
	if (be->own_cf == NULL)
		return;
	free(be->own_cf->name);
	free(be->own_cf->host);
	free(be->own_cf->address);
	free(be->own_cf);
	be->own_cf = NULL;
}

struct backend *statsite_finish(struct statsite *st, const struct conf_backend *cf, struct backend *account,
				struct queue_part *part)
{
	struct backend *be = aligned_alloc(64, sizeof(*be));
	if (be == NULL)
		return NULL;
	backend_init(be, st, cf, account->draft);
	be->block = account->block;
	be->is_finishing = true;
	if (!statsite_own_conf(be)) {
		statsite_disown_conf(be);
		backend_free(be);
		return NULL;
	}
	queue_prepend(&be->queue, part);
	be->counted_lines += part->held_lines;
	be->draft->taken_over_records += part->held_lines;
	*part = (struct queue_part){0};
	be->left_bytes = be->queue.done_bytes;
	be->left_us = st->now_us;
	TAILQ_INSERT_TAIL(&st->finishing, be, finishing);
	ev_timer_again(st->out->loop, &st->finish_timer);
	backend_account(be);
	return be;
}

void statsite_finished(struct backend *be)
{
	TAILQ_REMOVE(&be->st->finishing, be, finishing);
	backend_close(be);
	statsite_disown_conf(be);
	backend_free(be);
}

/* Its connection is lost: passed from its account to those of others. */
static void move_lines(struct backend *be)
{
	struct statsite *st = be->st;
	struct queue *q = &be->queue;
	struct iovec piece;
	uint64_t lines = queue_unsent_lines(q), moved = 0;
	while (queue_unsent(q, &piece, 1, SIZE_MAX) == 1) {
		uint64_t unsent_lines = queue_unsent_lines(q);
		queue_sent(q, piece.iov_len);
		unsent_lines -= queue_unsent_lines(q);
		moved += statsite_take_lines(st, NULL, piece.iov_base, piece.iov_len, unsent_lines);
		queue_acked(q, piece.iov_len);
	}
	be->draft->passed_records += moved;
	be->draft->dropped_memory_records += lines - moved; /* its last worker wrote over them */
	backend_account(be);
	statsite_account_changed(st);
}

void statsite_look_at_finishing(struct statsite *st)
{
	struct backend *be, *next;
	for (be = TAILQ_FIRST(&st->finishing); be != NULL; be = next) {
		next = TAILQ_NEXT(be, finishing);
		if (be->is_finishing && be->state != BACKEND_UP)
			move_lines(be);
		if (be->queue.done_bytes != be->left_bytes) {
			be->left_bytes = be->queue.done_bytes;
			be->left_us = st->now_us;
		}
		if (queue_held_bytes(&be->queue) == 0 ||
		    (!st->is_draining && st->now_us >= be->left_us + st->out->leave_us))
			statsite_finished(be);
	}
	uint64_t leave_us = st->out->leave_us;
	bool awaits = region_forget_old(&st->pool, st->now_us > leave_us ? st->now_us - leave_us : 0);
	if (TAILQ_EMPTY(&st->finishing) && !awaits)
		ev_timer_stop(st->out->loop, &st->finish_timer);
}

void statsite_close_finishing(struct statsite *st)
{
	struct backend *be;
	while ((be = TAILQ_FIRST(&st->finishing)) != NULL)
		statsite_finished(be);
}
