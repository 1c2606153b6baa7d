/* SPDX-License-Identifier: MIT
 *
 * hostport: "HOST:PORT" and "[IPv6]:PORT" to a socket address and back, for the test programs in this folder.
 * Resolves names with getaddrinfo, which may block: the daemon's own addresses are src/net's, never these.
 */
#ifndef TOOLS_HOSTPORT_H
#define TOOLS_HOSTPORT_H

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base.h"

/* "127.0.0.1:9001", "[::1]:9001" plus brackets and a byte. */
enum { HOSTPORT_BYTES = NI_MAXHOST + NI_MAXSERV + 4 };

/* 0, or -EINVAL with a sentence. The address is numeric or a name; the port is a number (0 is allowed). */
static inline int hostport_resolve(const char *s, int socktype, bool passive, struct sockaddr_storage *addr,
				   socklen_t *addr_len, struct err *err)
{
	struct addrinfo hints = {.ai_socktype = socktype, .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
	struct addrinfo *found = NULL;
	const char *colon = strrchr(s, ':');
	char host[NI_MAXHOST];
	uint64_t port = 0;
	size_t len;
	int rc;

	if (!colon || text_parse_uint(colon + 1, &port) || port > 65535)
		return err_set(err, -EINVAL,
			       "\"%s\" is not an address: write HOST:PORT or [IPV6]:PORT, port 0 to 65535", s);
	len = (size_t)(colon - s);
	if (len >= 2 && s[0] == '[' && colon[-1] == ']') {
		s++;
		len -= 2;
	} else if (memchr(s, ':', len)) {
		return err_set(err, -EINVAL, "\"%s\" is ambiguous: write an IPv6 address in brackets, [IPV6]:PORT", s);
	}
	if (!len || len >= sizeof(host))
		return err_set(err, -EINVAL, "\"%s\" has no usable host before the port", s);
	memcpy(host, s, len);
	host[len] = '\0';
	rc = getaddrinfo(host, colon + 1, &hints, &found);
	if (rc)
		return err_set(err, -EINVAL, "\"%s\" does not resolve: %s", host, gai_strerror(rc));
	memcpy(addr, found->ai_addr, found->ai_addrlen);
	*addr_len = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

/* Numeric text of an address into buf; returns buf. */
static inline char *hostport_format(char *buf, size_t size, const struct sockaddr_storage *addr, socklen_t addr_len)
{
	char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";

	getnameinfo((const struct sockaddr *)addr, addr_len, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(buf, size, addr->ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
	return buf;
}

#endif
