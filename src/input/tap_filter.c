/* SPDX-License-Identifier: MIT
 *
 * tap_filter: the filter of a capture, as text for libpcap and as the program that libpcap makes of it:
 * only what comes in, without our own traffic to the brokers, and with what the user asked for.
 * PACKET_IGNORE_OUTGOING has no effect in a fanout group, so `inbound` is part of it; on lo, where each
 * packet is seen twice, it leaves one.
 */
#include "tap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netdb.h>

enum { COOKED_BYTES = 16, COOKED_TYPE_AT = 0, COOKED_PROTOCOL_AT = 14 }; /* the head that libpcap would make */

/* -- text ---------------------------------------------------------------------------------------------------------- */

/* The peers of one family, "(host A and port P) or …"; how many. Workers name them, and the master
 * compiles this as root: only what is an address goes in. */
static unsigned add_peers(struct text *t, const char *peers, bool is_v6)
{
	char *copy = strdup(peers), *rest = copy, *peer;
	unsigned n = 0;
	while (rest && (peer = strsep(&rest, ",")) != NULL) {
		unsigned char address[16];
		char *host;
		uint16_t port;
		if (conf_split_address(peer, &host, &port) != 0)
			continue;
		if (inet_pton(is_v6 ? AF_INET6 : AF_INET, host, address) == 1)
			text_add(t, "%s(host %s and port %u)", n++ ? " or " : "", host, port);
		free(host);
	}
	t->failed |= copy == NULL;
	free(copy);
	return n;
}

/* A load behind the end of a packet makes the whole program false: what is too short for TCP is not
 * asked, or frames that were cut would be left out, too. The lengths are enough for the ports behind
 * an Ethernet head, and no more than a bare acknowledgement has on "any", where the kernel counts
 * without a head. (The user's filter comes last, since a `vlan` in it moves the offsets of what
 * follows.) */
void tap_filter_make(struct text *t, const char *filter, const char *peers)
{
	static const struct {
		bool is_v6;
		const char *what;
	} families[] = {{false, "ip and greater 40"}, {true, "ip6 and greater 60"}};
	text_add(t, "inbound");
	for (size_t i = 0; i < ARRAY_LEN(families); i++) {
		struct text list = {0};
		if (add_peers(&list, peers, families[i].is_v6))
			text_add(t, " and not (%s and tcp and (%s))", families[i].what,
				 list.s ? list.s : "");
		t->failed |= list.failed;
		text_free(&list);
	}
	if (filter[0])
		text_add(t, " and (%s)", filter);
}

/* -- program ------------------------------------------------------------------------------------------------------- */

static int say_failure(const struct endpoint *ep, pcap_t *p, int code,
		       struct err *err)
{
	const char *more = pcap_geterr(p), *what = pcap_statustostr(code);
	int r = code == PCAP_ERROR_PERM_DENIED      ? -EPERM
		: code == PCAP_ERROR_NO_SUCH_DEVICE ? -ENODEV
		: code == PCAP_ERROR_IFACE_NOT_UP   ? -ENETDOWN
						    : -EIO;
	return err_set(err, r, "Input \"%s\": cannot capture on interface %s: %s%s%s%s.",
		       ep->cf->name, ep->name,
		       what, more[0] && strcmp(more, what) ? ": " : "", strcmp(more,
									       what) ? more : "",
		       r == -EPERM ? "; start as root, or with CAP_NET_RAW" : "");
}

/* A handle that reads nothing, with the smallest ring. It is a live one, since only then libpcap
 * knows of the kernel that it takes VLAN tags out of frames, and compiles `vlan` accordingly. */
static int open_device(const struct endpoint *ep, pcap_t **handle, struct err *err)
{
	char why[PCAP_ERRBUF_SIZE] = "";
	pcap_t *p = pcap_create(ep->name, why);
	if (p == NULL)
		return err_set(err, -ENOMEM, "Input \"%s\": interface %s: %s.", ep->cf->name,
			       ep->name, why);
	pcap_set_snaplen(p, (int)ep->cf->snaplen);
	pcap_set_timeout(p, 1000);
	pcap_set_buffer_size(p, RING_BLOCK_BYTES);
	int code = pcap_activate(p);
	int r = code < 0 ? say_failure(ep, p, code, err) : 0;
	if (r != 0)
		pcap_close(p);
	else
		*handle = p;
	return r;
}

/* What libpcap does to a program before it goes to the kernel: offsets into the cooked head, which
 * the kernel has not, are moved. */
static void adapt(struct bpf_program *program)
{
	for (unsigned i = 0; i < program->bf_len; i++) {
		struct bpf_insn *insn = &program->bf_insns[i];
		unsigned class = BPF_CLASS(insn->code), mode = BPF_MODE(insn->code);
		bool is_load = class == BPF_LD && (mode == BPF_ABS || mode == BPF_IND);
		if ((int32_t)insn->k < 0 || !(is_load || (class == BPF_LDX && mode == BPF_MSH)))
			continue;
		if (insn->k >= COOKED_BYTES)
			insn->k -= COOKED_BYTES;
		else if (insn->k == COOKED_TYPE_AT)
			insn->k = (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE);
		else if (insn->k == COOKED_PROTOCOL_AT)
			insn->k = (uint32_t)(SKF_AD_OFF + SKF_AD_PROTOCOL);
	}
}

static int compile(struct tap_filter *f, const struct endpoint *ep,
		   struct err *err)
{
	pcap_t *p = NULL;
	int r = open_device(ep, &p, err);
	if (r != 0)
		return r;
	f->link_type = (uint32_t)pcap_datalink(p);
	if (pcap_compile(p, &f->program, f->text.s, 1, PCAP_NETMASK_UNKNOWN) == -1)
		r = err_set(err, -EINVAL, "Input \"%s\": filter \"%s\": %s.", ep->cf->name,
			    f->text.s, pcap_geterr(p));
	else if (f->link_type == DLT_LINUX_SLL)
		adapt(&f->program);
	pcap_close(p);
	return r;
}

void tap_filter_fini(struct tap_filter *f)
{
	if (f->program.bf_insns != NULL)
		pcap_freecode(&f->program);
	text_free(&f->text);
	*f = (struct tap_filter){.number = f->number};
}

int tap_filter_renew(struct tap *tap, const struct endpoint *ep, struct err *err)
{
	struct tap_filter *old = &tap->filter;
	struct tap_filter f = {.ifindex = tap->is_any ? 0 : if_nametoindex(ep->name),
			       .snaplen = (uint32_t)ep->cf->snaplen,
			       .number = old->number + 1};
	tap_filter_make(&f.text, ep->cf->filter, tap->peers.s != NULL ? tap->peers.s : "");
	int r = 0;
	if (f.text.failed)
		r = err_set(err, -ENOMEM, "Input \"%s\": no memory for its filter.", ep->cf->name);
	bool is_same = old->text.s != NULL && f.ifindex == old->ifindex && f.snaplen == old->snaplen && r == 0 &&
		       strcmp(f.text.s, old->text.s) == 0;
	if (r == 0 && !is_same)
		r = compile(&f, ep, err);
	if (r != 0 || is_same) {
		tap_filter_fini(&f);
		return r;
	}
	tap_filter_fini(old);
	*old = f;
	return 0;
}

/* -- who the peers are --------------------------------------------------------------------------------------------- */

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
		if (getnameinfo(a->ai_addr, a->ai_addrlen, numeric, sizeof numeric, NULL, 0,
				NI_NUMERICHOST) == 0)
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
