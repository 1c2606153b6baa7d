/* SPDX-License-Identifier: MIT
 *
 * ctl_run: millracectl within a test: its main(), run in a child with files for its input and output.
 */
#ifndef CTL_RUN_H
#define CTL_RUN_H

#include "suite.h"

int ctl_main(int argc, char **argv);
#define main ctl_main
#include "../../tools/ctl_control.c"
#include "../../tools/ctl_drops.c"
#include "../../tools/ctl_hash.c"
#include "../../tools/ctl_kafka.c"
#include "../../tools/ctl_screen.c"
#include "../../tools/ctl_show.c"
#include "../../tools/ctl_status.c"
#include "../../tools/ctl_top.c"
#include "../../tools/millracectl.c"
#undef main
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

static char folder[] = "/tmp/millrace-test-ctl-XXXXXX";
static char socket_path[64];
static char *out; /* what the last command wrote, errors included */

static void folder_make(void)
{
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(socket_path, sizeof(socket_path), "%s/s", folder);
}

static void folder_remove(void)
{
	char command[128];
	free(out);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	ck_assert_int_eq(system(command), 0);
}

/* Runs a command line (words without quotes) with that standard input; its exit code, and `out`. */
static int run(const char *input, const char *line)
{
	char words_of[512], *argv[32] = {"millracectl", "-s", socket_path}, path[64];
	int argc = 3, status;
	snprintf(words_of, sizeof(words_of), "%s", line);
	for (char *rest = words_of, *word; (word = strsep(&rest, " "));)
		argv[argc++] = word;
	snprintf(path, sizeof(path), "%s/out", folder);
	int in = memfd_create("in", 0), to = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	ck_assert_int_eq(write(in, input, strlen(input)), (ssize_t)strlen(input));
	lseek(in, 0, SEEK_SET);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(in, 0);
		dup2(to, 1);
		dup2(to, 2);
		setenv("MILLRACE_CONTROL", "/nonexistent", 1); /* -s wins */
		optind = 0;
		exit(ctl_main(argc, argv));
	}
	waitpid(pid, &status, 0);
	ck_assert_msg(WIFEXITED(status), "%s: status %x", line, status);
	free(out);
	off_t len = lseek(to, 0, SEEK_END);
	out = calloc(1, (size_t)len + 1);
	ck_assert_int_eq(pread(to, out, (size_t)len, 0), len);
	close(in);
	close(to);
	return WEXITSTATUS(status);
}

static void assert_contains(const char *part)
{
	ck_assert_msg(strstr(out, part) != NULL, "\"%s\" lacks \"%s\"", out, part);
}

#endif
