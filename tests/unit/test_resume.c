/* SPDX-License-Identifier: MIT
 *
 * resume: what the program before left is taken over when there is no memory any more: the allocations of resume.c fail
 * from the moment when the state has been read.
 */
#include "suite.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool has_none;

__attribute__((unused)) static char *faulty_strdup(const char *s)
{
	return has_none ? NULL : strdup(s);
}

static void *faulty_calloc(size_t n, size_t size)
{
	return has_none ? NULL : calloc(n, size);
}

static void *faulty_malloc(size_t size)
{
	return has_none ? NULL : malloc(size);
}

#undef strdup
#define strdup faulty_strdup
#define calloc faulty_calloc
#define malloc faulty_malloc
#include "../../src/master/resume.c"
#undef strdup
#undef calloc
#undef malloc

static void leave(struct text *t, int control, int client)
{
	state_key(t, "control");
	state_number(t, control);
	state_word(t, "/run/control.sock");
	state_key(t, "client");
	state_number(t, client);
	state_number(t, 1);
	state_key(t, "generation");
	state_number(t, 7);
	state_key(t, "slot");
	state_number(t, 2);
}

START_TEST(without_memory)
{
	struct conf cf = {.control = "/run/control.sock", .http = "", .pid_file = ""};
	struct master m = {.cf = &cf, .control_fd = -1};
	struct text t = {0};
	char how[UPGRADE_PLACE_BYTES];
	int control = dup(STDERR_FILENO), client = dup(STDERR_FILENO);
	leave(&t, control, client);
	int state = state_fd(&t);
	text_free(&t);
	snprintf(how, sizeof(how), "resume %d", state);
	setenv(UPGRADE_ENVIRONMENT, how, 1);
	ck_assert(master_resumes());
	has_none = true;
	resume_begin(&m);
	has_none = false;
	ck_assert_int_eq(m.control_fd, control);
	ck_assert_uint_eq(m.generation, 7);
	ck_assert_uint_eq(m.n_slots, 3);
	ck_assert_uint_eq(the_resume->n_guests, 1);
	ck_assert_int_eq(the_resume->guests[0].fd, client);
	ck_assert(the_resume->guests[0].is_waiting);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("resume");
	TCase *tc = tcase_create("resume");
	tcase_add_test(tc, without_memory);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
