/* SPDX-License-Identifier: Apache-2.0
 *
 * The check reads every page once, in the order in which they lie on each device
 * and all devices at the same time, and looks into the free slots between them.
 * The ring reads; this thread verifies.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disk_check_impl.h"
#include "disk_class.h"
#include "disk_verify.h"

#define DEPTH_OF_DEVICE 32u
#define FLYING_BYTES_MAX (256u << 20) /* but for one page */
#define TELL_BYTES (8u << 20)

struct reader;

/** One read under way: of a page, or of the first block of a free slot. */
struct job {
    struct job *next; /* among the free ones, or those that have landed */
    struct reader *reader;
    uint32_t page; /* QR_CHECK_NONE: a free slot */
    struct qr_disk_place place;
    uint8_t *buffer; /* owned */
    size_t capacity;
    quire_status status;
};

/** Where the walk over one device is. */
struct walk {
    size_t at, end;                           /* in check->order */
    uint32_t region, size_class, slot, slots; /* free slots of `region` from `slot` on */
    bool open;                                /* in a region */
};

struct reader {
    struct qr_check *check;
    struct qr_ring *ring;
    uint32_t ring_files[QR_DISK_DEVICES_MAX];
    struct walk walks[QR_DISK_DEVICES_MAX];
    uint32_t turn;
    uint64_t reads[QR_DISK_DEVICES_MAX]; /* that succeeded */
    struct job *jobs, *idle;
    uint32_t job_count, flying;
    uint64_t flying_bytes, told_bytes, done_bytes;
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct job *landed; /* guarded by lock */
};

/* ---- what to read next ------------------------------------------------------------------ */

static struct qr_check_page *page_at(const struct reader *r, size_t at)
{
    return &qr_check_pages(r->check)[r->check->order[at]];
}

static void enter_region(struct reader *r, struct walk *walk, const struct qr_check_page *page)
{
    walk->open = true;
    walk->region = page->region;
    walk->size_class = qr_disk_class(page->bytes);
    walk->slot = 0;
    walk->slots =
        (uint32_t)(r->check->home.region_bytes / qr_disk_class_bytes(walk->size_class));
}

/* The next page or free slot of a device; false at its end. */
static bool next_of(struct reader *r, uint32_t device, struct job *job)
{
    struct walk *walk = &r->walks[device];
    const struct qr_check_page *page = NULL;

    while (walk->at < walk->end && page_at(r, walk->at)->state != QR_CHECK_UNREAD)
        walk->at++;
    if (walk->at < walk->end)
        page = page_at(r, walk->at);
    if (!walk->open && page)
        enter_region(r, walk, page);
    const bool here = page && page->region == walk->region;
    if (walk->open && walk->slot < (here ? page->slot : walk->slots)) {
        job->page = QR_CHECK_NONE;
        job->place = (struct qr_disk_place){device, walk->region, walk->slot++,
                                            (uint32_t)qr_disk_class_bytes(walk->size_class)};
        return true;
    }
    if (!page)
        return false;
    if (!here)
        enter_region(r, walk, page);
    if (!here && page->slot > 0)
        return next_of(r, device, job);
    walk->slot = page->slot + 1;
    job->page = r->check->order[walk->at++];
    job->place = qr_check_place(page);
    return true;
}

static bool next_job(struct reader *r, struct job *job)
{
    for (uint32_t i = 0; i < r->check->home.count; i++) {
        const uint32_t device = (r->turn + i) % r->check->home.count;
        if (next_of(r, device, job)) {
            r->turn = device + 1;
            return true;
        }
    }
    return false;
}

/* ---- reading ---------------------------------------------------------------------------- */

static void job_landed(void *arg, quire_status status)
{
    struct job *job = arg;
    struct reader *r = job->reader;

    pthread_mutex_lock(&r->lock);
    job->status = status;
    job->next = r->landed;
    r->landed = job;
    pthread_cond_signal(&r->some);
    pthread_mutex_unlock(&r->lock);
}

static size_t job_bytes(const struct job *job)
{
    return job->page == QR_CHECK_NONE ? QR_DISK_BLOCK : job->place.bytes;
}

static bool job_buffer(struct job *job)
{
    const size_t wanted = (size_t)qr_disk_round_up(job_bytes(job));

    if (wanted <= job->capacity)
        return true;
    free(job->buffer);
    job->buffer = aligned_alloc(QR_DISK_BLOCK, wanted);
    job->capacity = job->buffer ? wanted : 0;
    return job->buffer != NULL;
}

static quire_status job_start(struct reader *r, struct job *job)
{
    const struct qr_ring_op op = {.op = QR_DISK_READ,
                                  .file = r->ring_files[job->place.device],
                                  .offset = qr_disk_slabs_offset(r->check->slabs, &job->place),
                                  .buffer = job->buffer,
                                  .bytes = job_bytes(job),
                                  .capacity = job->capacity,
                                  .urgency = QR_RING_FOREGROUND,
                                  .done = job_landed,
                                  .arg = job};

    r->flying++;
    r->flying_bytes += op.bytes;
    return qr_ring_submit(r->ring, &op, NULL);
}

