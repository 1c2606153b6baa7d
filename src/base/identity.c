/* SPDX-License-Identifier: MIT
 *
 * identity: whom workers and monitor become, by the names of the configuration. Master only, at the start and at a
 * reload: the user database may be asked of a server. Changes nothing; privileges.c does.
 */
#include <base.h>

#include <errno.h>
#include <grp.h>
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

int identity_find(struct identity *id, const char *user, const char *group, const char *otherwise, struct err *err)
{
	*id = (struct identity){.is_root = geteuid() == 0};
	if (!id->is_root)
		return stay_oneself(id, user, group, err);
	const char *name = user[0] ? user : otherwise;
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
