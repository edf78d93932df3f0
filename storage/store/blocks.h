/* SPDX-License-Identifier: Apache-2.0
 *
 * Block ids of a session: chained over token ids as long as all of them are
 * known, unique otherwise. One id a block, shared by all lanes, fixed when the
 * first lane seals the block. Must not know lanes, tiers or locks.
 *
 * Token ids and ids are first staged; an append that fails drops what it staged.
 */
#ifndef QR_BLOCKS_H
#define QR_BLOCKS_H

#include <stdbool.h>

#include "meta.h"
#include "proto/model.h"

struct qr_blocks {
    uint32_t page_tokens;               /* const */
    uint8_t fingerprint[QR_HASH_BYTES]; /* const */
    uint8_t uuid[16];                   /* of the session; renewed when sealed blocks are cut */
    struct qr_meta *meta;               /* const */
    uint8_t (*ids)[QR_HASH_BYTES];
    uint32_t capacity;
    uint32_t fixed, staged;            /* ids [0, fixed) hold, [fixed, staged) are staged */
    uint32_t chained, chained_staged;  /* of them, how many from the start are chained */
    uint32_t claimed, claimed_chained; /* ids [fixed, claimed) are there already: claims */
    uint32_t *tokens;                  /* ids of positions fixed * page_tokens and on */
    uint8_t *known;                    /* enum token_state of the same positions */
    uint32_t token_capacity, token_count;
};

void qr_blocks_init(struct qr_blocks *blocks, const uint8_t fingerprint[QR_HASH_BYTES],
                    const uint8_t uuid[16], uint32_t page_tokens, struct qr_meta *meta);
/** Empty it; an abort afterwards is harmless. */
void qr_blocks_free(struct qr_blocks *blocks);

/** Room for `count` ids and for token ids up to `position`. Moves memory: no reader may look
 * meanwhile. EFULL, ENOMEM. */
quire_status qr_blocks_reserve(struct qr_blocks *blocks, uint32_t count, uint64_t position,
                               struct qr_error *e);
/**
 * Stage token ids for [position, +n); qr_blocks_reserve came first. Ids of blocks that are
 * fixed are compared where a whole block is given. ECONFLICT.
 */
quire_status qr_blocks_stage_tokens(struct qr_blocks *blocks, uint64_t position,
                                    const uint32_t *tokens, uint32_t n, struct qr_error *e);
/**
 * Ids that blocks [first, +count) get when they are sealed, of which those below `chained` go
 * on the chain of token ids. Blocks with an id or a claim already are compared. Moves memory
 * like qr_blocks_reserve; nothing is staged. EGAP, ECONFLICT, EFULL, ENOMEM.
 */
quire_status qr_blocks_claim(struct qr_blocks *blocks, uint32_t first, uint32_t count,
                             const uint8_t (*ids)[QR_HASH_BYTES], uint32_t chained,
                             struct qr_error *e);
/** Id of a block, at most one past the last staged one (then it is staged). */
const uint8_t *qr_blocks_id(struct qr_blocks *blocks, uint32_t block);
/** Whether token id `i` of those kept (position fixed * page_tokens + i) was committed. */
bool qr_blocks_known(const struct qr_blocks *blocks, uint32_t i);
/** Keep, or drop, all that was staged. */
void qr_blocks_commit(struct qr_blocks *blocks);
void qr_blocks_abort(struct qr_blocks *blocks);
/** Forget blocks past `count`, claims, and token ids past `length`; `uuid` takes the place of
 * the old one when a fixed block goes. */
void qr_blocks_cut(struct qr_blocks *blocks, uint32_t count, uint64_t length,
                   const uint8_t uuid[16]);
/** Copy ids [0, count) and token ids up to `length` into fresh `to` (qr_blocks_init done). */
quire_status qr_blocks_copy(const struct qr_blocks *from, uint32_t count, uint64_t length,
                            struct qr_blocks *to, struct qr_error *e);

#endif
