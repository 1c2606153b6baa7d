/* SPDX-License-Identifier: MIT
 *
 * yaml: libyaml's events to a tree of nodes with lines. Everything that a hostile file could blow up is bounded here:
 * depth, nodes, anchors; an alias is a pointer, so a bomb of aliases stays as small as its file. Knows no option.
 */
#include "mem.h"
#include "node.h"

#include <string.h>
#include <yaml.h>

struct reader {
	struct conf_load *ld;
	struct conf_tree *tree;
	struct conf_node *open[CONF_DEPTH_MAX]; /* lists and maps that have not ended */
	size_t depth;
	struct anchor {
		char *name;
		struct conf_node *node;
	} * anchors;
	size_t n_anchors, anchors_size;
	bool has_document, is_done;
};

static int out_of_memory(struct reader *r)
{
	r->ld->no_memory = true;
	return -1;
}

/* A list or map as an item of the one that is open, or as the root. */
static int attach(struct reader *r, struct conf_node *node)
{
	if (r->depth == 0) {
		r->tree->root = node;
		return 0;
	}
	struct conf_node *parent = r->open[r->depth - 1];
	struct conf_node **items = conf_mem_grow(parent->items, &parent->size, parent->n, sizeof(*items));
	if (!items)
		return out_of_memory(r);
	parent->items = items;
	items[parent->n++] = node;
	return 0;
}

static int add_anchor(struct reader *r, const yaml_char_t *name, struct conf_node *node)
{
	if (!name)
		return 0;
	if (r->n_anchors == CONF_ANCHORS_MAX) {
		conf_load_error(r->ld, node->line, NULL, "has more than %d anchors (&NAME); use fewer",
				CONF_ANCHORS_MAX);
		return -1;
	}
	struct anchor *anchors = conf_mem_grow(r->anchors, &r->anchors_size, r->n_anchors, sizeof(*anchors));
	if (!anchors)
		return out_of_memory(r);
	r->anchors = anchors;
	char *copy = conf_mem_copy((const char *)name, strlen((const char *)name));
	if (!copy)
		return out_of_memory(r);
	anchors[r->n_anchors++] = (struct anchor){copy, node};
	return 0;
}

/* A node that belongs to the tree; NULL when there is no room (said). */
static struct conf_node *new_node(struct reader *r, enum conf_node_kind kind, const yaml_event_t *event)
{
	int line = (int)event->start_mark.line + 1;
	if (r->tree->n == CONF_NODES_MAX) {
		conf_load_error(r->ld, line, NULL, "has more than %d values; that is no configuration", CONF_NODES_MAX);
		return NULL;
	}
	struct conf_node **nodes = conf_mem_grow(r->tree->nodes, &r->tree->size, r->tree->n, sizeof(*nodes));
	if (nodes)
		r->tree->nodes = nodes;
	struct conf_node *node = nodes ? conf_mem_new(sizeof(*node)) : NULL;
	if (!node) {
		out_of_memory(r);
		return NULL;
	}
	node->kind = kind;
	node->line = line;
	nodes[r->tree->n++] = node;
	return node;
}

static bool is_null(const yaml_event_t *event)
{
	const char *s = (const char *)event->data.scalar.value;
	return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
	       (!*s || strcmp(s, "~") == 0 || strcmp(s, "null") == 0);
}

static int on_scalar(struct reader *r, const yaml_event_t *event)
{
	struct conf_node *node = new_node(r, CONF_NODE_SCALAR, event);
	if (!node)
		return -1;
	const char *s = (const char *)event->data.scalar.value;
	if (memchr(s, '\0', event->data.scalar.length))
		conf_load_error(r->ld, node->line, NULL, "a text with a NUL byte in it (\\0); no option can hold that");
	node->is_null = is_null(event);
	node->text = conf_mem_copy(s, strlen(s));
	if (!node->text)
		return out_of_memory(r);
	return add_anchor(r, event->data.scalar.anchor, node) == 0 ? attach(r, node) : -1;
}

static int on_start(struct reader *r, enum conf_node_kind kind, const yaml_event_t *event, const yaml_char_t *anchor)
{
	struct conf_node *node = new_node(r, kind, event);
	if (!node || add_anchor(r, anchor, node) == -1 || attach(r, node) == -1)
		return -1;
	if (r->depth == CONF_DEPTH_MAX) {
		conf_load_error(r->ld, node->line, NULL, "is nested too deep; at most %d levels are allowed",
				CONF_DEPTH_MAX);
		return -1;
	}
	r->open[r->depth++] = node;
	return 0;
}

