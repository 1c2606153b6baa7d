/* SPDX-License-Identifier: MIT
 *
 * dpdk_port: one port with a receive queue and a pool for each slot, made by the master before fork; and what the
 * device says of losses. Reads no packet.
 *
 * A pool has no cache: a cache belongs to a process, and what a killed one has in it would be gone. Its ring is for one
 * producer and one consumer, so that a kill in the middle of a move leaves nobody waiting for the other half.
 */
#include "dpdk.h"

#include <errno.h>
#include <linux/if_packet.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	/* A pool feeds the descriptors, the burst in hand and the one that the driver is filling; the rest is for
	 * killed workers, of which each leaks at most so many bursts (what the driver took out, what it handed over).
	 */
	BURSTS_IN_USE = 2,
	LEAK_BURSTS = 2,
	LEAKS_BORNE = 4,
	/* Jumbo frames, as far as the device takes them. */
	MTU_WANTED = 9216,
};

/* -- which ------------------------------------------------------------------------------------------------------- */

static void list_ports(struct text *t)
{
	uint16_t port;
	char name[RTE_ETH_NAME_MAX_LEN];
	const char *separator = "";
	RTE_ETH_FOREACH_DEV(port)
	{
		if (rte_eth_dev_get_name_by_port(port, name) != 0)
			continue;
		text_add(t, "%s%s", separator, name);
		separator = ", ";
	}
}

static int say_ports(const char *input, const char *what, struct err *err)
{
	struct text t = {0};
	list_ports(&t);
	if (dpdk_eal_why()[0] && !t.len)
		return err_set(err, -ENODEV, "Input \"%s\": %s; DPDK could not make it%s.", input, what,
			       dpdk_eal_why());
	int r = t.len
		    ? err_set(err, -ENODEV, "Input \"%s\": %s; DPDK has %s.", input, what, t.s)
		    : err_set(err, -ENODEV,
			      "Input \"%s\": %s; DPDK has none: bind the device to a driver of DPDK (dpdk-devbind.py), "
			      "or name a virtual one in port (net_af_packet0,iface=eth1).",
			      input, what);
	text_free(&t);
	return r;
}

static int find_port(struct dpdk *d, const struct dpdk_wish *wish, const char *name, struct err *err)
{
	char what[200], *end;
	unsigned long number = strtoul(name, &end, 10);
	if (name[0] == '\0') {
		if (rte_eth_dev_count_avail() != 1)
			return say_ports(wish->input, rte_eth_dev_count_avail() ? "port must say which one" : "no port",
					 err);
		number = rte_eth_find_next(0);
	} else if (*end) {
		if (rte_eth_dev_get_port_by_name(name, &d->port) == 0)
			return 0;
		snprintf(what, sizeof what, "there is no port %s", name);
		return say_ports(wish->input, what, err);
	}
	snprintf(what, sizeof what, "there is no port %lu", number);
	if (number >= RTE_MAX_ETHPORTS || !rte_eth_dev_is_valid_port((uint16_t)number))
		return say_ports(wish->input, what, err);
	d->port = (uint16_t)number;
	return 0;
}

static bool in_use[RTE_MAX_ETHPORTS];

static int take_port(struct dpdk *d, const struct dpdk_wish *wish, struct err *err)
{
	rte_eth_dev_get_name_by_port(d->port, d->name);
	if (in_use[d->port])
		return err_set(err, -EBUSY, "Input \"%s\": port %s is read already; name each port once.", wish->input,
			       d->name);
	d->is_owner = in_use[d->port] = true;
	return 0;
}

/* -- how --------------------------------------------------------------------------------------------------------- */

static bool is_driver(const struct rte_eth_dev_info *info, const char *name)
{
	return info->driver_name && strcmp(info->driver_name, name) == 0;
}

