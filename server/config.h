/* SPDX-License-Identifier: Apache-2.0
 *
 * Configuration of quired: one table of options (options.def), filled from
 * defaults < YAML file < environment < flags. Unknown keys are errors that name
 * the nearest known one. Must not know what an option is used for.
 */
#ifndef QR_CONFIG_H
#define QR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/status.h"

enum qr_option {
#define X(key, type, standard, minimum, maximum, prose) QR_OPTION_##key,
#include "options.def"
#undef X
    QR_OPTION_COUNT
};

enum qr_option_type {
    QR_TYPE_SIZE,
    QR_TYPE_DURATION,
    QR_TYPE_COUNT,
    QR_TYPE_BOOL,
    QR_TYPE_CHOICE,
    QR_TYPE_TEXT,
    QR_TYPE_LIST
};

struct qr_option_row {
    const char *key, *standard, *prose;
    enum qr_option_type type;
    uint64_t minimum, maximum;
};
/** Row of an option; static. */
const struct qr_option_row *qr_option_row(enum qr_option option);

#define QR_OPTION_TEXT_MAX 1023

/** "10GiB" to bytes; false: it is no size. */
bool qr_config_size(const char *text, uint64_t *out);

struct qr_option_value {
    uint64_t number;                   /* SIZE: bytes; DURATION: ms; COUNT; BOOL: 0 or 1 */
    char text[QR_OPTION_TEXT_MAX + 1]; /* CHOICE, TEXT; LIST: items joined by commas */
    char origin[288]; /* "default", "FILE:LINE", "environment QUIRE_X", "flag --x" */
};

struct qr_config {
    struct qr_option_value values[QR_OPTION_COUNT];
};

static inline uint64_t qr_config_number(const struct qr_config *config, enum qr_option option)
{
    return config->values[option].number;
}
static inline const char *qr_config_text(const struct qr_config *config, enum qr_option option)
{
    return config->values[option].text;
}
/** Copy item `index` of a LIST to `out`; false past the end. out: QR_OPTION_TEXT_MAX + 1 bytes.
 */
bool qr_config_item(const struct qr_config *config, enum qr_option option, uint32_t index,
                    char *out);

/** Every option at its default. */
void qr_config_defaults(struct qr_config *config);

/**
 * Set one option from text. append: add to a LIST instead of replacing it.
 * Errors: EINVAL naming key, value, origin and what would be right; the option is untouched.
 */
quire_status qr_config_set(struct qr_config *config, enum qr_option option, const char *value,
                           bool append, const char *origin, struct qr_error *e);
/** Option of a key written with - or _; EINVAL naming the nearest key, `origin` in the text. */
quire_status qr_config_find(const char *key, const char *origin, enum qr_option *out,
                            struct qr_error *e);

/** Merge a YAML mapping of `bytes` bytes; `name` is used in messages. Safe on any bytes. */
quire_status qr_config_yaml(struct qr_config *config, const char *text, size_t bytes,
                            const char *name, struct qr_error *e);
/** The same from a file of at most 1 MiB. */
quire_status qr_config_file(struct qr_config *config, const char *path, struct qr_error *e);
/** Merge QUIRE_<KEY> of an environment (NULL-terminated, like environ); other programs'
 * QUIRE_ names and what container platforms inject are left alone. */
quire_status qr_config_environment(struct qr_config *config, char *const *environment,
                                   struct qr_error *e);

/** What the command line asks for besides options. */
struct qr_command {
    bool check, print, version, help;
    int ready_fd; /* -1: none */
    const char
        *file; /* --config, else QUIRE_CONFIG, else NULL; borrowed from argv or environ */
};
/** Read the flags that are no options, --config first of all. */
quire_status qr_command_parse(int argc, char *const *argv, char *const *environment,
                              struct qr_command *out, struct qr_error *e);
/** Merge the flags that are options: --key value, --key=value. */
quire_status qr_config_flags(struct qr_config *config, int argc, char *const *argv,
                             struct qr_error *e);
/** After all layers: options that were not set and follow from others (wire_memory). */
void qr_config_derive(struct qr_config *config);
/** Limits that concern several options. */
quire_status qr_config_check(const struct qr_config *config, struct qr_error *e);

/** Effective values as YAML that quired reads back, with prose, limits, default and origin. */
void qr_config_print(const struct qr_config *config, FILE *out);
/** Usage: flags and options. */
void qr_config_help(FILE *out);

/** Text of a value of this type, in its largest exact unit ("4MiB", "30s"). */
void qr_option_format(enum qr_option_type type, uint64_t number, char *out, size_t size);

#endif
