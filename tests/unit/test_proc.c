/* SPDX-License-Identifier: MIT
 *
 * test_proc: descriptors, CPUs, the title, and the clocks. Each test is a process of its own (check forks).
 */
#include "suite.h"
#include "../../src/base/base_private.h"

#include <base.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 200 };

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) != -1;
}

static void open_many(void)
{
	for (int fd = 3; fd < MANY; fd++)
		if (!is_open(fd))
			ck_assert_int_eq(dup2(STDIN_FILENO, fd), fd);
}

/* check reports through a descriptor of its own, so failures are told by exit code. */
#define OR_EXIT(cond)                                                                                                  \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			_exit(__LINE__ % 250 + 1);                                                                     \
	} while (0)

START_TEST(close_others)
{
	open_many();
	const int keep[] = {150, -1, 7, 8, 3, 199, 7, 1, 5000};
	proc_close_others(keep, ARRAY_LEN(keep));
	for (int fd = 0; fd < MANY + 50; fd++)
		OR_EXIT(is_open(fd) == (fd < 4 || fd == 7 || fd == 8 || fd == 150 || fd == 199));
	proc_close_others(NULL, 0);
	for (int fd = 0; fd < MANY + 50; fd++)
		OR_EXIT(is_open(fd) == (fd < 3));
	_exit(0);
}
END_TEST

START_TEST(close_slowly)
{
	open_many();
	proc_close_span_slowly(20, 99);
	for (int fd = 0; fd < MANY; fd++)
		OR_EXIT(is_open(fd) == (fd < 20 || fd > 99));
	_exit(0);
}
END_TEST

/* A small tree of /proc and mounts; `files` are pairs of path and content. */
static struct cgroup_limits limits_of(const char *const *files)
{
	char root[] = "/tmp/test_proc.XXXXXX", command[600];
	ck_assert_ptr_nonnull(mkdtemp(root));
	for (; *files; files += 2) {
		char path[256];
		snprintf(path, sizeof(path), "%s/%s", root, files[0]);
		snprintf(command, sizeof(command), "mkdir -p $(dirname %s)", path);
		ck_assert_int_eq(system(command), 0);
		FILE *f = fopen(path, "w");
		ck_assert_ptr_nonnull(f);
		fputs(files[1], f);
		fclose(f);
	}
	struct cgroup_limits l;
	cgroup_limits(root, &l);
	snprintf(command, sizeof(command), "rm -rf %s", root);
	ck_assert_int_eq(system(command), 0);
	return l;
}

#define MOUNT2(shown) "31 23 0:28 / /sys rw - sysfs sysfs rw\n41 31 0:38 " shown " /cg rw,relatime - cgroup2 cgroup2 rw\n"
#define MOUNT1(shown)                                                                                                  \
	"32 31 0:29 " shown " /cg/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n"                            \
	"33 31 0:30 " shown " /cg/memory rw - cgroup cgroup rw,memory\n34 31 0:31 / /cg/cpuset rw - cgroup cgroup "    \
	"rw,cpuset\n"
#define LIMITS(cpus_, memory_, ...)                                                                                    \
	do {                                                                                                           \
		struct cgroup_limits l = limits_of((const char *const[]){__VA_ARGS__, NULL});                          \
		ck_assert_double_eq(l.cpus, cpus_);                                                                    \
		ck_assert_uint_eq(l.memory_bytes, memory_);                                                            \
	} while (0)
#define INFO   "proc/self/mountinfo"
#define CGROUP "proc/self/cgroup"

