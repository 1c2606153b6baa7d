/* SPDX-License-Identifier: MIT
 *
 * The list of datagrams: loaded from a capture file (pcap or pcapng, "-" is stdin), grouped into bigger ones if asked,
 * given out pass after pass. All payloads are held in memory, so that sending costs no reading; 4 GiB at most.
 */
#include <errno.h>
#include <pcap/pcap.h>
#include <string.h>

#include "replay.h"

static uint32_t count_lines(const char *bytes, size_t len)
{
	uint32_t n = 0;

	for (const char *c = bytes, *end = bytes + len; c < end; n++) {
		const char *nl = memchr(c, '\n', (size_t)(end - c));

		c = nl ? nl + 1 : end;
	}
	return n;
}

/* The arena moves while it grows, so until the list is complete a datagram's bytes are an offset. */
static void list_fix(struct replay_source *src)
{
	for (size_t i = 0; i < src->n; i++)
		src->list[i].bytes = src->arena.s + (uintptr_t)src->list[i].bytes;
}

int replay_list_add(struct replay_source *src, const struct replay_opts *o, const char *bytes, size_t len,
		    uint64_t at_ns)
{
	/* A stream's or a group's lines need their newlines. */
	bool add_nl = (o->stream || o->group_bytes) && len && bytes[len - 1] != '\n';
	uint32_t lines = count_lines(bytes, len);
	struct datagram *last = src->n ? &src->list[src->n - 1] : NULL;

	if (!len && (o->stream || o->group_bytes))
		return 0;
	if (src->arena.len + len + 1 > UINT32_MAX)
		return -EFBIG;
	if (!o->group_bytes || !last || last->len + len + add_nl > o->group_bytes) {
		if (src->n == src->size) {
			size_t size = src->size ? src->size * 2 : 1024;
			struct datagram *list = reallocarray(src->list, size, sizeof(*list));

			if (!list)
				return -ENOMEM;
			src->list = list;
			src->size = size;
		}
		last = &src->list[src->n++];
		*last = (struct datagram){.bytes = (const char *)(uintptr_t)src->arena.len, .at_ns = at_ns};
	}
	text_add_bytes(&src->arena, bytes, len);
	if (add_nl)
		text_add_bytes(&src->arena, "\n", 1);
	last->len += (uint32_t)(len + add_nl);
	last->lines += lines;
	return src->arena.failed ? -ENOMEM : 0;
}

/* A payload that is longer than a group may be is cut at its line ends; a line that is longer stays whole. */
static int add_payload(struct replay_source *src, const struct replay_opts *o, const char *bytes, size_t len,
		       uint64_t at_ns)
{
	while (o->group_bytes && len > o->group_bytes) {
		size_t part = o->group_bytes;
		int rc;

		while (part && bytes[part - 1] != '\n')
			part--;
		while (!part || (bytes[part - 1] != '\n' && part < len))
			part++;
		rc = replay_list_add(src, o, bytes, part, at_ns);
		if (rc)
			return rc;
		bytes += part;
		len -= part;
	}
	return !len && o->group_bytes ? 0 : replay_list_add(src, o, bytes, len, at_ns);
}

