/* SPDX-License-Identifier: MIT
 *
 * child: see child.h. Its death is told by its pidfd; the end of its link may come before.
 */
#include "child.h"

#include <errno.h>
#include <unistd.h>

static bool heard(struct net_link *l, struct net_message *m)
{
	struct child *c = l->owner;
	return c->type->on_message(c, m);
}

static void link_ended(struct net_link *l)
{
	net_link_close(l);
}

static void ended(struct process *p, int status)
{
	struct child *c = p->owner;
	net_link_hear_out(&c->link);
	net_link_close(&c->link);
	c->type->on_exit(c, status);
}

void child_init(struct child *c, const struct child_type *type, void *owner)
{
	*c = (struct child){.type = type, .owner = owner};
	c->link.fd = -1;
	c->link.owner = c->process.owner = c;
	c->link.on_message = heard;
	c->link.on_end = link_ended;
	c->process.on_exit = ended;
}

static void begin(struct child *c, struct ev_loop *loop, int link)
{
	net_link_open(&c->link, loop, link, c->type->message_bytes);
	process_watch(&c->process, loop);
}

int child_start(struct child *c, struct ev_loop *loop, const char **what)
{
	int pair[2];
	*what = "socketpair";
	int r = net_link_pair(pair);
	if (r != 0)
		return r;
	*what = "fork";
	pid_t pid = process_fork(&c->process);
	if (pid == 0)
		c->type->run(c->owner, pair[1]);
	close(pair[1]);
	if (pid > 0)
		begin(c, loop, pair[0]);
	else
		close(pair[0]);
	return MIN(pid, 0);
}

int child_adopt(struct child *c, struct ev_loop *loop, pid_t pid, int pidfd, int link)
{
	int r = process_adopt(&c->process, pid, pidfd);
	if (r == 0)
		begin(c, loop, link);
	return r;
}

int child_send(struct child *c, const void *msg, size_t len, int fd)
{
	return net_link_send(&c->link, msg, len, fd);
}

void child_hang_up(struct child *c)
{
	net_link_close(&c->link);
}

void child_fini(struct child *c)
{
	net_link_close(&c->link);
	process_forget(&c->process);
}