static int on_alias(struct reader *r, const yaml_event_t *event)
{
	const char *name = (const char *)event->data.alias.anchor;
	int line = (int)event->start_mark.line + 1;
	char shown[80];
	struct conf_node *node = NULL;
	for (size_t i = r->n_anchors; i-- > 0 && !node;)
		if (strcmp(r->anchors[i].name, name) == 0)
			node = r->anchors[i].node;
	text_escape(shown, sizeof(shown), name, strlen(name));
	for (size_t i = 0; i < r->depth; i++) {
		if (node && r->open[i] == node) {
			conf_load_error(r->ld, line, NULL, "alias *%s stands within its own anchor", shown);
			return -1;
		}
	}
	if (!node) {
		conf_load_error(r->ld, line, NULL, "alias *%s has no anchor &%s before it", shown, shown);
		return -1;
	}
	return attach(r, node);
}

static int on_document(struct reader *r, const yaml_event_t *event)
{
	if (r->has_document) {
		conf_load_error(r->ld, (int)event->start_mark.line + 1, NULL,
				"a second YAML document begins; only one is allowed");
		return -1;
	}
	r->has_document = true;
	return 0;
}

static int on_event(struct reader *r, const yaml_event_t *event)
{
	switch (event->type) {
	case YAML_NO_EVENT:
	case YAML_STREAM_START_EVENT:
	case YAML_DOCUMENT_END_EVENT:
		return 0;
	case YAML_STREAM_END_EVENT:
		r->is_done = true;
		return 0;
	case YAML_DOCUMENT_START_EVENT:
		return on_document(r, event);
	case YAML_ALIAS_EVENT:
		return on_alias(r, event);
	case YAML_SCALAR_EVENT:
		return on_scalar(r, event);
	case YAML_SEQUENCE_START_EVENT:
		return on_start(r, CONF_NODE_LIST, event, event->data.sequence_start.anchor);
	case YAML_MAPPING_START_EVENT:
		return on_start(r, CONF_NODE_MAP, event, event->data.mapping_start.anchor);
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		r->depth--;
		return 0;
	}
	return 0;
}

/* libyaml's own words. Its reader (bytes that are no text) knows only an offset. */
static void say_syntax(struct conf_load *ld, const yaml_parser_t *parser, const char *bytes, size_t len)
{
	if (parser->error == YAML_MEMORY_ERROR) {
		ld->no_memory = true;
		return;
	}
	if (parser->error == YAML_READER_ERROR) {
		int line = 1;
		for (size_t i = 0; i < MIN(len, parser->problem_offset); i++)
			line += bytes[i] == '\n';
		conf_load_error(ld, line, NULL, "is not YAML: %s", parser->problem);
		return;
	}
	int line = (int)parser->problem_mark.line + 1;
	if (parser->context)
		conf_load_error(ld, line, NULL, "is not YAML: %s (%s from line %d on)", parser->problem,
				parser->context, (int)parser->context_mark.line + 1);
	else
		conf_load_error(ld, line, NULL, "is not YAML: %s", parser->problem);
}

int conf_tree_read(struct conf_tree *tree, const char *bytes, size_t len, struct conf_load *ld)
{
	struct reader r = {.ld = ld, .tree = tree};
	yaml_parser_t parser;
	yaml_event_t event;
	int rc = 0;
	if (!yaml_parser_initialize(&parser))
		return out_of_memory(&r);
	yaml_parser_set_input_string(&parser, (const unsigned char *)bytes, len);
	while (rc == 0 && !r.is_done) {
		if (!yaml_parser_parse(&parser, &event)) {
			say_syntax(ld, &parser, bytes, len);
			rc = -1;
			break;
		}
		rc = on_event(&r, &event);
		yaml_event_delete(&event);
	}
	yaml_parser_delete(&parser);
	for (size_t i = 0; i < r.n_anchors; i++)
		free(r.anchors[i].name);
	free(r.anchors);
	return rc;
}

void conf_tree_free(struct conf_tree *tree)
{
	for (size_t i = 0; i < tree->n; i++) {
		free(tree->nodes[i]->text);
		free(tree->nodes[i]->items);
		free(tree->nodes[i]);
	}
	free(tree->nodes);
	*tree = (struct conf_tree){0};
}
