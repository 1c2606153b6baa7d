/* SPDX-License-Identifier: MIT
 *
 * address: numeric addresses and their text. Pure, any process. Asks no name server: names are resolve.c's.
 */
#include <net.h>

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

/* "fe80::1%eth0": a link-local address means nothing without its interface. */
static int parse_ipv6(struct sockaddr_in6 *in6, const char *host)
{
	char bare[INET6_ADDRSTRLEN];
	const char *zone = strchr(host, '%');
	size_t len = zone != NULL ? (size_t)(zone - host) : strlen(host);
	if (len >= sizeof(bare))
		return -EINVAL;
	memcpy(bare, host, len);
	bare[len] = '\0';
	if (inet_pton(AF_INET6, bare, &in6->sin6_addr) != 1)
		return -EINVAL;
	if (zone != NULL) {
		uint64_t index;
		in6->sin6_scope_id = if_nametoindex(zone + 1);
		if (in6->sin6_scope_id == 0 && text_parse_uint(zone + 1, &index) == 0 && index <= UINT32_MAX)
			in6->sin6_scope_id = (uint32_t)index;
		if (in6->sin6_scope_id == 0)
			return -EINVAL;
	}
	return 0;
}

int net_address_parse(struct net_address *a, const char *host, uint16_t port)
{
	struct net_address parsed = {0};
	struct sockaddr_in *in = (struct sockaddr_in *)&parsed.sa;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&parsed.sa;
	if (inet_pton(AF_INET, host, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		parsed.len = sizeof(*in);
	} else {
		/* "": the unspecified IPv6 address serves IPv4 too (ipv6(7)) */
		if (host[0] != '\0' && parse_ipv6(in6, host) < 0)
			return -EINVAL;
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		parsed.len = sizeof(*in6);
	}
	*a = parsed;
	return 0;
}

uint16_t net_address_port(const struct net_address *a)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)&a->sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->sa;
	return ntohs(a->sa.ss_family == AF_INET ? in->sin_port : in6->sin6_port);
}

void net_address_set_port(struct net_address *a, uint16_t port)
{
	if (a->sa.ss_family == AF_INET)
		((struct sockaddr_in *)&a->sa)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)&a->sa)->sin6_port = htons(port);
}

bool net_address_is_same(const struct net_address *a, const struct net_address *b)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)&a->sa, *in_b = (const struct sockaddr_in *)&b->sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->sa, *in6_b = (const struct sockaddr_in6 *)&b->sa;
	if (a->sa.ss_family != b->sa.ss_family)
		return false;
	if (a->sa.ss_family == AF_INET)
		return in->sin_port == in_b->sin_port && in->sin_addr.s_addr == in_b->sin_addr.s_addr;
	return in6->sin6_port == in6_b->sin6_port && in6->sin6_scope_id == in6_b->sin6_scope_id &&
	       memcmp(&in6->sin6_addr, &in6_b->sin6_addr, sizeof(in6->sin6_addr)) == 0;
}

char *net_address_format(const struct sockaddr_storage *sa, char *buf, size_t size)
{
	char text[INET6_ADDRSTRLEN] = "?";
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;
	const struct sockaddr_un *un = (const struct sockaddr_un *)sa;
	switch (sa->ss_family) {
	case AF_INET:
		inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text));
		snprintf(buf, size, "%s:%u", text, ntohs(in->sin_port));
		break;
	case AF_INET6:
		inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text));
		if (in6->sin6_scope_id != 0)
			snprintf(buf, size, "[%s%%%u]:%u", text, in6->sin6_scope_id, ntohs(in6->sin6_port));
		else
			snprintf(buf, size, "[%s]:%u", text, ntohs(in6->sin6_port));
		break;
	case AF_UNIX:
		/* a path need not end with NUL (unix(7)); an abstract one begins with it */
		if (un->sun_path[0] == '\0' && un->sun_path[1] != '\0')
			snprintf(buf, size, "@%.*s", (int)sizeof(un->sun_path) - 1, un->sun_path + 1);
		else
			snprintf(buf, size, "%.*s", (int)sizeof(un->sun_path), un->sun_path);
		break;
	default:
		snprintf(buf, size, "(family %d)", sa->ss_family);
	}
	return buf;
}
