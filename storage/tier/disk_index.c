/* SPDX-License-Identifier: Apache-2.0
 *
 * The index on RocksDB's C interface, whose only includer this is. That
 * interface cannot resume after a background error, so the database is closed
 * and opened again under `lock`, which everybody else holds shared.
 */
#include "disk_index.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rocksdb/c.h>

#include "storage/base/counter.h"
#include "storage/base/log.h"

#define CACHE_BYTES (32u << 20)
#define WRITE_BUFFER_BYTES                                                                     \
    (4u << 20) /* 3 of them: 50,000 entries each, which a start may replay */
#define WRITE_BUFFERS 3
#define WAL_BYTES_MAX (16u << 20) /* bounds what a start replays */
#define OPEN_FILES_MAX 128
#define BLOOM_BITS 10
#define NOT_TRIED (UINT64_MAX - 1) /* no generation */
#define WAL_TOLERATE_TORN_TAIL 0   /* RocksDB's kTolerateCorruptedTailRecords */

struct qr_disk_index {
    char *path;                                         /* const */
    rocksdb_options_t *options;                         /* const */
    rocksdb_block_based_table_options_t *table;         /* const */
    rocksdb_cache_t *cache;                             /* const */
    rocksdb_readoptions_t *read_options, *scan_options; /* const */
    rocksdb_writeoptions_t *write_options;              /* const: synced */
    pthread_rwlock_t lock;
    rocksdb_t *db;                  /* guarded by lock; NULL when closed */
    enum qr_disk_index_state state; /* guarded by lock */
    struct qr_counter writes, batches, changes, reopens, failures;
};

static quire_status status_of(const char *message)
{
    if (strstr(message, "No space left") || strstr(message, "quota exceeded"))
        return QUIRE_EFULL;
    if (strstr(message, "Corruption"))
        return QUIRE_ECORRUPT;
    return QUIRE_EIO;
}

/* RocksDB's message as our error; frees it. */
static quire_status fail(const struct qr_disk_index *index, const char *what, char *message,
                         struct qr_error *e)
{
    const quire_status status = status_of(message);

    for (char *c = message; *c; c++) {
        if (*c == '\n')
            *c = ' ';
    }
    (void)qr_error_set(e, status, "index %s: cannot %s: %s", index->path, what, message);
    rocksdb_free(message);
    return status;
}

/* ---- open ------------------------------------------------------------------------------- */

static void set_options(struct qr_disk_index *index, const struct qr_disk_index_config *config)
{
    rocksdb_options_t *o = index->options;
    char log_folder[QR_DISK_LOG_FOLDER_BYTES];

    rocksdb_options_set_create_if_missing(o, config->create);
    rocksdb_options_set_paranoid_checks(o, 1);
    rocksdb_options_set_wal_recovery_mode(o, WAL_TOLERATE_TORN_TAIL);
    rocksdb_options_set_write_buffer_size(o, WRITE_BUFFER_BYTES);
    rocksdb_options_set_max_write_buffer_number(o, WRITE_BUFFERS);
    rocksdb_options_set_max_total_wal_size(o, WAL_BYTES_MAX);
    rocksdb_options_set_max_open_files(o, OPEN_FILES_MAX);
    rocksdb_options_set_compression(o, rocksdb_no_compression); /* hashes do not compress */
    rocksdb_options_set_skip_stats_update_on_db_open(o, 1);
    rocksdb_options_set_stats_dump_period_sec(o, 0);
    rocksdb_options_set_stats_persist_period_sec(o, 0);
    rocksdb_options_set_keep_log_file_num(o, 2);
    rocksdb_options_set_info_log_level(o, 4); /* fatal: the rest comes back as errors */
    if (qr_disk_index_log_folder(config->path, log_folder))
        rocksdb_options_set_db_log_dir(o, log_folder);
    rocksdb_options_set_max_log_file_size(o, 1u << 20);
    index->cache =
        rocksdb_cache_create_lru(config->cache_bytes ? config->cache_bytes : CACHE_BYTES);
    rocksdb_block_based_options_set_block_cache(index->table, index->cache);
    rocksdb_block_based_options_set_filter_policy(
        index->table, rocksdb_filterpolicy_create_bloom_full(BLOOM_BITS));
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(index->table, 1);
    rocksdb_options_set_block_based_table_factory(o, index->table);
    rocksdb_writeoptions_set_sync(index->write_options, 1);
    rocksdb_readoptions_set_verify_checksums(index->read_options, 1);
    rocksdb_readoptions_set_verify_checksums(index->scan_options, 1);
    rocksdb_readoptions_set_fill_cache(index->scan_options, 0);
    rocksdb_readoptions_set_readahead_size(index->scan_options, 1u << 20);
}

