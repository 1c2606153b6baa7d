/* SPDX-License-Identifier: MIT
 *
 * The registry of endpoints: references, what is retired and closed when, and that a configuration which cannot be had,
 * whatever fails and when, leaves no trace. calloc and strdup of the registry, and socket, bind and listen, are the test's
 * own here: the n-th call fails as told.
 */
#include "suite.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static unsigned long fails_at, n_calls; /* fails_at 0: none does */

static int strikes(int code)
{
	errno = code;
	return ++n_calls == fails_at;
}

static void *faulty_calloc(size_t n, size_t size)
{
	return strikes(ENOMEM) ? NULL : calloc(n, size);
}

static char *faulty_strdup(const char *s)
{
	return strikes(ENOMEM) ? NULL : strdup(s);
}

#define calloc faulty_calloc
#undef strdup
#define strdup faulty_strdup
#include "../../src/endpoint/registry.c"
#undef calloc
#undef strdup

int socket(int domain, int type, int protocol)
{
	return strikes(EMFILE) ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	return strikes(EADDRINUSE) ? -1 : (int)syscall(SYS_bind, fd, addr, len);
}

int listen(int fd, int backlog)
{
	return strikes(EADDRINUSE) ? -1 : (int)syscall(SYS_listen, fd, backlog);
}

/* -- the rig --------------------------------------------------------------------------------------------------------- */

enum { SET_MAX = 8 };

static struct stats *stats;
static struct registry first, *reg = &first;
static struct err err;
static char folder[] = "/tmp/millrace-registry-XXXXXX", path[100], addresses[SET_MAX][40];

/* What one configuration has: as src/master/generation.c does it. */
struct set {
	struct conf conf;
	struct conf_input inputs[SET_MAX];
	char *items[SET_MAX];
	struct endpoint *eps[SET_MAX];
	unsigned n;
	unsigned n_slots;
};

static const struct endpoint_ops *ops_of(enum conf_words type)
{
	return type == CONF_INPUT_TYPE_UDP   ? &endpoint_udp
	       : type == CONF_INPUT_TYPE_TCP ? &endpoint_tcp
					     : &endpoint_unix;
}

static void add(struct set *s, enum conf_words type, char *address)
{
	size_t i = s->conf.n_inputs++;
	s->items[i] = address;
	s->inputs[i] = (struct conf_input){
	    .name = "in",
	    .type = type,
	    .bind = {.items = &s->items[i], .n = 1},
	    .spread = CONF_SPREAD_FLOW,
	    .receive_buffer = 100000,
	    .mode = "0600",
	};
	s->conf.inputs = s->inputs;
}

static struct endpoint_user user_of(const struct set *s, unsigned i)
{
	return (struct endpoint_user){.conf = &s->conf, .cf = &s->inputs[i], .n_slots = s->n_slots};
}

static int take(struct set *s)
{
	int r = 0;
	for (unsigned i = 0; r == 0 && i < s->conf.n_inputs; i++) {
		struct endpoint_key keys[ENDPOINT_KEYS_MAX];
		const struct endpoint_user user = user_of(s, i);
		int n = endpoint_keys(ops_of(s->inputs[i].type), &s->inputs[i], &s->conf, s->items[i], keys, &err);
		ck_assert_int_eq(n, 1);
		s->eps[i] = endpoint_get(reg, &keys[0], &user, &r, &err);
		s->n += s->eps[i] != NULL;
	}
	for (unsigned i = 0; r == 0 && i < s->n; i++)
		r = endpoint_adjust(reg, s->eps[i], &err);
	return r;
}

static void drop(struct set *s)
{
	while (s->n > 0)
		endpoint_put(s->eps[--s->n]);
}

static void give_up(struct set *s, struct set *present)
{
	drop(s);
	registry_sweep(reg);
	for (unsigned i = 0; i < present->n; i++) {
		const struct endpoint_user user = user_of(present, i);
		endpoint_restore(reg, present->eps[i], &user);
	}
}

static unsigned n_endpoints(void)
{
	struct endpoint *ep;
	unsigned n = 0;
	TAILQ_FOREACH(ep, &reg->list, next)
		n++;
	return n;
}

