/* SPDX-License-Identifier: Apache-2.0
 *
 * First steps of the check: every index entry is read, those of pages, sessions,
 * namespaces and models are kept; then page records against slab files and
 * against each other. Reads no page.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disk_check_impl.h"
#include "disk_class.h"

/* ---- load ------------------------------------------------------------------------------- */

static void damaged(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                    quire_status status)
{
    struct qr_disk_finding finding = {.kind = QR_DISK_RECORD_DAMAGED};

    (void)snprintf(finding.text, sizeof(finding.text), "kind '%c', key of %zu bytes", key[0],
                   key_bytes);
    if (status == QUIRE_EUNSUPPORTED) /* newer: ours to report, not to drop */
        finding.kind = QR_DISK_KEY_UNKNOWN;
    else
        finding.dropped = qr_check_drop(check, key, key_bytes);
    qr_check_found(check, &finding);
}

static quire_status load_page(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                              const uint8_t *value, size_t value_bytes)
{
    struct qr_disk_page record;
    const quire_status status = key_bytes == 1 + QR_HASH_BYTES
                                    ? qr_disk_page_read(value, value_bytes, &record)
                                    : QUIRE_ECORRUPT;

    if (status != QUIRE_OK)
        return status;
    struct qr_check_page *page = qr_check_add(check, &check->pages, sizeof(*page));
    if (!page)
        return QUIRE_OK;
    memcpy(page->id, key + 1, QR_HASH_BYTES);
    page->checksum = record.checksum;
    page->first_position = record.first_position;
    page->region = record.place.region;
    page->slot = record.place.slot;
    page->bytes = record.place.bytes;
    page->device = (uint8_t)record.place.device;
    page->layer = record.layer;
    page->first_head = record.first_head;
    page->heads = record.heads;
    page->ns = record.ns;
    page->named = record.named;
    page->flags = record.flags & QR_DISK_QUARANTINED ? QR_CHECK_QUARANTINED : 0;
    check->result->pages++;
    check->result->page_bytes += record.place.bytes;
    return QUIRE_OK;
}

static quire_status load_session(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                                 const uint8_t *value, size_t value_bytes)
{
    struct qr_disk_session record;
    uint8_t uuid[QR_DISK_UUID_BYTES];
    uint32_t ns;

    if (!qr_disk_key_session_read(key, key_bytes, &ns, uuid))
        return QUIRE_ECORRUPT;
    const quire_status status = qr_disk_session_read(value, value_bytes, &record);
    if (status != QUIRE_OK)
        return status;
    struct qr_check_session *session = qr_check_add(check, &check->sessions, sizeof(*session));
    if (!session)
        return QUIRE_OK;
    memcpy(session->uuid, uuid, sizeof(uuid));
    memcpy(session->fingerprint, record.fingerprint, QR_HASH_BYTES);
    session->ns = ns;
    session->policy = record.policy;
    session->name = strdup(record.name);
    check->no_memory = check->no_memory || !session->name;
    check->result->sessions++;
    return QUIRE_OK;
}

static quire_status load_namespace(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                                   const uint8_t *value, size_t value_bytes)
{
    uint32_t big;

    if (key_bytes != 1 + sizeof(big) || value_bytes < QR_HASH_BYTES)
        return QUIRE_ECORRUPT;
    struct qr_check_secret *secret = qr_check_add(check, &check->secrets, sizeof(*secret));
    if (!secret)
        return QUIRE_OK;
    memcpy(&big, key + 1, sizeof(big));
    secret->ns = __builtin_bswap32(big);
    memcpy(secret->secret, value, QR_HASH_BYTES);
    check->result->namespaces++;
    return QUIRE_OK;
}

static quire_status load_model(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                               const uint8_t *value, size_t value_bytes)
{
    const struct qr_disk_check_config *config = check->config;

    if (key_bytes != 1 + QR_HASH_BYTES)
        return QUIRE_ECORRUPT;
    struct qr_check_model *model = qr_check_add(check, &check->models, sizeof(*model));
    if (!model)
        return QUIRE_OK;
    memcpy(model->fingerprint, key + 1, QR_HASH_BYTES);
    model->good =
        !config->is_model || config->is_model(config->arg, key + 1, value, value_bytes);
    check->result->models++;
    return QUIRE_OK;
}

