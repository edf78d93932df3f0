/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages for tests of the disk tier: bytes that follow from a number, so that any
 * page can be recognized and any damage seen.
 */
#ifndef QR_DISK_PAGES_H
#define QR_DISK_PAGES_H

#include "disk_test.h"

#include <pthread.h>

#include "proto/page.h"
#include "storage/tier/tier_disk.h"

#define TEST_PAGE_MAX (256u << 10)

static inline void test_page_id(uint64_t number, uint8_t out[QR_HASH_BYTES])
{
    memset(out, 0, QR_HASH_BYTES);
    memcpy(out, &number, sizeof(number));
}

/** Sizes vary with the number: 64 .. limit, multiples of 64. */
static inline uint32_t test_page_bytes(uint64_t number, uint32_t limit)
{
    const uint64_t mixed = (number + 1) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)((mixed >> 33) % (limit / 64) + 1) * 64;
}

static inline void test_page_fill(uint64_t number, uint8_t *out, uint32_t bytes)
{
    uint64_t x = number * UINT64_C(0xD1342543DE82EF95) + 1;

    for (uint32_t i = 0; i < bytes; i += 8) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(out + i, &x, 8);
    }
}

/** Durably put pages [first, first + count) in one commit. */
static inline quire_status test_put(struct qr_disk *disk, uint64_t first, uint32_t count,
                                    uint32_t limit, struct qr_disk_place *places)
{
    struct qr_disk_put puts[64];
    uint8_t ids[64][QR_HASH_BYTES];
    uint8_t *bytes[64];

    assert_true(count <= 64);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t n = test_page_bytes(first + i, limit);
        bytes[i] = malloc(n);
        assert_non_null(bytes[i]);
        test_page_fill(first + i, bytes[i], n);
        test_page_id(first + i, ids[i]);
        puts[i] = (struct qr_disk_put){
            .page_id = ids[i],
            .bytes = bytes[i],
            .capacity = n,
            .page = {.place = {.bytes = n}, .checksum = qr_checksum(bytes[i], n), .layer = 1}};
    }
    const quire_status status = qr_disk_put_pages(disk, puts, count, NULL);
    for (uint32_t i = 0; i < count; i++) {
        free(bytes[i]);
        if (places)
            places[i] = puts[i].page.place;
    }
    return status;
}

struct test_read_wait {
    pthread_mutex_t lock;
    pthread_cond_t done;
    int fired;
    quire_status status;
};

static inline void test_read_done(void *arg, quire_status status)
{
    struct test_read_wait *w = arg;

    pthread_mutex_lock(&w->lock);
    w->fired++;
    w->status = status;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

/** Read a place and wait. */
static inline quire_status test_read(struct qr_disk *disk, const struct qr_disk_place *place,
                                     void *out, uint64_t deadline_ns)
{
    struct test_read_wait w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    const struct qr_disk_transfer transfer = {.place = *place,
                                              .buffer = out,
                                              .capacity = place->bytes,
                                              .deadline_ns = deadline_ns,
                                              .done = test_read_done,
                                              .arg = &w};
    const quire_status status = qr_disk_read(disk, &transfer, NULL);

    if (status != QUIRE_OK)
        return status;
    pthread_mutex_lock(&w.lock);
    while (w.fired == 0)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return w.status;
}

/** Look a page up and read it: OK, ENOTFOUND, ECORRUPT (bytes differ from the checksum of the
 * index), or what reading says. OK means the very bytes of that number, else the test ends. */
static inline quire_status test_get(struct qr_disk *disk, uint64_t number)
{
    uint8_t id[QR_HASH_BYTES], record[QR_DISK_PAGE_RECORD_BYTES];
    static _Thread_local uint8_t got[TEST_PAGE_MAX], expected[TEST_PAGE_MAX];
    struct qr_disk_page page;
    size_t n;

    test_page_id(number, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    quire_status status =
        qr_disk_index_get(qr_disk_index_of(disk), &key, record, sizeof(record), &n);
    if (status == QUIRE_OK)
        status = qr_disk_page_read(record, n, &page);
    if (status == QUIRE_OK)
        status = test_read(disk, &page.place, got, 0);
    if (status != QUIRE_OK)
        return status;
    if (qr_checksum(got, page.place.bytes) != page.checksum)
        return QUIRE_ECORRUPT;
    test_page_fill(number, expected, page.place.bytes);
    assert_memory_equal(got, expected, page.place.bytes);
    return QUIRE_OK;
}

#endif
