/* SPDX-License-Identifier: MIT
 *
 * What the files of the kafka output share. A worker's side of one output:
 *
 *    send()                          hand over, 64 at a time               delivery report
 *   lines ----> builders --+
 *   (batches being made)   +--> waiting: list of messages --> librdkafka: in flight --> counted, memory given back
 *   datagrams -------------+    (in order of arrival)         (at most `window` messages)
 *
 * Messages lie packed in chunks of the output's pool and are never copied again: librdkafka gets their address. A chunk
 * is given back when nothing fills it and all of its messages are reported or dropped.
 *
 * Threads: everything here runs on the worker's thread, but for kafka_thread.c, which asks librdkafka what may block.
 */
#ifndef OUTPUT_KAFKA_H
#define OUTPUT_KAFKA_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <sys/queue.h>

#include <ev.h>
#include <output.h>

#include "pool.h"

enum {
	KAFKA_MAGIC = 0x6b61666b,
	KAFKA_BURST = 64,  /* messages of one rd_kafka_produce_batch; more gains nothing (measured up to 256) */
	KAFKA_STAGE = 512, /* messages that are sorted by partition at once */
	/* What librdkafka 2.0.2 needs for a message beside its bytes: sizeof(rd_kafka_msg_t) 168, with malloc 176; and
	 * its share of the request that carries it (measured in tests/unit/test_kafka.c). */
	KAFKA_MESSAGE_BYTES = 192,
	KAFKA_HEADERS_BYTES = 320, /* the same for the headers of one (measured: 289 with an IPv4 sender) */
	KAFKA_PARTITIONS_MAX = 100000,
	MESSAGE_PLACE_MAX = (1 << 29) - 1,
	KAFKA_TIME_KEY_BYTES = 8, /* format packet: big-endian microseconds, before the value in the chunk */
};

/* -- kafka_store.c: messages in memory. Pure but for the pool. ------------------------------------------------------
 */

/* Lies before its bytes in a chunk; of one that was taken over, in the table of struct taken. */
struct message {
	struct message *next; /* that waits */
	uint32_t len;         /* of the value */
	uint32_t hash;        /* decides the partition, once it is known how many there are */
	uint32_t place : 29; /* index of its chunk in the pool; of one that was taken over: bytes from the struct taken */
	uint32_t has_origin : 1;
	uint32_t has_key_before : 1; /* the key lies before the value; else it is the value's first bytes */
	uint32_t is_taken : 1;
	uint16_t records;
	uint16_t key_len; /* 0: no key */
};

/* With headers: true, before the bytes. */
struct origin {
	uint64_t time_us;
	struct {
		uint16_t family, port; /* AF_INET, AF_INET6 or 0: not known; port as on the wire */
		uint8_t address[16];
	} from;
	uint32_t unused; /* the bytes begin on 8 bytes */
};

/* Messages of another worker, in the file that it made: mapped, never copied, never written. */
struct taken_message {
	struct message is;
	const char *bytes;
};
struct taken {
	LIST_ENTRY(taken) next;
	char *mapping;
	size_t mapping_bytes, all_bytes; /* all_bytes: with this table */
	uint32_t alive;                  /* messages that are not reported or dropped yet */
	struct taken_message messages[];
};
LIST_HEAD(taken_list, taken);

struct message_list {
	struct message *first, **last;
	uint64_t messages, records, bytes;
};

/* A place where messages are appended: a chunk and what of it is used. With format lines there is a message under way.
 */
struct builder {
	struct chunk *chunk; /* `used`: bytes; `lines`: messages that are alive, and 1 for this builder */
	struct message *open;
	char *at, *limit; /* the next line goes here; it may not end behind the limit */
	uint32_t records; /* of the open message */
	uint32_t link_type; /* format pcap: of its packets */
	uint64_t since_us;
	TAILQ_ENTRY(builder) opened;
};
TAILQ_HEAD(builder_list, builder);

struct message_origin {
	struct origin is;
	bool is_wanted; /* headers: true */
};

void message_list_init(struct message_list *l);
void message_list_add(struct message_list *l, struct message *m);
struct message *message_list_take(struct message_list *l); /* NULL: empty */
/* All of `front` goes before what is in `l`. */
void message_list_prepend(struct message_list *l, struct message_list *front);
/* Key and value: the value, and before it the key where it lies before the value. */
static inline char *message_bytes(const struct message *m)
{
	if (UNLIKELY(m->is_taken))
		return (char *)(uintptr_t)((const struct taken_message *)(const void *)m)->bytes;
	return (char *)(uintptr_t)m + sizeof(*m) + (m->has_origin ? sizeof(struct origin) : 0);
}
static inline char *message_value(const struct message *m)
{
	return message_bytes(m) + (m->has_key_before ? m->key_len : 0);
}
/* Of one that has it. */
static inline const struct origin *message_origin(const struct message *m)
{
	return (const struct origin *)(const void *)(message_bytes(m) - sizeof(struct origin));
}
/* The message's memory is not used any more. */
void message_free(struct pool *pool, struct message *m);
/* None of its messages is. */
void taken_free(struct pool *pool, struct taken *t);

