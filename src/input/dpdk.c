/* SPDX-License-Identifier: MIT
 *
 * dpdk: the captures' row `dpdk`: options to a port (master), a slot's queue to batches (worker), what the device
 * says to counters (master). The port itself is dpdk_port.c, the queue dpdk_queue.c. A source of it has no descriptor:
 * it is polled, busy while packets come, then with rests (src/input/coalesce.c).
 */
#include "dpdk.h"

#include "capture.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>

/* One endpoint in one worker. */
struct dpdk_tap {
	struct dpdk_queue q;
	unsigned left; /* while draining: packets that are still read at most */
};

/* -- master ------------------------------------------------------------------------------------------------------ */

static size_t dpdk_check(const struct conf_input *cf, const char *path, struct text *errors)
{
	char where[CAPTURE_WHERE_BYTES];
	struct err err = {""};
	struct dpdk_filter *filter = NULL;
	int r = dpdk_filter_make(&filter, cf->name, cf->filter, "", &err);
	dpdk_filter_free(filter);
	if (r != 0)
		text_add(errors, "%s: %s\n", capture_where(cf, path, where, sizeof where), err.text);
	return r != 0;
}

static bool dpdk_is_mine(const struct conf_input *cf, const char *device)
{
	return cf->port[0] || cf->eal.n > 0 || dpdk_is_pci_address(device);
}

static int dpdk_driver_bind(struct endpoint *ep, struct err *err)
{
	const struct conf_input *cf = ep->cf;
	const struct dpdk_wish wish = {
	    .input = cf->name,
	    .port = cf->port[0] ? cf->port : ep->name,
	    .eal = cf->eal.items,
	    .n_eal = cf->eal.n,
	    .queues = ep->n_slots,
	    .rx_descriptors = (unsigned)cf->rx_descriptors,
	    .rx_burst = (unsigned)cf->rx_burst,
	    .symmetric = cf->rss == CONF_RSS_SYMMETRIC,
	    .promiscuous = cf->promiscuous,
	};
	if (ep->n_slots >= DPDK_READERS_MAX)
		return err_set(err, -EINVAL, "Input \"%s\": DPDK serves at most %d workers; lower workers.", cf->name,
			       DPDK_READERS_MAX - 1);
	ep->impl = dpdk_bind(&wish, err);
	if (!ep->impl)
		return -EINVAL;
	struct dpdk *d = ep->impl;
	for (unsigned slot = 0; slot < ep->n_slots; slot++)
		ep->fds[slot] = -1;
	ep->n_fds = ep->n_slots;
	int r = dpdk_filter_make(&d->filter, cf->name, cf->filter, "", err);
	if (r != 0)
		return r;
	log_info("input \"%s\": DPDK port %s with %u queue%s of %u descriptors%s%s", cf->name, d->name, d->queues,
		 d->queues == 1 ? "" : "s", d->descriptors,
		 d->rss.types    ? ", RSS "
		 : d->queues > 1 ? ", no RSS"
				 : "",
		 d->rss.is_symmetric ? "symmetric" : "");
	if (cf->offload_check && d->cut_at)
		log_info(
		    "input \"%s\": port %s cuts frames at %u bytes and cannot say so; those of that length count as "
		    "truncated",
		    cf->name, d->name, d->cut_at);
	return 0;
}

static void dpdk_driver_unbind(struct endpoint *ep)
{
	if (!ep->impl)
		return;
	dpdk_unbind(ep->impl);
	ep->impl = NULL;
}

static void dpdk_keep(struct endpoint *ep, unsigned slot, int *keep, size_t *n)
{
	const int *fds;
	size_t n_fds = dpdk_eal_fds(&fds);
	(void)slot;
	if (!ep->impl)
		return;
	for (size_t i = 0; i < MIN(n_fds, (size_t)ENDPOINT_KEEP_MAX); i++)
		keep[(*n)++] = fds[i];
}

