/* SPDX-License-Identifier: MIT
 *
 * dpdk_args: from the options of an input to the argv of the EAL: our defaults where nothing was said, names of older
 * DPDKs as today's, and frames for net_af_packet that do not cut what they get. Pure.
 */
#include "dpdk.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

enum {
	/* What net_af_packet's frame holds before the packet's first byte: TPACKET_ALIGN(52 + 16) - 14 (man 7 packet,
	 * linux/net/packet/af_packet.c, tpacket_rcv). */
	FRAME_HEAD_BYTES = 66,
	FRAMES_A_BLOCK = 4,         /* net_af_packet takes a block for a row of frames, so that they must fill it */
	FRAME_BYTES_UNASKED = 2048, /* net_af_packet's own default */
};

static bool starts_with(const char *s, const char *with)
{
	return strncmp(s, with, strlen(with)) == 0;
}

bool dpdk_is_pci_address(const char *s)
{
	static const char *const shapes[] = {"xxxx:xx:xx.x", "xx:xx.x"};
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
		size_t k = 0;
		if (strlen(s) != strlen(shapes[i]))
			continue;
		while (s[k] && (shapes[i][k] == 'x' ? isxdigit((unsigned char)s[k]) != 0 : s[k] == shapes[i][k]))
			k++;
		if (!s[k])
			return true;
	}
	return false;
}

static bool is_virtual(const char *s)
{
	return starts_with(s, "net_") || starts_with(s, "eth_");
}

/* -- words ------------------------------------------------------------------------------------------------------- */

static int add(struct dpdk_args *a, const char *word, size_t len, struct err *err)
{
	if (a->n == DPDK_WORDS_MAX)
		return err_set(err, -EINVAL, "The arguments for DPDK (eal) are more than %d.", DPDK_WORDS_MAX);
	a->words[a->n] = strndup(word, len);
	if (!a->words[a->n])
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	a->n++;
	return 0;
}

static int add_word(struct dpdk_args *a, const char *word, struct err *err)
{
	return add(a, word, strlen(word), err);
}

static int add_pair(struct dpdk_args *a, const char *word, const char *value, struct err *err)
{
	int r = add_word(a, word, err);
	return r == 0 ? add_word(a, value, err) : r;
}

/* DPDK up to 20.08 knew these; -w and -b took a device that is (not) to be used. */
static const char *modern(const char *word)
{
	static const char *const names[][2] = {
	    {"-w", "-a"},
	    {"--pci-whitelist", "--allow"},
	    {"--pci-blacklist", "--block"},
	    {"--master-lcore", "--main-lcore"},
	};
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (strcmp(word, names[i][0]) == 0)
			return names[i][1];
	return word;
}

/* "-l 0,1" in one item is what people write. */
static int add_item(struct dpdk_args *a, const char *item, struct err *err)
{
	int r = 0;
	while (r == 0 && *item) {
		item += strspn(item, " \t");
		size_t len = strcspn(item, " \t");
		if (len > 0)
			r = add(a, item, len, err);
		item += len;
	}
	return r;
}

/* Whether the option is among the words, as "--name", "--name=…" or, of one letter, "-lVALUE". */
static bool has(const struct dpdk_args *a, const char *option)
{
	size_t len = strlen(option);
	for (int i = 1; i < a->n; i++) {
		const char *word = a->words[i];
		bool is_long = option[1] == '-';
		if (strncmp(word, option, len) == 0 && (!is_long || word[len] == '\0' || word[len] == '='))
			return true;
	}
	return false;
}

static bool has_any(const struct dpdk_args *a, const char *const options[])
{
	for (; *options; options++)
		if (has(a, *options))
			return true;
	return false;
}

/* -- virtual devices --------------------------------------------------------------------------------------------- */

static bool has_key(const char *devargs, const char *key)
{
	const char *at = devargs;
	while ((at = strchr(at, ',')) != NULL)
		if (starts_with(++at, key))
			return true;
	return false;
}

static uint32_t value_of(const char *devargs, const char *key, uint32_t otherwise)
{
	const char *at = devargs;
	while ((at = strchr(at, ',')) != NULL)
		if (starts_with(++at, key))
			return (uint32_t)strtoul(at + strlen(key), NULL, 10);
	return otherwise;
}

/* A queue pair for each worker: what the kernel gives to one more nobody would read. Frames that hold a jumbo frame: it
 * cuts longer ones and does not say so. */
static int complete_af_packet(struct dpdk_args *a, const struct dpdk_wish *wish, struct text *t)
{
	if (!has_key(t->s, "qpairs="))
		text_add(t, ",qpairs=%u", wish->queues);
	if (!has_key(t->s, "framesz=") && !has_key(t->s, "blocksz=") && !has_key(t->s, "framecnt="))
		text_add(t, ",blocksz=%u,framesz=%u,framecnt=%u", FRAMES_A_BLOCK * DPDK_FRAME_BYTES, DPDK_FRAME_BYTES,
			 (wish->rx_descriptors + FRAMES_A_BLOCK - 1) / FRAMES_A_BLOCK * FRAMES_A_BLOCK);
	if (t->failed)
		return -ENOMEM;
	uint32_t frame = value_of(t->s, "framesz=", FRAME_BYTES_UNASKED);
	a->frame_bytes = frame > FRAME_HEAD_BYTES ? frame - FRAME_HEAD_BYTES : 0;
	return 0;
}

