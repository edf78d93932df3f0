/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines from tables: each command declares its options, the parser fills variables
 * and the help text is made from the same table. Must not know what options mean.
 */
#ifndef QR_ARGS_H
#define QR_ARGS_H

#include "cli.h"

enum qr_arg_kind {
    QR_ARG_FLAG,   /* bool */
    QR_ARG_TEXT,   /* const char * */
    QR_ARG_U32,    /* uint32_t */
    QR_ARG_U64,    /* uint64_t; Ki, Mi, Gi may follow */
    QR_ARG_I64,    /* int64_t */
    QR_ARG_REAL,   /* double, finite */
    QR_ARG_CHOICE, /* int: the value beside the name chosen */
    QR_ARG_LIST    /* struct qr_arg_list: the option may be repeated */
};

#define QR_ARG_LIST_MAX 64
/** Texts of an option that was given several times, in order; they point into argv. */
struct qr_arg_list {
    const char *items[QR_ARG_LIST_MAX];
    size_t count;
};

struct qr_choice {
    const char *name; /* NULL ends the list */
    int value;
};

struct qr_arg {
    const char *name; /* without the dashes */
    enum qr_arg_kind kind;
    void *out;         /* of the kind's type; untouched when the option is not given */
    const char *value; /* what the help calls the value */
    const char *help;
    const struct qr_choice *choices; /* CHOICE only */
};

#define QR_ARG_GROUPS_MAX 4
#define QR_ARG_OPTIONS_MAX 64

/** One command's line. Operands beyond the options: operands_min to operands_max of them. */
struct qr_synopsis {
    const char *operands; /* "SESSION FILE", for the help */
    const char *about;    /* a paragraph for the help */
    int operands_min, operands_max;
    struct {
        const char *title; /* NULL: plain options */
        const struct qr_arg *args;
        size_t count;
    } groups[QR_ARG_GROUPS_MAX];
};

#define QR_ARGS_GO (-1) /* no exit code: go on */

/**
 * Parse argv[1..]; argv[0] is the command's word. Common options (--server, --timeout, --json,
 * --quiet, --help) are understood by all commands and go to `cli`. Gives QR_ARGS_GO with
 * *operands_out into argv, or the exit code to end with (help printed, or the mistake named).
 */
int qr_args_parse(struct qr_cli *cli, const struct qr_synopsis *synopsis, int argc, char **argv,
                  char ***operands_out);
/** As many operands as were given after the last qr_args_parse. */
int qr_args_count(char **operands);

#endif
