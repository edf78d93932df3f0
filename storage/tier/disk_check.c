/* SPDX-License-Identifier: Apache-2.0
 *
 * The check as a whole: opens the folders and the index, runs the steps, writes
 * the drops of a repair. Must not know what a step looks at.
 *
 * Invariants:
 *  1. nothing is written before everything has been looked at, and nothing at all without
 *     `repair`: folders, slab files and index are opened for reading only;
 *  2. a repair writes index entries alone: it deletes some, makes holes of others, marks
 * unreadable pages, and puts right how many manifest entries name a page.
 */
#include "disk_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "disk_check_impl.h"
#include "disk_ring.h"

#define BATCH_BYTES (8u << 20)

static const struct {
    enum qr_disk_severity severity;
    const char *name, *what;
} kinds[] = {
#define X(name, severity, text, what) {QR_DISK_##severity, text, what},
#include "disk_check.def"
#undef X
};

const char *qr_disk_finding_name(enum qr_disk_finding_kind kind)
{
    return kinds[kind].name;
}

const char *qr_disk_finding_what(enum qr_disk_finding_kind kind)
{
    return kinds[kind].what;
}

enum qr_disk_severity qr_disk_finding_severity(enum qr_disk_finding_kind kind)
{
    return kinds[kind].severity;
}

/* ---- lists ------------------------------------------------------------------------------ */

void *qr_check_add(struct qr_check *check, struct qr_check_list *list, size_t item_bytes)
{
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? list->capacity * 2 : 64;
        void *grown = realloc(list->items, capacity * item_bytes);
        if (!grown) {
            check->no_memory = true;
            return NULL;
        }
        list->items = grown;
        list->capacity = capacity;
    }
    return memset((uint8_t *)list->items + list->count++ * item_bytes, 0, item_bytes);
}

static int compare_session(const void *uuid, const void *session)
{
    return memcmp(uuid, ((const struct qr_check_session *)session)->uuid, QR_DISK_UUID_BYTES);
}

static int compare_page(const void *id, const void *page)
{
    return memcmp(id, ((const struct qr_check_page *)page)->id, QR_HASH_BYTES);
}

static int compare_lane(const void *wanted, const void *lane)
{
    const struct qr_check_lane *a = wanted, *b = lane;

    if (a->session != b->session)
        return a->session < b->session ? -1 : 1;
    return a->lane < b->lane ? -1 : a->lane > b->lane;
}

/* bsearch wants a base even for none. */
static void *find(const struct qr_check_list *list, const void *key, size_t item_bytes,
                  int (*compare)(const void *, const void *))
{
    return list->count ? bsearch(key, list->items, list->count, item_bytes, compare) : NULL;
}

struct qr_check_session *qr_check_session(const struct qr_check *check,
                                          const uint8_t uuid[QR_DISK_UUID_BYTES])
{
    return find(&check->sessions, uuid, sizeof(struct qr_check_session), compare_session);
}

static int compare_uuid(const void *a, const void *b)
{
    return memcmp(a, b, QR_DISK_UUID_BYTES);
}

bool qr_check_going(const struct qr_check *check, const uint8_t uuid[QR_DISK_UUID_BYTES])
{
    return find(&check->going, uuid, QR_DISK_UUID_BYTES, compare_uuid) != NULL;
}

struct qr_check_page *qr_check_page(const struct qr_check *check,
                                    const uint8_t id[QR_HASH_BYTES])
{
    return find(&check->pages, id, sizeof(struct qr_check_page), compare_page);
}

struct qr_check_lane *qr_check_lane(const struct qr_check *check, uint32_t session,
                                    uint32_t lane)
{
    const struct qr_check_lane wanted = {.session = session, .lane = lane};
    return find(&check->lanes, &wanted, sizeof(struct qr_check_lane), compare_lane);
}

/* ---- findings and drops ----------------------------------------------------------------- */

