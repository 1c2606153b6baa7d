/* SPDX-License-Identifier: MIT
 *
 * monitor: one process beside the workers. It reads all counter pages once a second, keeps ten minutes of the main
 * rates, samples the host, and answers HTTP: /metrics, /healthz, /readyz, /api/status and the page. It writes the
 * monitor's page only, reads no traffic, and may die at any time: the master starts the next one, and nothing is lost
 * but its history.
 */
#ifndef MONITOR_H
#define MONITOR_H

#include <base.h>

struct conf;
struct stats;

/* What it needs of the master. All is made before fork. */
struct monitor_setup {
	const struct conf *cf;
	const struct identity *identity; /* whom it becomes */
	struct stats *stats;
	int link;            /* our end */
	int http_fd;         /* listens; -1: no HTTP */
	uint16_t http_port;
	int64_t master_pid;
};

/* Runs in the child right after fork, with all signals blocked; never returns. Mappings that only a worker may have are
 * given up before. */
_Noreturn void monitor_run(const struct monitor_setup *setup);

#endif
