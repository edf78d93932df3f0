/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealing: a full block becomes a page in the index, or is found to be there.
 *
 * Pages are visible to the namespace as soon as their bytes are complete; the append holds a
 * reference, and drops it when it fails. An id that is there already is shared when its
 * contents are the same; otherwise the block gets a random block id in this lane, so that
 * neither session reads the other's values.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "append.h"
#include "storage/base/random.h"

#define ATTEMPTS_MAX 8 /* ids to try: the second one is random already */

/* What is to become a page: a chunk to encode, or bytes of a client in a slot of their own. */
struct candidate {
    uint32_t block;
    const struct qr_chunk *chunk; /* or NULL and */
    struct qr_slot *slot;         /* the candidate's until published */
    struct qr_receipt *receipt;   /* out: that of the page which stands for it */
};

static struct qr_staged_lane *current(struct qr_append_job *job)
{
    return &job->lanes[job->lane_count - 1];
}

/* The id in a client's page is a claim, and counts where the block's own id was one: it differs
 * from the block's where the page had to get one of its own on the server that it comes from.
 */
static const uint8_t *claimed_id(const struct qr_append_job *job,
                                 const struct candidate *candidate)
{
    static const uint8_t none[QR_HASH_BYTES];

    if (candidate->chunk || candidate->block >= job->session->blocks.claimed)
        return NULL;
    const struct qr_page_header *header =
        qr_index_map(job->session->store->index, candidate->slot);
    return memcmp(header->block_id, none, QR_HASH_BYTES) ? header->block_id : NULL;
}

static quire_status choose_id(struct qr_append_job *job, const struct candidate *candidate,
                              int attempt, uint8_t out[QR_HASH_BYTES], struct qr_error *e)
{
    uint8_t random[16];

    if (attempt == 0) {
        const uint8_t *id = qr_blocks_id(&job->session->blocks, candidate->block);
        const uint8_t *claimed = claimed_id(job, candidate);
        memcpy(out, claimed ? claimed : id, QR_HASH_BYTES);
        return QUIRE_OK;
    }
    quire_status status = qr_random_fill(random, sizeof(random), e);
    if (status == QUIRE_OK)
        qr_block_id_unique(job->session->model->fingerprint, random, candidate->block, out);
    return status;
}

static bool same_rows(const struct qr_append_job *job, const struct qr_lane *lane,
                      const struct qr_chunk *chunk, const struct qr_page_view *view)
{
    const uint32_t page_tokens = job->session->policy.page_tokens;
    struct qr_rows key, value;

    if (!view->digests)
        return false;
    qr_chunk_rows(job->session, lane, chunk, &key, &value);
    for (uint32_t t = 0; t < page_tokens; t++) {
        if (view->digests[t] != qr_row_digest(key.data + t * key.token_stride, key.token_stride,
                                              value.data + t * value.token_stride,
                                              value.token_stride))
            return false;
    }
    return true;
}

/* The candidate's chunk as a page of this block id, in the scratch. */
static quire_status encode(struct qr_append_job *job, const struct candidate *candidate,
                           const uint8_t block_id[QR_HASH_BYTES], size_t *bytes_out,
                           struct qr_error *e)
{
    const struct qr_session *session = job->session;
    const struct qr_lane *lane = current(job)->lane;
    struct qr_page_identity id;
    struct qr_rows key, value;

    qr_lane_identity(session, lane, candidate->block, &id);
    memcpy(id.block_id, block_id, QR_HASH_BYTES);
    /* Whole pages first, at a multiple of 64 bytes, then what measuring needs. */
    const bool measure = qr_receipt_due(&id, session->store->config.receipts);
    const size_t most = (qr_page_bytes_max(&id, &session->policy) + 63) / 64 * 64;
    quire_status status =
        qr_append_room_scratch(job, most + (measure ? qr_receipt_scratch_bytes(&id) : 0), e);
    if (status != QUIRE_OK)
        return status;
    qr_chunk_rows(session, lane, candidate->chunk, &key, &value);
    status =
        qr_page_encode(&id, &session->policy, &key, &value, job->scratch, most, bytes_out, e);
    if (status == QUIRE_OK && measure)
        status =
            qr_receipt_measure(job->scratch, *bytes_out, &key, &value, job->scratch + most, e);
    return status;
}

/* Digests alone are not believed: a client may have sealed the page, and they say nothing about
 * its codes. They spare encoding a block that is another one anyway. */
static bool encodes_to(struct qr_append_job *job, const struct candidate *candidate,
                       const struct qr_found *found, const struct qr_page_view *view)
{
    size_t bytes = 0;

    if (!same_rows(job, current(job)->lane, candidate->chunk, view) ||
        encode(job, candidate, found->block_id, &bytes, NULL) != QUIRE_OK ||
        bytes != found->pinned.n)
        return false;
    qr_receipt_copy(job->scratch, found->pinned.bytes);
    return memcmp(job->scratch, found->pinned.bytes, bytes) == 0;
}

