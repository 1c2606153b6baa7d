/* SPDX-License-Identifier: MIT
 *
 * dpdk_eal: DPDK's environment, started once in the master, before fork; workers inherit it. It may not keep what it
 * takes: its threads block every signal, the CPUs are given back, its log goes through ours. Workers never clean it up.
 */
#include "dpdk.h"

#include <input.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_version.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct {
	unsigned users;
	bool has_lcores;
	char *arguments; /* as given, in one text: a second input may repeat them */
	char why[300];
	int *fds;
	size_t n_fds;
	bool was_open[4096]; /* descriptors before the EAL */
} eal;

/* -- log --------------------------------------------------------------------------------------------------------- */

/* One call a line. The first line at level error explains a failure, so it is kept; the rest is for those who debug. */
static ssize_t said(void *cookie, const char *text, size_t len)
{
	(void)cookie;
	size_t n = len;
	while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
		n--;
	unsigned level = (unsigned)rte_log_cur_msg_loglevel();
	if (n == 0)
		return (ssize_t)len;
	char line[256];
	text_escape(line, sizeof line, text, n);
	if (level > 0 && level <= RTE_LOG_ERR) {
		if (!eal.why[0])
			snprintf(eal.why, sizeof eal.why, " (%s)", line);
		log_warn("DPDK: %s", line);
	} else {
		log_debug("DPDK: %s", line);
	}
	return (ssize_t)len;
}

static void log_to_ours(void)
{
	FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = said});
	if (!f)
		return;
	setvbuf(f, NULL, _IOLBF, 1024);
	rte_openlog_stream(f);
}

const char *dpdk_eal_why(void)
{
	return eal.why;
}

void dpdk_eal_forget(void)
{
	eal.why[0] = '\0';
}

/* -- descriptors ------------------------------------------------------------------------------------------------- */

typedef void each_fd(int fd);

static void each_open_fd(each_fd *f)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	while (dir && (entry = readdir(dir)) != NULL) {
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] != '.' && fd != dirfd(dir))
			f(fd);
	}
	if (dir)
		closedir(dir);
}

static void note_before(int fd)
{
	if (fd < (int)ARRAY_LEN(eal.was_open))
		eal.was_open[fd] = true;
}

static void note_after(int fd)
{
	for (size_t i = 0; i < eal.n_fds; i++)
		if (eal.fds[i] == fd)
			return;
	if (fd < 3 || (fd < (int)ARRAY_LEN(eal.was_open) && eal.was_open[fd]))
		return;
	int *grown = realloc(eal.fds, (eal.n_fds + 1) * sizeof *grown);
	if (!grown)
		return;
	eal.fds = grown;
	eal.fds[eal.n_fds++] = fd;
}

void dpdk_eal_note_fds(void)
{
	each_open_fd(note_after);
}

size_t dpdk_eal_fds(const int **fds)
{
	*fds = eal.fds;
	return eal.n_fds;
}

/* -- start ------------------------------------------------------------------------------------------------------- */

static char *in_one_text(const struct dpdk_args *a)
{
	struct text t = {0};
	for (int i = 1; i < a->n; i++)
		text_add(&t, "%s ", a->words[i]);
	return t.s;
}

static int say_failure(const char *input, int code, struct err *err)
{
	const char *hint = "";
	if (strstr(eal.why, "uge") == NULL && (code == EACCES || code == EPERM))
		hint = "; start as root";
	else if (strstr(eal.why, "uge") != NULL || code == ENOMEM)
		hint = "; reserve hugepages (sysctl vm.nr_hugepages), or add --no-huge and -m MEGABYTES to eal";
	return err_set(err, code ? -code : -EINVAL, "Input \"%s\": DPDK does not start: %s%s%s.", input,
		       code ? rte_strerror(code) : "its arguments (eal) are wrong", eal.why, hint);
}

static int init(const struct dpdk_args *a)
{
	/* rte_eal_init moves the words about and cuts them: a copy of the list, and getopt is ours again afterwards */
	char *argv[DPDK_WORDS_MAX + 1];
	memcpy(argv, a->words, sizeof argv);
	sigset_t all, before;
	cpu_set_t cpus;
	sigfillset(&all);
	/* its threads inherit the mask: a TERM that one of them took would end the program at once */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool has_cpus = sched_getaffinity(0, sizeof cpus, &cpus) == 0;
	int r = rte_eal_init(a->n, argv);
	int code = rte_errno;
	if (has_cpus)
		sched_setaffinity(0, sizeof cpus, &cpus);
	/* without --proc-type and shared files there is nothing in it; if there is, it stays */
	if (rte_eal_get_runtime_dir())
		rmdir(rte_eal_get_runtime_dir());
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r < 0 ? -MAX(code, 1) : 0;
}

int dpdk_eal_start(const struct dpdk_args *a, const char *input, struct err *err)
{
	char *arguments = in_one_text(a);
	if (!arguments)
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	if (eal.users > 0) {
		bool same = strcmp(arguments, eal.arguments) == 0;
		free(arguments);
		eal.users += same;
		return same ? 0
			    : err_set(err, -EINVAL,
				      "Input \"%s\": a program starts DPDK once; give all inputs with driver dpdk the "
				      "same eal, with the devices of all of them, and name each one's device in port.",
				      input);
	}
	eal.arguments = arguments;
	eal.has_lcores = a->has_lcores;
	each_open_fd(note_before);
	log_to_ours();
	int r = init(a);
	if (r != 0)
		return say_failure(input, r == -1 && rte_errno == 0 ? 0 : -r, err);
	eal.users = 1;
	dpdk_eal_note_fds();
	return 0;
}

void dpdk_eal_stop(void)
{
	if (eal.users == 0 || --eal.users > 0)
		return;
	rte_eal_cleanup();
	free(eal.fds);
	free(eal.arguments);
	eal.fds = NULL;
	eal.arguments = NULL;
	eal.n_fds = 0;
}

const char *input_dpdk_version(void)
{
	return rte_version();
}

/* -- worker ------------------------------------------------------------------------------------------------------ */

void dpdk_eal_enter(unsigned slot)
{
	unsigned lcore;
	cpu_set_t cpus;
	/* no two processes may have one number: DPDK keeps things by it */
	RTE_PER_LCORE(_lcore_id) = (slot + 1) % RTE_MAX_LCORE;
	if (!eal.has_lcores)
		return;
	CPU_ZERO(&cpus);
	RTE_LCORE_FOREACH(lcore)
	{
		rte_cpuset_t of = rte_lcore_cpuset(lcore);
		CPU_OR(&cpus, &cpus, &of);
	}
	if (CPU_COUNT(&cpus) > 0)
		sched_setaffinity(0, sizeof cpus, &cpus);
}
