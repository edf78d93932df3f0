/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec table: how one tensor (K or V) of one page becomes codes and
 * scales, and back. Scalar reference first, then AVX2 and AVX-512 that give the
 * same bytes. Depends on proto/ alone; must not know sessions, tiers, gRPC.
 */
#ifndef QR_CODEC_H
#define QR_CODEC_H

#include "proto/page.h"

/** One tensor of one page: shape and encoding. */
struct qr_tensor {
    struct qr_codec_spec spec;
    uint32_t tokens, heads, dim;
    const uint16_t *levels; /* encode, nuq: FP16 [2^bits], borrowed; else NULL */
};

/** FP16 rows [tokens][heads][dim]; strides in elements, channel stride 1. Borrowed. */
struct qr_rows {
    const uint16_t *data;
    size_t token_stride, head_stride;
};

/**
 * Where and how to expand. The range is relative to the page; dst is
 * [token_count][head_count][dim] through the strides. Rotation: NULL = none, else cos/sin of
 * the page's tokens, as qr_rotation_make wrote them for token 0 of the page.
 */
struct qr_expand {
    uint32_t first_token, token_count;
    uint32_t first_head, head_count;
    const uint8_t *raw_bitmap; /* of the page */
    const uint16_t *raw_rows;  /* FP16 [raw rows][heads][dim], may be NULL when no bit is set */
    const float *rotation;
    uint32_t rotary_dim;
    enum qr_rope_layout rope_layout;
    enum qr_dtype dtype;
    void *dst;
    size_t token_stride, head_stride; /* bytes */
    bool stream;                      /* non-temporal stores: dst will not be read soon */
};

/** Ops are pure, thread-safe, allocate nothing; lengths were validated before (qr_page_open),
 * so they cannot fail. */
struct qr_codec_ops {
    uint16_t id;
    const char *name;
    /** EINVAL or EUNSUPPORTED, with the offending value, when the tensor cannot be encoded so.
     */
    quire_status (*check)(const struct qr_tensor *tensor, struct qr_error *e);
    /** Encode rows (finite FP16) into codes and scales sections, which are 64-byte aligned; raw
     * rows get code 0. */
    void (*encode)(const struct qr_tensor *tensor, const struct qr_rows *in,
                   const uint8_t *raw_bitmap, uint8_t *codes, uint8_t *scales);
    /** Dequantize, patch raw rows, rotate, convert, store: one pass. docs/FORMULAS.md says each
     * bit. */
    void (*expand)(const struct qr_tensor *tensor, const uint8_t *codes, const uint8_t *scales,
                   const struct qr_expand *to);
};

/** Ops of a codec id for the ISA in use; NULL when the id is unknown. */
const struct qr_codec_ops *qr_codec(uint16_t id);

/** Check that K and V of this identity can be encoded: dims, groups, page_tokens. */
quire_status qr_codec_check(const struct qr_page_identity *id, struct qr_error *e);
/** The same, and that there are level tables where the codecs need them (EINVAL). */
quire_status qr_codec_check_encode(const struct qr_page_identity *id, struct qr_error *e);

/**
 * cos/sin for `tokens` consecutive positions from `first_position`: out[t][0..rd/2) = cos,
 * out[t][rd/2..rd) = sin, times attention_factor. FP32, within 2^-20 of FORMULAS.md's value for
 * every position up to 2^24. out: tokens * rotary_dim floats, 64-byte aligned.
 */
void qr_rotation_make(const struct qr_rope *rope, uint64_t first_position, uint32_t tokens,
                      float *out);

/**
 * Convert to FP16 with round to nearest even. src [tokens][heads][dim], strides in bytes,
 * channel stride 1. dst: FP16 [tokens][heads][dim] with strides in elements. No byte of dst is
 * meaningful on failure. Errors: EVALUE, with position (0-based token of this call), head,
 * channel in `e`: NaN, infinity, or rounds past 65504.
 */
quire_status qr_rows_convert(const void *src, enum qr_dtype dtype, size_t token_stride,
                             size_t head_stride, uint32_t tokens, uint32_t heads, uint32_t dim,
                             uint16_t *dst, size_t dst_token_stride, size_t dst_head_stride,
                             struct qr_error *e);
/** FP16 [tokens][heads][dim] (strides in elements) to dtype, rotated when rotation is not NULL:
 * how tails are delivered. */
void qr_rows_expand(const struct qr_rows *in, uint32_t tokens, uint32_t heads, uint32_t dim,
                    const struct qr_expand *to);

/** Digest of one token of a lane: u32 as QR_SECTION_ROW_DIGESTS says; k, v: [heads][dim]
 * contiguous FP16. */
uint32_t qr_row_digest(const uint16_t *k, size_t k_elements, const uint16_t *v,
                       size_t v_elements);

/* ---- whole pages
 * -------------------------------------------------------------------------------------------
 */

/**
 * Choose raw rows: the first sink_rows positions of the session, then up to outlier_rows tokens
 * by the rule of storage/codec/README.md (norm of K or V far from the page's median).
 * bitmap_out: zeroed and set. Returns their number.
 */
uint32_t qr_page_choose_raw(const struct qr_page_identity *id, const struct qr_policy *policy,
                            const struct qr_rows *key, const struct qr_rows *value,
                            uint8_t bitmap_out[QR_PAGE_TOKENS_MAX / 8]);

/** Most bytes that qr_page_encode can need for any content. */
size_t qr_page_bytes_max(const struct qr_page_identity *id, const struct qr_policy *policy);

/**
 * Encode a whole page: choose raw rows, codes, scales, raw rows, digests, header, checksum.
 * key, value: page_tokens rows, heads and dims of `id`. page: 64-byte aligned, capacity >=
 * qr_page_bytes_max. Deterministic: same input, same bytes, on every ISA. bytes_out: length of
 * the page.
 */
quire_status qr_page_encode(const struct qr_page_identity *id, const struct qr_policy *policy,
                            const struct qr_rows *key, const struct qr_rows *value, void *page,
                            size_t capacity, size_t *bytes_out, struct qr_error *e);

/** What qr_page_survey learns of a token: sums of squares, and the digest of its rows. */
struct qr_token_survey {
    float key_squares, value_squares;
    uint32_t digest;
};

/** Look at the page_tokens rows of a block: out[page_tokens]. False when a NaN or an infinity
 * is among them. Any thread; pure. */
bool qr_page_survey(const struct qr_page_identity *id, const struct qr_rows *key,
                    const struct qr_rows *value, struct qr_token_survey *out);

/** Rows of a block that were surveyed. */
struct qr_surveyed {
    const struct qr_page_identity *id;
    const struct qr_policy *policy;
    const struct qr_rows *key, *value;
    const struct qr_token_survey *survey; /* of these very rows */
};

/** qr_page_encode for rows that were surveyed before; the same bytes come out. */
quire_status qr_page_encode_surveyed(const struct qr_surveyed *rows, void *page,
                                     size_t capacity, size_t *bytes_out, struct qr_error *e);

enum qr_which { QR_KEY = 0, QR_VALUE = 1 };
/** Expand K or V of a validated page; fills raw_bitmap and raw_rows of `to` itself (other
 * fields are the caller's). */
void qr_page_expand(const struct qr_page_view *page, enum qr_which which,
                    const struct qr_expand *to);

#endif