static struct qr_disk_index *index_alloc(const struct qr_disk_index_config *config)
{
    struct qr_disk_index *index = calloc(1, sizeof(*index));

    if (!index)
        return NULL;
    index->path = strdup(config->path);
    if (!index->path) {
        free(index);
        return NULL;
    }
    pthread_rwlock_init(&index->lock, NULL);
    index->options = rocksdb_options_create();
    index->table = rocksdb_block_based_options_create();
    index->read_options = rocksdb_readoptions_create();
    index->scan_options = rocksdb_readoptions_create();
    index->write_options = rocksdb_writeoptions_create();
    set_options(index, config);
    return index;
}

static quire_status open_locked(struct qr_disk_index *index, struct qr_error *e)
{
    char *message = NULL;

    index->db = rocksdb_open(index->options, index->path, &message);
    index->state = message ? QR_DISK_CLOSED : QR_DISK_WRITABLE;
    return message ? fail(index, "open it", message, e) : QUIRE_OK;
}

static quire_status open_read_only_locked(struct qr_disk_index *index, struct qr_error *e)
{
    char *message = NULL;

    index->db = rocksdb_open_for_read_only(index->options, index->path, 0, &message);
    index->state = message ? QR_DISK_CLOSED : QR_DISK_READ_ONLY;
    return message ? fail(index, "open it", message, e) : QUIRE_OK;
}

static quire_status write_version(struct qr_disk_index *index, struct qr_error *e)
{
    const struct qr_disk_key key = qr_disk_key_version();
    const uint32_t version = QR_DISK_VERSION;
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;

    qr_disk_batch_put(&batch, &key, &version, sizeof(version));
    const quire_status status = qr_disk_index_write(index, &one, 1, e);
    qr_disk_batch_free(&batch);
    return status;
}

static bool stop_at_first(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                          size_t value_bytes)
{
    (void)key;
    (void)key_bytes;
    (void)value;
    (void)value_bytes;
    *(bool *)arg = true;
    return false;
}

/* An empty index becomes one of this version; others must say which they are. */
static quire_status check_version(struct qr_disk_index *index,
                                  const struct qr_disk_index_config *config, struct qr_error *e)
{
    const struct qr_disk_key key = qr_disk_key_version(), everything = {.n = 0};
    uint32_t version = 0;
    size_t bytes = 0;
    bool any = false;
    quire_status status = qr_disk_index_get(index, &key, &version, sizeof(version), &bytes);

    if (status == QUIRE_ENOTFOUND) {
        status = qr_disk_index_each(index, &everything, stop_at_first, &any, e);
        if (status == QUIRE_OK && any)
            status = qr_error_set(
                e, QUIRE_ECORRUPT,
                "index %s: has entries and no version: not Quire's, or damaged", index->path);
        return status == QUIRE_OK && !config->read_only ? write_version(index, e) : status;
    }
    if (status != QUIRE_OK)
        return qr_error_set(e, status, "index %s: cannot read its version", index->path);
    if (bytes != sizeof(version) || version == 0)
        return qr_error_set(e, QUIRE_ECORRUPT, "index %s: its version is damaged", index->path);
    if (version > QR_DISK_VERSION)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "index %s: made by a newer Quire (version %u, this one knows up to "
                            "%u): start that Quire",
                            index->path, version, QR_DISK_VERSION);
    if (version == QR_DISK_VERSION)
        return QUIRE_OK;
    if (config->read_only)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "index %s: of version %u, this Quire writes %u: start quired once, "
                            "it upgrades",
                            index->path, version, QR_DISK_VERSION);
    if (!config->upgrade)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "index %s: of version %u, and this Quire upgrades none to %u",
                            index->path, version, QR_DISK_VERSION);
    status = config->upgrade(index, version, e);
    return status == QUIRE_OK ? write_version(index, e) : status;
}

static bool exists(const char *path)
{
    char current[4200];
    const int n = snprintf(current, sizeof(current), "%s/CURRENT", path);

    return n > 0 && (size_t)n < sizeof(current) && access(current, F_OK) == 0;
}

quire_status qr_disk_index_open(const struct qr_disk_index_config *config,
                                struct qr_disk_index **out, struct qr_error *e)
{
    /* RocksDB leaves a folder behind where it finds no database. */
    if (!config->create && !exists(config->path))
        return qr_error_set(e, QUIRE_ENOTFOUND,
                            "index %s: is missing, and the store has data: put it back from "
                            "where it was moved, or restore it from a backup",
                            config->path);
    struct qr_disk_index *index = index_alloc(config);
    if (!index)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the index");
    quire_status status =
        config->read_only ? open_read_only_locked(index, e) : open_locked(index, e);
    if (status == QUIRE_OK)
        status = check_version(index, config, e);
    if (status != QUIRE_OK) {
        qr_disk_index_close(&index);
        return status;
    }
    *out = index;
    return QUIRE_OK;
}

