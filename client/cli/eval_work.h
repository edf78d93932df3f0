/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to eval_*.c: what judging one layer keeps in memory. eval_layer.c owns it and fills
 * it, eval_attend.c reads it.
 */
#ifndef QR_EVAL_WORK_H
#define QR_EVAL_WORK_H

#include "eval_kernels.h"
#include "eval_layer.h"

#include "storage/codec/codec.h"

#include <stdbool.h>

#define QR_EVAL_BLOCK 32u  /* query rows at a time */
#define QR_EVAL_CONSUMED 5 /* score, softmax, output of keys; of values; of both */

/** Keys and values of one KV head in FP32, as the products read them: keys transposed, in
 * panels of QR_EVAL_PANEL tokens [key_dim][QR_EVAL_PANEL]; values [tokens][value_stride]. NULL:
 * as in the originals. */
struct qr_eval_matrix {
    float *key, *value;
};

/** A thread's own rows. */
struct qr_eval_scratch {
    float *score, *weight, *other; /* [QR_EVAL_BLOCK][token_stride] */
    float *output, *changed;       /* [QR_EVAL_BLOCK][value_stride] */
    float *stored, *original;      /* a page of one head */
};

struct qr_eval_work {
    const struct qr_eval_rows *rows;
    const struct qr_eval_variant *variants;
    const struct qr_eval_kernels *kernels;
    uint32_t count, threads;
    size_t token_stride, value_stride; /* padded tokens, padded value_dim */
    uint16_t *turned;                  /* FP16 keys after RoPE, NULL: no variant stores them */
    float *rotation;                   /* [tokens][rotary_dim], NULL: no RoPE */
    uint8_t ***pages;                  /* [count][page]; owned */
    /* of the KV head in hand */
    uint32_t head;
    struct qr_eval_matrix original, *encoded; /* encoded: [count] */
    struct qr_eval_sum *stored;   /* [count][pages][2]: keys, values; pages of the smallest */
    struct qr_eval_sum *consumed; /* [query heads of the head x blocks][count][CONSUMED] */
    struct qr_eval_scratch *scratch; /* [threads] */
};

/** `count` zeroed pieces of `bytes`, 64-byte aligned; NULL: no memory. Release with free. */
void *qr_eval_get(size_t count, size_t bytes);
/** Pages of a variant, and of the variant that has most. */
uint32_t qr_eval_pages(const struct qr_eval_work *work, uint32_t variant);
uint32_t qr_eval_most_pages(const struct qr_eval_work *work);
/** The FP16 keys that a variant encodes (NULL: the file's), and the values, from `token` on. */
struct qr_rows qr_eval_key_rows(const struct qr_eval_work *work,
                                const struct qr_eval_variant *variant, uint32_t token);
struct qr_rows qr_eval_value_rows(const struct qr_eval_work *work, uint32_t token);
/** Have keys from `token` on rotated when they are expanded, where the model rotates. */
void qr_eval_rotate(const struct qr_eval_work *work, uint32_t token, struct qr_expand *to);
/** The view of an encoded page; its header is NULL when the page is not valid. */
void qr_eval_open_page(const struct qr_eval_work *work, uint32_t variant, uint32_t page,
                       struct qr_page_view *view);

/** Judge all variants on one KV head; cells: [count][kv_heads]. */
void qr_eval_head(struct qr_eval_work *work, uint32_t head, struct qr_eval_cell *cells);
/** A unit of qr_eval_parallel: one block of queries of one query head of the KV head. */
void qr_eval_attend_block(void *work, size_t unit, uint32_t worker);
/** Blocks of queries. */
uint32_t qr_eval_blocks(const struct qr_eval_rows *rows);

#endif
