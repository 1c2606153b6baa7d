/* SPDX-License-Identifier: MIT
 *
 * registry: owns every bound address and device: who refers to it, when it is retired and closed, its counter blocks. How
 * one is bound is its type's. Reads nothing. Master only.
 */
#include <endpoint.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

void registry_init(struct registry *reg, struct stats *stats)
{
	TAILQ_INIT(&reg->list);
	reg->stats = stats;
	reg->page = stats_master_page(stats);
}

int endpoint_fd(const struct endpoint *ep, unsigned slot)
{
	if (ep->n_fds == 1)
		return ep->fds[0];
	return slot < ep->n_fds ? ep->fds[slot] : -1;
}

/* -- socket files ---------------------------------------------------------------------------------------------------- */

void endpoint_note_path(struct endpoint *ep)
{
	struct stat sb;
	if (ep->name[0] == '@' || lstat(ep->name, &sb) == -1)
		return; /* an abstract name is no file */
	ep->path_device = sb.st_dev;
	ep->path_inode = sb.st_ino;
}

bool endpoint_has_path(const struct endpoint *ep)
{
	struct stat sb;
	return ep->path_inode != 0 && lstat(ep->name, &sb) == 0 && sb.st_dev == ep->path_device &&
	       sb.st_ino == ep->path_inode;
}

/* Somebody else may have put something there meanwhile. */
static void remove_path(struct endpoint *ep)
{
	if (endpoint_has_path(ep))
		unlink(ep->name);
	ep->path_inode = 0;
}

bool registry_look_at_paths(struct registry *reg)
{
	struct endpoint *ep;
	bool has_lost = false;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		if (ep->references == 0 || ep->path_inode == 0 || ep->has_lost_path || endpoint_has_path(ep))
			continue;
		log_warn("input \"%s\": the socket file %s was removed or replaced by somebody", ep->cf->name, ep->name);
		ep->has_lost_path = has_lost = true;
	}
	return has_lost;
}

bool registry_has_lost_path(const struct registry *reg)
{
	const struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (ep->references > 0 && ep->has_lost_path)
			return true;
	return false;
}

/* -- counters -------------------------------------------------------------------------------------------------------- */

static const char *unit_of(const struct endpoint *ep, unsigned k, char *buf, size_t size)
{
	if (ep->n_fds == 1)
		return "all slots";
	snprintf(buf, size, "slot %u", k);
	return buf;
}

static int place(struct registry *reg, struct endpoint *ep, struct err *err)
{
	char unit[16];
	bool is_new = ep->n_blocks == 0;
	for (; ep->n_blocks < ep->n_fds; ep->n_blocks++) {
		unsigned k = ep->n_blocks;
		const char *word = unit_of(ep, k, unit, sizeof(unit));
		int block = stats_place(reg->stats, STATS_ENDPOINT, ep->name, ep->input, word);
		if (block == -1)
			return err_set(err, -ENOSPC, "There is no counter block left for endpoint %s; restart millrace.",
				       ep->name);
		stats_name(reg->stats, STATS_ENDPOINT, (unsigned)block, ep->name, ep->input, 0, word);
		ep->blocks[k] = (uint32_t)block;
	}
	if (is_new && ep->n_blocks > 0 && ep->ops->label)
		ep->ops->label(ep, reg->stats);
	return 0;
}

static void count_drops(struct endpoint *ep, unsigned k, struct stats_page *page)
{
	struct stats_endpoint *st = stats_endpoint(page, ep->blocks[k]);
	uint32_t dropped;
	struct stat sb;
	if (net_socket_drops(ep->fds[k], &st->queue_bytes, &dropped) != 0)
		return;
	/* the kernel's counter has 32 bits */
	st->dropped_datagrams += (uint32_t)(dropped - ep->last_dropped[k]);
	st->inode = fstat(ep->fds[k], &sb) == 0 ? sb.st_ino : 0;
	ep->last_dropped[k] = dropped;
	stats_touch(page, STATS_ENDPOINT, ep->blocks[k]);
}

