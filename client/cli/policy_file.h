/* SPDX-License-Identifier: Apache-2.0
 *
 * A policy as a JSON file (README.md shows one): what `quire tune` writes and `quire append
 * --policy` takes. Every mistake is named by its key; unknown keys are errors. Must not know
 * how policies are found or used.
 */
#ifndef QR_POLICY_FILE_H
#define QR_POLICY_FILE_H

#include "client/quire.h"
#include "proto/model.h"

#include <cjson/cJSON.h>

#define QR_POLICY_FORMAT "quire.policy"
#define QR_POLICY_VERSION 1

/** Read and check a file. Errors: EIO; EINVAL, with the key and what it must be; EUNSUPPORTED
 * (a version, a codec). */
quire_status qr_policy_file_read(const char *path, struct quire_policy *out,
                                 struct qr_error *e);
/** The same from text. */
quire_status qr_policy_file_parse(const char *text, struct quire_policy *out,
                                  struct qr_error *e);

/** A policy as the JSON of such a file. NULL: no memory. */
cJSON *qr_policy_file_json(const struct qr_policy *policy);
/** Write it, whole or not at all. Errors: EIO. */
quire_status qr_policy_file_write(const char *path, const cJSON *json, struct qr_error *e);

#endif
