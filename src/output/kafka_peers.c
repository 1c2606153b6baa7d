/* SPDX-License-Identifier: MIT
 *
 * kafka_peers: who the brokers are, by the cluster's metadata and as addresses, for a capture that leaves out our own
 * traffic. Looked up on the producer's thread, where it may take its time; told from the worker's loop.
 */
#include "kafka.h"

#include <netdb.h>
#include <string.h>

static void add_broker(struct text *t, const char *host, int port)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	char numeric[NI_MAXHOST];
	if (getaddrinfo(host, NULL, &hints, &found) != 0)
		return;
	for (struct addrinfo *a = found; a; a = a->ai_next)
		if (getnameinfo(a->ai_addr, a->ai_addrlen, numeric, sizeof(numeric), NULL, 0, NI_NUMERICHOST) == 0)
			text_add(t, strchr(numeric, ':') ? "%s[%s]:%d" : "%s%s:%d", t->len ? "," : "", numeric, port);
	freeaddrinfo(found);
}

void producer_note_peers(struct producer *p, const struct rd_kafka_metadata *meta)
{
	struct text t = {0};
	if (p->k->out->on_peers == NULL)
		return;
	for (int i = 0; i < meta->broker_cnt; i++)
		add_broker(&t, meta->brokers[i].host, meta->brokers[i].port);
	pthread_mutex_lock(&p->lock);
	bool is_new = t.s != NULL && !t.failed && (p->peers == NULL || strcmp(p->peers, t.s) != 0);
	if (is_new) {
		free(p->peers);
		p->peers = t.s;
		p->has_new_peers = true;
		t.s = NULL;
	}
	pthread_mutex_unlock(&p->lock);
	text_free(&t);
}

void producer_tell_peers(struct producer *p)
{
	char *peers = NULL;
	pthread_mutex_lock(&p->lock);
	if (p->has_new_peers)
		peers = strdup(p->peers);
	p->has_new_peers = false;
	pthread_mutex_unlock(&p->lock);
	if (peers != NULL)
		p->k->out->on_peers(p->k->out, peers);
	free(peers);
}
