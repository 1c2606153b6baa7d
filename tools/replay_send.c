/* SPDX-License-Identifier: MIT
 *
 * The replayer's sockets: connected UDP, unix datagram, TCP or unix streams. What the kernel took is counted as sent,
 * each datagram once: an ECONNREFUSED tells of an earlier datagram (man 7 udp), so the one in hand was not taken and is
 * tried again, once.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "hostport.h"
#include "replay.h"

enum {
	SEND_BUFFER_BYTES = 8 << 20,
	/* Nothing comes through any more: a unix socket without reader, a firewall's EPERM. */
	UNSENT_BROKEN = 1000,
};

static int open_one(const struct sockaddr_storage *addr, socklen_t addr_len, bool stream)
{
	int fd = socket(addr->ss_family, (stream ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
	int bytes = SEND_BUFFER_BYTES, on = 1;

	if (fd == -1)
		return -1;
	if (!stream && setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) == -1)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	if (stream && addr->ss_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (const struct sockaddr *)addr, addr_len) == -1 || fcntl(fd, F_SETFL, O_NONBLOCK) == -1) {
		int error = errno;

		close(fd);
		errno = error;
		return -1;
	}
	return fd;
}

static int target_resolve(const struct replay_opts *o, struct sockaddr_storage *addr, socklen_t *len, struct err *err)
{
	struct sockaddr_un *un = (struct sockaddr_un *)addr;
	const char *path = o->target + 5;

	if (strncmp(o->target, "unix:", 5))
		return hostport_resolve(o->target, o->stream ? SOCK_STREAM : SOCK_DGRAM, false, addr, len, err);
	memset(un, 0, sizeof(*un));
	if (!*path || strlen(path) >= sizeof(un->sun_path))
		return err_set(err, -EINVAL, "\"%s\" is not a usable path: 1 to %zu bytes", path,
			       sizeof(un->sun_path) - 1);
	un->sun_family = AF_UNIX;
	memcpy(un->sun_path, path, strlen(path));
	*len = sizeof(*un);
	return 0;
}

int replay_sender_open(struct replay_sender *snd, const struct replay_opts *o, struct err *err)
{
	struct sockaddr_storage addr = {0};
	socklen_t addr_len = 0;
	struct rlimit files;
	int rc = target_resolve(o, &addr, &addr_len, err);

	if (rc)
		return rc;
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	snd->stream = o->stream;
	snd->fds = calloc(o->sources, sizeof(*snd->fds));
	if (!snd->fds)
		return err_set(err, -ENOMEM, "out of memory");
	for (; snd->n < o->sources; snd->n++) {
		snd->fds[snd->n] = open_one(&addr, addr_len, o->stream);
		if (snd->fds[snd->n] == -1)
			return err_set(err, -errno, "cannot connect to %s (source %zu of %llu): %s", o->target,
				       snd->n + 1, (unsigned long long)o->sources, strerror(errno));
	}
	return 0;
}

void replay_sender_close(struct replay_sender *snd)
{
	for (size_t i = 0; i < snd->n; i++)
		close(snd->fds[i]);
	free(snd->fds);
}

static bool is_over(const struct replay_sender *snd)
{
	return *snd->stop || snd->broken || (snd->deadline_us && clock_us() >= snd->deadline_us);
}

static void account(struct replay_sender *snd, const struct datagram *d, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		snd->lines += d[i].lines;
		snd->bytes += d[i].len;
	}
	snd->datagrams += n;
	snd->unsent_in_a_row = 0;
}

static void give_up(struct replay_sender *snd, const struct datagram *d, size_t n)
{
	for (size_t i = 0; i < n; i++)
		snd->unsent_lines += d[i].lines;
	snd->unsent_datagrams += n;
	snd->unsent_in_a_row += n;
	if (snd->unsent_in_a_row >= UNSENT_BROKEN)
		snd->broken = true;
}