void qr_disk_index_close(struct qr_disk_index **index)
{
    struct qr_disk_index *i = *index;

    if (!i)
        return;
    if (i->db)
        rocksdb_close(i->db);
    rocksdb_options_destroy(i->options);
    rocksdb_block_based_options_destroy(i->table);
    rocksdb_cache_destroy(i->cache);
    rocksdb_readoptions_destroy(i->read_options);
    rocksdb_readoptions_destroy(i->scan_options);
    rocksdb_writeoptions_destroy(i->write_options);
    pthread_rwlock_destroy(&i->lock);
    free(i->path);
    free(i);
    *index = NULL;
}

/* ---- write ------------------------------------------------------------------------------ */

static rocksdb_writebatch_t *merge(struct qr_disk_index *index,
                                   const struct qr_disk_batch *const *batches, size_t count)
{
    rocksdb_writebatch_t *all = rocksdb_writebatch_create();

    for (size_t i = 0; i < count; i++) {
        struct qr_disk_change c;
        for (size_t at = 0; qr_disk_batch_next(batches[i], &at, &c);) {
            if (c.put)
                rocksdb_writebatch_put(all, (const char *)c.key, c.key_bytes,
                                       (const char *)c.value, c.value_bytes);
            else
                rocksdb_writebatch_delete(all, (const char *)c.key, c.key_bytes);
        }
        qr_counter_add(&index->changes, batches[i]->count);
    }
    qr_counter_add(&index->batches, count);
    return all;
}

/* The generation tells whether somebody else has opened the database again since. */
static char *write_once(struct qr_disk_index *index, rocksdb_writebatch_t *all,
                        uint64_t *generation_out)
{
    char *message = NULL;

    pthread_rwlock_rdlock(&index->lock);
    *generation_out = qr_counter_read(&index->reopens);
    if (index->state != QR_DISK_WRITABLE) {
        message = strdup("it is read-only after an earlier failure");
        *generation_out = NOT_TRIED;
    } else {
        rocksdb_write(index->db, index->write_options, all, &message);
    }
    pthread_rwlock_unlock(&index->lock);
    return message;
}

/* Open again, unless somebody has since `generation`; UINT64_MAX: in any case. */
static quire_status reopen(struct qr_disk_index *index, uint64_t generation, struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    pthread_rwlock_wrlock(&index->lock);
    if (generation != UINT64_MAX && generation != qr_counter_read(&index->reopens)) {
        status = index->state == QR_DISK_WRITABLE ? QUIRE_OK : QUIRE_EIO;
        pthread_rwlock_unlock(&index->lock);
        return status;
    }
    if (index->db)
        rocksdb_close(index->db);
    qr_counter_add(&index->reopens, 1);
    status = open_locked(index, e);
    if (status != QUIRE_OK)
        (void)open_read_only_locked(index, NULL);
    const enum qr_disk_index_state state = index->state;
    pthread_rwlock_unlock(&index->lock);
    QR_LOG(status == QUIRE_OK ? QR_LOG_WARN : QR_LOG_ERROR, "disk.index_reopened",
           QR_LOG_STR("index", index->path),
           QR_LOG_STR("state", state == QR_DISK_WRITABLE    ? "writable"
                               : state == QR_DISK_READ_ONLY ? "read-only"
                                                            : "closed"));
    return status;
}

quire_status qr_disk_index_recover(struct qr_disk_index *index, struct qr_error *e)
{
    return reopen(index, UINT64_MAX, e);
}

/* Writers find it read-only until qr_disk_index_recover succeeds. Opened anew, so that readers
 * see what the files have, with or without the write that failed. */
static void give_up(struct qr_disk_index *index)
{
    pthread_rwlock_wrlock(&index->lock);
    if (index->state == QR_DISK_WRITABLE) {
        rocksdb_close(index->db);
        index->db = NULL;
        (void)open_read_only_locked(index, NULL);
    }
    pthread_rwlock_unlock(&index->lock);
}