static void count(struct registry *reg, struct endpoint *ep)
{
	if (ep->ops->count && ep->n_blocks > 0 && ep->n_blocks == ep->n_fds)
		ep->ops->count(ep, reg->page);
	for (unsigned k = 0; ep->ops->counts_drops && k < ep->n_blocks; k++)
		count_drops(ep, k, reg->page);
}

void registry_count(struct registry *reg)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		count(reg, ep);
}

void registry_name(struct registry *reg)
{
	struct endpoint *ep;
	char unit[16];
	TAILQ_FOREACH(ep, &reg->list, next)
		for (unsigned k = 0; ep->references > 0 && k < ep->n_blocks; k++) {
			struct stats_endpoint *st = stats_endpoint(reg->page, ep->blocks[k]);
			stats_name(reg->stats, STATS_ENDPOINT, ep->blocks[k], ep->name, ep->input, 0,
				   unit_of(ep, k, unit, sizeof(unit)));
			st->receive_buffer_bytes = ep->receive_buffer_bytes;
			st->asked_buffer_bytes = ep->ops->is_device ? ep->receive_buffer_bytes : ep->cf->receive_buffer;
			stats_touch(reg->page, STATS_ENDPOINT, ep->blocks[k]);
		}
}

/* -- the end of one -------------------------------------------------------------------------------------------------- */

static void leave(struct endpoint *ep, unsigned from)
{
	for (unsigned k = from; ep->ops->leave && !ep->is_retired && k < ep->n_fds; k++)
		ep->ops->leave(ep->fds[k]);
}

/* Where the datagrams of descriptor k are counted. One that nobody refers to, since an upgrade or a start, has no block
 * but that which it had in the program before. -1: nowhere. */
static int block_of(const struct registry *reg, const struct endpoint *ep, unsigned k)
{
	if (ep->n_blocks > 0)
		return (int)ep->blocks[k < ep->n_blocks ? k : 0];
	for (unsigned i = 0; i < stats_entries(reg->stats, STATS_ENDPOINT); i++)
		if (strcmp(stats_entry(reg->stats, STATS_ENDPOINT, i)->name, ep->name) == 0)
			return (int)i;
	return -1;
}

/* Nobody reads it any more: what waits there is lost. */
static void discard(struct registry *reg, struct endpoint *ep, unsigned k)
{
	uint64_t n = ep->ops->counts_drops ? net_discard_datagrams(ep->fds[k]) : 0;
	int block = n > 0 ? block_of(reg, ep, k) : -1;
	if (n > 0)
		log_warn("%s %s: %llu datagrams waited unread in a socket that is closed", ep->ops->name, ep->name,
			 (unsigned long long)n);
	if (block == -1)
		return;
	stats_endpoint(reg->page, (unsigned)block)->dropped_closed_datagrams += n;
	stats_touch(reg->page, STATS_ENDPOINT, (unsigned)block);
}

/* Another endpoint of this key counts there, too. */
static bool is_counted_by_another(const struct registry *reg, const struct endpoint *ep, uint32_t block)
{
	const struct endpoint *other;
	TAILQ_FOREACH(other, &reg->list, next)
		for (unsigned k = 0; other != ep && k < other->n_blocks; k++)
			if (other->blocks[k] == block)
				return true;
	return false;
}

/* Closes descriptors from number n on. */
static void trim(struct registry *reg, struct endpoint *ep, unsigned n)
{
	leave(ep, n);
	if (ep->n_fds > n && reg->stats)
		count(reg, ep);
	for (; ep->n_fds > n; ep->n_fds--) {
		unsigned k = ep->n_fds - 1;
		if (reg->stats)
			discard(reg, ep, k);
		if (k < ep->n_blocks && reg->stats) {
			if (!is_counted_by_another(reg, ep, ep->blocks[k]))
				stats_retire(reg->stats, STATS_ENDPOINT, ep->blocks[k]);
			ep->n_blocks = k;
		}
		if (!ep->ops->unbind)
			close(ep->fds[k]);
	}
	ep->n_settled = MIN(ep->n_settled, n);
}