static char *free_address(unsigned i)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sin, len), 0);
	ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	close(fd);
	snprintf(addresses[i], sizeof(addresses[i]), "127.0.0.1:%u", ntohs(sin.sin_port));
	return addresses[i];
}

/* Datagrams from many ports, which nobody reads. */
static void leave_unread(const struct endpoint *ep, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		int fd = socket(AF_INET, SOCK_DGRAM, 0);
		ck_assert_int_eq(sendto(fd, "x", 1, 0, (const struct sockaddr *)&ep->address.sa, ep->address.len), 1);
		close(fd);
	}
}

/* … and how many of them the endpoint's sockets got. */
static unsigned received(const struct endpoint *ep, unsigned n)
{
	unsigned got = 0;
	char byte;
	leave_unread(ep, n);
	for (unsigned k = 0; k < ep->n_fds; k++)
		while (recv(ep->fds[k], &byte, 1, MSG_DONTWAIT) == 1)
			got++;
	return got;
}

static uint64_t closed_datagrams(void)
{
	uint64_t n = 0;
	for (unsigned i = 0; i < stats_entries(stats, STATS_ENDPOINT); i++)
		n += stats_endpoint(reg->page, i)->dropped_closed_datagrams;
	return n;
}

static void setup(void)
{
	stats = stats_new(2, 8, &err);
	ck_assert_ptr_nonnull(stats);
	registry_init(reg, stats);
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/socket", folder);
}

static void teardown(void)
{
	fails_at = 0;
	registry_close(reg);
	stats_free(stats);
	unlink(path);
	rmdir(folder);
}

/* -- references ------------------------------------------------------------------------------------------------------ */

START_TEST(what_both_have_stays)
{
	static struct set a, b;
	a.n_slots = b.n_slots = 2;
	add(&a, CONF_INPUT_TYPE_UDP, free_address(0));
	add(&a, CONF_INPUT_TYPE_TCP, free_address(1));
	add(&b, CONF_INPUT_TYPE_UDP, addresses[0]);
	add(&b, CONF_INPUT_TYPE_UDP, addresses[1]); /* the port of tcp is free for it */
	ck_assert_int_eq(take(&a), 0);
	registry_settle(reg);
	ck_assert_uint_eq(a.eps[0]->n_fds, 2);
	ck_assert_uint_eq(a.eps[0]->n_blocks, 2);
	ck_assert_msg(take(&b) == 0, "%s", err.text);
	ck_assert_ptr_eq(a.eps[0], b.eps[0]);
	ck_assert_uint_eq(a.eps[0]->references, 2);
	ck_assert(!endpoint_put(a.eps[0]));
	ck_assert(endpoint_put(a.eps[1]));
	ck_assert(a.eps[1]->is_retired);
	ck_assert_uint_eq(n_endpoints(), 3);
	registry_settle(reg);
	registry_sweep(reg);
	ck_assert_uint_eq(n_endpoints(), 2);
	ck_assert_uint_eq(received(b.eps[0], 20), 20);
}
END_TEST

START_TEST(slots_come_and_go)
{
	static struct set a, b;
	a.n_slots = 1;
	b.n_slots = 3;
	add(&a, CONF_INPUT_TYPE_UDP, free_address(0));
	add(&b, CONF_INPUT_TYPE_UDP, addresses[0]);
	ck_assert_int_eq(take(&a), 0);
	registry_settle(reg);
	ck_assert_msg(take(&b) == 0, "%s", err.text);
	drop(&a);
	registry_settle(reg);
	ck_assert_uint_eq(b.eps[0]->n_fds, 3);
	registry_close_slot(reg, 2);
	registry_close_slot(reg, 1);
	ck_assert_uint_eq(b.eps[0]->n_fds, 1);
	ck_assert_uint_eq(b.eps[0]->n_blocks, 1);
	registry_close_slot(reg, 0); /* that one is for all who may come */
	ck_assert_uint_eq(b.eps[0]->n_fds, 1);
	ck_assert_uint_eq(received(b.eps[0], 20), 20);
}
END_TEST

/* What nobody has read when a socket is closed is counted: of a slot that ended, of sockets for a configuration that is
 * given up, of an endpoint that goes, and of all at the end. */
