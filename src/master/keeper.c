/* SPDX-License-Identifier: MIT
 *
 * The monitor's keeper: binds its HTTP socket, forks it, listens to its link, starts it again with a slot's back-off,
 * ends it last. Master only. Whether it lives or not is never a reason to stop relaying.
 */
#include "master.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How long it may take to leave at the end: it holds nothing that is not in its page. */
static const unsigned end_ms = 500;

static void forget_link(struct keeper *k)
{
	if (k->link == -1)
		return;
	ev_io_stop(k->m->loop, &k->io);
	close(k->link);
	k->link = -1;
}

static void hear(struct keeper *k, const struct monitor_message *msg)
{
	if (msg->type == MONITOR_READY && k->life.state == LIFE_STARTING) {
		life_ready(&k->life, clock_us());
		keeper_look(k->m);
	}
	for (uint64_t file = msg->value; msg->type == MONITOR_PAGE && file < stats_files(k->m->stats); file++)
		keeper_tell(k->m, MONITOR_PAGE, file, stats_reader_fd(k->m->stats, (unsigned)file));
	/* its page's scopes only, and within them: it may be under somebody else's command by now */
	if (msg->type == MONITOR_NAME && stats_scope_is_monitors(msg->scope) &&
	    msg->index < stats_entries_max(k->m->stats, msg->scope))
		stats_name(k->m->stats, msg->scope, msg->index, msg->name[0] ? msg->name : NULL, msg->parent, 0,
			   msg->unit);
}

static void linked(struct ev_loop *loop, struct ev_io *io, int events)
{
	(void)loop, (void)events;
	struct keeper *k = io->data;
	struct monitor_message msg;
	int fd;
	ssize_t n;
	while ((n = net_recv_fd(io->fd, &msg, sizeof msg, &fd)) == sizeof msg) {
		if (fd != -1)
			close(fd);
		msg.name[sizeof msg.name - 1] = msg.unit[sizeof msg.unit - 1] = '\0';
		hear(k, &msg);
	}
	if (n != -EAGAIN && n != -EINTR)
		forget_link(k); /* SIGCHLD tells the rest */
}

static _Noreturn void become_monitor(struct keeper *k, int link)
{
	struct master *m = k->m;
	struct monitor_setup setup = {
	    .cf = m->cf,
	    .identity = &m->identity,
	    .stats = m->stats,
	    .link = link,
	    .http_fd = k->http_fd,
	    .http_at = k->http_at,
	    .http_port = k->http_port,
	    .master_pid = getppid(),
	};
	receive_child(m->receive, RECEIVE_NOBODY, 0);
	for (size_t i = 0; i < m->n_inputs; i++)
		input_leave_alone(&m->inputs[i]);
	monitor_run(&setup);
}

static void start(struct keeper *k)
{
	int pair[2];
	life_started(&k->life, clock_us());
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == -1) {
		log_error("cannot start the monitor: socketpair: %s; trying again", strerror(errno));
		life_died(&k->life, clock_us(), false);
		return;
	}
	pid_t pid = fork();
	if (pid == 0)
		become_monitor(k, pair[1]);
	close(pair[1]);
	if (pid == -1) {
		log_error("cannot start the monitor: fork: %s; trying again", strerror(errno));
		close(pair[0]);
		life_died(&k->life, clock_us(), false);
		return;
	}
	k->pid = pid;
	k->link = pair[0];
	ev_io_init(&k->io, linked, k->link, EV_READ);
	k->io.data = k;
	ev_io_start(k->m->loop, &k->io);
}

/* Its page says that nobody writes it now. */
static void adopt_page(struct keeper *k)
{
	struct stats_page *page = stats_monitor_page(k->m->stats);
	stats_adopt(page);
	stats_monitor(page)->pid = 0;
	stats_touch(page, STATS_MONITOR, 0);
	stats_publish(page);
}

void keeper_reap(struct master *m)
{
	struct keeper *k = &m->keeper;
	struct text t = {0};
	char uptime[32];
	int status;
	if (k->pid == 0 || waitpid(k->pid, &status, WNOHANG) != k->pid)
		return;
	slots_describe_end(&t, status);
	if (!k->is_leaving)
		log_warn("monitor (pid %d) %s after %s; nothing is lost but its last ten minutes", (int)k->pid,
		 t.s ? t.s : "died", text_format_time(uptime, sizeof uptime, clock_us() - k->life.since_us));
	text_free(&t);
	k->pid = 0;
	forget_link(k);
	adopt_page(k);
	life_died(&k->life, clock_us(), false);
	keeper_look(m);
}