static struct job *wait_landed(struct reader *r)
{
    pthread_mutex_lock(&r->lock);
    while (!r->landed)
        pthread_cond_wait(&r->some, &r->lock);
    struct job *job = r->landed;
    r->landed = NULL;
    pthread_mutex_unlock(&r->lock);
    return job;
}

/* ---- judging ---------------------------------------------------------------------------- */

/* Whether the page's id is what a policy of its namespace makes of its header. */
static bool id_follows(const struct qr_check *check, const struct qr_check_page *page,
                       const struct qr_page_header *h)
{
    const struct qr_check_policy *policies = check->policies.items;
    uint8_t id[QR_HASH_BYTES];

    for (size_t i = 0; i < check->policies.count; i++) {
        struct qr_policy policy = policies[i].policy;
        if (policies[i].ns != page->ns || policy.page_tokens != h->page_tokens)
            continue;
        policy.key = h->key;
        policy.value = h->value;
        qr_page_id(policies[i].secret, h->block_id, h->layer, h->first_head, h->heads, &policy,
                   id);
        if (memcmp(id, page->id, QR_HASH_BYTES) == 0)
            return true;
    }
    return false;
}

static void page_bad(struct qr_check *check, struct qr_check_page *page, const char *text)
{
    const bool known = page->flags & QR_CHECK_QUARANTINED;

    page->state = QR_CHECK_BAD;
    if (page->flags & QR_CHECK_SHARED) /* told with those that it shares the slot with */
        return;
    qr_check_found_page(check, known ? QR_DISK_PAGE_QUARANTINED : QR_DISK_PAGE_DAMAGED, page,
                        qr_check_drop_page(check, page), text);
}

static void judge_page(struct reader *r, const struct job *job)
{
    struct qr_check *check = r->check;
    struct qr_check_page *page = &qr_check_pages(check)[job->page];
    const struct qr_disk_page record = {.place = job->place,
                                        .checksum = page->checksum,
                                        .layer = page->layer,
                                        .first_head = page->first_head,
                                        .heads = page->heads,
                                        .first_position = page->first_position};
    struct qr_page_view view;
    struct qr_error e = {0};

    if (job->status != QUIRE_OK) { /* told when it is known what else the device reads */
        page->state = QR_CHECK_BAD;
        page->flags |= QR_CHECK_UNREADABLE;
        return;
    }
    r->reads[job->place.device]++;
    if (qr_disk_page_verify(&record, job->buffer, &view, &e) != QUIRE_OK) {
        page_bad(check, page, e.text);
        return;
    }
    page->state = QR_CHECK_GOOD;
    memcpy(&page->fingerprint, view.header->fingerprint, sizeof(page->fingerprint));
    if (id_follows(check, page, view.header))
        page->flags |= QR_CHECK_PROVED;
    if (page->flags & QR_CHECK_QUARANTINED) {
        qr_check_found_page(check, QR_DISK_PAGE_QUARANTINED, page, false,
                            "its bytes are right now; it stays unserved");
        return;
    }
    check->result->verified++;
    check->result->verified_bytes += page->bytes;
}

/* A page's first bytes in a free slot: nobody's, until the slot is used again. */
static void judge_free(struct qr_check *check, const struct job *job)
{
    const struct qr_page_header *h = (const struct qr_page_header *)(const void *)job->buffer;

    check->result->free_slots++;
    if (job->status != QUIRE_OK || memcmp(h->magic, QR_PAGE_MAGIC, sizeof(h->magic)) != 0 ||
        h->page_bytes > job->place.bytes || h->page_bytes == 0)
        return;
    const struct qr_disk_finding finding = {.kind = QR_DISK_SLOT_ORPHAN, .place = &job->place};
    qr_check_found(check, &finding);
}

static void judge(struct reader *r, struct job *job)
{
    r->flying--;
    r->flying_bytes -= job_bytes(job);
    if (job->page == QR_CHECK_NONE) {
        judge_free(r->check, job);
        return;
    }
    judge_page(r, job);
    r->done_bytes += job->place.bytes;
    if (r->check->config->progress && r->done_bytes >= r->told_bytes + TELL_BYTES) {
        r->told_bytes = r->done_bytes;
        r->check->config->progress(r->check->config->arg, r->done_bytes,
                                   r->check->result->page_bytes);
    }
}

/* A bad place of a device is better left taken: the page is marked, not dropped. A device that
 * reads nothing at all says nothing about its pages. */
