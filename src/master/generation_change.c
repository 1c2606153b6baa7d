/* SPDX-License-Identifier: MIT
 *
 * generation_change: a generation that was made (generation.c) is given up, or takes the place of the one in effect: what
 * is not in it any more is retired in the counters, announced to the workers that have it, and closed when they have made
 * place. Master only.
 */
#include "master.h"

#include <string.h>

static bool has_block(const struct output *out, uint32_t block)
{
	for (unsigned i = 0; out && i < out->n_backends; i++)
		if (out->blocks[i] == block)
			return true;
	return false;
}

static const struct output *indexed_output(const struct output *outputs, size_t n, unsigned index)
{
	for (size_t i = 0; i < n; i++)
		if (outputs[i].index == index)
			return &outputs[i];
	return NULL;
}

static bool has_input(const struct input *inputs, size_t n, unsigned index)
{
	for (size_t i = 0; i < n; i++)
		if (inputs[i].index == index)
			return true;
	return false;
}

/* Backends of `out` that `next` has not. Both have what they share in the same order, so this is one walk. */
static void retire_backends(struct master *m, const struct output *out, const struct output *next)
{
	unsigned k = 0;
	for (unsigned i = 0; i < out->n_backends; i++) {
		if (next && k < next->n_backends && next->blocks[k] == out->blocks[i])
			k++;
		else if (!next || !has_block(next, out->blocks[i]))
			stats_retire(m->stats, STATS_BACKEND, out->blocks[i]);
	}
}

/* Another thing of the same name is there now. */
static void retire_renamed(struct master *m, enum stats_scope scope, unsigned index, bool is_taken)
{
	struct stats_entry e = *stats_entry(m->stats, scope, index);
	char name[300];
	snprintf(name, sizeof name, "%s (%s)", e.name, e.unit);
	if (is_taken)
		stats_name(m->stats, scope, index, name, e.parent, e.feeds, e.unit);
	stats_retire(m->stats, scope, index);
}

static void end_output(struct master *m, unsigned index, bool is_taken)
{
	if (m->slots) /* none yet: a start that fails */
		slots_tell_all(m, LINK_GONE, LINK_GONE_OUTPUT, stats_entry(m->stats, STATS_OUTPUT, index)->name, "", -1);
	retire_renamed(m, STATS_OUTPUT, index, is_taken);
}

static void retire_outputs(struct master *m, const struct output *outputs, size_t n, const struct output *next,
			   size_t n_next)
{
	for (size_t i = 0; i < n; i++) {
		const struct output *now = indexed_output(next, n_next, outputs[i].index);
		bool is_taken = false;
		for (size_t k = 0; k < n_next; k++)
			is_taken |= strcmp(next[k].cf->name, outputs[i].cf->name) == 0;
		if (!now)
			end_output(m, outputs[i].index, is_taken);
		if (!now && outputs[i].cf->type == CONF_OUTPUT_TYPE_KAFKA)
			stats_retire(m->stats, STATS_KAFKA, outputs[i].index);
		retire_backends(m, &outputs[i], now);
	}
}

/* Frees outputs but not what others still share. */
static void free_outputs(struct output *outputs, size_t n, const struct output *others, size_t n_others)
{
	for (size_t i = 0; i < n; i++) {
		for (size_t k = 0; k < n_others; k++)
			if (others[k].shared && others[k].shared == outputs[i].shared) {
				outputs[i].shared = NULL;
				outputs[i].shared_fd = -1;
			}
		output_fini(&outputs[i]);
	}
	free(outputs);
}

static void drop_endpoints(struct input *in)
{
	for (unsigned k = 0; k < in->n_endpoints; k++)
		endpoint_put(in->endpoints[k]);
}

void generation_give_up(struct master *m, struct generation *g)
{
	for (size_t i = 0; i < g->n_inputs; i++) {
		struct input *in = &g->inputs[i];
		bool is_new = !has_input(m->inputs, m->n_inputs, in->index);
		drop_endpoints(in);
		if (is_new && in->type) {
			stats_retire(m->stats, STATS_INPUT, in->index);
			receive_forget(m->receive, in->index);
		}
		input_free(in);
	}
	if (g->inputs)
		registry_sweep(&m->registry);
	for (size_t i = 0; g->inputs && i < m->n_inputs; i++) {
		const struct endpoint_user user = generation_user(&m->inputs[i]);
		for (unsigned k = 0; k < m->inputs[i].n_endpoints; k++)
			endpoint_restore(&m->registry, m->inputs[i].endpoints[k], &user);
	}
	free(g->inputs);
	retire_outputs(m, g->outputs, g->n_outputs, m->outputs, m->n_outputs);
	free_outputs(g->outputs, g->n_outputs, m->outputs, m->n_outputs);
	*g = (struct generation){0};
}

