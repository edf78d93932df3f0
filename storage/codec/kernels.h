/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to storage/codec: the inner loops that exist once per instruction
 * set, and the tables that pick them. Every level gives the same bits as the
 * scalar one. Must not know pages.
 */
#ifndef QR_KERNELS_H
#define QR_KERNELS_H

#include "codec.h"

/** How a row of FP32 values leaves: rotation, conversion, store. */
struct qr_emit {
    const float
        *rotation; /* cos[rotary_dim/2] then sin[rotary_dim/2] of this token; NULL: none */
    uint32_t rotary_dim;
    enum qr_rope_layout layout;
    enum qr_dtype dtype;
    bool stream;
};

struct qr_row_kernels {
    /** out[i] = FP32 of the FP16 in[i]. */
    void (*widen)(const uint16_t *in, uint32_t n, float *out);
    /** Rotate row in place (it is scratch), convert, store `dim` elements at dst. dim is a
     * multiple of 8. Streamed stores need a fence later (fence below). */
    void (*emit)(float *row, uint32_t dim, const struct qr_emit *how, void *dst);
    /** Convert n elements to FP16; index of the first one that FP16 cannot hold, or n. */
    uint32_t (*narrow)(const void *src, enum qr_dtype dtype, uint32_t n, uint16_t *dst);
    /** Sum over rows, in order, of sums of squares of n (multiple of 8) FP16 values: value i
     * goes to lane i % 16 in order, then lanes i and i + 8 add up, i and i + 4, i + 2, i + 1.
     */
    float (*squares)(const uint16_t *in, size_t stride, uint32_t rows, uint32_t n);
    /** Order streamed stores before what follows. */
    void (*fence)(void);
};

/** One group along tokens, all channels of a head: what encode_channels reads and writes. */
struct qr_channel_group {
    const uint16_t *x; /* first token's row; token t at x + t * stride */
    size_t stride;     /* elements */
    uint32_t tokens;   /* = group */
    uint32_t dim, bits;
    const uint8_t *raw; /* raw bitmap of the page */
    uint32_t first;     /* this group's first token in the page */
    uint8_t *codes;     /* first row, rows follow each other */
    uint16_t *scales;   /* dim scales, then dim minima */
};

#define QR_TOKENS_BATCH 16

/** Rows of one head with groups along channels, at most QR_TOKENS_BATCH. */
struct qr_token_batch {
    const uint16_t *x; /* row i at x + i * stride */
    size_t stride;     /* elements */
    uint32_t count, dim, bits, group;
    uint8_t *codes;  /* first row, rows follow each other */
    uint16_t *pairs; /* {scale, minimum} of each group, row by row */
};

struct qr_chan_kernels {
    void (*encode_channels)(const struct qr_channel_group *group);
    void (*encode_tokens)(const struct qr_token_batch *batch);
    /** out = code * scale + minimum; scales: dim FP32 scales, then dim FP32 minima. */
    void (*decode_channels)(const uint8_t *row, uint32_t dim, uint32_t bits,
                            const float *scales, float *out);
    void (*decode_token)(const uint8_t *row, uint32_t dim, uint32_t bits, uint32_t group,
                         const uint16_t *pairs, float *out);
    /** Whole-tensor expansion without the detour over FP32 rows; false: not for this shape or
     * output, nothing was written. NULL: none. */
    bool (*expand_fused)(const struct qr_tensor *tensor, const uint8_t *codes,
                         const uint8_t *scales, const struct qr_expand *to);
};

/** The same two with the hybrid option (chan_hybrid.c), for every instruction set. */
void qr_hybrid_encode_channels(const struct qr_channel_group *group);
void qr_hybrid_encode_tokens(const struct qr_token_batch *batch);

extern const struct qr_row_kernels qr_rows_scalar, qr_rows_avx2, qr_rows_avx512;
extern const struct qr_chan_kernels qr_chan_scalar, qr_chan_avx2, qr_chan_avx512;

/** Kernels of the instruction set in use (qr_isa). */
const struct qr_row_kernels *qr_row_kernels(void);
const struct qr_chan_kernels *qr_chan_kernels(void);

extern const struct qr_codec_ops qr_codec_raw, qr_codec_chan, qr_codec_fp8, qr_codec_lm,
    qr_codec_nuq;

/** Where element (token, head) of the range of `to` goes; both relative to the page. */
static inline void *qr_expand_at(const struct qr_expand *to, uint32_t token, uint32_t head)
{
    return (uint8_t *)to->dst + (token - to->first_token) * to->token_stride +
           (head - to->first_head) * to->head_stride;
}

/** Every row of the range starts at a whole cache line and may bypass the caches. */
static inline bool qr_expand_streams(const struct qr_expand *to)
{
    const uintptr_t mixed = (uintptr_t)to->dst | to->token_stride | to->head_stride;
    return to->stream && mixed % 64 == 0;
}

/** How to emit rows of `token`. */
static inline struct qr_emit qr_expand_emit(const struct qr_expand *to, uint32_t token)
{
    const float *rotation = to->rotation ? to->rotation + (size_t)token * to->rotary_dim : NULL;
    return (struct qr_emit){rotation, to->rotary_dim, to->rope_layout, to->dtype, to->stream};
}

#define QR_APART_BYTES 4160

/**
 * Scratch in `area` (64-byte aligned, what is needed and QR_APART_BYTES more) that starts where
 * a row ends, but for a multiple of 4 KiB. Loads from there do not take the stores of rows at
 * hand for theirs, which CPUs tell by the low 12 bits of the addresses: that costs up to half
 * of the speed.
 */
static inline void *qr_apart(uint8_t *area, const void *row, size_t row_bytes)
{
    const uintptr_t wanted = ((uintptr_t)row + row_bytes + 63) / 64 * 64;
    return area + (wanted - (uintptr_t)area) % 4096;
}

/** Sum of squares of all heads of a token, in the order that README.md fixes. */
float qr_token_squares(const struct qr_rows *rows, uint32_t token, uint32_t heads,
                       uint32_t dim);

/** qr_page_choose_raw for squared norms that are known. */
uint32_t qr_page_choose_by_norms(const struct qr_page_identity *id,
                                 const struct qr_policy *policy, const float *key_norms,
                                 const float *value_norms,
                                 uint8_t bitmap_out[QR_PAGE_TOKENS_MAX / 8]);

/** Number of raw rows before `token`: its index in the raw-row section when it is raw itself.
 */
uint32_t qr_raw_rank(const uint8_t *raw_bitmap, uint32_t token);

/** Expand one FP16 row of `dim` to where (token, head) goes. */
void qr_row_expand(const uint16_t *x, uint32_t dim, uint32_t token, uint32_t head,
                   const struct qr_expand *to);

/** Expand the raw rows of the range of `to` that the bitmap names. */
void qr_raw_rows_expand(uint32_t heads, uint32_t dim, const struct qr_expand *to);

#endif
