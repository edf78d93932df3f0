/* SPDX-License-Identifier: Apache-2.0
 *
 * Appending pages that the client sealed. Nothing of them is believed: format, checksum,
 * identity and policy are verified on the copy that will be kept.
 *
 * On the wire the block id is 32 zero bytes, since only the store knows it; the store writes it
 * and finishes the page anew. A client's page stands for tokens that have more after them, so
 * the tail before it is sealed whatever the window says.
 */
#include <inttypes.h>
#include <string.h>

#include "append.h"
#include "durable.h"

struct page_job {
    struct qr_append_job *job;
    struct qr_lane *lane;
    uint32_t block;
    struct qr_slot slot; /* the client's bytes; empty when they were used */
};

static quire_status check_place(const struct page_job *p, struct qr_error *e)
{
    const struct qr_append *append = p->job->append;
    const uint32_t page_tokens = p->job->session->policy.page_tokens;
    const uint64_t length = p->lane->length;

    if (append->layers != 1 || append->tokens != page_tokens)
        return qr_error_set(e, QUIRE_EINVAL,
                            "a page is 1 layer and %u tokens, not %u layers and %u tokens",
                            page_tokens, append->layers, append->tokens);
    if (append->position % page_tokens != 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "a page starts at a multiple of %u tokens, not at %" PRIu64,
                            page_tokens, append->position);
    if (append->position < length && length < append->position + page_tokens)
        return qr_error_set(e, QUIRE_EINVAL,
                            "layer %u has %" PRIu64 " tokens, a part of this block: append "
                            "rows up to %" PRIu64,
                            p->lane->layer, length, append->position + page_tokens);
    return QUIRE_OK;
}

/* One copy, from the wire's buffers to the slot where the page will stay. */
static quire_status receive(struct page_job *p, size_t page_bytes, struct qr_error *e)
{
    struct qr_session *session = p->job->session;
    struct qr_page_identity id;
    struct qr_page_view view;

    qr_lane_identity(session, p->lane, p->block, &id);
    const size_t most = qr_page_bytes_max(&id, &session->policy);
    if (page_bytes < sizeof(struct qr_page_header) || page_bytes > most ||
        page_bytes != p->job->source->bytes)
        return qr_error_set(e, QUIRE_ECORRUPT,
                            "page of %zu bytes in %" PRIu64 ": need %zu to %zu", page_bytes,
                            p->job->source->bytes, sizeof(struct qr_page_header), most);
    quire_status status = qr_index_reserve(session->store->index, page_bytes, &p->slot, e);
    if (status != QUIRE_OK)
        return status;
    void *bytes = qr_index_map(session->store->index, &p->slot);
    if (!p->job->source->read(p->job->source, bytes, page_bytes))
        return qr_error_set(e, QUIRE_EINVAL, "the page ended early");
    status = qr_page_open(bytes, page_bytes, &view, e);
    if (status == QUIRE_OK)
        status = qr_page_check_values(&view, e);
    if (status != QUIRE_OK)
        return status;
    memcpy(id.block_id, view.header->block_id, QR_HASH_BYTES);
    return qr_page_match(view.header, &id, e);
}

/* Row of the first digest that differs; 0 when the rows are the same and only their encoding
 * is another. */
static uint32_t first_other_row(const struct page_job *p, const void *stored, size_t bytes)
{
    const void *given = qr_index_map(p->job->session->store->index, &p->slot);
    struct qr_page_view ours, theirs;
    uint32_t row = 0;

    if (qr_page_open(given, p->slot.bytes, &ours, NULL) != QUIRE_OK ||
        qr_page_open(stored, bytes, &theirs, NULL) != QUIRE_OK || !ours.digests ||
        !theirs.digests)
        return 0;
    const uint32_t rows = p->job->session->policy.page_tokens;
    while (row < rows && ours.digests[row] == theirs.digests[row])
        row++;
    return row < rows ? row : 0;
}

/* Equal but for the block id and the checksum over it. */
static bool same_page(struct page_job *p, const void *stored, size_t stored_bytes)
{
    const struct qr_page_header *theirs = stored;
    struct qr_page_header *ours = qr_index_map(p->job->session->store->index, &p->slot);

    if (stored_bytes != p->slot.bytes)
        return false;
    memcpy(ours->block_id, theirs->block_id, QR_HASH_BYTES);
    ours->receipt = theirs->receipt;
    qr_page_finish(ours);
    return memcmp(ours, theirs, stored_bytes) == 0;
}

static quire_status compare(struct page_job *p, const void *stored, size_t stored_bytes,
                            struct qr_error *e)
{
    if (same_page(p, stored, stored_bytes))
        return QUIRE_OK;
    const uint64_t position =
        p->job->append->position + first_other_row(p, stored, stored_bytes);
    qr_error_set(e, QUIRE_ECONFLICT,
                 "layer %u has other values at position %" PRIu64
                 ": truncate to it first, or append what was appended before",
                 p->lane->layer, position);
    if (e) {
        e->position = position;
        e->layer = p->lane->layer;
    }
    return QUIRE_ECONFLICT;
}

