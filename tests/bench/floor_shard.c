/* SPDX-License-Identifier: MIT
 *
 * The floor for a sharding statsd relay, the least that such a program can do: read 64 datagrams a call, cut at newlines,
 * take the key up to ':', MurmurHash3 modulo n, copy the line into its backend's buffer, send a full buffer, and all of
 * them when the socket is empty. Judges no line, counts nothing, queues nothing; a send that would block waits.
 * usage: floor_shard PORT FIRST_BACKEND_PORT BACKENDS
 */
#include <arpa/inet.h>
#include <base.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

enum { DATAGRAMS = 64, DATAGRAM_BYTES = 65536, SLACK = 64, FULL_BYTES = 65536 };

struct backend {
	int fd;
	size_t bytes;
	char *buffer; /* FULL_BYTES and one line more */
};

static char received[DATAGRAMS][DATAGRAM_BYTES + SLACK];

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){
	    .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void flush(struct backend *be)
{
	if (be->bytes && send(be->fd, be->buffer, be->bytes, MSG_NOSIGNAL) == -1)
		exit(1);
	be->bytes = 0;
}

static void cut(char *at, size_t len, struct backend *backends, unsigned n)
{
	char *end = at + len;
	*end = '\n';
	while (at < end) {
		char *newline = memchr(at, '\n', (size_t)(end - at) + 1);
		char *colon = memchr(at, ':', (size_t)(newline - at));
		if (colon && colon > at) {
			size_t line = (size_t)(newline - at) + 1;
			struct backend *be =
			    &backends[hash_murmur3_32(at, (size_t)(colon - at), HASH_STATSRELAY_SEED) % n];
			memcpy(be->buffer + be->bytes, at, line);
			be->buffer[be->bytes + line - 1] = '\n';
			be->bytes += line;
			if (be->bytes > FULL_BYTES)
				flush(be);
		}
		at = newline + 1;
	}
}

static void drain(int fd, struct backend *backends, unsigned n)
{
	static struct mmsghdr messages[DATAGRAMS];
	static struct iovec iovecs[DATAGRAMS];
	for (;;) {
		for (int i = 0; i < DATAGRAMS; i++) {
			iovecs[i] = (struct iovec){received[i], DATAGRAM_BYTES};
			messages[i].msg_hdr = (struct msghdr){.msg_iov = &iovecs[i], .msg_iovlen = 1};
		}
		int got = recvmmsg(fd, messages, DATAGRAMS, MSG_DONTWAIT, NULL);
		for (int i = 0; i < got; i++)
			cut(received[i], messages[i].msg_len, backends, n);
		if (got <= 0)
			break;
	}
	for (unsigned i = 0; i < n; i++)
		flush(&backends[i]);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: floor_shard PORT FIRST_BACKEND_PORT BACKENDS\n");
		return 2;
	}
	unsigned n = (unsigned)atoi(argv[3]);
	struct backend *backends = calloc(n, sizeof *backends);
	struct sockaddr_in sa = loopback(atoi(argv[1]));
	int fd = socket(AF_INET, SOCK_DGRAM, 0), bytes = 32 << 20;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
	if (!backends || bind(fd, (struct sockaddr *)&sa, sizeof sa) == -1)
		return 1;
	for (unsigned i = 0; i < n; i++) {
		backends[i].fd = socket(AF_INET, SOCK_STREAM, 0);
		backends[i].buffer = malloc(FULL_BYTES + DATAGRAM_BYTES);
		sa = loopback(atoi(argv[2]) + (int)i);
		if (!backends[i].buffer || connect(backends[i].fd, (struct sockaddr *)&sa, sizeof sa) == -1)
			return 1;
	}
	puts("ready");
	fflush(stdout);
	struct pollfd readable = {fd, POLLIN, 0};
	while (poll(&readable, 1, -1) > 0)
		drain(fd, backends, n);
	return 1;
}
