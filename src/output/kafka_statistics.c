/* SPDX-License-Identifier: MIT
 *
 * kafka_statistics: librdkafka's statistics as lines of JSON in a file, for those who have tools for Fastcapa's: each
 * object says whose it is (conn_id is the slot). All workers append to one file, a line a write. Worker only.
 */
#include "kafka.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

static void say_trouble(struct kafka *k)
{
	log_warn("output \"%s\": statistics_file %s: cannot be written: %s; statistics are not written there until "
		 "USR1 opens "
		 "it anew",
		 k->out->cf->name, k->out->cf->statistics_file, strerror(errno));
	k->is_statistics_broken = true;
}

void kafka_statistics_write(struct kafka *k, const char *json)
{
	char head[300];
	size_t len = strlen(json);
	if (k->out->cf->statistics_file[0] == '\0' || k->out->file == -1 || k->is_statistics_broken ||
	    k->producer == NULL)
		return;
	int head_len =
	    snprintf(head, sizeof(head), "{\"conn_id\":\"%u\",\"conn_name\":\"%.200s\",\"stats\":", k->out->slot,
		     rd_kafka_name(k->producer->rk));
	struct iovec parts[] = {{head, (size_t)head_len}, {(void *)(uintptr_t)json, len}, {(char[]){'}', '\n'}, 2}};
	ssize_t n = writev(k->out->file, parts, (int)ARRAY_LEN(parts));
	if (n == (ssize_t)(parts[0].iov_len + len + parts[2].iov_len))
		return;
	if (n >= 0)
		errno = ENOSPC; /* a part of the line stands there: the next would begin in it */
	say_trouble(k);
}
