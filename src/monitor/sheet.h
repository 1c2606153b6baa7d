/* SPDX-License-Identifier: MIT
 *
 * sheet: the tables of the page: workers, inputs, backends, Kafka, the path of a datagram. A sheet is a list of columns
 * and a function that gives the rows, cell by cell in the order of the columns; as HTML for the page, as JSON for its
 * script, which finds the columns and their formats in the HTML.
 */
#ifndef MONITOR_SHEET_H
#define MONITOR_SHEET_H

#include "monitor.h"

/* The words of data-format in the HTML. A rate is a counter of which the script shows the difference; without a script
 * its column is not there. */
enum sheet_format {
	SHEET_TEXT,
	SHEET_STATE,
	SHEET_COUNT,
	SHEET_LOST,
	SHEET_BYTES,
	SHEET_AGE,
	SHEET_SHARE,
	SHEET_RATE,
	SHEET_BYTE_RATE
};

/* "1,234,567", "1.5 MiB", "3 h 12 min" into buf; SHARE is in millionths: "12.5 %". Returns buf. */
char *sheet_format(char *buf, size_t size, enum sheet_format format, uint64_t n);
/* For HTML text and attributes. */
void sheet_escape(struct text *t, const char *s);

void sheets_html(struct monitor *m, struct text *t);
void sheets_json(struct monitor *m, struct text *t); /* "workers":[[…],…],… */

#endif