START_TEST(what_is_closed_unread_is_counted)
{
	static struct set a, b;
	ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
	a.n_slots = 2;
	b.n_slots = 3;
	add(&a, CONF_INPUT_TYPE_UDP, free_address(0));
	add(&a, CONF_INPUT_TYPE_UDP, free_address(1));
	add(&b, CONF_INPUT_TYPE_UDP, addresses[0]);
	ck_assert_int_eq(take(&a), 0);
	registry_settle(reg);
	ck_assert_msg(take(&b) == 0, "%s", err.text);
	leave_unread(a.eps[0], 60);
	give_up(&b, &a);
	unsigned there = received(a.eps[0], 0);
	ck_assert_uint_lt(there, 60);
	ck_assert_uint_eq(closed_datagrams(), 60 - there);
	leave_unread(a.eps[0], 60);
	registry_close_slot(reg, 1);
	there += received(a.eps[0], 0);
	ck_assert_uint_eq(closed_datagrams(), 120 - there);
	leave_unread(a.eps[1], 60);
	a.n--;
	endpoint_put(a.eps[1]);
	leave_unread(a.eps[1], 60); /* it takes in nothing more */
	registry_sweep(reg);
	ck_assert_uint_eq(closed_datagrams(), 180 - there);
	leave_unread(a.eps[0], 60);
	registry_discard(reg);
	ck_assert_uint_eq(closed_datagrams(), 240 - there);
	ck_assert_uint_eq(received(a.eps[0], 0), 0);
}
END_TEST

START_TEST(nothing_is_left_of_what_cannot_be)
{
	static struct set a, b;
	int r = -1;
	a.n_slots = 2;
	add(&a, CONF_INPUT_TYPE_UDP, free_address(0));
	add(&a, CONF_INPUT_TYPE_TCP, free_address(1));
	ck_assert_int_eq(take(&a), 0);
	registry_settle(reg);
	for (unsigned long n = 1; r != 0; n++) {
		b = (struct set){.n_slots = 4};
		add(&b, CONF_INPUT_TYPE_UDP, addresses[0]);
		add(&b, CONF_INPUT_TYPE_TCP, addresses[1]);
		add(&b, CONF_INPUT_TYPE_UNIX, path);
		add(&b, CONF_INPUT_TYPE_UDP, addresses[1]);
		n_calls = 0;
		fails_at = n;
		r = take(&b);
		fails_at = 0;
		ck_assert_msg(r == 0 || n_calls >= n, "call %lu: %s", n, err.text);
		if (r == 0)
			ck_assert_uint_gt(n, 15);
		give_up(&b, &a);
		ck_assert_uint_eq(n_endpoints(), 2);
		ck_assert_uint_eq(a.eps[0]->references, 1);
		ck_assert_uint_eq(a.eps[0]->n_fds, 2);
		ck_assert_uint_eq(a.eps[0]->n_blocks, 2);
		ck_assert_ptr_eq(a.eps[0]->conf, &a.conf);
		ck_assert_int_eq(access(path, F_OK), -1);
		ck_assert_uint_eq(received(a.eps[0], 20), 20);
	}
}
END_TEST

/* -- addresses ------------------------------------------------------------------------------------------------------- */

START_TEST(addresses_of_a_name)
{
	struct endpoint_key keys[ENDPOINT_KEYS_MAX];
	struct conf_input in = {.type = CONF_INPUT_TYPE_UDP};
	struct conf conf = {.inputs = &in, .n_inputs = 1};
	int n = endpoint_keys(&endpoint_udp, &in, &conf, "localhost:8125", keys, &err);
	ck_assert_int_ge(n, 1);
	for (int i = 0; i < n; i++)
		ck_assert(strcmp(keys[i].name, "127.0.0.1:8125") == 0 || strcmp(keys[i].name, "[::1]:8125") == 0);
	ck_assert_int_lt(endpoint_keys(&endpoint_udp, &in, &conf, "nowhere.invalid:8125", keys, &err), 0);
	ck_assert_int_eq(endpoint_keys(&endpoint_unix, &in, &conf, "/run/s", keys, &err), 1);
	ck_assert_str_eq(keys[0].name, "/run/s");
}
END_TEST

