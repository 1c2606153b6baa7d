/* SPDX-License-Identifier: MIT
 *
 * rehearse: whether this program would come up in the place of the one that runs: see upgrade.h. Everything that a start
 * does and that has no effect: what is new is bound and let go, no path is touched, nobody listens.
 */
#include "upgrade.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct {
	bool is_due;
	int state, text, maps;
} rehearsal;

bool master_is_rehearsal(void)
{
	const char *how = getenv(UPGRADE_ENVIRONMENT);
	if (how && sscanf(how, "rehearse %d %d %d", &rehearsal.state, &rehearsal.text, &rehearsal.maps) == 3)
		rehearsal.is_due = true;
	return rehearsal.is_due;
}

int rehearse_text(const char *path, char **bytes, size_t *len)
{
	int r = conf_read_file(path, bytes, len);
	return r == 0 ? proc_write(rehearsal.text, *bytes, *len) : r;
}

/* -- what the running program has --------------------------------------------------------------------------------- */

struct ours {
	char *text;
	uint64_t capabilities;
	struct endpoints_ours {
		char *type, *name;
	} *endpoints;
	unsigned n;
};

static int read_state(struct ours *ours, struct err *err)
{
	struct state_line line;
	ours->text = state_read(rehearsal.state);
	ours->capabilities = UINT64_MAX;
	char *at = ours->text;
	while (at && state_next(&at, &line)) {
		if (strcmp(line.key, "state") == 0 && state_int(&line, 0, 0) != STATE_VERSION)
			return err_set(err, -EPROTO, "The millrace that runs cannot be taken over by "
						     "this one (%s): restart instead.", MILLRACE_VERSION);
		if (strcmp(line.key, "capabilities") == 0)
			ours->capabilities = (uint64_t)state_int(&line, 0, -1);
		if (strcmp(line.key, "endpoint") != 0)
			continue;
		struct endpoints_ours *grown = realloc(ours->endpoints, (ours->n + 1) * sizeof(*grown));
		if (!grown)
			return err_set(err, -ENOMEM, "No memory.");
		ours->endpoints = grown;
		grown[ours->n++] = (struct endpoints_ours){line.words[0], line.words[1]};
	}
	return ours->text ? 0 : err_set(err, -errno, "The state cannot be read: %s.", strerror(errno));
}

static bool is_ours(const struct ours *ours, const struct endpoint_key *key)
{
	for (unsigned i = 0; i < ours->n; i++)
		if (strcmp(ours->endpoints[i].type, key->ops->name) == 0 && strcmp(ours->endpoints[i].name, key->name) == 0)
			return true;
	return false;
}

/* -- what is new -------------------------------------------------------------------------------------------------- */

/* Somebody else listens at this path. */
static int try_path(const char *path, int type, struct err *err)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct stat sb;
	if (strlen(path) >= sizeof(sun.sun_path))
		return err_set(err, -ENAMETOOLONG, "Cannot listen on %s: the path is too long.", path);
	strcpy(sun.sun_path, path);
	if (path[0] == '@' || lstat(path, &sb) == -1)
		return 0; /* whether an abstract name is free, the bind will tell */
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r = fd != -1 && connect(fd, (const struct sockaddr *)&sun, sizeof(sun)) == 0 ? -EADDRINUSE : 0;
	if (fd != -1)
		close(fd);
	return r == 0 ? 0 : err_set(err, r, "Cannot listen on %s: it is in use by another program.", path);
}

static int try_key(const struct endpoint_key *key, struct err *err)
{
	if (key->ops->is_device)
		return 0; /* a ring would see traffic */
	if (!key->ops->has_port)
		return try_path(key->name, key->ops == &endpoint_unix ? SOCK_STREAM : SOCK_DGRAM, err);
	int fd = key->ops == &endpoint_udp ? net_udp_bind(&key->address, false, err) : net_tcp_bind(&key->address, err);
	if (fd >= 0)
		close(fd);
	return MIN(fd, 0);
}

static int try_input(const struct conf *cf, const struct conf_input *in, const struct ours *ours, struct err *err)
{
	const struct input_type *type = input_type_of(in);
	struct endpoint_key keys[ENDPOINT_KEYS_MAX];
	struct conf_list one;
	if (!type)
		return err_set(err, -ENOTSUP, "Input \"%s\": this millrace was built without type %s.", in->name,
			       conf_word(in->type));
	if (type->is_finite || type->is_fixed)
		return err_set(err, -ENOTSUP, "Input \"%s\": DPDK ports and files need a restart.", in->name);
	const struct conf_list *addresses = input_addresses(in, &one);
	for (size_t k = 0; k < addresses->n; k++) {
		int n = endpoint_keys(type->endpoint, in, cf, addresses->items[k], keys, err);
		if (n < 0)
			return n;
		for (int i = 0; i < n; i++) {
			int r = is_ours(ours, &keys[i]) ? 0 : try_key(&keys[i], err);
			if (r != 0 && (n == 1 || (r != -EADDRNOTAVAIL && r != -EAFNOSUPPORT)))
				return r;
		}
	}
	return 0;
}

/* -- maps --------------------------------------------------------------------------------------------------------- */

static int write_map(const struct conf_output *out, struct err *err)
{
	struct upgrade_map head = {0};
	struct shards *s = shards_new(out);
	snprintf(head.name, sizeof(head.name), "%s", out->name);
	head.bytes = s ? shards_size(s) : 0;
	bool done = s && proc_write(rehearsal.maps, &head, sizeof(head)) == 0 &&
		    proc_write(rehearsal.maps, s, head.bytes) == 0;
	shards_free(s);
	return done ? 0 : err_set(err, -ENOMEM, "Output \"%s\": no memory for the shard map.", out->name);
}

int master_rehearse(const struct conf *cf)
{
	struct ours ours = {0};
	struct err err = {""};
	int r = read_state(&ours, &err);
	if (r == 0)
		r = rights_check(cf, ours.capabilities, &err);
	for (size_t i = 0; r == 0 && i < cf->n_inputs; i++)
		r = try_input(cf, &cf->inputs[i], &ours, &err);
	for (size_t i = 0; r == 0 && i < cf->n_outputs; i++)
		if (cf->outputs[i].type == CONF_OUTPUT_TYPE_STATSITE)
			r = write_map(&cf->outputs[i], &err);
	if (r != 0)
		fprintf(stderr, "%s\n", err.text);
	free(ours.endpoints);
	free(ours.text);
	return r == 0 ? MASTER_EXIT_DELIVERED : MASTER_EXIT_ERROR;
}
