/* SPDX-License-Identifier: Apache-2.0
 *
 * What encodings do to one layer: its keys and values are encoded as pages, expanded again,
 * and attended to with the layer's own queries; every quantity of the report is compared with
 * the same quantity of the FP16 originals. Attention goes block by block of queries, so no
 * matrix of all tokens by all tokens exists. Must not know files, reports or servers.
 *
 * Source of the metrics: docs/FORMULAS.md, "Error report".
 */
#ifndef QR_EVAL_LAYER_H
#define QR_EVAL_LAYER_H

#include "eval_sum.h"
#include "proto/model.h"

#define QR_EVAL_NAME_MAX 192

/** What is compared. Keys alone: values are the originals; values alone: the attention
 * weights are. */
enum qr_eval_quantity {
    QR_EVAL_KEY_STORED,  /* as stored: before RoPE unless `after_rope` */
    QR_EVAL_KEY_SCORE,   /* scale <q, k>, causal entries */
    QR_EVAL_KEY_SOFTMAX, /* attention weights, causal entries */
    QR_EVAL_KEY_OUTPUT,  /* attention output */
    QR_EVAL_VALUE_STORED,
    QR_EVAL_VALUE_OUTPUT,
    QR_EVAL_BOTH_OUTPUT, /* attention output of encoded keys and values */
    QR_EVAL_QUANTITIES
};

/** One encoding to be judged. */
struct qr_eval_variant {
    char name[QR_EVAL_NAME_MAX];
    struct qr_policy policy;
    bool after_rope; /* encode keys after RoPE, though the file has them before */
    /** A query sees pages only where a session had sealed them: whole pages older than the
     * policy's window; the rest is FP16. Else every token is encoded, window or not. */
    bool served;
};

/** Bytes of the pages of a layer. */
struct qr_eval_bytes {
    uint64_t key, value;                   /* codes, scales, raw rows */
    uint64_t page;                         /* whole pages: headers and digests, too */
    uint64_t key_elements, value_elements; /* that these hold */
};

/** One layer: rows [tokens][heads][dim], contiguous, borrowed. */
struct qr_eval_rows {
    const uint16_t *key, *value; /* FP16, finite */
    const float *query;          /* [queries]: of the last `queries` tokens, rotated */
    uint32_t tokens;             /* a multiple of every variant's page_tokens */
    uint32_t queries;            /* 1 .. tokens */
    uint32_t query_heads, kv_heads, key_dim, value_dim;
    uint32_t layer;                           /* of the model */
    const struct qr_calibration *calibration; /* level tables of nuq; NULL: none */
    const struct qr_rope *rope; /* of keys that are before RoPE; NULL: keys are as attended */
};

/** Sums of one variant and KV head, its query heads together. */
struct qr_eval_cell {
    struct qr_eval_sum sum[QR_EVAL_QUANTITIES];
};

/**
 * Judge `count` variants. cells: [count][kv_heads], bytes: [count], both zeroed here. Queries
 * attend to all tokens up to their own with scale 1 / sqrt(key_dim). `threads`: 1 ..
 * QR_EVAL_THREADS_MAX; results do not depend on it. Memory: the pages of the layer, and for one
 * KV head and each variant 4 bytes an element. Errors: EINVAL, EUNSUPPORTED (policy or dims),
 * ENOMEM.
 */
quire_status qr_eval_layer(const struct qr_eval_rows *rows,
                           const struct qr_eval_variant *variants, uint32_t count,
                           uint32_t threads, struct qr_eval_cell *cells,
                           struct qr_eval_bytes *bytes, struct qr_error *e);

#endif
