/* SPDX-License-Identifier: MIT
 *
 * cgroup: how much CPU and memory the cgroups of this process leave it, version 2 and 1 (man 7 cgroups). Read at start and
 * at each reload, in the process that asks; whatever is not understood is no limit.
 */
#include "base_private.h"

#include <base.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* One hierarchy: where it is mounted, and which part of it that mount shows. */
struct hierarchy {
	const char *controller; /* of version 1; NULL: version 2 */
	char mounted[PATH_BYTES], shown[PATH_BYTES], own[PATH_BYTES];
};

static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);
	for (const char *p = list; (p = strstr(p, word)); p += len)
		if ((p == list || p[-1] == ',') && (p[len] == '\0' || p[len] == ','))
			return true;
	return false;
}

/* /proc/self/mountinfo: "36 31 0:33 /shown /mounted options [tags] - cgroup2 source superoptions" (man 5 proc). */
static bool find_mount(const char *root, struct hierarchy *h)
{
	char line[3 * PATH_BYTES], path[PATH_BYTES];
	bool found = false;
	snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		char type[32], options[512];
		const char *rest = strstr(line, " - ");
		if (!rest || sscanf(rest, " - %31s %*s %511s", type, options) != 2 ||
		    sscanf(line, "%*s %*s %*s %4095s %4095s", h->shown, h->mounted) != 2)
			continue;
		found = h->controller ? strcmp(type, "cgroup") == 0 && has_word(options, h->controller)
				      : strcmp(type, "cgroup2") == 0;
	}
	if (f)
		fclose(f);
	return found;
}

/* /proc/self/cgroup: "4:cpu,cpuacct:/path", and "0::/path" for version 2. */
static bool find_own(const char *root, struct hierarchy *h)
{
	char line[PATH_BYTES + 512], path[PATH_BYTES];
	bool found = false;
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	FILE *f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f)) {
		char *controllers = strchr(line, ':'), *own = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!own)
			continue;
		*own++ = '\0';
		found = h->controller ? has_word(controllers + 1, h->controller) : controllers[1] == '\0';
		own[strcspn(own, "\n")] = '\0';
		snprintf(h->own, sizeof(h->own), "%s", own);
	}
	if (f)
		fclose(f);
	return found;
}

static bool read_line(const char *folder, const char *file, char *line, size_t size)
{
	char path[3 * PATH_BYTES];
	snprintf(path, sizeof(path), "%s/%s", folder, file);
	FILE *f = fopen(path, "re");
	bool got = f && fgets(line, (int)size, f);
	if (f)
		fclose(f);
	if (got)
		line[strcspn(line, "\n")] = '\0';
	return got;
}

static void take_cpus(struct cgroup_limits *l, const char *quota, const char *period)
{
	uint64_t q, p; /* "max" and "-1" are no numbers */
	if (text_parse_uint(quota, &q) == 0 && text_parse_uint(period, &p) == 0 && q > 0 && p > 0) {
		double cpus = (double)q / (double)p;
		l->cpus = l->cpus > 0 ? MIN(l->cpus, cpus) : cpus;
	}
}

static void take_memory(struct cgroup_limits *l, const char *bytes)
{
	uint64_t n; /* version 1 says "none" by a number of pages that no machine has */
	if (text_parse_uint(bytes, &n) == 0 && n < UINT64_C(1) << 60)
		l->memory_bytes = l->memory_bytes ? MIN(l->memory_bytes, n) : n;
}

static void read_folder(struct cgroup_limits *l, const struct hierarchy *h, const char *folder)
{
	char line[128], other[128];
	if (!h->controller) {
		if (read_line(folder, "cpu.max", line, sizeof(line))) {
			char *period = line;
			char *quota = strsep(&period, " ");
			take_cpus(l, quota, period ? period : "");
		}
		if (read_line(folder, "memory.max", line, sizeof(line)))
			take_memory(l, line);
	} else if (strcmp(h->controller, "cpu") == 0) {
		if (read_line(folder, "cpu.cfs_quota_us", line, sizeof(line)) &&
		    read_line(folder, "cpu.cfs_period_us", other, sizeof(other)))
			take_cpus(l, line, other);
	} else if (read_line(folder, "memory.limit_in_bytes", line, sizeof(line))) {
		take_memory(l, line);
	}
}

void cgroup_limits(const char *root, struct cgroup_limits *l)
{
	static const char *const controllers[] = {NULL, "cpu", "memory"};
	*l = (struct cgroup_limits){0};
	for (size_t i = 0; i < ARRAY_LEN(controllers); i++) {
		struct hierarchy h = {.controller = controllers[i]};
		if (!find_mount(root, &h) || !find_own(root, &h))
			continue;
		/* A container may see only its own part of the hierarchy, and its path from the root of the whole. */
		size_t shown = strcmp(h.shown, "/") == 0 ? 0 : strlen(h.shown);
		const char *own = strncmp(h.own, h.shown, shown) == 0 ? h.own + shown : "";
		char folder[3 * PATH_BYTES];
		size_t top = (size_t)snprintf(folder, sizeof(folder), "%s%s", root, h.mounted);
		snprintf(folder + top, sizeof(folder) - top, "%s", strncmp(own, "/..", 3) == 0 ? "" : own);
		/* The limits of all groups above hold as well. */
		for (char *slash = folder; slash; slash = strrchr(folder + top, '/')) {
			if (slash != folder)
				*slash = '\0';
			read_folder(l, &h, folder);
		}
	}
}
