/* SPDX-License-Identifier: MIT
 *
 * fuzz_host: what the kernel says of the host. The first byte of the input chooses the parser; the rest is its text, or the
 * datagram of rtnetlink, alone in its memory. What must hold: nothing is read beyond it, and what is found is sound.
 */
#include <net.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "fuzz_host: %s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                  \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

static void interfaces(const char *bytes, size_t len)
{
	enum { ROOM = 3 };
	struct net_interface found[ROOM];
	unsigned n = 0;
	int r = net_interfaces_parse(found, ROOM, &n, bytes, len);
	MUST(r <= 1 && n <= ROOM);
	for (unsigned i = 0; i < n; i++)
		MUST(found[i].name[0] && memchr(found[i].name, '\0', sizeof found[i].name));
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	if (size < 1)
		return 0;
	size_t len = size - 1;
	char *text = malloc(len + 1);
	memcpy(text, input + 1, len);
	text[len] = '\0';
	struct net_udp_totals totals;
	struct net_udp_socket socket_of;
	struct proc_usage usage;
	switch (input[0] % 5) {
	case 0:
		net_udp_totals_parse(&totals, text);
		break;
	case 1:
		net_udp6_totals_parse(&totals, text);
		break;
	case 2:
		net_udp_socket_parse(&socket_of, text);
		break;
	case 3:
		proc_usage_parse(text, &usage);
		break;
	default: {
		char *exact = malloc(len ? len : 1); /* without the NUL */
		memcpy(exact, text, len);
		interfaces(exact, len);
		free(exact);
	}
	}
	free(text);
	return 0;
}
