/* SPDX-License-Identifier: Apache-2.0
 *
 * The page: what its bytes mean, byte by byte (prose and figures in README.md).
 * A page is little-endian, self-described and immutable. This floor lays out,
 * finishes and validates pages; it knows no codec's arithmetic.
 *
 *   0    512  struct qr_page_header
 *   512  ...  sections, each at a multiple of 64, in the order of the section table, zero
 * padding between
 */
#ifndef QR_PAGE_H
#define QR_PAGE_H

#include "model.h"

#define QR_PAGE_MAGIC "QUIREPG" /* with its NUL: 8 bytes */
#define QR_PAGE_VERSION 1
#define QR_PAGE_ALIGN 64
#define QR_PAGE_BYTES_MAX (64u << 20)
#define QR_PAGE_SECTIONS_MAX 11
#define QR_PAGE_CHECKED_FROM 16 /* the checksum covers this byte to the page's end */

enum qr_payload {
    QR_PAYLOAD_KV = 1,
    QR_PAYLOAD_LATENT = 2,
    QR_PAYLOAD_OPAQUE = 3
}; /* only KV is accepted by version 1 readers */

enum qr_section_type {
    QR_SECTION_KEY_CODES = 1,  /* [heads][tokens][row], rows as the codec packs them */
    QR_SECTION_KEY_SCALES = 2, /* scales and minima as the codec lays them out */
    QR_SECTION_VALUE_CODES = 3,
    QR_SECTION_VALUE_SCALES = 4,
    QR_SECTION_KEY_RAW = 5,   /* FP16 [raw rows][heads][key_dim], ascending token order */
    QR_SECTION_VALUE_RAW = 6, /* FP16 [raw rows][heads][value_dim] */
    QR_SECTION_ROW_DIGESTS =
        7, /* u32 [tokens]: low half of XXH3-64 of the token's FP16 K [heads][key_dim] then V */
    /* Reserved numbers; a version 1 reader refuses them by name: */
    QR_SECTION_LEVEL_TABLE = 8,
    QR_SECTION_OUTLIERS = 9,
    QR_SECTION_CHANNEL_MEANS = 10,
    QR_SECTION_ROTATION = 11,
    QR_SECTION_POSITION_IDS = 12, /* u32 [tokens][3], M-RoPE */
    QR_SECTION_TYPE_END
};

struct qr_page_section {
    uint16_t type;
    uint16_t flags;    /* 0 */
    uint32_t offset;   /* from the page's first byte, multiple of 64 */
    uint32_t bytes;    /* without padding */
    uint32_t reserved; /* 0 */
};
_Static_assert(sizeof(struct qr_page_section) == 16, "wire format");

/** Measured error of the page where it is consumed; all zero = not measured. */
struct qr_receipt {
    uint16_t metric;  /* 0 none, 1 relative Frobenius of the attention output */
    uint16_t queries; /* 0 none, 1 the caller's, 2 proxy from keys */
    float error;
    float key_error, value_error;
};
_Static_assert(sizeof(struct qr_receipt) == 16, "wire format");

struct qr_page_header {
    char magic[8];              /*   0 */
    uint64_t checksum;          /*   8: XXH3-64, seed 0, of bytes 16 .. page_bytes */
    uint16_t version;           /*  16 */
    uint16_t header_bytes;      /*  18: 512 */
    uint32_t flags;             /*  20: none defined; any set bit is refused */
    uint32_t page_bytes;        /*  24: header, sections and padding; multiple of 64 */
    uint16_t page_tokens;       /*  28 */
    uint16_t tokens;            /*  30: tokens held; version 1: equals page_tokens */
    uint8_t fingerprint[32];    /*  32 */
    uint8_t block_id[32];       /*  64 */
    uint32_t layer;             /*  96 */
    uint16_t first_head;        /* 100: KV heads of the lane */
    uint16_t heads;             /* 102 */
    uint16_t key_dim;           /* 104 */
    uint16_t value_dim;         /* 106 */
    uint8_t rope_stored;        /* 108: enum qr_rope_stored */
    uint8_t rope_layout;        /* 109: enum qr_rope_layout, 0 when NONE */
    uint8_t payload;            /* 110: enum qr_payload */
    uint8_t position_kind;      /* 111: 0 consecutive from first_position; 1 ids in a section
                                   (reserved) */
    uint64_t first_position;    /* 112 */
    uint16_t raw_rows;          /* 120: set bits of raw_bitmap */
    uint16_t section_count;     /* 122 */
    uint32_t reserved0;         /* 124: 0 */
    struct qr_codec_spec key;   /* 128 */
    struct qr_codec_spec value; /* 144 */
    struct qr_receipt receipt;  /* 160 */
    uint32_t key_id;   /* 176: encryption key, 0 = not encrypted; version 1 refuses others */
    uint8_t nonce[12]; /* 180 */
    uint8_t tag[16];   /* 192 */
    uint8_t reserved1[48]; /* 208: 0 */
    uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX /
                       8]; /* 256: bit t%8 of byte t/8 = token t is a raw row */
    struct qr_page_section sections[QR_PAGE_SECTIONS_MAX]; /* 320 */
    uint8_t reserved2[16];                                 /* 496: 0 */
};
_Static_assert(sizeof(struct qr_page_header) == 512, "wire format");

