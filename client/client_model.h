/* SPDX-License-Identifier: Apache-2.0
 *
 * The public description of a model -> the checked, sealed one.
 */
#ifndef QR_CLIENT_MODEL_H
#define QR_CLIENT_MODEL_H

#include "proto/model.h"
#include "quire.h"

/** Check, compute the RoPE tables, seal. EINVAL and ENOMEM name field and value; *to is then
 * undefined. */
quire_status qr_client_model_from(const struct quire_model *from, struct qr_model *to,
                                  struct qr_error *e);
/** Register a sealed model; the server must compute the same fingerprint. Failure becomes the
 * thread's last error. */
quire_status qr_client_model_send(quire_client *client, const struct qr_model *model);

#endif
