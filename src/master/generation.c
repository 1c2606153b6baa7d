/* SPDX-License-Identifier: MIT
 *
 * generation: what one configuration needs before workers can be forked: inputs with references to their endpoints,
 * outputs with what workers share, and the place of each in the counters, which it keeps as long as it has its name. Made
 * at the start and at each reload beside the one in effect; generation_change.c gives it up without a trace, or puts it
 * into effect. Master only.
 */
#include "master.h"

#include <errno.h>
#include <string.h>

/* -- places in the counters ---------------------------------------------------------------------------------------- */

static int place(struct master *m, enum stats_scope scope, const char *name, unsigned parent, const char *unit,
		 struct err *err)
{
	int index = stats_place(m->stats, scope, name, parent, unit);
	if (index == -1)
		return err_set(err, -ENOSPC, "There is no counter block left for %s %s; restart millrace.",
			       stats_scope_word(scope), name);
	stats_name(m->stats, scope, (unsigned)index, name, parent, 0, unit);
	return index;
}

static const char *unit_of(const struct output *out)
{
	bool is_packets = out->cf->format == CONF_FORMAT_PACKET || out->cf->format == CONF_FORMAT_PCAP;
	return out->wants == OUTPUT_WANTS_LINES ? "lines" : is_packets ? "packets" : "datagrams";
}

static void name_kafka(struct master *m, const struct output *out)
{
	char name[16];
	stats_name(m->stats, STATS_KAFKA, out->index, out->cf->name, out->index, 0, "messages");
	for (unsigned i = 0; i < STATS_BROKERS_MAX; i++) { /* which ones there are is seen in the pages */
		snprintf(name, sizeof name, "%u", i);
		stats_name(m->stats, STATS_BROKER, out->index * STATS_BROKERS_MAX + i, name, out->index, 0, "");
	}
}

static uint64_t feeds_of(const struct master *m, const struct input *in)
{
	uint64_t feeds = 0;
	for (size_t k = 0; k < in->cf->n_outputs; k++)
		feeds |= UINT64_C(1) << m->outputs[in->cf->outputs[k]->index].index;
	return feeds;
}

void generation_name(struct master *m)
{
	for (size_t i = 0; i < m->n_inputs; i++) {
		struct input *in = &m->inputs[i];
		stats_name(m->stats, STATS_INPUT, in->index, in->cf->name, 0, feeds_of(m, in), conf_word(in->cf->type));
	}
	registry_name(&m->registry);
	for (size_t i = 0; i < m->n_outputs; i++) {
		const struct output *out = &m->outputs[i];
		stats_name(m->stats, STATS_OUTPUT, out->index, out->cf->name, 0, 0, unit_of(out));
		if (out->cf->type == CONF_OUTPUT_TYPE_KAFKA)
			name_kafka(m, out);
	}
	stats_publish(m->page);
}

/* Who feeds whom may be another from now on; the ledger of what was is closed by one number. */
void generation_mark_page(struct master *m, struct stats_page *page)
{
	uint64_t fed[STATS_OUTPUTS_MAX][3] = {{0}};
	unsigned n_outputs = MIN(stats_page_used(page, STATS_OUTPUT), stats_entries(m->stats, STATS_OUTPUT));
	for (unsigned i = 0; i < stats_page_used(page, STATS_INPUT); i++) {
		stats_input(page, i)->feeds = 0;
		stats_touch(page, STATS_INPUT, i);
	}
	for (size_t i = 0; i < m->n_inputs; i++) {
		struct stats_input *st = stats_input(page, m->inputs[i].index);
		st->feeds = feeds_of(m, &m->inputs[i]);
		stats_touch(page, STATS_INPUT, m->inputs[i].index);
		for (unsigned o = 0; o < STATS_OUTPUTS_MAX; o++)
			if (st->feeds >> o & 1) {
				fed[o][0] += st->to_outputs_lines;
				fed[o][1] += st->to_outputs_packets;
				fed[o][2] += st->to_outputs_datagrams;
				n_outputs = MAX(n_outputs, o + 1);
			}
	}
	for (unsigned o = 0; o < n_outputs; o++) {
		struct stats_output *st = stats_output(page, o);
		const char *unit = stats_entry(m->stats, STATS_OUTPUT, o)->unit;
		unsigned k = strcmp(unit, "lines") == 0 ? 0 : strcmp(unit, "packets") == 0 ? 1 : 2;
		st->rebased_records = fed[o][k] - st->offered_records;
		stats_touch(page, STATS_OUTPUT, o);
	}
	stats_publish(page);
}