/** What a page must be for the reader that asked for it. */
struct qr_page_identity {
    uint8_t fingerprint[QR_HASH_BYTES];
    uint8_t block_id[QR_HASH_BYTES];
    uint32_t layer;
    uint16_t first_head, heads, key_dim, value_dim;
    uint8_t rope_stored, rope_layout;
    uint16_t page_tokens;
    uint64_t first_position;
    struct qr_codec_spec key, value;
    /* Level tables (FP16 [2^bits], borrowed) where the codec is nuq: what pages are encoded
     * with and must have. NULL: none, or not known. */
    const uint16_t *key_levels, *value_levels;
};

/** Set the level tables of an identity from its model's calibration. */
void qr_page_identity_levels(struct qr_page_identity *id, const struct qr_model *model);

/** A validated page: pointers into the page's bytes, NULL where a section is absent. */
struct qr_page_view {
    const struct qr_page_header *header;
    const uint8_t *key_codes, *key_scales, *value_codes, *value_scales;
    const uint16_t *key_raw, *value_raw;
    const uint32_t *digests;
};

/** Bytes of a row of `dim` codes, and of a whole tensor's codes and scales sections, as fixed
 * by the packing (README.md). 0: bad spec. */
size_t qr_spec_row_bytes(const struct qr_codec_spec *spec, uint32_t dim);
size_t qr_spec_codes_bytes(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                           uint32_t dim);
size_t qr_spec_scales_bytes(const struct qr_codec_spec *spec, uint32_t tokens, uint32_t heads,
                            uint32_t dim);

/** Bytes of a page with `raw_rows` raw rows; 0 when the identity is out of the format's limits.
 */
size_t qr_page_bytes(const struct qr_page_identity *id, uint32_t raw_rows);

/**
 * Write header and section table into `page` (qr_page_bytes long, 64-byte aligned), zero
 * padding included. raw_bitmap: page_tokens bits. The caller then fills the sections through
 * `sections_out` (writable twins of a view) and calls qr_page_finish, which sets the checksum.
 */
struct qr_page_sections {
    uint8_t *key_codes, *key_scales, *value_codes, *value_scales;
    uint16_t *key_raw, *value_raw;
    uint32_t *digests;
};
quire_status qr_page_begin(void *page, size_t bytes, const struct qr_page_identity *id,
                           const uint8_t raw_bitmap[QR_PAGE_TOKENS_MAX / 8],
                           struct qr_page_sections *sections_out, struct qr_error *e);
void qr_page_finish(void *page);

/**
 * Validate everything that can be validated from the page alone: magic, version, flags, every
 * limit, the exact section layout of its codec, padding and reserved bytes zero, checksum. Safe
 * on any bytes of any length. `bytes` must equal header.page_bytes: trailing bytes are an
 * error. page: 8-byte aligned (sections are used in place). Errors: ECORRUPT (checksum,
 * truncation, layout), EUNSUPPORTED (version, flag, codec, section: by name).
 */
quire_status qr_page_open(const void *page, size_t bytes, struct qr_page_view *out,
                          struct qr_error *e);
/**
 * Whether every value of an opened page decodes to a finite FP16 number: scales, minima, raw
 * rows. For pages sealed by somebody else. Errors: EVALUE, with the section, group and its
 * numbers.
 */
quire_status qr_page_check_values(const struct qr_page_view *page, struct qr_error *e);
/** What a page says it is: the identity that qr_page_begin was given. */
void qr_page_identity_of(const struct qr_page_header *header, struct qr_page_identity *out);
/** EMISMATCH naming the first field that differs, both values given. */
quire_status qr_page_match(const struct qr_page_header *header,
                           const struct qr_page_identity *id, struct qr_error *e);

/** XXH3-64 with the widest vectors this CPU has: same value on every ISA. */
uint64_t qr_checksum(const void *bytes, size_t n);

/** `count` pieces of `bytes` bytes, `stride` bytes apart. */
struct qr_span {
    const void *first;
    size_t bytes, stride;
    uint32_t count;
};
/** qr_checksum of the pieces of all spans, one after the other. */
uint64_t qr_checksum_spans(const struct qr_span *spans, size_t n);

static inline bool qr_page_is_raw(const uint8_t *raw_bitmap, uint32_t token)
{
    return (raw_bitmap[token / 8] >> (token % 8)) & 1;
}

#endif
