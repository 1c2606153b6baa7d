/* SPDX-License-Identifier: MIT
 *
 * resume: this program was executed in the place of another one (upgrade.h): takes over what that one had, by names. Its
 * workers go on serving meanwhile, and are rolled then as a reload does. Their counters stay in all sums: they are added,
 * by name, to the page behind the last slot's, each half second and once more when the last of them has ended; what one
 * that was killed had read and not handed over goes into the other page there. Master only.
 */
#include "upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const double import_seconds = 0.5;

struct resume {
	struct master *m;
	char *text;    /* the state */
	char *scratch; /* as large: lines are read from a copy, and memory may be short by then */
	int config, maps;
	struct control_guest guests[CONTROL_CLIENTS_MAX];
	unsigned n_guests;
	struct stats *pages; /* of the workers that the other program had */
	struct stats_copy *copy;
	int page; /* of ours that they go to; -1: none is left */
	unsigned n_slots;
	const struct worker_process *dead; /* in resume_died */
	uint64_t in_hand;
	bool can_be;
	struct ev_timer import;
};

static struct resume *the_resume;

/* -- the state ------------------------------------------------------------------------------------------------------- */

typedef void line_function(struct master *m, const struct state_line *line);

/* Calls f for each line of this key. */
static void each_line(struct master *m, const char *key, line_function *f)
{
	static struct state_line line; /* large */
	char *at = strcpy(the_resume->scratch, the_resume->text);
	while (state_next(&at, &line))
		if (strcmp(line.key, key) == 0)
			f(m, &line);
}

