/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of what sessions name: lane records, block ids, manifests, in three
 * walks over the index, each in the order of sessions. Says which tokens of which
 * session damage costs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "disk_check_impl.h"

/* ---- entries of sessions that are not there --------------------------------------------- */

/** Entries of one kind and an unknown session, told once for all. */
struct strangers {
    uint8_t uuid[QR_DISK_UUID_BYTES];
    const char *what;
    uint64_t count;
    bool dropped;
};

static void strangers_tell(struct qr_check *check, struct strangers *s)
{
    struct qr_disk_finding finding = {.kind = QR_DISK_SESSION_MISSING, .dropped = s->dropped};
    char uuid[33];

    if (s->count == 0)
        return;
    qr_disk_uuid_text(s->uuid, uuid);
    finding.session = uuid;
    (void)snprintf(finding.text, sizeof(finding.text), "%" PRIu64 " %s", s->count, s->what);
    qr_check_found(check, &finding);
    s->count = 0;
}

static void strangers_add(struct qr_check *check, struct strangers *s, const uint8_t *key,
                          size_t key_bytes)
{
    if (qr_check_going(check, key + 1)) /* the next start's, not ours */
        return;
    if (s->count > 0 && memcmp(s->uuid, key + 1, QR_DISK_UUID_BYTES) != 0)
        strangers_tell(check, s);
    memcpy(s->uuid, key + 1, QR_DISK_UUID_BYTES);
    s->count++;
    s->dropped = qr_check_drop(check, key, key_bytes);
}

static void entry_damaged(struct qr_check *check, const uint8_t *key, size_t key_bytes)
{
    struct qr_disk_finding finding = {.kind = QR_DISK_RECORD_DAMAGED,
                                      .dropped = qr_check_drop(check, key, key_bytes)};

    (void)snprintf(finding.text, sizeof(finding.text), "kind '%c', key of %zu bytes", key[0],
                   key_bytes);
    qr_check_found(check, &finding);
}

static void found_tokens(struct qr_check *check, enum qr_disk_finding_kind kind,
                         const struct qr_check_lane *lane, uint64_t first_block,
                         uint64_t end_block, bool dropped)
{
    const struct qr_check_session *session = &qr_check_sessions(check)[lane->session];
    const uint64_t tokens = session->policy.page_tokens;
    const struct qr_disk_finding finding = {.kind = kind,
                                            .dropped = dropped,
                                            .session = session->name,
                                            .ns = session->ns,
                                            .lane = lane->lane,
                                            .first_token = first_block * tokens,
                                            .end_token = end_block * tokens};
    qr_check_found(check, &finding);
}

/* ---- lanes ------------------------------------------------------------------------------ */

struct record_walk {
    struct qr_check *check;
    struct strangers strangers;
};

static bool lane_entry(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                       size_t value_bytes)
{
    struct record_walk *walk = arg;
    struct qr_check *check = walk->check;
    struct qr_disk_lane record;
    uint32_t number;

    if (!qr_disk_key_lane_read(key, key_bytes, &number) ||
        qr_disk_lane_read(value, value_bytes, &record) != QUIRE_OK) {
        entry_damaged(check, key, key_bytes);
        return true;
    }
    const struct qr_check_session *session = qr_check_session(check, key + 1);
    if (!session) {
        strangers_add(check, &walk->strangers, key, key_bytes);
        return true;
    }
    struct qr_check_lane *lane = qr_check_add(check, &check->lanes, sizeof(*lane));
    if (!lane)
        return false;
    *lane = (struct qr_check_lane){.session = (uint32_t)(session - qr_check_sessions(check)),
                                   .lane = number,
                                   .sealed = record.sealed,
                                   .cut_sequence = record.cut_sequence,
                                   .cut_length = record.cut_length};
    check->result->lanes++;
    return true;
}

/** Records of one kind that belong to a session each. */
static quire_status walk_records(struct qr_check *check, uint8_t kind, const char *what,
                                 qr_disk_index_each_fn *each)
{
    const struct qr_disk_key prefix = {.bytes = {kind}, .n = 1};
    struct record_walk walk = {.check = check, .strangers = {.what = what}};
    const quire_status status =
        qr_disk_index_each(check->index, &prefix, each, &walk, check->e);

    strangers_tell(check, &walk.strangers);
    return status;
}

/* ---- block ids -------------------------------------------------------------------------- */

struct block_walk {
    struct qr_check *check;
    struct strangers strangers;
    const struct qr_check_session *session; /* whose ids are being read; NULL: none yet */
    uint32_t sealed, next;                  /* blocks that its longest lane has; seen */
};

