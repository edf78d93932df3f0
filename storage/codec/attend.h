/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention on the codes: partial softmax(QK)V over one page, or over FP16
 * rows, accumulated with the running maximum so that any number of parts add
 * up exactly. docs/FORMULAS.md has the formulas and the bound. Pure compute.
 */
#ifndef QR_ATTEND_H
#define QR_ATTEND_H

#include "codec.h"

/** Query rows that share one KV head: every (query head of the group, query position) is a row.
 */
struct qr_attend_queries {
    uint32_t count;            /* rows, >= 1 */
    const float *q;            /* [count][q_stride], already rotated, not scaled */
    size_t q_stride;           /* floats, >= key_dim */
    const uint64_t *positions; /* [count]: absolute position of each row */
    float scale, softcap;      /* softcap 0 = off */
    bool causal;
    uint64_t window;                  /* 0 = off: else t > p - window */
    uint64_t first, last;             /* tokens [first, last) take part, absolute */
    const float *rotation_by_channel; /* NULL, or qr_attend_rotation_by_channel of the page's
                                         rotation: saves a transposition in every call */
};

/** Running state, one per query row; owner: the calling thread. Channels from value_dim up to
 * the next multiple of 16 are scratch. */
struct qr_attend_acc {
    float *max;        /* [count], start -INFINITY */
    float *sum;        /* [count], start 0 */
    float *out;        /* [count][out_stride], start 0; not normalized */
    size_t out_stride; /* floats, >= value_dim, multiple of 16 */
};

/** Scratch bytes a call may use for any page of this shape, 64-byte aligned; for
 * qr_attend_rows, page_tokens is the most rows that a call passes. */
size_t qr_attend_scratch_bytes(uint32_t page_tokens, uint32_t key_dim, uint32_t value_dim,
                               uint32_t count);

/**
 * Lay out a page's rotation (qr_rotation_make) as the kernels on the codes read it: tiles of 32
 * tokens (16 in pages of 16), in each [rotary_dim][tile]. One table serves all layers, heads
 * and calls at these positions; a caller that keeps it saves the calls this work. out: tokens *
 * rotary_dim floats, 64-byte aligned. tokens: of the page.
 */
void qr_attend_rotation_by_channel(const float *rotation, uint32_t tokens, uint32_t rotary_dim,
                                   float *out);

/** Start of an accumulation: nothing seen yet. */
void qr_attend_reset(struct qr_attend_acc *acc, uint32_t count, uint32_t value_dim);

/**
 * Add one KV head (relative to the page's lane) of a validated page.
 * rotation: cos/sin of the page's tokens (qr_rotation_make), NULL when keys need no rotation at
 * read. scratch: qr_attend_scratch_bytes. Threads: any, each with its own acc and scratch.
 */
void qr_attend_page(const struct qr_page_view *page, uint32_t head,
                    const struct qr_attend_queries *queries, const float *rotation,
                    uint32_t rotary_dim, struct qr_attend_acc *acc, void *scratch);

/** The same over `tokens` FP16 rows of one KV head starting at absolute position first_position
 * (tails). */
void qr_attend_rows(const uint16_t *key, size_t key_stride, uint32_t key_dim,
                    const uint16_t *value, size_t value_stride, uint32_t value_dim,
                    uint32_t tokens, uint64_t first_position,
                    const struct qr_attend_queries *queries, const float *rotation,
                    uint32_t rotary_dim, enum qr_rope_layout layout, struct qr_attend_acc *acc,
                    void *scratch);

/** out[count][out_stride] = O, lse[count]; an empty range gives 0 and -INFINITY. */
void qr_attend_finish(const struct qr_attend_acc *acc, uint32_t count, uint32_t value_dim,
                      float *out, size_t out_stride, float *lse);

/** Merge partial b into a: n rows of value_dim floats. out rows contiguous; exact by
 * log-sum-exp, empty partials are neutral. */
void qr_attend_merge(float *out_a, float *lse_a, const float *out_b, const float *lse_b,
                     size_t rows, size_t value_dim);

#endif
