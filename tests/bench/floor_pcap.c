/* SPDX-License-Identifier: MIT
 *
 * floor_pcap INTERFACE: the least that reading packets costs: one libpcap handle, pcap_dispatch, a callback that
 * counts. Ends 2 s after the last packet. Prints ns of CPU a packet.
 */
#include <pcap/pcap.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>

static unsigned long packets, bytes;

static void count(u_char *user, const struct pcap_pkthdr *h, const u_char *frame)
{
	(void)user, (void)frame;
	packets++;
	bytes += h->caplen;
}

int main(int argc, char **argv)
{
	char why[PCAP_ERRBUF_SIZE];
	pcap_t *p = argc == 2 ? pcap_create(argv[1], why) : NULL;
	if (!p)
		return 2;
	pcap_set_snaplen(p, 65535);
	pcap_set_promisc(p, 1);
	pcap_set_timeout(p, 10);
	pcap_set_buffer_size(p, 64 << 20);
	pcap_set_tstamp_precision(p, PCAP_TSTAMP_PRECISION_NANO);
	if (pcap_activate(p) < 0 || pcap_setnonblock(p, 1, why) == -1)
		return 1;
	pcap_setdirection(p, PCAP_D_IN);
	struct pollfd fd = {.fd = pcap_fileno(p), .events = POLLIN};
	printf("ready\n");
	fflush(stdout);
	while (poll(&fd, 1, packets ? 2000 : 60000) > 0)
		while (pcap_dispatch(p, 256, count, NULL) > 0)
			;
	struct pcap_stat st;
	struct rusage used;
	pcap_stats(p, &st);
	getrusage(RUSAGE_SELF, &used);
	double ns = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e9 +
		    (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e3;
	printf("packets=%lu bytes=%lu dropped=%u ns=%.0f\n", packets, bytes, st.ps_drop,
	       packets ? ns / (double)packets : 0);
	return 0;
}
