/* SPDX-License-Identifier: MIT
 *
 * rights: what the configuration needs of the system: whom the children become, which capabilities the master keeps.
 * They are kept from before anything is opened until the end, for a new worker may need a new handle; a configuration
 * that needs more later needs a restart. Master, at the start and at a reload.
 */
#include "master.h"

#include <errno.h>
#include <libgen.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

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

/* -- files: uid 0 without capabilities is a user as others are ------------------------------------------------------
 */

/* To make the file, to remove it, or to write it where it is there already. */
static uint64_t to_write(const char *path)
{
	char folder[4096];
	if (!path || !path[0] || strlen(path) >= sizeof folder)
		return 0;
	strcpy(folder, path);
	bool may = privileges_may_reach(dirname(folder), W_OK | X_OK) && privileges_may_reach(path, W_OK);
	return may ? 0 : CAPABILITY(CAP_DAC_OVERRIDE);
}

static uint64_t to_read(const char *path)
{
	return !path || !path[0] || privileges_may_reach(path, R_OK) ? 0 : CAPABILITY(CAP_DAC_READ_SEARCH);
}

/* Keys and certificates: ssl.key.location and its like. */
static uint64_t to_read_properties(const struct conf_map *map)
{
	static const char tail[] = ".location";
	uint64_t set = 0;
	for (size_t i = 0; i < map->n; i++) {
		size_t len = strlen(map->keys[i]);
		if (len >= sizeof tail && strcmp(map->keys[i] + len - (sizeof tail - 1), tail) == 0)
			set |= to_read(map->values[i]);
	}
	return set;
}

static uint64_t for_files(const struct conf *cf)
{
	uint64_t set = to_write(cf->control) | to_write(cf->pid_file) | to_read(cf->path);
	if (strchr(cf->log, '/'))
		set |= to_write(cf->log);
	for (size_t i = 0; i < cf->n_inputs; i++) {
		const struct conf_input *in = &cf->inputs[i];
		bool is_unix = in->type == CONF_INPUT_TYPE_UNIX || in->type == CONF_INPUT_TYPE_UNIXGRAM;
		for (size_t k = 0; is_unix && k < in->bind.n; k++)
			set |= to_write(in->bind.items[k]);
		for (size_t k = 0; k < in->path.n; k++)
			set |= to_read(in->path.items[k]);
	}
	for (size_t i = 0; i < cf->n_outputs; i++)
		set |= to_write(cf->outputs[i].statistics_file) | to_read_properties(&cf->outputs[i].properties);
	return set;
}

/* -- the set --------------------------------------------------------------------------------------------------------
 */

static uint64_t for_http(const struct conf *cf)
{
	char *host = NULL;
	uint16_t port = 0;
	bool may_lack;
	if (conf_http_address(cf, &host, &port, &may_lack) != 0)
		return 0;
	free(host);
	return port != 0 && port < IPPORT_RESERVED ? CAPABILITY(CAP_NET_BIND_SERVICE) : 0;
}

uint64_t rights_needed(const struct conf *cf, const struct identity *id)
{
	uint64_t set = for_files(cf) | for_http(cf);
	for (size_t i = 0; i < cf->n_inputs; i++)
		set |= input_capabilities(&cf->inputs[i]);
	if (cf->control_group[0])
		set |= CAPABILITY(CAP_CHOWN);
	if (id->is_root) /* to make children somebody else, empty their bounding set, and end them */
		set |= CAPABILITY(CAP_SETUID) | CAPABILITY(CAP_SETGID) | CAPABILITY(CAP_SETPCAP) | CAPABILITY(CAP_KILL);
	return set;
}

int rights_reduce(struct master *m, struct err *err)
{
	int r = rights_find(m->cf, &m->identity, err);
	if (r != 0)
		return r;
	r = privileges_keep(rights_needed(m->cf, &m->identity), err);
	m->capabilities = privileges_have();
	return r;
}

int rights_check(const struct conf *cf, uint64_t have, struct err *err)
{
	struct identity id;
	struct text t = {0};
	int r = rights_find(cf, &id, err);
	if (r != 0)
		return r;
	uint64_t missing = rights_needed(cf, &id) & ~have;
	if (missing == 0 || !id.is_root) /* who is not root never had them: a bind that fails says so */
		return 0;
	privileges_format(&t, missing);
	r = err_set(err, -EPERM,
		    "This configuration needs capabilities that were given up at the start (%s): restart millrace.",
		    t.s ? t.s : "");
	text_free(&t);
	return r;
}
