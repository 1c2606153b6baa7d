/* SPDX-License-Identifier: MIT
 *
 * base: errors, log, clock, text, hashes, process facts. Knows nothing of relaying.
 * Everything here may run before and after fork, in any process, unless a function says otherwise.
 */
#ifndef BASE_H
#define BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Lines, hashes and counter pages are read as the CPU stores them. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "millrace is made for little-endian CPUs");

/* One turn of a loop that waits for another CPU. On arm64 `yield` does nothing where there are no sibling threads; `isb`
 * takes about as long as x86's pause. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#else
	__asm__ volatile("" ::: "memory");
#endif
}

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* -- errors ---------------------------------------------------------------------------------------------------- */

/* One full sentence for a person: what is wrong, with the thing quoted, and what to do. */
struct err {
	char text[1024];
};

/* Sets the text and returns `code` (0 or -errno), so that a failure is one line: return err_set(err, -EINVAL, "…").
 * err may be NULL. */
int err_set(struct err *err, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* A condition that only a bug of ours can make true. Ends this process with a log line and SIGABRT. Never for what came
 * from the network, the kernel or a file. */
#define BUG_ON(cond)                                                                                                   \
	do {                                                                                                           \
		if (UNLIKELY(cond))                                                                                    \
			base_bug(#cond, __FILE__, __LINE__);                                                           \
	} while (0)
_Noreturn void base_bug(const char *what, const char *file, int line);

/* -- log ------------------------------------------------------------------------------------------------------- */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Where lines go. Each is one write, so that processes do not mix, and none waits for its reader: what he does not take
 * is lost, counted and said later. */
enum log_target {
	LOG_TARGET_STDERR,
	LOG_TARGET_SYSLOG,  /* /dev/log, facility daemon */
	LOG_TARGET_JOURNAL, /* systemd's own protocol */
	LOG_TARGET_FILE,    /* of log_file_open */
};
/* `who` stands before each text ("master") and is copied. */
void log_open(const char *who, enum log_target target, enum log_level level);
/* In a child right after fork: the same target and level, another name ("worker 2"). */
void log_set_who(const char *who);
/* Master, which may do what its children may not: opens a file for lines to be appended to. A descriptor, or -errno with
 * err. */
int log_file_open(const char *path, struct err *err);
/* Lines go there from now on, in this process and in children that it forks later; `file` (of log_file_open; taken) takes
 * the place of the one before, -1: none. A target that is a file and has none changes nothing. */
void log_turn_to(enum log_target target, int file);
/* The descriptor of the file, which proc_close_others spares; -1: none. */
int log_file_fd(void);
/* Whether stderr is what systemd connected with its journal. */
bool log_stderr_is_journal(void);
/* Errors and warnings go to stderr too: for a start that somebody watches. */
void log_copy_to_stderr(bool on);
/* Before the first fork of a daemon: a pipe on stderr that is full then loses lines instead of blocking; how many is
 * said when it takes some again. Other text for stderr is no longer safe from EAGAIN after it. */
void log_never_wait(void);
void log_set_level(enum log_level level);
enum log_level log_get_level(void);
/* 0 and *level for "error", "warn", "info", "debug" (any case; also statsrelay's "warning"), else -EINVAL. */
int log_level_parse(const char *name, enum log_level *level);

/* Text that came from outside goes through text_escape first. A newline within the text is written as "\n". At most
 * LOG_LINES_PER_SECOND of a process in any second: further ones are lost and counted, whatever goes wrong. */
enum { LOG_LINES_PER_SECOND = 500 };
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* One kind of repeated line: true when it may be written now (at most one in `every_ms`), *held then says how many
 * were held back since the last. Zeroed memory is a fresh one. */
struct log_limit {
	uint64_t last_us;
	uint64_t held;
};
bool log_limit_pass(struct log_limit *limit, uint64_t now_us, uint64_t every_ms, uint64_t *held);

/* -- clock ----------------------------------------------------------------------------------------------------- */

uint64_t clock_us(void);      /* CLOCK_MONOTONIC, microseconds: for intervals */
uint64_t clock_real_us(void); /* CLOCK_REALTIME, microseconds since 1970 */

/* -- text ------------------------------------------------------------------------------------------------------ */

/* "64", "64k", "64KiB", "32M", "32MiB", "1GiB" (1024s; kB and MB are 1000s). 0, or -EINVAL, -ERANGE. */
int text_parse_bytes(const char *s, uint64_t *bytes);
/* "250us", "5ms", "5s", "10m", "1h", or "off" (0) → microseconds. A bare number is seconds ("0.5" too). */
int text_parse_time(const char *s, uint64_t *us);
/* Decimal digits only, whole string. */
int text_parse_uint(const char *s, uint64_t *n);
/* "true yes on" / "false no off". */
int text_parse_bool(const char *s, bool *b);
/* "32 MiB", "1.5 KiB", "17 B" into buf (at least 16 bytes); returns buf. */
char *text_format_bytes(char *buf, size_t size, uint64_t bytes);
/* "250 ms", "12 s", "3 min". */
char *text_format_time(char *buf, size_t size, uint64_t us);
/* Printable copy of bytes from outside: control and non-ASCII bytes, quotes and backslashes as \xNN, \n, \", \\;
 * always ends with NUL; cut with "..." when it does not fit. Returns buf. */
char *text_escape(char *buf, size_t size, const void *bytes, size_t len);

/* A string that grows. Zeroed memory is an empty one. After a failed allocation `failed` is true and adding does
 * nothing. Freed by text_free. */
struct text {
	char *s; /* NUL at s[len] when not NULL */
	size_t len, size;
	bool failed;
};
void text_add(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
void text_add_bytes(struct text *t, const void *bytes, size_t len);
/* A JSON string with its quotes; bytes that are not UTF-8 become U+FFFD. */
void text_add_json(struct text *t, const char *s, size_t len);
void text_free(struct text *t);

/* -- hash ------------------------------------------------------------------------------------------------------ */

#define HASH_STATSRELAY_SEED 0xaccd3d34u
/* MurmurHash3_x86_32. */
uint32_t hash_murmur3_32(const void *bytes, size_t len, uint32_t seed);

/* XXH64 with seed 0. */
uint64_t hash_64(const void *bytes, size_t len);

#define HASH_SLOTS 65536u
/* Weighted rendezvous table: slots[i] = index (0..n-1) of the member that owns slot i. A member's score in a slot is
 * weight / -ln(u) with u in (0,1) from XXH64(name, seed = slot); ties go to the name that sorts first, so the order of
 * members does not matter. Weight 0 owns nothing; n is 1..65535; at least one weight is above 0, names differ.
 * Time: n × 65,536 hashes (about 1 s for 1,000): never in a worker's loop. A key's slot is hash_slot(murmur3 of it). */
struct hash_member {
	const char *name;
	double weight;
};
void hash_rendezvous(uint16_t slots[HASH_SLOTS], const struct hash_member *members, size_t n);
/* The same table, from one of other members: now_of[i] is what its member i is here, of the same name and weight, or
 * HASH_GONE. Costs n for each slot that a lost member had, and what is new for each other one. */
enum { HASH_GONE = UINT16_MAX };
void hash_rendezvous_change(uint16_t slots[HASH_SLOTS], const struct hash_member *members, size_t n,
			    const uint16_t was[HASH_SLOTS], const uint16_t *now_of, size_t n_was);
static inline uint32_t hash_slot(uint32_t murmur)
{
	return murmur >> 16;
}

/* -- process --------------------------------------------------------------------------------------------------- */

/* CPUs that this process may run on, at least 1: its CPU set, and a cgroup's CPU quota rounded up to whole CPUs. */
unsigned proc_cpus(void);
/* What the cgroups of this process allow: the least of its own and those above, versions 1 and 2; 0: no limit. `root` is
 * put before the paths of /proc and of the mounts; "" but in tests. */
struct cgroup_limits {
	double cpus;
	uint64_t memory_bytes;
};
void cgroup_limits(const char *root, struct cgroup_limits *limits);
/* Closes every descriptor from 3 up except those in keep[n] (any order; -1 entries are skipped) and the log's file. */
void proc_close_others(const int *keep, size_t n);
/* First in main: where 0, 1 or 2 is closed, /dev/null is opened, or what we open next would get our output. */
void proc_fill_standard(void);
/* 0, 1 and 2 become /dev/null: a daemon and its children hold nobody's terminal or pipe. */
void proc_leave_terminal(void);
/* In a child: what the master had of signals is not ours. All are blocked, but a crash still kills. */
void proc_child_signals(void);
/* All of it, however often write(2) is interrupted. 0 or -errno. */
int proc_write(int fd, const void *bytes, size_t len);
void proc_set_title(const char *title); /* comm, at most 15 characters: what ps and top show */
/* What a process has used, of /proc/PID/stat. 0, or -ESRCH when there is none; -EINVAL when the text is none. The CPU time
 * has the grain of the kernel's clock tick, 10 ms. */
struct proc_usage {
	uint64_t cpu_us;	/* user and system, all threads, since its start */
	uint64_t memory_bytes; /* resident */
	uint64_t started_ticks; /* tells a process from a later one of the same number */
	bool is_stopped;	/* by a signal or a debugger */
};
int proc_usage(int64_t pid, struct proc_usage *u);
int proc_usage_parse(const char *stat, struct proc_usage *u); /* pure, but for the size of a page and a tick */

/* -- privileges ------------------------------------------------------------------------------------------------ */

/* Whom workers and monitor become. Looked up once, by the master, so that no child asks the user database. */
struct identity {
	bool is_root; /* we are uid 0 and may become somebody else */
	unsigned uid, gid;
	unsigned groups[256]; /* supplementary */
	size_t n_groups;
	char user[64], group[64];
};

/* Master, before fork. "" for user: started as root `otherwise`, else oneself; "" for group: the user's own. Both are
 * names or numbers. Not root: only oneself is allowed. 0, or -errno with err. */
int identity_find(struct identity *id, const char *user, const char *group, const char *otherwise, struct err *err);
/* A group's number by name or number. 0, or -errno with err, in which `option` stands. */
int identity_group(const char *name, const char *option, unsigned *gid, struct err *err);

/* What a process is, and so which system calls it may make: the table is in src/base/seccomp.c. */
enum privileges_role { PRIVILEGES_WORKER, PRIVILEGES_MONITOR };

/* Gives up for ever, in this order: all capabilities (bounding, inheritable and ambient ones too), groups, gid and uid
 * of before, what an exec could give (no_new_privs), being traced or dumped, and, with `is_filtered`, the system calls
 * that the role does not need. For a child of the master right after it closed what is not its own, while it has one
 * thread: before rd_kafka_new and other libraries that start some. 0, or -errno with err: the child must end then. */
int privileges_drop(const struct identity *id, enum privileges_role role, bool is_filtered, struct err *err);

/* Bit of a capability in a set: CAPABILITY(CAP_NET_RAW), with <linux/capability.h>. */
#define CAPABILITY(cap) (UINT64_C(1) << (cap))
/* The effective capabilities of this process. */
uint64_t privileges_have(void);
/* Who is not uid 0 loses its capabilities at an exec, unless they are ambient: makes them so. Returns which were
 * before, for privileges_after_exec_failed. */
uint64_t privileges_over_exec(void);
void privileges_after_exec_failed(uint64_t ambient);
/* Master, before it has threads and opens anything: keeps of what it has only these, in the bounding set too. 0, or
 * -errno with err. */
int privileges_keep(uint64_t capabilities, struct err *err);
/* Whether this path, if it is there, may be reached with `mode` (of access(2)) without any capability. One thread only. */
bool privileges_may_reach(const char *path, int mode);
/* "cap_net_raw, cap_kill", or "none". */
void privileges_format(struct text *t, uint64_t capabilities);

#endif
