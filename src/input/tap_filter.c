/* SPDX-License-Identifier: MIT
 *
 * tap_filter: the filter of a capture as text for libpcap: only what comes in, without our own traffic to the brokers,
 * and with what the user asked for. PACKET_IGNORE_OUTGOING has no effect in a fanout group, so `inbound` is part of it;
 * on lo, where each packet is seen twice, it leaves one.
 */
#include "tap.h"

#include <netdb.h>

/* The user's filter comes last: a `vlan` in it moves the offsets of what follows. */
void tap_filter_make(struct text *t, const char *filter, const char *peers)
{
	const char *before = " and not (tcp and (";
	char *copy = strdup(peers), *rest = copy, *peer;
	text_add(t, "inbound");
	while (rest && (peer = strsep(&rest, ",")) != NULL) {
		char *host;
		uint16_t port;
		if (conf_split_address(peer, &host, &port) != 0)
			continue;
		if (host[0]) {
			text_add(t, "%s(host %s and port %u)", before, host, port);
			before = " or ";
		}
		free(host);
	}
	if (before[1] == 'o')
		text_add(t, "))");
	if (filter[0])
		text_add(t, " and (%s)", filter);
	t->failed |= copy == NULL;
	free(copy);
}

static void add_address(struct text *t, const char *host, const char *port)
{
	text_add(t, strchr(host, ':') ? "%s[%s]:%s" : "%s%s:%s", t->len ? "," : "", host, port);
}

static bool look_up(const char *host, const char *port, struct text *peers)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	char numeric[NI_MAXHOST];
	if (getaddrinfo(host, port, &hints, &found) != 0)
		return false;
	for (struct addrinfo *a = found; a; a = a->ai_next)
		if (getnameinfo(a->ai_addr, a->ai_addrlen, numeric, sizeof numeric, NULL, 0, NI_NUMERICHOST) == 0)
			add_address(peers, numeric, port);
	freeaddrinfo(found);
	return true;
}

/* "SECURITY://HOST:PORT", all but the host may be left out. */
static void add_server(char *server, struct text *peers, struct text *unknown)
{
	char *scheme = strstr(server, "://"), *host, port[8];
	uint16_t number = 9092;
	server = scheme ? scheme + 3 : server;
	while (*server == ' ')
		server++;
	if (conf_split_address(server, &host, &number) != 0)
		host = strdup(server);
	snprintf(port, sizeof port, "%u", number);
	if (host && host[0] && !look_up(host, port, peers))
		text_add(unknown, "%s%s", unknown->len ? ", " : "", host);
	free(host);
}

void tap_peers(const struct conf *cf, struct text *peers, struct text *unknown)
{
	for (size_t i = 0; i < cf->n_outputs; i++) {
		const struct conf_map *map = &cf->outputs[i].properties;
		for (size_t k = 0; cf->outputs[i].type == CONF_OUTPUT_TYPE_KAFKA && k < map->n; k++) {
			if (strcmp(map->keys[k], "bootstrap.servers") != 0 &&
			    strcmp(map->keys[k], "metadata.broker.list") != 0)
				continue;
			char *copy = strdup(map->values[k]), *rest = copy, *server;
			while (rest && (server = strsep(&rest, ",")) != NULL)
				add_server(server, peers, unknown);
			free(copy);
		}
	}
}
