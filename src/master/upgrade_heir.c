/* SPDX-License-Identifier: MIT
 *
 * upgrade_heir: the new master's side: takes the endpoints that a predecessor has bound, says READY when its workers are,
 * and lets them read at GO. The predecessor's counters stay in all sums: in the page behind the last slot's. See upgrade.h.
 */
#include "upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static const int patience_ms = 10000;
static const double import_seconds = 0.5;

struct heir {
	struct master *m;
	int fd;
	struct ev_io io;
	struct ev_timer import;
	struct stats *pages; /* the predecessor's */
	struct stats_copy *copy;
	int page; /* of ours that they go to; -1: none is left */
	unsigned next; /* slot for a connection */
	bool has_gone;
};

static struct heir heir = {.fd = -1};

/* -- the start ------------------------------------------------------------------------------------------------------- */

/* One descriptor of an endpoint; with the last it is whole. */
static int take_endpoint(struct master *m, const struct upgrade_message *msg, int fd)
{
	static int fds[STATS_SLOTS_MAX];
	const struct endpoint_state state = {
	    .name = msg->name,
	    .address = msg->address,
	    .group = msg->group,
	    .path_device = msg->path_device,
	    .path_inode = msg->path_inode,
	    .n_fds = msg->n,
	    .fds = fds,
	};
	if (msg->n > STATS_SLOTS_MAX || (msg->n > 0 && (msg->number >= msg->n || fd == -1)))
		return -EPROTO;
	if (msg->n > 0)
		fds[msg->number] = fd;
	if (msg->number + 1 < msg->n)
		return 0;
	return registry_adopt(&m->registry, input_endpoint_ops(msg->kind), &state);
}

/* Blocks: nothing else is to be done yet. */
static ssize_t next_message(int fd, struct upgrade_message *msg, int *passed)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int r = poll(&p, 1, patience_ms);
	if (r <= 0)
		return r == 0 ? -ETIMEDOUT : -errno;
	ssize_t n = net_recv_fd(fd, msg, sizeof *msg, passed);
	if (n >= (ssize_t)UPGRADE_HEAD_BYTES)
		msg->kind[sizeof msg->kind - 1] = msg->name[sizeof msg->name - 1] = '\0';
	return n;
}

static int take_all(struct master *m, struct err *err)
{
	static struct upgrade_message msg;
	for (;;) {
		int fd = -1, r = 0;
		ssize_t n = next_message(heir.fd, &msg, &fd);
		if (n < (ssize_t)UPGRADE_HEAD_BYTES || msg.version != UPGRADE_VERSION)
			return err_set(err, -EPROTO,
				       "Cannot take over from the millrace that runs: it %s. Restart instead.",
				       n <= 0 ? "has gone" : "speaks another language");
		if (msg.type == UPGRADE_END)
			return 0;
		if (msg.type == UPGRADE_ENDPOINT)
			r = take_endpoint(m, &msg, fd);
		else if (msg.type == UPGRADE_CONTROL && strcmp(msg.name, m->cf->control) == 0)
			m->control_fd = fd;
		else if (msg.type == UPGRADE_HTTP && strcmp(msg.name, m->cf->http) == 0)
			m->http_fd = fd;
		else if (fd != -1)
			close(fd);
		if (r != 0)
			return err_set(err, r, "Cannot take over %s %s: %s.", msg.kind, msg.name, strerror(-r));
	}
}

bool upgrade_has_predecessor(void)
{
	return getenv(UPGRADE_ENVIRONMENT) != NULL;
}

int upgrade_inherit(struct master *m, struct err *err)
{
	uint64_t number;
	const char *text = getenv(UPGRADE_ENVIRONMENT);
	if (!text || text_parse_uint(text, &number) != 0 || number > INT32_MAX)
		return 0;
	unsetenv(UPGRADE_ENVIRONMENT);
	heir = (struct heir){.m = m, .fd = (int)number, .page = -1};
	if (fcntl(heir.fd, F_SETFD, FD_CLOEXEC) == -1)
		return err_set(err, -errno, "Cannot take over: %s has no socket in it.", UPGRADE_ENVIRONMENT);
	m->holds = m->is_heir = true;
	m->owns_control = false;
	return take_all(m, err);
}

/* -- counters ------------------------------------------------------------------------------------------------------ */

static void import(struct heir *h)
{
	if (!h->copy || h->page == -1 || stats_copy_take(h->copy, NULL) != 0)
		return;
	struct stats_page *page = stats_slot_page(h->m->stats, (unsigned)h->page);
	stats_import(h->m->stats, page, h->copy);
	generation_mark_page(h->m, page);
}

static void import_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	import(timer->data);
}

static void open_pages(struct heir *h, int fd)
{
	struct master *m = h->m;
	struct err err = {""};
	h->pages = stats_open(fd, &err);
	h->copy = h->pages ? stats_copy_new(h->pages) : NULL;
	unsigned page = stats_slots(m->stats);
	if (!h->copy || stats_add_slot(m->stats, &err) != 0) {
		log_warn("upgrade: the counters start at 0: %s", err.text[0] ? err.text : "no memory");
		return;
	}
	h->page = (int)page;
	stats_slot(m->page, page)->state = LIFE_REMOVED;
	stats_touch(m->page, STATS_SLOT, page);
	stats_publish(m->page);
	stats_retire(m->stats, STATS_SLOT, page);
	stats_retire(m->stats, STATS_WORKER, page);
}