/* -- outputs --------------------------------------------------------------------------------------------------------- */

/* The same thing as before, with perhaps other options. */
const struct output *generation_former(const struct master *m, const struct output *out)
{
	for (size_t i = 0; i < m->n_outputs; i++)
		if (strcmp(m->outputs[i].cf->name, out->cf->name) == 0 && m->outputs[i].cf->type == out->cf->type &&
		    strcmp(unit_of(&m->outputs[i]), unit_of(out)) == 0)
			return &m->outputs[i];
	return NULL;
}

static bool has_same_backends(const struct output *a, const struct output *b)
{
	bool same = a->n_backends == b->n_backends && a->cf->hash == b->cf->hash && a->cf->n_shards == b->cf->n_shards;
	if (same && a->cf->n_shards)
		same = memcmp(a->cf->shards, b->cf->shards, a->cf->n_shards * sizeof *a->cf->shards) == 0;
	for (unsigned i = 0; same && i < a->n_backends; i++) {
		const struct conf_backend *x = &a->cf->backends[i], *y = &b->cf->backends[i];
		same = conf_backend_is_same(x, y) && x->weight <= y->weight && x->weight >= y->weight;
	}
	return same;
}

static bool is_kafka(const struct output *out)
{
	return out->cf->type == CONF_OUTPUT_TYPE_KAFKA;
}

static bool is_same_backend(const struct output *old, unsigned k, const struct output *out, unsigned i)
{
	if (k >= old->n_backends)
		return false;
	return is_kafka(out) ? strcmp(old->cf->topic, out->cf->topic) == 0
			     : conf_backend_is_same(&old->cf->backends[k], &out->cf->backends[i]);
}

/* conf_align put what stays first, in its old order. */
static int place_backends(struct master *m, struct output *out, const struct output *old, struct err *err)
{
	char name[300];
	unsigned k = 0, n = out->n_backends;
	uint32_t *blocks = calloc(n, sizeof *blocks);
	out->blocks = blocks;
	out->n_backends = 0; /* those that have a place: no other one is retired when this is given up */
	if (!blocks)
		return err_set(err, -ENOMEM, "No memory for %u backends.", n);
	for (unsigned i = 0; i < n; i++) {
		while (old && k < old->n_backends && !is_same_backend(old, k, out, i))
			k++;
		if (old && k < old->n_backends) {
			blocks[out->n_backends++] = old->blocks[k++];
			continue;
		}
		int block = place(m, STATS_BACKEND, output_backend_name(out, i, name, sizeof name), out->index,
				  output_backend_transport(out, i), err);
		if (block < 0)
			return block;
		blocks[out->n_backends++] = (uint32_t)block;
	}
	return 0;
}

/* One that has no place in the counters is none of the generation's yet. */
static int make_output(struct master *m, const struct conf *cf, struct generation *g, struct err *err)
{
	struct output *out = &g->outputs[g->n_outputs];
	int r = output_make(out, cf, g->n_outputs, err);
	if (r != 0)
		return r;
	const struct output *old = generation_former(m, out);
	r = old ? (int)old->index : place(m, STATS_OUTPUT, out->cf->name, 0, unit_of(out), err);
	if (r < 0) {
		output_fini(out);
		return r;
	}
	g->n_outputs++;
	out->index = (unsigned)r;
	r = place_backends(m, out, old, err);
	if (r != 0 || is_kafka(out))
		return r; /* its files are read when they have been checked */
	if (old && has_same_backends(old, out)) {
		out->shared = old->shared;
		out->shared_fd = old->shared_fd;
		return 0;
	}
	return out->type->prepare(out, err);
}

int generation_outputs(struct master *m, const struct conf *cf, struct generation *g, struct err *err)
{
	int r = 0;
	g->cf = cf;
	g->outputs = calloc(cf->n_outputs, sizeof *g->outputs);
	if (!g->outputs)
		return err_set(err, -ENOMEM, "No memory for %zu outputs.", cf->n_outputs);
	while (r == 0 && g->n_outputs < cf->n_outputs)
		r = make_output(m, cf, g, err);
	return r;
}

bool generation_shares(const struct master *m, const struct output *out)
{
	for (size_t i = 0; i < m->n_outputs; i++)
		if (m->outputs[i].shared && m->outputs[i].shared == out->shared)
			return true;
	return false;
}

