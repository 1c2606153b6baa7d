/* SPDX-License-Identifier: MIT
 *
 * dpdk_filter: the filter of a DPDK port. No kernel stands before it, so the worker runs libpcap's program over each
 * frame. Compiled by the master at the start, and by both when the brokers that are to be left out change.
 */
#include "dpdk.h"

#ifdef MILLRACE_PCAP
#include "tap.h"

#include <errno.h>

enum { SNAPLEN = 262144 };

/* tap_filter_make's text begins with what only a live handle knows: nothing goes out of a DPDK port here anyway. */
static void text_make(struct text *t, const char *filter, const char *peers)
{
	static const char first[] = "inbound and ";
	tap_filter_make(t, filter, peers);
	if (t->failed)
		return;
	size_t skip = MIN(sizeof first - 1, t->len);
	memmove(t->s, t->s + skip, t->len - skip + 1);
	t->len -= skip;
}

struct dpdk_filter {
	struct bpf_program program;
};

int dpdk_filter_make(struct dpdk_filter **f, const char *input, const char *filter, const char *peers, struct err *err)
{
	struct text t = {0};
	struct dpdk_filter *made = NULL;
	int r = 0;
	text_make(&t, filter, peers);
	if (!t.failed && t.len == 0)
		goto out; /* everything */
	made = calloc(1, sizeof *made);
	pcap_t *p = pcap_open_dead(DLT_EN10MB, SNAPLEN);
	if (t.failed || !made || !p)
		r = err_set(err, -ENOMEM, "Cannot start: no memory.");
	else if (pcap_compile(p, &made->program, t.s, 1, PCAP_NETMASK_UNKNOWN) != 0)
		r = err_set(err, -EINVAL, "Input \"%s\": filter \"%s\" is not understood: %s; see man 7 pcap-filter.",
			    input, filter, pcap_geterr(p));
	if (p)
		pcap_close(p);
out:
	text_free(&t);
	if (r != 0) {
		free(made);
		return r;
	}
	dpdk_filter_free(*f);
	*f = made;
	return 0;
}

void dpdk_filter_free(struct dpdk_filter *f)
{
	if (f)
		pcap_freecode(&f->program);
	free(f);
}

bool dpdk_filter_passes(const struct dpdk_filter *f, const struct item *item)
{
	const struct pcap_pkthdr h = {.caplen = item->len, .len = item->original_len};
	return pcap_offline_filter(&f->program, &h, (const u_char *)item->bytes) != 0;
}
#else
#include <errno.h>

int dpdk_filter_make(struct dpdk_filter **f, const char *input, const char *filter, const char *peers, struct err *err)
{
	(void)peers;
	*f = NULL;
	return filter[0]
		   ? err_set(err, -ENOTSUP,
			     "Input \"%s\": filter needs libpcap, and this millrace was built without libpcap.", input)
		   : 0;
}

void dpdk_filter_free(struct dpdk_filter *f)
{
	(void)f;
}

bool dpdk_filter_passes(const struct dpdk_filter *f, const struct item *item)
{
	(void)f, (void)item;
	return true;
}
#endif
