/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables, human-readable quantities and the progress bar. Must not know what is shown.
 */
#ifndef QR_OUTPUT_H
#define QR_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/** Rows of cells, printed in columns as wide as their widest cell. */
struct qr_table;
/** columns: one letter each, 'l' left or 'r' right aligned. NULL: no memory. */
struct qr_table *qr_table_create(const char *columns);
/** One row; cells are separated by tabs in the formatted text. Missing cells are empty. */
void qr_table_row(struct qr_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** A ruled line under the rows so far. */
void qr_table_rule(struct qr_table *table);
void qr_table_print(const struct qr_table *table, FILE *out);
void qr_table_destroy(struct qr_table **table);

#define QR_TEXT_MAX 32
/** "3.00 MiB"; the text stands in `text`. */
const char *qr_text_bytes(char text[QR_TEXT_MAX], double bytes);
/** "12.3 us", "4.56 s". */
const char *qr_text_seconds(char text[QR_TEXT_MAX], double seconds);
/** Lower-case hex; text: 2 * bytes + 1 characters. */
const char *qr_text_hex(char *text, const uint8_t *data, size_t bytes);

/** A bar on a terminal; draws at most ten times a second, and nothing when `out` is NULL. */
struct qr_progress {
    FILE *out;
    const char *label;
    double total, started, drawn;
};
void qr_progress_begin(struct qr_progress *progress, FILE *out, const char *label,
                       double total);
void qr_progress_update(struct qr_progress *progress, double done);
/** Erase the bar. */
void qr_progress_end(struct qr_progress *progress);

/** Monotonic seconds. */
double qr_seconds(void);

#endif