int generation_finish_outputs(struct master *m, struct generation *g, bool is_live, struct err *err)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < g->n_outputs; i++) {
		struct output *out = &g->outputs[i];
		const struct output *old = generation_former(m, out);
		if (is_kafka(out) && is_live && old)
			out->shared = old->shared;
		else if (is_kafka(out))
			r = out->type->prepare(out, err);
	}
	return r;
}

/* -- inputs ---------------------------------------------------------------------------------------------------------- */

static const struct input *find_input(const struct master *m, const struct conf_input *cf)
{
	for (size_t i = 0; i < m->n_inputs; i++)
		if (strcmp(m->inputs[i].cf->name, cf->name) == 0 && m->inputs[i].cf->type == cf->type)
			return &m->inputs[i];
	return NULL;
}

/* A name has several addresses, and the machine may lack those of one family. */
static int add_endpoints(struct master *m, struct input *in, const char *address, struct err *err)
{
	const struct endpoint_user user = generation_user(in);
	struct endpoint_key keys[ENDPOINT_KEYS_MAX];
	unsigned n_bound = 0;
	int r = 0, n = endpoint_keys(in->type->endpoint, in->cf, in->conf, address, keys, err);
	for (int i = 0; i < n; i++) {
		struct endpoint *ep = endpoint_get(&m->registry, &keys[i], &user, &r, err);
		if (ep && input_add_endpoint(in, ep) != 0) {
			endpoint_put(ep);
			return err_set(err, -ENOMEM, "No memory for endpoint %s.", address);
		}
		if (!ep && (n == 1 || (r != -EADDRNOTAVAIL && r != -EAFNOSUPPORT)))
			return r;
		if (!ep)
			log_warn("input \"%s\": %s is left out: this machine has no %s", in->cf->name, address,
				 keys[i].name);
		n_bound += ep != NULL;
	}
	return n_bound > 0 ? 0 : MIN(n, r);
}

struct endpoint_user generation_user(const struct input *in)
{
	return (struct endpoint_user){.conf = in->conf, .cf = in->cf, .input = in->index, .n_slots = in->n_slots};
}

static int make_input(struct master *m, const struct conf *cf, size_t i, struct generation *g, struct err *err)
{
	struct input *in = &g->inputs[i];
	const struct input *like = find_input(m, &cf->inputs[i]);
	struct conf_list one;
	int r = input_make(in, cf, i, g->n_slots, like, err);
	g->n_inputs++;
	if (r != 0)
		return r;
	r = like ? (int)like->index : place(m, STATS_INPUT, in->cf->name, 0, conf_word(in->cf->type), err);
	if (r < 0)
		return r;
	in->index = (unsigned)r;
	const struct conf_list *addresses = input_addresses(in->cf, &one);
	r = 0;
	for (size_t k = 0; r == 0 && k < addresses->n; k++)
		r = add_endpoints(m, in, addresses->items[k], err);
	return r;
}

/* What inputs read for outputs is cut accordingly: the master needs it too, to count a dead worker's batch. */
static void tell_what_is_wanted(struct generation *g)
{
	for (size_t i = 0; i < g->n_inputs; i++) {
		struct input *in = &g->inputs[i];
		for (size_t k = 0; k < in->cf->n_outputs; k++) {
			const struct output *out = &g->outputs[in->cf->outputs[k]->index];
			in->wants_lines |= out->wants == OUTPUT_WANTS_LINES;
			in->wants_items |= out->wants == OUTPUT_WANTS_ITEMS;
			in->wants_from |= out->wants_from;
		}
	}
}

static int adjust_endpoints(struct master *m, struct generation *g, struct err *err)
{
	int r = 0;
	for (size_t i = 0; i < g->n_inputs; i++)
		for (unsigned k = 0; r == 0 && k < g->inputs[i].n_endpoints; k++) {
			struct endpoint *ep = g->inputs[i].endpoints[k];
			r = endpoint_adjust(&m->registry, ep, err);
		}
	return r;
}

int generation_inputs(struct master *m, const struct conf *cf, struct generation *g, struct err *err)
{
	int r = 0;
	g->inputs = calloc(cf->n_inputs, sizeof *g->inputs);
	if (!g->inputs)
		return err_set(err, -ENOMEM, "No memory for %zu inputs.", cf->n_inputs);
	for (size_t i = 0; r == 0 && i < cf->n_inputs; i++)
		r = make_input(m, cf, i, g, err);
	if (r != 0)
		return r;
	tell_what_is_wanted(g);
	return adjust_endpoints(m, g, err);
}
