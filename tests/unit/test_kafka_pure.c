/* SPDX-License-Identifier: MIT
 *
 * The pure parts of the kafka output: messages in chunks and lists, flows, idempotence, brokers in statistics, the
 * check of properties.
 */
#include "suite.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "kafka.h"

/* -- store -------------------------------------------------------------------------------------------------------- */

static struct message *put(struct builder *b, struct pool *pool, uint32_t len, const struct message_origin *origin)
{
	struct message *m = builder_new_message(b, pool, len, 0, true, origin);
	if (m == NULL)
		return NULL;
	m->records = 2;
	memset(message_bytes(m), 'v', len);
	builder_end_message(b, m, len);
	return m;
}

START_TEST(chunks_live_as_long_as_their_messages)
{
	struct message_origin origin = {.is_wanted = _i};
	struct pool pool;
	struct builder b = {0};
	struct message *messages[2000], *m;
	unsigned n = 0;
	ck_assert_int_eq(pool_init(&pool, 4 * POOL_SLAB_BYTES, NULL), 0);
	while (n < 2000 && (m = put(&b, &pool, 301, &origin)) != NULL) {
		ck_assert_uint_eq((uintptr_t)m % 8, 0);
		messages[n++] = m;
	}
	ck_assert_uint_gt(n, 700);
	ck_assert_uint_lt(n, 900);
	for (unsigned i = 0; i < n; i++)
		for (unsigned k = 0; k < 301; k++)
			ck_assert_int_eq(message_value(messages[i])[k], 'v');
	for (unsigned i = 0; i < n; i++)
		message_free(&pool, messages[i]);
	ck_assert_uint_eq(pool_free_slabs(&pool), 3); /* the builder's is kept */
	m = put(&b, &pool, 301, &origin);
	ck_assert_ptr_eq(m, b.chunk->bytes); /* … and filled from its start again */
	message_free(&pool, m);
	builder_fini(&b, &pool);
	ck_assert_uint_eq(pool_free_slabs(&pool), 4);
	ck_assert_uint_eq(pool.used_bytes, 0);
	pool_fini(&pool);
}
END_TEST

START_TEST(lists_keep_their_order)
{
	struct message_origin origin = {.is_wanted = false};
	struct message_list l, front;
	struct pool pool;
	struct builder b = {0};
	struct message *m[5];
	ck_assert_int_eq(pool_init(&pool, 2 * POOL_SLAB_BYTES, NULL), 0);
	message_list_init(&l);
	message_list_init(&front);
	ck_assert_ptr_null(message_list_take(&l));
	for (unsigned i = 0; i < 5; i++)
		m[i] = put(&b, &pool, 10, &origin);
	message_list_prepend(&l, &front);
	message_list_add(&front, m[0]);
	message_list_add(&front, m[1]);
	message_list_prepend(&l, &front); /* onto an empty one */
	ck_assert_ptr_null(front.first);
	message_list_add(&l, m[2]);
	ck_assert_ptr_eq(message_list_take(&l), m[0]);
	ck_assert_ptr_eq(message_list_take(&l), m[1]);
	message_list_add(&front, m[3]);
	message_list_prepend(&l, &front);
	message_list_add(&l, m[4]);
	ck_assert_uint_eq(l.messages, 3);
	ck_assert_uint_eq(l.records, 6);
	ck_assert_uint_eq(l.bytes, 30);
	ck_assert_ptr_eq(message_list_take(&l), m[3]);
	ck_assert_ptr_eq(message_list_take(&l), m[2]);
	ck_assert_ptr_eq(message_list_take(&l), m[4]);
	ck_assert_ptr_null(message_list_take(&l));
	for (unsigned i = 0; i < 5; i++)
		message_free(&pool, m[i]);
	builder_fini(&b, &pool);
	pool_fini(&pool);
}
END_TEST

/* -- flows -------------------------------------------------------------------------------------------------------- */

START_TEST(flows_differ)
{
	struct sockaddr_storage a = {0}, b = {0};
	struct sockaddr_in *in4 = (struct sockaddr_in *)&a;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&b;
	*in4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = 1, .sin_addr = {1}};
	uint32_t first = kafka_flow_hash(&a);
	in4->sin_port = 2;
	ck_assert_uint_ne(kafka_flow_hash(&a), first);
	*in6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = 1};
	first = kafka_flow_hash(&b);
	in6->sin6_addr.s6_addr[15] = 1;
	ck_assert_uint_ne(kafka_flow_hash(&b), first);
	*(struct sockaddr_un *)&b = (struct sockaddr_un){.sun_family = AF_UNIX, .sun_path = "/x"};
	ck_assert_uint_ne(kafka_flow_hash(&b), first);
	ck_assert_uint_eq(kafka_flow_hash(NULL), 0);
	b.ss_family = AF_UNSPEC;
	ck_assert_uint_eq(kafka_flow_hash(&b), 0);
}
END_TEST

