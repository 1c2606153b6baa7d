/* SPDX-License-Identifier: MIT
 *
 * fdpass: a message with at most one descriptor over a unix socket (SCM_RIGHTS, man 7 unix). Any process. Descriptors
 * that arrive are close-on-exec, and more than one in a message are closed by the kernel.
 */
#include <errno.h>
#include <limits.h>
#include <net.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

union fd_message {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr align;
};

/* ECONNRESET is told once, to whoever comes first: the peer has left with something unread. What it said can still be
 * read, and to send is EPIPE from then on. */
static bool is_to_repeat(ssize_t n)
{
	return n == -1 && (errno == EINTR || errno == ECONNRESET);
}

int net_send_fd(int sock, const void *msg, size_t len, int fd)
{
	union fd_message control = {{0}};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)msg, .iov_len = len};
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
	if (fd != -1) {
		mh.msg_control = control.bytes;
		mh.msg_controllen = sizeof(control.bytes);
		struct cmsghdr *cm = CMSG_FIRSTHDR(&mh);
		cm->cmsg_level = SOL_SOCKET;
		cm->cmsg_type = SCM_RIGHTS;
		cm->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(cm), &fd, sizeof(fd));
	}
	ssize_t n;
	do
		n = sendmsg(sock, &mh, MSG_NOSIGNAL);
	while (is_to_repeat(n));
	if (n == -1)
		return -errno;
	return (size_t)n == len ? 0 : -EMSGSIZE; /* a stream whose buffer is full: what arrived is no message */
}

bool net_is_for_later(int r)
{
	return r == -EAGAIN || r == -ETOOMANYREFS || r == -ENOBUFS || r == -ENOMEM;
}

void net_wait_to_send(int sock, int r, uint64_t most_us)
{
	struct pollfd p = {.fd = sock, .events = POLLOUT};
	uint64_t ms = (most_us + 999) / 1000;
	if (r == -EAGAIN)
		poll(&p, 1, (int)MIN(ms, INT_MAX));
	else if (ms > 0)
		poll(NULL, 0, 1);
}

ssize_t net_recv_fd(int sock, void *msg, size_t size, int *fd)
{
	union fd_message control = {{0}};
	struct iovec iov = {.iov_base = msg, .iov_len = size};
	/* CMSG_LEN, not CMSG_SPACE: its padding has room for a second descriptor, which nobody would close. */
	struct msghdr mh = {.msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.bytes,
			    .msg_controllen = CMSG_LEN(sizeof(int))};
	*fd = -1;
	ssize_t n;
	do
		n = recvmsg(sock, &mh, MSG_CMSG_CLOEXEC);
	while (is_to_repeat(n));
	if (n == -1)
		return -errno;
	struct cmsghdr *cm = CMSG_FIRSTHDR(&mh);
	if (cm && cm->cmsg_level == SOL_SOCKET && cm->cmsg_type == SCM_RIGHTS && cm->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(cm), sizeof(*fd));
	if ((mh.msg_flags & MSG_CTRUNC) && *fd == -1)
		log_error("a descriptor that came over a link is lost: too many are open here (ulimit -n)");
	if (n == 0 && *fd != -1) {
		close(*fd);
		*fd = -1;
	}
	return n;
}
