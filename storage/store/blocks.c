/* SPDX-License-Identifier: Apache-2.0
 *
 * Block ids and the token ids that they will be made of.
 */
#include "blocks.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum token_state { UNKNOWN = 0, KNOWN = 1, STAGED = 2 };

void qr_blocks_init(struct qr_blocks *blocks, const uint8_t fingerprint[QR_HASH_BYTES],
                    const uint8_t uuid[16], uint32_t page_tokens, struct qr_meta *meta)
{
    memset(blocks, 0, sizeof(*blocks));
    blocks->page_tokens = page_tokens;
    blocks->meta = meta;
    memcpy(blocks->fingerprint, fingerprint, QR_HASH_BYTES);
    memcpy(blocks->uuid, uuid, 16);
}

void qr_blocks_free(struct qr_blocks *blocks)
{
    qr_meta_give(blocks->meta, (uint64_t)blocks->capacity * QR_HASH_BYTES +
                                   (uint64_t)blocks->token_capacity * 5);
    free(blocks->ids);
    free(blocks->tokens);
    free(blocks->known);
    blocks->ids = NULL;
    blocks->tokens = NULL;
    blocks->known = NULL;
    blocks->capacity = blocks->token_capacity = blocks->token_count = 0;
    blocks->fixed = blocks->staged = blocks->chained = blocks->chained_staged = 0;
    blocks->claimed = blocks->claimed_chained = 0;
}

static quire_status no_room(struct qr_error *e, uint64_t bytes)
{
    return qr_error_set(e, QUIRE_EFULL,
                        "no room for %" PRIu64 " bytes of session metadata: drop sessions, or "
                        "raise the budget",
                        bytes);
}

/* An eighth of slack: growing is cheap, and metadata a page stays small. */
static uint32_t grown(uint32_t wanted)
{
    return wanted + wanted / 8 + 8;
}

static quire_status reserve_ids(struct qr_blocks *blocks, uint32_t count, struct qr_error *e)
{
    const uint32_t capacity = grown(count);
    const uint64_t more = (uint64_t)(capacity - blocks->capacity) * QR_HASH_BYTES;

    if (!qr_meta_take(blocks->meta, more))
        return no_room(e, more);
    void *ids = realloc(blocks->ids, (size_t)capacity * QR_HASH_BYTES);
    if (!ids) {
        qr_meta_give(blocks->meta, more);
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u block ids", capacity);
    }
    blocks->ids = ids;
    blocks->capacity = capacity;
    return QUIRE_OK;
}

static quire_status reserve_tokens(struct qr_blocks *blocks, uint32_t count, struct qr_error *e)
{
    const uint32_t capacity = grown(count);
    const uint64_t more = (uint64_t)(capacity - blocks->token_capacity) * 5;

    if (!qr_meta_take(blocks->meta, more))
        return no_room(e, more);
    uint32_t *tokens = realloc(blocks->tokens, (size_t)capacity * sizeof(*tokens));
    if (tokens)
        blocks->tokens = tokens;
    uint8_t *known = realloc(blocks->known, capacity);
    if (known)
        blocks->known = known;
    if (!tokens || !known) {
        qr_meta_give(blocks->meta, more);
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u token ids", capacity);
    }
    blocks->token_capacity = capacity;
    return QUIRE_OK;
}

static uint64_t base_of(const struct qr_blocks *blocks)
{
    return (uint64_t)blocks->fixed * blocks->page_tokens;
}

quire_status qr_blocks_reserve(struct qr_blocks *blocks, uint32_t count, uint64_t position,
                               struct qr_error *e)
{
    const uint64_t base = base_of(blocks);
    quire_status status = QUIRE_OK;

    if (count > blocks->capacity)
        status = reserve_ids(blocks, count, e);
    if (status == QUIRE_OK && position > base && position - base > blocks->token_capacity)
        status = reserve_tokens(blocks, (uint32_t)(position - base), e);
    return status;
}

static quire_status conflict(struct qr_error *e, uint64_t position)
{
    qr_error_set(e, QUIRE_ECONFLICT,
                 "token id at position %" PRIu64 " differs from the one given before",
                 position);
    if (e)
        e->position = position;
    return QUIRE_ECONFLICT;
}

