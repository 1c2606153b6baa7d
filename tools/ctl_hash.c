/* SPDX-License-Identifier: MIT
 *
 * ctl_hash: "hash" (statsrelay's stathasher) and "diff-map": which backend gets a key, by a configuration file. Needs
 * no running millrace and never asks one.
 */
#include "ctl.h"
#include <conf.h>
#include <errno.h>
#include <getopt.h>
#include <output.h>
#include <string.h>
#include <unistd.h>

/* A configuration with the shards of each statsite output. */
struct map {
	struct conf *cf;
	struct shards *shards[CONF_OUTPUTS_MAX];
};

static void map_free(struct map *map)
{
	for (size_t i = 0; i < CONF_OUTPUTS_MAX; i++)
		shards_free(map->shards[i]);
	conf_free(map->cf);
}

/* Shards are made when they are first asked for: a rendezvous table of many backends takes a while. */
static int map_load(struct map *map, const char *path)
{
	struct conf_args args = {.path = path};
	struct conf_errors errors = {0};
	*map = (struct map){.cf = conf_load(&args, &errors)};
	if (!map->cf) {
		fprintf(stderr, "%s%s", errors.text.s ? errors.text.s : "millracectl: no memory",
			errors.text.len && errors.text.s[errors.text.len - 1] == '\n' ? "" : "\n");
		text_free(&errors.text);
		return CTL_BAD;
	}
	text_free(&errors.text);
	return CTL_OK;
}

static const struct shards *map_shards(struct map *map, size_t output)
{
	const struct conf_output *out = &map->cf->outputs[output];
	if (!map->shards[output] && out->type == CONF_OUTPUT_TYPE_STATSITE)
		map->shards[output] = shards_new(out);
	return map->shards[output];
}

static bool is_fed_with(const struct conf *cf, const struct conf_output *out, enum conf_words protocol)
{
	for (size_t i = 0; i < cf->n_inputs; i++)
		for (size_t k = 0; k < cf->inputs[i].n_outputs; k++)
			if (cf->inputs[i].outputs[k] == out && cf->inputs[i].protocol == protocol)
				return true;
	return false;
}

static uint32_t key_hash(const char *key)
{
	return hash_murmur3_32(key, strlen(key), HASH_STATSRELAY_SEED);
}

/* -- hash -------------------------------------------------------------------------------------------------------- */

/* carbon before statsd, as stathasher has it. Where several outputs of one protocol get the key, each says its name. */
static void key_show(struct map *map, const char *key)
{
	static const enum conf_words protocols[] = {CONF_PROTOCOL_CARBON, CONF_PROTOCOL_STATSD};
	uint32_t hash = key_hash(key);
	printf("key=%s", key);
	for (size_t p = 0; p < ARRAY_LEN(protocols); p++) {
		const char *word = conf_word(protocols[p]);
		size_t n = 0;
		for (size_t i = 0; i < map->cf->n_outputs; i++)
			n += is_fed_with(map->cf, &map->cf->outputs[i], protocols[p]) && map_shards(map, i);
		for (size_t i = 0; i < map->cf->n_outputs; i++) {
			const struct conf_output *out = &map->cf->outputs[i];
			const struct shards *s = map_shards(map, i);
			if (!s || !is_fed_with(map->cf, out, protocols[p]))
				continue;
			if (n > 1)
				printf(" output=%s", out->name);
			printf(" %s=%s %s_shard=%u", word, out->backends[shards_backend(s, hash)].address, word,
			       shards_index(s, hash));
		}
	}
	printf("\n");
}

/* The next key of the stream: a line up to its first white space. False at the end; empty lines are passed over. */
static bool key_read(FILE *from, char **line, size_t *size)
{
	while (getline(line, size, from) != -1) {
		(*line)[strcspn(*line, " \t\r\n\v\f")] = '\0';
		if ((*line)[0])
			return true;
	}
	return false;
}

