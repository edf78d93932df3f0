/* SPDX-License-Identifier: Apache-2.0
 *
 * The demonstration in steps: what it is run on, what it measured. cmd_demo.c has the command
 * line and the table, demo_run.c the steps, demo_error.c the comparison with the reference.
 */
#ifndef QR_DEMO_H
#define QR_DEMO_H

#include "cli.h"
#include "kv_file.h"
#include "policy_args.h"

#define QR_DEMO_DECODE 128 /* tokens appended one at a time */

struct qr_demo_layer {
    double output_error, key_error, value_error; /* relative Frobenius */
};

struct qr_demo {
    /* asked for */
    const char *path, *session_name;
    uint32_t block, repeats,
        stride; /* prefill tokens a call; fetches; reference every n-th query */
    bool keep;
    struct qr_policy_args policy;
    struct qr_model_args model;
    /* run on */
    struct qr_kv_file kv;
    uint32_t tokens, layers, query_heads, kv_heads, key_dim, value_dim;
    struct qr_rope *rope; /* NULL: none */
    quire_session *session;
    /* got back */
    uint8_t *key, *value; /* FP16 [layers][tokens][kv_heads][dim], rotated */
    float *query;         /* [layers][tokens][query_heads][key_dim], rotated */
    float *output;        /* [layers][tokens][query_heads][value_dim] */
    float *lse;           /* [layers][tokens][query_heads] */
    /* measured */
    struct quire_session_info info;
    double prefill_bytes, prefill_seconds, fp16_bytes;
    double fetch_seconds, memcpy_seconds, attend_seconds;
    double ping_seconds, decode_seconds; /* medians */
    uint32_t reference_queries;
    double output_error, lse_mean_error, lse_largest_error;
    struct qr_demo_layer layer[QR_KV_LAYERS_MAX];
};

/** Open, append, fetch, attend. Gives an exit code; failures are reported. */
int qr_demo_run(struct qr_cli *cli, struct qr_demo *demo);
/** Compare what came back with the reference. */
int qr_demo_compare(struct qr_cli *cli, struct qr_demo *demo);

#endif