void qr_check_found(struct qr_check *check, const struct qr_disk_finding *finding)
{
    struct qr_disk_finding whole = *finding;

    check->result->counts[finding->kind]++;
    check->result->bad += kinds[finding->kind].severity == QR_DISK_BAD;
    if (!check->config->found)
        return;
    if (whole.place && whole.place->device < check->home.count &&
        qr_disk_slabs_valid(check->slabs, whole.place))
        whole.offset = qr_disk_slabs_offset(check->slabs, whole.place);
    check->config->found(check->config->arg, &whole);
}

void qr_check_found_page(struct qr_check *check, enum qr_disk_finding_kind kind,
                         const struct qr_check_page *page, bool dropped, const char *text)
{
    const struct qr_disk_place place = qr_check_place(page);
    struct qr_disk_finding finding = {.kind = kind, .dropped = dropped, .place = &place};

    strncpy(finding.text, text, sizeof(finding.text) - 1);
    qr_check_found(check, &finding);
}

/* A batch with room; a new one when the last is nearly full. */
static struct qr_disk_batch *drop_batch(struct qr_check *check)
{
    struct qr_disk_batch *batches = check->drops.items;

    if (check->drops.count > 0 && batches[check->drops.count - 1].n < BATCH_BYTES)
        return &batches[check->drops.count - 1];
    return qr_check_add(check, &check->drops, sizeof(struct qr_disk_batch));
}

bool qr_check_drop(struct qr_check *check, const uint8_t *key, size_t key_bytes)
{
    struct qr_disk_key copy = {.n = (uint32_t)key_bytes};

    if (!check->config->repair || key_bytes == 0 || key_bytes > sizeof(copy.bytes))
        return false;
    struct qr_disk_batch *batch = drop_batch(check);
    if (!batch)
        return false;
    memcpy(copy.bytes, key, key_bytes);
    qr_disk_batch_delete(batch, &copy);
    check->result->dropped++;
    return true;
}

bool qr_check_hollow(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                     const struct qr_disk_block *entry)
{
    struct qr_disk_block hole = *entry;
    struct qr_disk_key copy = {.n = (uint32_t)key_bytes};
    struct qr_disk_batch *batch = check->config->repair ? drop_batch(check) : NULL;
    uint8_t value[QR_DISK_BLOCK_RECORD_BYTES];

    if (!batch || key_bytes > sizeof(copy.bytes))
        return false;
    hole.place = (struct qr_disk_place){0};
    memcpy(copy.bytes, key, key_bytes);
    qr_disk_block_write(&hole, value);
    qr_disk_batch_put(batch, &copy, value, sizeof(value));
    check->result->dropped++;
    return true;
}

bool qr_check_drop_page(struct qr_check *check, struct qr_check_page *page)
{
    const struct qr_disk_key key = qr_disk_key_page(page->id);
    const bool dropped = qr_check_drop(check, key.bytes, key.n);

    page->flags |= dropped ? QR_CHECK_DROPPED : 0;
    return dropped;
}

bool qr_check_rewrite_page(struct qr_check *check, const struct qr_check_page *page)
{
    const struct qr_disk_page record = {
        .place = qr_check_place(page),
        .flags =
            page->flags & (QR_CHECK_QUARANTINED | QR_CHECK_MARKED) ? QR_DISK_QUARANTINED : 0,
        .checksum = page->checksum,
        .layer = page->layer,
        .first_head = page->first_head,
        .heads = page->heads,
        .first_position = page->first_position,
        .ns = page->ns,
        .named = page->named};
    const struct qr_disk_key key = qr_disk_key_page(page->id);
    struct qr_disk_batch *batch = check->config->repair ? drop_batch(check) : NULL;
    uint8_t value[QR_DISK_PAGE_RECORD_BYTES];

    if (!batch)
        return false;
    qr_disk_page_write(&record, value);
    qr_disk_batch_put(batch, &key, value, sizeof(value));
    return true;
}

void qr_check_mark_page(struct qr_check *check, struct qr_check_page *page)
{
    if (!check->config->repair)
        return;
    page->flags |= QR_CHECK_MARKED;
    (void)qr_check_rewrite_page(check, page);
}

static quire_status write_drops(struct qr_check *check)
{
    const struct qr_disk_batch *batches = check->drops.items;
    quire_status status = QUIRE_OK;

    for (size_t i = 0; i < check->drops.count && status == QUIRE_OK; i++) {
        const struct qr_disk_batch *one = &batches[i];
        status = qr_disk_index_write(check->index, &one, 1, check->e);
    }
    return status;
}

