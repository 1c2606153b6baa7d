/* SPDX-License-Identifier: MIT
 *
 * store: sockets lie in systemd's descriptor store, too (man 3 sd_pid_notify_with_fds): what comes while no millrace lives
 * waits there for the next one, which gets them at its start. The same way sockets of a .socket unit come. An orderly end
 * takes them out again, since then they are read to their end. $FDSTORE says whether there is a store. Master only.
 */
#include "master.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST_FD = 3, NAME_BYTES = 256 };

static struct stored {
	char name[NAME_BYTES];
	unsigned n_fds;
	bool is_wanted;
} *stored;
static unsigned n_stored;

bool store_is_there(void)
{
	const char *room = getenv("FDSTORE");
	uint64_t n;
	return room && text_parse_uint(room, &n) == 0 && n > 0 && getenv("NOTIFY_SOCKET");
}

/* "udp 127.0.0.1%3A8125", "unix 2049.77 /run/in.sock": which file it was is part of it. False: there is no such name. */
static bool name_of(const struct endpoint *ep, char name[NAME_BYTES])
{
	struct text t = {0};
	text_add(&t, "%s ", ep->ops->name);
	if (!ep->ops->has_port)
		text_add(&t, "%llu.%llu ", (unsigned long long)ep->path_device, (unsigned long long)ep->path_inode);
	for (const unsigned char *p = (const unsigned char *)ep->name; *p; p++)
		text_add(&t, *p > ' ' && *p < 127 && *p != '%' && *p != ':' ? "%c" : "%%%02X", *p);
	bool fits = !ep->ops->is_device && !t.failed && t.len < NAME_BYTES;
	if (fits)
		memcpy(name, t.s, t.len + 1);
	text_free(&t);
	return fits;
}

static struct stored *find(const char *name)
{
	for (unsigned i = 0; i < n_stored; i++)
		if (strcmp(stored[i].name, name) == 0)
			return &stored[i];
	return NULL;
}

static struct stored *add(const char *name)
{
	struct stored *s = find(name);
	struct stored *grown = s ? NULL : realloc(stored, (n_stored + 1) * sizeof(*stored));
	if (!grown)
		return s;
	stored = grown;
	s = &stored[n_stored++];
	memset(s, 0, sizeof(*s));
	snprintf(s->name, sizeof(s->name), "%s", name);
	return s;
}

static void say_remove(const struct master *m, const char *name)
{
	char text[NAME_BYTES + 40];
	snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
	notify_tell(m, text, -1);
}

static void put(const struct master *m, const struct endpoint *ep)
{
	char name[NAME_BYTES], text[NAME_BYTES + 40];
	struct stored *s = name_of(ep, name) ? add(name) : NULL;
	if (!s)
		return;
	s->is_wanted = true;
	if (ep->n_fds < s->n_fds) {
		say_remove(m, name); /* all of this name */
		s->n_fds = 0;
	}
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
	for (; s->n_fds < ep->n_fds; s->n_fds++)
		notify_tell(m, text, ep->fds[s->n_fds]);
}

void store_update(struct master *m)
{
	const struct endpoint *ep;
	if (!store_is_there())
		return;
	for (unsigned i = 0; i < n_stored; i++)
		stored[i].is_wanted = false;
	TAILQ_FOREACH(ep, &m->registry.list, next)
		if (ep->references > 0)
			put(m, ep);
	for (unsigned i = n_stored; i-- > 0;)
		if (!stored[i].is_wanted) {
			say_remove(m, stored[i].name);
			stored[i] = stored[--n_stored];
		}
}

void store_clear(struct master *m)
{
	while (store_is_there() && n_stored > 0)
		say_remove(m, stored[--n_stored].name);
}

void store_note_all(struct master *m)
{
	const struct endpoint *ep;
	char name[NAME_BYTES];
	TAILQ_FOREACH(ep, &m->registry.list, next)
	{
		struct stored *s = store_is_there() && name_of(ep, name) ? add(name) : NULL;
		if (s)
			s->n_fds = ep->n_fds;
	}
}

/* -- at a start ------------------------------------------------------------------------------------------------------- */

static int get_int(int fd, int level, int option)
{
	int value = 0;
	socklen_t len = sizeof(value);
	return getsockopt(fd, level, option, &value, &len) == -1 ? -1 : value;
}

