/* SPDX-License-Identifier: Apache-2.0
 *
 * For moving a session: its manifest out, and claims of block ids in. Must not know files or
 * the wire.
 *
 * A claim says which ids blocks will have when they are sealed. Nothing is believed by it: a
 * page under a claimed id is verified like any client's page, and it is shared with a session
 * that has the same id only where the bytes are equal (append_seal.c).
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "durable.h"

void qr_manifest_free(struct qr_manifest **manifest)
{
    struct qr_manifest *m = *manifest;

    if (!m)
        return;
    free(m->block_ids);
    free(m->sealed);
    free(m->token_ids);
    free(m->known);
    free(m);
    *manifest = NULL;
}

static bool allocate(struct qr_manifest *m)
{
    m->block_ids = malloc((size_t)m->id_count * QR_HASH_BYTES + 1);
    m->sealed = malloc(m->lane_count * sizeof(*m->sealed) + 1);
    m->token_ids = malloc(m->token_count * sizeof(*m->token_ids) + 1);
    m->known = malloc(m->token_count + 1u);
    return m->block_ids && m->sealed && m->token_ids && m->known;
}

/* Under the session's lock, so that all of it is of one moment; between appends nothing is
 * staged, and during one only what is committed shows. */
static quire_status fill(const struct qr_session *session, uint32_t first, uint32_t blocks,
                         struct qr_manifest *m, struct qr_error *e)
{
    const struct qr_blocks *b = &session->blocks;

    m->length = qr_session_length(session, NULL);
    m->ttl_ms = atomic_load(&session->ttl_ms);
    m->block_count = b->fixed;
    m->chained = b->chained;
    m->first_block = first < b->fixed ? first : b->fixed;
    m->id_count = b->fixed - m->first_block < blocks ? b->fixed - m->first_block : blocks;
    m->lane_count = session->lane_count;
    m->token_position = (uint64_t)b->fixed * b->page_tokens;
    m->token_count = b->token_count;
    if (!allocate(m))
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a manifest of %u lanes",
                            m->lane_count);
    if (m->id_count > 0)
        memcpy(m->block_ids, b->ids[m->first_block], (size_t)m->id_count * QR_HASH_BYTES);
    for (uint32_t i = 0; i < m->lane_count; i++)
        m->sealed[i] = session->lanes[i].sealed;
    for (uint32_t i = 0; i < m->token_count; i++) {
        m->known[i] = qr_blocks_known(b, i);
        m->token_ids[i] = m->known[i] ? b->tokens[i] : 0;
    }
    return QUIRE_OK;
}

quire_status qr_session_manifest(struct qr_store *store, uint32_t ns, uint64_t handle,
                                 uint32_t first_block, uint32_t blocks,
                                 struct qr_manifest **out, struct qr_error *e)
{
    struct qr_session *session;
    struct qr_manifest *m = calloc(1, sizeof(*m));

    if (!m)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for a manifest");
    quire_status status = qr_session_acquire(store, ns, handle, &session, e);
    if (status != QUIRE_OK) {
        free(m);
        return status;
    }
    qr_session_used(session);
    status = qr_session_load(session, e);
    /* An append that is under way stages token ids without the other lock. */
    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    if (status == QUIRE_OK && session->dead)
        status = qr_session_gone(e, session->name);
    if (status == QUIRE_OK)
        status = fill(session, first_block, blocks, m, e);
    pthread_mutex_unlock(&session->lock);
    pthread_mutex_unlock(&session->write_lock);
    qr_session_release(session);
    if (status == QUIRE_OK)
        *out = m;
    else
        qr_manifest_free(&m);
    return status;
}

static quire_status check_claim(const struct qr_session *session,
                                const struct qr_block_claim *claim, struct qr_error *e)
{
    static const uint8_t none[QR_HASH_BYTES];
    const uint32_t most = (QR_POSITION_MAX + 1) / session->policy.page_tokens;

    if (claim->count < 1)
        return qr_error_set(e, QUIRE_EINVAL, "claim of 0 block ids: need at least 1");
    if (claim->first > most || claim->count > most - claim->first)
        return qr_error_set(e, QUIRE_ETOOBIG, "blocks [%u, +%u): a session ends at %u",
                            claim->first, claim->count, most);
    if (claim->chained > most)
        return qr_error_set(e, QUIRE_EINVAL, "%u chained blocks: a session has at most %u",
                            claim->chained, most);
    for (uint32_t i = 0; i < claim->count; i++) {
        if (memcmp(claim->ids[i], none, QR_HASH_BYTES) == 0)
            return qr_error_set(e, QUIRE_EINVAL, "the id of block %u is zero",
                                claim->first + i);
    }
    return QUIRE_OK;
}

quire_status qr_session_claim(struct qr_store *store, uint32_t ns,
                              const struct qr_block_claim *claim, uint32_t *blocks_out,
                              struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, claim->session, &session, e);

    if (status != QUIRE_OK)
        return status;
    status = qr_session_load(session, e);
    pthread_mutex_lock(&session->write_lock);
    pthread_mutex_lock(&session->lock);
    if (status == QUIRE_OK)
        status = qr_session_check_writer(session, claim->epoch, e);
    if (status == QUIRE_OK)
        status = check_claim(session, claim, e);
    if (status == QUIRE_OK)
        status = qr_blocks_claim(&session->blocks, claim->first, claim->count, claim->ids,
                                 claim->chained, e);
    if (status == QUIRE_OK)
        *blocks_out = session->blocks.claimed > session->blocks.fixed ? session->blocks.claimed
                                                                      : session->blocks.fixed;
    pthread_mutex_unlock(&session->lock);
    pthread_mutex_unlock(&session->write_lock);
    qr_session_used(session);
    qr_session_release(session);
    return status;
}
