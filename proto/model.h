/* SPDX-License-Identifier: Apache-2.0
 *
 * Model geometry, RoPE parameters, encoding policy, and the fingerprint over
 * model properties that every page carries. Plain data and pure functions: no
 * allocation, no I/O. Must not know sessions or tiers.
 */
#ifndef QR_MODEL_H
#define QR_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "calibration.h"
#include "status.h"

#define QR_HASH_BYTES 32
#define QR_LAYERS_MAX 512
#define QR_ROPES_MAX 4
#define QR_NAME_MAX 255   /* bytes, without the closing NUL */
#define QR_HEADS_MAX 1024 /* query or KV heads of a layer */
#define QR_DIM_MIN 16     /* head dims: multiples of 8 in [16, 1024] */
#define QR_DIM_MAX 1024
#define QR_POSITION_MAX                                                                        \
    ((1u << 24) - 1) /* last token position of a session (RoPE bound in docs/FORMULAS.md) */

enum qr_dtype { QR_F16 = 1, QR_BF16 = 2, QR_F32 = 3 };
/** Bytes an element; 0 for an unknown dtype. */
size_t qr_dtype_bytes(enum qr_dtype dtype);

enum qr_rope_stored {
    QR_ROPE_NONE = 0,
    QR_ROPE_PRE = 1,
    QR_ROPE_POST = 2
}; /* keys as stored: no RoPE at all, before it, after it */
enum qr_rope_layout { QR_ROPE_HALF = 1, QR_ROPE_INTERLEAVED = 2 };
enum qr_rope_type {
    QR_ROPE_DEFAULT = 1,
    QR_ROPE_LINEAR = 2,
    QR_ROPE_DYNAMIC = 3,
    QR_ROPE_YARN = 4,
    QR_ROPE_LLAMA3 = 5,
    QR_ROPE_LONGROPE = 6,
    QR_ROPE_TABLE = 7 /* inv_freq and attention_factor given by the caller */
};

/** What a RoPE variant is computed from; names follow the transformers package's
 * rope_parameters. 0 = not given. */
struct qr_rope_params {
    enum qr_rope_type type;
    enum qr_rope_layout layout;
    uint32_t rotary_dim;         /* even, <= key_dim; channels past it pass through */
    double theta;                /* > 1, but for TABLE */
    double factor;               /* YaRN, LongRoPE: 0 = max_position / original_max_position */
    double attention_factor;     /* 0: derive it from the variant */
    double beta_fast, beta_slow; /* YaRN; 0: 32 and 1 */
    double mscale, mscale_all_dim;            /* YaRN; both or neither */
    double low_freq_factor, high_freq_factor; /* Llama-3 */
    uint32_t original_max_position; /* dynamic: 0 = max_position; YaRN, Llama-3, LongRoPE */
    uint32_t max_position;          /* deployed length */
    uint32_t seq_len;               /* dynamic and LongRoPE: length that the table is for */
    bool truncate_off;              /* YaRN: keep the correction range fractional */
    float short_factor[QR_DIM_MAX / 2],
        long_factor[QR_DIM_MAX / 2]; /* LongRoPE, rotary_dim/2 each */
    float inv_freq[QR_DIM_MAX / 2];  /* TABLE, rotary_dim/2 */
};

/** The table that all variants come down to; this, not the parameters, enters the fingerprint.
 */
struct qr_rope {
    enum qr_rope_layout layout;
    uint32_t rotary_dim;
    float attention_factor;
    float inv_freq[QR_DIM_MAX / 2]; /* rotary_dim/2 used */
};

/**
 * Table of a variant: inv_freq and attention_factor as the inference frameworks compute them.
 * Errors: EINVAL, with the parameter and its value in `e`. Source: the papers of each variant,
 * see proto/README.md.
 */
quire_status qr_rope_make(const struct qr_rope_params *params, struct qr_rope *out,
                          struct qr_error *e);

struct qr_layer {
    uint16_t query_heads, kv_heads; /* kv_heads divides query_heads; kv_heads == 0: the layer
                                       has no KV cache and no lane */
    uint16_t key_dim, value_dim;
    uint8_t rope;        /* index into ropes, used when rope_stored is not NONE */
    uint8_t rope_stored; /* enum qr_rope_stored */
    uint32_t
        sliding_window; /* tokens; 0 = full attention. Informative, and the default of attend */
};