START_TEST(both_families)
{
	static struct set s;
	char v4[40], v6[40];
	s.n_slots = 2;
	snprintf(v4, sizeof(v4), "0.0.0.0%s", strchr(free_address(0), ':'));
	snprintf(v6, sizeof(v6), "[::]%s", strchr(addresses[0], ':'));
	add(&s, CONF_INPUT_TYPE_UDP, v6);
	add(&s, CONF_INPUT_TYPE_UDP, v4);
	ck_assert_int_eq(take(&s), 0);
	ck_assert(s.eps[0]->address.v6_only);
}
END_TEST

/* -- socket files ---------------------------------------------------------------------------------------------------- */

START_TEST(only_our_own_file_is_removed)
{
	static struct set a, b;
	int fd;
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	a.n_slots = b.n_slots = 1;
	add(&a, CONF_INPUT_TYPE_UNIX, path);
	ck_assert_int_eq(take(&a), 0);
	drop(&a);
	ck_assert_int_eq(access(path, F_OK), -1);
	registry_sweep(reg);
	add(&b, CONF_INPUT_TYPE_UNIX, path);
	ck_assert_msg(take(&b) == 0, "%s", err.text);
	ck_assert_int_eq(unlink(path), 0);
	strcpy(sun.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	drop(&b);
	registry_sweep(reg);
	ck_assert_int_eq(access(path, F_OK), 0);
	close(fd);
}
END_TEST

/* -- from one program to the next ------------------------------------------------------------------------------------ */

static struct registry next;

static int hand_over(void *arg, const struct endpoint_state *state)
{
	int fds[SET_MAX];
	struct endpoint_state copy = *state;
	(void)arg;
	for (unsigned k = 0; k < state->n_fds; k++)
		fds[k] = dup(state->fds[k]);
	copy.fds = fds;
	return registry_adopt(&next, strcmp(state->type, "udp") == 0 ? &endpoint_udp : &endpoint_unix, &copy);
}

/* It closes descriptors, and nothing else is done. */
static void exec_forgets(struct set *s)
{
	for (unsigned i = 0; i < s->n; i++) {
		while (s->eps[i]->n_fds > 0)
			close(s->eps[i]->fds[--s->eps[i]->n_fds]);
		s->eps[i]->path_inode = 0;
	}
	registry_close(reg);
}

START_TEST(what_is_adopted)
{
	static struct set a, b;
	a.n_slots = b.n_slots = 2;
	add(&a, CONF_INPUT_TYPE_UDP, free_address(0));
	add(&a, CONF_INPUT_TYPE_UNIX, path);
	ck_assert_int_eq(take(&a), 0);
	registry_settle(reg);
	a.eps[0]->last_dropped[1] = 7;
	registry_init(&next, stats);
	ck_assert_int_eq(registry_export(reg, hand_over, NULL), 0);
	ck_assert_int_eq(access(path, F_OK), 0);
	ck_assert_uint_eq(received(a.eps[0], 20), 20);
	exec_forgets(&a);
	ck_assert_int_eq(access(path, F_OK), 0);
	reg = &next;
	add(&b, CONF_INPUT_TYPE_UDP, addresses[0]);
	ck_assert_msg(take(&b) == 0, "%s", err.text);
	ck_assert_uint_eq(b.eps[0]->n_fds, 2);
	ck_assert_uint_eq(b.eps[0]->last_dropped[1], 7);
	ck_assert_int_eq(access(path, F_OK), 0);
	registry_sweep(reg);
	ck_assert_int_eq(access(path, F_OK), -1);
	ck_assert_uint_eq(received(b.eps[0], 20), 20);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("registry");
	TCase *tcase = tcase_create("registry");
	tcase_add_checked_fixture(tcase, setup, teardown);
	tcase_add_test(tcase, what_both_have_stays);
	tcase_add_test(tcase, slots_come_and_go);
	tcase_add_test(tcase, what_is_closed_unread_is_counted);
	tcase_add_test(tcase, nothing_is_left_of_what_cannot_be);
	tcase_add_test(tcase, addresses_of_a_name);
	tcase_add_test(tcase, both_families);
	tcase_add_test(tcase, only_our_own_file_is_removed);
	tcase_add_test(tcase, what_is_adopted);
	suite_add_tcase(suite, tcase);
	return suite_run(suite);
}