START_TEST(limits_of_cgroups)
{
	LIMITS(0, 0, CGROUP, "0::/\n");
	LIMITS(0, 0, INFO, MOUNT2("/"), CGROUP, "0::/a\n", "cg/a/cpu.max", "max 100000\n", "cg/a/memory.max", "max\n");
	LIMITS(0.5, 134217728, INFO, MOUNT2("/"), CGROUP, "0::/a/b\n", "cg/a/b/cpu.max", "50000 100000\n",
	       "cg/a/b/memory.max", "134217728\n");
	/* the least of those above holds, also where our own says nothing */
	LIMITS(1.5, 1000, INFO, MOUNT2("/"), CGROUP, "0::/a/b\n", "cg/a/b/cpu.max", "400000 100000\n", "cg/a/cpu.max",
	       "150000 100000\n", "cg/a/memory.max", "1000\n", "cg/a/b/memory.max", "max\n");
	/* a container sees its own part, with or without a namespace of cgroups */
	LIMITS(2, 7, INFO, MOUNT2("/"), CGROUP, "0::/\n", "cg/cpu.max", "200000 100000\n", "cg/memory.max", "7\n");
	LIMITS(2, 7, INFO, MOUNT2("/docker/x"), CGROUP, "0::/docker/x\n", "cg/cpu.max", "200000 100000\n",
	       "cg/memory.max", "7\n");
	LIMITS(2, 0, INFO, MOUNT2("/"), CGROUP, "0::/../../x\n", "cg/cpu.max", "200000 100000\n");
	LIMITS(0.25, 4096, INFO, MOUNT1("/"), CGROUP, "4:memory:/m\n3:cpu,cpuacct:/c\n2:cpuset:/c\n0::/\n",
	       "cg/cpu,cpuacct/c/cpu.cfs_quota_us", "25000\n", "cg/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n",
	       "cg/memory/m/memory.limit_in_bytes", "4096\n", "cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
	LIMITS(0, 0, INFO, MOUNT1("/"), CGROUP, "3:cpu,cpuacct:/c\n", "cg/cpu,cpuacct/c/cpu.cfs_quota_us", "-1\n",
	       "cg/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
	LIMITS(0, 0, INFO, MOUNT2("/"), CGROUP, "0::/a\n", "cg/a/cpu.max", "\n", "cg/a/memory.max", "-1x");
}
END_TEST

START_TEST(cpus_and_title)
{
	ck_assert_uint_ge(proc_cpus(), 1);
	cpu_set_t set, one;
	ck_assert_int_eq(sched_getaffinity(0, sizeof(set), &set), 0);
	ck_assert_uint_le(proc_cpus(), (unsigned)CPU_COUNT(&set)); /* less with a quota */
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &set))
			CPU_SET(i, &one);
	ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
	ck_assert_uint_eq(proc_cpus(), 1);

	char name[17] = {0};
	proc_set_title("mr: worker 12 and a long tail");
	ck_assert_int_eq(prctl(PR_GET_NAME, name), 0);
	ck_assert_str_eq(name, "mr: worker 12 a");
}
END_TEST

START_TEST(clocks)
{
	uint64_t real = clock_real_us(), begin = clock_us();
	ck_assert(real / 1000000 - (uint64_t)time(NULL) + 1 <= 2);
	struct timespec ts = {0, 2000000};
	nanosleep(&ts, NULL);
	uint64_t took = clock_us() - begin;
	ck_assert(took >= 2000 && took < 10000000);
}
END_TEST

START_TEST(standard_descriptors)
{
	close(STDIN_FILENO);
	close(STDERR_FILENO);
	proc_fill_standard();
	ck_assert(is_open(STDIN_FILENO) && is_open(STDOUT_FILENO) && is_open(STDERR_FILENO));
	int next = open("/dev/null", O_RDONLY);
	ck_assert_int_gt(next, STDERR_FILENO);
	close(next);
	proc_fill_standard(); /* nothing is left open */
	ck_assert_int_eq(open("/dev/null", O_RDONLY), next);
	close(next);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("proc");
	TCase *tc = tcase_create("proc");
	tcase_add_exit_test(tc, close_others, 0);
	tcase_add_exit_test(tc, close_slowly, 0);
	tcase_add_test(tc, standard_descriptors);
	tcase_add_test(tc, limits_of_cgroups);
	tcase_add_test(tc, cpus_and_title);
	tcase_add_test(tc, clocks);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
