/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys and values of the disk index, and batches of changes to them. The layouts,
 * byte by byte, are in proto/INDEX.md. Pure functions but for a batch's memory;
 * must not know RocksDB.
 */
#ifndef QR_DISK_RECORD_H
#define QR_DISK_RECORD_H

#include <stdbool.h>

#include "disk_slabs.h"
#include "proto/model.h"

#define QR_DISK_KEY_MAX 64u
#define QR_DISK_BATCH_MAX (16u << 20) /* bytes of one batch */

/* First byte of a key. */
#define QR_DISK_KEY_VERSION 'V'
#define QR_DISK_KEY_BLOCK 'b'
#define QR_DISK_KEY_MANIFEST 'g'
#define QR_DISK_KEY_LANE 'l'
#define QR_DISK_KEY_MODEL 'm'
#define QR_DISK_KEY_NAMESPACE 'n'
#define QR_DISK_KEY_PAGE 'p'
#define QR_DISK_KEY_SCRUB 'c'
#define QR_DISK_KEY_SESSION 's'
#define QR_DISK_KEY_TOKENS 't'
#define QR_DISK_KEY_GOING 'x'

struct qr_disk_key {
    uint8_t bytes[QR_DISK_KEY_MAX];
    uint32_t n;
};

struct qr_disk_key qr_disk_key_version(void);
struct qr_disk_key qr_disk_key_page(const uint8_t page_id[QR_HASH_BYTES]);
struct qr_disk_key qr_disk_key_model(const uint8_t fingerprint[QR_HASH_BYTES]);
struct qr_disk_key qr_disk_key_namespace(uint32_t ns);
struct qr_disk_key qr_disk_key_session(uint32_t ns, const uint8_t session[QR_DISK_UUID_BYTES]);
struct qr_disk_key qr_disk_key_lane(const uint8_t session[QR_DISK_UUID_BYTES], uint32_t lane);
/** Page id of one block of a lane. */
struct qr_disk_key qr_disk_key_manifest(const uint8_t session[QR_DISK_UUID_BYTES],
                                        uint32_t lane, uint32_t block);
struct qr_disk_key qr_disk_key_block(const uint8_t session[QR_DISK_UUID_BYTES], uint32_t block);
/** Token ids of a session's blocks that are in no page yet. */
struct qr_disk_key qr_disk_key_tokens(const uint8_t session[QR_DISK_UUID_BYTES]);
/** A session that is being dropped, or was not finished: all its keys are to be deleted. */
struct qr_disk_key qr_disk_key_going(const uint8_t session[QR_DISK_UUID_BYTES]);
/** What all keys of this kind and session begin with: lanes, manifest or blocks. */
struct qr_disk_key qr_disk_key_prefix(uint8_t kind, const uint8_t session[QR_DISK_UUID_BYTES]);
/** Numbers at the end of a lane, manifest or block key. False: not such a key. */
bool qr_disk_key_lane_read(const uint8_t *key, size_t n, uint32_t *lane_out);
bool qr_disk_key_manifest_read(const uint8_t *key, size_t n, uint32_t *lane_out,
                               uint32_t *block_out);
bool qr_disk_key_block_read(const uint8_t *key, size_t n, uint32_t *block_out);
bool qr_disk_key_session_read(const uint8_t *key, size_t n, uint32_t *ns_out,
                              uint8_t session_out[QR_DISK_UUID_BYTES]);
bool qr_disk_key_going_read(const uint8_t *key, size_t n,
                            uint8_t session_out[QR_DISK_UUID_BYTES]);

/* ---- values ----------------------------------------------------------------------------- */

#define QR_DISK_PAGE_RECORD_BYTES 48u
#define QR_DISK_QUARANTINED 1u /* flag: found damaged, never served */

