/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats a log line in a buffer on the stack, then writes it at once. Nothing
 * is allocated and no lock is held, so that any thread may log from anywhere.
 */
#include "log.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static _Atomic int log_level = QR_LOG_INFO;
static _Atomic int log_format = QR_LOG_TEXT;
static _Atomic int log_fd = STDERR_FILENO;

struct line {
    char bytes[QR_LOG_LINE_MAX];
    size_t used;
    bool full; /* a field did not fit: nothing more is added */
};

void qr_log_configure(enum qr_log_level level, enum qr_log_format format, int fd)
{
    atomic_store(&log_level, (int)level);
    atomic_store(&log_format, (int)format);
    atomic_store(&log_fd, fd);
}

bool qr_log_level_parse(const char *name, enum qr_log_level *out)
{
    for (size_t i = 0; i < sizeof(level_names) / sizeof(level_names[0]); i++) {
        if (strcmp(name, level_names[i]) == 0) {
            *out = (enum qr_log_level)i;
            return true;
        }
    }
    return false;
}

/* Two bytes stay free for the closing brace and the newline. */
static void put(struct line *line, const char *bytes, size_t n)
{
    if (line->full || line->used + n > sizeof(line->bytes) - 2) {
        line->full = true;
        return;
    }
    memcpy(line->bytes + line->used, bytes, n);
    line->used += n;
}

static void put_text(struct line *line, const char *text)
{
    put(line, text, strlen(text));
}

static void put_quoted(struct line *line, const char *text)
{
    put(line, "\"", 1);
    for (const char *c = text ? text : ""; *c; c++) {
        char escaped[8];
        if (*c == '"' || *c == '\\') {
            escaped[0] = '\\';
            escaped[1] = *c;
            put(line, escaped, 2);
        } else if ((unsigned char)*c < 0x20 || (unsigned char)*c == 0x7f) {
            snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)(unsigned char)*c);
            put_text(line, escaped);
        } else {
            put(line, c, 1);
        }
    }
    put(line, "\"", 1);
}

static void put_value(struct line *line, const struct qr_log_field *field)
{
    char number[64];

    if (field->kind == QR_LOG_KIND_STR) {
        put_quoted(line, field->text);
        return;
    }
    if (field->kind == QR_LOG_KIND_U64)
        snprintf(number, sizeof(number), "%" PRIu64, field->number);
    else
        snprintf(number, sizeof(number), "%.6g", field->real);
    put_text(line, number);
}

/* A field goes in whole or not at all, so that a cut line is still well formed. */
static void put_field(struct line *line, const struct qr_log_field *field, bool json)
{
    const size_t before = line->used;

    put_text(line, json ? ",\"" : " ");
    put_text(line, field->key);
    put_text(line, json ? "\":" : "=");
    put_value(line, field);
    if (line->full)
        line->used = before;
}

static void put_time(struct line *line)
{
    const uint64_t now_us = qr_clock_wall_us();
    const time_t seconds = (time_t)(now_us / 1000000u);
    struct tm utc;
    char text[64];

    (void)gmtime_r(&seconds, &utc);
    size_t n = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, sizeof(text) - n, ".%06uZ", (unsigned)(now_us % 1000000u));
    put_text(line, text);
}

void qr_log_write(enum qr_log_level level, const char *event, const struct qr_log_field *fields,
                  size_t count)
{
    if ((int)level < atomic_load(&log_level))
        return;

    const bool json = atomic_load(&log_format) == QR_LOG_JSON;
    struct line line = {.used = 0};
    put_text(&line, json ? "{\"time\":\"" : "time=");
    put_time(&line);
    put_text(&line, json ? "\",\"level\":\"" : " level=");
    put_text(&line, level_names[level]);
    put_text(&line, json ? "\",\"event\":" : " event=");
    put_quoted(&line, event);
    for (size_t i = 0; i < count; i++)
        put_field(&line, &fields[i], json);
    if (json)
        line.bytes[line.used++] = '}';
    line.bytes[line.used++] = '\n';
    /* A log that cannot be written has nowhere to complain. */
    ssize_t written = write(atomic_load(&log_fd), line.bytes, line.used);
    (void)written;
}
