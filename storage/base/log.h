/* SPDX-License-Identifier: Apache-2.0
 *
 * Structured log: one event per line on a file descriptor, as key=value or as
 * JSON. A line is one write(2), so lines of several threads do not mix. Must
 * not know who logs; values are data, never a format.
 *
 *   QR_LOG(QR_LOG_INFO, "session.opened", QR_LOG_STR("name", name), QR_LOG_U64("epoch", 3));
 */
#ifndef QR_LOG_H
#define QR_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum qr_log_level { QR_LOG_DEBUG = 0, QR_LOG_INFO = 1, QR_LOG_WARN = 2, QR_LOG_ERROR = 3 };
enum qr_log_format { QR_LOG_TEXT = 0, QR_LOG_JSON = 1 };

#define QR_LOG_LINE_MAX 2048 /* longer lines lose their last fields */

enum qr_log_kind { QR_LOG_KIND_STR, QR_LOG_KIND_U64, QR_LOG_KIND_F64 };

struct qr_log_field {
    const char *key; /* [a-z0-9_.]+ */
    enum qr_log_kind kind;
    const char *text; /* NULL is written as an empty string */
    uint64_t number;
    double real;
};

#define QR_LOG_STR(k, v)                                                                       \
    (struct qr_log_field)                                                                      \
    {                                                                                          \
        .key = (k), .kind = QR_LOG_KIND_STR, .text = (v)                                       \
    }
#define QR_LOG_U64(k, v)                                                                       \
    (struct qr_log_field)                                                                      \
    {                                                                                          \
        .key = (k), .kind = QR_LOG_KIND_U64, .number = (v)                                     \
    }
#define QR_LOG_F64(k, v)                                                                       \
    (struct qr_log_field)                                                                      \
    {                                                                                          \
        .key = (k), .kind = QR_LOG_KIND_F64, .real = (v)                                       \
    }

/** Log an event with at least one field. */
#define QR_LOG(level, event, ...)                                                              \
    qr_log_write((level), (event), (const struct qr_log_field[]){__VA_ARGS__},                 \
                 sizeof((const struct qr_log_field[]){__VA_ARGS__}) /                          \
                     sizeof(struct qr_log_field))

/** Set level, format and descriptor (default: INFO, TEXT, 2). Any time, any thread. */
void qr_log_configure(enum qr_log_level level, enum qr_log_format format, int fd);
/** "debug", "info", "warn", "error" to a level; false when it is none of them. */
bool qr_log_level_parse(const char *name, enum qr_log_level *out);
/** Write one line when `level` is high enough. event: what happened, dotted, past tense. */
void qr_log_write(enum qr_log_level level, const char *event, const struct qr_log_field *fields,
                  size_t count);

#endif
