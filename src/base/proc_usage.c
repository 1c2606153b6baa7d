/* SPDX-License-Identifier: MIT
 *
 * proc_usage: what a process has used, from /proc/PID/stat (man 5 proc). Any process may ask about any other.
 */
#include <base.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int proc_usage_parse(const char *stat, struct proc_usage *u)
{
	unsigned long long user, system, started, pages;
	char state;
	/* the name before may hold anything, parentheses and spaces too */
	const char *rest = strrchr(stat, ')');
	if (!rest || sscanf(rest + 1,
			    " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %llu %*u "
			    "%llu",
			    &state, &user, &system, &started, &pages) != 5)
		return -EINVAL;
	long ticks = sysconf(_SC_CLK_TCK);
	*u = (struct proc_usage){
	    .cpu_us = (user + system) * (1000000 / (uint64_t)MAX(ticks, 1)),
	    .memory_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE),
	    .started_ticks = started,
	    .is_stopped = state == 'T' || state == 't',
	};
	return 0;
}

int proc_usage(int64_t pid, struct proc_usage *u)
{
	char path[40], text[1024];
	snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd == -1)
		return -ESRCH;
	ssize_t n = read(fd, text, sizeof text - 1);
	close(fd);
	if (n <= 0)
		return -ESRCH;
	text[n] = '\0';
	return proc_usage_parse(text, u);
}