static quire_status conflict_in_block(struct qr_error *e, uint64_t position, uint32_t tokens)
{
    qr_error_set(e, QUIRE_ECONFLICT,
                 "a token id at positions [%" PRIu64 ", +%u) differs from those given before: "
                 "of a sealed block only their hash is kept",
                 position, tokens);
    if (e) {
        e->position = position;
        e->tokens = tokens;
    }
    return QUIRE_ECONFLICT;
}

/* Fixed blocks kept only their hash: a whole block can be compared, parts of one cannot. */
static quire_status compare_fixed(const struct qr_blocks *blocks, uint64_t position,
                                  const uint32_t *tokens, uint32_t n, struct qr_error *e)
{
    const uint32_t page_tokens = blocks->page_tokens;
    uint64_t block = (position + page_tokens - 1) / page_tokens;

    for (; block < blocks->chained && (block + 1) * page_tokens <= position + n; block++) {
        uint8_t id[QR_HASH_BYTES];
        const uint8_t *parent = block ? blocks->ids[block - 1] : blocks->fingerprint;
        qr_block_id_tokens(parent, tokens + (block * page_tokens - position), page_tokens, id);
        if (memcmp(id, blocks->ids[block], QR_HASH_BYTES) != 0)
            return conflict_in_block(e, block * page_tokens, page_tokens);
    }
    return QUIRE_OK;
}

quire_status qr_blocks_stage_tokens(struct qr_blocks *blocks, uint64_t position,
                                    const uint32_t *tokens, uint32_t n, struct qr_error *e)
{
    const uint64_t base = base_of(blocks);
    const uint64_t end = position + n;
    quire_status status = compare_fixed(blocks, position, tokens, n, e);

    if (status != QUIRE_OK || end <= base)
        return status;
    assert(end - base <= blocks->token_capacity);
    for (uint64_t p = position > base ? position : base; p < end; p++) {
        const uint64_t i = p - base;
        if (i < blocks->token_count && blocks->known[i] == KNOWN &&
            blocks->tokens[i] != tokens[p - position])
            return conflict(e, p);
    }
    while (blocks->token_count < end - base)
        blocks->known[blocks->token_count++] = UNKNOWN;
    for (uint64_t p = position > base ? position : base; p < end; p++) {
        if (blocks->known[p - base] == KNOWN)
            continue;
        blocks->known[p - base] = STAGED;
        blocks->tokens[p - base] = tokens[p - position];
    }
    return QUIRE_OK;
}

/* Those that are there already, fixed or claimed, must be the same. */
static quire_status compare_claims(const struct qr_blocks *blocks, uint32_t first,
                                   uint32_t count, const uint8_t (*ids)[QR_HASH_BYTES],
                                   uint32_t known, struct qr_error *e)
{
    for (uint32_t i = 0; i < count && first + i < known; i++) {
        if (memcmp(blocks->ids[first + i], ids[i], QR_HASH_BYTES) == 0)
            continue;
        const uint64_t position = (uint64_t)(first + i) * blocks->page_tokens;
        qr_error_set(e, QUIRE_ECONFLICT,
                     "block %u (position %" PRIu64 ") has another id already", first + i,
                     position);
        if (e)
            e->position = position;
        return QUIRE_ECONFLICT;
    }
    return QUIRE_OK;
}

quire_status qr_blocks_claim(struct qr_blocks *blocks, uint32_t first, uint32_t count,
                             const uint8_t (*ids)[QR_HASH_BYTES], uint32_t chained,
                             struct qr_error *e)
{
    const uint32_t known = blocks->claimed > blocks->fixed ? blocks->claimed : blocks->fixed;
    quire_status status = QUIRE_OK;

    assert(blocks->staged == blocks->fixed);
    if (first > known) {
        qr_error_set(e, QUIRE_EGAP, "claim from block %u, but %u have an id or a claim", first,
                     known);
        if (e)
            e->length = known;
        return QUIRE_EGAP;
    }
    status = compare_claims(blocks, first, count, ids, known, e);
    if (status == QUIRE_OK && first + count > blocks->capacity)
        status = reserve_ids(blocks, first + count, e);
    if (status != QUIRE_OK || first + count <= known)
        return status;
    memcpy(blocks->ids[known], ids[known - first],
           (size_t)(first + count - known) * QR_HASH_BYTES);
    blocks->claimed = first + count;
    blocks->claimed_chained = chained;
    return QUIRE_OK;
}

