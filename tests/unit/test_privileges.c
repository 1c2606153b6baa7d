/* SPDX-License-Identifier: MIT
 *
 * test_privileges: who a process becomes, what it keeps, which system calls are left. Each test is a process of its own
 * (check forks), for nothing of it can be taken back; failures are told by exit code.
 */
#include "suite.h"

#include <base.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/vm_sockets.h> /* needs sys/socket.h before it */

#define OR_EXIT(cond)                                                                                                  \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			_exit(__LINE__ % 250 + 1);                                                                     \
	} while (0)

static struct err err;

/* Whoever runs the test, under the filter. */
static void become(enum privileges_role role)
{
	struct identity id;
	OR_EXIT(identity_find(&id, "", "", "nobody", &err) == 0);
	OR_EXIT(privileges_drop(&id, role, true, &err) == 0);
}

static void be_nobody(void)
{
	OR_EXIT(setgid(65534) == 0 && setuid(65534) == 0);
}

/* -- identity ------------------------------------------------------------------------------------------------------ */

START_TEST(identities_of_root)
{
	struct identity id;
	if (geteuid() != 0)
		_exit(0);
	OR_EXIT(identity_find(&id, "", "", "nobody", &err) == 0);
	OR_EXIT(id.is_root && id.uid == 65534 && id.gid == 65534 && id.n_groups >= 1);
	OR_EXIT(strcmp(id.user, "nobody") == 0 && strcmp(id.group, "nogroup") == 0);
	OR_EXIT(identity_find(&id, "daemon", "", "nobody", &err) == 0 && id.uid == 1 && id.gid == 1);
	OR_EXIT(identity_find(&id, "1", "nogroup", "nobody", &err) == 0 && id.uid == 1 && id.gid == 65534);
	OR_EXIT(strcmp(id.user, "daemon") == 0);
	OR_EXIT(identity_find(&id, "nobody", "1", "nobody", &err) == 0 && id.gid == 1 &&
		strcmp(id.group, "daemon") == 0);
	OR_EXIT(identity_find(&id, "", "", "root", &err) == 0 && id.uid == 0);
	OR_EXIT(identity_find(&id, "no\x1bne", "", "nobody", &err) == -ENOENT &&
		strstr(err.text, "user \"no\\x1bne\""));
	OR_EXIT(identity_find(&id, "nobody", "none", "nobody", &err) == -ENOENT &&
		strstr(err.text, "no group \"none\""));
	OR_EXIT(identity_find(&id, "4294967295", "", "nobody", &err) == -ENOENT); /* what setuid takes for "as it is" */
	OR_EXIT(identity_find(&id, "99999999999999999999", "", "nobody", &err) == -ENOENT);
	_exit(0);
}
END_TEST

START_TEST(identities_of_others)
{
	struct identity id;
	if (geteuid() != 0)
		_exit(0);
	be_nobody();
	OR_EXIT(identity_find(&id, "", "", "root", &err) == 0 && !id.is_root && id.uid == 65534);
	OR_EXIT(strcmp(id.user, "nobody") == 0 && strcmp(id.group, "nogroup") == 0);
	OR_EXIT(identity_find(&id, "nobody", "nogroup", "root", &err) == 0);
	OR_EXIT(identity_find(&id, "65534", "65534", "root", &err) == 0);
	OR_EXIT(identity_find(&id, "daemon", "", "root", &err) == -EPERM && strstr(err.text, "only root can start"));
	OR_EXIT(identity_find(&id, "", "daemon", "root", &err) == -EPERM && strstr(err.text, "in \"daemon\""));
	OR_EXIT(identity_find(&id, "none", "", "root", &err) == -ENOENT);
	OR_EXIT(identity_find(&id, "", "none", "root", &err) == -ENOENT);
	_exit(0);
}
END_TEST

/* -- capabilities -------------------------------------------------------------------------------------------------- */

START_TEST(keep)
{
	struct text t = {0};
	if (!(privileges_have() & CAPABILITY(CAP_SETPCAP)))
		_exit(0);
	uint64_t wanted = CAPABILITY(CAP_KILL) | CAPABILITY(CAP_NET_RAW);
	OR_EXIT(privileges_keep(wanted, &err) == 0);
	OR_EXIT(privileges_have() == wanted);
	OR_EXIT(prctl(PR_CAPBSET_READ, CAP_KILL) == 1 && prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) == 0);
	privileges_format(&t, privileges_have());
	OR_EXIT(strcmp(t.s, "cap_kill, cap_net_raw") == 0);
	OR_EXIT(privileges_keep(~UINT64_C(0), &err) == 0 && privileges_have() == wanted); /* nothing comes back */
	OR_EXIT(privileges_keep(0, &err) == 0 && privileges_have() == 0);
	t.len = 0;
	privileges_format(&t, 0);
	OR_EXIT(strcmp(t.s, "none") == 0);
	_exit(0);
}
END_TEST

