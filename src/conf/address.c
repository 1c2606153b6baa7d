/* SPDX-License-Identifier: MIT
 *
 * address: HOST:PORT[:TRANSPORT] apart, with a sentence for each way to get it wrong. Pure: resolves nothing, so a host
 * name is only looked at for its letters.
 */
#include "load.h"
#include "mem.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>
#include <sys/un.h>

enum { CONF_LABEL_NAME_MAX = 100 }; /* what is shown of a backend's name */

static const char *const expected[] = {
	[CONF_ADDRESS_BIND] = "allowed is HOST:PORT, [IPV6]:PORT or :PORT",
	[CONF_ADDRESS_BACKEND] = "allowed is HOST:PORT or [IPV6]:PORT, with :tcp or :udp behind",
	[CONF_ADDRESS_HTTP] = "allowed is HOST:PORT, [IPV6]:PORT, :PORT, auto or off",
};

/* "fe80::1%eth0": the interface that a link-local address is of. */
static const char *ipv6_fault(const char *host)
{
	char bare[INET6_ADDRSTRLEN];
	struct in6_addr v6;
	const char *zone = strchr(host, '%');
	snprintf(bare, sizeof(bare), "%.*s", zone ? (int)(zone - host) : (int)strlen(host), host);
	if (inet_pton(AF_INET6, bare, &v6) != 1 || (zone && strlen(host) - strlen(zone) >= sizeof(bare)))
		return "has no IPv6 address between [ and ]";
	if (zone && (!zone[1] || strlen(zone + 1) >= IF_NAMESIZE || strpbrk(zone + 1, "/ %")))
		return "has no interface behind the %";
	if (!zone && IN6_IS_ADDR_LINKLOCAL(&v6))
		return "has a link-local address without its interface, as in [fe80::1%eth0]";
	return NULL;
}

/* The letters of a host name (RFC 1123, and "_", which people use), or an IPv4 address when it looks like one. */
static bool is_host(const char *s)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
	struct in_addr v4;
	if (s[strspn(s, letters)] || s[0] == '-' || s[0] == '.' || strstr(s, ".."))
		return false;
	return s[strspn(s, "0123456789.")] || inet_pton(AF_INET, s, &v4) == 1;
}

/* The part before the port; *rest is what follows it, from ":" on. NULL, or what is wrong. */
static const char *split_host(const char *s, struct conf_address *a, const char **rest)
{
	bool in_brackets = s[0] == '[';
	const char *end = in_brackets ? strchr(s, ']') : strchr(s, ':');
	if (strstr(s, "://"))
		return "has a scheme before the host";
	if (!end)
		return in_brackets ? "has no closing ]" : "has no port";
	const char *host = s + in_brackets;
	size_t len = (size_t)(end - host);
	if (len >= sizeof(a->host))
		return "has too long a host";
	memcpy(a->host, host, len);
	a->host[len] = '\0';
	*rest = end + in_brackets;
	if (in_brackets)
		return ipv6_fault(a->host);
	return len == 0 || is_host(a->host) ? NULL : "has a host that is neither an IPv4 address nor a name";
}

/* ":PORT" and what follows. NULL, or what is wrong. */
static const char *split_port(const char *rest, enum conf_address_kind kind, struct conf_address *a)
{
	char digits[8];
	uint64_t port;
	if (rest[0] != ':')
		return "has no port";
	size_t len = strcspn(++rest, ":");
	const char *transport = rest + len;
	if (memchr(rest, '/', len))
		return "has a / behind the port";
	if (len == 0 || len >= sizeof(digits))
		return len ? "has a port above 65535" : "has no port";
	memcpy(digits, rest, len);
	digits[len] = '\0';
	if (text_parse_uint(digits, &port) != 0)
		return "has a port that is no number";
	if ((port == 0 && kind != CONF_ADDRESS_HTTP) || port > 65535)
		return port ? "has a port above 65535" : "has port 0, which is none of 1 to 65535";
	a->port = (uint16_t)port;
	a->transport = CONF_TRANSPORT_TCP;
	if (!*transport)
		return NULL;
	if (kind != CONF_ADDRESS_BACKEND)
		return "has something behind the port";
	if (strcasecmp(transport, ":udp") == 0)
		a->transport = CONF_TRANSPORT_UDP;
	else if (strcasecmp(transport, ":tcp") != 0)
		return "has something behind the port that is neither :tcp nor :udp";
	return NULL;
}