static bool all_known(const struct qr_blocks *blocks, uint64_t first)
{
    if (first + blocks->page_tokens > blocks->token_count)
        return false;
    for (uint32_t i = 0; i < blocks->page_tokens; i++) {
        if (blocks->known[first + i] == UNKNOWN)
            return false;
    }
    return true;
}

const uint8_t *qr_blocks_id(struct qr_blocks *blocks, uint32_t block)
{
    assert(block <= blocks->staged && block < blocks->capacity);
    if (block < blocks->staged)
        return blocks->ids[block];
    if (block < blocks->claimed) {
        blocks->chained_staged +=
            blocks->chained_staged == block && block < blocks->claimed_chained;
        blocks->staged++;
        return blocks->ids[block];
    }
    const uint64_t first = (uint64_t)block * blocks->page_tokens - base_of(blocks);
    if (blocks->chained_staged == block && all_known(blocks, first)) {
        const uint8_t *parent = block ? blocks->ids[block - 1] : blocks->fingerprint;
        qr_block_id_tokens(parent, blocks->tokens + first, blocks->page_tokens,
                           blocks->ids[block]);
        blocks->chained_staged++;
    } else {
        qr_block_id_unique(blocks->fingerprint, blocks->uuid, block, blocks->ids[block]);
    }
    blocks->staged++;
    return blocks->ids[block];
}

bool qr_blocks_known(const struct qr_blocks *blocks, uint32_t i)
{
    return blocks->known[i] == KNOWN;
}

/* Forget the token ids of the first `count` positions kept. */
static void drop_tokens(struct qr_blocks *blocks, uint64_t count)
{
    if (count >= blocks->token_count) {
        blocks->token_count = 0;
        return;
    }
    blocks->token_count -= (uint32_t)count;
    memmove(blocks->tokens, blocks->tokens + count, blocks->token_count * sizeof(uint32_t));
    memmove(blocks->known, blocks->known + count, blocks->token_count);
}

void qr_blocks_commit(struct qr_blocks *blocks)
{
    for (uint32_t i = 0; i < blocks->token_count; i++) {
        if (blocks->known[i] == STAGED)
            blocks->known[i] = KNOWN;
    }
    if (blocks->staged > blocks->fixed)
        drop_tokens(blocks, (uint64_t)(blocks->staged - blocks->fixed) * blocks->page_tokens);
    blocks->fixed = blocks->staged;
    blocks->chained = blocks->chained_staged;
}

void qr_blocks_abort(struct qr_blocks *blocks)
{
    for (uint32_t i = 0; i < blocks->token_count; i++) {
        if (blocks->known[i] == STAGED)
            blocks->known[i] = UNKNOWN;
    }
    blocks->staged = blocks->fixed;
    blocks->chained_staged = blocks->chained;
}

void qr_blocks_cut(struct qr_blocks *blocks, uint32_t count, uint64_t length,
                   const uint8_t uuid[16])
{
    const uint64_t base = base_of(blocks);

    blocks->claimed = blocks->claimed_chained = 0;
    if (count < blocks->fixed) {
        blocks->fixed = blocks->staged = count;
        if (blocks->chained > count)
            blocks->chained = blocks->chained_staged = count;
        blocks->token_count = 0;
        memcpy(blocks->uuid, uuid, 16);
    } else if (length <= base) {
        blocks->token_count = 0;
    } else if (length - base < blocks->token_count) {
        blocks->token_count = (uint32_t)(length - base);
    }
}

quire_status qr_blocks_copy(const struct qr_blocks *from, uint32_t count, uint64_t length,
                            struct qr_blocks *to, struct qr_error *e)
{
    const uint64_t base = base_of(from);
    const uint64_t tail = count == from->fixed && length > base ? length - base : 0;

    to->fixed = to->staged = count;
    quire_status status = qr_blocks_reserve(to, count, length, e);
    if (status != QUIRE_OK)
        return status;
    if (count > 0)
        memcpy(to->ids, from->ids, (size_t)count * QR_HASH_BYTES);
    to->chained = to->chained_staged = from->chained < count ? from->chained : count;
    to->token_count = tail < from->token_count ? (uint32_t)tail : from->token_count;
    if (to->token_count > 0) {
        memcpy(to->tokens, from->tokens, to->token_count * sizeof(uint32_t));
        memcpy(to->known, from->known, to->token_count);
    }
    return QUIRE_OK;
}