static void retire(struct endpoint *ep)
{
	if (ep->is_retired)
		return;
	leave(ep, 0);
	remove_path(ep);
	ep->is_retired = true;
}

static void end(struct registry *reg, struct endpoint *ep)
{
	TAILQ_REMOVE(&reg->list, ep, next);
	remove_path(ep);
	trim(reg, ep, 0);
	if (ep->ops->unbind)
		ep->ops->unbind(ep);
	free(ep->former_input);
	free(ep->name);
	free(ep);
}

void registry_retire_unused(struct registry *reg)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		if (ep->references == 0)
			retire(ep);
	}
}

void registry_sweep(struct registry *reg)
{
	for (struct endpoint *ep = TAILQ_FIRST(&reg->list), *next; ep; ep = next) {
		next = TAILQ_NEXT(ep, next);
		if (ep->references > 0)
			continue;
		retire(ep);
		end(reg, ep);
	}
}

void registry_discard(struct registry *reg)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		retire(ep);
		count(reg, ep);
		for (unsigned k = 0; k < ep->n_fds; k++)
			discard(reg, ep, k);
	}
}

void registry_close(struct registry *reg)
{
	struct endpoint *ep;
	reg->stats = NULL; /* nothing is counted any more, and who comes after us reads what was */
	while ((ep = TAILQ_FIRST(&reg->list)) != NULL)
		end(reg, ep);
}

void registry_close_slot(struct registry *reg, unsigned slot)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (slot > 0 && ep->n_fds == slot + 1)
			trim(reg, ep, slot);
}

/* -- references ------------------------------------------------------------------------------------------------------ */

/* The IPv4 address of this port is bound, too: then [::] is without it. */
static bool has_ipv4_twin(const struct conf *conf, const struct conf_input *cf, uint16_t port)
{
	for (size_t i = 0; i < conf->n_inputs; i++)
		for (size_t k = 0; conf->inputs[i].type == cf->type && k < conf->inputs[i].bind.n; k++) {
			char *host = NULL;
			uint16_t other;
			bool is_twin = conf_split_address(conf->inputs[i].bind.items[k], &host, &other) == 0 &&
				       other == port && strcmp(host, "0.0.0.0") == 0;
			free(host);
			if (is_twin)
				return true;
		}
	return false;
}

int endpoint_keys(const struct endpoint_ops *ops, const struct conf_input *cf, const struct conf *conf, const char *address,
		  struct endpoint_key keys[ENDPOINT_KEYS_MAX], struct err *err)
{
	struct net_address found[ENDPOINT_KEYS_MAX] = {{.len = 0}};
	char *host;
	uint16_t port;
	int n = 1;
	bool is_name = false, v6_only = false;
	if (ops->has_port) {
		if (conf_split_address(address, &host, &port) != 0)
			return err_set(err, -EINVAL, "Cannot listen on %s %s: this is no HOST:PORT.", ops->name, address);
		is_name = net_address_parse(&found[0], host, port) != 0;
		if (is_name)
			n = net_addresses_listen(found, ENDPOINT_KEYS_MAX, ops->name, host, port, err);
		v6_only = strcmp(host, "::") == 0 && has_ipv4_twin(conf, cf, port);
		free(host);
	}
	for (int i = 0; i < n; i++) {
		keys[i] = (struct endpoint_key){.ops = ops, .address = found[i]};
		keys[i].address.v6_only = v6_only;
		keys[i].name = address;
		if (is_name)
			keys[i].name = net_address_format(&found[i].sa, keys[i].numeric, sizeof(keys[i].numeric));
	}
	return n;
}

static bool has_key(const struct endpoint *ep, const struct endpoint_key *key)
{
	const struct net_address *a = &ep->address, *b = &key->address;
	if (ep->ops != key->ops)
		return false;
	if (!key->ops->has_port)
		return strcmp(ep->name, key->name) == 0;
	return a->len == b->len && a->v6_only == b->v6_only && memcmp(&a->sa, &b->sa, a->len) == 0;
}