/* A new message with room for `len` bytes of value, at the end of the builder's chunk or in a new one. `want`: if less
 * than so much is left in the chunk, a new one is taken. NULL: no memory. Not in any list; filled in but hash, records.
 */
struct message *builder_new_message(struct builder *b, struct pool *pool, uint32_t len, uint32_t want, bool large,
				    const struct message_origin *origin);
/* The message is whole; it has so many bytes, at most what was asked for. */
void builder_end_message(struct builder *b, struct message *m, uint32_t len);
/* Gives the chunk back, or leaves it to its messages. */
void builder_fini(struct builder *b, struct pool *pool);
/* Bytes of value that fit into any chunk. */
uint32_t builder_room(bool large, bool has_origin);

/* -- kafka_conf.c: properties. Master and worker. --------------------------------------------------------------------
 */

/* Made by prepare: what workers cannot read themselves. */
struct kafka_shared {
	struct kafka_pem {
		const char *location, *pem; /* "ssl.key.location", "ssl.key.pem" */
		char *text;                 /* NULL: not given, or not a plain file */
	} pems[3];
	const char *gives_way_to; /* the property for which idempotence is off; NULL: it is on, or given */
};

/* Reads key and certificate files. Errors are added, a line each; returns how many. */
size_t kafka_files_read(struct kafka_shared *sh, const struct conf_output *cf, const char *path, struct text *errors);
void kafka_shared_free(struct kafka_shared *sh);
/* The given property that excludes enable.idempotence (which was not given), or NULL. Pure. */
const char *kafka_excludes_idempotence(const struct conf_output *cf);
/* Value of a given property, the last one, or NULL; `alias` may be NULL. */
const char *kafka_property(const struct conf_output *cf, const char *name, const char *alias);
/* New configurations with our defaults and what was given; `window` messages. `sh` NULL: files are left to librdkafka.
 * Errors are added with file and line; returns how many (then nothing is made). */
size_t kafka_conf_make(const struct conf_output *cf, const struct kafka_shared *sh, const char *path,
		       rd_kafka_conf_t **conf, rd_kafka_topic_conf_t **topic_conf, struct text *errors);
/* "FILE:LINE: outputs.NAME.KEY: ", for the property (NULL: the output itself). */
void kafka_where(const struct conf_output *cf, const char *path, const char *property, struct text *t);

/* -- kafka_check.c: master --------------------------------------------------------------------------------------------
 */

size_t kafka_check(const struct conf_output *cf, const char *path, struct text *errors);

/* -- kafka_producer.c, kafka_thread.c: one rd_kafka_t ------------------------------------------------------------- */

struct kafka;

struct producer {
	struct kafka *k;
	rd_kafka_t *rk;
	rd_kafka_topic_t *topic;
	rd_kafka_queue_t *events;
	int event_fd; /* librdkafka and the thread write 8 bytes when there is news */
	struct ev_io io;
	uint64_t flight_messages, flight_bytes;
	bool is_idempotent, is_fatal;
	bool is_coarse; /* the topic takes only smaller batches: hands over nothing more, is replaced when empty */

	/* between the worker and the thread */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool has_thread, must_end, must_flush, must_ask, must_purge, is_purged;
	int partitions;          /* 0: not known */
	rd_kafka_resp_err_t why; /* the last answer about the topic */
	uint64_t answers;
	char *peers; /* the brokers' addresses */
	bool has_new_peers;
};

struct producer *producer_new(struct kafka *k, struct err *err);
/* Serves what librdkafka has to say: reports, errors, logs, statistics. Never waits. */
void producer_serve(struct producer *p);
/* One of its events; takes it. */
void producer_event(struct producer *p, rd_kafka_event_t *event);
/* Gives waiting messages to librdkafka as far as the window allows. */
void producer_hand_over(struct kafka *k);
/* Everything of it is reported or never will be: ends the thread, which destroys the rest. Waits for it until then;
 * false: it takes longer and is left behind (the process is about to end). */
bool producer_end(struct producer *p, uint64_t until_us);
/* Without waiting. True when it is gone. */
bool producer_try_end(struct producer *p);

