/* SPDX-License-Identifier: MIT
 *
 * reload_own: what the master has for itself and its monitor: the socket for HTTP, the pid file, the log. Each is opened
 * before anything changes, as at the start, and the one before is closed when the new one is in use. Master only.
 */
#include "reload.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void reload_own_init(struct reload_own *own)
{
	*own = (struct reload_own){.http.fd = -1, .pid_file = -1, .log_file = -1};
}

/* The file that we have locked may be named in another way now; a copy of the descriptor has the lock, too. */
static int open_pid_file(int had, const char *path, struct err *err)
{
	if (had == -1 || !pidfile_is(path, had))
		return pidfile_open(path, err);
	int fd = fcntl(had, F_DUPFD_CLOEXEC, 0);
	return fd != -1 ? fd : err_set(err, -errno, "pid_file: no descriptor is free: %s; try again.", strerror(errno));
}

/* Removes the file at `path`, unless `other` is that file, too. */
static void drop_pid_file(const char *path, int *fd, int other)
{
	if (*fd == -1 || other == -1 || !pidfile_is(path, other)) {
		pidfile_close(path, fd);
		return;
	}
	close(*fd);
	*fd = -1;
}

int reload_own_open(struct reload *r, struct err *err)
{
	const struct conf *old = r->m->cf, *cf = r->cf;
	struct reload_own *own = &r->own;
	int code = 0;
	own->has_http = strcmp(old->http, cf->http) != 0;
	if (own->has_http)
		code = monitor_child_listen(cf, r->m->monitor.http.fd, &own->http, err);
	if (code == 0 && cf->pid_file[0] && strcmp(old->pid_file, cf->pid_file) != 0)
		code = own->pid_file = open_pid_file(r->m->pid_file, cf->pid_file, err);
	if (code >= 0 && conf_log_target(cf) == LOG_TARGET_FILE && strcmp(old->log, cf->log) != 0)
		code = own->log_file = log_file_open(cf->log, err);
	own->pid_file = MAX(own->pid_file, -1);
	own->log_file = MAX(own->log_file, -1);
	return MIN(code, 0);
}

static void enter_log(struct master *m, const struct conf *old, int *file)
{
	enum log_target target = conf_log_target(m->cf);
	if (*file == -1 && target == conf_log_target(old))
		return;
	log_info("log lines go elsewhere from now on");
	master_turn_log_to(m, target, *file);
	*file = -1;
}

void reload_own_enter(struct reload *r, const struct conf *old)
{
	struct master *m = r->m;
	struct reload_own *own = &r->own;
	enter_log(m, old, &own->log_file);
	if (own->has_http)
		monitor_child_move(m, &own->http);
	if (strcmp(old->pid_file, m->cf->pid_file) == 0)
		return;
	drop_pid_file(old->pid_file, &m->pid_file, own->pid_file);
	m->pid_file = own->pid_file;
	own->pid_file = -1;
}

void reload_own_close(struct reload *r, const struct conf *cf)
{
	struct reload_own *own = &r->own;
	if (own->http.fd != -1)
		close(own->http.fd);
	if (own->log_file != -1)
		close(own->log_file);
	if (own->pid_file != -1)
		drop_pid_file(cf->pid_file, &own->pid_file, r->m->pid_file);
	reload_own_init(own);
}
