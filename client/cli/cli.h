/* SPDX-License-Identifier: Apache-2.0
 *
 * What every command of `quire` shares: where it prints, how it was asked to print, the
 * connection, the exit codes, and the ways to fail. Must not know any command.
 */
#ifndef QR_CLI_H
#define QR_CLI_H

#include "client/quire.h"
#include "proto/status.h"

#include <cjson/cJSON.h>
#include <stdio.h>

/** Exit codes, documented in quire(1). */
enum qr_exit {
    QR_EXIT_OK = 0,
    QR_EXIT_FAILED = 1,      /* the server or a file said no */
    QR_EXIT_USAGE = 2,       /* the command line is wrong */
    QR_EXIT_UNAVAILABLE = 3, /* the server is not reachable, or did not answer in time */
    QR_EXIT_INCOMPLETE = 4   /* tokens are missing or damaged; what is there was delivered */
};

/** One run of the tool; owner: its thread. */
struct qr_cli {
    FILE *out, *err;
    const char *command;
    const char *server; /* unix:/path or host:port */
    uint32_t timeout_ms;
    uint32_t receipts;    /* measure one in so many pages that are sealed here; 0: none */
    bool json;            /* one JSON object on `out` instead of prose and tables */
    bool quiet;           /* no progress, no remarks */
    bool terminal;        /* `err` is a terminal: progress is drawn */
    quire_client *client; /* NULL until qr_cli_connect */
};

/** Say what went wrong, as text on `err` and with --json as an object on `out`; gives the
 * exit code of `status`. */
int qr_cli_fail(struct qr_cli *cli, quire_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** The same for the calling thread's last libquire failure: "what: its text". */
int qr_cli_fail_call(struct qr_cli *cli, quire_status status, const char *what);
/** Exit code for a failed call. */
int qr_cli_exit_of(quire_status status);
/** Connect to cli->server unless connected. Gives QR_EXIT_OK, or the exit code with the
 * failure reported. */
int qr_cli_connect(struct qr_cli *cli);
/** Connect and open a session; options NULL: for reading. The same. */
int qr_cli_open(struct qr_cli *cli, const char *name, const struct quire_open_options *options,
                quire_session **out);
/** A wrong command line: message and a pointer to --help. Gives QR_EXIT_USAGE. */
int qr_cli_fail_usage(struct qr_cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** A remark on `err`, unless --quiet or --json. */
void qr_cli_remark(struct qr_cli *cli, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Print an object on `out` and release it. Gives QR_EXIT_OK. */
int qr_cli_print_json(struct qr_cli *cli, cJSON *object);
/** Add printf-style text to a JSON object. */
void qr_cli_json_text(cJSON *object, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