int producer_thread_start(struct producer *p);
void producer_free(struct producer *p); /* what the thread does not: half-built objects too */
/* Copies the thread's news. True when there are new ones. */
bool producer_news(struct producer *p, int *partitions, rd_kafka_resp_err_t *why);
void producer_ask(struct producer *p);   /* ask for the partitions now */
void producer_flush(struct producer *p); /* linger no more */
/* librdkafka's threads give back what they have not sent: those that answer within so long. The reports are served. */
void producer_purge(struct producer *p, uint64_t until_us);

/* -- kafka_peers.c ------------------------------------------------------------------------------------------------ */

/* Thread: the brokers of the metadata, when a capture wants to know. */
void producer_note_peers(struct producer *p, const struct rd_kafka_metadata *meta);
/* Loop: tells the worker when they are others than before. */
void producer_tell_peers(struct producer *p);

/* -- kafka_report.c: what librdkafka says ------------------------------------------------------------------------- */

struct kafka_broker {
	int32_t id;
	uint32_t state;
};

/* `was_alone`: the only one of its batch. False: it goes again with the next producer, and is in k->refused. */
bool kafka_report(struct kafka *k, const rd_kafka_message_t *rkm, bool was_alone);
/* A message that librdkafka did not take, or that is given up: counted as failed for this reason. Not freed. */
void kafka_fail(struct kafka *k, const struct message *m, rd_kafka_resp_err_t why);
void kafka_log_event(struct kafka *k, rd_kafka_event_t *event);
void kafka_error_event(struct kafka *k, rd_kafka_event_t *event);
void kafka_stats_event(struct kafka *k, rd_kafka_event_t *event);
/* kafka_statistics.c: librdkafka's statistics, appended to a file. A file that cannot be written is one log line. */
void kafka_statistics_write(struct kafka *k, const char *json);
/* Brokers in librdkafka's statistics, those with a node id; at most `max`. Pure. */
unsigned kafka_brokers_parse(const char *json, struct kafka_broker *brokers, unsigned max);
void kafka_set_up(struct kafka *k, bool is_up, const char *why);

/* -- kafka.c, kafka_put.c: the output ---------------------------------------------------------------------------------
 */

/* -- kafka_probe.c: the first message to each partition goes alone ---------------------------------------------------
 */

struct target {
	enum { TARGET_NEW, TARGET_PROBED, TARGET_OPEN } state;
	struct message_list parked; /* behind the probe */
};

/* For so many targets, of which nothing is known; what was parked is waiting again. -1: no memory, all is as before. */
int kafka_probe_init(struct kafka *k, unsigned n);
/* The same targets, and nothing is known of them. */
void kafka_probe_restart(struct kafka *k);
/* What is parked waits again, and is parked again when it is handed over. */
void kafka_probe_unpark(struct kafka *k);
/* True: the message is parked. False: it may be handed over; it is the probe if the target was new. */
bool kafka_probe_parks(struct kafka *k, uint32_t target, struct message *m);
/* The probe was not handed over after all; what is parked behind it goes behind it. */
void kafka_probe_undo(struct kafka *k, uint32_t target, struct message_list *back);
/* A message is reported. */
void kafka_probe_report(struct kafka *k, int32_t partition, bool is_delivered);
struct message *kafka_parked_take(struct kafka *k); /* the oldest of some target; NULL: none is parked */

/* -- kafka.c, kafka_put.c: the output, continued ---------------------------------------------------------------------
 */

struct kafka {
	uint32_t magic;
	struct output *out;
	const struct kafka_shared *shared;
	struct stats_output *draft;
	struct stats_backend *backend;
	struct stats_kafka *stats;
	struct pool pool;
	struct taken_list taken;
	struct message_origin origin; /* of what is put now */
	struct message_list waiting;
	struct message_list back;    /* librdkafka gave them back unsent: they go before what waits */
	struct message_list refused; /* the next producer's first: of batches too large, or left by a fatal error */
	uint64_t refused_bytes;      /* the smallest batch that was too large since the last producer */
	uint64_t batch_bytes;        /* batch.size that the topic takes, as far as is known; 0: as given */
	enum conf_words partition;   /* never AUTO */
	uint64_t window;             /* messages that librdkafka may hold */
	uint64_t flight_limit_bytes;
	uint64_t flight_records;
	uint64_t open_records; /* in messages that are being made */