static int check_queues(const struct dpdk *d, const struct dpdk_wish *wish, const struct rte_eth_dev_info *info,
			struct err *err)
{
	if (info->max_rx_queues < wish->queues)
		return err_set(
		    err, -EINVAL,
		    "Input \"%s\": port %s has at most %u receive queue%s, and there are %u workers, each of "
		    "which needs one; set workers: %u, or give the device more queues.",
		    wish->input, d->name, info->max_rx_queues, info->max_rx_queues == 1 ? "" : "s", wish->queues,
		    info->max_rx_queues);
	/* these give packets to every queue that they have, read or not */
	if (info->max_rx_queues > wish->queues && (is_driver(info, "net_af_packet") || is_driver(info, "net_pcap")))
		return err_set(
		    err, -EINVAL,
		    "Input \"%s\": port %s spreads its packets over %u queues, and with %u worker%s some would "
		    "never be read; set workers: %u, or make the device with fewer queues.",
		    wish->input, d->name, info->max_rx_queues, wish->queues, wish->queues == 1 ? "" : "s",
		    info->max_rx_queues);
	return 0;
}

static int refuse(const struct dpdk *d, const struct dpdk_wish *wish, const char *what, int code, struct err *err)
{
	return err_set(err, code < 0 ? code : -EIO, "Input \"%s\": port %s: %s: %s%s.", wish->input, d->name, what,
		       rte_strerror(code < 0 ? -code : rte_errno), dpdk_eal_why());
}

static int configure(struct dpdk *d, const struct dpdk_wish *wish, const struct rte_eth_dev_info *info, struct err *err)
{
	struct rte_eth_conf conf;
	memset(&conf, 0, sizeof conf);
	dpdk_rss_make(&d->rss, info, d->queues, wish->symmetric);
	if (d->rss.types) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = d->rss.types;
		conf.rx_adv_conf.rss_conf.rss_key = d->rss.key_bytes ? d->rss.key : NULL;
		conf.rx_adv_conf.rss_conf.rss_key_len = d->rss.key_bytes;
	}
	if (d->queues > 1 && d->rss.why_not)
		log_info("input \"%s\": port %s: %s", wish->input, d->name, d->rss.why_not);
	/* a device without a limit of its own (UINT16_MAX) is a virtual one, and gives what it gets */
	if (info->max_mtu > RTE_ETHER_MTU && info->max_mtu < UINT16_MAX)
		conf.rxmode.mtu = MIN((uint32_t)MTU_WANTED, info->max_mtu);
	if (info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER)
		conf.rxmode.offloads |= RTE_ETH_RX_OFFLOAD_SCATTER;
	uint16_t tx = (uint16_t)MIN(d->queues, info->max_tx_queues);
	int r = rte_eth_dev_configure(d->port, (uint16_t)d->queues, tx, &conf);
	if (r != 0)
		return refuse(d, wish, "cannot be configured", r, err);
	uint16_t descriptors = (uint16_t)wish->rx_descriptors, tx_descriptors = 512;
	r = rte_eth_dev_adjust_nb_rx_tx_desc(d->port, &descriptors, &tx_descriptors);
	if (r != 0)
		return refuse(d, wish, "no number of descriptors suits it", r, err);
	if (descriptors != wish->rx_descriptors)
		log_warn("input \"%s\": port %s takes %u receive descriptors, not %u", wish->input, d->name,
			 descriptors, wish->rx_descriptors);
	d->descriptors = descriptors;
	for (uint16_t i = 0; i < tx; i++) { /* nothing is sent, but drivers may want them in pairs */
		r = rte_eth_tx_queue_setup(d->port, i, tx_descriptors, rte_eth_dev_socket_id(d->port), NULL);
		if (r != 0)
			return refuse(d, wish, "a send queue cannot be made", r, err);
	}
	return 0;
}

