/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole sessions for tests of the disk tier: namespaces, real pages, manifests,
 * lane records and tail rows, all of them following from a few numbers.
 */
#ifndef QR_DISK_SESSIONS_H
#define QR_DISK_SESSIONS_H

#include "disk_pages.h"

#define TEST_PAGE_TOKENS 16u
#define TEST_LANES_MAX 4u
#define TEST_TAIL_TOKENS 5u /* rows of a lane behind its sealed blocks */
#define TEST_ROW_BYTES 64u

struct test_session {
    uint32_t ns, number; /* number: the session's own */
    uint32_t lanes, blocks;
    uint16_t dim;   /* of keys and values: makes the page's size */
    bool tail;      /* with rows in the tail log */
    bool ownerless; /* without the session's own record */
};

static inline void test_session_uuid(const struct test_session *s,
                                     uint8_t out[QR_DISK_UUID_BYTES])
{
    memset(out, 0, QR_DISK_UUID_BYTES);
    out[0] = (uint8_t)(0x10 + s->number);
    out[15] = (uint8_t)s->ns;
}

static inline void test_secret(uint32_t ns, uint8_t out[QR_HASH_BYTES])
{
    memset(out, (int)(0xA0 + ns), QR_HASH_BYTES);
}

static inline struct qr_policy test_policy(void)
{
    const struct qr_codec_spec raw = {.codec = QR_CODEC_RAW, .bits = 16};
    return (struct qr_policy){.page_tokens = TEST_PAGE_TOKENS,
                              .window = 16,
                              .sink_rows = 4,
                              .key = raw,
                              .value = raw};
}

static inline void test_fingerprint(uint8_t out[QR_HASH_BYTES])
{
    memset(out, 0x77, QR_HASH_BYTES);
}

static inline struct qr_page_identity test_identity(const struct test_session *s, uint32_t lane,
                                                    uint32_t block)
{
    uint8_t uuid[QR_DISK_UUID_BYTES];
    struct qr_page_identity id = {.layer = lane,
                                  .heads = 2,
                                  .key_dim = s->dim,
                                  .value_dim = s->dim,
                                  .page_tokens = TEST_PAGE_TOKENS,
                                  .first_position = (uint64_t)block * TEST_PAGE_TOKENS,
                                  .key = test_policy().key,
                                  .value = test_policy().value};

    test_fingerprint(id.fingerprint);
    test_session_uuid(s, uuid);
    qr_block_id_unique(id.fingerprint, uuid, block, id.block_id);
    return id;
}

static inline void test_session_page_id(const struct test_session *s, uint32_t lane,
                                        uint32_t block, uint8_t out[QR_HASH_BYTES])
{
    const struct qr_page_identity id = test_identity(s, lane, block);
    const struct qr_policy policy = test_policy();
    uint8_t secret[QR_HASH_BYTES];

    test_secret(s->ns, secret);
    qr_page_id(secret, id.block_id, lane, 0, id.heads, &policy, out);
}

/** A real page of raw rows; to be freed. */
static inline void *test_session_page(const struct test_session *s, uint32_t lane,
                                      uint32_t block, uint32_t *bytes_out)
{
    static const uint8_t none[QR_PAGE_TOKENS_MAX / 8];
    const struct qr_page_identity id = test_identity(s, lane, block);
    const size_t bytes = qr_page_bytes(&id, 0);
    void *page = aligned_alloc(64, bytes);
    struct qr_page_sections sections;

    assert_non_null(page);
    assert_ok(qr_page_begin(page, bytes, &id, none, &sections, NULL));
    const uint32_t codes = TEST_PAGE_TOKENS * 2u * s->dim * 2u;
    test_page_fill(s->number * 1000003u + lane * 1009u + block, sections.key_codes, codes);
    test_page_fill(s->number * 1000033u + lane * 1013u + block, sections.value_codes, codes);
    qr_page_finish(page);
    *bytes_out = (uint32_t)bytes;
    return page;
}

static inline void test_put_heads(struct qr_disk_batch *batch, const struct test_session *s)
{
    uint8_t uuid[QR_DISK_UUID_BYTES], value[QR_DISK_SESSION_RECORD_MAX], secret[64];
    struct qr_disk_session record = {
        .policy = test_policy(), .head_shards = 1, .epoch = 1, .ttl_ms = 1000};

    test_session_uuid(s, uuid);
    test_secret(s->ns, secret);
    memcpy(secret + QR_HASH_BYTES, "tenant", 6);
    struct qr_disk_key key = qr_disk_key_namespace(s->ns);
    qr_disk_batch_put(batch, &key, secret, QR_HASH_BYTES + 6);
    test_fingerprint(record.fingerprint);
    key = qr_disk_key_model(record.fingerprint);
    qr_disk_batch_put(batch, &key, "model", 5);
    snprintf(record.name, sizeof(record.name), "session-%u", s->number);
    key = qr_disk_key_session(s->ns, uuid);
    if (!s->ownerless)
        qr_disk_batch_put(batch, &key, value, qr_disk_session_write(&record, value));
}

