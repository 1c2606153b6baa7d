/* SPDX-License-Identifier: MIT
 *
 * The life of the monitor: closes what is not its own, says READY, samples each second, serves HTTP, and leaves when
 * its link ends. Starts nothing, drains nothing, and waits for nobody.
 */
#include "http.h"
#include "monitor.h"

#include <errno.h>
#include <event.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

static int tell(struct monitor *m, struct link_message msg)
{
	msg.version = LINK_VERSION;
	return net_send_fd(m->setup->link, &msg, sizeof msg, -1);
}

int monitor_name(struct monitor *m, enum stats_scope scope, unsigned index, const char *name, unsigned parent,
		 const char *unit)
{
	struct link_message msg = {.type = LINK_NAME, .value = scope, .slot = index, .parent = parent};
	snprintf(msg.name, sizeof msg.name, "%s", name ? name : "");
	snprintf(msg.text, sizeof msg.text, "%s", unit ? unit : "");
	return tell(m, msg);
}

/* Who asks at the old address is answered there; new ones come to the new one. */
static void move_http(struct monitor *m, int fd, uint16_t port)
{
	struct err err = {""};
	http_close(m->http_before);
	m->http_before = m->http;
	m->http = NULL;
	if (m->http_before != NULL)
		http_retire(m->http_before);
	m->counters->http_port = port;
	if (fd != -1)
		m->http = http_open(m, fd, &err);
	if (fd == -1 || m->http != NULL)
		return;
	log_error("%s", err.text);
	_exit(EXIT_FAILURE); /* the next one tries again */
}

static void linked(struct ev_loop *loop, struct ev_io *io, int events)
{
	event_keep(loop, io, events);
	struct monitor *m = io->data;
	struct link_message msg;
	int fd;
	ssize_t n;
	while ((n = net_recv_fd(io->fd, &msg, sizeof msg, &fd)) == sizeof msg) {
		if (msg.type == LINK_LOG)
			log_set_level((enum log_level)msg.value);
		if (msg.type == LINK_REOPEN) {
			log_turn_to((enum log_target)msg.value, fd);
			continue;
		}
		if (msg.type == LINK_HTTP) {
			move_http(m, fd, (uint16_t)msg.value);
			continue;
		}
		if (msg.type == LINK_PAGE && fd != -1 && msg.value == stats_files(m->stats))
			stats_open_next(m->stats, fd, NULL);
		if (fd != -1)
			close(fd);
	}
	if (n == -EAGAIN || n == -EINTR)
		return;
	ev_break(loop, EVBREAK_ALL); /* the master is gone, or has no more need of us */
}

static void every_second(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	struct monitor *m = timer->data;
	monitor_sample(m);
	if (stats_copy_lacks_pages(m->copy)) /* a reload has added a worker */
		tell(m, (struct link_message){.type = LINK_PAGE, .value = stats_files(m->stats)});
}

static int open_all(struct monitor *m, struct err *err)
{
	const struct monitor_setup *setup = m->setup;
	m->loop = ev_loop_new(EVBACKEND_EPOLL | EVFLAG_NOENV);
	if (!m->loop)
		return err_set(err, -ENOMEM, "Cannot make an event loop: %s.", strerror(errno));
	event_init(m->loop);
	m->copy = stats_copy_new(m->stats);
	m->slots = calloc(stats_room(m->stats), sizeof *m->slots);
	m->host = net_host_open(0);
	m->drops = report_drops_new(m->stats);
	if (!m->copy || !m->slots || !m->host || !m->drops)
		return err_set(err, -ENOMEM, "No memory to read the counter pages.");
	m->counters->pid = (uint64_t)getpid();
	m->counters->started_us = clock_real_us();
	m->counters->starts++;
	m->counters->http_port = setup->http_port;
	ev_io_init(&m->link, linked, setup->link, EV_READ);
	ev_timer_init(&m->second, every_second, 1, 1);
	m->link.data = m->second.data = m;
	ev_io_start(m->loop, &m->link);
	ev_timer_start(m->loop, &m->second);
	if (setup->http_fd != -1)
		m->http = http_open(m, setup->http_fd, err);
	return setup->http_fd == -1 || m->http ? 0 : -EIO;
}

void monitor_run(const struct monitor_setup *setup)
{
	const int keep[] = {setup->link, setup->http_fd};
	static struct monitor m;
	m = (struct monitor){.setup = setup, .stats = setup->stats, .page = stats_monitor_page(setup->stats)};
	struct err err = {""};
	log_set_who("monitor");
	proc_set_title("millrace/mon");
	bool is_safe = stats_child_monitor(setup->stats, &err) == 0;
	proc_close_others(keep, ARRAY_LEN(keep));
	proc_child_signals(); /* those for the whole group are the master's to understand: we end with our link */
	if (setup->cf->daemon)
		proc_leave_terminal();
	m.counters = stats_monitor(m.page);
	if (!is_safe || privileges_drop(setup->identity, PRIVILEGES_MONITOR, setup->cf->seccomp, &err) != 0 ||
	    open_all(&m, &err) != 0) {
		log_error("%s", err.text);
		_exit(EXIT_FAILURE);
	}
	tell(&m, (struct link_message){.type = LINK_READY});
	monitor_sample(&m);
	ev_run(m.loop, 0);
	_exit(EXIT_SUCCESS);
}