quire_status qr_disk_index_write(struct qr_disk_index *index,
                                 const struct qr_disk_batch *const *batches, size_t count,
                                 struct qr_error *e)
{
    for (size_t i = 0; i < count; i++) {
        if (batches[i]->failed)
            return qr_error_set(e, QUIRE_EINVAL,
                                "a batch that ran out of memory or of its %u "
                                "bytes: nothing is written",
                                QR_DISK_BATCH_MAX);
    }
    rocksdb_writebatch_t *all = merge(index, batches, count);
    uint64_t generation;
    char *message = write_once(index, all, &generation);
    if (message && generation != NOT_TRIED && reopen(index, generation, NULL) == QUIRE_OK) {
        rocksdb_free(message);
        /* The same puts again: no harm if they were there. */
        message = write_once(index, all, &generation);
        if (message)
            give_up(index);
    }
    rocksdb_writebatch_destroy(all);
    qr_counter_add(&index->writes, 1);
    if (!message)
        return QUIRE_OK;
    qr_counter_add(&index->failures, 1);
    return fail(index, "write", message, e);
}

/* ---- read ------------------------------------------------------------------------------- */

quire_status qr_disk_index_get(struct qr_disk_index *index, const struct qr_disk_key *key,
                               void *value, size_t capacity, size_t *bytes_out)
{
    char *message = NULL;
    size_t bytes = 0;
    rocksdb_pinnableslice_t *found = NULL;

    pthread_rwlock_rdlock(&index->lock);
    const bool open = index->db != NULL;
    if (open)
        found = rocksdb_get_pinned(index->db, index->read_options, (const char *)key->bytes,
                                   key->n, &message);
    if (found) {
        const char *bytes_found = rocksdb_pinnableslice_value(found, &bytes);
        memcpy(value, bytes_found, bytes < capacity ? bytes : capacity);
        rocksdb_pinnableslice_destroy(found);
        *bytes_out = bytes;
    }
    pthread_rwlock_unlock(&index->lock);
    if (message || !open) {
        rocksdb_free(message);
        return QUIRE_EIO;
    }
    return found ? QUIRE_OK : QUIRE_ENOTFOUND;
}

quire_status qr_disk_index_each(struct qr_disk_index *index, const struct qr_disk_key *prefix,
                                qr_disk_index_each_fn *each, void *arg, struct qr_error *e)
{
    return qr_disk_index_each_from(index, prefix, prefix, each, arg, e);
}

quire_status qr_disk_index_each_from(struct qr_disk_index *index,
                                     const struct qr_disk_key *prefix,
                                     const struct qr_disk_key *from,
                                     qr_disk_index_each_fn *each, void *arg, struct qr_error *e)
{
    char *message = NULL;

    pthread_rwlock_rdlock(&index->lock);
    if (!index->db) {
        pthread_rwlock_unlock(&index->lock);
        return qr_error_set(e, QUIRE_EIO, "index %s: is closed after an earlier failure",
                            index->path);
    }
    rocksdb_iterator_t *it = rocksdb_create_iterator(index->db, index->scan_options);
    for (rocksdb_iter_seek(it, (const char *)from->bytes, from->n); rocksdb_iter_valid(it);
         rocksdb_iter_next(it)) {
        size_t key_bytes, value_bytes;
        const char *key = rocksdb_iter_key(it, &key_bytes);
        if (key_bytes < prefix->n || memcmp(key, prefix->bytes, prefix->n) != 0)
            break;
        const char *value = rocksdb_iter_value(it, &value_bytes);
        if (!each(arg, (const uint8_t *)key, key_bytes, (const uint8_t *)value, value_bytes))
            break;
    }
    rocksdb_iter_get_error(it, &message);
    rocksdb_iter_destroy(it);
    pthread_rwlock_unlock(&index->lock);
    return message ? fail(index, "read on", message, e) : QUIRE_OK;
}

static uint64_t property(struct qr_disk_index *index, const char *name)
{
    uint64_t value = 0;

    if (index->db && rocksdb_property_int(index->db, name, &value) != 0)
        value = 0;
    return value;
}

void qr_disk_index_stat(struct qr_disk_index *index, struct qr_disk_index_stat *out)
{
    pthread_rwlock_rdlock(&index->lock);
    *out = (struct qr_disk_index_stat){
        .state = index->state,
        .writes = qr_counter_read(&index->writes),
        .batches = qr_counter_read(&index->batches),
        .changes = qr_counter_read(&index->changes),
        .reopens = qr_counter_read(&index->reopens),
        .failures = qr_counter_read(&index->failures),
        .entries = property(index, "rocksdb.estimate-num-keys"),
        .ram_bytes = property(index, "rocksdb.cur-size-all-mem-tables") +
                     property(index, "rocksdb.estimate-table-readers-mem") +
                     property(index, "rocksdb.block-cache-usage")};
    pthread_rwlock_unlock(&index->lock);
}
