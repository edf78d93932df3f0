/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of commands. Each gets the arguments after `quire`, argv[0] its own word, and
 * gives an exit code. Must not know how commands work.
 */
#ifndef QR_COMMANDS_H
#define QR_COMMANDS_H

#include "cli.h"

typedef int (*qr_command_run)(struct qr_cli *cli, int argc, char **argv);

struct qr_command {
    const char *name, *summary;
    qr_command_run run;
};

int qr_cmd_append(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_attend(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_bench(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_demo(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_eval(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_calibrate(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_fetch(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_flush(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_fsck(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_inspect(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_model(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_session(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_stat(struct qr_cli *cli, int argc, char **argv);
int qr_cmd_tune(struct qr_cli *cli, int argc, char **argv);

/** Run the command that argv[1] names out of a list that ends with a NULL name. prefix: the
 * words before it, "" or "session ". For `quire` itself and for commands of commands. */
int qr_commands_run(struct qr_cli *cli, const struct qr_command *list, const char *prefix,
                    int argc, char **argv);
/** All of `quire`: argv as main got it. */
int qr_commands_main(int argc, char **argv, FILE *out, FILE *err);

#endif