struct qr_model {
    char name[QR_NAME_MAX + 1], revision[QR_NAME_MAX + 1], adapter[QR_NAME_MAX + 1];
    uint32_t layer_count, rope_count;
    struct qr_layer layers[QR_LAYERS_MAX];
    struct qr_rope ropes[QR_ROPES_MAX];
    struct qr_calibration calibration;  /* of this very model, or all zero */
    uint8_t fingerprint[QR_HASH_BYTES]; /* set by qr_model_seal */
};

/** Valid UTF-8 of at most QR_NAME_MAX bytes without control characters (empty is fine); EINVAL
 * starts with `what`. */
quire_status qr_name_check(const char *name, const char *what, struct qr_error *e);

/** Check every limit above, then set model->fingerprint (SHA-256 of a canonical little-endian
 * serialization, proto/README.md). A calibration must be of this model: EMISMATCH. */
quire_status qr_model_seal(struct qr_model *model, struct qr_error *e);

#define QR_MODEL_PACKED_MAX (16384 + QR_CALIBRATION_BYTES_MAX)
/** The bytes that the fingerprint is the SHA-256 of; every limit must have been checked
 * (qr_model_seal). Returns how many. */
size_t qr_model_pack(const struct qr_model *model, uint8_t out[QR_MODEL_PACKED_MAX]);
/** The same without its calibration. */
size_t qr_model_pack_plain(const struct qr_model *model, uint8_t out[QR_MODEL_PACKED_MAX]);
/** The model of such bytes, checked and sealed; safe on any bytes. What a layer without KV
 * heads had beside them is zero. *out is undefined on failure. ECORRUPT, EINVAL as
 * qr_model_seal. */
quire_status qr_model_unpack(const void *bytes, size_t n, struct qr_model *out,
                             struct qr_error *e);

enum qr_codec_id {
    QR_CODEC_RAW = 1,  /* FP16 */
    QR_CODEC_CHAN = 2, /* integer groups along tokens or channels (KIVI, InnerQ) */
    QR_CODEC_FP8 = 3,  /* E4M3FN or E5M2 with a scale */
    QR_CODEC_ROT = 4,  /* Hadamard rotation, then integer groups per token (RotateKV) */
    QR_CODEC_LM = 5,   /* random rotation, Lloyd-Max levels, norm per token (TurboQuant) */
    QR_CODEC_NUQ = 6   /* level table per layer, outliers exact (KVQuant) */
};
enum qr_axis {
    QR_AXIS_CHANNEL = 1 /* a group runs along tokens, in one channel */,
    QR_AXIS_TOKEN = 2 /* along channels, in one token */,
    QR_AXIS_HEAD = 3 /* all tokens and channels of a head are one group */
};

/** Options of a codec spec: bits of param[QR_PARAM_FLAGS]. docs/FORMULAS.md says what each does
 * to the values, qr_spec_check which codec takes it. */
enum qr_spec_flag {
    QR_SPEC_CENTER = 1,    /* the page's own mean of each channel is taken off first */
    QR_SPEC_NORMALIZE = 2, /* each channel is divided by sqrt(max |x|) of the page */
    QR_SPEC_HYBRID = 4,    /* chan: each group symmetric or asymmetric, by which errs less */
    QR_SPEC_HEADS4 = 8,    /* rot: rotate four heads together */
    QR_SPEC_REORDER = 16   /* rot: channels sorted by their sums before they are rotated */
};
enum { QR_PARAM_FLAGS = 0, QR_PARAM_NUMBER = 1 };
enum { QR_FP8_E4M3 = 0, QR_FP8_E5M2 = 1 }; /* number of fp8 */
#define QR_CLIP_MIN 500u          /* number of rot: clip ratio in thousandths; 0: no clipping */
#define QR_OUTLIER_RATE_MAX 1000u /* number of nuq: outliers in ten thousand elements */

/** How one of K and V is encoded. 16 bytes, stands in the page header as it is. */
struct qr_codec_spec {
    uint16_t codec;    /* enum qr_codec_id */
    uint8_t bits;      /* raw: 16; fp8: 8; chan, rot: 2, 3, 4, 8; lm, nuq: 2, 3, 4 */
    uint8_t axis;      /* enum qr_axis; raw: 0 */
    uint16_t group;    /* chan, rot, nuq: 16, 32, 64, 128; else 0 */
    uint16_t packing;  /* order of codes in a row, see proto/README.md; raw: 0 */
    uint32_t param[2]; /* flags; the codec's number: fp8 format, rot clip ratio, lm seed, nuq
                          outliers; else 0 */
};
_Static_assert(sizeof(struct qr_codec_spec) == 16, "codec spec is wire format");