static int pool_make(struct dpdk *d, const struct dpdk_wish *wish, unsigned q, struct err *err)
{
	char name[RTE_MEMPOOL_NAMESIZE];
	unsigned n = d->descriptors + d->burst * (BURSTS_IN_USE + LEAK_BURSTS * LEAKS_BORNE);
	const uint16_t room = DPDK_FRAME_BYTES + RTE_PKTMBUF_HEADROOM + BATCH_SLACK;
	snprintf(name, sizeof name, "m%u_%u", d->port, q);
	d->pools[q] =
	    rte_pktmbuf_pool_create_by_ops(name, n, 0, 0, (uint16_t)MAX(room, d->cut_at + RTE_PKTMBUF_HEADROOM),
					   rte_eth_dev_socket_id(d->port), "ring_sp_sc");
	if (!d->pools[q])
		return err_set(
		    err, -ENOMEM,
		    "Input \"%s\": no memory for %u packets of %u bytes for each of %u workers: %s%s; give DPDK "
		    "more (-m MEGABYTES in eal, or hugepages), or lower rx_descriptors or rx_burst.",
		    wish->input, n, DPDK_FRAME_BYTES, d->queues, rte_strerror(rte_errno), dpdk_eal_why());
	return 0;
}

static int queues_make(struct dpdk *d, const struct dpdk_wish *wish, struct err *err)
{
	d->pools = calloc(d->queues, sizeof *d->pools);
	d->holds = mmap(NULL, d->queues * sizeof *d->holds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (d->holds == MAP_FAILED)
		d->holds = NULL;
	if (!d->pools || !d->holds)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	for (unsigned q = 0; q < d->queues; q++) {
		int r = pool_make(d, wish, q, err);
		if (r != 0)
			return r;
		r = rte_eth_rx_queue_setup(d->port, (uint16_t)q, (uint16_t)d->descriptors,
					   rte_eth_dev_socket_id(d->port), NULL, d->pools[q]);
		if (r != 0)
			return refuse(d, wish, "a receive queue cannot be made", r, err);
	}
	return 0;
}

/* net_af_packet says nothing of what its rings could not take (22.11). The kernel does: the sockets are ours, too. */
static void find_sockets(struct dpdk *d, const struct rte_eth_dev_info *info)
{
	const int *fds;
	size_t n = dpdk_eal_fds(&fds);
	d->sockets = calloc(MAX(n, 1), sizeof *d->sockets);
	for (size_t i = 0; d->sockets && i < n; i++) {
		struct sockaddr_ll ll;
		socklen_t len = sizeof ll;
		memset(&ll, 0, sizeof ll);
		if (getsockname(fds[i], (struct sockaddr *)&ll, &len) == 0 && ll.sll_family == AF_PACKET &&
		    (unsigned)ll.sll_ifindex == info->if_index)
			d->sockets[d->n_sockets++] = fds[i];
	}
}

static int start(struct dpdk *d, const struct dpdk_wish *wish, struct err *err)
{
	int r = rte_eth_dev_start(d->port);
	if (r != 0)
		return refuse(d, wish, "does not start", r, err);
	d->is_started = true;
	r = wish->promiscuous ? rte_eth_promiscuous_enable(d->port) : 0;
	if (r != 0)
		log_info("input \"%s\": port %s cannot be made promiscuous: %s", wish->input, d->name,
			 rte_strerror(-r));
	dpdk_eal_note_fds();
	return 0;
}

static int port_make(struct dpdk *d, const struct dpdk_wish *wish, const struct dpdk_args *a, struct err *err)
{
	struct rte_eth_dev_info info;
	int r = find_port(d, wish, a->port, err);
	if (r == 0)
		r = take_port(d, wish, err);
	if (r != 0)
		return r;
	dpdk_eal_forget(); /* what was said of other devices */
	r = rte_eth_dev_info_get(d->port, &info);
	if (r != 0)
		return refuse(d, wish, "cannot be asked what it is", r, err);
	if (is_driver(&info, "net_af_packet"))
		d->cut_at = a->frame_bytes;
	r = check_queues(d, wish, &info, err);
	if (r == 0)
		r = configure(d, wish, &info, err);
	if (r == 0)
		r = queues_make(d, wish, err);
	if (r == 0)
		r = start(d, wish, err);
	if (r == 0 && d->cut_at)
		find_sockets(d, &info);
	return r;
}

struct dpdk *dpdk_bind(const struct dpdk_wish *wish, struct err *err)
{
	struct dpdk_args args;
	struct dpdk *d = calloc(1, sizeof *d);
	if (!d) {
		err_set(err, -ENOMEM, "Cannot start: no memory.");
		return NULL;
	}
	d->queues = wish->queues;
	d->burst = MIN(wish->rx_burst, (unsigned)DPDK_BURST_MAX);
	cpu_set_t cpus;
	unsigned cpu = 0;
	if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
		while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &cpus))
			cpu++;
	int r = dpdk_args_make(&args, wish, getpid(), cpu, err);
	if (r == 0)
		r = dpdk_eal_start(&args, wish->input, err);
	d->has_eal = r == 0;
	if (r == 0)
		r = port_make(d, wish, &args, err);
	dpdk_args_free(&args);
	if (r == 0)
		return d;
	dpdk_unbind(d);
	return NULL;
}