/* Word i is the devargs of a virtual device. With a prefix "--vdev=" as it stands there. */
static int complete_vdev(struct dpdk_args *a, int i, const struct dpdk_wish *wish, struct err *err)
{
	const char *word = a->words[i], *devargs = starts_with(word, "--vdev=") ? word + 7 : word;
	if (!starts_with(devargs, "net_af_packet") && !starts_with(devargs, "eth_af_packet"))
		return 0;
	struct text t = {0};
	text_add(&t, "%s", word);
	if (t.failed || complete_af_packet(a, wish, &t) != 0) {
		text_free(&t);
		return err_set(err, -ENOMEM, "Cannot start: no memory.");
	}
	free(a->words[i]);
	a->words[i] = t.s;
	return 0;
}

static int complete_vdevs(struct dpdk_args *a, const struct dpdk_wish *wish, struct err *err)
{
	int r = 0;
	for (int i = 1; r == 0 && i < a->n; i++) {
		if (starts_with(a->words[i], "--vdev="))
			r = complete_vdev(a, i, wish, err);
		else if (strcmp(a->words[i], "--vdev") == 0 && i + 1 < a->n)
			r = complete_vdev(a, i + 1, wish, err);
	}
	return r;
}

static bool has_vdev(const struct dpdk_args *a, const char *name)
{
	size_t len = strlen(name);
	for (int i = 1; i < a->n; i++) {
		const char *s = a->words[i];
		s = starts_with(s, "--vdev=") ? s + 7 : strcmp(a->words[i - 1], "--vdev") == 0 ? s : "";
		if (len && strncmp(s, name, len) == 0 && (s[len] == ',' || s[len] == '\0'))
			return true;
	}
	return false;
}

/* -- the whole --------------------------------------------------------------------------------------------------- */

static int refuse(const struct dpdk_args *a, const struct dpdk_wish *wish, struct err *err)
{
	if (has(a, "--no-huge") && has(a, "--in-memory"))
		return err_set(err, -EINVAL,
			       "Input \"%s\": DPDK takes --no-huge or --in-memory, not both; remove one from eal.",
			       wish->input);
	for (int i = 1; i < a->n; i++)
		if (strstr(a->words[i], "secondary") &&
		    (starts_with(a->words[i], "--proc-type") || strcmp(a->words[i - 1], "--proc-type") == 0))
			return err_set(err, -EINVAL,
				       "Input \"%s\": millrace owns its port, so it cannot be a secondary process; "
				       "remove --proc-type from eal.",
				       wish->input);
	return 0;
}

static int add_port(struct dpdk_args *a, const struct dpdk_wish *wish, struct err *err)
{
	size_t len = strcspn(wish->port, ",");
	if (len >= sizeof a->port)
		return err_set(err, -EINVAL, "Input \"%s\": the port's name is longer than %zu.", wish->input,
			       sizeof a->port - 1);
	memcpy(a->port, wish->port, len);
	a->port[len] = '\0';
	if (dpdk_is_pci_address(a->port))
		return has_any(a, (const char *const[]){"-a", "--allow", NULL}) ? 0 : add_pair(a, "-a", a->port, err);
	/* a bare name beside devices that eal makes is meant to be one of them */
	if (is_virtual(a->port) && !has_vdev(a, a->port) && (wish->port[len] || !has(a, "--vdev")))
		return add_pair(a, "--vdev", wish->port, err);
	return 0;
}

static int add_defaults(struct dpdk_args *a, int pid, unsigned cpu, struct err *err)
{
	static const char *const lcores[] = {"-l", "-c", "--lcores", "-s", "-S", NULL};
	static const char *const pci[] = {"-a", "--allow", "-b", "--block", "--no-pci", NULL};
	/* a tool of DPDK that wants to look at us needs files that we would leave behind */
	static const char *const sharing[] = {"--huge-unlink", "--proc-type", "--no-shconf", "--in-memory", NULL};
	char value[32];
	int r = 0;
	a->has_lcores = has_any(a, lcores);
	snprintf(value, sizeof value, "%u", cpu);
	if (!a->has_lcores)
		r = add_pair(a, "-l", value, err);
	snprintf(value, sizeof value, "millrace%d", pid);
	if (r == 0 && !has(a, "--file-prefix"))
		r = add_pair(a, "--file-prefix", value, err);
	if (r == 0 && !has(a, "--no-telemetry") && !has(a, "--telemetry"))
		r = add_word(a, "--no-telemetry", err);
	/* where only virtual devices are named, the machine's own are not touched */
	if (r == 0 && has(a, "--vdev") && !has_any(a, pci))
		r = add_word(a, "--no-pci", err);
	if (r == 0 && !has_any(a, sharing)) {
		r = add_word(a, "--no-shconf", err);
		if (r == 0 && !has(a, "--no-huge"))
			r = add_word(a, "--huge-unlink", err);
	}
	return r;
}

int dpdk_args_make(struct dpdk_args *a, const struct dpdk_wish *wish, int pid, unsigned cpu, struct err *err)
{
	memset(a, 0, sizeof *a);
	int r = add_word(a, "millrace", err);
	for (size_t i = 0; r == 0 && i < wish->n_eal; i++)
		r = add_item(a, wish->eal[i], err);
	for (int i = 1; r == 0 && i < a->n; i++) {
		const char *name = modern(a->words[i]);
		if (name != a->words[i]) {
			free(a->words[i]);
			a->words[i] = strdup(name);
			r = a->words[i] ? 0 : err_set(err, -ENOMEM, "Cannot start: no memory.");
		}
	}
	if (r == 0)
		r = refuse(a, wish, err);
	if (r == 0)
		r = add_port(a, wish, err);
	if (r == 0)
		r = complete_vdevs(a, wish, err);
	return r == 0 ? add_defaults(a, pid, cpu, err) : r;
}

void dpdk_args_free(struct dpdk_args *a)
{
	for (int i = 0; i < a->n; i++)
		free(a->words[i]);
	memset(a, 0, sizeof *a);
}