	struct builder *builders;         /* one for each target; format lines only … */
	unsigned n_builders;              /* … else, and with partition: random, one */
	uint64_t *times_us; /* partition: worker, formats of packets: the last time in each target */
	unsigned n_times;
	bool is_link_said;
	struct builder_list opened;       /* oldest first */
	bool has_large;                   /* builders take large chunks */
	unsigned n_partitions, n_targets; /* 0: not known yet. Target t is partition first + t * step */
	struct target *targets;
	struct {
		uint64_t messages, records, bytes;
	} parked; /* at all targets */
	unsigned first_partition, partition_step;
	uint32_t random, sticky_hash;
	uint64_t sticky_us;

	struct producer *producer; /* NULL while none can be made */
	struct producer *dying;    /* its thread is at work */
	ev_timer delay_timer, trim_timer, second_timer;
	ev_timer room_event; /* never started, only fed: on_room from the loop */
	uint64_t now_us, opened_us;
	bool is_draining, is_closing, is_stuck;

	bool is_asking;                  /* the topic is in doubt: nothing is handed over before the next answer */
	rd_kafka_resp_err_t topic_error; /* why there are no targets */
	uint64_t topic_error_us;         /* since when */
	uint64_t grace_us;
	uint64_t unknown_us; /* a broker or librdkafka knows no such topic, since then; 0: what was sent last arrived */
	bool is_topic_error_said, is_giving_up;

	bool has_offsets; /* a report of success has one; not with acks: 0 */
	bool is_unplaced_said;

	bool is_statistics_broken; /* until there is another file */

	bool is_up, is_down_said;
	uint64_t down_us, dropped_at_down;
	struct log_limit log_limits[5];

	struct {
		struct message *message;
		uint32_t target;
		bool is_taken;
	} stage[KAFKA_STAGE]; /* of producer_hand_over */
	rd_kafka_message_t burst[KAFKA_BURST];
};

/* Lines or items of the batch from `first` on; returns the first that was not taken. */
unsigned kafka_put_lines(struct kafka *k, const struct batch *b, unsigned first);
unsigned kafka_put_items(struct kafka *k, const struct batch *b, unsigned first);
/* kafka_packet.c: packets of the batch, in either format. */
unsigned kafka_put_packets(struct kafka *k, const struct batch *b, unsigned first);
/* The last times start anew for so many targets. 0, or -1: no memory. */
int kafka_times_init(struct kafka *k, unsigned targets);
static inline bool kafka_takes_packets(const struct conf_output *cf)
{
	return cf->format == CONF_FORMAT_PACKET || cf->format == CONF_FORMAT_PCAP;
}

/* kafka_put.c, for both: as builder_new_message, with the overflow policy. NULL: there is no room; then refuse says whether
 * the record is dropped and counted (true), or held back. */
struct message *kafka_new_message(struct kafka *k, struct builder *b, uint32_t len, uint32_t want);
bool kafka_refuse(struct kafka *k);
void kafka_add_waiting(struct kafka *k, struct message *m);
/* Begins a message with room for `len` + 1 bytes, and more up to batch_bytes. False: no memory. */
bool kafka_begin_open(struct kafka *k, struct builder *b, uint32_t len, uint32_t hash);
void kafka_end_open(struct kafka *k, struct builder *b);
/* A random number that stays for a while. */
uint32_t kafka_sticky(struct kafka *k);

/* Ends open messages: those that are older than batch_delay, or all. */
void kafka_end_old(struct kafka *k);
void kafka_end_all(struct kafka *k);
/* kafka_handover.c */
void kafka_hand_over(struct output *out, int channel, uint64_t deadline_us);
void kafka_take_over(struct output *out, const struct handover *msg, size_t len, int fd);
/* kafka_topic.c: how many partitions there are is known, or has changed; there are none for us; they are in doubt. */
void kafka_set_partitions(struct kafka *k, unsigned partitions);
void kafka_topic_trouble(struct kafka *k, rd_kafka_resp_err_t why);
void kafka_doubt_topic(struct kafka *k);
/* A message could not be written since there is no such topic or partition. True: it is worth trying again. */
bool kafka_topic_may_come(struct kafka *k, rd_kafka_resp_err_t why);
void kafka_give_up_waiting(struct kafka *k);
int kafka_builders_init(struct kafka *k, unsigned n);
void kafka_builders_fini(struct kafka *k);
/* Makes the drafts tell what is there. */
void kafka_account(struct kafka *k);
/* The end of everything that the loop calls. */
void kafka_after_event(struct kafka *k);
enum conf_words kafka_partition(const struct conf_output *cf); /* what `auto` means */
uint32_t kafka_flow_hash(const struct sockaddr_storage *from);

static inline uint32_t kafka_random(struct kafka *k)
{
	k->random ^= k->random << 13;
	k->random ^= k->random >> 17;
	k->random ^= k->random << 5;
	return k->random;
}

#endif