static quire_status load_going(struct qr_check *check, const uint8_t *key, size_t key_bytes)
{
    struct qr_disk_finding finding = {.kind = QR_DISK_SESSION_GOING};
    uint8_t uuid[QR_DISK_UUID_BYTES];
    char text[33];

    if (!qr_disk_key_going_read(key, key_bytes, uuid))
        return QUIRE_ECORRUPT;
    uint8_t *kept = qr_check_add(check, &check->going, sizeof(uuid));
    if (kept)
        memcpy(kept, uuid, sizeof(uuid));
    qr_disk_uuid_text(uuid, text);
    finding.session = text;
    qr_check_found(check, &finding);
    return QUIRE_OK;
}

static bool load_entry(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                       size_t value_bytes)
{
    struct qr_check *check = arg;
    quire_status status = QUIRE_OK;

    switch (key_bytes ? key[0] : 0) {
    case QR_DISK_KEY_PAGE:
        status = load_page(check, key, key_bytes, value, value_bytes);
        break;
    case QR_DISK_KEY_SESSION:
        status = load_session(check, key, key_bytes, value, value_bytes);
        break;
    case QR_DISK_KEY_NAMESPACE:
        status = load_namespace(check, key, key_bytes, value, value_bytes);
        break;
    case QR_DISK_KEY_MODEL:
        status = load_model(check, key, key_bytes, value, value_bytes);
        break;
    case QR_DISK_KEY_GOING:
        status = load_going(check, key, key_bytes);
        break;
    case QR_DISK_KEY_BLOCK:
    case QR_DISK_KEY_LANE:
    case QR_DISK_KEY_MANIFEST:
    case QR_DISK_KEY_VERSION:
    case QR_DISK_KEY_SCRUB:
    case QR_DISK_KEY_TOKENS:
        break; /* looked at later, or not ours to judge */
    default:
        status = QUIRE_EUNSUPPORTED;
    }
    if (status != QUIRE_OK)
        damaged(check, key_bytes ? key : (const uint8_t *)"?", key_bytes, status);
    return !check->no_memory;
}

static int by_uuid(const void *a, const void *b)
{
    return memcmp(((const struct qr_check_session *)a)->uuid,
                  ((const struct qr_check_session *)b)->uuid, QR_DISK_UUID_BYTES);
}

static const uint8_t *secret_of(const struct qr_check *check, uint32_t ns)
{
    const struct qr_check_secret *secrets = check->secrets.items;

    for (size_t i = 0; i < check->secrets.count; i++) {
        if (secrets[i].ns == ns)
            return secrets[i].secret;
    }
    return NULL;
}

static bool same_ids(const struct qr_check_policy *known,
                     const struct qr_check_session *session)
{
    const struct qr_policy *a = &known->policy, *b = &session->policy;

    return known->ns == session->ns && a->page_tokens == b->page_tokens &&
           a->sink_rows == b->sink_rows && a->outlier_rows == b->outlier_rows;
}

/* Few, however many sessions there are. */
static void gather_policies(struct qr_check *check)
{
    for (size_t i = 0; i < check->sessions.count; i++) {
        const struct qr_check_session *session = &qr_check_sessions(check)[i];
        struct qr_check_policy *known = check->policies.items;
        const uint8_t *secret = secret_of(check, session->ns);
        size_t at = 0;
        while (at < check->policies.count && !same_ids(&known[at], session))
            at++;
        if (!secret || at < check->policies.count)
            continue;
        known = qr_check_add(check, &check->policies, sizeof(*known));
        if (known)
            *known = (struct qr_check_policy){session->ns, secret, session->policy};
    }
}