static uint32_t longest(const struct qr_check *check, const struct qr_check_session *session)
{
    const uint32_t number = (uint32_t)(session - qr_check_sessions(check));
    const struct qr_check_lane *lanes = qr_check_lanes(check);
    uint32_t most = 0;
    size_t low = 0, high = check->lanes.count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (lanes[middle].session < number)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < check->lanes.count && lanes[low].session == number; low++)
        most = lanes[low].sealed > most ? lanes[low].sealed : most;
    return most;
}

/* Ids of [walk->next, to) are not there. */
static void blocks_missing(struct block_walk *walk, uint32_t to)
{
    const struct qr_check_lane lane = {
        .session = (uint32_t)(walk->session - qr_check_sessions(walk->check))};

    if (walk->next < to)
        found_tokens(walk->check, QR_DISK_BLOCK_ID_MISSING, &lane, walk->next, to, false);
}

/* The sessions before `to` (NULL: all) are through. */
static void blocks_until(struct block_walk *walk, const struct qr_check_session *to)
{
    const struct qr_check *check = walk->check;
    const struct qr_check_session *end = qr_check_sessions(check) + check->sessions.count;

    for (; walk->session != (to ? to : end); walk->session++, walk->next = 0) {
        walk->sealed = longest(check, walk->session);
        blocks_missing(walk, walk->sealed);
    }
    walk->sealed = to ? longest(check, to) : 0;
}

static bool block_entry(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                        size_t value_bytes)
{
    struct block_walk *walk = arg;
    struct qr_check *check = walk->check;
    uint32_t block;

    (void)value;
    if (!qr_disk_key_block_read(key, key_bytes, &block) || value_bytes != QR_HASH_BYTES) {
        entry_damaged(check, key, key_bytes);
        return true;
    }
    const struct qr_check_session *session = qr_check_session(check, key + 1);
    if (!session) {
        strangers_add(check, &walk->strangers, key, key_bytes);
        return true;
    }
    if (session != walk->session || walk->next == 0)
        blocks_until(walk, session);
    if (block >= walk->sealed) {
        const struct qr_check_lane lane = {.session =
                                               (uint32_t)(session - qr_check_sessions(check))};
        found_tokens(check, QR_DISK_ENTRY_PAST_END, &lane, block, block + 1,
                     qr_check_drop(check, key, key_bytes));
        return true;
    }
    blocks_missing(walk, block);
    walk->next = block + 1;
    return true;
}

static quire_status walk_blocks(struct qr_check *check)
{
    const struct qr_disk_key prefix = {.bytes = {QR_DISK_KEY_BLOCK}, .n = 1};
    struct block_walk walk = {.check = check,
                              .strangers = {.what = "block ids"},
                              .session = qr_check_sessions(check)};
    const quire_status status =
        qr_disk_index_each(check->index, &prefix, block_entry, &walk, check->e);

    strangers_tell(check, &walk.strangers);
    if (status == QUIRE_OK && check->sessions.count > 0)
        blocks_until(&walk, NULL);
    return status;
}

/* ---- token ids -------------------------------------------------------------------------- */

static bool tokens_entry(void *arg, const uint8_t *key, size_t key_bytes, const uint8_t *value,
                         size_t value_bytes)
{
    struct record_walk *walk = arg;
    uint32_t head[4]; /* version, fixed, chained, count */

    if (value_bytes >= sizeof(head))
        memcpy(head, value, sizeof(head));
    if (key_bytes != 1 + QR_DISK_UUID_BYTES || value_bytes < sizeof(head) ||
        value_bytes != sizeof(head) + (uint64_t)head[3] * 5 || head[2] > head[1])
        entry_damaged(walk->check, key, key_bytes);
    else if (!qr_check_session(walk->check, key + 1))
        strangers_add(walk->check, &walk->strangers, key, key_bytes);
    return true;
}

/* ---- manifests -------------------------------------------------------------------------- */

struct manifest_walk {
    struct qr_check *check;
    struct strangers strangers;
    size_t lane;                        /* in check->lanes: which is being read */
    uint32_t next;                      /* its block that must come next */
    const struct qr_check_page *sample; /* one of its pages: all are of one layer and heads */
    enum qr_disk_finding_kind why;      /* of the hole [hole, next) under way */
    uint32_t hole;                      /* QR_CHECK_NONE: none */
};

static void hole_tell(struct manifest_walk *walk)
{
    if (walk->hole != QR_CHECK_NONE)
        found_tokens(walk->check, walk->why, &qr_check_lanes(walk->check)[walk->lane],
                     walk->hole, walk->next, false);
    walk->hole = QR_CHECK_NONE;
}

