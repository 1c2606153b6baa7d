/* SPDX-License-Identifier: MIT
 *
 * dpdk_rss: what to ask a device for, so that N queues share the packets and both directions of a connection reach the
 * same one. Pure. Tested against made-up device descriptions: the virtual devices here offer no RSS at all, so it is
 * not verified on hardware.
 */
#include "dpdk.h"

#include <rte_ethdev.h>
#include <string.h>

/* With the key 6d5a, 6d5a, … Toeplitz gives the same for (a, b) and (b, a): its windows repeat every 16 bits, and
 * addresses and ports are multiples of that (Woo and Park, "Scalable TCP session monitoring with symmetric receive-side
 * scaling", 2012). */
static const uint8_t symmetric_key[2] = {0x6d, 0x5a};

static const uint64_t wanted_types = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP;

static void key_make(struct dpdk_rss *rss, const struct rte_eth_dev_info *info)
{
	if (info->hash_key_size == 0 || info->hash_key_size > DPDK_KEY_MAX) {
		rss->why_not =
		    "the device takes no key: the two directions of a connection may reach different workers";
		return;
	}
	rss->key_bytes = info->hash_key_size;
	for (unsigned i = 0; i < rss->key_bytes; i++)
		rss->key[i] = symmetric_key[i % sizeof symmetric_key];
	rss->is_symmetric = true;
}

void dpdk_rss_make(struct dpdk_rss *rss, const struct rte_eth_dev_info *info, unsigned queues, bool symmetric)
{
	memset(rss, 0, sizeof *rss);
	if (queues < 2 || !symmetric)
		return;
	/* a device that is asked for a type it lacks refuses all of them */
	rss->types = wanted_types & info->flow_type_rss_offloads;
	if (rss->types == 0) {
		rss->why_not = "the device offers no RSS: how it spreads packets over its queues is its own choice";
		return;
	}
	key_make(rss, info);
}
