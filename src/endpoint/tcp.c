/* SPDX-License-Identifier: MIT
 *
 * tcp: one listening socket, from which all workers accept. Master only.
 */
#include <endpoint.h>

/* Connections that come from now on get it. */
static int tcp_adjust(struct endpoint *ep, struct err *err)
{
	(void)err;
	net_receive_buffer(ep->fds[0], ep->cf->receive_buffer, &ep->receive_buffer_bytes);
	return 0;
}

static int tcp_bind(struct endpoint *ep, struct err *err)
{
	int fd = net_tcp_listen(&ep->address, err);
	if (fd < 0)
		return fd;
	ep->fds[ep->n_fds++] = fd;
	return tcp_adjust(ep, err);
}

const struct endpoint_ops endpoint_tcp = {
    .name = "tcp",
    .has_port = true,
    .bind = tcp_bind,
    .adjust = tcp_adjust,
};