quire_status qr_check_load(struct qr_check *check)
{
    const struct qr_disk_key everything = {.n = 0};
    const quire_status status =
        qr_disk_index_each(check->index, &everything, load_entry, check, check->e);

    if (check->sessions.count > 1)
        qsort(check->sessions.items, check->sessions.count, sizeof(struct qr_check_session),
              by_uuid);
    gather_policies(check);
    return status;
}

/* ---- places ----------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b, void *arg)
{
    const struct qr_check_page *pages = arg;
    const struct qr_check_page *x = &pages[*(const uint32_t *)a];
    const struct qr_check_page *y = &pages[*(const uint32_t *)b];

    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    if (x->region != y->region)
        return x->region < y->region ? -1 : 1;
    return x->slot < y->slot ? -1 : x->slot > y->slot;
}

static bool same_region(const struct qr_check_page *a, const struct qr_check_page *b)
{
    return a->device == b->device && a->region == b->region;
}

/* The class that most pages of order[from, to) have: that of their slab. */
static uint32_t common_class(const struct qr_check *check, size_t from, size_t to)
{
    uint32_t counts[QR_DISK_CLASSES] = {0}, best = 0;

    for (size_t i = from; i < to; i++) {
        const struct qr_check_page *page = &qr_check_pages(check)[check->order[i]];
        if (page->state == QR_CHECK_UNREAD)
            counts[qr_disk_class(page->bytes)]++;
    }
    for (uint32_t c = 1; c < QR_DISK_CLASSES; c++)
        best = counts[c] > counts[best] ? c : best;
    return best;
}

/* Pages of one slab: one class, and each slot once. */
static void check_region(struct qr_check *check, size_t from, size_t to)
{
    const uint32_t size_class = common_class(check, from, to);
    struct qr_check_page *pages = qr_check_pages(check), *last = NULL;

    for (size_t i = from; i < to; i++) {
        struct qr_check_page *page = &pages[check->order[i]];
        if (page->state != QR_CHECK_UNREAD)
            continue;
        if (qr_disk_class(page->bytes) != size_class) {
            page->state = QR_CHECK_BAD;
            qr_check_found_page(check, QR_DISK_SLOT_CLASS, page,
                                qr_check_drop_page(check, page), "");
            continue;
        }
        if (last && last->slot == page->slot) {
            last->flags |= QR_CHECK_SHARED;
            page->flags |= QR_CHECK_SHARED;
        }
        last = page;
    }
}

static void check_place(struct qr_check *check, struct qr_check_page *page)
{
    const struct qr_disk_place place = qr_check_place(page);

    if (place.device < check->home.count && check->home.devices[place.device].slab_fd < 0) {
        page->state = QR_CHECK_AWAY;
        qr_check_found_page(check, QR_DISK_PAGE_AWAY, page, false, "");
    } else if (place.device >= check->home.count ||
               !qr_disk_slabs_valid(check->slabs, &place)) {
        page->state = QR_CHECK_BAD;
        qr_check_found_page(check, QR_DISK_PAGE_OUTSIDE, page, qr_check_drop_page(check, page),
                            "");
    }
}

quire_status qr_check_places(struct qr_check *check)
{
    struct qr_check_page *pages = qr_check_pages(check);
    const size_t count = check->pages.count;

    if (count >= QR_CHECK_NONE)
        return qr_error_set(check->e, QUIRE_ETOOBIG, "%zu pages: a check takes at most %u",
                            count, QR_CHECK_NONE - 1);
    check->order = calloc(count + 1, sizeof(*check->order));
    if (!check->order)
        return qr_error_set(check->e, QUIRE_ENOMEM, "no memory to check %zu pages", count);
    for (size_t i = 0; i < count; i++) {
        check->order[i] = (uint32_t)i;
        check_place(check, &pages[i]);
    }
    qsort_r(check->order, count, sizeof(*check->order), by_place, pages);
    for (size_t from = 0, to; from < count; from = to) {
        for (to = from + 1;
             to < count && same_region(&pages[check->order[from]], &pages[check->order[to]]);)
            to++;
        check_region(check, from, to);
    }
    return QUIRE_OK;
}
