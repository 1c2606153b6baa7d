/* SPDX-License-Identifier: MIT
 *
 * tap_filter: the filter of a capture as text for libpcap: only what comes in, without our own traffic to the brokers,
 * and with what the user asked for. PACKET_IGNORE_OUTGOING has no effect in a fanout group, so `inbound` is part of it;
 * on lo, where each packet is seen twice, it leaves one.
 */
#include "tap.h"

#include <netdb.h>

/* The peers of one family, "(host A and port P) or …"; how many. */
static unsigned add_peers(struct text *t, const char *peers, bool is_v6)
{
	char *copy = strdup(peers), *rest = copy, *peer;
	unsigned n = 0;
	while (rest && (peer = strsep(&rest, ",")) != NULL) {
		char *host;
		uint16_t port;
		if (conf_split_address(peer, &host, &port) != 0)
			continue;
		if (host[0] && (strchr(host, ':') != NULL) == is_v6)
			text_add(t, "%s(host %s and port %u)", n++ ? " or " : "", host, port);
		free(host);
	}
	t->failed |= copy == NULL;
	free(copy);
	return n;
}

/* A load behind the end of a packet makes the whole program false: what is too short for TCP is not asked, or frames
 * that were cut would be left out, too. (Lengths with Ethernet heads; the user's filter comes last, since a `vlan` in
 * it moves the offsets of what follows.) */
void tap_filter_make(struct text *t, const char *filter, const char *peers)
{
	static const struct {
		bool is_v6;
		const char *what;
	} families[] = {{false, "ip and greater 54"}, {true, "ip6 and greater 74"}};
	text_add(t, "inbound");
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		struct text list = {0};
		if (add_peers(&list, peers, families[i].is_v6))
			text_add(t, " and not (%s and tcp and (%s))", families[i].what, list.s ? list.s : "");
		t->failed |= list.failed;
		text_free(&list);
	}
	if (filter[0])
		text_add(t, " and (%s)", filter);
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
