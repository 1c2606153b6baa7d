/* SPDX-License-Identifier: MIT
 *
 * dpdk_ring_sender: sends packets of a pcap file into the rings of a net_ring port of a running millrace, whose primary
 * process that is: a secondary process of DPDK's. For tests.
 * usage: dpdk_ring_sender EAL-ARGUMENTS -- NAME QUEUES FILE          packet i goes to queue i mod QUEUES
 */
#include <pcap/pcap.h>
#include <rte_eal.h>
#include <rte_mbuf.h>
#include <rte_ring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct rte_ring *ring_find(const char *name, unsigned queue)
{
	char text[RTE_RING_NAMESIZE];
	snprintf(text, sizeof text, "ETH_RXTX%u_%s", queue, name);
	struct rte_ring *r = rte_ring_lookup(text);
	if (!r)
		fprintf(stderr, "no ring %s\n", text);
	return r;
}

static void send_one(struct rte_mempool *pool, struct rte_ring *ring, const u_char *bytes, unsigned len)
{
	struct rte_mbuf *m;
	while ((m = rte_pktmbuf_alloc(pool)) == NULL)
		usleep(20);
	memcpy(rte_pktmbuf_append(m, (uint16_t)len), bytes, len);
	while (rte_ring_enqueue(ring, m) != 0)
		usleep(20);
}

int main(int argc, char **argv)
{
	char why[PCAP_ERRBUF_SIZE];
	struct rte_ring *rings[16];
	struct pcap_pkthdr *head;
	const u_char *bytes;
	unsigned long n = 0;
	int used = rte_eal_init(argc, argv);
	if (used < 0 || argc - used != 4)
		return 1;
	argv += used;
	unsigned queues = (unsigned)atoi(argv[2]);
	for (unsigned i = 0; i < queues; i++)
		if ((rings[i] = ring_find(argv[1], i)) == NULL)
			return 1;
	pcap_t *p = pcap_open_offline(argv[3], why);
	struct rte_mempool *pool =
	    rte_pktmbuf_pool_create("sender", 2047, 0, 0, 2048 + RTE_PKTMBUF_HEADROOM, SOCKET_ID_ANY);
	if (!p || !pool) {
		fprintf(stderr, "no file, or no memory\n");
		return 1;
	}
	while (pcap_next_ex(p, &head, &bytes) == 1)
		send_one(pool, rings[n++ % queues], bytes, head->caplen);
	for (int i = 0; i < 5000 && rte_mempool_in_use_count(pool) > 0; i++) /* the reader gives them back here */
		usleep(1000);
	printf("sent %lu, %u not given back\n", n, rte_mempool_in_use_count(pool));
	fflush(stdout);
	_exit(rte_mempool_in_use_count(pool) ? 1 : 0);
}
