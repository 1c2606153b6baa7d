/* SPDX-License-Identifier: MIT
 *
 * The monitor as a child of the master: binds its HTTP socket, starts it, starts it again with a slot's back-off, ends it
 * last. Master only. Whether it lives or not is never a reason to stop relaying.
 */
#include "master.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* How long it may take to leave at the end: it holds nothing that is not in its page. */
enum { END_US = 500000 };

static void hear(struct monitor_child *mc, const struct link_message *msg)
{
	if (msg->type == LINK_READY && mc->restart.state == RESTART_STARTING) {
		restart_ready(&mc->restart, clock_us());
		monitor_child_look(mc->m);
	}
	/* one answer at a time: it asks again each second, and whoever has it under his command all the time */
	for (uint64_t file = msg->value; msg->type == LINK_PAGE && file < stats_files(mc->m->stats) &&
					 STAILQ_EMPTY(&mc->child.link.outbox); file++)
		monitor_child_tell(mc->m, LINK_PAGE, file, stats_reader_fd(mc->m->stats, (unsigned)file));
	/* its page's scopes only, and within them: it may be under somebody else's command by now */
	if (msg->type == LINK_NAME && msg->value < STATS_SCOPES && stats_scope_is_monitors((unsigned)msg->value) &&
	    msg->slot < stats_entries_max(mc->m->stats, (enum stats_scope)msg->value))
		stats_name(mc->m->stats, (enum stats_scope)msg->value, msg->slot, msg->name[0] ? msg->name : NULL,
			   msg->parent, 0, msg->text);
}

static bool on_message(struct child *c, struct net_message *m)
{
	struct link_message *msg = (void *)m->bytes;
	if (m->len != sizeof(*msg)) {
		log_error("the monitor says what no monitor says: killing it");
		process_signal(&c->process, SIGKILL);
		return false;
	}
	msg->name[sizeof(msg->name) - 1] = msg->text[sizeof(msg->text) - 1] = '\0';
	hear(c->owner, msg);
	return false;
}

static _Noreturn void run(void *owner, int link)
{
	struct monitor_child *mc = owner;
	struct master *m = mc->m;
	struct monitor_setup setup = {
	    .cf = m->cf,
	    .identity = &m->identity,
	    .stats = m->stats,
	    .link = link,
	    .http_fd = mc->http.fd,
	    .http_port = mc->http.port,
	    .master_pid = getppid(),
	};
	receive_child(m->receive, RECEIVE_NOBODY, 0);
	monitor_run(&setup);
}

/* Its page says that nobody writes it now. */
static void adopt_page(struct monitor_child *mc)
{
	struct stats_page *page = stats_monitor_page(mc->m->stats);
	stats_adopt(page);
	stats_monitor(page)->pid = 0;
	stats_touch(page, STATS_MONITOR, 0);
	stats_publish(page);
}

static void on_exit_of_monitor(struct child *c, int status)
{
	struct monitor_child *mc = c->owner;
	struct text t = {0};
	process_report(&c->process, "monitor", status, &t);
	if (!mc->is_leaving)
		log_warn("%s; nothing is lost but its last ten minutes", t.s ? t.s : "the monitor died");
	text_free(&t);
	adopt_page(mc);
	restart_died(&mc->restart, clock_us(), false);
	monitor_child_look(mc->m);
}

static const struct child_type monitor_type = {
    .message_bytes = sizeof(struct link_message),
    .run = run,
    .on_message = on_message,
    .on_exit = on_exit_of_monitor,
};

static void start(struct monitor_child *mc)
{
	const char *what;
	restart_started(&mc->restart, clock_us());
	int r = child_start(&mc->child, mc->m->loop, &what);
	if (r == 0)
		return;
	log_error("cannot start the monitor: %s: %s; trying again", what, strerror(-r));
	restart_died(&mc->restart, clock_us(), false);
}

void monitor_child_look(struct master *m)
{
	struct monitor_child *mc = &m->monitor;
	uint64_t now_us = clock_us(), again_us = UINT64_MAX;
	ev_timer_stop(m->loop, &mc->timer);
	if (m->is_draining || mc->is_leaving)
		return; /* a new one would see little more than the end; or we have not begun */
	switch (restart_next(&mc->restart, now_us, m->cf->start_timeout, &again_us)) {
	case RESTART_START:
		start(mc);
		again_us = now_us + m->cf->start_timeout;
		break;
	case RESTART_KILL:
		log_error("the monitor did not become ready within start_timeout: killing it");
		process_signal(&mc->child.process, SIGKILL);
		again_us = now_us + m->cf->start_timeout;
		break;
	case RESTART_WAIT:
		break;
	}
	if (again_us == UINT64_MAX)
		return;
	ev_timer_set(&mc->timer, again_us > now_us ? (double)(again_us - now_us) / 1e6 : 0.001, 0);
	ev_timer_start(m->loop, &mc->timer);
}