/* A device may be in two inputs, which have a handle each: then each input keeps its own. */
static struct endpoint *find(const struct registry *reg, const struct endpoint_key *key, const struct endpoint_user *user,
			     struct endpoint **former)
{
	struct endpoint *ep, *found = NULL;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		if (!has_key(ep, key) || ep->is_retired || ep->has_lost_path || ep->conf == user->conf)
			continue;
		if (key->ops->is_other && key->ops->is_other(ep, user)) {
			*former = ep;
			if (!ep->cf || strcmp(ep->cf->name, user->cf->name) == 0)
				return NULL;
			continue;
		}
		if (ep->cf && strcmp(ep->cf->name, user->cf->name) == 0)
			return ep;
		found = found ? found : ep;
	}
	if (found)
		*former = NULL;
	return found;
}

/* "In use" may mean by ourselves, under another spelling of the address. */
static void explain(const struct registry *reg, const struct endpoint *ep, struct err *err)
{
	const struct endpoint *ours;
	const char *port = strrchr(ep->name, ':');
	TAILQ_FOREACH(ours, &reg->list, next)
	{
		const char *p = strrchr(ours->name, ':');
		if (ours != ep && ours->ops == ep->ops && port && p && strcmp(p, port) == 0)
			err_set(err, -EADDRINUSE,
				"inputs.%s.bind: %s cannot be bound while millrace itself listens on %s: take that away "
				"first and reload twice, or restart.",
				ep->cf->name, ep->name, ours->name);
	}
}

static struct endpoint *endpoint_new(struct registry *reg, const struct endpoint_ops *ops, const char *name,
				     const struct net_address *address)
{
	struct endpoint *ep = calloc(1, sizeof(*ep));
	if (!ep)
		return NULL;
	ep->name = strdup(name);
	if (!ep->name) {
		free(ep);
		return NULL;
	}
	ep->ops = ops;
	ep->address = *address;
	TAILQ_INSERT_TAIL(&reg->list, ep, next);
	return ep;
}

static void set_user(struct endpoint *ep, const struct endpoint_user *user)
{
	ep->conf = user->conf;
	ep->cf = user->cf;
	ep->input = user->input;
	ep->n_slots = user->n_slots;
}

struct endpoint *endpoint_get(struct registry *reg, const struct endpoint_key *key, const struct endpoint_user *user,
			      int *code, struct err *err)
{
	struct endpoint *former = NULL, *ep = find(reg, key, user, &former);
	bool is_bound = ep && (ep->references > 0 || ep->n_fds > 0);
	if (!ep)
		ep = endpoint_new(reg, key->ops, key->name, &key->address);
	if (!ep) {
		*code = err_set(err, -ENOMEM, "No memory for endpoint %s.", key->name);
		return NULL;
	}
	set_user(ep, user);
	ep->references++;
	ep->former = former;
	*code = is_bound || former ? 0 : ep->ops->bind(ep, err);
	if (*code == 0)
		return ep;
	if (*code == -EADDRINUSE)
		explain(reg, ep, err);
	ep->references = 0;
	end(reg, ep);
	return NULL;
}

int endpoint_adjust(struct registry *reg, struct endpoint *ep, struct err *err)
{
	int r = 0;
	if (ep->former && ep->n_fds == 0)
		r = ep->ops->bind(ep, err);
	else if (ep->n_settled > 0 && ep->ops->adjust)
		r = ep->ops->adjust(ep, err);
	return r == 0 ? place(reg, ep, err) : r;
}

bool endpoint_put(struct endpoint *ep)
{
	BUG_ON(ep->references == 0);
	if (--ep->references > 0)
		return false;
	retire(ep);
	return true;
}

void endpoint_restore(struct registry *reg, struct endpoint *ep, const struct endpoint_user *user)
{
	if (ep->conf == user->conf)
		return; /* nobody else was to have it */
	trim(reg, ep, ep->n_settled);
	set_user(ep, user);
	if (ep->ops->adjust)
		ep->ops->adjust(ep, NULL);
}

