/* SPDX-License-Identifier: MIT
 *
 * privileges: what a process gives up, and cannot get back. The master keeps the capabilities that its configuration
 * needs; its children keep none. Which system calls are left is in seccomp.c. Knows nothing of what they are for.
 */
#include "base_private.h"

#include <base.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* -- sets --------------------------------------------------------------------------------------------------------- */

/* The system calls themselves: libcap's allocate, and when that fails there must be no doubt about what we have. */
uint64_t privileges_have(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct now[_LINUX_CAPABILITY_U32S_3] = {{0}};
	BUG_ON(syscall(SYS_capget, &head, now) == -1);
	return (uint64_t)now[1].effective << 32 | now[0].effective;
}

/* Permitted and effective are `set`, `effective` of it; inheritable is none, and so is ambient. */
static int install(uint64_t set, uint64_t effective)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	const struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3] = {
	    {.permitted = (uint32_t)set, .effective = (uint32_t)(set & effective)},
	    {.permitted = (uint32_t)(set >> 32), .effective = (uint32_t)((set & effective) >> 32)},
	};
	return syscall(SYS_capset, &head, caps) == -1 ? -errno : 0;
}

/* The bounding set is what an exec of a program with file capabilities could give. Who may not change it is no worse
 * off with no_new_privs. */
static int bound(uint64_t set)
{
	if (!(privileges_have() & CAPABILITY(CAP_SETPCAP)))
		return 0;
	for (cap_value_t cap = 0; cap < cap_max_bits(); cap++)
		if (!(set & CAPABILITY(cap)) && cap_get_bound(cap) == CAP_SET && cap_drop_bound(cap) == -1)
			return -errno;
	return 0;
}

int privileges_keep(uint64_t capabilities, struct err *err)
{
	uint64_t set = privileges_have() & capabilities;
	cap_reset_ambient();
	int r = bound(set);
	if (r == 0)
		r = install(set, set);
	/* Children may run as the same user, and its memory is everybody's; an exec sets it again. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	return r == 0 ? 0 : err_set(err, r, "Cannot give up capabilities: %s.", strerror(-r));
}

static void set_ambient(cap_value_t cap, bool is_set)
{
	cap_t caps = cap_get_proc();
	if (caps && cap_set_flag(caps, CAP_INHERITABLE, 1, &cap, is_set ? CAP_SET : CAP_CLEAR) == 0 &&
	    cap_set_proc(caps) == 0)
		cap_set_ambient(cap, is_set ? CAP_SET : CAP_CLEAR);
	cap_free(caps);
}

uint64_t privileges_over_exec(void)
{
	uint64_t before = 0;
	cap_t caps = geteuid() == 0 ? NULL : cap_get_proc();
	for (cap_value_t cap = 0; caps && cap < cap_max_bits(); cap++) {
		cap_flag_value_t is_permitted = CAP_CLEAR;
		if (cap_get_ambient(cap) == CAP_SET)
			before |= CAPABILITY(cap);
		else if (cap_get_flag(caps, cap, CAP_PERMITTED, &is_permitted) == 0 && is_permitted == CAP_SET)
			set_ambient(cap, true);
	}
	cap_free(caps);
	return before;
}

void privileges_after_exec_failed(uint64_t ambient)
{
	for (cap_value_t cap = 0; geteuid() != 0 && cap < cap_max_bits(); cap++)
		if (!(ambient & CAPABILITY(cap)) && cap_get_ambient(cap) == CAP_SET)
			set_ambient(cap, false);
}

bool privileges_may_reach(const char *path, int mode)
{
	uint64_t set = privileges_have();
	if (install(set, 0) != 0)
		return true;
	bool may = faccessat(AT_FDCWD, path, mode, AT_EACCESS) == 0 || errno != EACCES;
	install(set, set);
	return may;
}

void privileges_format(struct text *t, uint64_t capabilities)
{
	bool any = false;
	for (cap_value_t cap = 0; cap < cap_max_bits(); cap++) {
		if (!(capabilities & CAPABILITY(cap)))
			continue;
		char *name = cap_to_name(cap);
		text_add(t, "%s%s", any ? ", " : "", name ? name : "?");
		cap_free(name);
		any = true;
	}
	if (!any)
		text_add(t, "none");
}

/* -- a child ------------------------------------------------------------------------------------------------------- */

static int become(const struct identity *id, struct err *err)
{
	if (!id->is_root)
		return 0;
	if (setgroups(id->n_groups, id->groups) == -1 || setresgid(id->gid, id->gid, id->gid) == -1 ||
	    setresuid(id->uid, id->uid, id->uid) == -1)
		return err_set(err, -errno, "Cannot become user %s, group %s: %s.", id->user, id->group,
			       strerror(errno));
	return 0;
}

int privileges_drop(const struct identity *id, enum privileges_role role, bool is_filtered, struct err *err)
{
	/* The bounding set first: it needs CAP_SETPCAP, which goes with the uid. */
	cap_reset_ambient();
	int r = bound(0);
	if (r != 0)
		return err_set(err, r, "Cannot empty the capability bounding set: %s.", strerror(-r));
	if ((r = become(id, err)) != 0)
		return r;
	if ((r = install(0, 0)) != 0)
		return err_set(err, r, "Cannot give up capabilities: %s.", strerror(-r));
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1)
		return err_set(err, -errno, "Cannot set no_new_privs: %s.", strerror(errno));
	/* Payload and passwords of brokers lie in its memory, and others may run as the same user. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	return is_filtered ? seccomp_install(role, err) : 0;
}
