/* SPDX-License-Identifier: MIT
 *
 * tap_interface: what the kernel says of an interface itself: whether it is there and up, what it received and dropped,
 * whether it merges packets. Master, once a second. Asked by rtnetlink (getifaddrs), which knows our network namespace;
 * /sys/class/net has the same numbers of the namespace that it was mounted in.
 */
#include "tap.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/if_link.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <unistd.h>

static void count(uint64_t *total, uint64_t *last, uint32_t now)
{
	*total += (uint32_t)(now - (uint32_t)*last); /* the kernel gives 32 bits here */
	*last = now;
}

static void add_counters(struct tap *tap, const struct rtnl_link_stats *now, struct stats_endpoint *st)
{
	count(&st->interface_packets, &tap->rx_packets, now->rx_packets);
	count(&st->dropped_missed_packets, &tap->rx_missed, now->rx_missed_errors);
	count(&st->dropped_fifo_packets, &tap->rx_fifo, now->rx_fifo_errors);
	count(&st->dropped_interface_packets, &tap->rx_dropped, now->rx_dropped);
}

static void start_counters(struct tap *tap, const struct rtnl_link_stats *now)
{
	tap->rx_packets = now->rx_packets;
	tap->rx_missed = now->rx_missed_errors;
	tap->rx_fifo = now->rx_fifo_errors;
	tap->rx_dropped = now->rx_dropped;
}

static void say_change(const struct tap *tap, const struct endpoint *ep, const char *device, unsigned ifindex, bool is_up)
{
	if (tap->ifindex != 0 && ifindex == 0)
		log_warn("input \"%s\": interface %s is gone; looking for it each second", ep->cf->name, device);
	else if (tap->ifindex != ifindex)
		log_info("input \"%s\": interface %s is there%s; workers are renewed one by one to read it",
			 ep->cf->name, device, is_up ? "" : ", but down");
	else if (tap->is_up && !is_up)
		log_warn("input \"%s\": interface %s is down; waiting for it", ep->cf->name, device);
	else if (!tap->is_up && is_up)
		log_info("input \"%s\": interface %s is up", ep->cf->name, device);
}

void tap_look(struct tap *tap, const struct endpoint *ep, const char *device, struct stats_endpoint *st)
{
	struct ifaddrs *all = NULL;
	unsigned ifindex = 0;
	bool is_up = false, is_first = !st;
	if (tap->is_any || getifaddrs(&all) == -1)
		return;
	for (struct ifaddrs *a = all; a; a = a->ifa_next) {
		if (!a->ifa_addr || a->ifa_addr->sa_family != AF_PACKET || strcmp(a->ifa_name, device) != 0)
			continue;
		ifindex = (unsigned)((const struct sockaddr_ll *)(const void *)a->ifa_addr)->sll_ifindex;
		is_up = a->ifa_flags & IFF_UP;
		if (a->ifa_data && (is_first || tap->ifindex != ifindex))
			start_counters(tap, a->ifa_data);
		if (a->ifa_data && st)
			add_counters(tap, a->ifa_data, st);
	}
	freeifaddrs(all);
	if (!is_first)
		say_change(tap, ep, device, ifindex, is_up);
	tap->ifindex = ifindex;
	tap->is_up = is_up;
}

static bool merges(int fd, const char *device, uint32_t question, uint32_t mask)
{
	struct ethtool_value value = {.cmd = question};
	struct ifreq ifr;
	memset(&ifr, 0, sizeof ifr);
	snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "%s", device);
	ifr.ifr_data = (void *)&value;
	return ioctl(fd, SIOCETHTOOL, &ifr) == 0 && (value.data & mask);
}

void tap_offload_check(const struct endpoint *ep, const char *device)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return;
	bool gro = merges(fd, device, ETHTOOL_GGRO, UINT32_MAX), lro = merges(fd, device, ETHTOOL_GFLAGS, ETH_FLAG_LRO);
	close(fd);
	if (gro || lro)
		log_warn("input \"%s\": interface %s merges packets before they are captured (%s%s%s), so frames are "
			 "not those of the "
			 "wire: ethtool -K %s gro off lro off, or offload_check: false if that is wanted",
			 ep->cf->name, device, gro ? "GRO" : "", gro && lro ? ", " : "", lro ? "LRO" : "", device);
}
