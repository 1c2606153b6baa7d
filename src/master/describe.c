/* SPDX-License-Identifier: MIT
 *
 * describe: what this master is, in words, for the program that takes its place: see upgrade.h; resume.c reads it.
 * Everything goes by names; numbers of descriptors are those that stay open over the exec. Master only.
 */
#include "upgrade.h"

static void describe_files(const struct master *m, struct text *t)
{
	const char *path;
	int fd = control_fd(m, &path);
	if (fd != -1) {
		state_key(t, "control");
		state_number(t, fd);
		state_word(t, path);
	}
	if (m->monitor.http.fd != -1) {
		state_key(t, "http");
		state_number(t, m->monitor.http.fd);
		state_word(t, m->cf->http);
	}
	if (m->pid_file != -1) {
		state_key(t, "pid_file");
		state_number(t, m->pid_file);
		state_word(t, m->cf->pid_file);
	}
}

static void describe_input(const struct input *in, struct text *t)
{
	state_key(t, "input");
	state_word(t, in->cf->name);
	state_number(t, in->index);
	state_number(t, in->type->is_stream);
	state_number(t, in->type->is_packets);
	state_number(t, in->wants_lines);
	state_number(t, in->wants_items);
}

static void describe_slot(const struct slot *s, struct text *t)
{
	const struct stats_slot *st = stats_slot(s->m->page, s->number);
	state_key(t, "slot");
	state_number(t, s->number);
	state_number(t, (int64_t)st->starts);
	state_number(t, (int64_t)st->deaths);
	for (unsigned k = 0; k < ARRAY_LEN(s->processes); k++) {
		const struct worker_process *p = &s->processes[k];
		if (!child_is_there(&p->child))
			continue;
		state_key(t, "worker");
		state_number(t, s->number);
		state_number(t, k);
		state_number(t, p->child.process.pid);
		state_number(t, p->child.link.fd);
		state_number(t, p == s->now);
		state_number(t, p->is_ready);
		state_number(t, p->is_leaving);
		state_number(t, receive_fd(s->m->receive, s->number, k));
		state_number(t, RECEIVE_VERSION);
		state_number(t, p->child.process.pidfd);
	}
}

static int describe_endpoint(void *arg, const struct endpoint_state *e)
{
	struct text *t = arg;
	char hex[2 * sizeof(e->address.sa) + 1] = "";
	const unsigned char *bytes = (const void *)&e->address.sa;
	for (socklen_t i = 0; i < e->address.len; i++)
		snprintf(hex + 2 * (size_t)i, 3, "%02x", bytes[i]);
	state_key(t, "endpoint");
	state_word(t, e->type);
	state_word(t, e->name);
	state_word(t, e->input);
	state_word(t, hex);
	state_number(t, (int64_t)e->path_device);
	state_number(t, (int64_t)e->path_inode);
	for (unsigned k = 0; k < e->n_fds; k++)
		state_number(t, e->fds[k]);
	return 0;
}

void state_describe(const struct master *m, struct text *t)
{
	state_key(t, "millrace");
	state_word(t, MILLRACE_VERSION);
	state_key(t, "state");
	state_number(t, STATE_VERSION);
	state_key(t, "program");
	state_word(t, upgrade_program());
	state_key(t, "generation");
	state_number(t, (int64_t)m->generation);
	state_key(t, "capabilities");
	state_number(t, (int64_t)m->capabilities);
	state_key(t, "started");
	state_number(t, (int64_t)stats_master(m->page)->started_us);
	describe_files(m, t);
	for (size_t i = 0; i < m->n_inputs; i++)
		describe_input(&m->inputs[i], t);
	for (size_t i = 0; i < m->n_outputs; i++) {
		state_key(t, "output");
		state_word(t, m->outputs[i].cf->name);
	}
	registry_export(&m->registry, describe_endpoint, t);
	for (unsigned i = 0; i < m->n_slots; i++)
		describe_slot(&m->slots[i], t);
	state_key(t, "pages");
	for (unsigned i = 0; i < stats_files(m->stats); i++)
		state_number(t, stats_reader_fd(m->stats, i));
}
