/* SPDX-License-Identifier: MIT
 *
 * node: a YAML document as a tree with line numbers. Private to conf.
 */
#ifndef CONF_NODE_H
#define CONF_NODE_H

#include "load.h"

enum conf_node_kind { CONF_NODE_SCALAR, CONF_NODE_LIST, CONF_NODE_MAP };

/* An alias is the very node of its anchor, so what looks like a tree may share parts: never walk all of it, only what
 * the option table asks for. */
struct conf_node {
	enum conf_node_kind kind;
	int line;
	bool is_null;	/* a scalar without text and quotes, "~" or "null" */
	char *text;	/* of a scalar; without NUL bytes within */
	struct conf_node **items; /* of a list; of a map: key, value, key, value, … */
	size_t n, size;
};

/* Owns every node. */
struct conf_tree {
	struct conf_node **nodes;
	size_t n, size;
	struct conf_node *root; /* NULL: an empty document */
};

enum { CONF_NODES_MAX = 1000000, CONF_DEPTH_MAX = 16, CONF_ANCHORS_MAX = 1000 };

/* Reads the bytes. 0; -1 when it is no usable YAML (said to ld). Free the tree in any case. */
int conf_tree_read(struct conf_tree *tree, const char *bytes, size_t len, struct conf_load *ld);
void conf_tree_free(struct conf_tree *tree);

#endif