/** Where a page lies, and enough of its identity for fsck to check it by itself. */
struct qr_disk_page {
    struct qr_disk_place place;
    uint16_t flags;
    uint64_t checksum; /* the page's own */
    uint32_t layer;
    uint16_t first_head, heads;
    uint64_t first_position;
    uint32_t ns;
    uint32_t named; /* manifest entries that name it; 0: to be deleted */
};
void qr_disk_page_write(const struct qr_disk_page *page,
                        uint8_t out[QR_DISK_PAGE_RECORD_BYTES]);
/** ECORRUPT: length, reserved bytes or ranges; EUNSUPPORTED: newer version. */
quire_status qr_disk_page_read(const uint8_t *value, size_t n, struct qr_disk_page *out);

#define QR_DISK_BLOCK_RECORD_BYTES 56u
/** Manifest entry: the page of one block of a lane. */
struct qr_disk_block {
    uint8_t page_id[QR_HASH_BYTES];
    struct qr_disk_place place; /* the page record's; bytes 0: the page is gone, a hole */
    uint64_t checksum;          /* the page's own, also of one that is gone */
};
void qr_disk_block_write(const struct qr_disk_block *block,
                         uint8_t out[QR_DISK_BLOCK_RECORD_BYTES]);
quire_status qr_disk_block_read(const uint8_t *value, size_t n, struct qr_disk_block *out);

#define QR_DISK_LANE_RECORD_BYTES 32u
/** State of a lane beside its manifest. Tail rows: what the tail log has from sealed blocks on,
 * records below cut_sequence only up to cut_length (qr_session_truncate). */
struct qr_disk_lane {
    uint32_t sealed; /* blocks */
    uint64_t cut_sequence, cut_length;
};
void qr_disk_lane_write(const struct qr_disk_lane *lane,
                        uint8_t out[QR_DISK_LANE_RECORD_BYTES]);
quire_status qr_disk_lane_read(const uint8_t *value, size_t n, struct qr_disk_lane *out);

#define QR_DISK_SESSION_HEAD_BYTES 176u
#define QR_DISK_SESSION_RECORD_MAX                                                             \
    (QR_DISK_SESSION_HEAD_BYTES + QR_NAME_MAX + QR_OVERRIDES_MAX * sizeof(struct qr_override))
struct qr_disk_session {
    char name[QR_NAME_MAX + 1];
    uint8_t fingerprint[QR_HASH_BYTES];
    struct qr_policy policy;
    uint32_t head_shards;
    uint64_t epoch; /* no writer had a higher one: it is ahead of those in use */
    uint64_t ttl_ms;
    uint64_t created_us, used_us; /* wall clock: the monotonic one ends with the machine */
    /* What there was at the commit, for lists that do not load the session. */
    uint64_t length, longest, sealed_tokens, pages, missing_pages, page_bytes;
};
size_t qr_disk_session_write(const struct qr_disk_session *session,
                             uint8_t out[QR_DISK_SESSION_RECORD_MAX]);
quire_status qr_disk_session_read(const uint8_t *value, size_t n, struct qr_disk_session *out);

/* ---- batches ---------------------------------------------------------------------------- */

/** Puts and deletes that become durable together. Zero-initialized is empty. */
struct qr_disk_batch {
    uint8_t *bytes; /* owned: kind u8, key bytes u32, value bytes u32, key, value */
    size_t n, capacity;
    uint32_t count;
    bool failed; /* an addition found no memory or no room: a write of it is refused */
};
void qr_disk_batch_put(struct qr_disk_batch *batch, const struct qr_disk_key *key,
                       const void *value, size_t value_bytes);
void qr_disk_batch_delete(struct qr_disk_batch *batch, const struct qr_disk_key *key);
/** Empty again; the memory stays. */
void qr_disk_batch_clear(struct qr_disk_batch *batch);
void qr_disk_batch_free(struct qr_disk_batch *batch);

struct qr_disk_change {
    bool put;
    const uint8_t *key, *value;
    uint32_t key_bytes, value_bytes;
};
/** Next change from *at on (0 at first); false at the end. */
bool qr_disk_batch_next(const struct qr_disk_batch *batch, size_t *at,
                        struct qr_disk_change *out);

#endif