/** "raw", "chan", ...; NULL when the id is unknown. */
const char *qr_codec_name(uint16_t id);

#define QR_PAGE_TOKENS_MAX 512
#define QR_WINDOW_MAX 4096
#define QR_OUTLIERS_MAX 4

#define QR_OVERRIDES_MAX 16
enum qr_tensors { QR_TENSOR_KEY = 1, QR_TENSOR_VALUE = 2, QR_TENSOR_BOTH = 3 };

/** Another encoding for some layers: boundary layers at more bits, and the like. */
struct qr_override {
    uint16_t first_layer, last_layer; /* both included */
    uint16_t tensors;                 /* enum qr_tensors */
    uint16_t reserved;                /* 0 */
    struct qr_codec_spec spec;
};
_Static_assert(sizeof(struct qr_override) == 24, "recorded as it is");

/** How a session's pages are made; fixed when the session is created. Compared as bytes: what
 * is not used is zero. */
struct qr_policy {
    uint16_t
        page_tokens;    /* power of two, 16 .. 512, and a multiple of each per-channel group */
    uint16_t window;    /* newest tokens that are never quantized, 0 .. 4096 */
    uint16_t sink_rows; /* first positions of a session kept raw, 0 .. page_tokens */
    uint16_t outlier_rows; /* most outlier tokens kept raw in a page, 0 .. 4 */
    struct qr_codec_spec key, value;
    uint32_t override_count;
    struct qr_override overrides[QR_OVERRIDES_MAX]; /* of those for one layer, the last wins */
};

/** Encodings of keys and values of a layer. */
void qr_policy_specs(const struct qr_policy *policy, uint32_t layer, struct qr_codec_spec *key,
                     struct qr_codec_spec *value);
/** Whether every override is for layers that a model of `layer_count` has; EINVAL names the one
 * that is not. */
quire_status qr_policy_check_layers(const struct qr_policy *policy, uint32_t layer_count,
                                    struct qr_error *e);

/** K4 per channel, V4 per token, group 32, page 128, window 128, 4 sinks, 4 outliers (measured:
 * docs/). */
void qr_policy_default(struct qr_policy *policy);
quire_status qr_policy_check(const struct qr_policy *policy, struct qr_error *e);
/** Limits of one codec spec; `tensor` ("key", "value") names it in the error. EINVAL,
 * EUNSUPPORTED (codec, packing, parameter not known). */
quire_status qr_spec_check(const struct qr_codec_spec *spec, const char *tensor,
                           struct qr_error *e);
/** The same, and page_tokens: a power of two in 16..512 and a multiple of a group that runs
 * along tokens. */
quire_status qr_spec_check_tokens(const struct qr_codec_spec *spec, uint32_t page_tokens,
                                  const char *tensor, struct qr_error *e);

#define QR_SPEC_ORDER_MAX 8192u         /* channels of all heads that `reorder` sorts */
#define QR_SPEC_HEAD_MAX (128u * 1024u) /* elements of a head that a codec needs at once */
#define QR_NUQ_HEAD_MAX 65536u          /* elements of a head of nuq: positions are 16 bits */
/** The same, and what depends on the tensor's shape. */
quire_status qr_spec_check_tensor(const struct qr_codec_spec *spec, uint32_t tokens,
                                  uint32_t heads, uint32_t dim, const char *tensor,
                                  struct qr_error *e);

/** Chained block id: SHA-256("quire.block.v1" | parent | token ids LE32); parent of the first
 * block is the fingerprint. */
void qr_block_id_tokens(const uint8_t parent[QR_HASH_BYTES], const uint32_t *token_ids,
                        size_t n, uint8_t out[QR_HASH_BYTES]);
/** Block id without token ids: SHA-256("quire.block.unique.v1" | fingerprint | 16 random bytes
 * of the session | block index LE64). */
void qr_block_id_unique(const uint8_t fingerprint[QR_HASH_BYTES],
                        const uint8_t session_uuid[16], uint64_t block_index,
                        uint8_t out[QR_HASH_BYTES]);
/** Page id: SHA-256(secret | block id | layer, first head, heads | policy but its window, which
 * changes no page): what tiers are keyed by. */
void qr_page_id(const uint8_t namespace_secret[QR_HASH_BYTES],
                const uint8_t block_id[QR_HASH_BYTES], uint32_t layer, uint16_t first_head,
                uint16_t heads, const struct qr_policy *policy, uint8_t out[QR_HASH_BYTES]);

#endif
