/* SPDX-License-Identifier: MIT
 *
 * upgrade: what the two masters of an upgrade say to each other, over a SOCK_SEQPACKET pair.
 *
 *   old master (upgrade.c)                                   new master (upgrade_heir.c), started by it
 *   ENDPOINT … (descriptors), CONTROL, HTTP, END ─────────▶  takes endpoints by type and address, makes the rest
 *   serves                                                   its workers open outputs, say READY, and hold
 *                      ◀──────────────────────────── READY   (or it ends: then nothing has changed)
 *   its workers stop reading, give connections back
 *   CONNECTION …, COUNTERS (pages), GO ───────────────────▶  gives connections out; its workers read
 *   its workers deliver what they hold, and end              adds the old counters to its own, each second
 *   DONE, exit ───────────────────────────────────────────▶  … and once more: they are final
 */
#ifndef MASTER_UPGRADE_H
#define MASTER_UPGRADE_H

#include "master.h"

#define UPGRADE_ENVIRONMENT "MILLRACE_UPGRADE" /* number of the descriptor */
enum { UPGRADE_VERSION = 1 };

enum upgrade_type {
	UPGRADE_ENDPOINT,
	UPGRADE_CONTROL,
	UPGRADE_HTTP,
	UPGRADE_END,
	UPGRADE_FAILED, /* the new program cannot be run */
	UPGRADE_READY,
	UPGRADE_CONNECTION,
	UPGRADE_LINES, /* what an output (name) held: at any time until DONE */
	UPGRADE_COUNTERS,
	UPGRADE_GO,
	UPGRADE_DONE,
};
struct upgrade_message {
	uint32_t version, type;
	uint32_t number, n;   /* descriptor number of n of the endpoint; of a word: who says it, its process id */
	uint64_t value; /* of a connection and of lines, as in the link's message */
	uint32_t kept_bytes;
	int32_t group; /* of a capture, which comes without descriptors: its fanout group; -1: none */
	char kind[16];	/* type of input ("udp"); of a connection too */
	char name[264]; /* the endpoint's address; of a connection the input's name */
	struct net_address address;
	uint64_t path_device, path_inode;
	char kept[LINE_MAX_BYTES + 1]; /* as much as there is */
};
#define UPGRADE_HEAD_BYTES offsetof(struct upgrade_message, kept)

#endif
