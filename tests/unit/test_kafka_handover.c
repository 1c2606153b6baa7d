/* SPDX-License-Identifier: MIT
 *
 * The kafka output: what a worker that leaves hands over arrives once, and both accounts balance after every step
 * (kafka_rig.h). Two outputs as two workers have them, in one process, against librdkafka's mock.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <handover.h>
#include <net.h>
#include <netdb.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "kafka_rig.h"

#define DATAGRAMS "format: datagram"

/* -- a name server that does not answer ------------------------------------------------------------------------------ */

static int look_ups_hang; /* atomic: librdkafka's threads ask */
static int look_ups_hung;

/* In the place of the C library's, for librdkafka too. Addresses are numeric here. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **res)
{
	(void)hints;
	while (__atomic_load_n(&look_ups_hang, __ATOMIC_RELAXED)) {
		__atomic_store_n(&look_ups_hung, 1, __ATOMIC_RELAXED);
		usleep(1000);
	}
	struct found {
		struct addrinfo info;
		struct sockaddr_in in4;
	} *f = calloc(1, sizeof(*f));
	if (f == NULL || node == NULL || service == NULL)
		return EAI_FAIL;
	f->in4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(service))};
	inet_pton(AF_INET, node, &f->in4.sin_addr);
	f->info = (struct addrinfo){.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_addrlen = sizeof(f->in4)};
	f->info.ai_addr = (struct sockaddr *)&f->in4;
	*res = &f->info;
	return 0;
}

void freeaddrinfo(struct addrinfo *res)
{
	free(res);
}

/* -- two workers ----------------------------------------------------------------------------------------------------- */

static struct rig *successor(struct rig *a, const char *options, const char *properties)
{
	rig_beside = a;
	struct rig *b = rig_start(1, options, properties);
	rig_beside = NULL;
	return b;
}

/* What lies in the channel goes to b; `spoil` may change each file. Returns how many files came. */
typedef int spoil_cb(int fd);
static unsigned take(struct rig *b, int channel, spoil_cb *spoil)
{
	struct handover msg;
	unsigned n = 0;
	int fd;
	for (ssize_t len; (len = net_recv_fd(channel, &msg, sizeof(msg), &fd)) > 0; n++) {
		ck_assert_int_eq(len, sizeof(msg));
		ck_assert_str_eq(msg.name, "out");
		fd = spoil ? spoil(fd) : fd;
		b->out.type->take_over(&b->out, &msg, (size_t)len, fd);
		rig_check(b);
	}
	return n;
}

static unsigned hand_over(struct rig *a, struct rig *b)
{
	int channel[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, channel), 0);
	uint64_t until_us = clock_us() + 5000000;
	a->out.type->hand_over(&a->out, channel[0], until_us);
	ck_assert_uint_lt(clock_us(), until_us); /* it waited for nobody */
	rig_check(a);
	close(channel[0]);
	unsigned n = take(b, channel[1], NULL);
	close(channel[1]);
	ck_assert_uint_eq(a->be->passed_records, b->be->taken_over_records);
	ck_assert_uint_eq(a->st->passed_messages, b->st->taken_over_messages);
	return n;
}

struct numbers {
	unsigned char *seen;
	uint64_t n, next, falls;
};

static void see_number(void *arg, rd_kafka_message_t *m)
{
	struct numbers *numbers = arg;
	unsigned long long number;
	ck_assert_int_eq(sscanf(m->payload, "k%llu:", &number), 1);
	ck_assert_uint_lt(number, numbers->n);
	ck_assert_msg(numbers->seen[number]++ == 0, "message %llu came twice", number);
	numbers->falls += number < numbers->next;
	numbers->next = number + 1;
}

/* Each of so many datagrams is in the topic, once. */
static uint64_t read_all(struct rig *r, unsigned n)
{
	struct numbers numbers = {.seen = calloc(n, 1), .n = n};
	rig_read(r, n, see_number, &numbers);
	free(numbers.seen);
	return numbers.falls;
}

static bool is_empty(struct rig *r)
{
	return r->out.type->pending(&r->out) == 0;
}

/* -- what goes over -------------------------------------------------------------------------------------------------- */