static int take_fd(const struct state_line *line, unsigned word)
{
	int fd = (int)state_int(line, word, -1);
	if (fd != -1)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static void read_program(struct master *m, const struct state_line *line)
{
	(void)m;
	upgrade_remember(state_text(line, 0));
}

bool master_resumes(void)
{
	const char *how = getenv(UPGRADE_ENVIRONMENT);
	int fd;
	if (the_resume)
		return true;
	if (!how || sscanf(how, "resume %d", &fd) != 1)
		return false;
	unsetenv(UPGRADE_ENVIRONMENT);
	struct resume *r = calloc(1, sizeof(*r));
	if (!r || !(r->text = state_read(fd)) || !(r->scratch = malloc(strlen(r->text) + 1))) {
		fprintf(stderr, "millrace: cannot read what the millrace before left: %s\n", strerror(errno));
		exit(MASTER_EXIT_ERROR); /* its workers deliver what they hold, and end */
	}
	close(fd);
	r->config = r->maps = r->page = -1;
	the_resume = r;
	each_line(NULL, "program", read_program);
	return true;
}

static void read_rehearsed(struct master *m, const struct state_line *line)
{
	(void)m;
	the_resume->config = take_fd(line, 0);
	the_resume->maps = take_fd(line, 1);
}

int resume_text(const char *path, char **bytes, size_t *len)
{
	(void)path;
	each_line(NULL, "rehearsed", read_rehearsed);
	char *text = state_read(the_resume->config);
	if (!text)
		return -errno;
	*bytes = text;
	*len = strlen(text);
	return 0;
}

static void read_control(struct master *m, const struct state_line *line)
{
	int fd = take_fd(line, 0);
	if (fd == -1)
		return;
	if (strcmp(state_text(line, 1), m->cf->control) == 0) {
		m->control_fd = fd;
		return;
	}
	close(fd);
	unlink(state_text(line, 1));
}

static void read_http(struct master *m, const struct state_line *line)
{
	int fd = take_fd(line, 0);
	if (fd != -1 && strcmp(state_text(line, 1), m->cf->http) == 0)
		m->monitor.http.fd = fd;
	else if (fd != -1)
		close(fd);
}

static void read_pid_file(struct master *m, const struct state_line *line)
{
	int fd = take_fd(line, 0);
	if (fd != -1 && strcmp(state_text(line, 1), m->cf->pid_file) == 0)
		m->pid_file = fd;
	else
		pidfile_close(state_text(line, 1), &fd);
}

static void read_client(struct master *m, const struct state_line *line)
{
	struct control_guest guest = {.fd = take_fd(line, 0), .is_waiting = state_int(line, 1, 0) != 0};
	(void)m;
	if (guest.fd != -1 && the_resume->n_guests < ARRAY_LEN(the_resume->guests))
		the_resume->guests[the_resume->n_guests++] = guest;
}

static void read_generation(struct master *m, const struct state_line *line)
{
	m->generation = (uint64_t)state_int(line, 0, 1);
}

static void read_n_slots(struct master *m, const struct state_line *line)
{
	int64_t number = state_int(line, 0, -1);
	if (number >= 0 && number < STATS_SLOTS_MAX)
		the_resume->n_slots = MAX(the_resume->n_slots, (unsigned)number + 1);
	m->n_slots = MAX(m->n_slots, the_resume->n_slots);
}

void resume_begin(struct master *m)
{
	if (!the_resume)
		return;
	the_resume->m = m;
	each_line(m, "control", read_control);
	each_line(m, "http", read_http);
	each_line(m, "pid_file", read_pid_file);
	each_line(m, "client", read_client);
	each_line(m, "generation", read_generation);
	each_line(m, "slot", read_n_slots);
}

/* -- endpoints ------------------------------------------------------------------------------------------------------- */

static bool read_hex(const char *hex, struct net_address *a)
{
	unsigned char *to = (unsigned char *)&a->sa;
	unsigned byte;
	memset(a, 0, sizeof(*a));
	for (; *hex; hex += 2, a->len++) {
		if (a->len == sizeof(a->sa) || sscanf(hex, "%2x", &byte) != 1 || hex[1] == '\0')
			return false;
		to[a->len] = (unsigned char)byte;
	}
	return true;
}

enum { ENDPOINT_FIRST_FD = 6 };

static void read_endpoint(struct master *m, const struct state_line *line)
{
	int fds[STATS_SLOTS_MAX];
	struct endpoint_state state = {
	    .type = state_text(line, 0),
	    .name = state_text(line, 1),
	    .input = state_text(line, 2),
	    .path_device = (dev_t)state_int(line, 4, 0),
	    .path_inode = (ino_t)state_int(line, 5, 0),
	    .fds = fds,
	};
	for (unsigned k = ENDPOINT_FIRST_FD; k < line->n && state.n_fds < STATS_SLOTS_MAX; k++)
		fds[state.n_fds++] = take_fd(line, k);
	int r = read_hex(state_text(line, 3), &state.address) ? 0 : -EPROTO;
	if (r == 0)
		r = registry_adopt(&m->registry, input_endpoint_ops(state.type), &state);
	if (r != 0)
		log_error("upgrade: %s %s cannot be taken over: %s; what waits there is lost", state.type, state.name,
			  strerror(-r));
}

void resume_endpoints(struct master *m)
{
	if (the_resume)
		each_line(m, "endpoint", read_endpoint);
}

/* -- maps that the rehearsal has made --------------------------------------------------------------------------------- */

static bool fill_from(struct output *out, const char *file, size_t size)
{
	struct upgrade_map head;
	for (size_t at = 0; size - at > sizeof(head); at += head.bytes) {
		memcpy(&head, file + at, sizeof(head));
		at += sizeof(head);
		if (head.bytes > size - at)
			return false;
		head.name[sizeof(head.name) - 1] = '\0';
		if (strcmp(head.name, out->cf->name) == 0)
			return shards_fill_from(out->shared, file + at, head.bytes);
	}
	return false;
}

bool resume_fill(struct output *out)
{
	struct stat sb;
	if (!the_resume || the_resume->maps == -1 || out->cf->type != CONF_OUTPUT_TYPE_STATSITE ||
	    fstat(the_resume->maps, &sb) == -1 || sb.st_size == 0)
		return false;
	char *file = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, the_resume->maps, 0);
	if (file == MAP_FAILED)
		return false;
	bool done = fill_from(out, file, (size_t)sb.st_size);
	munmap(file, (size_t)sb.st_size);
	return done;
}

/* -- workers ---------------------------------------------------------------------------------------------------------- */

static void read_started(struct master *m, const struct state_line *line)
{
	stats_master(m->page)->started_us = (uint64_t)state_int(line, 0, 0);
}

static void read_slot(struct master *m, const struct state_line *line)
{
	int64_t number = state_int(line, 0, -1);
	if (number < 0 || number >= m->n_slots)
		return;
	struct stats_slot *st = stats_slot(m->page, (unsigned)number);
	st->starts = (uint64_t)state_int(line, 1, 0);
	st->deaths = (uint64_t)state_int(line, 2, 0);
	stats_touch(m->page, STATS_SLOT, (unsigned)number);
}