/* ---- open and close --------------------------------------------------------------------- */

static quire_status open_slabs(struct qr_check *check)
{
    struct qr_disk_slabs_config slabs = {.io = check->io, .home = &check->home};

    /* The files as they are, whatever may come. */
    for (uint32_t d = 0; d < check->home.count; d++) {
        const int fd = check->home.devices[d].slab_fd;
        struct stat st = {0};
        if (fd >= 0 && fstat(fd, &st) != 0)
            return qr_error_set(check->e, QUIRE_EIO, "cannot ask the size of slab file %u", d);
        slabs.cap_bytes[d] = QR_DISK_SLAB_START + check->home.region_bytes;
        if (check->home.devices[d].block_bytes > 0)
            slabs.cap_bytes[d] = 0; /* all of it */
        else if ((uint64_t)st.st_size > slabs.cap_bytes[d])
            slabs.cap_bytes[d] = (uint64_t)st.st_size;
    }
    return qr_disk_slabs_create(&slabs, &check->slabs, check->e);
}

static quire_status open_store(struct qr_check *check)
{
    const struct qr_disk_check_config *config = check->config;
    struct qr_disk_home_config home = {.io = check->io,
                                       .count = config->count,
                                       .allow_missing = config->allow_missing,
                                       .read_only = !config->repair};
    char path[4096];

    memcpy(home.folders, config->folders, sizeof(home.folders));
    quire_status status = qr_disk_home_open(&home, &check->home, check->e);
    if (status != QUIRE_OK) {
        check->home.count = 0; /* nothing to close */
        return status;
    }
    memcpy(check->result->store, check->home.store, sizeof(check->result->store));
    check->result->version = check->home.version;
    check->result->devices = check->home.count;
    status = open_slabs(check);
    if (status != QUIRE_OK)
        return status;
    const int n = snprintf(path, sizeof(path), "%s/index", config->folders[0]);
    if (n < 0 || (size_t)n >= sizeof(path))
        return qr_error_set(check->e, QUIRE_EINVAL,
                            "%.100s...: a path of %d bytes, at most %zu", config->folders[0], n,
                            sizeof(path) - 1);
    const struct qr_disk_index_config index = {.path = path, .read_only = !config->repair};
    return qr_disk_index_open(&index, &check->index, check->e);
}

static void close_store(struct qr_check *check)
{
    struct qr_disk_batch *batches = check->drops.items;
    struct qr_check_session *sessions = check->sessions.items;

    for (size_t i = 0; i < check->drops.count; i++)
        qr_disk_batch_free(&batches[i]);
    for (size_t i = 0; i < check->sessions.count; i++)
        free(sessions[i].name);
    free(check->pages.items);
    free(check->sessions.items);
    free(check->lanes.items);
    free(check->going.items);
    free(check->secrets.items);
    free(check->policies.items);
    free(check->models.items);
    free(check->drops.items);
    free(check->order);
    qr_disk_index_close(&check->index);
    qr_disk_slabs_destroy(&check->slabs);
    qr_disk_home_close(check->io, &check->home);
}

quire_status qr_disk_check(const struct qr_disk_check_config *config,
                           struct qr_disk_check_result *result, struct qr_error *e)
{
    static quire_status (*const steps[])(struct qr_check *) = {
        qr_check_load, qr_check_places, qr_check_read, qr_check_manifests, qr_check_tail};
    struct qr_check check = {.config = config, .result = result, .e = e};

    *result = (struct qr_disk_check_result){0};
    check.io = config->io ? config->io : qr_disk_io_system();
    quire_status status = open_store(&check);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && status == QUIRE_OK; i++) {
        status = steps[i](&check);
        if (status == QUIRE_OK && check.no_memory)
            status = qr_error_set(e, QUIRE_ENOMEM, "no memory to check the store's %zu pages",
                                  check.pages.count);
    }
    if (status == QUIRE_OK && config->repair)
        status = write_drops(&check);
    close_store(&check);
    return status;
}
