/* SPDX-License-Identifier: Apache-2.0
 *
 * Options that say how a new session's pages are made, and what its model is: shared by the
 * commands that create sessions.
 */
#ifndef QR_POLICY_ARGS_H
#define QR_POLICY_ARGS_H

#include "args.h"
#include "kv_file.h"
#include "model_file.h"

#define QR_POLICY_ARGS 13
#define QR_MODEL_ARGS 8

/** What the options say; the tables point into it, so it must outlive them. */
struct qr_policy_args {
    const char *key_codec, *value_codec; /* whole specs; NULL: made from the numbers below */
    const char *overrides;               /* NULL: none */
    uint32_t key_bits, value_bits, key_group, value_group;
    int key_axis, value_axis;
    struct quire_policy policy;
    struct qr_arg args[QR_POLICY_ARGS];
};
void qr_policy_args_init(struct qr_policy_args *policy);
/** The policy asked for, NULL when a codec is not understood (e says which word). Without
 * --key-codec: chan, 16 bits raw FP16. */
const struct quire_policy *qr_policy_args_take(struct qr_policy_args *policy,
                                               struct qr_error *e);

/** The model of a new session: a file, or geometry from a K/V file and RoPE from options. */
struct qr_model_args {
    const char *path, *name, *calibration;
    int stored, layout; /* stored -1: not given */
    double theta;
    uint32_t rotary_dim, query_heads;
    struct qr_arg args[QR_MODEL_ARGS]; /* --model first */
};
void qr_model_args_init(struct qr_model_args *model);
/** True when the options describe a model at all. */
bool qr_model_args_given(const struct qr_model_args *model);
/** QR_ARGS_GO, or the exit code of a usage error that says what is missing: for commands whose
 * figures would be wrong with another model's RoPE. */
int qr_model_args_need(struct qr_cli *cli, const struct qr_model_args *model);
/** Make the model. Errors: those of qr_model_file_read; EINVAL. */
quire_status qr_model_args_take(const struct qr_model_args *model, const struct qr_kv_file *kv,
                                struct qr_model_file *out, struct qr_error *e);

#endif