static void read_worker(struct master *m, const struct state_line *line)
{
	int64_t number = state_int(line, 0, -1), which = state_int(line, 1, -1);
	int link = take_fd(line, 3), fd = take_fd(line, 7), pidfd = take_fd(line, 9);
	struct receive_batch *batches = receive_adopt(fd, state_int(line, 8, 0));
	pid_t pid = (pid_t)state_int(line, 2, 0);
	if (number < 0 || number >= m->n_slots || which < 0 || which >= STATS_SLOT_PAGES || pid <= 0 || link == -1) {
		close(link); /* the worker meets the end of its link, and leaves */
		close(pidfd);
		receive_let_go(batches);
		return;
	}
	struct slot *s = &m->slots[number];
	struct worker_process *p = &s->processes[which];
	int r = child_adopt(&p->child, m->loop, pid, pidfd, link);
	if (r != 0) {
		log_error("upgrade: worker %u (pid %d) cannot be taken over: %s", s->number, (int)pid, strerror(-r));
		close(link);
		receive_let_go(batches);
		return;
	}
	p->is_foreign = true;
	p->batches = batches;
	p->is_ready = state_int(line, 5, 0) != 0;
	p->is_leaving = p->has_left = state_int(line, 6, 0) != 0;
	if (p->is_leaving)
		p->kill_at_us = clock_us() + m->cf->drain_timeout + MASTER_LATE_US;
	if (state_int(line, 4, 0) == 0)
		return;
	s->now = p;
	s->was_ready = true;
	restart_started(&s->restart, clock_us());
	if (p->is_ready) {
		restart_ready(&s->restart, clock_us());
		stats_slot(m->page, s->number)->ready_us = clock_real_us();
	}
	slot_publish(s); /* it may serve for long, when no successor can start */
}

static void read_pages(struct master *m, const struct state_line *line)
{
	struct resume *r = the_resume;
	struct err err = {""};
	int fds[2 * STATS_SLOTS_MAX + 2] = {-1};
	size_t n = 0;
	for (unsigned k = 0; k < line->n && n < ARRAY_LEN(fds); k++)
		fds[n++] = take_fd(line, k);
	r->pages = stats_open(fds, n, &err);
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
	r->copy = r->pages ? stats_copy_new(r->pages) : NULL;
	unsigned page = stats_slots(m->stats);
	if (!r->copy || stats_add_slot(m->stats, &err) != 0) {
		log_warn("upgrade: the counters start at 0: %s", err.text[0] ? err.text : "no memory");
		return;
	}
	r->page = (int)page;
	stats_slot(m->page, page)->state = RESTART_REMOVED;
	stats_touch(m->page, STATS_SLOT, page);
	stats_publish(m->page);
	stats_retire(m->stats, STATS_SLOT, page);
	stats_retire(m->stats, STATS_WORKER, page);
}

static void import(struct resume *r)
{
	if (!r->copy || r->page == -1 || stats_copy_take(r->copy, NULL) != 0)
		return;
	struct stats_page *page = stats_slot_page(r->m->stats, (unsigned)r->page, 0);
	stats_import(r->m->stats, page, r->copy);
	generation_mark_page(r->m, page);
}

/* What a dead worker had read of one input and not published. */
static void count_in_hand(struct master *m, const struct state_line *line)
{
	struct resume *r = the_resume;
	int64_t index = state_int(line, 1, -1);
	struct input_type type = {.is_stream = state_int(line, 2, 0) != 0, .is_packets = state_int(line, 3, 0) != 0};
	struct input in = {
	    .type = &type,
	    .wants_lines = state_int(line, 4, 0) != 0,
	    .wants_items = state_int(line, 5, 0) != 0,
	};
	if (index < 0 || index >= stats_copy_entries(r->copy, STATS_INPUT))
		return;
	int ours = stats_import_place(m->stats, r->copy, STATS_INPUT, (unsigned)index), slot = (int)r->dead->slot->number;
	if (ours == -1)
		return;
	struct stats_page *page = stats_slot_page(m->stats, (unsigned)r->page, 1);
	struct stats_input *st = stats_input(page, (unsigned)ours);
	st->unfinished_lines = stats_named(r->copy, slot, STATS_INPUT, (unsigned)index, "unfinished_lines");
	st->open_connections = stats_named(r->copy, slot, STATS_INPUT, (unsigned)index, "open_connections");
	in.index = (unsigned)ours;
	r->in_hand += input_lost_at_death(&in, &r->dead->batches[index], page, &r->can_be);
}

void resume_died(struct worker_process *p, bool left_clean, struct text *t)
{
	struct resume *r = the_resume;
	text_add(t, "; it was of the program before");
	if (r->copy)
		stats_copy_ended(r->copy, p->slot->number, p->which);
	if (!left_clean && r->page != -1) {
		import(r);
		r->dead = p;
		r->in_hand = 0;
		r->can_be = p->batches != NULL;
		if (p->batches)
			each_line(p->slot->m, "input", count_in_hand);
		stats_publish(stats_slot_page(p->slot->m->stats, (unsigned)r->page, 1));
		text_add(t, "; lost at most %llu records that it had read and not yet handed over, and what it had queued",
			 (unsigned long long)r->in_hand);
		if (!r->can_be)
			death_in_hand_unknown(p->slot);
	}
	receive_let_go(p->batches);
	p->batches = NULL;
}

