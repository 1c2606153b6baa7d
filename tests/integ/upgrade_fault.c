/* SPDX-License-Identifier: MIT
 *
 * A millrace that fails in one phase of an upgrade. <argv[0]>.fault has four words: the phase ("rehearse", "resume"), what
 * happens then, a path for it, and the program that runs in all other cases. Compiled as a library (PRELOAD) it keeps
 * workers from becoming another user for as long as the file is there that MILLRACE_FAULT names.
 */
#ifdef PRELOAD
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

int setresuid(uid_t a, uid_t b, uid_t c);
int setresuid(uid_t a, uid_t b, uid_t c)
{
	const char *path = getenv("MILLRACE_FAULT");
	(void)a, (void)b, (void)c;
	if (path && access(path, F_OK) == 0) {
		errno = EPERM;
		return -1;
	}
	return setreuid(a, b); /* sets the saved one, too */
}
#else
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *how, const char *path)
{
	char byte;
	if (strcmp(how, "exit") == 0)
		exit(7);
	if (strcmp(how, "kill") == 0)
		kill(getpid(), SIGKILL);
	if (strcmp(how, "hang") == 0)
		for (;;)
			pause();
	if (strcmp(how, "wait") == 0 && read(open(path, O_RDONLY), &byte, 1) == -1)
		exit(8);
	if (strcmp(how, "preload") == 0) {
		char library[4096];
		snprintf(library, sizeof(library), "%s.so", path);
		setenv("LD_PRELOAD", library, 1);
		setenv("MILLRACE_FAULT", path, 1);
	}
}

int main(int argc, char **argv)
{
	char path[4096], phase[16], how[16], arg[1024], real[1024];
	const char *upgrade = getenv("MILLRACE_UPGRADE");
	snprintf(path, sizeof(path), "%s.fault", argv[0]);
	FILE *f = fopen(path, "re");
	if (argc < 1 || !f || fscanf(f, "%15s %15s %1023s %1023s", phase, how, arg, real) != 4)
		return 9;
	fclose(f);
	if (upgrade && strncmp(upgrade, phase, strlen(phase)) == 0)
		fail(how, arg);
	execv(real, argv);
	return 10;
}
#endif
