/* SPDX-License-Identifier: Apache-2.0
 *
 * See output.h. Cells are kept as text until the widths are known.
 */
#include "output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COLUMNS_MAX 16
#define GAP "  "
#define BAR_WIDTH 30
#define DRAW_SECONDS 0.1

struct qr_table {
    const char *columns;
    size_t column_count, row_count;
    char **rows; /* [row_count]: cells separated by tabs; NULL is a rule */
    size_t width[COLUMNS_MAX];
};

struct qr_table *qr_table_create(const char *columns)
{
    struct qr_table *table = calloc(1, sizeof(*table));
    if (table == NULL)
        return NULL;
    table->columns = columns;
    table->column_count = strlen(columns);
    return table;
}

static void add_row(struct qr_table *table, char *text)
{
    char **rows = realloc(table->rows, (table->row_count + 1) * sizeof(*rows));
    if (rows == NULL) {
        free(text);
        return;
    }
    table->rows = rows;
    rows[table->row_count++] = text;
}

void qr_table_row(struct qr_table *table, const char *format, ...)
{
    char *text;
    va_list args;
    if (table == NULL)
        return;
    va_start(args, format);
    const int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0)
        return;
    const char *cell = text;
    for (size_t c = 0; c < table->column_count && c < COLUMNS_MAX; c++) {
        const size_t width = strcspn(cell, "\t");
        if (width > table->width[c])
            table->width[c] = width;
        if (cell[width] == 0)
            break;
        cell += width + 1;
    }
    add_row(table, text);
}

void qr_table_rule(struct qr_table *table)
{
    if (table != NULL)
        add_row(table, NULL);
}

static void print_rule(const struct qr_table *table, FILE *out)
{
    size_t total = 0;
    for (size_t c = 0; c < table->column_count; c++)
        total += table->width[c] + (c > 0 ? strlen(GAP) : 0);
    while (total-- > 0)
        fputc('-', out);
    fputc('\n', out);
}

static void print_row(const struct qr_table *table, const char *cell, FILE *out)
{
    for (size_t c = 0; c < table->column_count; c++) {
        const int length = (int)strcspn(cell, "\t"), width = (int)table->width[c];
        const bool last = cell[length] == 0;
        if (table->columns[c] == 'r')
            fprintf(out, "%*.*s", width, length, cell);
        else
            fprintf(out, "%-*.*s", last ? 0 : width, length, cell);
        if (last)
            break;
        fputs(GAP, out);
        cell += length + 1;
    }
    fputc('\n', out);
}

void qr_table_print(const struct qr_table *table, FILE *out)
{
    if (table == NULL)
        return;
    for (size_t r = 0; r < table->row_count; r++) {
        if (table->rows[r] == NULL)
            print_rule(table, out);
        else
            print_row(table, table->rows[r], out);
    }
}

void qr_table_destroy(struct qr_table **table)
{
    if (table == NULL || *table == NULL)
        return;
    for (size_t r = 0; r < (*table)->row_count; r++)
        free((*table)->rows[r]);
    free((*table)->rows);
    free(*table);
    *table = NULL;
}

const char *qr_text_bytes(char text[QR_TEXT_MAX], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, QR_TEXT_MAX, unit == 0 ? "%.0f %s" : "%.2f %s", bytes, units[unit]);
    return text;
}

const char *qr_text_seconds(char text[QR_TEXT_MAX], double seconds)
{
    if (seconds < 1e-3)
        snprintf(text, QR_TEXT_MAX, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, QR_TEXT_MAX, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, QR_TEXT_MAX, "%.2f s", seconds);
    return text;
}

const char *qr_text_hex(char *text, const uint8_t *data, size_t bytes)
{
    text[0] = 0;
    for (size_t i = 0; i < bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", data[i]);
    return text;
}

double qr_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void qr_progress_begin(struct qr_progress *progress, FILE *out, const char *label, double total)
{
    *progress = (struct qr_progress){out, label, total, qr_seconds(), 0};
}

void qr_progress_update(struct qr_progress *progress, double done)
{
    const double now = qr_seconds();
    if (progress->out == NULL || now - progress->drawn < DRAW_SECONDS)
        return;
    progress->drawn = now;
    const double part =
        progress->total > 0 && done < progress->total ? done / progress->total : 1;
    const int full = (int)(part * BAR_WIDTH);
    char left[QR_TEXT_MAX] = "";
    if (part > 0)
        snprintf(left, sizeof(left), ", %.0f s left",
                 (now - progress->started) * (1 - part) / part);
    fprintf(progress->out, "\r%s [%.*s%*s] %3.0f%%%s \033[K", progress->label, full,
            "##############################", BAR_WIDTH - full, "", part * 100, left);
    fflush(progress->out);
}

void qr_progress_end(struct qr_progress *progress)
{
    if (progress->out != NULL && progress->drawn > 0) {
        fputs("\r\033[K", progress->out);
        fflush(progress->out);
    }
}