static inline void test_put_lanes(struct qr_disk_batch *batch, const struct test_session *s)
{
    uint8_t uuid[QR_DISK_UUID_BYTES], value[QR_DISK_LANE_RECORD_BYTES];
    const struct qr_disk_lane record = {.sealed = s->blocks};

    test_session_uuid(s, uuid);
    for (uint32_t lane = 0; lane < s->lanes; lane++) {
        const struct qr_disk_key key = qr_disk_key_lane(uuid, lane);
        qr_disk_lane_write(&record, value);
        qr_disk_batch_put(batch, &key, value, sizeof(value));
    }
}

static inline void test_put_manifest(struct qr_disk_batch *batch,
                                     const uint8_t uuid[QR_DISK_UUID_BYTES], uint32_t lane,
                                     uint32_t block, const uint8_t id[QR_HASH_BYTES],
                                     const struct qr_disk_page *page)
{
    const struct qr_disk_key key = qr_disk_key_manifest(uuid, lane, block);
    struct qr_disk_block entry = {.place = page->place, .checksum = page->checksum};
    uint8_t value[QR_DISK_BLOCK_RECORD_BYTES];

    memcpy(entry.page_id, id, QR_HASH_BYTES);
    qr_disk_block_write(&entry, value);
    qr_disk_batch_put(batch, &key, value, sizeof(value));
}

/** One block of all lanes, and the records that go with it. */
static inline void test_put_block(struct qr_disk *disk, const struct test_session *s,
                                  uint32_t block)
{
    struct qr_disk_put puts[TEST_LANES_MAX];
    uint8_t ids[TEST_LANES_MAX][QR_HASH_BYTES], uuid[QR_DISK_UUID_BYTES];
    struct qr_disk_batch batch = {0};

    assert_true(s->lanes <= TEST_LANES_MAX);
    test_session_uuid(s, uuid);
    for (uint32_t lane = 0; lane < s->lanes; lane++) {
        uint32_t bytes;
        void *page = test_session_page(s, lane, block, &bytes);
        const struct qr_page_header *h = page;
        test_session_page_id(s, lane, block, ids[lane]);
        puts[lane] = (struct qr_disk_put){.page_id = ids[lane],
                                          .bytes = page,
                                          .capacity = bytes,
                                          .page = {.place = {.bytes = bytes},
                                                   .checksum = h->checksum,
                                                   .layer = lane,
                                                   .heads = h->heads,
                                                   .first_position = h->first_position,
                                                   .ns = s->ns,
                                                   .named = 1}};
    }
    assert_ok(qr_disk_put_pages(disk, puts, s->lanes, NULL));
    const struct qr_page_identity id = test_identity(s, 0, block);
    const struct qr_disk_key key = qr_disk_key_block(uuid, block);
    qr_disk_batch_put(&batch, &key, id.block_id, QR_HASH_BYTES);
    for (uint32_t lane = 0; lane < s->lanes; lane++) {
        test_put_manifest(&batch, uuid, lane, block, ids[lane], &puts[lane].page);
        free(puts[lane].bytes);
    }
    struct qr_disk_commit commit = {.batch = &batch};
    assert_ok(qr_disk_commit_wait(disk, &commit));
    qr_disk_batch_free(&batch);
}

static inline void test_append_tail(struct qr_disk *disk, const struct test_session *s,
                                    uint64_t position, uint32_t tokens)
{
    uint8_t rows[TEST_PAGE_TOKENS * TEST_ROW_BYTES];
    struct qr_tail_record record = {.tokens = tokens,
                                    .position = position,
                                    .payload = rows,
                                    .payload_bytes = tokens * TEST_ROW_BYTES};
    struct qr_disk_commit commit = {.tail = true};
    uint64_t sequence;

    test_session_uuid(s, record.session);
    test_page_fill(s->number + position, rows, sizeof(rows));
    for (record.lane = 0; record.lane < s->lanes; record.lane++)
        assert_ok(qr_tail_log_append(qr_disk_tail_log_of(disk), &record, &sequence));
    assert_ok(qr_disk_commit_wait(disk, &commit));
}

/** Everything of a session. The tail log must have been replayed. */
static inline void test_put_session(struct qr_disk *disk, const struct test_session *s)
{
    struct qr_disk_batch batch = {0};
    struct qr_disk_commit commit = {.batch = &batch};

    test_put_heads(&batch, s);
    test_put_lanes(&batch, s);
    for (uint32_t block = 0; block < s->blocks; block++)
        test_put_block(disk, s, block);
    assert_ok(qr_disk_commit_wait(disk, &commit));
    qr_disk_batch_free(&batch);
    if (s->tail)
        test_append_tail(disk, s, (uint64_t)s->blocks * TEST_PAGE_TOKENS, TEST_TAIL_TOKENS);
}

/** Record of one page of a session. */
static inline struct qr_disk_page test_session_record(struct qr_disk *disk,
                                                      const struct test_session *s,
                                                      uint32_t lane, uint32_t block)
{
    uint8_t id[QR_HASH_BYTES], record[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_page page;
    size_t n;

    test_session_page_id(s, lane, block, id);
    const struct qr_disk_key key = qr_disk_key_page(id);
    assert_ok(qr_disk_index_get(qr_disk_index_of(disk), &key, record, sizeof(record), &n));
    assert_ok(qr_disk_page_read(record, n, &page));
    return page;
}

#endif