/* Block walk->next is not there, for this reason; the next one's turn. */
static void hole_add(struct manifest_walk *walk, enum qr_disk_finding_kind why)
{
    if (walk->hole != QR_CHECK_NONE && walk->why != why)
        hole_tell(walk);
    if (walk->hole == QR_CHECK_NONE)
        walk->hole = walk->next;
    walk->why = why;
    walk->next++;
}

static void lane_end(struct manifest_walk *walk)
{
    const struct qr_check_lane *lane = &qr_check_lanes(walk->check)[walk->lane];

    while (walk->next < lane->sealed)
        hole_add(walk, QR_DISK_TOKENS_MISSING);
    hole_tell(walk);
    walk->lane++;
    walk->next = 0;
    walk->sample = NULL;
}

/* Why the page is not this lane's block; NULL: it is. */
static const char *foreign(const struct manifest_walk *walk, const struct qr_check_page *page,
                           const struct qr_disk_block *entry, uint32_t block)
{
    const struct qr_check *check = walk->check;
    const struct qr_check_session *session =
        &qr_check_sessions(check)[qr_check_lanes(check)[walk->lane].session];
    const struct qr_disk_place place = qr_check_place(page);

    if (memcmp(&entry->place, &place, sizeof(place)) != 0 || entry->checksum != page->checksum)
        return "its record has another place or checksum than the manifest entry";
    if (page->ns != session->ns)
        return "it is of another namespace";
    if (page->first_position != (uint64_t)block * session->policy.page_tokens)
        return "it is of another position";
    if (walk->sample &&
        (walk->sample->layer != page->layer || walk->sample->first_head != page->first_head ||
         walk->sample->heads != page->heads))
        return "it is of another lane";
    if (page->state != QR_CHECK_GOOD)
        return NULL;
    if (memcmp(&page->fingerprint, session->fingerprint, sizeof(page->fingerprint)) != 0)
        return "it is of another model";
    return page->flags & QR_CHECK_PROVED ? NULL : "its id does not follow from what it holds";
}

/* The entry names a page that is not there, or not its own: it becomes a hole. */
static void manifest_wrong(struct manifest_walk *walk, enum qr_disk_finding_kind kind,
                           const struct qr_disk_block *entry, const uint8_t *key,
                           size_t key_bytes, const char *why)
{
    struct qr_disk_finding finding = {
        .kind = kind,
        .place = &entry->place,
        .dropped = kind == QR_DISK_PAGE_FOREIGN
                       ? qr_check_drop(walk->check, key, key_bytes)
                       : qr_check_hollow(walk->check, key, key_bytes, entry)};

    strncpy(finding.text, why, sizeof(finding.text) - 1);
    qr_check_found(walk->check, &finding);
    hole_add(walk, QR_DISK_TOKENS_DAMAGED);
}

static void manifest_block(struct manifest_walk *walk, const uint8_t *key, size_t key_bytes,
                           const struct qr_disk_block *entry, uint32_t block)
{
    struct qr_check *check = walk->check;
    struct qr_check_page *page = qr_check_page(check, entry->page_id);

    while (walk->next < block)
        hole_add(walk, QR_DISK_TOKENS_MISSING);
    if (entry->place.bytes == 0) {
        hole_add(walk, QR_DISK_TOKENS_MISSING);
        return;
    }
    const char *why = page ? foreign(walk, page, entry, block) : "";
    if (why) {
        manifest_wrong(walk, page ? QR_DISK_PAGE_FOREIGN : QR_DISK_RECORD_MISSING, entry, key,
                       key_bytes, why);
        return;
    }
    if (page->flags & QR_CHECK_DROPPED) /* no entry may name a slot that will be free */
        (void)qr_check_hollow(check, key, key_bytes, entry);
    else
        page->refs++;
    if (page->state == QR_CHECK_BAD || (page->flags & QR_CHECK_QUARANTINED)) {
        hole_add(walk, page->flags & QR_CHECK_QUARANTINED ? QR_DISK_TOKENS_MISSING
                                                          : QR_DISK_TOKENS_DAMAGED);
        return;
    }
    hole_tell(walk);
    walk->sample = page;
    walk->next++;
}

/* Entries of a session that goes still count as names of their pages. */
static void manifest_stranger(struct manifest_walk *walk, const uint8_t *key, size_t key_bytes,
                              const struct qr_disk_block *entry)
{
    struct qr_check_page *page = qr_check_page(walk->check, entry->page_id);

    if (page && entry->place.bytes > 0 && qr_check_going(walk->check, key + 1))
        page->refs++;
    strangers_add(walk->check, &walk->strangers, key, key_bytes);
}