static const char *const producers[] = {
    "linger.ms: 1",
    "linger.ms: 1, enable.idempotence: false, max.in.flight: 2",
    "linger.ms: 50, queue.buffering.max.messages: 1000",
};

/* What the one did not hand over and what the other took over is all, and arrives. */
static void both_deliver(struct rig *a, struct rig *b, uint64_t n)
{
	while (!is_empty(a) || !is_empty(b)) {
		rig_turn(a);
		rig_turn(b);
	}
	ck_assert_uint_eq(a->be->delivered_records + b->be->delivered_records, n);
	rig_stop(b);
	read_all(a, n);
	rig_stop(a);
}

START_TEST(queued_and_in_flight)
{
	const char *properties = producers[_i];
	enum { N = 300 * 64 };
	struct rig *a = rig_start(4, DATAGRAMS, properties), *b = successor(a, DATAGRAMS, properties);
	rig_datagrams(a, 64, 100);
	RIG_UNTIL(a, a->be->delivered_records == 64);
	rd_kafka_mock_broker_set_rtt(a->mock, 1, 100);
	for (unsigned i = 1; i < N / 64; i++) {
		rig_datagrams(a, 64, 100);
		rig_turn(a);
	}
	ck_assert_uint_ge(hand_over(a, b), 1);
	ck_assert_uint_gt(a->be->passed_records, 0);
	ck_assert_uint_eq(a->out.type->pending(&a->out), a->be->in_flight_records);
	a->out.type->drain(&a->out);
	both_deliver(a, b, N);
}
END_TEST

/* Three workers in turn while the broker is away; the last one delivers, in order. */
START_TEST(broker_away)
{
	enum { N = 200 * 64 };
	struct rig *a = rig_start(1, DATAGRAMS ", partition: key", ""), *b, *c;
	RIG_UNTIL(a, a->k->n_targets == 1);
	rd_kafka_mock_broker_set_down(a->mock, 1);
	RIG_UNTIL(a, !a->be->up); /* or what goes out before it is noticed stays in flight */
	for (unsigned i = 0; i < N / 64 - 1; i++) {
		rig_datagrams(a, 64, 200);
		rig_turn(a);
	}
	b = successor(a, DATAGRAMS ", partition: key", "");
	ck_assert_uint_ge(hand_over(a, b), 1);
	ck_assert_uint_eq(a->out.type->pending(&a->out), 0);
	b->sent = a->sent;
	rig_datagrams(b, 64, 200);
	rig_turn(b);
	c = successor(a, DATAGRAMS ", partition: key", "");
	hand_over(b, c);
	ck_assert_uint_eq(b->out.type->pending(&b->out), 0);
	ck_assert_ptr_null(LIST_FIRST(&b->k->taken));
	ck_assert_uint_eq(b->k->pool.outside_bytes, 0);
	rd_kafka_mock_broker_set_up(a->mock, 1);
	RIG_UNTIL(c, is_empty(c));
	ck_assert_uint_eq(c->be->delivered_records, N);
	ck_assert_ptr_null(LIST_FIRST(&c->k->taken));
	rig_stop(c);
	rig_stop(b);
	ck_assert_uint_eq(read_all(a, N), 0);
	rig_stop(a);
}
END_TEST

/* The leader's thread stands in a look-up: nothing waits for it. What it had goes out when it comes back. */
START_TEST(look_up_hangs)
{
	enum { N = 20 * 64 };
	struct rig *a = rig_start(1, DATAGRAMS, "reconnect.backoff.ms: 10, reconnect.backoff.max.ms: 20"), *b;
	rig_datagrams(a, 64, 100);
	RIG_UNTIL(a, a->be->delivered_records == 64);
	b = successor(a, DATAGRAMS, "");
	__atomic_store_n(&look_ups_hang, 1, __ATOMIC_RELAXED);
	rd_kafka_mock_broker_set_down(a->mock, 1);
	RIG_UNTIL(a, __atomic_load_n(&look_ups_hung, __ATOMIC_RELAXED));
	for (unsigned i = 1; i < N / 64; i++) {
		rig_datagrams(a, 64, 100);
		rig_turn(a);
	}
	hand_over(a, b); /* while it hangs */
	rd_kafka_mock_broker_set_up(a->mock, 1);
	__atomic_store_n(&look_ups_hang, 0, __ATOMIC_RELAXED);
	both_deliver(a, b, N);
}
END_TEST

