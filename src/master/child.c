/* SPDX-License-Identifier: MIT
 *
 * child: see child.h. Its death is told by its pidfd, not by the end of its link, whose far end the master has open.
 */
#include "child.h"

#include <errno.h>
#include <unistd.h>

static void close_link(struct child *c, bool (*on_undelivered)(struct child *c, struct net_message *m))
{
	struct net_messages undelivered = STAILQ_HEAD_INITIALIZER(undelivered);
	struct net_message *m;
	if (c->far_end == -1)
		return;
	while (net_link_recover(c->far_end, c->type->message_bytes, &m) == 1)
		STAILQ_INSERT_TAIL(&undelivered, m, next);
	close(c->far_end);
	c->far_end = -1;
	net_link_close(&c->link, &undelivered);
	while ((m = STAILQ_FIRST(&undelivered)) != NULL) {
		STAILQ_REMOVE_HEAD(&undelivered, next);
		if (on_undelivered == NULL || !on_undelivered(c, m))
			net_message_free(m);
	}
}

static bool heard(struct net_link *l, struct net_message *m)
{
	struct child *c = l->owner;
	return c->type->on_message(c, m);
}

/* As long as we have the far end open there is no end of the link. */
static void link_ended(struct net_link *l)
{
	child_hang_up(l->owner);
}

static void ended(struct process *p, int status)
{
	struct child *c = p->owner;
	net_link_hear_out(&c->link);
	close_link(c, c->type->on_undelivered);
	c->type->on_exit(c, status);
}

void child_init(struct child *c, const struct child_type *type, void *owner)
{
	*c = (struct child){.type = type, .owner = owner, .far_end = -1};
	c->link.fd = -1;
	c->link.owner = c->process.owner = c;
	c->link.on_message = heard;
	c->link.on_end = link_ended;
	c->process.on_exit = ended;
}

static void open_both(struct child *c, struct ev_loop *loop, int link, int far_end)
{
	c->far_end = far_end;
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
	if (pid > 0) {
		open_both(c, loop, pair[0], pair[1]);
		return 0;
	}
	close(pair[0]);
	close(pair[1]);
	return pid;
}

int child_adopt(struct child *c, struct ev_loop *loop, pid_t pid, int link, int far_end)
{
	int r = process_adopt(&c->process, pid);
	if (r == 0)
		open_both(c, loop, link, far_end);
	return r;
}

int child_send(struct child *c, const void *msg, size_t len, int fd)
{
	return net_link_send(&c->link, msg, len, fd);
}

void child_hang_up(struct child *c)
{
	close_link(c, c->type->on_undelivered);
}

void child_fini(struct child *c)
{
	close_link(c, NULL);
	process_forget(&c->process);
}