static bool has_foreign(const struct master *m)
{
	for (unsigned i = 0; i < m->n_slots; i++)
		for (unsigned k = 0; k < STATS_SLOT_PAGES; k++)
			if (m->slots[i].processes[k].is_foreign && child_is_there(&m->slots[i].processes[k].child))
				return true;
	return false;
}

/* The last worker of the other program has ended: its numbers are final. What one that was killed held is lost. */
static void end(struct resume *r)
{
	import(r);
	if (r->page != -1) {
		struct stats_page *page = stats_slot_page(r->m->stats, (unsigned)r->page, 0);
		death_account_page(page);
		stats_publish(page);
	}
	ev_timer_stop(r->m->loop, &r->import);
	stats_copy_free(r->copy);
	stats_free(r->pages);
	if (r->maps != -1)
		close(r->maps);
	if (r->config != -1)
		close(r->config);
	free(r->scratch);
	free(r->text);
	free(r);
	the_resume = NULL;
}

void resume_look(struct master *m)
{
	if (the_resume && !has_foreign(m))
		end(the_resume);
}

bool resume_is_done(void)
{
	return the_resume == NULL;
}

static void import_again(struct ev_loop *loop, struct ev_timer *timer, int events)
{
	(void)loop, (void)events;
	import(timer->data);
	resume_look(((struct resume *)timer->data)->m);
}

void resume_slots(struct master *m)
{
	struct resume *r = the_resume;
	if (!r)
		return;
	each_line(m, "started", read_started);
	each_line(m, "slot", read_slot);
	each_line(m, "worker", read_worker);
	each_line(m, "pages", read_pages);
	import(r);
	if (r->copy)
		stats_import_endpoints(m->stats, r->copy); /* its master has counted the last of them */
	ev_timer_init(&r->import, import_again, import_seconds, import_seconds);
	r->import.data = r;
	ev_timer_start(m->loop, &r->import);
}

/* -- what the other program's workers are to know ---------------------------------------------------------------------- */

/* The input that all endpoints of the old one have gone to; NULL: none. */
static const struct input *renamed_to(const struct master *m, const char *name)
{
	const struct endpoint *ep;
	const struct input *to = NULL;
	TAILQ_FOREACH(ep, &m->registry.list, next)
	{
		if (!ep->former_input || strcmp(ep->former_input, name) != 0)
			continue;
		const struct input *now = ep->references > 0 ? input_named(m->inputs, m->n_inputs, ep->cf->name) : NULL;
		if (!now || (to && to != now))
			return NULL;
		to = now;
	}
	return to;
}

static void announce_input(struct master *m, const struct state_line *line)
{
	const char *name = state_text(line, 0);
	const struct input *to = input_named(m->inputs, m->n_inputs, name) ? NULL : renamed_to(m, name);
	if (to)
		slots_tell_all(m, LINK_GONE, LINK_GONE_NAME, name, to->cf->name, -1);
	else if (!input_named(m->inputs, m->n_inputs, name))
		slots_tell_all(m, LINK_GONE, LINK_GONE_INPUT, name, "", -1);
}

static void announce_output(struct master *m, const struct state_line *line)
{
	bool stays = false;
	for (size_t i = 0; i < m->n_outputs; i++)
		stays |= strcmp(m->outputs[i].cf->name, state_text(line, 0)) == 0;
	if (!stays)
		slots_tell_all(m, LINK_GONE, LINK_GONE_OUTPUT, state_text(line, 0), "", -1);
}

/* Returns who waits for the upgrade. */
static uint64_t adopt_guests(struct master *m)
{
	uint64_t waiting = 0;
	for (unsigned i = 0; i < the_resume->n_guests; i++) {
		uint64_t number = control_adopt(m, &the_resume->guests[i]);
		waiting = number ? number : waiting;
	}
	return waiting;
}

void resume_go(struct master *m)
{
	struct endpoint *ep;
	if (!the_resume)
		return;
	each_line(m, "input", announce_input);
	each_line(m, "output", announce_output);
	TAILQ_FOREACH(ep, &m->registry.list, next)
	{
		if (ep->references == 0 && ep->former_input)
			slots_tell_all(m, LINK_GONE, LINK_GONE_ENDPOINT, ep->former_input, ep->name, -1);
	}
	registry_retire_unused(&m->registry);
	m->has_started = true;
	log_info("millrace %s serves in place of the program before; its workers make place", MILLRACE_VERSION);
	daemon_ready(m);
	reload_resume(m, adopt_guests(m));
}