/* -- the very same messages ------------------------------------------------------------------------------------------ */

struct message_seen {
	unsigned n;
	uint64_t sum;
};

static void sum_message(void *arg, rd_kafka_message_t *m)
{
	struct message_seen *seen = arg;
	rd_kafka_headers_t *headers = NULL;
	const void *value;
	const char *name;
	size_t len;
	uint64_t sum = hash_murmur3_32(m->payload, m->len, 1);
	sum = sum << 16 ^ hash_murmur3_32(m->key, m->key_len, (uint32_t)m->partition);
	rd_kafka_message_headers(m, &headers);
	for (size_t i = 0; headers && rd_kafka_header_get_all(headers, i, &name, &value, &len) == 0; i++)
		sum = sum * 31 + hash_murmur3_32(value, len, 2);
	if (headers != NULL)
		sum = sum * 31 + (uint64_t)rd_kafka_message_timestamp(m, NULL);
	seen->sum += sum;
	seen->n++;
}

static void put_some(struct rig *r)
{
	struct sockaddr_in *in4 = (struct sockaddr_in *)&r->from;
	r->sent = 0;
	if (r->out.wants == OUTPUT_WANTS_LINES) {
		rig_lines(r, 500);
		return;
	}
	for (unsigned i = 0; i < 10; i++) {
		struct batch *b = &r->batch;
		in4->sin_port = htons((uint16_t)(4711 + i));
		rig_fill_datagrams(r, 64, 50 + i * 100);
		for (unsigned n = 0; n < b->n_items; n++) {
			r->items[n].link_type = 1;
			r->items[n].time_ns = UINT64_C(1700000000000000000) + r->sent * 1000000;
		}
		r->out.type->send(&r->out, b);
		rig_check(r);
	}
}

#define PACKETS "type: file, path: /dev/null"
static const struct {
	const char *input, *format, *other;
} formats[] = {
    {"type: udp, bind: \"127.0.0.1:1\"", DATAGRAMS ", headers: true, partition: key", DATAGRAMS},
    {"type: udp, bind: \"127.0.0.1:1\"", DATAGRAMS ", partition: flow", DATAGRAMS ", headers: true"},
    {"type: udp, bind: \"127.0.0.1:1\"", "format: lines, partition: key, batch_delay: 10s", DATAGRAMS},
    {PACKETS, "format: packet, partition: flow", "format: pcap, batch_delay: 10s"},
    {PACKETS, "format: pcap, partition: flow, batch_delay: 10s", "format: packet"},
};

/* Once directly, once over a second worker whose own format is another one. */
START_TEST(the_very_same)
{
	struct message_seen seen[2] = {0};
	rig_input = formats[_i].input;
	for (unsigned over = 0; over < 2; over++) {
		struct rig *a = rig_start(4, formats[_i].format, ""), *b = NULL;
		uint64_t messages;
		RIG_UNTIL(a, a->k->n_targets == 4);
		put_some(a);
		if (over) {
			b = successor(a, formats[_i].other, "");
			hand_over(a, b);
			ck_assert_uint_eq(a->out.type->pending(&a->out), a->be->in_flight_records);
			ck_assert_uint_ge(b->be->queued_records, 400);
			b->out.type->drain(&b->out);
			RIG_UNTIL(b, is_empty(b));
		}
		a->out.type->drain(&a->out);
		RIG_UNTIL(a, is_empty(a));
		messages = a->st->delivered_messages + (b ? b->st->delivered_messages : 0);
		ck_assert_uint_eq(a->be->delivered_records + (b ? b->be->delivered_records : 0), a->be->offered_records);
		rig_read(a, (unsigned)messages, sum_message, &seen[over]);
		if (b != NULL)
			rig_stop(b);
		rig_stop(a);
	}
	ck_assert_uint_gt(seen[0].n, 0);
	ck_assert_uint_eq(seen[0].n, seen[1].n);
	ck_assert_uint_eq(seen[0].sum, seen[1].sum);
}
END_TEST