static quire_status repeat_sealed(struct page_job *p, struct qr_error *e)
{
    struct qr_session *session = p->job->session;
    struct qr_index *index = session->store->index;
    struct qr_found found = {.block = p->block, .entry = p->lane->pages[p->block]};
    struct qr_page_view view;
    quire_status status = QUIRE_OK;
    bool damaged = true;

    const enum qr_page_state state =
        qr_append_hold(p->job, found.entry, p->block, &found.pinned);
    if (state == QR_PAGE_STORED)
        return qr_append_busy(p->job, e);
    if (state == QR_PAGE_RESIDENT) {
        memcpy(found.block_id, session->blocks.ids[p->block], QR_HASH_BYTES);
        damaged = qr_page_verify(session, p->lane, &found, &view, NULL) != QUIRE_OK;
        if (damaged)
            qr_index_quarantine(index, found.entry);
        else
            status = compare(p, found.pinned.bytes, found.pinned.n, e);
        if (!damaged && status == QUIRE_OK)
            status = qr_append_keep(p->job, found.entry, e);
        qr_index_unpin(index, found.entry);
    }
    if (damaged)
        return qr_append_add_page(p->job, p->block, &p->slot, e);
    return status;
}

/* The block is in the tail still: encode it and compare what comes out. */
static quire_status repeat_tail(struct page_job *p, struct qr_error *e)
{
    struct qr_session *session = p->job->session;
    const struct qr_chunk *chunk = p->lane->tail[p->block - p->lane->sealed];
    struct qr_page_identity id;
    struct qr_rows key, value;
    size_t bytes;

    qr_lane_identity(session, p->lane, p->block, &id);
    const size_t most = qr_page_bytes_max(&id, &session->policy);
    quire_status status = qr_append_room_scratch(p->job, most, e);
    if (status != QUIRE_OK)
        return status;
    qr_chunk_rows(session, p->lane, chunk, &key, &value);
    status =
        qr_page_encode(&id, &session->policy, &key, &value, p->job->scratch, most, &bytes, e);
    if (status != QUIRE_OK)
        return status;
    return compare(p, p->job->scratch, bytes, e);
}

/* The page becomes the lane's last: at its end, or in the place of rows of the tail that were
 * evicted. Nothing of those is left to compare it with. */
static quire_status add(struct page_job *p, struct qr_error *e)
{
    struct qr_append_job *job = p->job;
    quire_status status = qr_append_seal_until(job, p->block, e);

    if (status == QUIRE_OK)
        status = qr_lane_grow(job->session, p->lane, p->block + 1, e);
    if (status == QUIRE_OK)
        status = qr_append_add_page(job, p->block, &p->slot, e);
    if (status != QUIRE_OK)
        return status;
    struct qr_staged_lane *staged = &job->lanes[job->lane_count - 1];
    staged->sealed = p->block + 1;
    job->tails_restored += job->append->position < p->lane->length;
    staged->length = qr_max_u64(p->lane->length, job->append->position + job->append->tokens);
    return QUIRE_OK;
}

static quire_status append_page(struct page_job *p, size_t page_bytes, struct qr_error *e)
{
    quire_status status = check_place(p, e);

    if (status == QUIRE_OK)
        status = qr_append_stage_blocks(p->job, e);
    if (status == QUIRE_OK)
        status = receive(p, page_bytes, e);
    if (status == QUIRE_OK)
        status = qr_append_stage_lane(p->job, p->lane, e);
    if (status != QUIRE_OK)
        return status;
    if (p->job->append->position == p->lane->length)
        return add(p, e);
    p->job->lanes[p->job->lane_count - 1].repeated = p->job->append->tokens;
    if (p->block < p->lane->sealed)
        return repeat_sealed(p, e);
    return qr_lane_lost(p->job->session, p->lane, p->block) ? add(p, e) : repeat_tail(p, e);
}

quire_status qr_append_page(struct qr_store *store, uint32_t ns, const struct qr_append *append,
                            size_t page_bytes, struct qr_source *page,
                            struct qr_append_result *out, struct qr_error *e)
{
    struct page_job p = {0};
    quire_status status = qr_append_begin(store, ns, append, &p.job, e);

    if (status != QUIRE_OK)
        return status;
    p.job->source = page;
    p.lane = qr_session_lane(p.job->session, append->first_layer, append->shard);
    p.block = (uint32_t)(append->position / p.job->session->policy.page_tokens);
    /* Only a request of several layers, refused next, can name a first layer without a lane. */
    if (!p.lane)
        status = qr_error_set(e, QUIRE_EINVAL, "layer %u has no KV cache", append->first_layer);
    if (status == QUIRE_OK)
        status = append_page(&p, page_bytes, e);
    if (p.slot.bytes > 0)
        qr_index_release(store->index, &p.slot);
    return qr_append_finish(p.job, status, out, e);
}
