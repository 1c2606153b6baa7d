/* SPDX-License-Identifier: MIT
 *
 * The shard maps: modulo is the configuration's list, rendezvous does not depend on the order in the file, follows
 * names and weights, and moves no more keys than it must. (The hash itself: test_hash.c.)
 */
#include "suite.h"

#include <output.h>
#include <string.h>

#define MUST(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			ck_abort_msg("line %d: not true: %s", __LINE__, #cond);                                        \
	} while (0)

enum { N = 16 };
static struct conf_backend backends[N];
static char hosts[N][16];

static struct conf_output some(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		snprintf(hosts[i], sizeof(hosts[i]), "10.0.0.%u", i);
		backends[i] = (struct conf_backend){.host = hosts[i], .port = 8125, .weight = 1};
	}
	return (struct conf_output){.hash = CONF_HASH_RENDEZVOUS, .backends = backends, .n_backends = n};
}

START_TEST(modulo)
{
	uint16_t map[] = {2, 0, 1, 0, 2};
	struct conf_output cf = some(3);
	cf.hash = CONF_HASH_MODULO;
	cf.shards = map;
	cf.n_shards = ARRAY_LEN(map);
	struct shards *s = shards_new(&cf);
	MUST(s != NULL && s->modulo && s->n == 5);
	for (uint32_t hash = 0; hash < 100000; hash += 7)
		MUST(shards_backend(s, hash) == map[hash % 5]);
	MUST(shards_backend(s, UINT32_MAX) == map[UINT32_MAX % 5]);
	shards_free(s);
	shards_free(NULL);
}
END_TEST

START_TEST(order_does_not_matter)
{
	struct conf_output cf = some(7);
	struct shards *s = shards_new(&cf);
	MUST(s != NULL && !s->modulo && s->n == HASH_SLOTS);
	for (unsigned i = 0; i < 3; i++) {
		struct conf_backend swap = backends[i];
		backends[i] = backends[6 - i];
		backends[6 - i] = swap;
	}
	struct shards *turned = shards_new(&cf);
	for (uint32_t slot = 0; slot < HASH_SLOTS; slot++)
		MUST(turned->map[slot] == 6 - s->map[slot]);
	shards_free(s);
	shards_free(turned);
}
END_TEST

START_TEST(names_and_weights)
{
	struct conf_output cf = some(4);
	struct shards *s = shards_new(&cf);
	backends[2].host = (char *)"192.0.2.1"; /* moved, and keeps its keys by its name */
	backends[2].name = (char *)"10.0.0.2:8125";
	struct shards *moved = shards_new(&cf);
	MUST(memcmp(s->map, moved->map, HASH_SLOTS * sizeof(uint16_t)) == 0);
	backends[1].weight = 0;
	backends[3].weight = 2;
	struct shards *weighted = shards_new(&cf);
	unsigned share[4] = {0};
	for (uint32_t slot = 0; slot < HASH_SLOTS; slot++)
		share[weighted->map[slot]]++;
	MUST(share[1] == 0);
	MUST(share[3] > HASH_SLOTS / 2 - 700 && share[3] < HASH_SLOTS / 2 + 700);
	shards_free(s);
	shards_free(moved);
	shards_free(weighted);
}
END_TEST

START_TEST(one_more_takes_its_share_only)
{
	struct conf_output cf = some(9);
	struct shards *s = shards_new(&cf);
	cf = some(10);
	struct shards *more = shards_new(&cf);
	unsigned moved = 0;
	for (uint32_t slot = 0; slot < HASH_SLOTS; slot++)
		if (s->map[slot] != more->map[slot]) {
			MUST(more->map[slot] == 9);
			moved++;
		}
	MUST(moved < HASH_SLOTS / 10 + HASH_SLOTS / 100);
	shards_free(s);
	shards_free(more);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("shards");
	TCase *tc = tcase_create("shards");
	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, modulo);
	tcase_add_test(tc, order_does_not_matter);
	tcase_add_test(tc, names_and_weights);
	tcase_add_test(tc, one_more_takes_its_share_only);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