static void judge_unreadable(struct reader *r)
{
    struct qr_check_page *pages = qr_check_pages(r->check);

    for (size_t i = 0; i < r->check->pages.count; i++) {
        struct qr_check_page *page = &pages[r->check->order[i]];
        if (!(page->flags & QR_CHECK_UNREADABLE) || (page->flags & QR_CHECK_SHARED))
            continue;
        const bool reads = r->reads[page->device] > 0;
        const bool known = page->flags & QR_CHECK_QUARANTINED;
        if (reads && !known)
            qr_check_mark_page(r->check, page);
        qr_check_found_page(
            r->check, known ? QR_DISK_PAGE_QUARANTINED : QR_DISK_PAGE_UNREADABLE, page, false,
            reads ? "the device cannot read it"
                  : "the device reads no page at all: is it broken?");
    }
}

/* Of records that name one slot the one keeps it whose page it is. */
static void judge_shared(struct qr_check *check)
{
    const size_t count = check->pages.count;

    for (size_t from = 0, to; from < count; from = to) {
        struct qr_check_page *pages = qr_check_pages(check), *keeper = NULL;
        const struct qr_check_page *first = &pages[check->order[from]];
        for (to = from; to < count; to++) {
            struct qr_check_page *page = &pages[check->order[to]];
            if (to > from && (page->device != first->device || page->region != first->region ||
                              page->slot != first->slot))
                break;
            const bool good = (page->flags & QR_CHECK_SHARED) && page->state == QR_CHECK_GOOD;
            if (good && (!keeper || (page->flags & QR_CHECK_PROVED)))
                keeper = page;
        }
        for (size_t i = from; i < to; i++) {
            struct qr_check_page *page = &pages[check->order[i]];
            if (!(page->flags & QR_CHECK_SHARED) || page == keeper ||
                page->state == QR_CHECK_AWAY)
                continue;
            page->state = QR_CHECK_BAD;
            qr_check_found_page(
                check, QR_DISK_SLOT_TWICE, page, qr_check_drop_page(check, page),
                keeper ? "another record's page lies in it" : "no record's page lies in it");
        }
    }
}

/* ---- the step --------------------------------------------------------------------------- */

static quire_status read_all(struct reader *r)
{
    struct job *job;
    quire_status status = QUIRE_OK;
    bool more = true;

    while (more || r->flying > 0) {
        while (more && r->idle && (r->flying == 0 || r->flying_bytes < FLYING_BYTES_MAX)) {
            job = r->idle;
            more = next_job(r, job);
            if (!more)
                break;
            r->idle = job->next;
            if (!job_buffer(job)) {
                status = qr_error_set(r->check->e, QUIRE_ENOMEM, "no memory to read pages");
                more = false;
                break;
            }
            const quire_status started = job_start(r, job);
            if (started != QUIRE_OK) /* never: jobs are fewer than the queue takes */
                job_landed(job, started);
        }
        for (job = r->flying > 0 ? wait_landed(r) : NULL; job;) {
            struct job *next = job->next;
            judge(r, job);
            job->next = r->idle;
            r->idle = job;
            job = next;
        }
    }
    return status;
}

static quire_status reader_start(struct reader *r)
{
    struct qr_check *check = r->check;
    struct qr_ring_config ring = {.io = check->io, .no_uring = check->config->no_uring};
    size_t at = 0;

    for (uint32_t d = 0; d < check->home.count; d++) {
        r->walks[d].at = at;
        while (at < check->pages.count && page_at(r, at)->device == d)
            at++;
        r->walks[d].end = check->home.devices[d].slab_fd < 0 ? r->walks[d].at : at;
        r->ring_files[d] = ring.file_count;
        if (check->home.devices[d].slab_fd >= 0)
            ring.files[ring.file_count++] = check->home.devices[d].slab_fd;
    }
    ring.depth = DEPTH_OF_DEVICE * ring.file_count;
    if (ring.depth > QR_RING_DEPTH_MAX)
        ring.depth = QR_RING_DEPTH_MAX;
    r->job_count = 2 * ring.depth;
    r->jobs = calloc(r->job_count + 1, sizeof(*r->jobs));
    if (!r->jobs)
        return qr_error_set(check->e, QUIRE_ENOMEM, "no memory to read pages");
    for (uint32_t i = 0; i < r->job_count; i++) {
        r->jobs[i].reader = r;
        r->jobs[i].next = r->idle;
        r->idle = &r->jobs[i];
    }
    return qr_ring_create(&ring, &r->ring, check->e);
}

quire_status qr_check_read(struct qr_check *check)
{
    struct reader r = {.check = check};
    bool any = false;

    for (uint32_t d = 0; d < check->home.count; d++)
        any = any || check->home.devices[d].slab_fd >= 0;
    if (check->config->quick || !any)
        return QUIRE_OK;
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.some, NULL);
    quire_status status = reader_start(&r);
    if (status == QUIRE_OK)
        status = read_all(&r);
    if (status == QUIRE_OK)
        judge_unreadable(&r);
    qr_ring_destroy(&r.ring);
    for (uint32_t i = 0; r.jobs && i < r.job_count; i++)
        free(r.jobs[i].buffer);
    free(r.jobs);
    pthread_cond_destroy(&r.some);
    pthread_mutex_destroy(&r.lock);
    if (status == QUIRE_OK)
        judge_shared(check);
    return status;
}
