/* SPDX-License-Identifier: Apache-2.0
 *
 * The index alone: how long a store of many pages takes to open, and what its
 * entries cost in RAM and on disk.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disk_bench.h"

#define BATCH 2000u

static void fill(struct qr_disk_index *index, uint32_t entries)
{
    struct qr_disk_batch batch = {0};
    const struct qr_disk_batch *one = &batch;

    for (uint32_t first = 0; first < entries; first += BATCH) {
        qr_disk_batch_clear(&batch);
        for (uint32_t i = first; i < first + BATCH && i < entries; i++) {
            const uint64_t id[4] = {(i + 1) * UINT64_C(0x9E3779B97F4A7C15), i, 0, 0};
            const struct qr_disk_key key = qr_disk_key_page((const uint8_t *)id);
            uint8_t record[QR_DISK_PAGE_RECORD_BYTES];
            const struct qr_disk_page page = {.place = {0, i / 1024, i % 1024, 100032},
                                              .checksum = id[0]};
            qr_disk_page_write(&page, record);
            qr_disk_batch_put(&batch, &key, record, sizeof(record));
        }
        must(qr_disk_index_write(index, &one, 1, NULL) == QUIRE_OK, "index write");
    }
    qr_disk_batch_free(&batch);
}

static bool count(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                  size_t value_bytes)
{
    struct qr_disk_page page;

    (void)key;
    must(key_bytes == 1 + QR_HASH_BYTES &&
             qr_disk_page_read(value, value_bytes, &page) == QUIRE_OK,
         "a page record");
    ++*(uint32_t *)arg;
    return true;
}

void measure_index(const char *folder, uint32_t entries)
{
    char path[512];
    struct qr_disk_index *index = NULL;
    struct qr_disk_index_stat stat;
    const struct qr_disk_key pages = {.bytes = {QR_DISK_KEY_PAGE}, .n = 1};
    const struct qr_disk_index_config config = {.path = path, .create = true};
    uint32_t found = 0;

    (void)snprintf(path, sizeof(path), "%s/entries", folder);
    must(qr_disk_index_open(&config, &index, NULL) == QUIRE_OK, "index");
    const double start = seconds();
    fill(index, entries);
    const double filled = seconds();
    qr_disk_index_close(&index);
    const double closed = seconds();
    must(qr_disk_index_open(&config, &index, NULL) == QUIRE_OK, "index");
    const double opened = seconds();
    must(qr_disk_index_each(index, &pages, count, &found, NULL) == QUIRE_OK && found == entries,
         "every entry");
    const double read = seconds();
    qr_disk_index_stat(index, &stat);
    printf(
        "index of %u pages: open %.2f s, read all %.2f s (together %.2f of the 2 s that 1 M "
        "may take); RocksDB's RAM %.1f B a page; written at %.0f ns a page in batches of %u\n",
        entries, opened - closed, read - opened, (read - closed) / 2.0,
        (double)stat.ram_bytes / entries, (filled - start) * 1e9 / entries, BATCH);
    qr_disk_index_close(&index);
}