int ctl_hash(struct ctl *ctl, int argc, char **argv)
{
	struct map map;
	char *line = NULL;
	size_t size = 0;
	(void)ctl;
	if (argc != 3 || (strcmp(argv[1], "-c") != 0 && strcmp(argv[1], "--config") != 0))
		return ctl_usage("Write \"millracectl hash -c FILE\", and the keys to standard input.");
	int rc = map_load(&map, argv[2]);
	setvbuf(stdout, NULL, isatty(STDIN_FILENO) ? _IOLBF : _IOFBF, 1 << 16);
	while (rc == CTL_OK && key_read(stdin, &line, &size))
		key_show(&map, line);
	if (rc == CTL_OK && fflush(stdout) != 0)
		rc = ctl_usage("Cannot write to standard output: %s.", strerror(errno));
	free(line);
	map_free(&map);
	return rc;
}

/* -- diff-map ---------------------------------------------------------------------------------------------------- */

struct move {
	uint32_t from, to, keys;
};

struct moves {
	struct move *rows;
	size_t n, size;
	uint64_t keys, moved;
	bool failed;
};

/* What rendezvous hashing knows the backend by; that it has another address does not move its keys. */
static const char *backend_name(const struct conf_output *out, uint32_t index)
{
	const struct conf_backend *be = &out->backends[index];
	return be->name && be->name[0] ? be->name : be->address;
}

static void key_compare(struct moves *m, const struct conf_output *old, const struct shards *old_shards,
			const struct conf_output *new, const struct shards *new_shards, const char *key)
{
	uint32_t hash = key_hash(key);
	uint32_t from = shards_backend(old_shards, hash), to = shards_backend(new_shards, hash);
	m->keys++;
	if (strcmp(backend_name(old, from), backend_name(new, to)) == 0)
		return;
	m->moved++;
	if (m->n == m->size) {
		size_t size = MAX(m->size * 2, 1024);
		struct move *rows = realloc(m->rows, size * sizeof(*rows));
		if (!rows) {
			m->failed = true;
			return;
		}
		m->rows = rows;
		m->size = size;
	}
	m->rows[m->n++] = (struct move){from, to, 1};
}

static int by_pair(const void *a, const void *b)
{
	const struct move *x = a, *y = b;
	return x->from != y->from ? (x->from < y->from ? -1 : 1) : x->to != y->to ? (x->to < y->to ? -1 : 1) : 0;
}

static int by_keys(const void *a, const void *b)
{
	const struct move *x = a, *y = b;
	return x->keys != y->keys ? (x->keys < y->keys ? 1 : -1) : by_pair(a, b);
}

/* One row a pair of backends, the largest first. */
static void moves_sum(struct moves *m)
{
	size_t n = 0;
	if (m->n == 0)
		return;
	qsort(m->rows, m->n, sizeof(m->rows[0]), by_pair);
	for (size_t i = 1; i < m->n; i++) {
		if (by_pair(&m->rows[n], &m->rows[i]) == 0)
			m->rows[n].keys++;
		else
			m->rows[++n] = m->rows[i];
	}
	m->n = n + 1;
	qsort(m->rows, m->n, sizeof(m->rows[0]), by_keys);
}

static int moves_show(const struct moves *m, const struct conf_output *old, const struct conf_output *new)
{
	enum { PAIRS_MAX = 20 };
	struct text t = {.failed = m->failed};
	struct ctl_table table = {.columns = 4, .left = 2};
	double all = m->keys ? (double)m->keys : 1;
	text_add(&t, "%llu of %llu keys move (%.2f %%)\n", (unsigned long long)m->moved, (unsigned long long)m->keys,
		 100 * (double)m->moved / all);
	if (m->n) {
		ctl_heading(&table, "from|to|keys|share");
		for (size_t i = 0; i < MIN(m->n, (size_t)PAIRS_MAX); i++) {
			ctl_cell(&table, "%s", backend_name(old, m->rows[i].from));
			ctl_cell(&table, "%s", backend_name(new, m->rows[i].to));
			ctl_cell(&table, "%u", m->rows[i].keys);
			ctl_cell(&table, "%.2f %%", 100 * m->rows[i].keys / all);
		}
		text_add(&t, "\n");
		ctl_table_print(&table, &t);
	}
	if (m->n > PAIRS_MAX)
		text_add(&t, "… and %zu more pairs of backends\n", m->n - PAIRS_MAX);
	return ctl_print(&t);
}