/* The queue stays as it is for the next; what the dead one had taken off it beside its receive batch is lost. */
static uint64_t dpdk_died(struct endpoint *ep, unsigned slot, bool is_last,
			  struct stats_page *master_page)
{
	(void)is_last;
	unsigned index = ep->blocks[slot];
	struct stats_endpoint *st = stats_endpoint(master_page, index);
	struct dpdk *d = ep->impl;
	uint64_t unread = dpdk_death(d, slot);
	st->dropped_dead_ring_packets += unread;
	st->leaked_mbufs = d->holds[slot].leaked_mbufs;
	stats_touch(master_page, STATS_ENDPOINT, index);
	return unread;
}

/* Names of the device's own counters that tell of a loss. Their order is the driver's and does not change. */
struct xstats {
	const struct endpoint *ep;
	struct dpdk *d;
	struct stats *stats;
	struct stats_page *page;
	unsigned next;
};

static unsigned n_devices; /* blocks of all ports; master only */

static void label_xstat(void *arg, const char *name, uint64_t value)
{
	struct xstats *x = arg;
	char text[200];
	(void)value;
	if (n_devices == STATS_DEVICES_MAX)
		return;
	snprintf(text, sizeof text, "%s %s", x->d->name, name);
	stats_name(x->stats, STATS_DEVICE, n_devices++, text, x->ep->input, 0, "");
	x->d->n_xstats++;
}

static void dpdk_label(struct endpoint *ep, struct stats *stats)
{
	struct xstats x = {.ep = ep, .d = ep->impl, .stats = stats};
	x.d->first_xstat = n_devices;
	dpdk_each_xstat(x.d, label_xstat, &x);
}

static void count_xstat(void *arg, const char *name, uint64_t value)
{
	struct xstats *x = arg;
	unsigned index = x->d->first_xstat + x->next;
	(void)name;
	if (x->next++ >= x->d->n_xstats)
		return;
	stats_device(x->page, index)->value = value;
	stats_touch(x->page, STATS_DEVICE, index);
}

/* The device's numbers are of the whole port: they stand with its first queue. */
static void dpdk_count_device(struct endpoint *ep, struct stats_page *master_page)
{
	struct dpdk *d = ep->impl;
	struct dpdk_counts c;
	dpdk_count(d, &c);
	for (unsigned slot = 0; slot < ep->n_slots; slot++) {
		struct stats_endpoint *st = stats_endpoint(master_page, ep->blocks[slot]);
		st->free_mbufs = dpdk_free_mbufs(d, slot);
		st->is_up = c.is_up;
		stats_touch(master_page, STATS_ENDPOINT, ep->blocks[slot]);
	}
	struct stats_endpoint *st = stats_endpoint(master_page, ep->blocks[0]);
	st->interface_packets = c.packets + c.missed + c.no_mbuf;
	st->dropped_error_packets = c.errors;
	st->dropped_no_mbuf_packets = c.no_mbuf;
	if (d->n_sockets)
		st->dropped_ring_packets = c.missed;
	else
		st->dropped_missed_packets = c.missed;
	dpdk_each_xstat(d, count_xstat, &(struct xstats){.d = d, .page = master_page});
}

/* The brokers have changed; master and worker. What cannot be compiled leaves the filter as it is. */
static void dpdk_exclude(struct endpoint *ep, const char *peers)
{
	struct err err = {""};
	struct dpdk *d = ep->impl;
	if (dpdk_filter_make(&d->filter, ep->cf->name, ep->cf->filter, peers, &err) != 0)
		log_warn("%s", err.text);
}

/* -- worker ------------------------------------------------------------------------------------------------------ */

static int dpdk_driver_open(struct input *in, struct endpoint *ep, struct err *err)
{
	struct dpdk_tap *t = calloc(1, sizeof *t);
	struct capture_source *cs = t ? capture_source_new(in, ep, -1) : NULL;
	if (!cs) {
		free(t);
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	}
	dpdk_open(&t->q, ep->impl, in->slot);
	cs->impl = t;
	return 0;
}

