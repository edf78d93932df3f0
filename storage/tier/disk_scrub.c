/* SPDX-License-Identifier: Apache-2.0
 *
 * The scrubber's thread: a few records from the index, then page by page. Pages
 * come in the order of their ids, which are hashes: reads are spread over the
 * devices, and the id says how far the pass has come.
 *
 * A page that does not verify may have been dropped, and its slot given to
 * another one, after its record was read: it is bad only when the index still
 * names it at the same place after each of several reads.
 */
#include "disk_scrub.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "disk_verify.h"
#include "storage/base/clock.h"
#include "tier_disk_impl.h"

#define RECORDS 32u
#define TRIES 3u
#define SAVE_NS UINT64_C(60000000000)
#define RETRY_NS UINT64_C(10000000) /* after a full ring */
#define REST_S 86400u
#define POSITION_BYTES 48u
#define NS_PER_S UINT64_C(1000000000)

struct record {
    uint8_t id[QR_HASH_BYTES];
    struct qr_disk_page page;
};

struct qr_disk_scrub {
    struct qr_disk *disk;
    struct qr_disk_scrub_config config; /* const */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change; /* rate, stopping, or a read has landed */
    bool stopping;         /* guarded by lock */
    uint64_t bytes_per_s;  /* guarded by lock */
    bool landed;           /* guarded by lock, like status */
    quire_status status;
    /* owner: scrub thread */
    uint8_t position[QR_HASH_BYTES]; /* the last page looked at */
    bool begun;                      /* position is one */
    struct record records[RECORDS];
    uint32_t count;
    uint8_t *buffer;
    size_t capacity;
    uint64_t due_ns, saved_ns;
    struct qr_counter passes, pages, bytes, bad, stale, unreadable, permille;
};

/* ---- position --------------------------------------------------------------------------- */

static struct qr_disk_key position_key(void)
{
    return (struct qr_disk_key){.bytes = {QR_DISK_KEY_SCRUB}, .n = 1};
}

static quire_status load_position(struct qr_disk_scrub *s, struct qr_error *e)
{
    const struct qr_disk_key key = position_key();
    uint8_t value[POSITION_BYTES];
    size_t n;
    const quire_status status =
        qr_disk_index_get(s->disk->index, &key, value, sizeof(value), &n);

    if (status == QUIRE_ENOTFOUND)
        return QUIRE_OK;
    if (status != QUIRE_OK)
        return qr_error_set(e, status, "the scrubber cannot read its position");
    if (n == sizeof(value) && value[0] == 1) { /* else: from the start, no harm */
        s->begun = value[1] != 0;
        memcpy(s->position, value + 16, QR_HASH_BYTES);
    }
    return QUIRE_OK;
}

static void save_position(struct qr_disk_scrub *s)
{
    const struct qr_disk_key key = position_key();
    struct qr_disk_batch batch = {0};
    struct qr_disk_commit commit = {.batch = &batch};
    uint8_t value[POSITION_BYTES] = {1, s->begun};

    memcpy(value + 16, s->position, QR_HASH_BYTES);
    qr_disk_batch_put(&batch, &key, value, sizeof(value));
    (void)qr_disk_commit_wait(s->disk, &commit); /* lost: some pages are read again */
    qr_disk_batch_free(&batch);
    s->saved_ns = qr_clock_ns();
}

/* ---- waiting ---------------------------------------------------------------------------- */

/* lock held; returns at a change, too. */
static void wait_until(struct qr_disk_scrub *s, uint64_t until_ns)
{
    const struct timespec at = {.tv_sec = (time_t)(until_ns / NS_PER_S),
                                .tv_nsec = (long)(until_ns % NS_PER_S)};
    (void)pthread_cond_timedwait(&s->change, &s->lock, &at);
}

/* Until then, however often the rate changes; false: stopping. */
static bool rest(struct qr_disk_scrub *s, uint64_t until_ns)
{
    pthread_mutex_lock(&s->lock);
    while (!s->stopping && qr_clock_ns() < until_ns)
        wait_until(s, until_ns);
    const bool go = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* Wait for these bytes' turn; a pause holds it up. False: stopping. */
static bool pace(struct qr_disk_scrub *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->lock);
    const uint64_t began_ns = s->due_ns > qr_clock_ns() ? s->due_ns : qr_clock_ns();
    while (!s->stopping) {
        if (s->bytes_per_s == 0) {
            (void)pthread_cond_wait(&s->change, &s->lock);
            continue;
        }
        if (qr_clock_ns() >= began_ns)
            break;
        wait_until(s, began_ns);
    }
    if (!s->stopping) {
        const double spent_ns = (double)bytes * 1e9 / (double)s->bytes_per_s;
        s->due_ns = began_ns + (uint64_t)spent_ns;
    }
    const bool go = !s->stopping;
    pthread_mutex_unlock(&s->lock);
    return go;
}

