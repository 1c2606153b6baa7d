/* SPDX-License-Identifier: MIT
 *
 * udp: an address with a socket for each slot in one SO_REUSEPORT group, or with one that all share. Master only.
 */
#include <endpoint.h>

#include <errno.h>

static unsigned wanted_sockets(const struct endpoint *ep)
{
	return ep->cf->spread == CONF_SPREAD_SHARED ? 1 : ep->n_slots;
}

static void add_socket(struct endpoint *ep, int fd)
{
	net_receive_buffer(fd, ep->cf->receive_buffer, &ep->receive_buffer_bytes);
	ep->fds[ep->n_fds++] = fd;
}

/* More sockets in the group; those that are too many stay until their slots are gone. */
static int udp_grow(struct endpoint *ep, struct err *err)
{
	unsigned wanted = wanted_sockets(ep);
	while (ep->n_fds < wanted) {
		int fd = net_udp_join(&ep->address, err);
		if (fd < 0)
			return fd;
		add_socket(ep, fd);
	}
	if (ep->cf->spread == CONF_SPREAD_PACKET && ep->n_fds > 1)
		return net_reuseport_random(ep->fds[0], MIN(ep->n_fds, wanted), err);
	if (ep->n_fds > 1)
		net_reuseport_by_hash(ep->fds[0]);
	return 0;
}

/* A group of sockets cannot become one: datagrams wait in each. */
static bool udp_is_other(const struct endpoint *ep, const struct endpoint_user *user)
{
	return user->cf->spread == CONF_SPREAD_SHARED && ep->n_fds > 1;
}

/* Beside a group of ours it joins that, and gets all when those have left. */
static int udp_bind(struct endpoint *ep, struct err *err)
{
	int fd = ep->former ? net_udp_join(&ep->address, err) : net_udp_bind(&ep->address, wanted_sockets(ep) > 1, err);
	if (fd < 0)
		return fd;
	add_socket(ep, fd);
	return udp_grow(ep, err);
}

static int udp_adjust(struct endpoint *ep, struct err *err)
{
	for (unsigned i = 0; i < ep->n_fds; i++)
		net_receive_buffer(ep->fds[i], ep->cf->receive_buffer, &ep->receive_buffer_bytes);
	int r = wanted_sockets(ep) > ep->n_fds ? net_udp_share(ep->fds[0], err) : 0;
	return r == 0 ? udp_grow(ep, err) : r;
}

const struct endpoint_ops endpoint_udp = {
    .name = "udp",
    .has_port = true,
    .counts_drops = true,
    .is_other = udp_is_other,
    .bind = udp_bind,
    .adjust = udp_adjust,
    .leave = net_udp_leave,
};
