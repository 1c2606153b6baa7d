/* SPDX-License-Identifier: MIT
 *
 * seccomp: which system calls a worker and the monitor may still make (man 2 seccomp). The table is what glibc, libev,
 * c-ares, OpenSSL, librdkafka, DPDK and libmicrohttpd use; measured by the audit log: no test makes another one, with a
 * broker behind TLS, with DPDK and sanitized neither. Making the filters takes 1.5 ms, at the start of each process.
 *
 * What is not in the table fails with ENOSYS, for which libraries have a way around, and the kernel's audit log names
 * it: a call that nobody foresaw must not kill a worker, which holds lines. What only an intruder would call kills.
 */
#include "base_private.h"

#include <base.h>
#include <errno.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKER = 1 << PRIVILEGES_WORKER, MONITOR = 1 << PRIVILEGES_MONITOR, BOTH = WORKER | MONITOR };

static const struct {
	unsigned roles;
	const char *calls; /* separated by spaces */
} allowed[] = {
    /* memory; mmap with PROT_EXEC too: getaddrinfo loads its modules, OpenSSL its providers */
    {BOTH, "brk mmap munmap mprotect madvise mincore membarrier mlock munlock get_mempolicy"},
    {WORKER, "memfd_create"}, /* what it could not deliver, for its successor */
    /* descriptors that it has */
    {BOTH, "read readv pread64 preadv write writev pwrite64 pwritev lseek close close_range dup dup2 dup3 fcntl fstat "
	   "ioctl fsync fdatasync ftruncate flock pipe pipe2 fadvise64 sendfile splice"},
    /* files: what the user may; resolv.conf, hosts, certificates, /proc, /sys */
    {BOTH, "open openat openat2 stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents64 "
	   "getcwd statfs fstatfs"},
    /* sockets; which families is below */
    {BOTH, "accept accept4 bind getsockname getpeername getsockopt setsockopt sendto sendmsg sendmmsg recvfrom recvmsg "
	   "recvmmsg shutdown connect"},
    {MONITOR, "listen"},
    /* waiting */
    {BOTH,
     "poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2 "
     "timerfd_create timerfd_settime timerfd_gettime signalfd4 nanosleep clock_nanosleep"},
    /* threads; that clone makes no process, and clone3 nothing, is below */
    {BOTH,
     "clone3 futex futex_waitv set_robust_list get_robust_list rseq set_tid_address arch_prctl prctl exit exit_group "
     "sched_yield sched_getaffinity sched_getparam sched_getscheduler getcpu gettid"},
    /* signals to itself; tgkill is below */
    {BOTH, "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait sigaltstack restart_syscall"},
    /* time, numbers, itself */
    {BOTH, "clock_gettime clock_getres gettimeofday time times getrandom uname sysinfo getrusage getrlimit "
	   "getpid getppid getpgrp getuid geteuid getgid getegid getgroups getresuid getresgid capget umask"},
};

/* No library of ours calls these in a child: an intruder does. */
static const char *const deadly =
    "execve execveat ptrace process_vm_readv process_vm_writev kcmp mount umount2 pivot_root chroot move_mount "
    "open_tree "
    "fsopen fsmount unshare setns init_module finit_module delete_module kexec_load kexec_file_load bpf "
    "perf_event_open "
    "userfaultfd open_by_handle_at add_key request_key keyctl iopl ioperm reboot swapon swapoff settimeofday "
    "clock_settime adjtimex clock_adjtime acct quotactl syslog pidfd_getfd io_uring_setup";

static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

/* Calls action for each name of the list that this architecture has. */
static int add_list(scmp_filter_ctx filter, uint32_t action, const char *calls)
{
	char name[32];
	int r = 0;
	for (const char *p = calls; r == 0 && *p; p += strspn(p, " ")) {
		size_t len = strcspn(p, " ");
		snprintf(name, sizeof name, "%.*s", (int)len, p);
		p += len;
		int call = seccomp_syscall_resolve_name(name);
		if (call >= 0)
			r = seccomp_rule_add(filter, action, call, 0);
	}
	return r;
}

/* Those of which an argument decides. */
static int add_some(scmp_filter_ctx filter)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(families); i++) {
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
				     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
		if (r == 0 && families[i] == AF_UNIX)
			r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1,
					     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
	}
	/* threads, no processes. clone3 has its flags in memory, where no filter sees them: glibc takes clone instead
	 */
	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
				     SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD));
	/* its own; not our siblings', who are the same user */
	const int own[] = {SCMP_SYS(prlimit64), SCMP_SYS(sched_setaffinity)};
	const scmp_datum_t self[] = {0, (scmp_datum_t)getpid()};
	for (size_t i = 0; i < ARRAY_LEN(own) * ARRAY_LEN(self) && r == 0; i++)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, own[i / 2], 1, SCMP_A0(SCMP_CMP_EQ, self[i % 2]));
	/* abort(3); not our siblings */
	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
				     SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)getpid()));
	return r;
}

/* Before the table: what a part of an argument decides, and what no audit log should tell of.
 * - glibc asks for clone3 first, whose flags are in memory, where no filter sees them, and takes clone instead.
 * - mremap: with one writable page of a file it gives all that lie behind it. realloc copies instead.
 * - ioctls that type on the terminal which started us. The kernel looks at 32 of the 64 bits of the command. */
static int load_exceptions(void)
{
	static const unsigned typing[] = {TIOCSTI, TIOCLINUX};
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
	int r = filter ? seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) : -ENOMEM;
	if (r == 0)
		r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(mremap), 0);
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(typing); i++)
		r = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(ioctl), 1,
				     SCMP_A1(SCMP_CMP_MASKED_EQ, UINT32_MAX, typing[i]));
	if (r == 0) {
		seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
		r = seccomp_load(filter);
	}
	seccomp_release(filter);
	return r;
}

int seccomp_install(enum privileges_role role, struct err *err)
{
	int r = load_exceptions();
	scmp_filter_ctx filter = r == 0 ? seccomp_init(SCMP_ACT_ERRNO(ENOSYS)) : NULL;
	if (r == 0 && !filter)
		r = -ENOMEM;
	for (size_t i = 0; r == 0 && i < ARRAY_LEN(allowed); i++)
		if (allowed[i].roles & (1U << role))
			r = add_list(filter, SCMP_ACT_ALLOW, allowed[i].calls);
	if (r == 0)
		r = add_some(filter);
	if (r == 0)
		r = add_list(filter, SCMP_ACT_KILL_PROCESS, deadly);
	if (r == 0) {
		/* a binary tree; what is refused in the audit log; no change of the speculation setting, which costs */
		seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
		seccomp_attr_set(filter, SCMP_FLTATR_CTL_LOG, 1);
		seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
		r = seccomp_load(filter);
	}
	seccomp_release(filter);
	return r == 0 ? 0
		      : err_set(err, r,
				"Cannot install the seccomp filter: %s; this kernel may have none, seccomp: false does "
				"without.",
				strerror(-r));
}