void keeper_look(struct master *m)
{
	struct keeper *k = &m->keeper;
	uint64_t now_us = clock_us(), again_us = UINT64_MAX;
	ev_timer_stop(m->loop, &k->timer);
	if (m->is_draining || m->holds || k->is_leaving)
		return; /* a new one would see little more than the end, or is our heir's; or we have not begun */
	switch (life_next(&k->life, now_us, m->cf->start_timeout, &again_us)) {
	case LIFE_START:
		start(k);
		again_us = now_us + m->cf->start_timeout;
		break;
	case LIFE_KILL:
		log_error("the monitor did not become ready within start_timeout: killing it");
		kill(k->pid, SIGKILL);
		again_us = now_us + m->cf->start_timeout;
		break;
	case LIFE_WAIT:
		break;
	}
	if (again_us == UINT64_MAX)
		return;
	ev_timer_set(&k->timer, again_us > now_us ? (double)(again_us - now_us) / 1e6 : 0.001, 0);
	ev_timer_start(m->loop, &k->timer);
}

void keeper_tell(struct master *m, enum monitor_message_type type, uint64_t value, int fd)
{
	struct monitor_message msg = {.type = type, .value = value};
	if (m->keeper.link != -1)
		net_send_fd(m->keeper.link, &msg, sizeof msg, fd);
}

static void look_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	keeper_look(((struct keeper *)timer->data)->m);
}

/* Nobody asked for the default, and a second millrace tried by hand is no fault: then without. */
static int listen_http(struct keeper *k, struct err *err)
{
	struct net_address a;
	socklen_t len = sizeof a.sa;
	char *host = NULL;
	uint16_t port;
	bool may_lack;
	int r = conf_http_address(k->m->cf, &host, &port, &may_lack);
	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = net_address_listen(&a, "http", host, port, err);
	else
		err_set(err, r, "Cannot listen for HTTP: no memory.");
	free(host);
	if (r == 0)
		r = k->http_fd = k->m->http_fd != -1 ? k->m->http_fd : net_tcp_listen(&a, err);
	if (r < 0) {
		k->http_fd = -1;
		if (!may_lack)
			return r;
		log_warn("%s Going on without HTTP: give http: HOST:PORT, or http: off.", err->text);
		return 0;
	}
	getsockname(k->http_fd, (struct sockaddr *)&a.sa, &len);
	net_address_format(&a.sa, k->http_at, sizeof k->http_at);
	k->http_port = ntohs(a.sa.ss_family == AF_INET ? ((struct sockaddr_in *)&a.sa)->sin_port
						       : ((struct sockaddr_in6 *)&a.sa)->sin6_port);
	log_info("monitor: http://%s/", k->http_at);
	return 0;
}

int keeper_open(struct master *m, struct err *err)
{
	struct keeper *k = &m->keeper;
	k->m = m;
	k->link = k->http_fd = -1;
	life_init(&k->life, clock_us());
	ev_timer_init(&k->timer, look_again, 0, 0);
	k->timer.data = k;
	return listen_http(k, err);
}

void keeper_leave(struct master *m)
{
	struct keeper *k = &m->keeper;
	k->is_leaving = true;
	ev_timer_stop(m->loop, &k->timer);
	forget_link(k); /* EOF: it leaves */
}

void keeper_close(struct master *m)
{
	struct keeper *k = &m->keeper;
	sigset_t child;
	if (!k->m)
		return;
	keeper_leave(m);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	if (k->pid != 0 && waitpid(k->pid, NULL, WNOHANG) == 0) {
		sigtimedwait(&child, NULL, &(struct timespec){.tv_nsec = end_ms * 1000000L});
		if (waitpid(k->pid, NULL, WNOHANG) == 0) {
			kill(k->pid, SIGKILL);
			waitpid(k->pid, NULL, 0);
		}
	}
	if (k->http_fd != -1)
		close(k->http_fd);
}
