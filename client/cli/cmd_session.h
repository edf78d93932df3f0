/* SPDX-License-Identifier: Apache-2.0
 *
 * Commands of `quire session` that have a file of their own.
 */
#ifndef QR_CMD_SESSION_H
#define QR_CMD_SESSION_H

#include "commands.h"

int qr_session_export(struct qr_cli *cli, int argc, char **argv);
int qr_session_import(struct qr_cli *cli, int argc, char **argv);

#endif
