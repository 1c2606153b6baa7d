/* SPDX-License-Identifier: MIT
 *
 * floor_recv PORT SECONDS: the least that receiving UDP costs: recvmmsg of 64 into one place, count, nothing else. Ends
 * when nothing came for SECONDS; prints packets and CPU.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>

enum { BURST = 64, ROOM = 65536 };

static char slab[BURST][ROOM];
static struct mmsghdr messages[BURST];
static struct iovec iovecs[BURST];

int main(int argc, char **argv)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0), bytes = 32 << 20;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rusage used;
	long packets = 0;
	if (argc != 3)
		return 2;
	a.sin_port = htons((uint16_t)atoi(argv[1]));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) != 0)
		return 1;
	for (int i = 0; i < BURST; i++) {
		iovecs[i] = (struct iovec){slab[i], ROOM};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &iovecs[i], .msg_iovlen = 1};
	}
	struct pollfd p = {.fd = fd, .events = POLLIN};
	puts("ready");
	fflush(stdout);
	while (poll(&p, 1, packets ? atoi(argv[2]) * 1000 : -1) > 0)
		for (int n; (n = recvmmsg(fd, messages, BURST, MSG_DONTWAIT, NULL)) > 0;)
			packets += n;
	getrusage(RUSAGE_SELF, &used);
	double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
		     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
	printf("packets=%ld ns=%.0f\n", packets, packets ? cpu * 1e9 / (double)packets : 0.);
	return 0;
}