void monitor_child_tell(struct master *m, enum link_type type, uint64_t value, int fd)
{
	struct link_message msg = {.version = LINK_VERSION, .type = type, .value = value};
	int r = child_is_there(&m->monitor.child) ? child_send(&m->monitor.child, &msg, sizeof(msg), fd) : 0;
	if (r != 0 && r != -EPIPE) /* else it is dying, as its exit will tell */
		log_error("the monitor cannot be told (message %u): %s", msg.type, strerror(-r));
}

static void look_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	monitor_child_look(((struct monitor_child *)timer->data)->m);
}

static bool is_bound_to(int fd, const struct net_address *a)
{
	struct net_address is = {.len = 0};
	socklen_t len = sizeof(is.sa);
	if (fd == -1 || getsockname(fd, (struct sockaddr *)&is.sa, &len) == -1)
		return false;
	if (net_address_port(a) == 0) /* any will do */
		net_address_set_port(&is, 0);
	return net_address_is_same(&is, a);
}

static int listen_at(const struct net_address *a, int had, struct err *err)
{
	struct net_address ours;
	socklen_t len = sizeof(ours.sa);
	char at[128], wanted[128];
	if (is_bound_to(had, a))
		return fcntl(had, F_DUPFD_CLOEXEC, 0);
	int fd = net_tcp_listen(a, err);
	if (fd == -EADDRINUSE && had != -1 && getsockname(had, (struct sockaddr *)&ours.sa, &len) == 0 &&
	    net_address_port(&ours) == net_address_port(a))
		err_set(err, fd,
			"http: %s cannot be bound while millrace itself listens on %s: take that away first (http: off) "
			"and reload twice, or restart.",
			net_address_format(&a->sa, wanted, sizeof(wanted)),
			net_address_format(&ours.sa, at, sizeof(at)));
	return fd;
}

/* Nobody asked for the default, and a second millrace tried by hand is no fault: then without. */
int monitor_child_listen(const struct conf *cf, int had, struct http_socket *http, struct err *err)
{
	struct net_address a;
	socklen_t len = sizeof a.sa;
	char *host = NULL;
	uint16_t port;
	bool may_lack;
	*http = (struct http_socket){.fd = -1};
	int r = conf_http_address(cf, &host, &port, &may_lack);
	if (r == -ENOENT)
		return 0;
	if (r != 0)
		err_set(err, r, "Cannot listen for HTTP: no memory.");
	else if (net_addresses_listen(&a, 1, "http", host, port, err) < 0)
		r = -EINVAL;
	free(host);
	if (r == 0)
		r = listen_at(&a, had, err);
	if (r < 0) {
		if (!may_lack)
			return r;
		log_warn("%s Going on without HTTP: give http: HOST:PORT, or http: off.", err->text);
		return 0;
	}
	http->fd = r;
	getsockname(http->fd, (struct sockaddr *)&a.sa, &len);
	net_address_format(&a.sa, http->at, sizeof http->at);
	http->port = net_address_port(&a);
	return 0;
}

static void say_where(const struct monitor_child *mc)
{
	if (mc->http.fd != -1)
		log_info("monitor: http://%s/", mc->http.at);
}

void monitor_child_move(struct master *m, struct http_socket *http)
{
	struct monitor_child *mc = &m->monitor;
	monitor_child_tell(m, LINK_HTTP, http->port, http->fd);
	if (mc->http.fd != -1)
		close(mc->http.fd);
	mc->http = *http;
	http->fd = -1;
	say_where(mc);
}

int monitor_child_open(struct master *m, struct err *err)
{
	struct monitor_child *mc = &m->monitor;
	int had = mc->http.fd;
	mc->m = m;
	child_init(&mc->child, &monitor_type, mc);
	restart_init(&mc->restart, clock_us());
	ev_timer_init(&mc->timer, look_again, 0, 0);
	mc->timer.data = mc;
	int r = monitor_child_listen(m->cf, had, &mc->http, err);
	if (had != -1)
		close(had);
	say_where(mc);
	return r;
}

static void leave(struct master *m, struct monitor_child *mc)
{
	mc->is_leaving = true;
	ev_timer_stop(m->loop, &mc->timer);
	child_hang_up(&mc->child);
}

void monitor_child_close(struct master *m)
{
	struct monitor_child *mc = &m->monitor;
	int status;
	if (!mc->m)
		return;
	leave(m, mc);
	if (child_is_there(&mc->child) && !process_wait(&mc->child.process, clock_us() + END_US, &status)) {
		process_signal(&mc->child.process, SIGKILL);
		process_wait(&mc->child.process, UINT64_MAX, &status);
	}
	if (mc->http.fd != -1)
		close(mc->http.fd);
}