static bool reads(const struct input *in, const struct endpoint *ep)
{
	for (unsigned k = 0; k < in->n_endpoints; k++)
		if (in->endpoints[k] == ep)
			return true;
	return false;
}

/* The input that all addresses of `in` have gone to: it has another name now. NULL: none. */
static const struct input *renamed_to(const struct master *m, const struct input *in)
{
	for (size_t i = 0; i < m->n_inputs; i++) {
		unsigned n = 0;
		for (unsigned k = 0; k < in->n_endpoints; k++)
			n += reads(&m->inputs[i], in->endpoints[k]);
		if (n > 0)
			return n == in->n_endpoints ? &m->inputs[i] : NULL;
	}
	return NULL;
}

static void announce_end(struct master *m, const struct input *in)
{
	const struct input *to = renamed_to(m, in);
	if (to)
		slots_tell_all(m, LINK_GONE, LINK_GONE_NAME, in->cf->name, to->cf->name, -1);
	else
		slots_tell_all(m, LINK_GONE, LINK_GONE_INPUT, in->cf->name, "", -1);
}

static void retire_inputs(struct master *m, struct input *inputs, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct input *in = &inputs[i];
		bool stays = has_input(m->inputs, m->n_inputs, in->index), is_taken = false;
		for (size_t k = 0; k < m->n_inputs; k++)
			is_taken |= strcmp(m->inputs[k].cf->name, in->cf->name) == 0;
		if (!stays) {
			retire_renamed(m, STATS_INPUT, in->index, is_taken);
			announce_end(m, in);
		}
		for (unsigned k = 0; k < in->n_endpoints; k++)
			if (endpoint_put(in->endpoints[k]))
				slots_tell_all(m, LINK_GONE, LINK_GONE_ENDPOINT, in->cf->name, in->endpoints[k]->name,
					       -1);
	}
}

/* Only what is applied at once has changed. */
static void enter_options(struct master *m, const struct conf *cf)
{
	for (size_t i = 0; i < m->n_inputs; i++) {
		struct input *in = &m->inputs[i];
		in->conf = cf;
		in->cf = &cf->inputs[i];
		for (unsigned k = 0; k < in->n_endpoints; k++) {
			in->endpoints[k]->conf = cf;
			in->endpoints[k]->cf = in->cf;
		}
	}
}

static void enter_inputs(struct master *m, struct generation *g, struct generation *gone)
{
	if (!g->inputs) {
		enter_options(m, g->cf);
		return;
	}
	gone->inputs = m->inputs;
	gone->n_inputs = m->n_inputs;
	m->inputs = g->inputs;
	m->n_inputs = g->n_inputs;
	registry_settle(&m->registry);
	retire_inputs(m, gone->inputs, gone->n_inputs);
}

void generation_enter(struct master *m, struct generation *g, struct generation *gone)
{
	struct output *old = m->outputs;
	size_t n_old = m->n_outputs;
	*gone = (struct generation){.cf = m->cf};
	m->outputs = g->outputs;
	m->n_outputs = g->n_outputs;
	enter_inputs(m, g, gone);
	if (g->inputs)
		m->marking++;
	m->generation++;
	m->cf = g->cf;
	retire_outputs(m, old, n_old, m->outputs, m->n_outputs);
	free_outputs(old, n_old, m->outputs, m->n_outputs);
	generation_name(m);
	*g = (struct generation){0};
}

void generation_close(struct master *m, struct generation *gone)
{
	if (gone->inputs)
		registry_sweep(&m->registry);
	for (size_t i = 0; i < gone->n_inputs; i++) {
		struct input *in = &gone->inputs[i];
		if (!has_input(m->inputs, m->n_inputs, in->index))
			receive_forget(m->receive, in->index);
		input_free(in);
	}
	stats_publish(m->page);
	free(gone->inputs);
	conf_free((struct conf *)(uintptr_t)gone->cf);
	*gone = (struct generation){0};
}
