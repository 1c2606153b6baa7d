/* SPDX-License-Identifier: MIT
 *
 * fail_nth: for LD_PRELOAD. The n-th use of one class of functions fails, in the master or in one of its children, from the
 * moment when a test arms it: what a transition cannot get, and not what the start could not. The orders lie in a file that
 * all processes map (FAIL_NTH=PATH), so that a filter of system calls, another user and closed descriptors do not matter.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum class { MEMORY, DESCRIPTOR, PIDFD, MAP, FORK, EPOLL, SEND_FULL, SEND_MANY, RECEIVE };
enum role { MASTER, CHILD };
enum { FRAMES_MAX = 24 };

/* As test_37_faults.py packs it. */
struct orders {
	uint32_t is_armed;
	uint32_t role, class, n;
	uint32_t master;
	uint32_t used, hit_pid;
	uint32_t n_frames;
	uint64_t base;
	uint64_t frames[FRAMES_MAX];
};

static struct orders *orders;
static uint64_t base;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static void *next(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void map_orders(void)
{
	const char *path = getenv("FAIL_NTH");
	void *frames[2];
	int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
	char line[256];
	if (fd == -1)
		return;
	backtrace(frames, 2); /* loads what it needs */
	FILE *maps = fopen("/proc/self/maps", "re");
	if (maps && fgets(line, sizeof(line), maps))
		base = strtoull(line, NULL, 16);
	if (maps)
		fclose(maps);
	void *p = mmap(NULL, sizeof(*orders), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		orders = p;
}

static int is_ours(void)
{
	char name[16] = "";
	if ((uint32_t)getpid() == orders->master)
		return orders->role == MASTER;
	prctl(PR_GET_NAME, name);
	return orders->role == CHILD && strncmp(name, "millrace", 8) == 0 && strcmp(name, "millrace/mon") != 0;
}

static void keep_trace(void)
{
	void *frames[FRAMES_MAX];
	int n = backtrace(frames, FRAMES_MAX);
	orders->base = base;
	for (int i = 0; i < n; i++)
		orders->frames[i] = (uint64_t)(uintptr_t)frames[i];
	orders->hit_pid = (uint32_t)getpid();
	orders->n_frames = (uint32_t)n;
}

/* True once: at the n-th use. */
static int fails(enum class class)
{
	if (!orders || !__atomic_load_n(&orders->is_armed, __ATOMIC_ACQUIRE) || orders->class != class || !is_ours())
		return 0;
	if (__atomic_add_fetch(&orders->used, 1, __ATOMIC_ACQ_REL) != orders->n)
		return 0;
	keep_trace();
	return 1;
}

static int refused(enum class class, int code)
{
	int was = errno;
	if (!fails(class)) {
		errno = was;
		return 0;
	}
	errno = code;
	return 1;
}

/* -- memory ---------------------------------------------------------------------------------------------------------- */

void *malloc(size_t size)
{
	return refused(MEMORY, ENOMEM) ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return refused(MEMORY, ENOMEM) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
	return size > 0 && refused(MEMORY, ENOMEM) ? NULL : __libc_realloc(p, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return refused(MEMORY, ENOMEM) ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **p, size_t alignment, size_t size)
{
	if (refused(MEMORY, ENOMEM))
		return ENOMEM;
	*p = __libc_memalign(alignment, size);
	return *p ? 0 : ENOMEM;
}

/* -- what has a fixed list of arguments: result, name, declared and passed, class and the error --------------------- */

#define WRAP(type, name, declared, passed, class, code, failure) \
	type name declared                                       \
	{                                                        \
		static type(*real) declared;                     \
		if (!real)                                       \
			real = next(#name);                      \
		if (refused(class, code))                        \
			return failure;                          \
		return real passed;                              \
	}

WRAP(int, socket, (int a, int b, int c), (a, b, c), DESCRIPTOR, EMFILE, -1)
WRAP(int, socketpair, (int a, int b, int c, int d[2]), (a, b, c, d), DESCRIPTOR, EMFILE, -1)
WRAP(int, dup, (int a), (a), DESCRIPTOR, EMFILE, -1)
WRAP(int, dup3, (int a, int b, int c), (a, b, c), DESCRIPTOR, EMFILE, -1)
WRAP(int, accept4, (int a, struct sockaddr *b, socklen_t *c, int d), (a, b, c, d), DESCRIPTOR, EMFILE, -1)
WRAP(int, pipe2, (int a[2], int b), (a, b), DESCRIPTOR, EMFILE, -1)
WRAP(int, memfd_create, (const char *a, unsigned b), (a, b), DESCRIPTOR, EMFILE, -1)
WRAP(int, eventfd, (unsigned a, int b), (a, b), DESCRIPTOR, EMFILE, -1)
WRAP(int, epoll_create1, (int a), (a), DESCRIPTOR, EMFILE, -1)
WRAP(int, timerfd_create, (int a, int b), (a, b), DESCRIPTOR, EMFILE, -1)
WRAP(FILE *, fopen, (const char *a, const char *b), (a, b), DESCRIPTOR, EMFILE, NULL)
WRAP(FILE *, fopen64, (const char *a, const char *b), (a, b), DESCRIPTOR, EMFILE, NULL)
WRAP(void *, mmap, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f), MAP, ENOMEM,
     MAP_FAILED)
WRAP(void *, mmap64, (void *a, size_t b, int c, int d, int e, off_t f), (a, b, c, d, e, f), MAP, ENOMEM,
     MAP_FAILED)
WRAP(pid_t, fork, (void), (), FORK, EAGAIN, -1)
/* Only what is new needs memory. */
int epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
	static int (*real)(int, int, int, struct epoll_event *);
	if (!real)
		real = next("epoll_ctl");
	return what == EPOLL_CTL_ADD && refused(EPOLL, ENOSPC) ? -1 : real(epoll, what, fd, event);
}

#define WRAP_OPEN(name)                                          \
	int name(const char *path, int flags, ...)               \
	{                                                        \
		static int (*real)(const char *, int, ...);      \
		va_list ap;                                      \
		va_start(ap, flags);                             \
		mode_t mode = va_arg(ap, mode_t);                \
		va_end(ap);                                      \
		if (!real)                                       \
			real = next(#name);                      \
		return refused(DESCRIPTOR, EMFILE) ? -1          \
						   : real(path, flags, mode); \
	}
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_FCNTL(name)                                         \
	int name(int fd, int command, ...)                       \
	{                                                        \
		static int (*real)(int, int, ...);               \
		va_list ap;                                      \
		va_start(ap, command);                           \
		void *arg = va_arg(ap, void *);                  \
		va_end(ap);                                      \
		if (!real)                                       \
			real = next(#name);                      \
		int is_new = command == F_DUPFD || command == F_DUPFD_CLOEXEC; \
		return is_new && refused(DESCRIPTOR, EMFILE) ? -1 \
							     : real(fd, command, arg); \
	}
WRAP_FCNTL(fcntl)
WRAP_FCNTL(fcntl64)

long syscall(long number, ...)
{
	static long (*real)(long, ...);
	long a[6];
	va_list ap;
	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (!real)
		real = next("syscall");
	if (number == SYS_pidfd_open && refused(PIDFD, EMFILE))
		return -1;
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* -- messages ---------------------------------------------------------------------------------------------------------- */

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	static ssize_t (*real)(int, const struct msghdr *, int);
	if (!real)
		real = next("sendmsg");
	int may_be_full = (flags & MSG_DONTWAIT) || (fcntl(fd, F_GETFL) & O_NONBLOCK);
	if (may_be_full && refused(SEND_FULL, EAGAIN))
		return -1;
	if (msg->msg_controllen > 0 && refused(SEND_MANY, ETOOMANYREFS))
		return -1;
	return real(fd, msg, flags);
}

/* No descriptor is free: the kernel drops what comes along, and says so. */
ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	static ssize_t (*real)(int, struct msghdr *, int);
	if (!real)
		real = next("recvmsg");
	ssize_t n = real(fd, msg, flags);
	struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(msg) : NULL;
	if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_level == SOL_SOCKET && refused(RECEIVE, 0)) {
		int *fds = (int *)(void *)CMSG_DATA(c);
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
			close(fds[i]);
		msg->msg_controllen = 0;
		msg->msg_flags |= MSG_CTRUNC;
	}
	return n;
}