/* -- GO and DONE ----------------------------------------------------------------------------------------------------- */

static void take_connection(struct heir *h, const struct upgrade_message *msg, int fd)
{
	struct master *m = h->m;
	static struct link_connection c;
	for (size_t i = 0; i < m->n_inputs; i++) {
		if (strcmp(m->inputs[i].cf->name, msg->name) != 0 || !m->inputs[i].type->take ||
		    msg->kept_bytes > sizeof c.kept)
			continue;
		c.head = (struct link_message){
		    .type = LINK_CONNECTION, .input = m->inputs[i].index, .value = msg->value};
		memcpy(c.kept, msg->kept, msg->kept_bytes);
		post_keep_connection(&m->slots[h->next++ % m->n_slots], &c, link_connection_bytes(msg->kept_bytes), fd);
		return;
	}
	log_warn("upgrade: a connection of input \"%s\", which is no more, is closed", msg->name);
	close(fd);
}

static void take_lines(struct heir *h, const struct upgrade_message *msg, int fd)
{
	struct master *m = h->m;
	for (size_t i = 0; i < m->n_outputs; i++) {
		if (strcmp(m->outputs[i].cf->name, msg->name) != 0)
			continue;
		struct link_message lines = {
		    .type = LINK_LINES, .input = m->outputs[i].index, .value = msg->value};
		struct slot *s = &m->slots[h->next++ % m->n_slots];
		post_keep_connection(s, &lines, sizeof lines, fd);
		if (h->has_gone && s->life.state == LIFE_READY)
			post_give_connections(s, s);
		return;
	}
	log_error("upgrade: %llu lines of output \"%s\", which is no more, are lost", (unsigned long long)msg->value,
		  msg->name);
	close(fd);
}

/* What nobody took of the predecessor's: its workers have left, so nobody reads it. */
static void close_unwanted(struct master *m)
{
	const struct endpoint *ep;
	registry_own(&m->registry, true);
	TAILQ_FOREACH(ep, &m->registry.list, next)
		if (ep->references == 0 && ep->n_fds > 0)
			log_warn("%s %s is not in the configuration any more: what waits there is lost", ep->ops->name,
				 ep->name);
	registry_sweep(&m->registry);
}

static void go(struct heir *h, pid_t predecessor)
{
	struct master *m = h->m;
	struct err err = {""};
	h->has_gone = true;
	m->holds = false;
	m->owns_control = true;
	close_unwanted(m);
	slots_tell_all(m, LINK_GO, 0);
	for (unsigned i = 0; i < m->n_slots; i++)
		post_give_connections(&m->slots[i], &m->slots[i]);
	control_pause(m, false);
	import(h);
	ev_timer_start(m->loop, &h->import);
	keeper_look(m);
	if (pidfile_open(m, &err) != 0)
		log_error("%s", err.text);
	log_info("millrace is serving with %u worker%s, in place of process %d", m->n_slots, m->n_slots == 1 ? "" : "s",
		 (int)predecessor);
	notify_ready(m);
	daemon_ready(m);
}

static void end(struct heir *h)
{
	import(h);
	if (h->copy)
		stats_import_endpoints(h->m->stats, h->copy);
	ev_timer_stop(h->m->loop, &h->import);
	ev_io_stop(h->m->loop, &h->io);
	stats_copy_free(h->copy);
	stats_free(h->pages);
	close(h->fd);
	h->copy = NULL;
	h->pages = NULL;
	h->fd = -1;
	h->m->is_heir = false;
}

static void heard(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	struct heir *h = io->data;
	static struct upgrade_message msg;
	for (;;) {
		int fd;
		ssize_t n = net_recv_fd(io->fd, &msg, sizeof msg, &fd);
		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n < (ssize_t)UPGRADE_HEAD_BYTES)
			break;
		msg.name[sizeof msg.name - 1] = '\0';
		if (msg.type == UPGRADE_CONNECTION && fd != -1 && n == (ssize_t)(UPGRADE_HEAD_BYTES + msg.kept_bytes)) {
			take_connection(h, &msg, fd);
			continue;
		}
		if (msg.type == UPGRADE_LINES && fd != -1) {
			take_lines(h, &msg, fd);
			continue;
		}
		if (msg.type == UPGRADE_COUNTERS && fd != -1)
			open_pages(h, fd);
		if (msg.type == UPGRADE_GO)
			go(h, (pid_t)msg.number);
		if (fd != -1)
			close(fd);
	}
	bool was_gone = h->has_gone;
	end(h); /* it has said DONE, or it has died */
	if (was_gone)
		return;
	log_error("the millrace that was to be replaced has given the upgrade up: ending");
	master_stop(h->m, MASTER_EXIT_ERROR);
}

void upgrade_ready(struct master *m)
{
	struct upgrade_message *msg = calloc(1, sizeof *msg);
	BUG_ON(!msg);
	msg->version = UPGRADE_VERSION;
	msg->type = UPGRADE_READY;
	ev_io_init(&heir.io, heard, heir.fd, EV_READ);
	ev_timer_init(&heir.import, import_again, import_seconds, import_seconds);
	heir.io.data = heir.import.data = &heir;
	ev_io_start(m->loop, &heir.io);
	net_send_fd(heir.fd, msg, UPGRADE_HEAD_BYTES, -1);
	free(msg);
}
