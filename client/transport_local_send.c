/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames out: pieces into the ring, or kept in their call until there is room. See
 * transport_local_call.c for the life of a call and its invariants.
 */
#include <stdlib.h>
#include <string.h>

#include "transport_local.h"

void qr_local_release_pieces(const struct qr_piece *pieces, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (pieces[i].release)
            pieces[i].release(pieces[i].owner);
}

static size_t frame_bytes(const struct qr_piece *pieces, size_t count)
{
    size_t n = QR_RING_LINE;

    for (size_t i = 0; i < count; i++)
        n += qr_frame_part_bytes(pieces[i].bytes - pieces[i].payload_bytes,
                                 pieces[i].payload_bytes);
    return n;
}

/* Under send_lock. false: no room now. */
static bool put_frame(struct qr_local *local, struct qr_ring_head head,
                      const struct qr_piece *pieces, size_t count)
{
    const size_t bytes = frame_bytes(pieces, count);
    uint8_t *frame = qr_ring_reserve(&local->up, bytes, NULL);

    if (frame) {
        uint8_t *at = frame + QR_RING_LINE;
        for (size_t i = 0; i < count; i++) {
            const uint8_t *data = pieces[i].data;
            const size_t n = pieces[i].bytes - pieces[i].payload_bytes;
            at = qr_frame_put_part(
                at, &(struct qr_frame_part){data, n, data + n, pieces[i].payload_bytes});
        }
        head.bytes = (uint32_t)bytes;
        head.parts = (uint16_t)count;
        memcpy(frame, &head, sizeof(head));
        qr_ring_publish(&local->up, bytes);
    }
    if (qr_ring_reader_sleeps(&local->up)) /* also for a pad */
        qr_local_wake_server(local);
    return frame != NULL;
}

/* The first message of a call goes with the request, but for streams to the server. */
static bool put_message(struct qr_local_call *call, const struct qr_piece *pieces, size_t count)
{
    struct qr_local *local = call->local;
    const bool known = call->requested;
    const struct qr_ring_head head = {.type = known ? QR_FRAME_MESSAGE : QR_FRAME_REQUEST,
                                      .call = call->id,
                                      .value = known ? 0 : (uint32_t)call->method};

    /* Before the server can see it: the answer may come at once. */
    pthread_mutex_lock(&local->lock);
    call->requested = true;
    pthread_mutex_unlock(&local->lock);
    if (put_frame(local, head, pieces, count))
        return true;
    pthread_mutex_lock(&local->lock);
    call->requested = known;
    pthread_mutex_unlock(&local->lock);
    return false;
}

/* Under send_lock. */
void qr_local_want(struct qr_local_call *call, unsigned what)
{
    if (!call->wants && what)
        atomic_fetch_add(&call->local->waiting, 1);
    call->wants |= what;
}

void qr_local_satisfy(struct qr_local_call *call, unsigned what)
{
    if (call->wants && !(call->wants & ~what))
        atomic_fetch_sub(&call->local->waiting, 1);
    call->wants &= ~what;
}

/* A piece that is not lent, copied: into the call while it has room. */
static bool copy_piece(struct qr_local_call *call, const struct qr_piece *piece, size_t *used,
                       struct qr_piece *out)
{
    uint8_t *to = call->copied + *used;

    *out = *piece;
    if (piece->bytes > sizeof(call->copied) - *used) {
        to = malloc(piece->bytes);
        out->release = free;
        out->owner = to;
    } else {
        *used += piece->bytes;
    }
    if (to)
        memcpy(to, piece->data, piece->bytes);
    out->data = to;
    return to != NULL;
}

/* Keep a message until there is room. false: out of memory; lent pieces are the call's all the
 * same. */