static bool manifest_entry(void *arg, const uint8_t *key, size_t key_bytes,
                           const uint8_t *value, size_t value_bytes)
{
    struct manifest_walk *walk = arg;
    struct qr_check *check = walk->check;
    struct qr_disk_block entry;
    uint32_t number, block;

    if (!qr_disk_key_manifest_read(key, key_bytes, &number, &block) ||
        qr_disk_block_read(value, value_bytes, &entry) != QUIRE_OK) {
        entry_damaged(check, key, key_bytes);
        return true;
    }
    const struct qr_check_session *session = qr_check_session(check, key + 1);
    if (!session) {
        manifest_stranger(walk, key, key_bytes, &entry);
        return true;
    }
    check->result->blocks++;
    const uint32_t session_number = (uint32_t)(session - qr_check_sessions(check));
    const struct qr_check_lane *lane = qr_check_lane(check, session_number, number);
    while (lane && &qr_check_lanes(check)[walk->lane] < lane)
        lane_end(walk);
    if (lane && block < lane->sealed) {
        manifest_block(walk, key, key_bytes, &entry, block);
        return true;
    }
    const struct qr_check_lane unknown = {.session = session_number, .lane = number};
    found_tokens(check, QR_DISK_ENTRY_PAST_END, lane ? lane : &unknown, block, block + 1,
                 qr_check_drop(check, key, key_bytes));
    return true;
}

static quire_status walk_manifests(struct qr_check *check)
{
    const struct qr_disk_key prefix = {.bytes = {QR_DISK_KEY_MANIFEST}, .n = 1};
    struct manifest_walk walk = {
        .check = check, .strangers = {.what = "manifest entries"}, .hole = QR_CHECK_NONE};
    const quire_status status =
        qr_disk_index_each(check->index, &prefix, manifest_entry, &walk, check->e);

    strangers_tell(check, &walk.strangers);
    while (status == QUIRE_OK && walk.lane < check->lanes.count)
        lane_end(&walk);
    return status;
}

/* ---- the step --------------------------------------------------------------------------- */

static void check_owner(struct qr_check *check, const struct qr_check_session *session)
{
    const struct qr_check_secret *secrets = check->secrets.items;
    const struct qr_check_model *models = check->models.items;
    struct qr_disk_finding finding = {.session = session->name, .ns = session->ns};
    bool ns = false, model = false;

    for (size_t i = 0; i < check->secrets.count; i++)
        ns = ns || secrets[i].ns == session->ns;
    for (size_t i = 0; i < check->models.count; i++)
        model = model || (models[i].good && memcmp(models[i].fingerprint, session->fingerprint,
                                                   QR_HASH_BYTES) == 0);
    finding.kind = QR_DISK_NAMESPACE_MISSING;
    if (!ns)
        qr_check_found(check, &finding);
    finding.kind = QR_DISK_MODEL_MISSING;
    if (!model)
        qr_check_found(check, &finding);
}

/* How many entries name a page. With too low a count it would go while one does; with too high
 * a one its slot is lost. */
static void check_names(struct qr_check *check, struct qr_check_page *page)
{
    const uint32_t said = page->named;
    char text[64];

    if (page->flags & QR_CHECK_DROPPED)
        return;
    if (page->refs == 0 && page->state != QR_CHECK_BAD)
        qr_check_found_page(check, QR_DISK_PAGE_UNUSED, page, false, "");
    if (page->refs == said)
        return;
    (void)snprintf(text, sizeof(text), "%u name it, its record says %u", page->refs, said);
    page->named = page->refs;
    check->result->counted += qr_check_rewrite_page(check, page);
    qr_check_found_page(check, page->refs > said ? QR_DISK_NAMED_LOW : QR_DISK_NAMED_HIGH, page,
                        false, text);
}

quire_status qr_check_manifests(struct qr_check *check)
{
    struct qr_check_page *pages = qr_check_pages(check);
    quire_status status = walk_records(check, QR_DISK_KEY_LANE, "lane records", lane_entry);

    if (status == QUIRE_OK && !check->no_memory)
        status = walk_blocks(check);
    if (status == QUIRE_OK && !check->no_memory)
        status = walk_records(check, QR_DISK_KEY_TOKENS, "token ids", tokens_entry);
    if (status == QUIRE_OK && !check->no_memory)
        status = walk_manifests(check);
    if (status != QUIRE_OK || check->no_memory)
        return status;
    for (size_t i = 0; i < check->sessions.count; i++)
        check_owner(check, &qr_check_sessions(check)[i]);
    for (size_t i = 0; i < check->pages.count; i++)
        check_names(check, &pages[i]);
    return QUIRE_OK;
}
