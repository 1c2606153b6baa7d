/* SPDX-License-Identifier: MIT
 *
 * needs: which capabilities the master needs for an input. Looks at the kernel's settings, binds nothing. Master only.
 */
#include "types.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <unistd.h>

/* A number in /proc/sys; `otherwise` where it cannot be read. */
static uint64_t setting(const char *path, uint64_t otherwise)
{
	char text[32] = "";
	uint64_t value = otherwise;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd != -1 ? read(fd, text, sizeof text - 1) : 0;
	if (fd != -1)
		close(fd);
	while (n > 0 && text[n - 1] == '\n')
		text[--n] = '\0';
	return n > 0 && text_parse_uint(text, &value) == 0 ? value : otherwise;
}

static bool has_low_port(const struct conf_input *cf)
{
	uint64_t first = setting("/proc/sys/net/ipv4/ip_unprivileged_port_start", 1024);
	for (size_t i = 0; i < cf->bind.n; i++) {
		char *host = NULL;
		uint16_t port = 0;
		bool is_low = conf_split_address(cf->bind.items[i], &host, &port) == 0 && port < first;
		free(host);
		if (is_low)
			return true;
	}
	return false;
}

uint64_t input_capabilities(const struct conf_input *cf)
{
	const struct input_type *type = input_type_of(cf);
	const struct endpoint_ops *ops = type ? type->endpoint : NULL;
	uint64_t set = ops ? ops->capabilities : 0;
	if (ops && ops->has_port && has_low_port(cf))
		set |= CAPABILITY(CAP_NET_BIND_SERVICE);
	/* SO_RCVBUFFORCE */
	if (ops && !ops->is_device && cf->receive_buffer > setting("/proc/sys/net/core/rmem_max", 0))
		set |= CAPABILITY(CAP_NET_ADMIN);
	return set;
}
