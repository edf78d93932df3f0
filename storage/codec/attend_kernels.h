/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to attention: the loops that exist once per instruction set, and the
 * source of keys and values that the driver (attend.c) runs them over. Kernels
 * know neither pages nor positions, only tiles of FP32 and packed codes.
 */
#ifndef QR_ATTEND_KERNELS_H
#define QR_ATTEND_KERNELS_H

#include "attend.h"

#define QR_ATTEND_ROWS 16u /* query rows taken at a time */
#define QR_ATTEND_TILE 32u /* tokens of a tile of qr_attend_rotation_by_channel */
/* Scratch of the key kernels. */
#define QR_ATTEND_TILE_BYTES (40960u + QR_ATTEND_TILE * QR_DIM_MAX * 4u)
#define QR_ATTEND_BLOCK 32u /* tokens expanded at a time where codes are not used directly */

/* Floats from query row to query row: constant, so that kernels need one pointer for all rows,
 * and off the powers of two, which would put them into the same cache sets. */
#define QR_ATTEND_Q_STRIDE (QR_DIM_MAX + 32u)

static inline uint32_t qr_attend_round16(uint32_t n)
{
    return (n + 15u) & ~15u;
}

/**
 * Some query rows and where their scores and outputs go. Dims are rounded up to 16, and the
 * padding of q and of FP32 key and value rows is zero.
 */
struct qr_attend_part {
    uint32_t rows; /* 1 .. QR_ATTEND_ROWS */
    uint32_t key_dim, value_dim;
    const float *q; /* [rows][QR_ATTEND_Q_STRIDE] */
    float *z; /* [rows][z_stride]: raw scores, then weights; column = token of the source */
    size_t z_stride; /* multiple of 16 */
    float *out;      /* [rows][out_stride] */
    size_t out_stride;
    uint8_t *scratch; /* the source's own, 64-byte aligned */
};

/** Rows that kernels read: FP32, or FP16 as they are stored. Readable up to the rounded dim. */
struct qr_attend_block {
    const void *data;
    size_t stride; /* elements from token to token */
    bool half;     /* FP16 */
};

/** Softmax of one row over columns [first, last), both multiples of 16. */
struct qr_attend_softmax {
    float scale, softcap;
    uint32_t first, last;
    uint32_t low, high; /* columns that this row sees; all others get weight 0 */
    float max, sum;     /* running, updated */
    float rescale;      /* set: what the old output is to be multiplied by */
};

/** Keys of one head, 2 or 4 bits per channel. */
struct qr_attend_key_codes {
    const uint8_t *codes;   /* [tokens][row_bytes] */
    const uint16_t *scales; /* [tokens / group][2][dim] FP16 */
    uint32_t dim, bits, group, row_bytes;
    const float *rotation; /* [tokens][rotary_dim]: cosines, then sines; NULL: none */
    const float
        *by_channel;     /* the same as qr_attend_rotation_by_channel lays it out, or NULL */
    uint32_t rotary_dim; /* 0: no rotation */
    const uint8_t *prefetch;        /* what will be read after the scores, row_bytes a token */
    const uint8_t *prefetch_scales; /* and its scales */
    uint32_t prefetch_scales_bytes; /* a token */
    enum qr_rope_layout layout;
};

/** Values of one head, 2 or 4 bits per token. */
struct qr_attend_value_codes {
    const uint8_t *codes;   /* [tokens][row_bytes] */
    const uint16_t *scales; /* [tokens][groups][2] FP16 */
    uint32_t dim, bits, group, groups, row_bytes;
    bool plain; /* do as on a CPU without VNNI: the bits are the same */
};

struct qr_attend_kernels {
    /** z[row][first + t] = <q_row, key_t>. */
    void (*scores)(const struct qr_attend_part *part, uint32_t first, uint32_t tokens,
                   const struct qr_attend_block *key);
    /** Scores to weights in place, running maximum and sum updated. */
    void (*softmax)(float *z, struct qr_attend_softmax *s);
    /** out[row] += sum of z[row][first + t] value_t. */
    void (*add)(const struct qr_attend_part *part, uint32_t first, uint32_t tokens,
                const struct qr_attend_block *value);
    /** FP16 row to FP32, rotated when rotation (cosines, then sines) is not NULL. */
    void (*load)(const uint16_t *row, uint32_t dim, const float *rotation, uint32_t rotary_dim,
                 enum qr_rope_layout layout, float *out);
    /** x[i] *= factor, n a multiple of 16. */
    void (*scale)(float *x, uint32_t n, float factor);
    /** qr_attend_rotation_by_channel for whole tiles, rotary_dim a multiple of 4; NULL: use the
     * plain loop. */
    void (*tile_rotation)(const float *rotation, uint32_t tokens, uint32_t rotary_dim,
                          float *out);
    /** Scores of tokens [first, last), multiples of 32, on the codes; NULL: not on this ISA. */
    void (*key_codes)(const struct qr_attend_part *part, const struct qr_attend_key_codes *key,
                      uint32_t first, uint32_t last);
    /** Weighted sum of values [first, last), multiples of 16, on the codes; NULL likewise. */
    void (*value_codes)(const struct qr_attend_part *part,
                        const struct qr_attend_value_codes *value, uint32_t first,
                        uint32_t last);
};

extern const struct qr_attend_kernels qr_attend_scalar;
#if defined(__x86_64__)
extern const struct qr_attend_kernels qr_attend_avx2, qr_attend_avx512;
#endif

/** Kernels of the instruction set in use (qr_isa). */
const struct qr_attend_kernels *qr_attend_kernels(void);

/** Keys and values of one head, in whatever form. */
struct qr_attend_source {
    uint32_t tokens, key_dim, value_dim;
    uint64_t first_position;
    /** Fill z of tokens [first, last). */
    void (*scores)(const struct qr_attend_source *source, const struct qr_attend_part *part,
                   uint32_t first, uint32_t last);
    /** Add the weighted values of tokens [first, last). */
    void (*add)(const struct qr_attend_source *source, const struct qr_attend_part *part,
                uint32_t first, uint32_t last);
};

/** Add a source to acc. scratch: qr_attend_scratch_bytes. */
void qr_attend_run(const struct qr_attend_source *source,
                   const struct qr_attend_queries *queries, struct qr_attend_acc *acc,
                   void *scratch);

#endif