static int take_packets(struct replay_source *src, const struct replay_opts *o, pcap_t *pcap, struct err *err)
{
	int linktype = pcap_datalink(pcap), rc;
	struct pcap_pkthdr *h;
	const unsigned char *frame;
	uint64_t first_ns = 0, last_ns = 0;

	while ((rc = pcap_next_ex(pcap, &h, &frame)) == 1) {
		const char *payload = "";
		size_t len = 0;
		unsigned port = 0;
		uint64_t at_ns = (uint64_t)h->ts.tv_sec * 1000000000 + (uint64_t)h->ts.tv_usec;
		enum frame_result got = replay_frame_payload(linktype, frame, h->caplen, &payload, &len, &port);

		src->packets++;
		src->skipped_fragments += got == FRAME_FRAGMENT;
		src->skipped_truncated += got == FRAME_TRUNCATED;
		src->skipped_other += got == FRAME_OTHER || (got == FRAME_PAYLOAD && o->port && o->port != port);
		if (got != FRAME_PAYLOAD || (o->port && o->port != port))
			continue;
		/* Merged files have times that go back: such a packet is due at once. */
		if (!src->payloads++)
			first_ns = last_ns = at_ns;
		last_ns = MAX(last_ns, at_ns);
		rc = add_payload(src, o, payload, len, last_ns - first_ns);
		if (rc == -EFBIG)
			return err_set(err, rc, "\"%s\" holds more than 4 GiB of payload: cut it with editcap -c",
				       o->file);
		if (rc)
			return err_set(err, rc, "no memory for the payloads of \"%s\"", o->file);
	}
	if (rc == PCAP_ERROR)
		return err_set(err, -EIO, "\"%s\": %s", o->file, pcap_geterr(pcap));
	/* A pass lasts one mean gap longer than from first to last, so that repeating keeps the rate. */
	src->span_ns = last_ns - first_ns;
	if (src->payloads > 1)
		src->span_ns += src->span_ns / (src->payloads - 1);
	return 0;
}

int replay_pcap_load(struct replay_source *src, const struct replay_opts *o, struct err *err)
{
	char text[PCAP_ERRBUF_SIZE];
	pcap_t *pcap = pcap_open_offline_with_tstamp_precision(o->file, PCAP_TSTAMP_PRECISION_NANO, text);
	int rc;

	if (!pcap) /* libpcap's text has the file's name where the file is the trouble */
		return err_set(err, -EIO, "cannot read \"%s\": %s", o->file, text);
	if (!replay_frame_linktype_known(pcap_datalink(pcap)))
		rc = err_set(err, -EINVAL,
			     "\"%s\" has link type %d: known are Ethernet, Linux cooked (SLL, SLL2), raw IP, loopback",
			     o->file, pcap_datalink(pcap));
	else
		rc = take_packets(src, o, pcap, err);
	pcap_close(pcap);
	if (!rc && !src->n)
		rc = err_set(err, -ENODATA, "\"%s\" holds no UDP payload%s (of %llu packets)", o->file,
			     o->port ? " for this --port" : "", (unsigned long long)src->packets);
	if (rc)
		return rc;
	list_fix(src);
	src->passes_left = o->repeat ? o->repeat : UINT64_MAX;
	return 0;
}

/* The last datagram of --lines N may hold more lines than are left. */
static void trim(struct datagram *d, uint64_t lines)
{
	const char *c = d->bytes;

	for (uint64_t i = 0; i < lines; i++)
		c = (const char *)memchr(c, '\n', d->len - (size_t)(c - d->bytes)) + 1;
	d->len = (uint32_t)(c - d->bytes);
	d->lines = (uint32_t)lines;
}

uint64_t replay_source_at_ns(const struct replay_source *src)
{
	return src->numbers ? 0 : src->list[src->next].at_ns + src->pass * src->span_ns;
}

size_t replay_source_take(struct replay_source *src, struct datagram *d, size_t max, uint64_t until_at_ns)
{
	size_t n = 0;

	if (src->numbers)
		return replay_numbers_take(src, d, max);
	while (n < max && src->passes_left && src->lines_left) {
		d[n] = src->list[src->next];
		d[n].at_ns += src->pass * src->span_ns;
		if (n && d[n].at_ns > until_at_ns)
			break;
		if (d[n].lines > src->lines_left)
			trim(&d[n], src->lines_left);
		if (src->lines_left != UINT64_MAX)
			src->lines_left -= d[n].lines;
		n++;
		if (++src->next == src->n) {
			src->next = 0;
			src->pass++;
			if (src->passes_left != UINT64_MAX)
				src->passes_left--;
		}
	}
	return n;
}

void replay_source_fini(struct replay_source *src)
{
	replay_lines_fini(src);
	free(src->list);
	text_free(&src->arena);
}
