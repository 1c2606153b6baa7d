/* SPDX-License-Identifier: MIT
 *
 * identity: whom workers and monitor become, by the names of the configuration. Master only, at the start and at a
 * reload: the user database may be asked of a server. Changes nothing; privileges.c does.
 */
#include <base.h>

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <string.h>
#include <unistd.h>

static const struct passwd *find_user(const char *name)
{
	uint64_t uid;
	const struct passwd *user = getpwnam(name);
	if (!user && text_parse_uint(name, &uid) == 0 && uid < UINT32_MAX)
		user = getpwuid((uid_t)uid);
	return user;
}

static const struct group *find_group(const char *name)
{
	uint64_t gid;
	const struct group *group = getgrnam(name);
	if (!group && text_parse_uint(name, &gid) == 0 && gid < UINT32_MAX)
		group = getgrgid((gid_t)gid);
	return group;
}

static int say_unknown(const char *option, const char *name, struct err *err)
{
	char shown[100];
	return err_set(err, -ENOENT, "%s: this machine has no %s \"%s\"; make it, or name another.", option,
		       strcmp(option, "user") == 0 ? "user" : "group",
		       text_escape(shown, sizeof shown, name, strlen(name)));
}

int identity_group(const char *name, const char *option, unsigned *gid, struct err *err)
{
	const struct group *group = find_group(name);
	if (!group)
		return say_unknown(option, name, err);
	*gid = group->gr_gid;
	return 0;
}

/* Its name where it has one. */
static void name_group(struct identity *id)
{
	const struct group *group = getgrgid(id->gid);
	if (group)
		snprintf(id->group, sizeof id->group, "%s", group->gr_name);
	else
		snprintf(id->group, sizeof id->group, "%u", id->gid);
}

static int find_groups(struct identity *id, struct err *err)
{
	int n = ARRAY_LEN(id->groups);
	_Static_assert(sizeof(gid_t) == sizeof id->groups[0], "as getgrouplist writes them");
	if (getgrouplist(id->user, id->gid, id->groups, &n) == -1)
		return err_set(err, -E2BIG, "user: \"%s\" is in %d groups, allowed are %zu; name another user.",
			       id->user, n, ARRAY_LEN(id->groups));
	id->n_groups = (size_t)n;
	return 0;
}

/* Who is not root can only stay who he is. */
static int stay_oneself(struct identity *id, const char *user, const char *group, struct err *err)
{
	const struct passwd *me = getpwuid(geteuid());
	const struct passwd *wanted = user[0] ? find_user(user) : NULL;
	id->uid = geteuid();
	id->gid = getegid();
	if (me)
		snprintf(id->user, sizeof id->user, "%s", me->pw_name);
	else
		snprintf(id->user, sizeof id->user, "%u", id->uid);
	name_group(id);
	if (user[0] && !wanted)
		return say_unknown("user", user, err);
	if (wanted && wanted->pw_uid != id->uid)
		return err_set(err, -EPERM,
			       "user: only root can start millrace as \"%s\"; start it as root, or leave it out.",
			       wanted->pw_name);
	unsigned gid = id->gid;
	int r = group[0] ? identity_group(group, "group", &gid, err) : 0;
	if (r == 0 && gid != id->gid)
		r = err_set(err, -EPERM,
			    "group: only root can start millrace in \"%s\"; start it as root, or leave it out.", group);
	return r;
}

/* uid 0 of a container whose capabilities were dropped is a user like any other: it can only stay who it is, and workers
 * that are root are somebody's decision, not ours. */
static int stay_powerless_root(struct identity *id, const char *name, const char *group, struct err *err)
{
	const struct passwd *wanted = find_user(name);
	if (wanted && wanted->pw_uid != 0)
		return err_set(err, -EPERM,
			       "user: this process is root without CAP_SETUID and CAP_SETGID, so that its workers cannot "
			       "become \"%s\": start it as that user (docker run --user %u:%u, runAsUser: %u), or add both "
			       "capabilities, or say user: root.",
			       wanted->pw_name, wanted->pw_uid, wanted->pw_gid, wanted->pw_uid);
	return stay_oneself(id, name, group, err);
}

int identity_find(struct identity *id, const char *user, const char *group, const char *otherwise, struct err *err)
{
	const uint64_t becoming = CAPABILITY(CAP_SETUID) | CAPABILITY(CAP_SETGID);
	const char *name = user[0] ? user : otherwise;
	*id = (struct identity){.is_root = geteuid() == 0 && (privileges_have() & becoming) == becoming};
	if (!id->is_root)
		return geteuid() == 0 ? stay_powerless_root(id, name, group, err) : stay_oneself(id, user, group, err);
	const struct passwd *wanted = find_user(name);
	if (!wanted)
		return say_unknown("user", name, err);
	id->uid = wanted->pw_uid;
	id->gid = wanted->pw_gid;
	snprintf(id->user, sizeof id->user, "%s", wanted->pw_name);
	int r = group[0] ? identity_group(group, "group", &id->gid, err) : 0;
	if (r != 0)
		return r;
	name_group(id);
	return find_groups(id, err);
}