static bool keep(struct qr_local_call *call, const struct qr_piece *pieces, size_t count)
{
    size_t used = 0;
    bool ok = true;

    for (size_t i = 0; i < count; i++)
        if (pieces[i].release)
            call->pieces[i] = pieces[i];
        else if (!copy_piece(call, &pieces[i], &used, &call->pieces[i]))
            ok = false;
    call->piece_count = count;
    qr_local_want(call, QR_WANT_MESSAGE);
    return ok;
}

size_t qr_local_take_kept(struct qr_local_call *call, struct qr_piece pieces[QR_PIECES_MAX])
{
    const size_t count = call->wants & QR_WANT_MESSAGE ? call->piece_count : 0;

    memcpy(pieces, call->pieces, count * sizeof(*pieces));
    qr_local_satisfy(call, QR_WANT_MESSAGE);
    return count;
}

bool qr_local_is_open(struct qr_local_call *call)
{
    pthread_mutex_lock(&call->local->lock);
    const bool open = call->started && !call->concluded && call->local->state == QR_LOCAL_UP;
    pthread_mutex_unlock(&call->local->lock);
    return open;
}

enum qr_local_sent qr_local_send_or_keep(struct qr_local_call *call,
                                         const struct qr_piece *pieces, size_t count,
                                         bool later)
{
    struct qr_local *local = call->local;
    enum qr_local_sent sent = QR_LOCAL_SENT_NEVER;

    pthread_mutex_lock(&local->send_lock);
    if (qr_local_is_open(call)) {
        /* Whoever waits already goes first. */
        if (!later && !atomic_load(&local->waiting) && put_message(call, pieces, count)) {
            sent = QR_LOCAL_SENT;
        } else {
            sent = QR_LOCAL_SENT_LATER;
            if (!keep(call, pieces, count) || frame_bytes(pieces, count) > local->up.capacity)
                qr_local_give_up(call);
        }
    }
    pthread_mutex_unlock(&local->send_lock);
    if (sent == QR_LOCAL_SENT_LATER) /* room may have come meanwhile */
        qr_local_ask_attention(local);
    else
        qr_local_release_pieces(pieces, count);
    return sent;
}

/* ---- what waits ------------------------------------------------------------------------- */

/* Under send_lock: send what the call wants, as far as there is room. True: a message went, and
 * its pieces are to be released. */
static bool flush_call(struct qr_local_call *call, struct qr_piece *pieces, size_t *count)
{
    struct qr_local *local = call->local;
    bool message = false;

    *count = 0;
    if (call->wants & QR_WANT_MESSAGE) {
        if (!put_message(call, call->pieces, call->piece_count))
            return false;
        *count = qr_local_take_kept(call, pieces);
        message = true;
    }
    if (call->wants & QR_WANT_CLOSE &&
        put_frame(local, (struct qr_ring_head){.type = QR_FRAME_CLOSE, .call = call->id}, NULL,
                  0))
        qr_local_satisfy(call, QR_WANT_CLOSE);
    if (call->wants & QR_WANT_CANCEL &&
        put_frame(local, (struct qr_ring_head){.type = QR_FRAME_CANCEL, .call = call->id}, NULL,
                  0))
        qr_local_satisfy(call, QR_WANT_CANCEL);
    return message;
}

void qr_local_flush(struct qr_local_call *call)
{
    struct qr_local *local = call->local;
    struct qr_piece pieces[QR_PIECES_MAX];
    size_t count = 0;
    bool message = false;

    pthread_mutex_lock(&local->send_lock);
    pthread_mutex_lock(&local->lock);
    const bool held = call->refs > 0; /* it stays this call while no lock is held */
    call->refs += held;
    const bool up = local->state == QR_LOCAL_UP;
    pthread_mutex_unlock(&local->lock);
    if (call->wants && up) {
        qr_ring_writer_waits(&local->up); /* first: room that comes now is not missed */
        message = flush_call(call, pieces, &count);
    }
    pthread_mutex_unlock(&local->send_lock);
    qr_local_release_pieces(pieces, count);
    if (message)
        qr_local_fire_writable(call);
    if (held)
        qr_call_release(&call->base);
}