/* The output to compare: the one named, or the only statsite output there is. */
static const struct conf_output *output_choose(const struct map *map, const char *path, const char *name)
{
	const struct conf_output *found = NULL;
	for (size_t i = 0; i < map->cf->n_outputs; i++) {
		const struct conf_output *out = &map->cf->outputs[i];
		if (out->type != CONF_OUTPUT_TYPE_STATSITE || (name && strcmp(out->name, name) != 0))
			continue;
		if (found) {
			ctl_usage("%s has several outputs with backends: say which with --output NAME.", path);
			return NULL;
		}
		found = out;
	}
	if (!found)
		ctl_usage("%s has no output%s%s with backends.", path, name ? " " : "", name ? name : "");
	return found;
}

struct diff_args {
	const char *paths[2], *output;
	uint64_t synthetic; /* 0: keys come from standard input */
};

static int diff_args_parse(struct diff_args *args, int argc, char **argv)
{
	static const struct option options[] = {
		{"keys", required_argument, NULL, 'k'}, {"output", required_argument, NULL, 'o'}, {NULL, 0, NULL, 0}};
	*args = (struct diff_args){.synthetic = isatty(STDIN_FILENO) ? 100000 : 0};
	optind = 0; /* begins anew, in another array (man 3 getopt) */
	for (int o; (o = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (o == 'o')
			args->output = optarg;
		else if (o != 'k' || text_parse_uint(optarg, &args->synthetic) != 0 || args->synthetic == 0 ||
			 args->synthetic > 1000000000)
			return ctl_usage("diff-map takes --keys N (1 to 1,000,000,000) and --output NAME.");
	}
	if (argc - optind != 2)
		return ctl_usage("Write \"millracectl diff-map OLD NEW [--keys N] [--output NAME]\".");
	args->paths[0] = argv[optind];
	args->paths[1] = argv[optind + 1];
	return CTL_OK;
}

static int diff(struct map maps[2], const struct diff_args *args)
{
	const struct conf_output *old = output_choose(&maps[0], args->paths[0], args->output);
	const struct conf_output *new = old ? output_choose(&maps[1], args->paths[1], args->output) : NULL;
	if (!new)
		return CTL_NOT_ASKED;
	const struct shards *old_shards = map_shards(&maps[0], old->index);
	const struct shards *new_shards = map_shards(&maps[1], new->index);
	if (!old_shards || !new_shards)
		return ctl_usage("No memory for the shards.");
	struct moves moves = {0};
	char *line = NULL, key[64];
	size_t size = 0;
	for (uint64_t i = 0; i < args->synthetic; i++) {
		snprintf(key, sizeof(key), "host%llu.metric%llu", (unsigned long long)(i % 1000),
			 (unsigned long long)i);
		key_compare(&moves, old, old_shards, new, new_shards, key);
	}
	while (args->synthetic == 0 && key_read(stdin, &line, &size))
		key_compare(&moves, old, old_shards, new, new_shards, line);
	moves_sum(&moves);
	int rc = moves_show(&moves, old, new);
	free(line);
	free(moves.rows);
	return rc;
}

int ctl_diff_map(struct ctl *ctl, int argc, char **argv)
{
	struct diff_args args;
	struct map maps[2] = {0};
	(void)ctl;
	int rc = diff_args_parse(&args, argc, argv);
	for (int i = 0; i < 2 && rc == CTL_OK; i++)
		rc = map_load(&maps[i], args.paths[i]);
	if (rc == CTL_OK)
		rc = diff(maps, &args);
	map_free(&maps[0]);
	map_free(&maps[1]);
	return rc;
}