/* A resident page under our id: is it what we would store? */
static bool same_contents(struct qr_append_job *job, const struct candidate *candidate,
                          const struct qr_found *found)
{
    const struct qr_lane *lane = current(job)->lane;
    struct qr_index *index = job->session->store->index;
    const struct qr_pinned *pinned = &found->pinned;
    struct qr_page_view view;

    if (qr_page_verify(job->session, lane, found, &view, NULL) != QUIRE_OK) {
        qr_index_quarantine(index, found->entry);
        return false;
    }
    if (candidate->chunk)
        return encodes_to(job, candidate, found, &view);
    if (pinned->n != candidate->slot->bytes)
        return false;
    qr_receipt_copy(qr_index_map(index, candidate->slot), pinned->bytes);
    return memcmp(pinned->bytes, qr_index_map(index, candidate->slot), pinned->n) == 0;
}

/* Complete bytes for this block id in a slot of the tier. */
static quire_status produce(struct qr_append_job *job, const struct candidate *candidate,
                            const uint8_t block_id[QR_HASH_BYTES], struct qr_slot *slot,
                            struct qr_error *e)
{
    struct qr_index *index = job->session->store->index;
    size_t bytes;
    quire_status status = encode(job, candidate, block_id, &bytes, e);

    if (status == QUIRE_OK)
        status = qr_index_reserve(index, bytes, slot, e);
    if (status == QUIRE_OK)
        memcpy(qr_index_map(index, slot), job->scratch, bytes);
    return status;
}

/* Write the block id into a client's page and finish it anew. */
static void name_page(struct qr_append_job *job, const struct candidate *candidate,
                      const uint8_t block_id[QR_HASH_BYTES])
{
    struct qr_page_header *header = qr_index_map(job->session->store->index, candidate->slot);

    memcpy(header->block_id, block_id, QR_HASH_BYTES);
    qr_page_finish(header);
}

static struct qr_place place_of(const struct qr_append_job *job, const struct candidate *c)
{
    const struct qr_session *session = job->session;
    const struct qr_lane *lane = job->lanes[job->lane_count - 1].lane;
    struct qr_place place = {.group = session->group, .order = c->block, .hint = QR_ENTRY_NONE};

    /* The page of the same block in the lane before, staged or not, else of the block before.
     */
    if (job->lane_count > 1) {
        const struct qr_staged_lane *before = &job->lanes[job->lane_count - 2];
        const struct qr_staged_page *pages = &job->pages[before->first_page];
        if (before->pages > 0 && c->block >= pages[0].block &&
            c->block - pages[0].block < before->pages)
            place.hint = pages[c->block - pages[0].block].entry;
    } else if (lane > session->lanes && c->block < lane[-1].sealed) {
        place.hint = lane[-1].pages[c->block];
    } else if (c->block > 0 && c->block <= lane->sealed) {
        place.hint = lane->pages[c->block - 1];
    }
    return place;
}

static quire_status publish(struct qr_append_job *job, const struct candidate *candidate,
                            const uint8_t block_id[QR_HASH_BYTES], uint32_t entry,
                            enum qr_publish *result, struct qr_error *e)
{
    struct qr_index *index = job->session->store->index;
    const struct qr_place place = place_of(job, candidate);
    struct qr_slot made = {0};
    quire_status status = QUIRE_OK;

    if (candidate->chunk)
        status = produce(job, candidate, block_id, &made, e);
    if (status != QUIRE_OK)
        return status;
    struct qr_slot *slot = candidate->chunk ? &made : candidate->slot;
    const struct qr_page_header *header = qr_index_map(index, slot);
    *candidate->receipt = header->receipt;
    *result = qr_index_publish(index, entry, slot, &place);
    if (*result == QR_PUBLISH_DONE)
        slot->bytes = 0;
    else if (candidate->chunk)
        qr_index_release(index, &made);
    return QUIRE_OK;
}

static quire_status conflict(const struct qr_append_job *job, const struct qr_lane *lane,
                             uint32_t block, struct qr_error *e)
{
    const uint64_t position = (uint64_t)block * job->session->policy.page_tokens;

    qr_error_set(e, QUIRE_ECONFLICT,
                 "layer %u lost the page at position %" PRIu64
                 ", and what is given for it is not what was there",
                 lane->layer, position);
    if (e) {
        e->position = position;
        e->layer = lane->layer;
    }
    return QUIRE_ECONFLICT;
}

/* The id is known but has no bytes: fill it, or find that its bytes were others. */
static quire_status fill_entry(struct qr_append_job *job, const struct candidate *candidate,
                               const uint8_t block_id[QR_HASH_BYTES], uint32_t entry,
                               bool *done, struct qr_error *e)
{
    const struct qr_lane *lane = current(job)->lane;
    enum qr_publish result = QR_PUBLISH_TAKEN;
    quire_status status = publish(job, candidate, block_id, entry, &result, e);

    if (status != QUIRE_OK)
        return status;
    *done = result == QR_PUBLISH_DONE;
    job->sealed += *done && candidate->chunk;
    job->received += *done && !candidate->chunk;
    job->unshared += result == QR_PUBLISH_DIFFERS;
    if (result == QR_PUBLISH_DIFFERS && candidate->block < lane->sealed &&
        lane->pages[candidate->block] == entry)
        return conflict(job, lane, candidate->block, e);
    return QUIRE_OK;
}