/* -- limits ---------------------------------------------------------------------------------------------------------- */

#define SMALL ", memory_limit: 1MiB, overflow: block"

/* The batch that was held goes over as well, though memory is full; the successor, which is full at once, takes it all, and
 * nothing new before there is room. */
START_TEST(full)
{
	struct rig *a = rig_start(1, DATAGRAMS SMALL, ""), *b = successor(a, DATAGRAMS SMALL, "");
	RIG_UNTIL(a, a->k->n_targets == 1);
	rd_kafka_mock_broker_set_down(a->mock, 1);
	while (rig_datagrams(a, 64, 1000) == 64)
		rig_turn(a);
	unsigned all = (unsigned)a->sent;
	ck_assert_uint_gt(a->so->held_records, 0);
	a->out.takes_all = true;
	a->out.type->send(&a->out, &a->batch);
	rig_check(a);
	ck_assert_uint_eq(a->so->held_records, 0);
	hand_over(a, b);
	ck_assert_uint_eq(b->be->queued_records, all);
	ck_assert_uint_eq(b->be->dropped_memory_records, 0);
	b->sent = all;
	ck_assert_uint_eq(rig_datagrams(b, 64, 1000), 0);
	rd_kafka_mock_broker_set_up(a->mock, 1);
	RIG_UNTIL(b, b->rooms + rig_now->rooms > 0);
	b->out.type->send(&b->out, &b->batch);
	ck_assert_uint_eq(b->batch.taken[0], 64);
	RIG_UNTIL(b, is_empty(b));
	rig_stop(b);
	ck_assert_uint_eq(read_all(a, all + 64), 0);
	rig_stop(a);
}
END_TEST

/* A file that cannot grow, a channel that nobody reads or that is gone: what did not go over stays, and is sent. */
START_TEST(it_stays)
{
	struct rig *a = rig_start(1, DATAGRAMS, "");
	struct rlimit limit = {.rlim_cur = 100000, .rlim_max = RLIM_INFINITY};
	int channel[2];
	RIG_UNTIL(a, a->k->n_targets == 1);
	for (unsigned i = 0; i < 100; i++)
		rig_datagrams(a, 64, 100);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, channel), 0);
	if (_i == 0) {
		signal(SIGXFSZ, SIG_IGN);
		ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	} else if (_i == 1) {
		close(channel[1]);
		signal(SIGPIPE, SIG_IGN);
	} else {
		while (send(channel[0], &limit, sizeof(limit), 0) > 0)
			;
	}
	uint64_t begin_us = clock_us();
	a->out.type->hand_over(&a->out, channel[0], begin_us + 50000);
	ck_assert_uint_lt(clock_us() - begin_us, 5000000);
	rig_check(a);
	ck_assert_uint_eq(a->be->passed_records, 0);
	limit.rlim_cur = RLIM_INFINITY;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	RIG_UNTIL(a, is_empty(a));
	close(channel[0]);
	if (_i != 1)
		close(channel[1]);
	ck_assert_uint_eq(read_all(a, 6400), 0);
	rig_stop(a);
}
END_TEST

/* -- a predecessor that lies ----------------------------------------------------------------------------------------- */

static unsigned spoil_seed;

static unsigned spoil_random(void)
{
	spoil_seed = spoil_seed * 1103515245 + 12345;
	return spoil_seed >> 8;
}

static int copy_of(int fd, const char *bytes, size_t size, unsigned seals)
{
	close(fd);
	fd = memfd_create("spoiled", MFD_ALLOW_SEALING);
	ck_assert_int_eq(write(fd, bytes, size), (ssize_t)size);
	fcntl(fd, F_ADD_SEALS, seals);
	return fd;
}

