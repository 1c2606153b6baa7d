/* SPDX-License-Identifier: MIT
 *
 * statsrelay: a statsrelay.yaml (1.6.8: top-level statsd: and carbon:) as inputs and outputs of ours. Where statsrelay
 * is lenient (sections without shards, keys that it does not know, bare IPv6 addresses), so are we, with a note.
 */
#include "mem.h"
#include "node.h"

#include <arpa/inet.h>
#include <string.h>

static const struct section {
	enum conf_row_index row;
	const char *bind; /* statsrelay's default */
	enum conf_words protocol;
} sections[] = {
	{ROW_TOP_statsd, "127.0.0.1:8125", CONF_PROTOCOL_STATSD},
	{ROW_TOP_carbon, "127.0.0.1:2003", CONF_PROTOCOL_CARBON},
};

/* statsrelay splits at the last colon, so "::1:8125" is fine there. Brackets around such a host, into buf. */
static const char *with_brackets(const char *bind, char *buf, size_t size)
{
	struct in6_addr v6;
	char host[INET6_ADDRSTRLEN];
	const char *last = strrchr(bind, ':');
	if (!last || (size_t)(last - bind) >= sizeof(host))
		return bind;
	memcpy(host, bind, (size_t)(last - bind));
	host[last - bind] = '\0';
	if (inet_pton(AF_INET6, host, &v6) != 1)
		return bind;
	snprintf(buf, size, "[%s]%s", host, last);
	return buf;
}

static void add_input(struct conf_load *ld, const struct section *s, const struct conf_section *cs, const char *bind,
		      int line, enum conf_words type)
{
	char name[64];
	const char *section = conf_rows[s->row].name;
	snprintf(name, sizeof(name), "%s_%s", section, conf_word(type));
	struct conf_input *in = conf_load_add_input(ld, name, ld->top->rows[s->row].line);
	if (!in)
		return;
	in->type = type;
	in->protocol = s->protocol;
	in->validate = cs->validate;
	if (!cs->tcp_cork)
		in->latency = 0;
	if (conf_list_add(ld, &in->bind, bind, line) == 0)
		conf_list_add(ld, &in->to, section, line);
}

/* One address, read on UDP and on TCP. Looked at here, so that a wrong one is one error and not two. */
static void add_inputs(struct conf_load *ld, const struct section *s, const struct conf_section *cs,
		       const struct conf_origin *origin)
{
	char key[CONF_KEY_SIZE], buf[300];
	struct conf_address a;
	struct text why = {0};
	bool is_given = origin->rows[ROW_SECTION_bind].is_given && cs->bind[0];
	int line = is_given ? origin->rows[ROW_SECTION_bind].line : ld->top->rows[s->row].line;
	const char *bind = is_given ? with_brackets(cs->bind, buf, sizeof(buf)) : s->bind;
	if (conf_address_parse(bind, CONF_ADDRESS_BIND, &a, &why) != 0) {
		conf_load_error(ld, line, conf_key(key, conf_rows[s->row].name, "bind"), "%s",
				why.s ? why.s : "is no address");
	} else {
		add_input(ld, s, cs, bind, line, CONF_INPUT_TYPE_UDP);
		add_input(ld, s, cs, bind, line, CONF_INPUT_TYPE_TCP);
	}
	text_free(&why);
}

/* What one process may hold for a backend, and what is lost beyond it, as in statsrelay. */
static void set_limits(struct conf_load *ld, struct conf_output *out, const struct conf_section *cs,
		       const struct conf_origin *origin, const char *section)
{
	char key[CONF_KEY_SIZE];
	uint64_t min = 0;
	BUG_ON(text_parse_bytes(conf_rows[ROW_OUTPUT_queue_limit].min, &min) != 0);
	out->queue_limit = MAX(cs->max_send_queue, min);
	if (out->queue_limit > GIB)
		out->memory_limit = out->queue_limit; /* more than auto gives */
	out->overflow = CONF_OVERFLOW_DROP_NEWEST;
	conf_key(key, section, "max_send_queue");
	if (cs->max_send_queue < min)
		conf_load_note(ld, origin->rows[ROW_SECTION_max_send_queue].line, key,
			       "is below the least; it counts as %s", conf_rows[ROW_OUTPUT_queue_limit].min);
}

static void read_section(struct conf_load *ld, const struct section *s)
{
	const char *name = conf_rows[s->row].name;
	const struct conf_node *node = ld->top->rows[s->row].node;
	int line = ld->top->rows[s->row].line;
	struct conf_origin origin = {0};
	struct conf_section cs = {0};
	char key[CONF_KEY_SIZE];
	if (conf_object_init(CONF_SCOPE_SECTION, &cs) != 0) {
		ld->no_memory = true;
		goto out;
	}
	conf_read_object(ld, node, line, CONF_SCOPE_SECTION, name, &cs, &origin);
	if (origin.rows[ROW_SECTION_always_resolve_dns].is_given)
		conf_load_note(ld, origin.rows[ROW_SECTION_always_resolve_dns].line,
			       conf_key(key, name, "always_resolve_dns"),
			       "has no effect: names are always resolved again at a reconnect");
	const struct conf_node *shards = origin.rows[ROW_SECTION_shard_map].node;
	if (!shards || shards->is_null || (shards->kind == CONF_NODE_MAP && shards->n == 0)) {
		if (node->kind == CONF_NODE_MAP || node->is_null)
			conf_load_note(ld, line, name, "has no shard_map and is passed over, as in statsrelay");
		goto out;
	}
	struct conf_output *out = conf_load_add_output(ld, name, line);
	if (!out)
		goto out;
	out->type = CONF_OUTPUT_TYPE_STATSITE;
	set_limits(ld, out, &cs, &origin, name);
	conf_read_shard_map(ld, out, shards, conf_key(key, name, "shard_map"));
	add_inputs(ld, s, &cs, &origin);
out:
	conf_object_fini(CONF_SCOPE_SECTION, &cs);
}

void conf_read_statsrelay(struct conf_load *ld)
{
	static const enum conf_row_index others[] = {ROW_TOP_inputs, ROW_TOP_outputs};
	size_t errors = ld->n_errors;
	for (size_t i = 0; i < ARRAY_LEN(sections); i++)
		ld->cf->is_statsrelay |= ld->top->rows[sections[i].row].is_given;
	if (!ld->cf->is_statsrelay)
		return;
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		if (ld->top->rows[others[i]].is_given)
			conf_load_error(
				ld, ld->top->rows[others[i]].line, conf_rows[others[i]].name,
				"stands beside statsd: or carbon:; a file has either, so name them all here, or none");
	if (ld->n_errors > errors)
		return;
	for (size_t i = 0; i < ARRAY_LEN(sections); i++)
		if (ld->top->rows[sections[i].row].node)
			read_section(ld, &sections[i]);
}