int conf_address_parse(const char *s, enum conf_address_kind kind, struct conf_address *a, struct text *why)
{
	struct in6_addr v6;
	char shown[120];
	const char *rest, *wrong = split_host(s, a, &rest);
	if (!wrong)
		wrong = split_port(rest, kind, a);
	if (!wrong && kind == CONF_ADDRESS_BACKEND && !a->host[0])
		wrong = "has no host";
	const char *last = strrchr(s, ':');
	if (wrong && s[0] != '[' && last && last != strchr(s, ':')) {
		char host[INET6_ADDRSTRLEN];
		snprintf(host, sizeof(host), "%.*s", (int)MIN(last - s, INET6_ADDRSTRLEN - 1), s);
		if (inet_pton(AF_INET6, host, &v6) == 1 || inet_pton(AF_INET6, s, &v6) == 1)
			wrong = "has an IPv6 address without brackets";
	}
	if (!wrong)
		return 0;
	if (why)
		text_add(why, "\"%s\" %s; %s", text_escape(shown, sizeof(shown), s, strlen(s)), wrong, expected[kind]);
	return -EINVAL;
}

static int split(const char *address, enum conf_address_kind kind, char **host, uint16_t *port)
{
	struct conf_address a;
	if (conf_address_parse(address, kind, &a, NULL) != 0)
		return -EINVAL;
	char *copy = conf_mem_copy(a.host, strlen(a.host));
	if (!copy)
		return -ENOMEM;
	*host = copy;
	*port = a.port;
	return 0;
}

int conf_split_address(const char *address, char **host, uint16_t *port)
{
	return split(address, CONF_ADDRESS_BIND, host, port);
}

int conf_http_address(const struct conf *cf, char **host, uint16_t *port, bool *may_lack)
{
	if (strcmp(cf->http, "off") == 0)
		return -ENOENT;
	*may_lack = strcmp(cf->http, "auto") == 0;
	return split(*may_lack ? CONF_HTTP_AUTO : cf->http, CONF_ADDRESS_HTTP, host, port);
}

char *conf_address_key(const struct conf_address *a, char *buf, size_t size)
{
	struct in6_addr v6;
	char host[sizeof(a->host)];
	snprintf(host, sizeof(host), "%s", a->host);
	if (inet_pton(AF_INET6, host, &v6) == 1)
		inet_ntop(AF_INET6, &v6, host, sizeof(host));
	for (char *p = host; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	snprintf(buf, size, "%s %u %s", host, a->port, a->transport == CONF_TRANSPORT_UDP ? "udp" : "tcp");
	return buf;
}

char *conf_backend_address(const struct conf_backend *be, char *buf, size_t size)
{
	snprintf(buf, size, strchr(be->host, ':') ? "[%s]:%u" : "%s:%u", be->host, be->port);
	return buf;
}

char *conf_backend_label(const struct conf_backend *be, char *buf, size_t size)
{
	conf_backend_address(be, buf, size);
	size_t len = strlen(buf);
	if (be->name && be->name[0] && strcmp(be->name, buf) != 0)
		snprintf(buf + len, size - len, " (%.*s)", (int)MIN(strlen(be->name), CONF_LABEL_NAME_MAX), be->name);
	return buf;
}

const char *conf_path_fault(const char *path)
{
	if (!*path)
		return "is empty; allowed is the path of a socket file";
	if (path[0] == '@' && !path[1])
		return "is an abstract name without letters; allowed is @NAME, or the path of a socket file";
	if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return "is too long; the path of a socket file has at most 107 bytes";
	for (const char *p = path; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			return "has control characters in it; allowed is the path of a socket file";
	return NULL;
}
