/* SPDX-License-Identifier: MIT
 *
 * What answers.c and page.c share.
 */
#ifndef MONITOR_ANSWERS_H
#define MONITOR_ANSWERS_H

#include "http.h"
#include "monitor.h"

/* Every slot has a READY worker and the last reload did not fail; else why not, one clause. */
bool answer_is_ready(const struct monitor *m, struct text *why);

/* page.c: the page, and what its script asks for each second. */
void page_html(struct monitor *m, struct answer *a);
void page_json(struct monitor *m, struct answer *a);

#endif
