/* SPDX-License-Identifier: MIT
 *
 * Buffered output of millrace-kafka. Not stdio: a megabyte at a time, and the first error is kept for the end.
 */
#include "kafka.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

int kafka_stream_init(struct kafka_stream *stream, int fd)
{
	*stream = (struct kafka_stream){ .fd = fd, .buf = malloc(KAFKA_STREAM_BYTES) };
	return stream->buf ? 0 : -ENOMEM;
}

void kafka_stream_fini(struct kafka_stream *stream)
{
	free(stream->buf);
	stream->buf = NULL;
}

static void write_all(struct kafka_stream *stream, const uint8_t *p, size_t len)
{
	while (len > 0 && stream->fd != -1 && stream->error == 0) {
		ssize_t n = write(stream->fd, p, len);

		if (n == -1) {
			if (errno == EAGAIN) { /* a terminal or pipe that someone else made non-blocking */
				struct pollfd wait = { .fd = stream->fd, .events = POLLOUT };

				poll(&wait, 1, -1);
			} else if (errno != EINTR) {
				stream->error = errno;
			}
			continue;
		}
		p += n;
		len -= (size_t)n;
	}
}

void kafka_stream_flush(struct kafka_stream *stream)
{
	write_all(stream, stream->buf, stream->len);
	stream->len = 0;
}

void kafka_stream_add(struct kafka_stream *stream, const void *bytes, size_t len)
{
	stream->total_bytes += len;
	if (len == 0)
		return;
	if (len > KAFKA_STREAM_BYTES - stream->len)
		kafka_stream_flush(stream);
	if (len >= KAFKA_STREAM_BYTES) {
		write_all(stream, bytes, len);
		return;
	}
	memcpy(stream->buf + stream->len, bytes, len);
	stream->len += len;
}

bool kafka_stream_is_closed(const struct kafka_stream *stream)
{
	struct pollfd end = { .fd = stream->fd };

	return poll(&end, 1, 0) == 1 && (end.revents & (POLLERR | POLLNVAL));
}
