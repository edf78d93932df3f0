/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the check share: the store's records in RAM, and the ways to
 * report and to drop.
 */
#ifndef QR_DISK_CHECK_IMPL_H
#define QR_DISK_CHECK_IMPL_H

#include "disk_check.h"
#include "disk_index.h"
#include "disk_slabs.h"

#define QR_CHECK_NONE UINT32_MAX

enum qr_check_state {
    QR_CHECK_UNREAD, /* --quick */
    QR_CHECK_GOOD,
    QR_CHECK_BAD, /* damaged, outside, or shut out by another record */
    QR_CHECK_AWAY
};

enum {
    QR_CHECK_SHARED = 1, /* another record names the slot */
    QR_CHECK_PROVED = 2, /* its id follows from what it holds */
    QR_CHECK_QUARANTINED = 4,
    QR_CHECK_UNREADABLE = 8,
    QR_CHECK_DROPPED = 16, /* its record goes */
    QR_CHECK_MARKED = 32   /* goes into quarantine */
};

/** A page record; ascending by id in the array. */
struct qr_check_page {
    uint8_t id[QR_HASH_BYTES];
    uint64_t checksum, first_position;
    uint32_t region, slot, bytes, layer, ns;
    uint32_t named, refs; /* manifest entries, as its record says and as there are */
    uint32_t fingerprint; /* first bytes of the one in its header, once GOOD */
    uint16_t first_head, heads;
    uint8_t device, state, flags;
};

struct qr_check_session {
    uint8_t uuid[QR_DISK_UUID_BYTES];
    uint8_t fingerprint[QR_HASH_BYTES];
    uint32_t ns;
    struct qr_policy policy;
    char *name;
};

/** A lane record; ascending by session (its number in the array) and lane. */
struct qr_check_lane {
    uint32_t session, lane, sealed;
    uint64_t cut_sequence, cut_length;
};

struct qr_check_secret {
    uint32_t ns;
    uint8_t secret[QR_HASH_BYTES];
};

/** What page ids of a namespace are made with; each once. */
struct qr_check_policy {
    uint32_t ns;
    const uint8_t *secret;
    struct qr_policy policy; /* page_tokens, sink_rows and outlier_rows count */
};

struct qr_check_model {
    uint8_t fingerprint[QR_HASH_BYTES];
    bool good;
};

/** Growing array. */
struct qr_check_list {
    void *items;
    size_t count, capacity;
};

struct qr_check {
    const struct qr_disk_check_config *config;
    struct qr_disk_check_result *result;
    struct qr_error *e;
    struct qr_disk_io *io;
    struct qr_disk_home home;
    struct qr_disk_slabs *slabs;
    struct qr_disk_index *index;
    struct qr_check_list pages, sessions, lanes, secrets, policies, models; /* see above */
    struct qr_check_list going; /* uuids, ascending */
    struct qr_check_list drops; /* struct qr_disk_batch */
    uint32_t *order;            /* [pages.count] by device, slab, slot */
    bool no_memory;
};

static inline struct qr_check_page *qr_check_pages(const struct qr_check *check)
{
    return check->pages.items;
}
static inline struct qr_check_session *qr_check_sessions(const struct qr_check *check)
{
    return check->sessions.items;
}
static inline struct qr_check_lane *qr_check_lanes(const struct qr_check *check)
{
    return check->lanes.items;
}
static inline struct qr_disk_place qr_check_place(const struct qr_check_page *page)
{
    return (struct qr_disk_place){page->device, page->region, page->slot, page->bytes};
}

/* ---- disk_check.c ----------------------------------------------------------------------- */

/** Room for one more; NULL without memory, and check->no_memory is set. */
void *qr_check_add(struct qr_check *check, struct qr_check_list *list, size_t item_bytes);
/** Count it and tell the caller. */
void qr_check_found(struct qr_check *check, const struct qr_disk_finding *finding);
/** The same for a page, with its place. */
void qr_check_found_page(struct qr_check *check, enum qr_disk_finding_kind kind,
                         const struct qr_check_page *page, bool dropped, const char *text);
/** To be deleted when all is looked at; true with `repair`. */
bool qr_check_drop(struct qr_check *check, const uint8_t *key, size_t key_bytes);
/** A manifest entry to become a hole: it keeps id and checksum, so that a repeat of its tokens
 * can bring the page back; true with `repair`. */
bool qr_check_hollow(struct qr_check *check, const uint8_t *key, size_t key_bytes,
                     const struct qr_disk_block *entry);
bool qr_check_drop_page(struct qr_check *check, struct qr_check_page *page);
/** To be marked, so that its slot is not used again; with `repair`. */
void qr_check_mark_page(struct qr_check *check, struct qr_check_page *page);
/** Its record to be written anew as it is in RAM; true with `repair`. */
bool qr_check_rewrite_page(struct qr_check *check, const struct qr_check_page *page);
/** By uuid or id; NULL: none. */
struct qr_check_session *qr_check_session(const struct qr_check *check,
                                          const uint8_t uuid[QR_DISK_UUID_BYTES]);
bool qr_check_going(const struct qr_check *check, const uint8_t uuid[QR_DISK_UUID_BYTES]);
struct qr_check_page *qr_check_page(const struct qr_check *check,
                                    const uint8_t id[QR_HASH_BYTES]);
struct qr_check_lane *qr_check_lane(const struct qr_check *check, uint32_t session,
                                    uint32_t lane);

/* ---- the steps, in this order ----------------------------------------------------------- */

/** disk_check_load.c: index entries into the lists; places, and slots named twice. */
quire_status qr_check_load(struct qr_check *check);
quire_status qr_check_places(struct qr_check *check);
/** disk_check_pages.c: read and verify every page, in the order of the devices. */
quire_status qr_check_read(struct qr_check *check);
/** disk_check_sessions.c: manifests, block ids and lanes against what is there. */
quire_status qr_check_manifests(struct qr_check *check);
/** disk_check_tail.c */
quire_status qr_check_tail(struct qr_check *check);

#endif