/* ---- one page --------------------------------------------------------------------------- */

static void landed(void *arg, quire_status status)
{
    struct qr_disk_scrub *s = arg;

    pthread_mutex_lock(&s->lock);
    s->landed = true;
    s->status = status;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
}

static bool room_for(struct qr_disk_scrub *s, size_t bytes)
{
    const size_t wanted = (size_t)qr_disk_round_up(bytes);

    if (wanted <= s->capacity)
        return true;
    free(s->buffer);
    s->buffer = aligned_alloc(QR_DISK_BLOCK, wanted);
    s->capacity = s->buffer ? wanted : 0;
    return s->buffer != NULL;
}

/* Into the buffer. EAGAIN: stopping, or no memory. */
static quire_status read_op(struct qr_disk_scrub *s, uint32_t device, uint64_t offset,
                            size_t bytes)
{
    struct qr_disk *disk = s->disk;

    if (disk->home.devices[device].slab_fd < 0)
        return QUIRE_EIO;
    if (!room_for(s, bytes))
        return QUIRE_EAGAIN;
    const struct qr_ring_op op = {.op = QR_DISK_READ,
                                  .file = disk->ring_files[device],
                                  .offset = offset,
                                  .buffer = s->buffer,
                                  .bytes = bytes,
                                  .capacity = s->capacity,
                                  .urgency = QR_RING_PREFETCH,
                                  .done = landed,
                                  .arg = s};
    s->landed = false;
    while (qr_ring_submit(disk->ring, &op, NULL) == QUIRE_EAGAIN) {
        if (!rest(s, qr_clock_ns() + RETRY_NS))
            return QUIRE_EAGAIN;
    }
    pthread_mutex_lock(&s->lock);
    while (!s->landed)
        (void)pthread_cond_wait(&s->change, &s->lock);
    const quire_status status = s->status;
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* OK: the page is right; EAGAIN: not read. */
static quire_status look(struct qr_disk_scrub *s, const struct record *r)
{
    const uint64_t offset = qr_disk_slabs_offset(s->disk->slabs, &r->page.place);
    const quire_status status = read_op(s, r->page.place.device, offset, r->page.place.bytes);

    return status == QUIRE_OK ? qr_disk_page_verify(&r->page, s->buffer, NULL, NULL) : status;
}

static bool still_there(struct qr_disk_scrub *s, const struct record *r)
{
    const struct qr_disk_key key = qr_disk_key_page(r->id);
    uint8_t value[QR_DISK_PAGE_RECORD_BYTES];
    struct qr_disk_page page;
    size_t n;

    return qr_disk_index_get(s->disk->index, &key, value, sizeof(value), &n) == QUIRE_OK &&
           qr_disk_page_read(value, n, &page) == QUIRE_OK &&
           memcmp(&page.place, &r->page.place, sizeof(page.place)) == 0 &&
           page.checksum == r->page.checksum;
}

/* A device that reads nothing says nothing about its pages. */
static bool device_reads(struct qr_disk_scrub *s, uint32_t device)
{
    return !(atomic_load(&s->disk->failed_devices) >> device & 1) &&
           read_op(s, device, 0, QR_DISK_BLOCK) == QUIRE_OK;
}

static void put_away(struct qr_disk_scrub *s, const struct record *r, quire_status why)
{
    struct qr_disk_quarantine q = {.place = r->page.place};

    memcpy(q.page_id, r->id, QR_HASH_BYTES);
    if (qr_disk_quarantine_wait(s->disk, &q) != QUIRE_OK)
        return; /* the next pass finds it again */
    if (!q.marked) {
        qr_counter_add(&s->stale, 1);
        return;
    }
    qr_counter_add(&s->bad, 1);
    if (s->config.bad)
        s->config.bad(s->config.arg, r->id, &r->page, why);
}

static void check_page(struct qr_disk_scrub *s, const struct record *r)
{
    quire_status status = QUIRE_EAGAIN;

    for (uint32_t i = 0; i < TRIES; i++) {
        status = look(s, r);
        if (status == QUIRE_EAGAIN)
            return;
        if (status == QUIRE_OK) {
            qr_counter_add(&s->pages, 1);
            qr_counter_add(&s->bytes, r->page.place.bytes);
            return;
        }
        if (!still_there(s, r)) {
            qr_counter_add(&s->stale, 1);
            return;
        }
    }
    if (status == QUIRE_EIO && !device_reads(s, r->page.place.device)) {
        qr_counter_add(&s->unreadable, 1);
        return;
    }
    put_away(s, r, status);
}

/* ---- passes ----------------------------------------------------------------------------- */

static bool take_record(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                        size_t value_bytes)
{
    struct qr_disk_scrub *s = arg;
    struct record *r = &s->records[s->count];

    if (s->begun && key_bytes == 1 + QR_HASH_BYTES &&
        memcmp(key + 1, s->position, QR_HASH_BYTES) == 0)
        return true; /* the walk starts at it */
    if (key_bytes != 1 + QR_HASH_BYTES ||
        qr_disk_page_read(value, value_bytes, &r->page) != QUIRE_OK ||
        !qr_disk_slabs_valid(s->disk->slabs, &r->page.place))
        return true; /* counted at open; fsck tells */
    memcpy(r->id, key + 1, QR_HASH_BYTES);
    s->count++;
    return s->count < RECORDS;
}

static void next_records(struct qr_disk_scrub *s)
{
    const struct qr_disk_key prefix = {.bytes = {QR_DISK_KEY_PAGE}, .n = 1};
    const struct qr_disk_key from = qr_disk_key_page(s->position);

    s->count = 0;
    (void)qr_disk_index_each_from(s->disk->index, &prefix, s->begun ? &from : &prefix,
                                  take_record, s, NULL);
}

static void end_pass(struct qr_disk_scrub *s)
{
    const uint64_t rest_s = s->config.rest_s ? s->config.rest_s : REST_S;

    s->begun = false;
    atomic_store(&s->permille.value, 0);
    save_position(s);
    qr_counter_add(&s->passes, 1);
    (void)rest(s, qr_clock_ns() + rest_s * NS_PER_S);
}

static void *scrub_main(void *arg)
{
    struct qr_disk_scrub *s = arg;
    bool go = pace(s, 0);

    while (go) {
        next_records(s);
        if (s->count == 0)
            end_pass(s);
        for (uint32_t i = 0; go && i < s->count; i++) {
            const struct record *r = &s->records[i];
            go = pace(s, r->page.place.bytes);
            if (!go)
                break;
            if (!(r->page.flags & QR_DISK_QUARANTINED))
                check_page(s, r);
            memcpy(s->position, r->id, QR_HASH_BYTES);
            s->begun = true;
            atomic_store(&s->permille.value, (r->id[0] * 256u + r->id[1]) * 1000u / 65536u);
        }
        if (go && qr_clock_ns() - s->saved_ns > SAVE_NS)
            save_position(s);
        go = go && pace(s, 0);
    }
    save_position(s);
    return NULL;
}

/* ---- start and stop --------------------------------------------------------------------- */

static void scrub_free(struct qr_disk_scrub *s)
{
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    free(s->buffer);
    free(s);
}

quire_status qr_disk_scrub_start(struct qr_disk *disk,
                                 const struct qr_disk_scrub_config *config,
                                 struct qr_disk_scrub **out, struct qr_error *e)
{
    struct qr_disk_scrub *s = calloc(1, sizeof(*s));
    pthread_condattr_t monotonic;

    if (!s)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for the scrubber");
    s->disk = disk;
    s->config = *config;
    s->bytes_per_s = config->bytes_per_s;
    s->saved_ns = qr_clock_ns();
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->change, &monotonic);
    pthread_condattr_destroy(&monotonic);
    quire_status status = load_position(s, e);
    if (status == QUIRE_OK && pthread_create(&s->thread, NULL, scrub_main, s) != 0)
        status = qr_error_set(e, QUIRE_ENOMEM, "cannot start the scrubber's thread");
    if (status != QUIRE_OK) {
        scrub_free(s);
        return status;
    }
    *out = s;
    return QUIRE_OK;
}

