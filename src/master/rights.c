/* SPDX-License-Identifier: MIT
 *
 * rights: what the configuration needs of the system: whom the children become, which capabilities the master keeps.
 * Master, at the start and at a reload.
 */
#include "master.h"

static bool reads_only_files(const struct conf *cf)
{
	for (size_t i = 0; i < cf->n_inputs; i++)
		if (cf->inputs[i].type != CONF_INPUT_TYPE_FILE)
			return false;
	return true;
}

int rights_find(const struct conf *cf, struct identity *id, struct err *err)
{
	/* A program that reads files and ends is a tool of who started it, and reads what he may read. */
	return identity_find(id, cf->user, cf->group, reads_only_files(cf) ? "root" : "nobody", err);
}