/* The same file with some bytes, its length, its seals or itself amiss. */
static int spoil_some(int fd)
{
	static char bytes[1 << 20];
	ssize_t size = pread(fd, bytes, sizeof(bytes), 0);
	ck_assert_int_gt(size, 0);
	unsigned how = spoil_random() % 8, seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	if (how == 0) {
		close(fd);
		return -1;
	}
	if (how == 1)
		seals = spoil_random() % 2 ? F_SEAL_SHRINK : F_SEAL_WRITE;
	if (how == 2 || how == 3)
		size = (ssize_t)(spoil_random() % (unsigned)size);
	static const uint64_t extremes[] = {0, 1, UINT64_MAX, UINT32_MAX, INT64_MAX, 0x80000000};
	for (unsigned n = how > 3 ? 1 + spoil_random() % 20 : 0; n > 0 && size > 64; n--) {
		size_t at = spoil_random() % 3 ? spoil_random() % (unsigned)(size - 8) : spoil_random() % 48;
		uint64_t what = spoil_random() % 2 ? extremes[spoil_random() % ARRAY_LEN(extremes)] : spoil_random();
		memcpy(bytes + at, &what, 1 + spoil_random() % 8);
	}
	return copy_of(fd, bytes, (size_t)size, seals);
}

/* The predecessor does not turn, so that it has no partitions and gives all away; the successor delivers what it can. */
START_TEST(spoiled)
{
	const char *options = _i ? DATAGRAMS ", headers: true, partition: key" : "format: packet";
	rig_input = _i ? rig_input : PACKETS;
	struct rig *a = rig_start(2, options, ""), *b = successor(a, options, "");
	for (unsigned i = 0; i < 500; i++) {
		uint64_t taken = b->be->taken_over_records;
		int channel[2];
		spoil_seed = i;
		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, channel), 0);
		put_some(a);
		a->out.type->hand_over(&a->out, channel[0], clock_us() + 1000000);
		ck_assert_uint_eq(take(b, channel[1], spoil_some), 1);
		ck_assert_uint_ge(b->be->taken_over_records - taken, 640);
		rig_turn(b);
		close(channel[0]);
		close(channel[1]);
	}
	ck_assert_uint_gt(b->be->dropped_memory_records, 0);
	RIG_UNTIL(b, is_empty(b));
	ck_assert_ptr_null(LIST_FIRST(&b->k->taken));
	rig_stop(b);
	rig_stop(a);
}
END_TEST

/* -- speed ----------------------------------------------------------------------------------------------------------- */

static double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

START_TEST(speed)
{
	static const unsigned sizes[] = {100, 1000, 60000};
	for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
		const char *few = "queue.buffering.max.messages: 1000"; /* that librdkafka drops at the end */
		struct rig *a = rig_start(1, DATAGRAMS, few), *b = successor(a, DATAGRAMS, few);
		int channel[2];
		RIG_UNTIL(a, a->k->n_targets == 1);
		rd_kafka_mock_broker_set_down(a->mock, 1);
		while (a->st->offered_bytes < 100000000)
			rig_datagrams(a, 64, sizes[i]);
		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, channel), 0);
		double begin_ms = cpu_ms();
		a->out.type->hand_over(&a->out, channel[0], clock_us() + 5000000);
		double between_ms = cpu_ms();
		unsigned files = take(b, channel[1], NULL);
		printf("100 MB in messages of %u bytes, %u files: %.1f ms of CPU to hand over, %.1f ms to take\n", sizes[i],
		       files, between_ms - begin_ms, cpu_ms() - between_ms);
		close(channel[0]);
		close(channel[1]);
		ck_assert_uint_ge(b->be->taken_over_records, a->sent - 1); /* one was on its way, perhaps */
		ck_assert_uint_eq(b->be->queued_records, b->be->taken_over_records);
		rig_stop(b);
		rig_stop(a);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kafka_handover");
	TCase *tc = tcase_create("kafka_handover");
	log_open("test", false, getenv("VERBOSE") ? LOG_LEVEL_DEBUG : LOG_LEVEL_ERROR);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, queued_and_in_flight, 0, ARRAY_LEN(producers));
	tcase_add_test(tc, broker_away);
	tcase_add_test(tc, look_up_hangs);
	tcase_add_loop_test(tc, the_very_same, 0, ARRAY_LEN(formats));
	tcase_add_test(tc, full);
	tcase_add_loop_test(tc, it_stays, 0, 3);
	tcase_add_loop_test(tc, spoiled, 0, 2);
#ifndef __SANITIZE_THREAD__ /* it takes more than the time that a hand over has */
	tcase_add_test(tc, speed);
#endif
	suite_add_tcase(s, tc);
	return suite_run(s);
}
