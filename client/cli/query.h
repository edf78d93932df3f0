/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries of a K/V file as attend wants them: FP32, rotated by the session's own RoPE table.
 */
#ifndef QR_QUERY_H
#define QR_QUERY_H

#include "kv_file.h"
#include "proto/model.h"

/** One layer of a session: geometry, and the table to rotate with. */
struct qr_query_layer {
    struct quire_layers layer;
    bool rotates; /* false: keys are not rotated at read, queries are used as they are */
    struct qr_rope rope;
};

/** Look a layer up. Errors: those of quire_session_layer and quire_session_rope. */
quire_status qr_query_layer_get(const quire_session *session, uint32_t layer,
                                struct qr_query_layer *out);

/**
 * Rows [count][query_heads][key_dim] of `query`, from its row `first` on, into out; the first
 * stands at `position`. rotate: apply the layer's RoPE.
 */
void qr_query_rows(const struct qr_safetensor *query, enum quire_dtype dtype, uint64_t first,
                   uint32_t count, uint64_t position, const struct qr_rope *rotate, float *out);

#endif