/* One id: *done when the block is in the index under it, with a reference in *entry. A damaged
 * page is not filled again: nobody can tell whether the bytes are what they were. */
static quire_status try_id(struct qr_append_job *job, const struct candidate *candidate,
                           const uint8_t block_id[QR_HASH_BYTES], uint32_t *entry, bool *done,
                           struct qr_error *e)
{
    struct qr_index *index = job->session->store->index;
    uint8_t page_id[QR_HASH_BYTES];
    enum qr_page_state state;
    struct qr_found found = {.block = candidate->block};

    memcpy(found.block_id, block_id, QR_HASH_BYTES);
    qr_lane_page_id(job->session, current(job)->lane, block_id, page_id);
    if (!candidate->chunk)
        name_page(job, candidate, block_id);
    quire_status status = qr_index_find(index, page_id, entry, &state, &found.pinned, e);
    if (status != QUIRE_OK)
        return status;
    if (state == QR_PAGE_RESIDENT) {
        found.entry = *entry;
        *done = same_contents(job, candidate, &found);
        *candidate->receipt = ((const struct qr_page_header *)found.pinned.bytes)->receipt;
        qr_index_unpin(index, *entry);
        job->shared += *done;
        job->unshared += !*done;
    } else if (state == QR_PAGE_EVICTED || state == QR_PAGE_STORED) {
        status = fill_entry(job, candidate, block_id, *entry, done, e);
    }
    if (!*done)
        qr_index_unref(index, entry, 1);
    return status;
}

static quire_status place_page(struct qr_append_job *job, const struct candidate *candidate,
                               struct qr_error *e)
{
    quire_status status = qr_append_room_pages(job, 1, e);
    bool done = false;
    uint32_t entry = QR_ENTRY_NONE;

    for (int attempt = 0; attempt < ATTEMPTS_MAX && status == QUIRE_OK && !done; attempt++) {
        uint8_t block_id[QR_HASH_BYTES];
        status = choose_id(job, candidate, attempt, block_id, e);
        if (status == QUIRE_OK)
            status = try_id(job, candidate, block_id, &entry, &done, e);
    }
    if (status != QUIRE_OK)
        return status;
    if (!done)
        return qr_error_set(e, QUIRE_EINTERNAL, "no free page id in %d attempts", ATTEMPTS_MAX);
    job->pages[job->page_count++] =
        (struct qr_staged_page){entry, candidate->block, *candidate->receipt};
    current(job)->pages++;
    if (candidate->block < current(job)->lane->sealed) /* a repeat: OK means that it is there */
        return qr_append_keep(job, entry, e);
    return QUIRE_OK;
}

quire_status qr_append_seal(struct qr_append_job *job, uint32_t block,
                            const struct qr_chunk *chunk, struct qr_error *e)
{
    struct qr_receipt receipt = {0};
    const struct candidate candidate = {.block = block, .chunk = chunk, .receipt = &receipt};

    job->restored += block < current(job)->lane->sealed;
    return place_page(job, &candidate, e);
}

quire_status qr_append_add_page(struct qr_append_job *job, uint32_t block, struct qr_slot *slot,
                                struct qr_error *e)
{
    struct qr_receipt receipt = {0};
    const struct candidate candidate = {.block = block, .slot = slot, .receipt = &receipt};

    job->restored += block < current(job)->lane->sealed;
    return place_page(job, &candidate, e);
}

static void forget_staged_chunk(struct qr_append_job *job, uint32_t block)
{
    const struct qr_staged_lane *staged = current(job);

    for (uint32_t i = 0; i < staged->chunks; i++) {
        struct qr_staged_chunk *c = &job->chunks[staged->first_chunk + i];
        if (c->chunk && c->block == block) {
            qr_lane_disown(job->session, c->chunk);
            c->chunk = NULL;
        }
    }
}

quire_status qr_append_seal_until(struct qr_append_job *job, uint32_t sealed,
                                  struct qr_error *e)
{
    struct qr_staged_lane *staged = current(job);
    quire_status status = QUIRE_OK;

    if (sealed > staged->sealed)
        status = qr_lane_grow(job->session, staged->lane, sealed, e);
    while (status == QUIRE_OK && staged->sealed < sealed) {
        const struct qr_chunk *chunk = qr_append_chunk(job, staged, staged->sealed);
        assert(chunk);
        if (qr_chunk_resident_bytes(chunk) == 0)
            return qr_append_lost(job, staged->lane, staged->sealed, e);
        status = qr_append_seal(job, staged->sealed, chunk, e);
        if (status != QUIRE_OK)
            break;
        forget_staged_chunk(job, staged->sealed);
        staged->sealed++;
    }
    return status;
}
