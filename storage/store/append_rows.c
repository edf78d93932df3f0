/* SPDX-License-Identifier: Apache-2.0
 *
 * Appending FP16, BF16 or FP32 rows: from the source to their place with one copy, checked,
 * compared where they repeat, sealed where the window allows.
 *
 * New rows go straight to the tail chunk that will hold them, past the length that readers see.
 * Rows of a block that has repeats go to a temporary chunk first, since they must not touch
 * what is stored.
 */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "append.h"

#define CONVERT_BYTES (256u << 10) /* rows that are not FP16 pass through so much scratch */
#define CHECK_BYTES (16u << 10)    /* FP16 is checked in pieces that the L1 cache still holds */

struct rows_job {
    struct qr_append_job *job;
    struct qr_staged_lane *staged;
    struct qr_lane *lane;
    uint64_t position, end; /* of the request */
    uint64_t old_length;
    uint32_t first_block, blocks; /* touched */
};

static uint64_t lane_bytes(const struct qr_append *append, const struct qr_lane *lane)
{
    return (uint64_t)append->tokens * lane->heads *
           ((uint64_t)lane->key_dim + lane->value_dim) * qr_dtype_bytes(append->dtype);
}

static quire_status check_source(const struct qr_append_job *job, const struct qr_source *rows,
                                 struct qr_error *e)
{
    const struct qr_append *append = job->append;
    uint64_t expected = 0;

    if (qr_dtype_bytes(append->dtype) == 0)
        return qr_error_set(e, QUIRE_EINVAL, "dtype %d: need F16 (1), BF16 (2) or F32 (3)",
                            (int)append->dtype);
    for (uint32_t i = 0; i < append->layers; i++) {
        const struct qr_lane *lane =
            qr_session_lane(job->session, append->first_layer + i, append->shard);
        expected += lane ? lane_bytes(append, lane) : 0;
    }
    if (rows->bytes != expected)
        return qr_error_set(
            e, QUIRE_EINVAL,
            "%" PRIu64 " bytes of rows: %u tokens of layers [%u, +%u) take %" PRIu64,
            rows->bytes, append->tokens, append->first_layer, append->layers, expected);
    return QUIRE_OK;
}

/* Rows of a block that the request covers. */
static void rows_of(const struct rows_job *r, uint32_t block, uint32_t *first, uint32_t *count)
{
    const uint32_t page_tokens = r->job->session->policy.page_tokens;
    const uint64_t start = (uint64_t)block * page_tokens;
    const uint64_t from = qr_max_u64(r->position, start);

    *first = (uint32_t)(from - start);
    *count = (uint32_t)(qr_min_u64(r->end, start + page_tokens) - from);
}

static bool has_repeats(const struct rows_job *r, uint32_t block)
{
    const uint64_t start = (uint64_t)block * r->job->session->policy.page_tokens;
    return qr_max_u64(r->position, start) < r->old_length;
}

static void copy_rows(const struct rows_job *r, struct qr_chunk *to,
                      const struct qr_chunk *from, uint32_t first, uint32_t count)
{
    const struct qr_lane *lane = r->lane;
    const size_t key_row = (size_t)lane->heads * lane->key_dim;
    const size_t value_row = (size_t)lane->heads * lane->value_dim;
    const size_t values = r->job->session->policy.page_tokens * key_row;

    memcpy(to->rows + first * key_row, from->rows + first * key_row,
           count * key_row * sizeof(uint16_t));
    memcpy(to->rows + values + first * value_row, from->rows + values + first * value_row,
           count * value_row * sizeof(uint16_t));
}

static quire_status make_chunk(const struct rows_job *r, uint32_t block, struct qr_chunk **out,
                               struct qr_error *e)
{
    return qr_chunk_make(&r->job->session->store->chunk_home, block,
                         qr_lane_chunk_bytes(r->job->session, r->lane), out, e);
}

/* The append's from now on, and the lane's when it commits. */
static quire_status stage_chunk(struct rows_job *r, uint32_t block, struct qr_chunk *chunk,
                                struct qr_error *e)
{
    quire_status status = qr_append_room_chunks(r->job, 1, e);

    if (status != QUIRE_OK)
        return status;
    r->job->chunks[r->job->chunk_count++] =
        (struct qr_staged_chunk){.chunk = chunk, .block = block};
    r->staged->chunks++;
    return QUIRE_OK;
}

/* The chunk that rows from `first` on of a block may be written to: the lane's own, or a staged
 * one that begins as a copy of it. */
static quire_status writable_chunk(struct rows_job *r, uint32_t block, uint32_t first,
                                   struct qr_chunk **out, struct qr_error *e)
{
    struct qr_chunk *held = qr_append_chunk(r->job, r->staged, block);