/* Counts errno and waits where waiting is the answer. True: try the same again. */
static bool error_take(struct replay_sender *snd, int fd, int error)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	struct timespec little = {.tv_nsec = 50000};

	switch (error) {
	case EINTR:
		return true;
	case EAGAIN:
		snd->errors[SEND_AGAIN]++;
		poll(&p, 1, 100);
		return true;
	case ENOBUFS:
		snd->errors[SEND_NO_BUFFERS]++;
		nanosleep(&little, NULL);
		return true;
	case ECONNREFUSED:
		snd->errors[SEND_REFUSED]++;
		return false;
	case EMSGSIZE:
		snd->errors[SEND_TOO_BIG]++;
		return false;
	case ECONNRESET:
	case EPIPE:
		snd->errors[SEND_RESET]++;
		break;
	default:
		snd->errors[SEND_OTHER]++;
	}
	snd->last_error = error;
	return false;
}

static void send_datagrams(struct replay_sender *snd, int fd, const struct datagram *d, size_t n)
{
	static struct mmsghdr msgs[REPLAY_BATCH];
	static struct iovec iov[REPLAY_BATCH];
	bool tried = false;
	size_t i = 0;

	for (size_t k = 0; k < n; k++) {
		iov[k] = (struct iovec){(void *)(uintptr_t)d[k].bytes, d[k].len};
		msgs[k].msg_hdr.msg_iov = &iov[k];
		msgs[k].msg_hdr.msg_iovlen = 1;
	}
	while (i < n) {
		int r = sendmmsg(fd, msgs + i, (unsigned)(n - i), 0);

		if (r > 0) {
			account(snd, d + i, (size_t)r);
			i += (size_t)r;
			tried = false;
			continue;
		}
		if (!error_take(snd, fd, errno)) {
			if (errno == ECONNREFUSED && !tried) {
				tried = true;
				continue;
			}
			snd->failed = true;
			give_up(snd, d + i, 1);
			i++;
			tried = false;
		}
		if (i < n && is_over(snd)) {
			give_up(snd, d + i, n - i);
			return;
		}
	}
}

/* Of a stream's datagram that was taken in part, the whole lines are sent. */
static void give_up_part(struct replay_sender *snd, const struct datagram *d, size_t n, size_t taken)
{
	struct datagram part = {.bytes = d->bytes, .len = (uint32_t)taken}, rest = *d;

	for (size_t i = 0; i < taken; i++)
		part.lines += d->bytes[i] == '\n';
	rest.lines -= part.lines;
	snd->lines += part.lines;
	snd->bytes += part.len;
	give_up(snd, &rest, 1);
	give_up(snd, d + 1, n - 1);
}

static void send_stream(struct replay_sender *snd, int fd, const struct datagram *d, size_t n)
{
	struct iovec iov[REPLAY_BATCH];
	size_t i = 0;

	for (size_t k = 0; k < n; k++)
		iov[k] = (struct iovec){(void *)(uintptr_t)d[k].bytes, d[k].len};
	while (i < n) {
		struct msghdr msg = {.msg_iov = iov + i, .msg_iovlen = n - i};
		ssize_t r = sendmsg(fd, &msg, MSG_NOSIGNAL);

		if (r == -1) {
			/* A stream cannot go on after an error: what of it arrived is not known. */
			if (!error_take(snd, fd, errno))
				snd->failed = snd->broken = true;
			if (is_over(snd)) {
				give_up_part(snd, d + i, n - i, d[i].len - iov[i].iov_len);
				return;
			}
			continue;
		}
		for (; i < n && (size_t)r >= iov[i].iov_len; i++) {
			r -= (ssize_t)iov[i].iov_len;
			account(snd, d + i, 1);
		}
		if (i < n) {
			iov[i].iov_base = (char *)iov[i].iov_base + r;
			iov[i].iov_len -= (size_t)r;
		}
	}
}

void replay_send(struct replay_sender *snd, const struct datagram *d, size_t n)
{
	int fd = snd->fds[snd->next];

	if (++snd->next == snd->n)
		snd->next = 0;
	if (snd->stream)
		send_stream(snd, fd, d, n);
	else
		send_datagrams(snd, fd, d, n);
}