/* -- brokers ------------------------------------------------------------------------------------------------------ */

START_TEST(brokers_in_statistics)
{
	struct kafka_broker b[3];
	const char *json =
	    "{ \"name\": \"x\", \"brokers\":{ \"a:1/bootstrap\":{ \"name\":\"a:1/bootstrap\", \"nodeid\":-1, "
	    "\"state\":\"UP\" } , \"a:1/7\":{ \"nodeid\":7, \"source\":\"learned\", \"state\":\"UP\", \"x\":1 }, "
	    "\"a:2/8\": { \"nodeid\":8, \"state\":\"TRY_CONNECT\" }, \"a:3/9\": { \"nodeid\":9, \"state\":\"INIT\" }, "
	    "\"a:4/10\": { \"nodeid\":10, \"state\":\"DOWN\" } }, \"topics\":{ \"nodeid\":11, \"state\":\"UP\" } }";
	ck_assert_uint_eq(kafka_brokers_parse(json, b, 3), 3); /* there are four */
	ck_assert_int_eq(b[0].id, 7);
	ck_assert_uint_eq(b[0].state, 2);
	ck_assert_int_eq(b[1].id, 8);
	ck_assert_uint_eq(b[1].state, 1);
	ck_assert_uint_eq(b[2].state, 0);
	ck_assert_uint_eq(kafka_brokers_parse("{}", b, 3), 0);
	ck_assert_uint_eq(kafka_brokers_parse("{\"brokers\":{\"nodeid\":x", b, 3), 0);
	ck_assert_uint_eq(kafka_brokers_parse("{\"brokers\":{\"nodeid\":1, \"topics\":", b, 3), 0);
}
END_TEST

/* -- properties --------------------------------------------------------------------------------------------------- */

static char *keys[4], *values[4];
static int lines[4] = {5, 6, 7, 8};

static struct conf_output output(const char *k0, const char *v0, const char *k1, const char *v1)
{
	struct conf_output cf = {.name = (char *)(uintptr_t) "raw", .topic = (char *)(uintptr_t) "t", .line = 4};
	const char *pairs[] = {k0, v0, k1, v1};
	for (size_t i = 0; i < 2; i++) {
		keys[i] = (char *)(uintptr_t)pairs[2 * i];
		values[i] = (char *)(uintptr_t)pairs[2 * i + 1];
	}
	cf.properties = (struct conf_map){.keys = keys, .values = values, .lines = lines, .n = k1 ? 2 : k0 ? 1 : 0};
	return cf;
}

START_TEST(idempotence_yields_to_what_excludes_it)
{
	static const struct {
		const char *key, *value, *excludes;
	} cases[] = {
	    {"acks", "1", "acks"},
	    {"acks", "all", NULL},
	    {"request.required.acks", "-1", NULL},
	    {"request.required.acks", "0", "acks"},
	    {"retries", "0", "retries"},
	    {"message.send.max.retries", "3", NULL},
	    {"max.in.flight", "6", "max.in.flight"},
	    {"max.in.flight.requests.per.connection", "5", NULL},
	    {"queuing.strategy", "lifo", "queuing.strategy"},
	    {"queuing.strategy", "fifo", NULL},
	    {"linger.ms", "0", NULL},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct conf_output cf = output(cases[i].key, cases[i].value, NULL, NULL);
		ck_assert_pstr_eq(kafka_excludes_idempotence(&cf), cases[i].excludes);
		cf = output(cases[i].key, cases[i].value, "enable.idempotence", "true");
		ck_assert_pstr_eq(kafka_excludes_idempotence(&cf), NULL);
	}
}
END_TEST

