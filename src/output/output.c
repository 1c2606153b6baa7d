/* SPDX-License-Identifier: MIT
 *
 * output: the table of output types. The master looks a type up once for each configured output; everything after that
 * goes through the row. Opens nothing itself.
 */
#include "types.h"

#include <errno.h>
#include <fcntl.h>
#ifdef MILLRACE_KAFKA
#include <librdkafka/rdkafka.h>
#endif
#include <string.h>
#include <unistd.h>

struct output_row {
	enum conf_words word;
	const struct output_type *type; /* NULL: not in this build */
	const char *absent;             /* then: what to say */
};

static const struct output_row rows[] = {
    {CONF_OUTPUT_TYPE_STATSITE, &output_statsite, NULL},
#ifdef MILLRACE_KAFKA
    {CONF_OUTPUT_TYPE_KAFKA, &output_kafka, NULL},
#else
    {CONF_OUTPUT_TYPE_KAFKA, NULL,
     "this millrace was built without Kafka; install one that has it or remove the output"},
#endif
};

struct output *output_named(struct output *outputs, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(outputs[i].cf->name, name) == 0)
			return &outputs[i];
	return NULL;
}

void output_mark_up(struct stats_backend *draft, bool is_up)
{
	draft->up = is_up;
	draft->down_us = is_up ? 0 : draft->down_us ? draft->down_us : clock_real_us();
}

const char *output_kafka_version(void)
{
#ifdef MILLRACE_KAFKA
	return rd_kafka_version_str();
#else
	return NULL;
#endif
}

static const struct output_row *row_of(const struct conf_output *co)
{
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		if (rows[i].word == co->type)
			return &rows[i];
	BUG_ON(true); /* the check of the configuration knows the same words */
	return NULL;
}

static unsigned count_backends(const struct conf_output *co)
{
	return co->type == CONF_OUTPUT_TYPE_STATSITE ? (unsigned)co->n_backends : 1;
}

static enum output_wants wants(const struct conf_output *co)
{
	if (co->type == CONF_OUTPUT_TYPE_STATSITE || co->format == CONF_FORMAT_LINES)
		return OUTPUT_WANTS_LINES;
	return OUTPUT_WANTS_ITEMS;
}

/* Headers name the sender, and flows are told apart by it. */
static bool wants_from(const struct conf_output *co)
{
	if (co->type != CONF_OUTPUT_TYPE_KAFKA || co->format == CONF_FORMAT_PACKET || co->format == CONF_FORMAT_PCAP)
		return false;
	return co->headers || co->partition == CONF_PARTITION_FLOW || co->partition == CONF_PARTITION_WORKER ||
	       (co->partition == CONF_PARTITION_AUTO && co->format != CONF_FORMAT_LINES);
}

/* An input of this protocol feeds it. */
static bool has_protocol(const struct conf *cf, const struct conf_output *co, enum conf_words protocol)
{
	for (size_t i = 0; i < cf->n_inputs; i++)
		for (size_t k = 0; k < cf->inputs[i].n_outputs; k++)
			if (cf->inputs[i].outputs[k] == co && cf->inputs[i].protocol == protocol)
				return true;
	return false;
}

int output_make(struct output *out, const struct conf *cf, size_t place, struct err *err)
{
	const struct conf_output *co = &cf->outputs[place];
	const struct output_row *row = row_of(co);
	if (row->type == NULL)
		return err_set(err, -ENOTSUP, "Output \"%s\": %s.", co->name, row->absent);
	*out = (struct output){
	    .type = row->type,
	    .cf = co,
	    .index = (unsigned)place,
	    .n_backends = count_backends(co),
	    .overflow = conf_overflow(cf, co),
	    .wants = wants(co),
	    .wants_from = wants_from(co),
	    .is_statsd = has_protocol(cf, co, CONF_PROTOCOL_STATSD),
	    .is_carbon = has_protocol(cf, co, CONF_PROTOCOL_CARBON),
	    .file = -1,
	    .shared_fd = -1,
	    .leave_us = cf->drain_timeout,
	};
	output_open_file(out);
	return 0;
}

int output_set_blocks(struct output *out, const uint32_t *blocks)
{
	uint32_t *copy = calloc(out->n_backends, sizeof(*copy));
	if (copy == NULL)
		return -ENOMEM;
	memcpy(copy, blocks, out->n_backends * sizeof(*copy));
	out->blocks = copy;
	return 0;
}

int output_init(struct output *out, const struct conf *cf, size_t place, struct err *err)
{
	uint32_t first = 0;
	int r = output_make(out, cf, place, err);
	if (r != 0)
		return r;
	for (size_t i = 0; i < place; i++)
		first += count_backends(&cf->outputs[i]);
	uint32_t *blocks = calloc(out->n_backends, sizeof(*blocks));
	for (uint32_t i = 0; blocks != NULL && i < out->n_backends; i++)
		blocks[i] = first + i;
	out->blocks = blocks;
	r = blocks != NULL ? out->type->prepare(out, err)
			   : err_set(err, -ENOMEM, "Output \"%s\": no memory.", out->cf->name);
	if (r == 0 && out->type->fill != NULL)
		r = out->type->fill(out, NULL, err);
	return r;
}

void output_fini(struct output *out)
{
	if (out->shared != NULL && out->type->unprepare != NULL)
		out->type->unprepare(out);
	if (out->shared_fd != -1)
		close(out->shared_fd);
	if (out->file != -1)
		close(out->file);
	free((uint32_t *)(uintptr_t)out->blocks);
	*out = (struct output){.shared_fd = -1, .file = -1};
}

void output_take_file(struct output *out, int fd)
{
	if (out->file != -1)
		close(out->file);
	out->file = fd;
	if (out->type->reopen != NULL)
		out->type->reopen(out);
}

void output_open_file(struct output *out)
{
	const char *path = out->cf->statistics_file;
	if (path == NULL || path[0] == '\0')
		return;
	/* non-blocking: a pipe that nobody reads must not stop a worker */
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
	if (fd == -1)
		log_warn(
		    "output \"%s\": statistics_file %s: cannot be opened: %s; statistics are not written there until "
		    "USR1 opens it anew",
		    out->cf->name, path, strerror(errno));
	if (out->file != -1)
		close(out->file);
	out->file = fd;
}

size_t output_check(const struct conf *cf, struct text *errors)
{
	size_t n = 0;
	for (size_t i = 0; i < cf->n_outputs; i++) {
		const struct output_type *type = row_of(&cf->outputs[i])->type;
		if (type != NULL && type->check != NULL)
			n += type->check(&cf->outputs[i], cf->path ? cf->path : "command line", errors);
	}
	return n;
}

const char *output_backend_name(const struct output *out, unsigned i, char *buf, size_t size)
{
	if (out->cf->type == CONF_OUTPUT_TYPE_STATSITE)
		return conf_backend_label(&out->cf->backends[i], buf, size);
	text_escape(buf, size, out->cf->topic, strlen(out->cf->topic));
	return buf;
}

const char *output_backend_transport(const struct output *out, unsigned i)
{
	if (out->cf->type == CONF_OUTPUT_TYPE_KAFKA)
		return "kafka";
	return out->cf->backends[i].transport == CONF_TRANSPORT_UDP ? "udp" : "tcp";
}
