/* SPDX-License-Identifier: MIT
 *
 * replay_main: a main for a fuzz target without libFuzzer. Gives every file of the directories (and every file) named
 * as arguments to LLVMFuzzerTestOneInput, so that corpora and past crashes run as tests with any compiler. Prints how
 * many; a failing input ends it by abort, after its name was printed. No input at all is a failure.
 */
#include <base.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static unsigned replayed;
static char current[4096]; /* shown by on_abort */

/* Returns, and abort goes on. */
static void on_abort(int sig)
{
	static const char text[] = "replay: failed at ";
	(void)sig;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) == -1 ||
	    write(STDERR_FILENO, current, strlen(current)) == -1 || write(STDERR_FILENO, "\n", 1) == -1)
		return;
}

static int replay_file(const char *path, size_t size)
{
	FILE *f = fopen(path, "rb");
	uint8_t *bytes = malloc(size ? size : 1); /* exact, so that the address sanitizer sees an overrun */
	int r = -1;
	if (f && bytes && fread(bytes, 1, size, f) == size) {
		snprintf(current, sizeof(current), "%s", path);
		LLVMFuzzerTestOneInput(bytes, size);
		replayed++;
		r = 0;
	} else {
		fprintf(stderr, "replay: cannot read %s: %s\n", path, strerror(errno));
	}
	free(bytes);
	if (f)
		fclose(f);
	return r;
}

static int replay_path(const char *path)
{
	struct stat st;
	if (stat(path, &st) == -1) {
		fprintf(stderr, "replay: %s: %s\n", path, strerror(errno));
		return -1;
	}
	if (!S_ISDIR(st.st_mode))
		return replay_file(path, (size_t)st.st_size);
	struct dirent **names;
	int n = scandir(path, &names, NULL, alphasort), r = 0;
	if (n == -1)
		return -1;
	for (int i = 0; i < n; i++) {
		char inner[4096];
		snprintf(inner, sizeof(inner), "%s/%s", path, names[i]->d_name);
		if (names[i]->d_name[0] != '.' && replay_path(inner) != 0)
			r = -1;
		free(names[i]);
	}
	free(names);
	return r;
}

int main(int argc, char **argv)
{
	int r = 0;
	signal(SIGABRT, on_abort);
	for (int i = 1; i < argc; i++)
		if (replay_path(argv[i]) != 0)
			r = 1;
	printf("%s: %u inputs replayed\n", argv[0], replayed);
	return r || replayed == 0;
}
