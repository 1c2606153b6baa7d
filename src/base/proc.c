/* SPDX-License-Identifier: MIT
 *
 * proc: facts about this process and its descriptors. Called in each process for itself, right after fork; does not
 * fork, wait or signal.
 */
#include "base_private.h"

#include <base.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static unsigned cpus_of_set(void)
{
	/* The kernel refuses a mask shorter than its own (EINVAL, man 2 sched_setaffinity), which may be over 1,024. */
	for (size_t cpus = 1024; cpus <= 1024 * 1024; cpus *= 4) {
		cpu_set_t *set = CPU_ALLOC(cpus);
		if (!set)
			break;
		size_t size = CPU_ALLOC_SIZE(cpus);
		int r = sched_getaffinity(0, size, set), err = errno;
		int n = r == -1 ? 0 : CPU_COUNT_S(size, set);
		CPU_FREE(set);
		if (r != -1)
			return n > 0 ? (unsigned)n : 1;
		if (err != EINVAL)
			break;
	}
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	return n > 0 ? (unsigned)n : 1;
}

unsigned proc_cpus(void)
{
	struct cgroup_limits limits;
	unsigned n = cpus_of_set();
	cgroup_limits("", &limits);
	if (limits.cpus <= 0 || limits.cpus >= n)
		return n;
	unsigned whole = (unsigned)limits.cpus;
	return MAX(1, whole + (limits.cpus > whole));
}

int proc_write(int fd, const void *bytes, size_t len)
{
	for (const char *at = bytes; len > 0;) {
		ssize_t n = write(fd, at, len);
		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			return n == 0 ? -ENOSPC : -errno;
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

void proc_close_span_slowly(unsigned first, unsigned last)
{
	DIR *dir = opendir("/proc/self/fd");
	if (!dir) {
		long max = sysconf(_SC_OPEN_MAX);
		for (unsigned fd = first; fd <= last && fd < (max > 0 ? (unsigned)max : 65536); fd++)
			close((int)fd);
		return;
	}
	/* Entries may be skipped when descriptors go while the directory is read: again until a pass closes nothing. */
	unsigned closed;
	do {
		closed = 0;
		rewinddir(dir);
		for (struct dirent *entry; (entry = readdir(dir));) {
			uint64_t fd;
			if (text_parse_uint(entry->d_name, &fd) != 0 || fd < first || fd > last ||
			    fd == (uint64_t)dirfd(dir))
				continue;
			closed += close((int)fd) == 0;
		}
	} while (closed);
	closedir(dir);
}

static void close_span(unsigned first, unsigned last)
{
	if (close_range(first, last, 0) == -1)
		proc_close_span_slowly(first, last);
}

void proc_close_others(const int *keep, size_t n)
{
	log_syslog_close();
	log_journal_close();
	unsigned from = 3, log = (unsigned)log_file_fd(); /* -1: UINT_MAX */
	for (;;) {
		/* The next descriptor to keep. Few are kept, so that looking for it each time beats a sorted copy. */
		unsigned next = log >= from ? log : UINT_MAX;
		for (size_t i = 0; i < n; i++)
			if (keep[i] >= 0 && (unsigned)keep[i] >= from && (unsigned)keep[i] < next)
				next = (unsigned)keep[i];
		if (next > from)
			close_span(from, next == UINT_MAX ? UINT_MAX : next - 1);
		if (next == UINT_MAX)
			return;
		from = next + 1;
	}
}

void proc_fill_standard(void)
{
	int fd;
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd > STDERR_FILENO)
		close(fd);
}

void proc_leave_terminal(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int i = 0; fd != -1 && i <= STDERR_FILENO; i++)
		dup2(fd, i);
	if (fd > STDERR_FILENO)
		close(fd);
}

void proc_child_signals(void)
{
	static const int deadly[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};
	sigset_t blocked;
	sigfillset(&blocked);
	for (size_t i = 0; i < ARRAY_LEN(deadly); i++)
		sigdelset(&blocked, deadly[i]);
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL); /* SIGKILL and SIGSTOP refuse */
	sigprocmask(SIG_SETMASK, &blocked, NULL);
}

void proc_set_title(const char *title)
{
	prctl(PR_SET_NAME, title); /* cuts to 15 characters itself (man 2 prctl) */
}
