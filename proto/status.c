/* SPDX-License-Identifier: Apache-2.0
 *
 * Names, texts and gRPC codes of the status table; formatting of qr_error.
 */
#include "status.h"
#undef qr_error_set /* status.h, for the analyzer */

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct status_row {
    const char *name, *text;
    int grpc, retry;
};

static const struct status_row rows[QUIRE_STATUS_COUNT] = {
#define X(name, number, grpc, retry, text) [number] = {"QUIRE_" #name, text, grpc, retry},
#include "status.def"
#undef X
};

static const struct status_row *row_of(quire_status status)
{
    static const struct status_row unknown = {"QUIRE_UNKNOWN", "unknown status", 2, 0};
    return status >= 0 && status < QUIRE_STATUS_COUNT ? &rows[status] : &unknown;
}

const char *qr_status_text(quire_status status)
{
    return row_of(status)->text;
}

const char *qr_status_name(quire_status status)
{
    return row_of(status)->name;
}

int qr_status_grpc(quire_status status)
{
    return row_of(status)->grpc;
}

int qr_status_retryable(quire_status status)
{
    return row_of(status)->retry;
}

quire_status qr_error_set(struct qr_error *e, quire_status status, const char *format, ...)
{
    if (!e)
        return status;

    va_list args;
    memset(e, 0, sizeof(*e));
    e->status = status;
    va_start(args, format);
    vsnprintf(e->text, sizeof(e->text), format, args);
    va_end(args);
    return status;
}
