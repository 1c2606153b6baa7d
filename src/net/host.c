/* SPDX-License-Identifier: MIT
 *
 * host: what the kernel counts for the whole host, as text and as rtnetlink, into numbers. Pure: host_reader.c reads.
 * Whatever the kernel may add (columns, lines, attributes) is skipped.
 */
#include <net.h>

#include <errno.h>
#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <string.h>

/* -- UDP totals ---------------------------------------------------------------------------------------------------- */

static uint64_t *total_of(struct net_udp_totals *t, const char *name, size_t len)
{
	const struct {
		const char *name;
		uint64_t *total;
	} rows[] = {
	    {"InDatagrams", &t->in_datagrams},   {"NoPorts", &t->no_ports},         {"InErrors", &t->in_errors},
	    {"RcvbufErrors", &t->rcvbuf_errors}, {"InCsumErrors", &t->csum_errors}, {"MemErrors", &t->mem_errors},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strlen(rows[i].name) == len && memcmp(rows[i].name, name, len) == 0)
			return rows[i].total;
	return NULL;
}

/* The next word of the line at *s, and its length; NULL at the end of the line. */
static const char *word_next(const char **s, size_t *len)
{
	const char *word = *s + strspn(*s, " \t\r");
	*len = strcspn(word, " \t\r\n");
	*s = word + *len;
	return *len ? word : NULL;
}

/* The first line that begins with `head`, behind it. NULL: none. */
static const char *line_find(const char *text, const char *head)
{
	for (; text; text = strchr(text, '\n'), text = text ? text + 1 : NULL)
		if (strncmp(text, head, strlen(head)) == 0)
			return text + strlen(head);
	return NULL;
}

/* "Udp: InDatagrams NoPorts …" and below it "Udp: 17 0 …". */
bool net_udp_totals_parse(struct net_udp_totals *totals, const char *snmp)
{
	*totals = (struct net_udp_totals){0};
	bool found = false;
	const char *names = line_find(snmp, "Udp:"), *rest = names ? strchr(names, '\n') : NULL;
	const char *values = rest ? line_find(rest + 1, "Udp:") : NULL, *name, *value;
	size_t name_len, len;
	while (values && (name = word_next(&names, &name_len)) && (value = word_next(&values, &len))) {
		uint64_t *to = total_of(totals, name, name_len);
		if (!to || strspn(value, "0123456789") < len)
			continue;
		*to = strtoull(value, NULL, 10);
		found |= to == &totals->in_datagrams;
	}
	return found;
}

/* "Udp6InDatagrams    17", a line each. */
bool net_udp6_totals_parse(struct net_udp_totals *totals, const char *snmp6)
{
	*totals = (struct net_udp_totals){0};
	bool found = false;
	for (const char *line = snmp6; (line = line_find(line, "Udp6"));) {
		size_t name_len, len;
		const char *name = word_next(&line, &name_len), *value = word_next(&line, &len);
		uint64_t *to = name && value ? total_of(totals, name, name_len) : NULL;
		if (to && strspn(value, "0123456789") >= len) {
			*to = strtoull(value, NULL, 10);
			found |= to == &totals->in_datagrams;
		}
		if (!(line = strchr(line, '\n')))
			break;
		line++;
	}
	return found;
}

/* -- sockets ------------------------------------------------------------------------------------------------------- */

/* "  17: 0100007F:1FBD 00000000:0000 07 00000000:00001200 00:00000000 00000000   0   0 4711 2 0000000000000000 5" */
bool net_udp_socket_parse(struct net_udp_socket *s, const char *line)
{
	unsigned long long queue, inode, dropped;
	unsigned port;
	if (sscanf(line, " %*u: %*[0-9A-Fa-f]:%4x %*s %*s %*x:%llx %*s %*s %*s %*s %llu %*s %*s %llu", &port, &queue,
		   &inode, &dropped) != 4)
		return false;
	*s = (struct net_udp_socket){.inode = inode, .queue_bytes = queue, .dropped = dropped, .port = (uint16_t)port};
	return true;
}

/* -- interfaces ---------------------------------------------------------------------------------------------------- */

static bool shows_others_again(const struct rtattr *linkinfo)
{
	static const char *const kinds[] = {"bond", "team", "bridge", "vlan", "macvlan", "macvtap", "ipvlan", "vrf"};
	int left = (int)RTA_PAYLOAD(linkinfo);
	for (const struct rtattr *a = RTA_DATA(linkinfo); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		const char *kind = RTA_DATA(a);
		size_t len = strnlen(kind, RTA_PAYLOAD(a));
		for (size_t i = 0; a->rta_type == IFLA_INFO_KIND && i < ARRAY_LEN(kinds); i++)
			if (strlen(kinds[i]) == len && memcmp(kinds[i], kind, len) == 0)
				return true;
	}
	return false;
}

static bool interface_parse(struct net_interface *to, const struct nlmsghdr *message)
{
	const struct ifinfomsg *info = NLMSG_DATA(message);
	struct rtnl_link_stats64 st = {0};
	bool counts = false;
	if (message->nlmsg_len < NLMSG_LENGTH(sizeof *info) || info->ifi_type == ARPHRD_LOOPBACK)
		return false;
	*to = (struct net_interface){.ifindex = (unsigned)info->ifi_index};
	int left = (int)IFLA_PAYLOAD(message);
	for (const struct rtattr *a = IFLA_RTA(info); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		size_t len = RTA_PAYLOAD(a);
		if (a->rta_type == IFLA_IFNAME)
			memcpy(to->name, RTA_DATA(a), MIN(len, sizeof to->name - 1));
		else if (a->rta_type == IFLA_STATS64)
			memcpy(&st, RTA_DATA(a), MIN(len, sizeof st)); /* older kernels have less of it, newer more */
		else if (a->rta_type == IFLA_LINKINFO && shows_others_again(a))
			return false;
		counts |= a->rta_type == IFLA_STATS64;
	}
	to->rx_packets = st.rx_packets;
	to->rx_missed = st.rx_missed_errors;
	to->rx_fifo = st.rx_fifo_errors;
	to->rx_dropped = st.rx_dropped;
	to->rx_errors = st.rx_errors;
	return counts && to->name[0];
}

int net_interfaces_parse(struct net_interface *to, unsigned max, unsigned *n, const void *answer, size_t len)
{
	int left = (int)MIN(len, (size_t)INT32_MAX); /* signed: aligned, the last message may end behind the datagram */
	for (const struct nlmsghdr *m = answer; NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
		struct net_interface found;
		if (m->nlmsg_type == NLMSG_DONE)
			return 0;
		if (m->nlmsg_type == NLMSG_ERROR) {
			const struct nlmsgerr *e = NLMSG_DATA(m);
			bool is_whole = m->nlmsg_len >= NLMSG_LENGTH(sizeof *e);
			return is_whole && e->error < 0 ? e->error : -EPROTO;
		}
		if (m->nlmsg_type == RTM_NEWLINK && *n < max && interface_parse(&found, m))
			to[(*n)++] = found;
	}
	return len < NLMSG_HDRLEN ? -EPROTO : 1;
}