/* A socket that was told to take in nothing more is of no use. */
static bool is_usable(int fd, int type)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	if (type == SOCK_STREAM)
		return get_int(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1;
	return type == SOCK_DGRAM && getpeername(fd, (struct sockaddr *)&sa, &len) == -1;
}

/* The file is still this socket's, as far as its name can tell. */
static bool has_path(const char *path, const char *name, struct endpoint *ep)
{
	unsigned long long device, inode;
	ep->name = (char *)(uintptr_t)path;
	endpoint_note_path(ep);
	bool is_told = sscanf(name, "%*s %llu.%llu ", &device, &inode) == 2;
	return ep->path_inode != 0 && (!is_told || (ep->path_device == device && ep->path_inode == inode));
}

static bool find_out(int fd, const char *name, struct endpoint *ep, char shown[128])
{
	struct net_address *a = &ep->address;
	int type = get_int(fd, SOL_SOCKET, SO_TYPE);
	a->len = sizeof(a->sa);
	if (getsockname(fd, (struct sockaddr *)&a->sa, &a->len) == -1 || !is_usable(fd, type))
		return false;
	if (a->sa.ss_family == AF_UNIX) {
		net_address_format(&a->sa, shown, 128);
		ep->ops = type == SOCK_STREAM ? &endpoint_unix : &endpoint_unixgram;
		memset(a, 0, sizeof(*a));
		return shown[0] == '@' || has_path(shown, name, ep);
	}
	if (a->sa.ss_family != AF_INET && a->sa.ss_family != AF_INET6)
		return false;
	net_address_format(&a->sa, shown, 128);
	ep->ops = type == SOCK_STREAM ? &endpoint_tcp : &endpoint_udp;
	a->v6_only = strncmp(shown, "[::]:", 5) == 0 && get_int(fd, IPPROTO_IPV6, IPV6_V6ONLY) == 1;
	return true;
}

/* One more socket of an endpoint that was adopted already, or a new one. Takes fd. */
static void adopt(struct master *m, int fd, const char *name)
{
	struct endpoint like = {0}, *ep;
	char shown[128] = "";
	bool is_known = find_out(fd, name, &like, shown);
	struct endpoint_state state = {
	    .type = is_known ? like.ops->name : "",
	    .name = shown,
	    .input = "",
	    .address = like.address,
	    .path_device = like.path_device,
	    .path_inode = like.path_inode,
	    .n_fds = 1,
	    .fds = &fd,
	};
	if (!is_known) {
		close(fd);
		return;
	}
	TAILQ_FOREACH(ep, &m->registry.list, next)
		if (ep->ops == like.ops && strcmp(ep->name, shown) == 0)
			break;
	if (ep == NULL) {
		if (registry_adopt(&m->registry, like.ops, &state) == 0)
			log_info("store: %s %s was there before us", state.type, shown);
	} else if (ep->n_fds < STATS_SLOTS_MAX && like.ops == &endpoint_udp) {
		ep->fds[ep->n_fds++] = fd; /* also those that are more than workers: the registry closes them */
		ep->n_settled = ep->n_fds;
	} else {
		log_warn("store: another socket of %s %s is closed: one is enough", state.type, shown);
		close(fd);
	}
}

void store_adopt(struct master *m)
{
	const char *whom = getenv("LISTEN_PID"), *many = getenv("LISTEN_FDS"), *names = getenv("LISTEN_FDNAMES");
	uint64_t pid, n;
	bool is_ours = whom && many && text_parse_uint(whom, &pid) == 0 && pid == (uint64_t)getpid() &&
		       text_parse_uint(many, &n) == 0;
	for (unsigned i = 0; is_ours && i < n; i++) {
		int fd = FIRST_FD + (int)i, flags = fcntl(fd, F_GETFL);
		char name[NAME_BYTES];
		snprintf(name, sizeof(name), "%.*s", names ? (int)strcspn(names, ":") : 0, names ? names : "");
		names = names && strchr(names, ':') ? strchr(names, ':') + 1 : NULL;
		if (flags == -1)
			continue;
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		fcntl(fd, F_SETFL, flags | O_NONBLOCK);
		struct stored *s = store_is_there() && strchr(name, ' ') ? add(name) : NULL; /* else a .socket unit's */
		if (s)
			s->n_fds++;
		adopt(m, fd, name);
	}
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
}
