/* SPDX-License-Identifier: MIT
 *
 * reload_can: what a reload cannot do: each is one sentence, and then nothing is changed. Master only.
 */
#include "reload.h"

#include <string.h>

static bool is(const struct conf_change *c, const char *option)
{
	return c->option && strcmp(c->option, option) == 0;
}

static bool is_fixed(const struct conf *cf, size_t input)
{
	const struct input_type *type = input_type_of(&cf->inputs[input]);
	return type && type->is_fixed && !type->is_finite;
}

static void refuse_one(const struct reload *r, const struct conf_change *c, struct text *why)
{
	const struct master *m = r->m;
	const struct conf *old = m->cf;
	bool is_input = c->place == CONF_PLACE_INPUT && c->reload > CONF_RELOAD_AT_ONCE;
	if (c->reload == CONF_RELOAD_RESTART)
		text_add(why, "%s cannot be changed in a process that runs; restart millrace\n", c->option);
	if (is(c, "workers") && c->place == CONF_PLACE_TOP && master_workers(r->cf) > stats_room(m->stats))
		text_add(why, "workers: there are counter pages for %u; restart millrace for more\n",
			 stats_room(m->stats));
	if (is_input && is(c, "driver") && input_type_of(&old->inputs[c->was]) != input_type_of(&r->cf->inputs[c->is]))
		text_add(why, "inputs.%s.driver: DPDK takes its devices when millrace starts, and keeps them; restart "
			      "millrace\n",
			 old->inputs[c->was].name);
	if (c->was != SIZE_MAX && c->place == CONF_PLACE_INPUT && c->reload > CONF_RELOAD_AT_ONCE &&
	    is_fixed(old, c->was))
		text_add(why, "inputs.%s reads a DPDK port, which cannot be changed by a reload; restart millrace\n",
			 old->inputs[c->was].name);
}

static void refuse_whole(const struct reload *r, struct text *why)
{
	const struct master *m = r->m;
	unsigned workers = master_workers(r->cf);
	for (size_t i = 0; i < m->n_inputs; i++) {
		if (m->inputs[i].type->is_finite && r->class > CONF_RELOAD_AT_ONCE)
			text_add(why, "inputs.%s reads files and ends with them; start another millrace\n",
				 m->inputs[i].cf->name);
		if (is_fixed(m->cf, m->inputs[i].cf->index) && workers != m->n_slots)
			text_add(why, "workers: the queues of the DPDK port of inputs.%s cannot be changed by a reload; "
				      "restart millrace\n",
				 m->inputs[i].cf->name);
	}
	for (size_t i = 0; i < r->cf->n_inputs; i++)
		if (r->cf->inputs[i].type == CONF_INPUT_TYPE_FILE && r->class > CONF_RELOAD_AT_ONCE &&
		    why->len == 0)
			text_add(why, "inputs.%s: files cannot be added by a reload; start another millrace\n",
				 r->cf->inputs[i].name);
}

void reload_refusals(const struct reload *r, struct text *why)
{
	for (size_t i = 0; i < r->diff.n; i++)
		refuse_one(r, &r->diff.changes[i], why);
	refuse_whole(r, why);
}
