/* SPDX-License-Identifier: MIT
 *
 * kafka_probe: the first message of a producer to each partition goes alone; those that follow are parked until it is
 * reported. Worker only. Pure but for the lists.
 *
 * Why: a broker that has nothing from a producer yet takes any sequence number from it (Kafka 4.3). So when the first
 * batch is refused for now (NOT_LEADER, just after a topic was made or its leader moved) and the second one, in flight
 * behind it, is taken, librdkafka (2.0.2) takes that for an acknowledgement of the first too ("implicitly acked"),
 * reports it as delivered and never sends it again. Seen in one of ten starts on a busy machine.
 */
#include "kafka.h"

static void unpark(struct kafka *k, struct target *t, struct message_list *to)
{
	k->parked.messages -= t->parked.messages;
	k->parked.records -= t->parked.records;
	k->parked.bytes -= t->parked.bytes;
	message_list_prepend(to, &t->parked);
}

void kafka_probe_unpark(struct kafka *k)
{
	for (unsigned i = k->n_targets; i-- > 0;)
		unpark(k, &k->targets[i], &k->waiting);
}

void kafka_probe_restart(struct kafka *k)
{
	kafka_probe_unpark(k);
	for (unsigned i = 0; i < k->n_targets; i++)
		k->targets[i].state = TARGET_NEW;
}

int kafka_probe_init(struct kafka *k, unsigned n)
{
	struct target *targets = n > 0 ? calloc(n, sizeof(*targets)) : NULL;
	if (n > 0 && targets == NULL)
		return -1;
	kafka_probe_restart(k);
	for (unsigned i = 0; i < n; i++)
		message_list_init(&targets[i].parked);
	free(k->targets);
	k->targets = targets;
	k->n_targets = n;
	return 0;
}

bool kafka_probe_parks(struct kafka *k, uint32_t target, struct message *m)
{
	struct target *t = &k->targets[target];
	if (t->state != TARGET_PROBED) {
		t->state = t->state == TARGET_NEW ? TARGET_PROBED : t->state;
		return false;
	}
	message_list_add(&t->parked, m);
	k->parked.messages++;
	k->parked.records += m->records;
	k->parked.bytes += m->len;
	return true;
}

void kafka_probe_undo(struct kafka *k, uint32_t target, struct message_list *back)
{
	struct target *t = &k->targets[target];
	struct message_list behind;
	if (t->state != TARGET_PROBED)
		return;
	t->state = TARGET_NEW;
	message_list_init(&behind);
	unpark(k, t, &behind);
	message_list_prepend(&behind, back);
	message_list_prepend(back, &behind);
}

void kafka_probe_report(struct kafka *k, int32_t partition, bool is_delivered)
{
	int64_t target = ((int64_t)partition - k->first_partition) / MAX(k->partition_step, 1);
	if (target < 0 || target >= k->n_targets || k->targets[target].state == TARGET_OPEN)
		return;
	struct target *t = &k->targets[target];
	if (is_delivered)
		t->state = TARGET_OPEN;
	else if (t->state == TARGET_PROBED)
		t->state = TARGET_NEW;
	unpark(k, t, &k->waiting);
}

struct message *kafka_parked_take(struct kafka *k)
{
	for (unsigned i = 0; k->parked.messages > 0 && i < k->n_targets; i++) {
		struct message *m = message_list_take(&k->targets[i].parked);
		if (m == NULL)
			continue;
		k->parked.messages--;
		k->parked.records -= m->records;
		k->parked.bytes -= m->len;
		return m;
	}
	return NULL;
}
