/* SPDX-License-Identifier: Apache-2.0
 *
 * Repeats: rows that a lane has already must be the same ones. Tail rows are compared as they
 * are, sealed rows by the row digests that their page carries. A repeat of a whole block that
 * was evicted brings it back.
 */
#include <inttypes.h>
#include <string.h>

#include "append.h"
#include "durable.h"

struct repeat {
    struct qr_append_job *job;
    const struct qr_lane *lane;
    uint32_t block, first, n;
    const struct qr_chunk *given;
};

static quire_status conflict(const struct repeat *r, uint32_t row, struct qr_error *e)
{
    const uint64_t position = (uint64_t)r->block * r->job->session->policy.page_tokens + row;

    qr_error_set(e, QUIRE_ECONFLICT,
                 "layer %u has other values at position %" PRIu64
                 ": truncate to it first, or append what was appended before",
                 r->lane->layer, position);
    if (e) {
        e->position = position;
        e->layer = r->lane->layer;
    }
    return QUIRE_ECONFLICT;
}

static quire_status compare_tail(const struct repeat *r, struct qr_error *e)
{
    const struct qr_session *session = r->job->session;
    struct qr_rows key, value, given_key, given_value;

    qr_chunk_rows(session, r->lane, r->lane->tail[r->block - r->lane->sealed], &key, &value);
    qr_chunk_rows(session, r->lane, r->given, &given_key, &given_value);
    for (uint32_t t = r->first; t < r->first + r->n; t++) {
        if (memcmp(key.data + t * key.token_stride, given_key.data + t * key.token_stride,
                   key.token_stride * sizeof(uint16_t)) != 0 ||
            memcmp(value.data + t * value.token_stride,
                   given_value.data + t * value.token_stride,
                   value.token_stride * sizeof(uint16_t)) != 0)
            return conflict(r, t, e);
    }
    return QUIRE_OK;
}

static quire_status compare_page(const struct repeat *r, const struct qr_page_view *view,
                                 struct qr_error *e)
{
    struct qr_rows key, value;

    if (!view->digests)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "block %u of layer %u carries no row digests: repeats of it cannot "
                            "be compared",
                            r->block, r->lane->layer);
    qr_chunk_rows(r->job->session, r->lane, r->given, &key, &value);
    for (uint32_t t = r->first; t < r->first + r->n; t++) {
        const uint32_t digest =
            qr_row_digest(key.data + t * key.token_stride, key.token_stride,
                          value.data + t * value.token_stride, value.token_stride);
        if (view->digests[t] != digest)
            return conflict(r, t, e);
    }
    return QUIRE_OK;
}

static quire_status restore(const struct repeat *r, struct qr_error *e)
{
    if (r->n == r->job->session->policy.page_tokens)
        return qr_append_seal(r->job, r->block, r->given, e);
    return qr_append_lost(r->job, r->lane, r->block, e);
}

quire_status qr_append_compare(struct qr_append_job *job, uint32_t block, uint32_t first,
                               uint32_t n, const struct qr_chunk *given, struct qr_error *e)
{
    const struct repeat r = {.job = job,
                             .lane = job->lanes[job->lane_count - 1].lane,
                             .block = block,
                             .first = first,
                             .n = n,
                             .given = given};
    struct qr_index *index = job->session->store->index;
    struct qr_found found = {.block = block};
    struct qr_page_view view;

    if (block >= r.lane->sealed)
        return compare_tail(&r, e);
    found.entry = r.lane->pages[block];
    const enum qr_page_state state = qr_append_hold(job, found.entry, block, &found.pinned);
    if (state == QR_PAGE_STORED)
        return qr_append_busy(job, e);
    if (state != QR_PAGE_RESIDENT)
        return restore(&r, e);
    memcpy(found.block_id, job->session->blocks.ids[block], QR_HASH_BYTES);
    quire_status status = qr_page_verify(job->session, r.lane, &found, &view, NULL);
    const bool damaged = status != QUIRE_OK;
    if (damaged)
        qr_index_quarantine(index, found.entry);
    else
        status = compare_page(&r, &view, e);
    if (status == QUIRE_OK)
        status = qr_append_keep(job, found.entry, e);
    qr_index_unpin(index, found.entry);
    return damaged ? restore(&r, e) : status;
}
