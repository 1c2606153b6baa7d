/* SPDX-License-Identifier: MIT
 *
 * unix: a socket file, of streams or of datagrams, that all workers read. Master only.
 */
#include <endpoint.h>

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static mode_t mode_of(const struct endpoint *ep)
{
	return (mode_t)strtoul(ep->cf->mode, NULL, 8);
}

static int bind_path(struct endpoint *ep, int type, struct err *err)
{
	int fd = net_unix_bind(ep->name, type, mode_of(ep), err);
	if (fd < 0)
		return fd;
	ep->fds[ep->n_fds++] = fd;
	endpoint_note_path(ep);
	return 0;
}

static int unix_bind(struct endpoint *ep, struct err *err)
{
	return bind_path(ep, SOCK_STREAM, err);
}

static int unix_adjust(struct endpoint *ep, struct err *err)
{
	if (!endpoint_has_path(ep) || chmod(ep->name, mode_of(ep)) == 0)
		return 0; /* another's file is not ours to change */
	return err_set(err, -errno, "Cannot change the mode of %s: %s.", ep->name, strerror(errno));
}

static int unixgram_bind(struct endpoint *ep, struct err *err)
{
	int r = bind_path(ep, SOCK_DGRAM, err);
	if (r == 0)
		net_receive_buffer(ep->fds[0], ep->cf->receive_buffer, &ep->receive_buffer_bytes);
	return r;
}

static int unixgram_adjust(struct endpoint *ep, struct err *err)
{
	net_receive_buffer(ep->fds[0], ep->cf->receive_buffer, &ep->receive_buffer_bytes);
	return unix_adjust(ep, err);
}

const struct endpoint_ops endpoint_unix = {
    .name = "unix",
    .bind = unix_bind,
    .adjust = unix_adjust,
};

const struct endpoint_ops endpoint_unixgram = {
    .name = "unixgram",
    .counts_drops = true,
    .bind = unixgram_bind,
    .adjust = unixgram_adjust,
};