    if (held && qr_chunk_writable(held, first)) {
        *out = held;
        return QUIRE_OK;
    }
    quire_status status = make_chunk(r, block, out, e);
    if (status != QUIRE_OK)
        return status;
    status = stage_chunk(r, block, *out, e);
    if (status != QUIRE_OK)
        qr_lane_disown(r->job->session, *out);
    else if (held)
        copy_rows(r, *out, held, 0, first);
    return status;
}

static quire_status find_targets(struct rows_job *r, struct qr_error *e)
{
    quire_status status = qr_append_room_targets(r->job, r->blocks, e);

    if (status != QUIRE_OK)
        return status;
    memset(r->job->targets, 0, r->blocks * sizeof(struct qr_chunk *));
    for (uint32_t i = 0; i < r->blocks && status == QUIRE_OK; i++) {
        uint32_t first, count;
        rows_of(r, r->first_block + i, &first, &count);
        if (has_repeats(r, r->first_block + i))
            status = make_chunk(r, r->first_block + i, &r->job->targets[i], e);
        else
            status = writable_chunk(r, r->first_block + i, first, &r->job->targets[i], e);
    }
    return status;
}

static void drop_temporaries(struct rows_job *r)
{
    for (uint32_t i = 0; i < r->blocks; i++) {
        if (r->job->targets[i] && has_repeats(r, r->first_block + i))
            qr_lane_disown(r->job->session, r->job->targets[i]);
    }
}

static quire_status bad_value(const struct rows_job *r, const struct qr_error *cause,
                              uint64_t position, const char *what, struct qr_error *e)
{
    if (!e)
        return QUIRE_EVALUE;
    const uint64_t at = position + cause->position;
    const uint32_t head = r->lane->first_head + cause->head;
    qr_error_set(e, QUIRE_EVALUE,
                 "%s of layer %u, head %u, position %" PRIu64
                 ", channel %u is NaN, infinite, or rounds past 65504",
                 what, r->lane->layer, head, at, cause->channel);
    e->layer = r->lane->layer;
    e->head = head;
    e->position = at;
    e->channel = cause->channel;
    return QUIRE_EVALUE;
}

/* `count` tokens of K or V to `dst`. FP16 is read in place and checked there. */
static quire_status read_rows(const struct rows_job *r, uint32_t dim, uint32_t count,
                              uint16_t *dst, struct qr_error *cause)
{
    struct qr_append_job *job = r->job;
    const enum qr_dtype dtype = job->append->dtype;
    const size_t row = (size_t)r->lane->heads * dim;
    const size_t row_bytes = row * qr_dtype_bytes(dtype);
    const bool direct = dtype == QR_F16;
    uint32_t step = (uint32_t)((direct ? CHECK_BYTES : CONVERT_BYTES) / row_bytes);

    if (step == 0)
        step = 1;
    for (uint32_t t = 0; t < count; t += step) {
        const uint32_t n = count - t < step ? count - t : step;
        void *from = direct ? (void *)(dst + t * row) : job->scratch;
        if (!job->source->read(job->source, from, n * row_bytes))
            return qr_error_set(cause, QUIRE_EINVAL, "the rows ended early");
        /* Both sides are contiguous: one long row saves a call a head. */
        quire_status status =
            qr_rows_convert(from, dtype, n * row_bytes, n * row_bytes, 1, 1,
                            (uint32_t)(n * row), dst + t * row, n * row, n * row, cause);
        if (status != QUIRE_OK) {
            const uint32_t at = cause->channel;
            cause->position = t + at / row;
            cause->head = (uint32_t)(at % row / dim);
            cause->channel = at % dim;
            return status;
        }
    }
    return QUIRE_OK;
}

static quire_status read_tensor(struct rows_job *r, enum qr_which which, struct qr_error *e)
{
    const struct qr_lane *lane = r->lane;
    const uint32_t page_tokens = r->job->session->policy.page_tokens;
    const uint32_t dim = which == QR_KEY ? lane->key_dim : lane->value_dim;
    const size_t offset =
        which == QR_KEY ? 0 : (size_t)page_tokens * lane->heads * lane->key_dim;

    for (uint32_t i = 0; i < r->blocks; i++) {
        const uint32_t block = r->first_block + i;
        uint32_t first, count;
        struct qr_error cause = {0};
        rows_of(r, block, &first, &count);
        uint16_t *dst = r->job->targets[i]->rows + offset + (size_t)first * lane->heads * dim;
        quire_status status = read_rows(r, dim, count, dst, &cause);
        if (status == QUIRE_EVALUE)
            return bad_value(r, &cause, (uint64_t)block * page_tokens + first,
                             which == QR_KEY ? "key" : "value", e);
        if (status != QUIRE_OK)
            return qr_error_set(e, status, "%s", cause.text);
    }
    return QUIRE_OK;
}

/* A block of the tail that was evicted: what is given takes its place, with nothing left to
 * compare it with, provided it is all of it. */
