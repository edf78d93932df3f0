/* SPDX-License-Identifier: Apache-2.0
 *
 * What refuses an append before a byte of it is read: what it names must exist, and begin where
 * every lane of it ends, or earlier, behind a tail that is there.
 */
#include <inttypes.h>

#include "append.h"

static quire_status check_request(const struct qr_session *session,
                                  const struct qr_append *append, struct qr_error *e)
{
    const uint32_t layers = session->model->layer_count;

    if (append->tokens < 1)
        return qr_error_set(e, QUIRE_EINVAL, "append of 0 tokens: need at least 1");
    if (append->layers < 1 || append->first_layer >= layers ||
        append->layers > layers - append->first_layer)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u): the model has %u",
                            append->first_layer, append->layers, layers);
    if (append->shard >= session->head_shards)
        return qr_error_set(e, QUIRE_EINVAL, "head shard %u: the session has %u", append->shard,
                            session->head_shards);
    if (append->position > QR_POSITION_MAX ||
        append->tokens > QR_POSITION_MAX + 1 - append->position)
        return qr_error_set(e, QUIRE_ETOOBIG, "tokens [%" PRIu64 ", +%u): positions end at %u",
                            append->position, append->tokens, QR_POSITION_MAX);
    if (append->durable && !session->store->mover)
        return qr_error_set(e, QUIRE_EUNSUPPORTED,
                            "durability \"disk\": this store has no disk tier");
    return QUIRE_OK;
}

static quire_status gap(const struct qr_lane *lane, uint64_t position, struct qr_error *e)
{
    qr_error_set(e, QUIRE_EGAP,
                 "append at %" PRIu64 " but layer %u has %" PRIu64
                 " tokens: append from there or earlier",
                 position, lane->layer, lane->length);
    if (e) {
        e->length = lane->length;
        e->layer = lane->layer;
    }
    return QUIRE_EGAP;
}

quire_status qr_append_lost(const struct qr_append_job *job, const struct qr_lane *lane,
                            uint32_t block, struct qr_error *e)
{
    const uint32_t page_tokens = job->session->policy.page_tokens;
    const uint64_t start = (uint64_t)block * page_tokens;
    const uint64_t end = qr_min_u64(start + page_tokens, lane->length);

    qr_error_set(e, QUIRE_EMISSING,
                 "layer %u lost tokens [%" PRIu64 ", %" PRIu64
                 "): append all of them in one call to restore them%s",
                 lane->layer, start, end, block < lane->sealed ? ", or start past them" : "");
    if (e) {
        e->position = start;
        e->tokens = end - start;
        e->layer = lane->layer;
    }
    return QUIRE_EMISSING;
}

/* New rows come after a tail that is there, or that the request brings back. */
static quire_status check_tail(const struct qr_append_job *job, const struct qr_lane *lane,
                               struct qr_error *e)
{
    const struct qr_append *append = job->append;
    const uint32_t page_tokens = job->session->policy.page_tokens;

    if (append->position + append->tokens <= lane->length)
        return QUIRE_OK;
    for (uint32_t block = lane->sealed; block < lane->sealed + lane->tail_count; block++) {
        if (append->position > (uint64_t)block * page_tokens &&
            qr_lane_lost(job->session, lane, block))
            return qr_append_lost(job, lane, block, e);
    }
    return QUIRE_OK;
}

/* A gap in any lane refuses the request before a byte of it is read. */
static quire_status check_lanes(struct qr_append_job *job, struct qr_error *e)
{
    const struct qr_append *append = job->append;
    uint32_t lanes = 0;

    for (uint32_t i = 0; i < append->layers; i++) {
        const struct qr_lane *lane =
            qr_session_lane(job->session, append->first_layer + i, append->shard);
        if (!lane)
            continue;
        lanes++;
        if (append->position > lane->length)
            return gap(lane, append->position, e);
        quire_status status = check_tail(job, lane, e);
        if (status != QUIRE_OK)
            return status;
    }
    if (lanes == 0)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u) have no KV cache",
                            append->first_layer, append->layers);
    return qr_append_room_lanes(job, lanes, e);
}

quire_status qr_append_check(struct qr_append_job *job, struct qr_error *e)
{
    const quire_status status = check_request(job->session, job->append, e);

    return status == QUIRE_OK ? check_lanes(job, e) : status;
}