void dpdk_unbind(struct dpdk *d)
{
	if (!d)
		return;
	if (d->is_owner) {
		if (d->is_started)
			rte_eth_dev_stop(d->port);
		rte_eth_dev_close(d->port);
		in_use[d->port] = false;
	}
	for (unsigned q = 0; d->pools && q < d->queues; q++)
		rte_mempool_free(d->pools[q]);
	if (d->holds)
		munmap(d->holds, d->queues * sizeof *d->holds);
	if (d->has_eal)
		dpdk_eal_stop();
	dpdk_filter_free(d->filter);
	free(d->pools);
	free(d->sockets);
	free(d);
}

/* -- each second ------------------------------------------------------------------------------------------------- */

/* tp_drops is 32 bit and begins anew at each look (man 7 packet). */
static uint64_t socket_drops(struct dpdk *d)
{
	for (size_t i = 0; i < d->n_sockets; i++) {
		struct tpacket_stats st;
		socklen_t len = sizeof st;
		if (getsockopt(d->sockets[i], SOL_PACKET, PACKET_STATISTICS, &st, &len) == 0)
			d->ring_dropped += st.tp_drops;
	}
	return d->ring_dropped;
}

void dpdk_count(struct dpdk *d, struct dpdk_counts *c)
{
	struct rte_eth_stats st;
	memset(c, 0, sizeof *c);
	struct rte_eth_link link;
	c->is_up = rte_eth_link_get_nowait(d->port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
	if (rte_eth_stats_get(d->port, &st) != 0)
		return;
	c->packets = st.ipackets;
	c->missed = d->n_sockets ? socket_drops(d) : st.imissed;
	c->errors = st.ierrors;
	c->no_mbuf = st.rx_nombuf;
}

uint64_t dpdk_free_mbufs(const struct dpdk *d, unsigned slot)
{
	return rte_mempool_avail_count(d->pools[slot]);
}

static bool tells_of_loss(const char *name)
{
	static const char *const parts[] = {"err",        "drop",     "miss", "discard",  "nombuf",    "no_buf",
					    "mbuf_alloc", "overflow", "crc",  "oversize", "undersize", "jabber"};
	static const char *const sums[] = {"rx_missed_errors", "rx_errors", "rx_mbuf_allocation_errors"};
	if (strncmp(name, "tx_", 3) == 0)
		return false;
	for (size_t i = 0; i < ARRAY_LEN(sums); i++)
		if (strcmp(name, sums[i]) == 0) /* those of rte_eth_stats again */
			return false;
	for (size_t i = 0; i < ARRAY_LEN(parts); i++)
		if (strstr(name, parts[i]))
			return true;
	return false;
}

void dpdk_each_xstat(const struct dpdk *d, dpdk_xstat_cb *cb, void *arg)
{
	int n = rte_eth_xstats_get_names(d->port, NULL, 0);
	if (n <= 0)
		return;
	struct rte_eth_xstat_name *names = calloc((size_t)n, sizeof *names);
	struct rte_eth_xstat *values = calloc((size_t)n, sizeof *values);
	if (names && values && rte_eth_xstats_get_names(d->port, names, (unsigned)n) == n) {
		int got = rte_eth_xstats_get(d->port, values, (unsigned)n);
		for (int i = 0; i < MIN(got, n); i++)
			if (values[i].id < (uint64_t)n && tells_of_loss(names[values[i].id].name))
				cb(arg, names[values[i].id].name, values[i].value);
	}
	free(names);
	free(values);
}
