/* SPDX-License-Identifier: MIT
 *
 * fastcapa_ini: Fastcapa's ini file, properties of librdkafka in two groups, into a kafka output. Pure.
 */
#include "fastcapa.h"
#include "mem.h"

#include <ctype.h>
#include <string.h>

struct ini {
	struct conf_load *ld;
	struct conf_output *out;
	bool is_ours; /* in a group that is read */
	bool has_group;
};

/* The value that counts is the last, and that of the topic. */
static void set_property(struct conf_load *ld, struct conf_map *map, const char *key, const char *value, int line)
{
	for (size_t i = 0; i < map->n; i++) {
		if (strcmp(map->keys[i], key) != 0)
			continue;
		char *copy = conf_mem_copy(value, strlen(value));
		if (!copy) {
			ld->no_memory = true;
			return;
		}
		free(map->values[i]);
		map->values[i] = copy;
		map->lines[i] = line;
		return;
	}
	conf_map_add(ld, map, key, value, line);
}

static void take_group(struct ini *ini, char *name, int line)
{
	char *end = strchr(name, ']'), shown[100];
	if (!end || end[1]) {
		conf_load_error(ini->ld, line, NULL, "a group is written [kafka-global] or [kafka-topic]");
		return;
	}
	*end = '\0';
	ini->has_group = true;
	ini->is_ours = strcmp(name, "kafka-global") == 0 || strcmp(name, "kafka-topic") == 0;
	if (!ini->is_ours)
		conf_load_note(ini->ld, line, text_escape(shown, sizeof(shown), name, strlen(name)),
			       "is no group that is read; there are kafka-global and kafka-topic");
}

static char *trim(char *s)
{
	char *end = s + strlen(s);
	while (*s == ' ' || *s == '\t')
		s++;
	while (end > s && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return s;
}

/* Properties that would work against what is promised, or that librdkafka does not know any more. */
static const char *is_pointless(const char *key)
{
	static const char *const rows[][2] = {
	    {"delivery.report.only.error", "has no effect: every packet is accounted for"},
	    {"produce.offset.report", "has no effect: offsets are not looked at"},
	};
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (strcmp(rows[i][0], key) == 0)
			return rows[i][1];
	return NULL;
}

static void take_line(struct ini *ini, char *text, int line)
{
	char *at = trim(text), *equals = strchr(at, '=');
	if (*at == '\0' || *at == '#')
		return;
	if (*at == '[') {
		take_group(ini, at + 1, line);
		return;
	}
	if (!equals || equals == at) {
		conf_load_error(ini->ld, line, NULL, "is no KEY = VALUE, no [group] and no # comment");
		return;
	}
	*equals = '\0';
	const char *key = trim(at), *value = trim(equals + 1);
	char shown[100];
	if (!ini->has_group)
		conf_load_error(ini->ld, line, text_escape(shown, sizeof(shown), key, strlen(key)),
				"stands before any group; write [kafka-global] or [kafka-topic] above it");
	else if (ini->is_ours && is_pointless(key))
		conf_load_note(ini->ld, line, key, "%s", is_pointless(key));
	else if (ini->is_ours)
		set_property(ini->ld, &ini->out->properties, key, value, line);
}

/* Topic properties are taken as well where the global ones are (rd_kafka_conf_set), and in Fastcapa's README one of the
 * global ones stands with those of the topic: both groups are one. */
void conf_fastcapa_ini(struct conf_load *ld, struct conf_output *out, const char *bytes, size_t len)
{
	struct ini ini = {.ld = ld, .out = out};
	char *text = conf_mem_copy(bytes, len), *at = text, *next;
	if (!text) {
		ld->no_memory = true;
		return;
	}
	for (int line = 1; at && !ld->no_memory; line++, at = next) {
		next = strchr(at, '\n');
		if (next)
			*next++ = '\0';
		take_line(&ini, at, line);
	}
	free(text);
}
