/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the offline check share: a store with two sessions and half a
 * session, ways to spoil it, and the findings as a list.
 */
#ifndef QR_DISK_CHECK_TEST_H
#define QR_DISK_CHECK_TEST_H

#include "disk_sessions.h"

#include "storage/tier/disk_check.h"
#include "storage/tier/disk_class.h"

#define CAP ((64u << 20) + 4096u)
#define FOUND_MAX 64u

static const struct test_session first = {
    .ns = 1, .number = 1, .lanes = 2, .blocks = 4, .dim = 64, .tail = true};
static const struct test_session second = {
    .ns = 2, .number = 2, .lanes = 1, .blocks = 3, .dim = 256};
static const struct test_session ghost = {
    .ns = 1, .number = 3, .lanes = 2, .blocks = 1, .dim = 64, .ownerless = true};

struct fixture {
    struct fault_io fault;
    char *base;
    char paths[2][300];
    struct qr_disk_config config;
    struct qr_disk *disk; /* NULL while it is checked */
    struct qr_disk_check_config check;
    struct qr_disk_check_result result;
    struct qr_disk_finding found[FOUND_MAX];
    char sessions[FOUND_MAX][40];
    uint32_t count;
};

static inline bool keep_rows(void *arg, const struct qr_tail_record *record)
{
    (void)arg;
    (void)record;
    return true;
}

static inline void open_store(struct fixture *f)
{
    struct qr_tail_log_report report;

    assert_ok(qr_disk_open(&f->config, NULL, NULL, &f->disk, NULL));
    assert_ok(qr_tail_log_replay(qr_disk_tail_log_of(f->disk), keep_rows, NULL, &report, NULL));
}

static inline void take_finding(void *arg, const struct qr_disk_finding *finding)
{
    struct fixture *f = arg;

    assert_true(f->count < FOUND_MAX);
    snprintf(f->sessions[f->count], sizeof(f->sessions[0]), "%s",
             finding->session ? finding->session : "");
    f->found[f->count++] = *finding;
}

static inline void setup(struct fixture *f, uint32_t devices)
{
    memset(f, 0, sizeof(*f));
    fault_init(&f->fault);
    f->base = test_folder();
    f->config = (struct qr_disk_config){.io = &f->fault.io,
                                        .count = devices,
                                        .create = true,
                                        .tail_log_bytes = 1u << 20,
                                        .tail_segment_bytes = 64u << 10};
    for (uint32_t d = 0; d < devices; d++) {
        snprintf(f->paths[d], sizeof(f->paths[d]), "%s/device%u", f->base, d);
        f->config.folders[d] = f->check.folders[d] = f->paths[d];
        f->config.cap_bytes[d] = CAP;
    }
    f->check.io = &f->fault.io;
    f->check.count = devices;
    f->check.found = take_finding;
    f->check.arg = f;
    open_store(f);
    test_put_session(f->disk, &first);
    test_put_session(f->disk, &second);
}

static inline void teardown(struct fixture *f)
{
    qr_disk_close(&f->disk);
    test_folder_remove(f->base);
}

static inline void check(struct fixture *f)
{
    struct qr_error e = {0};

    qr_disk_close(&f->disk);
    f->count = 0;
    const quire_status status = qr_disk_check(&f->check, &f->result, &e);
    if (status != QUIRE_OK)
        print_message("%s\n", e.text);
    assert_ok(status);
}

static inline const struct qr_disk_finding *find(const struct fixture *f,
                                                 enum qr_disk_finding_kind kind)
{
    for (uint32_t i = 0; i < f->count; i++) {
        if (f->found[i].kind == kind)
            return &f->found[i];
    }
    print_message("no %s\n", qr_disk_finding_name(kind));
    fail();
    return NULL;
}

static inline void assert_tokens(const struct fixture *f, enum qr_disk_finding_kind kind,
                                 const char *session, uint32_t lane, uint64_t from,
                                 uint64_t end)
{
    const struct qr_disk_finding *finding = find(f, kind);

    assert_string_equal(f->sessions[finding - f->found], session);
    assert_int_equal(finding->lane, lane);
    assert_int_equal(finding->first_token, from);
    assert_int_equal(finding->end_token, end);
}

/* What is found, told and dropped once, is not found again, and nothing else was touched. */
static inline void repair_once(struct fixture *f, uint64_t dropped)
{
    f->check.repair = true;
    check(f);
    assert_int_equal(f->result.dropped, dropped);
    f->check.repair = false;
    check(f);
    for (uint32_t i = 0; i < f->count; i++) {
        if (qr_disk_finding_severity(f->found[i].kind) == QR_DISK_BAD)
            print_message("after the repair: %s\n", qr_disk_finding_name(f->found[i].kind));
    }
    assert_int_equal(f->result.bad, 0);
}

static inline void write_batch(struct fixture *f, struct qr_disk_batch *batch)
{
    struct qr_disk_commit commit = {.batch = batch};

    assert_ok(qr_disk_commit_wait(f->disk, &commit));
    qr_disk_batch_free(batch);
}

static inline void put_record(struct fixture *f, const uint8_t id[QR_HASH_BYTES],
                              const struct qr_disk_page *page)
{
    struct qr_disk_batch batch = {0};
    uint8_t value[QR_DISK_PAGE_RECORD_BYTES];
    const struct qr_disk_key key = qr_disk_key_page(id);

    qr_disk_page_write(page, value);
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    write_batch(f, &batch);
}

static inline void delete_key(struct fixture *f, const struct qr_disk_key *key)
{
    struct qr_disk_batch batch = {0};

    qr_disk_batch_delete(&batch, key);
    write_batch(f, &batch);
}

static inline struct qr_disk_key manifest_key(const struct test_session *s, uint32_t lane,
                                              uint32_t block)
{
    uint8_t uuid[QR_DISK_UUID_BYTES];

    test_session_uuid(s, uuid);
    return qr_disk_key_manifest(uuid, lane, block);
}

/* Flip a bit in the middle of a page, on whatever device it is. */
static inline void damage_page(struct fixture *f, const struct test_session *s, uint32_t lane,
                               uint32_t block)
{
    const struct qr_disk_page page = test_session_record(f->disk, s, lane, block);
    const uint64_t at =
        QR_DISK_SLAB_START + page.place.region * (UINT64_C(1) << 20) +
        page.place.slot * (uint64_t)qr_disk_class_bytes(qr_disk_class(page.place.bytes)) +
        page.place.bytes / 2;
    char path[400];
    uint8_t byte;

    snprintf(path, sizeof(path), "%s/slabs", f->paths[page.place.device]);
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

#endif