void registry_settle(struct registry *reg)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		ep->n_settled = ep->n_fds;
		if (ep->former && ep->ops->follow)
			ep->ops->follow(ep, ep->former);
		ep->former = NULL;
	}
}

/* -- all of them ----------------------------------------------------------------------------------------------------- */

size_t registry_keep_room(const struct registry *reg)
{
	const struct endpoint *ep;
	size_t n = 0;
	TAILQ_FOREACH(ep, &reg->list, next)
		n += ep->ops->keep ? ENDPOINT_KEEP_MAX : 1;
	return n;
}

void registry_keep(struct registry *reg, unsigned slot, int *keep, size_t *n)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		if (ep->references == 0)
			continue;
		if (ep->ops->keep)
			ep->ops->keep(ep, slot, keep, n);
		else if (endpoint_fd(ep, slot) != -1)
			keep[(*n)++] = endpoint_fd(ep, slot);
	}
}

uint64_t registry_died(struct registry *reg, unsigned slot, bool is_last)
{
	struct endpoint *ep;
	uint64_t lost = 0;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (ep->ops->died && slot < ep->n_blocks)
			lost += ep->ops->died(ep, slot, is_last || ep->references == 0, reg->page);
	return lost;
}

void registry_prepare_successor(struct registry *reg, unsigned slot)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (ep->ops->prepare_successor && ep->references > 0 && slot < ep->n_fds)
			ep->ops->prepare_successor(ep, slot);
}

void registry_renew(struct registry *reg, unsigned slot)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (ep->ops->renew && ep->references > 0 && slot < ep->n_fds)
			ep->ops->renew(ep, slot, reg->page);
}

bool registry_is_stale(const struct registry *reg, unsigned slot)
{
	const struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (ep->ops->is_stale && ep->references > 0 && slot < ep->n_fds && ep->ops->is_stale(ep, slot))
			return true;
	return false;
}

void registry_exclude(struct registry *reg, const char *brokers)
{
	struct endpoint *ep;
	TAILQ_FOREACH(ep, &reg->list, next)
		if (ep->ops->exclude && ep->references > 0 && ep->cf->exclude_own)
			ep->ops->exclude(ep, brokers);
}

/* -- from one program to the next ------------------------------------------------------------------------------------ */

int registry_export(const struct registry *reg, int (*each)(void *arg, const struct endpoint_state *state), void *arg)
{
	const struct endpoint *ep;
	int r = 0;
	TAILQ_FOREACH(ep, &reg->list, next)
	{
		if (ep->references == 0)
			continue; /* its configuration may be no more */
		struct endpoint_state state = {
		    .type = ep->ops->name,
		    .name = ep->name,
		    .input = ep->cf->name,
		    .address = ep->address,
		    .path_device = ep->path_device,
		    .path_inode = ep->path_inode,
		    .n_fds = ep->n_fds,
		    .fds = ep->fds,
		    .last_dropped = ep->last_dropped,
		};
		r = each(arg, &state);
		if (r != 0)
			break;
	}
	return r;
}

int registry_adopt(struct registry *reg, const struct endpoint_ops *ops, const struct endpoint_state *state)
{
	struct endpoint *ep = NULL;
	int r = ops && state->n_fds <= STATS_SLOTS_MAX ? 0 : -EPROTO;
	if (r == 0)
		ep = endpoint_new(reg, ops, state->name, &state->address);
	if (r == 0 && !ep)
		r = -ENOMEM;
	if (r != 0) {
		for (unsigned k = 0; k < state->n_fds; k++)
			close(state->fds[k]);
		return r;
	}
	ep->path_device = state->path_device;
	ep->path_inode = state->path_inode;
	ep->former_input = state->input ? strdup(state->input) : NULL;
	ep->n_fds = ep->n_settled = state->n_fds;
	for (unsigned k = 0; k < state->n_fds; k++) {
		ep->fds[k] = state->fds[k];
		ep->last_dropped[k] = state->last_dropped ? state->last_dropped[k] : 0;
	}
	return 0;
}