static void add_items(struct capture_source *cs, const struct item *items, unsigned n)
{
	uint32_t snaplen = (uint32_t)cs->source.in->cf->snaplen;
	const struct dpdk *d = cs->source.ep->impl;
	for (unsigned i = 0; i < n; i++)
		if (d->filter && !dpdk_filter_passes(d->filter, &items[i]))
			cs->source.in->stats->filtered_packets++;
		else
			capture_refer(cs, items[i].bytes, MIN(items[i].len, snaplen), items[i].original_len,
				      items[i].time_ns, items[i].link_type);
}

static void dpdk_driver_read(struct capture_source *cs, unsigned max)
{
	struct source *s = &cs->source;
	struct dpdk_tap *t = cs->impl;
	struct receive_batch *r = s->in->receive;
	struct item items[BATCH_ITEMS];
	bool may_burst = !s->in->draining || t->left > 0;
	unsigned n = dpdk_read(&t->q, items, MIN(max, (unsigned)BATCH_ITEMS), r->slab[0], sizeof r->slab[0], may_burst);
	/* a driver may give less than it has, so only an empty burst says that nothing is there */
	s->drained = n == 0;
	if (s->in->draining)
		t->left -= MIN(t->left, n);
	add_items(cs, items, n);
	dpdk_took(&t->q);
	if (cs->n == 0)
		dpdk_give(&t->q); /* none passed the filter: nobody else will */
}

static void dpdk_driver_give(struct source *s)
{
	struct dpdk_tap *t = ((struct capture_source *)s)->impl;
	dpdk_give(&t->q);
}

/* With traffic that does not end neither would a drain: what the queue can hold is what is there. A successor goes on
 * with it itself. */
static void dpdk_drain(struct input *in)
{
	in->draining = true;
	for (struct source *s = in->sources; s; s = s->next) {
		struct dpdk_tap *t = ((struct capture_source *)s)->impl;
		t->left = in->leave == INPUT_SLOT_STAYS ? 0 : t->q.dpdk->descriptors;
	}
}

static void dpdk_end(struct capture_source *cs)
{
	struct dpdk_tap *t = cs->impl;
	struct stats_input *st = cs->source.in->stats;
	unsigned unread = t ? dpdk_close(&t->q) : 0;
	st->received_packets += unread; /* at the deadline: the rest of a burst */
	st->dropped_shutdown_packets += unread;
	free(t);
	cs->impl = NULL;
}

static void dpdk_worker_exclude(struct input *in, struct endpoint *ep, const char *peers)
{
	(void)in;
	dpdk_exclude(ep, peers);
}

static unsigned dpdk_source_read(struct source *s, struct batch *b)
{
	return capture_read(s, b, dpdk_driver_read);
}

static void dpdk_source_end(struct source *s)
{
	dpdk_end((struct capture_source *)s);
	source_free(s);
}

static const struct endpoint_ops endpoint_dpdk = {
    .name = "dpdk",
    .is_device = true,
    /* hugepages and their physical addresses, VFIO's memory, I/O ports of UIO, sockets and taps of virtual devices */
    .capabilities = CAPABILITY(CAP_SYS_ADMIN) | CAPABILITY(CAP_IPC_LOCK) | CAPABILITY(CAP_SYS_RAWIO) |
		    CAPABILITY(CAP_NET_ADMIN) | CAPABILITY(CAP_NET_RAW),
    .check = dpdk_check,
    .bind = dpdk_driver_bind,
    .unbind = dpdk_driver_unbind,
    .keep = dpdk_keep,
    .died = dpdk_died,
    .label = dpdk_label,
    .count = dpdk_count_device,
    .exclude = dpdk_exclude,
};

const struct input_type input_dpdk = {
    .name = "dpdk",
    .is_packets = true,
    .is_paced = true,
    .is_fixed = true,
    .endpoint = &endpoint_dpdk,
    .is_mine = dpdk_is_mine,
    .open_endpoint = dpdk_driver_open,
    .drain = dpdk_drain,
    .read = dpdk_source_read,
    .give = dpdk_driver_give,
    .end = dpdk_source_end,
    .exclude = dpdk_worker_exclude,
};