static quire_status restore_tail(struct rows_job *r, uint32_t block, struct qr_error *e)
{
    const uint64_t start = (uint64_t)block * r->job->session->policy.page_tokens;
    const uint64_t end = qr_min_u64(start + r->job->session->policy.page_tokens, r->old_length);
    struct qr_chunk **given = &r->job->targets[block - r->first_block];

    if (r->position > start || r->end < end)
        return qr_append_lost(r->job, r->lane, block, e);
    quire_status status = stage_chunk(r, block, *given, e);
    if (status != QUIRE_OK)
        return status;
    *given = NULL;
    r->job->tails_restored++;
    return QUIRE_OK;
}

/* Compare the repeated rows of a block; what stands after them moves to its place. */
static quire_status settle_repeats(struct rows_job *r, uint32_t block, struct qr_error *e)
{
    struct qr_chunk *given = r->job->targets[block - r->first_block];
    const uint64_t start = (uint64_t)block * r->job->session->policy.page_tokens;
    uint32_t first, count;

    rows_of(r, block, &first, &count);
    if (block >= r->lane->sealed && qr_lane_lost(r->job->session, r->lane, block))
        return restore_tail(r, block, e);
    const uint64_t known = qr_min_u64(r->old_length - start, first + count);
    const uint32_t repeats = (uint32_t)known - first;
    quire_status status = qr_append_compare(r->job, block, first, repeats, given, e);
    if (status != QUIRE_OK || repeats == count)
        return status;

    struct qr_chunk *to;
    status = writable_chunk(r, block, first + repeats, &to, e);
    if (status == QUIRE_OK)
        copy_rows(r, to, given, first + repeats, count - repeats);
    return status;
}

static uint32_t sealed_by(const struct qr_policy *policy, uint64_t length)
{
    return length < policy->window
               ? 0
               : (uint32_t)((length - policy->window) / policy->page_tokens);
}

static quire_status room_to_convert(const struct rows_job *r, struct qr_error *e)
{
    const uint32_t dim =
        r->lane->key_dim > r->lane->value_dim ? r->lane->key_dim : r->lane->value_dim;
    const size_t row_bytes =
        (size_t)r->lane->heads * dim * qr_dtype_bytes(r->job->append->dtype);

    return qr_append_room_scratch(r->job, row_bytes > CONVERT_BYTES ? row_bytes : CONVERT_BYTES,
                                  e);
}

static quire_status append_lane(struct qr_append_job *job, struct qr_lane *lane,
                                struct qr_error *e)
{
    const struct qr_policy *policy = &job->session->policy;
    const struct qr_append *append = job->append;
    quire_status status = qr_append_stage_lane(job, lane, e);
    if (status != QUIRE_OK)
        return status;
    struct rows_job r = {
        .job = job,
        .staged = &job->lanes[job->lane_count - 1],
        .lane = lane,
        .position = append->position,
        .end = append->position + append->tokens,
        .old_length = lane->length,
        .first_block = (uint32_t)(append->position / policy->page_tokens),
    };
    r.blocks = (uint32_t)((r.end - 1) / policy->page_tokens) + 1 - r.first_block;
    r.staged->repeated = (uint32_t)(qr_min_u64(r.end, lane->length) - append->position);

    status = find_targets(&r, e);
    if (status == QUIRE_OK && append->dtype != QR_F16)
        status = room_to_convert(&r, e);
    if (status == QUIRE_OK)
        status = read_tensor(&r, QR_KEY, e);
    if (status == QUIRE_OK)
        status = read_tensor(&r, QR_VALUE, e);
    for (uint32_t i = 0; i < r.blocks && status == QUIRE_OK; i++) {
        if (has_repeats(&r, r.first_block + i))
            status = settle_repeats(&r, r.first_block + i, e);
    }
    if (job->target_capacity >= r.blocks)
        drop_temporaries(&r);
    if (status != QUIRE_OK)
        return status;
    r.staged->length = qr_max_u64(lane->length, r.end);
    return qr_append_seal_until(job, sealed_by(policy, r.staged->length), e);
}

quire_status qr_append_rows(struct qr_store *store, uint32_t ns, const struct qr_append *append,
                            struct qr_source *rows, struct qr_append_result *out,
                            struct qr_error *e)
{
    struct qr_append_job *job;
    quire_status status = qr_append_begin(store, ns, append, &job, e);

    if (status != QUIRE_OK)
        return status;
    job->source = rows;
    status = check_source(job, rows, e);
    if (status == QUIRE_OK)
        status = qr_append_stage_blocks(job, e);
    for (uint32_t i = 0; i < append->layers && status == QUIRE_OK; i++) {
        struct qr_lane *lane =
            qr_session_lane(job->session, append->first_layer + i, append->shard);
        if (lane)
            status = append_lane(job, lane, e);
    }
    return qr_append_finish(job, status, out, e);
}
