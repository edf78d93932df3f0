/* SPDX-License-Identifier: Apache-2.0
 *
 * What the answers should be: RoPE by docs/FORMULAS.md, attention in FP64 over the original
 * keys and values, and the error metrics of the tables. Slow and plain on purpose. Must not
 * know sessions, servers or codecs.
 */
#ifndef QR_REFERENCE_H
#define QR_REFERENCE_H

#include "client/quire.h"
#include "proto/model.h"

/** Element `index` of a row of dtype, as FP32 (exact). */
float qr_reference_element(const void *row, enum quire_dtype dtype, size_t index);

/** Sums over pairs of a value and its reference. */
struct qr_deviation {
    double error_squares, reference_squares, largest, largest_reference;
};
void qr_deviation_add(struct qr_deviation *sum, double value, double reference);
/** ||e|| / ||x||; 0 when nothing was added. */
double qr_deviation_frobenius(const struct qr_deviation *sum);

/** Rotate `heads` rows of `dim` floats that stand at `position`, in place. */
void qr_reference_rotate(const struct qr_rope *rope, uint64_t position, uint32_t heads,
                         uint32_t dim, float *rows);

/** One layer, as the caller's file has it: rows [tokens][heads][dim], contiguous. */
struct qr_reference_layer {
    const void *key, *value, *query;
    enum quire_dtype dtype;
    uint32_t query_heads, kv_heads, key_dim, value_dim;
    const struct qr_rope *rope; /* NULL: keys and queries are used as they are */
};

/** FP64 copies of a layer's keys (rotated) and values. */
struct qr_reference;

/** Expand tokens [0, tokens) of a layer. Errors: ENOMEM. */
quire_status qr_reference_create(const struct qr_reference_layer *layer, uint32_t tokens,
                                 struct qr_reference **out, struct qr_error *e);
/**
 * Causal attention of the query at `position` (rotated FP32 rows [query_heads][key_dim]):
 * output [query_heads][value_dim], lse [query_heads].
 */
void qr_reference_attend(struct qr_reference *reference, const float *query, uint32_t position,
                         double *output, double *lse);
/** FP16 rows [tokens][kv_heads][dim] as they were fetched, against the layer's own. */
void qr_reference_stored(const struct qr_reference *reference, const void *key,
                         const void *value, struct qr_deviation *key_sum,
                         struct qr_deviation *value_sum);
void qr_reference_destroy(struct qr_reference **reference);

#endif
