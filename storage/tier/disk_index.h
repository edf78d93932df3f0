/* SPDX-License-Identifier: Apache-2.0
 *
 * The durable index: sorted keys and small values, in RocksDB. Batches are atomic
 * and durable when the write returns. Knows the version key of the store, and
 * not what the other keys mean.
 *
 *   WRITABLE -a write fails-> reopened and written once more -fails-> READ_ONLY (or CLOSED when
 *   even that open fails) -qr_disk_index_recover-> WRITABLE
 */
#ifndef QR_DISK_INDEX_H
#define QR_DISK_INDEX_H

#include "disk_record.h"

struct qr_disk_index;

enum qr_disk_index_state { QR_DISK_WRITABLE, QR_DISK_READ_ONLY, QR_DISK_CLOSED };

struct qr_disk_index_config {
    const char *path;     /* folder of the index; its parent exists */
    bool create;          /* make it when absent */
    bool read_only;       /* write nothing; an older version is refused, too */
    uint64_t cache_bytes; /* for blocks; 0: 32 MiB */
    /** Bring an index of an older version up to this one; NULL: refuse older ones. */
    quire_status (*upgrade)(struct qr_disk_index *index, uint32_t from, struct qr_error *e);
};

struct qr_disk_index_stat {
    enum qr_disk_index_state state;
    uint64_t writes, batches, changes, reopens, failures;
    uint64_t entries;   /* estimate */
    uint64_t ram_bytes; /* of RocksDB: memtables, table readers, cache */
};

/** EUNSUPPORTED (newer), ECORRUPT, EFULL, EIO; the text is one line. */
quire_status qr_disk_index_open(const struct qr_disk_index_config *config,
                                struct qr_disk_index **out, struct qr_error *e);
void qr_disk_index_close(struct qr_disk_index **index);

/**
 * Write `count` batches as one atomic, synced batch.
 *
 * Threads: any; concurrent calls share a sync.
 * Errors:  EFULL, EIO, and then it is not known whether the changes are durable; when a look at
 *          the index (qr_disk_index_get) does not show them, they are not and will not be.
 *          EINVAL: a batch that has failed.
 */
quire_status qr_disk_index_write(struct qr_disk_index *index,
                                 const struct qr_disk_batch *const *batches, size_t count,
                                 struct qr_error *e);
/** Copy a value, cut to capacity; *bytes_out is its whole size. ENOTFOUND, EIO. */
quire_status qr_disk_index_get(struct qr_disk_index *index, const struct qr_disk_key *key,
                               void *value, size_t capacity, size_t *bytes_out);

/** Return false to stop. Key and value are valid during the call, which must not write. */
typedef bool qr_disk_index_each_fn(void *arg, const uint8_t *key, size_t key_bytes,
                                   const uint8_t *value, size_t value_bytes);
/** Every entry whose key begins with `prefix`, ascending, as of the call. EIO. */
quire_status qr_disk_index_each(struct qr_disk_index *index, const struct qr_disk_key *prefix,
                                qr_disk_index_each_fn *each, void *arg, struct qr_error *e);

/** The same from the first key that is not below `from`. */
quire_status qr_disk_index_each_from(struct qr_disk_index *index,
                                     const struct qr_disk_key *prefix,
                                     const struct qr_disk_key *from,
                                     qr_disk_index_each_fn *each, void *arg,
                                     struct qr_error *e);

/** When not writable: close and open again. OK when it is writable after it. */
quire_status qr_disk_index_recover(struct qr_disk_index *index, struct qr_error *e);
void qr_disk_index_stat(struct qr_disk_index *index, struct qr_disk_index_stat *out);

#define QR_DISK_LOG_FOLDER_BYTES 80u
/** A folder for RocksDB's own text log, on another file system than the index, made if needed;
 * it is found again by the index's path. False: there is none, and the log stays with the
 * index. */
bool qr_disk_index_log_folder(const char *index_path, char out[QR_DISK_LOG_FOLDER_BYTES]);

#endif
