/* SPDX-License-Identifier: MIT
 *
 * test_conf_map: the reader and the writer of MAP options (string to string). Includes read.c, since what is read into
 * an option of any row is its own; the row here is the test's.
 */
#include "suite.h"
#include "../../src/conf/read.c"

static const struct conf_row row = {.type = "MAP", .name = "properties", .def = "", .min = "", .max = ""};

/* Reads `yaml` as the value of the row; returns its errors, without the file. */
static char *read_yaml(const char *yaml, struct conf_map *map)
{
	struct conf_load ld = {.name = "f"};
	struct conf_tree tree = {0};
	struct conf_errors errors = {0};
	ck_assert_int_eq(conf_tree_read(&tree, yaml, strlen(yaml), &ld), 0);
	read_option(&ld, &row, tree.root, "outputs.k.properties", map);
	conf_load_give_errors(&ld, &errors);
	conf_tree_free(&tree);
	return errors.text.s;
}

static void end(struct conf_map *map)
{
	for (size_t i = 0; i < map->n; i++) {
		free(map->keys[i]);
		free(map->values[i]);
	}
	free(map->keys);
	free(map->values);
	free(map->lines);
}

START_TEST(map_round_trip)
{
	struct conf_map map = {0}, again = {0};
	struct text t = {0};
	ck_assert_ptr_null(read_yaml("linger.ms: 5\nbootstrap.servers: \"k1:9092,k2:9092\"\nempty:\n"
				     "\"x y\": \"1\\n2 \u00e9\"\n",
				     &map));
	ck_assert_uint_eq(map.n, 4);
	ck_assert_str_eq(map.keys[0], "linger.ms");
	ck_assert_str_eq(map.values[0], "5");
	ck_assert_str_eq(map.values[2], "");
	ck_assert_int_eq(map.lines[3], 4);
	conf_value_format(&row, &map, &t);
	ck_assert_str_eq(t.s, "{ \"linger.ms\": \"5\", \"bootstrap.servers\": \"k1:9092,k2:9092\", \"empty\": \"\", "
			      "\"x y\": \"1\\x0a2 \\xe9\" }");
	ck_assert_ptr_null(read_yaml(t.s, &again));
	ck_assert_uint_eq(again.n, 4);
	for (size_t i = 0; i < 4; i++) {
		ck_assert_str_eq(map.keys[i], again.keys[i]);
		ck_assert_str_eq(map.values[i], again.values[i]);
	}
	end(&map);
	end(&again);
	text_free(&t);
}
END_TEST

START_TEST(map_errors)
{
	static const struct {
		const char *yaml, *error;
	} rows[] = {
		{"[a]", "f:1: outputs.k.properties: is no map; allowed is a map of names to texts\n"},
		{"a", "f:1: outputs.k.properties: is no map; allowed is a map of names to texts\n"},
		{"b: 1\na: [1]",
		 "f:2: outputs.k.properties: holds a list or a map; allowed is a map of names to texts\n"},
		{"a: 1\nb: 2\na: 3", "f:3: outputs.k.properties.a: is given twice, first in line 1; allowed is once\n"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct conf_map map = {0};
		char *errors = read_yaml(rows[i].yaml, &map);
		ck_assert_str_eq(errors, rows[i].error);
		free(errors);
		end(&map);
	}
}
END_TEST

START_TEST(map_empty_and_too_large)
{
	struct conf_map map = {0};
	struct text t = {0};
	ck_assert_ptr_null(read_yaml("~", &map));
	conf_value_format(&row, &map, &t);
	ck_assert_str_eq(t.s, "{}");
	text_free(&t);
	for (int i = 0; i < CONF_LIST_MAX + 1; i++)
		text_add(&t, "k%d: v\n", i);
	char *errors = read_yaml(t.s, &map);
	ck_assert_str_eq(errors, "f:1: outputs.k.properties: has 1025 entries; allowed are at most 1024\n");
	free(errors);
	text_free(&t);
	end(&map);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("conf_map");
	TCase *tc = tcase_create("map");
	tcase_add_test(tc, map_round_trip);
	tcase_add_test(tc, map_errors);
	tcase_add_test(tc, map_empty_and_too_large);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