START_TEST(reach)
{
	char folder[] = "/tmp/millrace-test-XXXXXX", file[64];
	if (geteuid() != 0)
		_exit(0);
	OR_EXIT(mkdtemp(folder) && chown(folder, 1, 1) == 0);
	snprintf(file, sizeof file, "%s/file", folder);
	int fd = open(file, O_WRONLY | O_CREAT, 0600);
	OR_EXIT(fd != -1 && fchown(fd, 1, 1) == 0);
	OR_EXIT(access(file, R_OK) == 0);                 /* root's capabilities */
	bool may_file = privileges_may_reach(file, R_OK); /* are not for this */
	bool may_folder = privileges_may_reach(folder, W_OK);
	OR_EXIT(chmod(folder, 0755) == 0);
	bool may_absent = privileges_may_reach("/tmp/millrace-test-absent", R_OK),
	     may_stat = privileges_may_reach(file, F_OK);
	OR_EXIT(access(file, R_OK) == 0); /* they are back */
	unlink(file);
	rmdir(folder);
	OR_EXIT(!may_file && !may_folder && may_absent && may_stat);
	OR_EXIT(privileges_may_reach("/etc/passwd", R_OK) && privileges_may_reach("/etc", W_OK | X_OK));
	_exit(0);
}
END_TEST

/* -- a child ------------------------------------------------------------------------------------------------------- */

START_TEST(drop)
{
	become(PRIVILEGES_WORKER);
	OR_EXIT(privileges_have() == 0);
	OR_EXIT(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 && prctl(PR_GET_DUMPABLE) == 0);
	OR_EXIT(geteuid() != 0 && getuid() == geteuid());
	_exit(0);
}
END_TEST

/* Without CAP_SETUID, as root in a container may be. */
START_TEST(cannot_become)
{
	struct identity id;
	if (geteuid() != 0)
		_exit(0);
	OR_EXIT(identity_find(&id, "", "", "nobody", &err) == 0);
	OR_EXIT(privileges_keep(0, &err) == 0);
	OR_EXIT(privileges_drop(&id, PRIVILEGES_WORKER, true, &err) == -EPERM);
	OR_EXIT(strcmp(err.text, "Cannot become user nobody, group nogroup: Operation not permitted.") == 0);
	_exit(0);
}
END_TEST

static void *say_hello(void *arg)
{
	*(int *)arg = 1;
	return NULL;
}

static bool is_refused(long r)
{
	return r == -1 && errno == ENOSYS;
}

START_TEST(worker_calls)
{
	pthread_t thread;
	int hello = 0, fd;
	char c = 'x';
	become(PRIVILEGES_WORKER);
	const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK},
		  others[] = {AF_PACKET, AF_VSOCK, AF_ALG, AF_BLUETOOTH};
	for (size_t i = 0; i < ARRAY_LEN(families); i++)
		OR_EXIT((fd = socket(families[i], SOCK_DGRAM, 0)) != -1 && close(fd) == 0);
	for (size_t i = 0; i < ARRAY_LEN(others); i++)
		OR_EXIT(is_refused(socket(others[i], SOCK_DGRAM, 0)));
	OR_EXIT(is_refused(syscall(SYS_clone3, NULL, 0)));
	OR_EXIT(pthread_create(&thread, NULL, say_hello, &hello) == 0 && pthread_join(thread, NULL) == 0 && hello == 1);
	OR_EXIT(is_refused(fork()));
	OR_EXIT(is_refused(syscall(SYS_personality, 0xffffffff)));
	OR_EXIT(is_refused(ioctl(STDIN_FILENO, TIOCSTI, &c)));
	OR_EXIT(is_refused(syscall(SYS_ioctl, STDIN_FILENO, UINT64_C(0xffffffff00000000) | TIOCSTI, &c)));
	OR_EXIT(ioctl(STDIN_FILENO, FIONREAD, &hello) == 0 || errno != ENOSYS);
	hello = 0;
	OR_EXIT(is_refused(syscall(SYS_kill, getppid(), 0)));
	OR_EXIT(is_refused(syscall(SYS_tgkill, getppid(), getppid(), 0)));
	OR_EXIT(is_refused(listen(STDIN_FILENO, 1)));
	OR_EXIT(is_refused(unlink("/nothing")));
	OR_EXIT((fd = open("/etc/hosts", O_RDONLY)) != -1);
	_exit(0);
}
END_TEST

START_TEST(monitor_calls)
{
	become(PRIVILEGES_MONITOR);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	OR_EXIT(listen(fd, 1) == -1 && errno != ENOSYS);
	OR_EXIT(is_refused(socket(AF_PACKET, SOCK_DGRAM, 0)));
	_exit(0);
}
END_TEST

START_TEST(kills_execve)
{
	become(PRIVILEGES_WORKER);
	execl("/bin/true", "true", NULL);
}
END_TEST

START_TEST(kills_ptrace)
{
	become(PRIVILEGES_MONITOR);
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}
END_TEST

START_TEST(abort_still_works)
{
	become(PRIVILEGES_WORKER);
	abort();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("privileges");
	TCase *tc = tcase_create("all");
	tcase_add_exit_test(tc, identities_of_root, 0);
	tcase_add_exit_test(tc, identities_of_others, 0);
	tcase_add_exit_test(tc, keep, 0);
	tcase_add_exit_test(tc, reach, 0);
	tcase_add_exit_test(tc, drop, 0);
	tcase_add_exit_test(tc, cannot_become, 0);
	tcase_add_exit_test(tc, worker_calls, 0);
	tcase_add_exit_test(tc, monitor_calls, 0);
	tcase_add_test_raise_signal(tc, kills_execve, SIGSYS);
	tcase_add_test_raise_signal(tc, kills_ptrace, SIGSYS);
	tcase_add_test_raise_signal(tc, abort_still_works, SIGABRT);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
