/* SPDX-License-Identifier: MIT
 *
 * reload: a worker takes on a configuration that differs only in what is LIVE, made of the very bytes that the master has
 * read and checked. When it cannot, for want of memory, it leaves; its successor has the new one from the start.
 */
#include "worker.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void reload_shared(struct worker *w, const struct link_message *m, int fd)
{
	if (m->input >= ARRAY_LEN(w->shared_fds)) {
		close(fd);
		return;
	}
	if (w->shared_fds[m->input] != -1)
		close(w->shared_fds[m->input]);
	w->shared_fds[m->input] = fd;
}

static struct conf *parse(const struct worker *w, int fd)
{
	struct stat sb;
	struct conf_errors errors;
	if (fstat(fd, &sb) == -1)
		return NULL;
	char *bytes = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return NULL;
	struct conf *cf = conf_load_bytes(w->cf->path, bytes, (size_t)sb.st_size, w->setup->args, &errors);
	munmap(bytes, (size_t)sb.st_size);
	if (!cf)
		log_error("cannot take on the new configuration: %s", errors.text.s ? errors.text.s : "no memory");
	text_free(&errors.text);
	if (cf && conf_align(cf, w->cf) != 0) {
		conf_free(cf);
		return NULL;
	}
	return cf;
}

static int change_output(struct worker *w, struct output *out, const struct conf *cf)
{
	const struct conf_output *co = &cf->outputs[out->cf->index];
	int *fd = &w->shared_fds[co->index];
	void *shared = *fd != -1 && out->type->shared_open ? out->type->shared_open(*fd) : NULL;
	if (*fd != -1) {
		close(*fd);
		*fd = -1;
		if (!shared)
			return -1;
	}
	out->overflow = conf_overflow(cf, co);
	out->leave_us = cf->drain_timeout;
	if (out->type->reload && out->type->reload(out, co, shared) != 0)
		return -1;
	out->cf = co;
	return 0;
}

void reload_apply(struct worker *w, const struct link_message *m, int fd)
{
	struct conf *cf = fd != -1 ? parse(w, fd) : NULL;
	bool done = cf != NULL && cf->n_inputs == w->n_inputs && cf->n_outputs == w->n_outputs;
	if (fd != -1)
		close(fd);
	for (size_t i = 0; done && i < w->n_outputs; i++)
		done = change_output(w, &w->outputs[i], cf) == 0;
	for (size_t i = 0; done && i < w->n_inputs; i++)
		input_reload(&w->inputs[i], cf);
	if (!done) {
		log_error("no memory for the new configuration: making place for a worker that starts with it");
		worker_drain(w, w->cf->drain_timeout, INPUT_SLOT_STAYS);
		return; /* the trees stay: either may be in use */
	}
	conf_free((struct conf *)(uintptr_t)w->cf);
	w->cf = cf;
	struct link_message applied = {.type = LINK_APPLIED, .slot = w->slot, .value = m->value};
	link_tell(w, &applied, -1);
}