void qr_disk_scrub_stop(struct qr_disk_scrub **scrub)
{
    struct qr_disk_scrub *s = *scrub;

    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->change);
    pthread_mutex_unlock(&s->lock);
    (void)pthread_join(s->thread, NULL);
    scrub_free(s);
    *scrub = NULL;
}

void qr_disk_scrub_rate(struct qr_disk_scrub *scrub, uint64_t bytes_per_s)
{
    pthread_mutex_lock(&scrub->lock);
    scrub->bytes_per_s = bytes_per_s;
    scrub->due_ns = 0; /* what the old rate still owes is forgiven */
    pthread_cond_broadcast(&scrub->change);
    pthread_mutex_unlock(&scrub->lock);
}

void qr_disk_scrub_stat(struct qr_disk_scrub *scrub, struct qr_disk_scrub_stat *out)
{
    *out = (struct qr_disk_scrub_stat){.passes = qr_counter_read(&scrub->passes),
                                       .pages = qr_counter_read(&scrub->pages),
                                       .bytes = qr_counter_read(&scrub->bytes),
                                       .bad = qr_counter_read(&scrub->bad),
                                       .stale = qr_counter_read(&scrub->stale),
                                       .unreadable = qr_counter_read(&scrub->unreadable),
                                       .position_permille =
                                           (uint32_t)qr_counter_read(&scrub->permille)};
    pthread_mutex_lock(&scrub->lock);
    out->bytes_per_s = scrub->bytes_per_s;
    pthread_mutex_unlock(&scrub->lock);
}