START_TEST(errors_have_the_line_of_their_property)
{
	static const struct {
		const char *k0, *v0, *k1, *v1, *error;
	} cases[] = {
	    {"linger.ms", "5", "nope", "1",
	     "f:6: outputs.raw.properties.nope: No such configuration property: \"nope\"\n"},
	    {"acks", "1", "enable.idempotence", "true",
	     "f:5: outputs.raw.properties.acks: `acks` must be set to `all`"},
	    {"acks", "70000", NULL, NULL, "f:5: outputs.raw.properties.acks: "},
	    {"ssl.ca.location", "/nope", NULL, NULL,
	     "f:5: outputs.raw.properties.ssl.ca.location: \"/nope\" cannot be read: No such"},
	    {"security.protocol", "sasl_plaintext", "sasl.mechanism", "FOO",
	     "f:6: outputs.raw.properties.sasl.mechanism: Unsupported SASL mechanism: FOO; this librdkafka has: "},
	    {"transactional.id", "x", NULL, NULL,
	     "f:5: outputs.raw.properties.transactional.id: transactions are not used here"},
	    {"security.protocol", "ssl", "ssl.ca.location", "/etc/hostname",
	     "f:6: outputs.raw.properties.ssl.ca.location: failed to read certificate #0 from ssl.ca.pem"},
	    {"security.protocol", "ssl", "ssl.key.location", "/etc/hostname",
	     "f:6: outputs.raw.properties.ssl.key.location: ssl.key.pem failed: "},
	    {"security.protocol", "sasl_plaintext", "sasl.mechanisms", "PLAIN",
	     "f:6: outputs.raw.properties.sasl.mechanisms: sasl.username and sasl.password must be set"},
	    {"security.protocol", "sasl_plaintext", "sasl.mechanisms", "OAUTHBEARER",
	     "f:6: outputs.raw.properties.sasl.mechanisms: OAUTHBEARER gets no token: "},
	    {"linger.ms", "400000", NULL, NULL, "f:5: outputs.raw.properties.linger.ms: topic: "},
	};
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct text errors = {0};
		struct conf_output cf = output(cases[i].k0, cases[i].v0, cases[i].k1, cases[i].v1);
		ck_assert_uint_eq(kafka_check(&cf, "f", &errors), 1);
		ck_assert_msg(strncmp(errors.s, cases[i].error, strlen(cases[i].error)) == 0, "%s", errors.s);
		text_free(&errors);
	}
	struct text errors = {0};
	struct conf_output cf = output("acks", "1", NULL, NULL); /* idempotence yields */
	ck_assert_uint_eq(kafka_check(&cf, "f", &errors), 0);
	text_free(&errors);
}
END_TEST

START_TEST(warnings_are_no_errors)
{
	struct text errors = {0};
	struct conf_output cf = output("message.max.bytes", "1000", NULL, NULL);
	cf.format = CONF_FORMAT_LINES;
	cf.batch_bytes = 65536;
	ck_assert_uint_eq(kafka_check(&cf, "f", &errors), 0);
	ck_assert_str_eq(errors.s, "f:5: outputs.raw.properties.message.max.bytes: is below batch_bytes (65536): full "
				   "messages will be refused; lower batch_bytes\n");
	text_free(&errors);
	cf = output("sasl.mechanisms", "SCRAM-SHA-512", NULL, NULL);
	ck_assert_uint_eq(kafka_check(&cf, "f", &errors), 0);
	if (rd_kafka_version() < 0x02060100)
		ck_assert_ptr_nonnull(strstr(errors.s, "f:5: outputs.raw.properties.sasl.mechanisms: librdkafka "));
	else
		ck_assert_uint_eq(errors.len, 0);
	text_free(&errors);
}
END_TEST

START_TEST(keys_are_read_by_the_master)
{
	char path[] = "/tmp/millrace-pem-XXXXXX";
	int fd = mkstemp(path);
	struct text errors = {0};
	struct kafka_shared *sh = calloc(1, sizeof(*sh));
	struct conf_output cf = output("ssl.key.location", path, "ssl.ca.location", "/tmp");
	ck_assert_int_eq(write(fd, "secret\n", 7), 7);
	close(fd);
	ck_assert_uint_eq(kafka_files_read(sh, &cf, "f", &errors), 0); /* a folder of CAs is left to librdkafka */
	ck_assert_str_eq(sh->pems[0].text, "secret\n");
	ck_assert_ptr_null(sh->pems[2].text);
	kafka_shared_free(sh);
	unlink(path);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("kafka_pure");
	TCase *tc = tcase_create("kafka_pure");
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, chunks_live_as_long_as_their_messages, 0, 2);
	tcase_add_test(tc, lists_keep_their_order);
	tcase_add_test(tc, flows_differ);
	tcase_add_test(tc, brokers_in_statistics);
	tcase_add_test(tc, idempotence_yields_to_what_excludes_it);
	tcase_add_test(tc, errors_have_the_line_of_their_property);
	tcase_add_test(tc, warnings_are_no_errors);
	tcase_add_test(tc, keys_are_read_by_the_master);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
