/* SPDX-License-Identifier: Apache-2.0
 *
 * The file that a session moves in (EXPORT.md): its head and records, what may follow what, and
 * the checks of every byte. No I/O and no allocation: the caller reads or writes the bytes and
 * hands them over record by record. Must not know servers or codecs.
 *
 * Reading:  qr_export_begin(head), then for each record qr_export_record(its 64 bytes) and
 *           qr_export_payload(what follows it), until walk.done.
 * Writing:  qr_export_head, qr_export_begin(the same), then for each record qr_export_next,
 *           the payload, qr_export_seal: what it gives has passed the checks of a reader.
 *
 * Threads: pure functions; a walk belongs to one thread at a time.
 */
#ifndef QR_EXPORT_H
#define QR_EXPORT_H

#include "page.h"
#include "sha256.h"

#define QR_EXPORT_MAGIC "QUIREXP" /* with its NUL: 8 bytes */
#define QR_EXPORT_VERSION 1
#define QR_EXPORT_ID_BYTES 16
#define QR_EXPORT_RECORD_MAGIC 0x43455251u      /* "QREC" */
#define QR_EXPORT_IDS_MAX 32768u                /* block ids in a record */
#define QR_EXPORT_ROWS_MAX (4u << 20)           /* bytes of rows in a record: one token fits */
#define QR_EXPORT_TAIL_MAX 8192u                /* tokens that no lane has sealed */
#define QR_EXPORT_PAYLOAD_MAX QR_PAGE_BYTES_MAX /* of any record */
#define QR_EXPORT_PADDED(bytes) (((bytes) + 63u) / 64u * 64u)

#define QR_EXPORT_HEAD_BYTES 1024
/** The first bytes of the file, as they are there. */
struct qr_export_head {
    char magic[8];                       /*   0 */
    uint64_t checksum;                   /*   8: XXH3-64 of bytes 16 .. 1024 */
    uint16_t version;                    /*  16 */
    uint16_t header_bytes;               /*  18: 1024 */
    uint32_t flags;                      /*  20: none is defined */
    uint8_t file_id[QR_EXPORT_ID_BYTES]; /*  24: random */
    uint8_t fingerprint[QR_HASH_BYTES];  /*  40 */
    uint64_t length;                     /*  72: tokens of every lane */
    uint64_t file_bytes;                 /*  80: of the whole file */
    uint64_t ttl_ms;                     /*  88 */
    uint32_t head_shards;                /*  96 */
    uint32_t block_count;                /* 100: blocks that have an id */
    uint32_t chained;                    /* 104: of them, whose ids are hashes of token ids */
    uint32_t token_count;                /* 108: of the token ids record; 0: there is none */
    uint16_t page_tokens;                /* 112 */
    uint16_t window;                     /* 114 */
    uint16_t sink_rows;                  /* 116 */
    uint16_t outlier_rows;               /* 118 */
    uint32_t override_count;             /* 120 */
    uint32_t reserved0;                  /* 124: 0 */
    struct qr_codec_spec key;            /* 128 */
    struct qr_codec_spec value;          /* 144 */
    uint16_t name_bytes;                 /* 160 */
    char name[QR_NAME_MAX + 1];          /* 162: of the session, zero bytes after it */
    uint8_t reserved1[94];               /* 418: 0 */
    struct qr_override overrides[QR_OVERRIDES_MAX]; /* 512: the unused ones zero */
    uint8_t reserved2[128];                         /* 896: 0 */
};
_Static_assert(sizeof(struct qr_export_head) == QR_EXPORT_HEAD_BYTES, "file format");

enum qr_export_type {
    QR_EXPORT_MODEL = 1,
    QR_EXPORT_BLOCK_IDS = 2,
    QR_EXPORT_TOKEN_IDS = 3,
    QR_EXPORT_PAGE = 4,
    QR_EXPORT_ROWS = 5,
    QR_EXPORT_END = 6
};

/** The 64 bytes before each payload, as they are there. */
struct qr_export_mark {
    uint32_t magic;            /*  0 */
    uint16_t type;             /*  4: enum qr_export_type */
    uint16_t flags;            /*  6: none is defined */
    uint64_t number;           /*  8: of the record, from 0 */
    uint32_t lane;             /* 16: of pages and rows */
    uint32_t count;            /* 20: tokens of pages, rows and token ids; block ids */
    uint64_t position;         /* 24: first token; first block of block ids */
    uint64_t bytes;            /* 32: of the payload without padding */
    uint64_t payload_checksum; /* 40: XXH3-64 of payload and padding */
    uint64_t previous;         /* 48: checksum of the mark before, or of the head */
    uint64_t checksum;         /* 56: XXH3-64 of bytes 0 .. 56 */
};
_Static_assert(sizeof(struct qr_export_mark) == 64, "file format");

