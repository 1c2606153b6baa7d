/* SPDX-License-Identifier: MIT
 *
 * warn: what overflow: auto means, and what is allowed and yet probably not meant. Pure.
 */
#include "load.h"

#include <string.h>

/* Whether any input that feeds this output feeds another one too; *in is that input. */
static bool shares_an_input(const struct conf *cf, const struct conf_output *out, const struct conf_input **in)
{
	for (size_t i = 0; i < cf->n_inputs; i++)
		for (size_t j = 0; j < cf->inputs[i].n_outputs; j++)
			if (cf->inputs[i].outputs[j] == out && cf->inputs[i].n_outputs > 1) {
				*in = &cf->inputs[i];
				return true;
			}
	return false;
}

/* An output that is no statsite has one queue, which counts as one backend. */
static bool has_several_backends(const struct conf_output *out)
{
	return out->type == CONF_OUTPUT_TYPE_STATSITE && out->n_backends > 1;
}

enum conf_words conf_overflow(const struct conf *cf, const struct conf_output *out)
{
	const struct conf_input *in;
	if (out->overflow != CONF_OVERFLOW_AUTO)
		return out->overflow;
	return has_several_backends(out) || shares_an_input(cf, out, &in) ? CONF_OVERFLOW_DROP_NEWEST
									  : CONF_OVERFLOW_BLOCK;
}

static void warn(const struct conf *cf, const struct conf_output *out, const char *option, struct text *t)
{
	if (out->line)
		text_add(t, "%s:%d: outputs.%s.%s: ", cf->path, out->line, out->name, option);
	else
		text_add(t, "command line: outputs.%s.%s: ", out->name, option);
}

void conf_warnings(const struct conf *cf, struct text *t)
{
	for (size_t i = 0; i < cf->notes.n; i++)
		text_add(t, "%s\n", cf->notes.items[i]);
	for (size_t i = 0; i < cf->n_outputs; i++) {
		const struct conf_output *out = &cf->outputs[i];
		const struct conf_input *in;
		if (out->overflow == CONF_OVERFLOW_BLOCK && shares_an_input(cf, out, &in)) {
			warn(cf, out, "overflow", t);
			text_add(t, "block holds back the other outputs of input %s too, whenever this one is full\n",
				 in->name);
		}
		if (out->overflow == CONF_OVERFLOW_BLOCK && has_several_backends(out)) {
			warn(cf, out, "overflow", t);
			text_add(t, "block lets one stalled backend hold back the other %zu\n", out->n_backends - 1);
		}
		if (conf_row_applies(&conf_rows[ROW_OUTPUT_queue_limit], out->type) &&
		    out->queue_limit > out->memory_limit) {
			warn(cf, out, "queue_limit", t);
			text_add(t, "is above memory_limit, which is reached first\n");
		}
	}
}