/** Payload of the last record. */
struct qr_export_end {
    uint64_t records;     /* 0: before this one */
    uint64_t file_bytes;  /* 8: with this one */
    uint8_t digest[32];   /* 16: SHA-256 of the head and of every mark before this one's */
    uint8_t reserved[16]; /* 48: 0 */
};
_Static_assert(sizeof(struct qr_export_end) == 64, "file format");

/** A record in words. */
struct qr_export_record {
    enum qr_export_type type;
    uint64_t offset;                         /* of its mark in the file */
    uint32_t lane, layer, first_head, heads; /* pages and rows */
    uint32_t count;
    uint64_t position;
    size_t bytes; /* payload; QR_EXPORT_PADDED(bytes) are in the file */
};

/** Where a reader or writer stands. Plain data; the caller may read all of it. */
struct qr_export_walk {
    struct qr_export_head head;
    struct qr_policy policy;
    struct qr_model model; /* after the model's record */
    uint64_t offset;       /* of the next mark */
    uint64_t records;      /* so far */
    uint64_t previous;
    struct qr_sha256 sha;
    uint32_t block_ids; /* so far */
    uint32_t lane_count, lane;
    uint64_t position; /* in the lane */
    bool has_model, has_tokens, in_rows, done;
};

/** Session name, policy, and the numbers that the caller has set in `head`, made whole: magic,
 * version, checksum. name: 1 .. QR_NAME_MAX bytes. */
void qr_export_head_finish(struct qr_export_head *head, const char *name,
                           const struct qr_policy *policy);
/**
 * Start with the head's bytes. Errors: ECORRUPT (with the byte in e->position, 0 here),
 * EUNSUPPORTED (version, flags: by name).
 */
quire_status qr_export_begin(struct qr_export_walk *walk, const void *head, struct qr_error *e);

/**
 * What the record is whose mark these 64 bytes are; nothing moves on yet. It is refused unless
 * it is what must come next, and no longer than it may be, so that the caller can read its
 * payload into memory of QR_EXPORT_PADDED(out->bytes). Errors: ECORRUPT, EUNSUPPORTED;
 * e->position is the record's first byte, and the text names it.
 */
quire_status qr_export_record(const struct qr_export_walk *walk, const void *mark,
                              struct qr_export_record *out, struct qr_error *e);
/** Check the payload (8-byte aligned, padding included) and move on. Errors as above: then the
 * walk stays where it is. */
quire_status qr_export_payload(struct qr_export_walk *walk, const void *mark,
                               const void *payload, struct qr_error *e);

/**
 * What a writer must write next: type, lane, position; count and bytes where they are
 * determined, else 0 (pages, and rows, for which `type` says QR_EXPORT_ROWS when a page may not
 * come any more). False: the file is whole.
 */
bool qr_export_next(const struct qr_export_walk *walk, struct qr_export_record *out);
/**
 * Make the mark of a record (type, lane, count, position, bytes are used) and move on. payload:
 * padded with zeros. Errors as qr_export_payload: what a reader would refuse is not written.
 */
quire_status qr_export_seal(struct qr_export_walk *walk, const struct qr_export_record *record,
                            const void *payload, struct qr_export_mark *mark_out,
                            struct qr_error *e);
/** Payload of the end record. */
void qr_export_end_fill(const struct qr_export_walk *walk, struct qr_export_end *out);

/** Layer and heads of a lane; false when there is no such lane. */
bool qr_export_lane(const struct qr_export_walk *walk, uint32_t lane,
                    struct qr_export_record *out);
/** Bytes of one token's K and V in FP16 of the record's lane. */
size_t qr_export_row_bytes(const struct qr_export_walk *walk,
                           const struct qr_export_record *record);
/** Most bytes that a page of the record's lane may have. */
size_t qr_export_page_max(const struct qr_export_walk *walk,
                          const struct qr_export_record *record);
/** Bytes of the records of the model, the block ids, the token ids and the end, and the head:
 * all but pages and rows. Before a walk has begun: from the head and the model's packed bytes.
 */
uint64_t qr_export_frame_bytes(const struct qr_export_head *head, size_t model_bytes);

#endif
