/* SPDX-License-Identifier: Apache-2.0
 *
 * One call through shared memory: frames out, frames in, and the one last event.
 *
 *   new -> start -> (message | writable)* -> done
 *
 * Invariants:
 *   1. `due` counts events under way and the call itself until it is concluded: by its END, by
 *      its deadline or a cancel, or because the connection broke. Who brings it to 0 fires
 *      `done`: exactly once, last.
 *   2. A number is used again only when its handles are gone and the server, if it knows of the
 *      call, has ended it: so no frame can be taken for one of another call.
 *   3. Pieces are copied into the ring, or wait in the call; they are released once, by whoever
 *      takes them out of `wants` under send_lock.
 *   4. No lock is held while an event fires or a piece is released.
 */
#include "transport_local.h"

#include <stdio.h>
#include <string.h>

#define STATUS_CANCELLED 1 /* gRPC's numbers */
#define STATUS_EXHAUSTED 8
#define STATUS_INTERNAL 13
#define STATUS_DEADLINE 4
#define STATUS_UNAVAILABLE 14

static struct qr_local_call *of(struct qr_call *base)
{
    return (struct qr_local_call *)base; /* its first member */
}

/* ---- ends ------------------------------------------------------------------------------- */

/* Under lock. */
static void forget(struct qr_local_call *call)
{
    if (--call->refs > 0)
        return;
    call->local->used--;
    pthread_cond_broadcast(&call->local->idle);
}

static bool is_free(const struct qr_local_call *call)
{
    return call->refs == 0 && (!call->requested || call->peer_ended);
}

/* An event has ended; the last one is followed by `done`. Under lock, which is given up. */
static void end_event_unlock(struct qr_local_call *call)
{
    struct qr_local *local = call->local;
    const bool last = --call->due == 0;

    pthread_mutex_unlock(&local->lock);
    if (!last)
        return;
    const struct qr_call_result result = {.grpc_status = call->grpc_status,
                                          .text = call->text,
                                          .details = call->details_bytes ? call->details : NULL,
                                          .details_bytes = call->details_bytes};
    call->events->done(call->context, &result);
    pthread_mutex_lock(&local->lock);
    forget(call);
    pthread_mutex_unlock(&local->lock);
}

static void end_event(struct qr_local_call *call)
{
    pthread_mutex_lock(&call->local->lock);
    end_event_unlock(call);
}

/* Under lock: how it ended; only the first time counts. True: end_event_unlock has to follow.
 */
static bool conclude(struct qr_local_call *call, int grpc_status, const char *text)
{
    if (call->concluded || !call->started)
        return false;
    call->concluded = true;
    call->grpc_status = grpc_status;
    snprintf(call->text, sizeof(call->text), "%s", text);
    return true;
}

/* Under lock: an event may be fired; end_event has to follow. */
static bool begin_event(struct qr_local_call *call)
{
    const bool open = call->started && !call->concluded;

    call->due += open;
    return open;
}

/* ---- deadlines and cancels -------------------------------------------------------------- */

void qr_local_fire_writable(struct qr_local_call *call)
{
    if (!call->events->writable)
        return;
    pthread_mutex_lock(&call->local->lock);
    const bool open = begin_event(call);
    pthread_mutex_unlock(&call->local->lock);
    if (!open)
        return;
    call->events->writable(call->context);
    end_event(call);
}

/* What the client itself ends: cancelled, late. */
static void end_here(struct qr_local *local, struct qr_local_call *call, uint64_t now_ns)
{
    struct qr_piece pieces[QR_PIECES_MAX];
    size_t count = 0;
    bool ended = false;

    pthread_mutex_lock(&local->send_lock);
    pthread_mutex_lock(&local->lock);
    if (call->given_up)
        ended =
            conclude(call, STATUS_EXHAUSTED, "no memory to keep a message, or none so large");
    else if (call->cancel_asked)
        ended = conclude(call, STATUS_CANCELLED, "canceled");
    else if (call->started && now_ns >= call->deadline_ns)
        ended = conclude(call, STATUS_DEADLINE, "deadline exceeded");
    const bool tell = ended && call->requested && !call->peer_ended;
    pthread_mutex_unlock(&local->lock);
    if (ended) {
        count = qr_local_take_kept(call, pieces);
        qr_local_satisfy(call, QR_WANT_CLOSE);
        if (tell)
            qr_local_want(call, QR_WANT_CANCEL);
    }
    pthread_mutex_unlock(&local->send_lock);
    qr_local_release_pieces(pieces, count);
    if (ended)
        end_event(call);
}

uint64_t qr_local_next_deadline(struct qr_local *local)
{
    uint64_t next = UINT64_MAX;

    for (uint32_t i = 0; i < QR_LOCAL_CALLS_MAX; i++) {
        const struct qr_local_call *call = &local->calls[i];
        if (call->started && !call->concluded && call->deadline_ns < next)
            next = call->deadline_ns;
    }
    return next;
}

void qr_local_give_up(struct qr_local_call *call)
{
    pthread_mutex_lock(&call->local->lock);
    call->given_up = true;
    pthread_mutex_unlock(&call->local->lock);
}

void qr_local_ask_attention(struct qr_local *local)
{
    atomic_store(&local->attention, true);
    qr_local_wake_leader(local);
}

void qr_local_attend_calls(struct qr_local *local)
{
    const uint64_t now_ns = qr_local_now_ns();
    const bool all = atomic_exchange(&local->attention, false);

    pthread_mutex_lock(&local->lock);
    const bool late = qr_local_next_deadline(local) <= now_ns;
    pthread_mutex_unlock(&local->lock);
    for (uint32_t i = 0; (all || late) && i < QR_LOCAL_CALLS_MAX; i++)
        end_here(local, &local->calls[i], now_ns);
    for (uint32_t i = 0; atomic_load(&local->waiting) && i < QR_LOCAL_CALLS_MAX; i++)
        qr_local_flush(&local->calls[i]);
}

/* ---- breaking --------------------------------------------------------------------------- */

/* The server knows nothing of the call any more: what waits to be sent is of no use, and the
 * number may be used again once the call is released. */
static void peer_ended(struct qr_local_call *call)
{
    struct qr_local *local = call->local;
    struct qr_piece pieces[QR_PIECES_MAX];

    pthread_mutex_lock(&local->send_lock);
    const size_t count = qr_local_take_kept(call, pieces);
    qr_local_satisfy(call, QR_WANT_CLOSE | QR_WANT_CANCEL);
    pthread_mutex_lock(&local->lock);
    call->peer_ended = true;
    pthread_mutex_unlock(&local->lock);
    pthread_mutex_unlock(&local->send_lock);
    qr_local_release_pieces(pieces, count);
}

static void break_call(struct qr_local *local, struct qr_local_call *call)
{
    pthread_mutex_lock(&local->lock);
    const bool ended =
        conclude(call, STATUS_UNAVAILABLE, "the connection on this host has ended");
    pthread_mutex_unlock(&local->lock);
    peer_ended(call);
    if (ended)
        end_event(call);
}

void qr_local_break(struct qr_local *local)
{
    pthread_mutex_lock(&local->send_lock);
    pthread_mutex_lock(&local->lock);
    const bool first = local->state == QR_LOCAL_UP;
    if (first)
        local->state = QR_LOCAL_BROKEN;
    pthread_mutex_unlock(&local->lock);
    pthread_mutex_unlock(&local->send_lock);
    for (uint32_t i = 0; first && i < QR_LOCAL_CALLS_MAX; i++)
        break_call(local, &local->calls[i]);
}

/* ---- receiving -------------------------------------------------------------------------- */

/* Fire the replies of an ordered call, unless somebody does. */
static void drain(struct qr_local_call *call)
{
    struct qr_local *local = call->local;
    uint8_t bytes[QR_LOCAL_REPLY_MAX];

    pthread_mutex_lock(&local->lock);
    if (call->draining || call->reply_count == 0) { /* another thread was faster */
        pthread_mutex_unlock(&local->lock);
        return;
    }
    call->draining = true;
    for (;;) {
        const unsigned at = call->reply_first;
        const struct qr_wire_fragment one = {.data = bytes, .bytes = call->reply_bytes[at]};
        memcpy(bytes, call->replies[at], one.bytes);
        call->reply_first = (at + 1) % QR_LOCAL_REPLIES_MAX;
        call->reply_count--;
        pthread_mutex_unlock(&local->lock);
        call->events->message(call->context, &one, 1);
        pthread_mutex_lock(&local->lock);
        if (call->reply_count == 0)
            break;
        call->due--; /* not the last: the next reply is due */
    }
    call->draining = false;
    end_event_unlock(call);
}

/* Under lock. */
static bool queue_reply(struct qr_local_call *call, const struct qr_frame_room *room)
{
    struct qr_wire_cursor all = qr_wire_cursor_all(room->fragments, room->count);
    const unsigned at = (call->reply_first + call->reply_count) % QR_LOCAL_REPLIES_MAX;

    if (all.bytes > QR_LOCAL_REPLY_MAX || call->reply_count == QR_LOCAL_REPLIES_MAX)
        return false;
    call->reply_bytes[at] = (uint8_t)all.bytes;
    (void)qr_wire_cursor_read(&all, call->replies[at], (size_t)all.bytes);
    call->reply_count++;
    call->due++;
    return true;
}

/* Under lock. */
static void sort_end(struct qr_local_task *task, const struct qr_frame_room *room,
                     uint32_t status)
{
    struct qr_local_call *call = task->call;
    struct qr_wire_cursor all = qr_wire_cursor_all(room->fragments, room->count);

    if (!call->concluded && all.bytes <= sizeof(call->details)) {
        call->details_bytes = (size_t)all.bytes;
        (void)qr_wire_cursor_read(&all, call->details, call->details_bytes);
    }
    task->peer_ended = true;
    task->concluded = conclude(call, status <= 16 ? (int)status : STATUS_INTERNAL,
                               status ? "the server refused" : "");
}

/* Under lock. */
static bool sort_message(struct qr_local_task *task, const struct qr_frame_room *room,
                         bool last)
{
    struct qr_local_call *call = task->call;
    const bool open = call->started && !call->concluded;

    if (open && call->ordered && !queue_reply(call, room))
        return false;
    task->drain = open && call->ordered;
    task->message = open && !call->ordered && begin_event(call);
    task->peer_ended = last;
    task->concluded = last && conclude(call, 0, "");
    return true;
}

bool qr_local_sort(struct qr_local *local, const struct qr_ring_frame *frame,
                   struct qr_frame_room *room, struct qr_local_task *task)
{
    const struct qr_ring_head *head = &frame->head;
    bool ok = false;

    *task = (struct qr_local_task){0};
    if (head->call >= QR_LOCAL_CALLS_MAX || !qr_frame_gather(frame, room))
        return false;
    task->call = &local->calls[head->call];
    pthread_mutex_lock(&local->lock);
    if (!task->call->requested || task->call->peer_ended) {
        ok = false; /* the server speaks of a call that there is not */
    } else if (head->type == QR_FRAME_END) {
        sort_end(task, room, head->value);
        ok = true;
    } else if (head->type == QR_FRAME_MESSAGE) {
        ok = sort_message(task, room, head->flags & QR_FRAME_LAST);
    }
    pthread_mutex_unlock(&local->lock);
    return ok;
}

void qr_local_run(struct qr_local *local, const struct qr_local_task *task,
                  const struct qr_frame_room *room, unsigned slot)
{
    struct qr_local_call *call = task->call;

    if (task->message) {
        call->events->message(call->context, room->fragments, room->count);
        end_event(call);
    }
    qr_local_frame_done(local, slot);
    if (task->drain)
        drain(call);
    if (task->peer_ended)
        peer_ended(call);
    if (task->concluded)
        end_event(call);
}

/* ---- the table -------------------------------------------------------------------------- */

static void hold(struct qr_call *base)
{
    struct qr_local_call *call = of(base);

    pthread_mutex_lock(&call->local->lock);
    call->refs++;
    pthread_mutex_unlock(&call->local->lock);
}

static void release(struct qr_call *base)
{
    struct qr_local_call *call = of(base);
    struct qr_local *local = call->local;

    pthread_mutex_lock(&local->lock);
    forget(call);
    pthread_mutex_unlock(&local->lock);
}

/* From now on it may end; its deadline may be before the leader would wake. */
static void start(struct qr_local_call *call)
{
    struct qr_local *local = call->local;

    pthread_mutex_lock(&local->lock);
    call->started = true;
    call->due = 1;
    const bool broke = local->state != QR_LOCAL_UP;
    const bool early = call->deadline_ns < local->sleep_until_ns;
    const bool ended =
        broke && conclude(call, STATUS_UNAVAILABLE, "the connection on this host has ended");
    pthread_mutex_unlock(&local->lock);
    if (ended)
        end_event(call);
    else if (early)
        qr_local_ask_attention(local);
}

static void start_with(struct qr_call *base, const struct qr_piece *pieces, size_t count)
{
    hold(base); /* it may be over before the message is gone */
    start(of(base));
    (void)qr_local_send_or_keep(of(base), pieces, count, false);
    release(base);
}

/* The first `writable` comes from a thread of ours: the caller may not be in its hands yet. */
static void start_writer(struct qr_call *base)
{
    hold(base);
    start(of(base));
    (void)qr_local_send_or_keep(of(base), NULL, 0, true);
    release(base);
}

static bool send_one(struct qr_call *base, const struct qr_piece *pieces, size_t count)
{
    const enum qr_local_sent sent = qr_local_send_or_keep(of(base), pieces, count, false);

    if (sent == QR_LOCAL_SENT)
        qr_local_fire_writable(of(base));
    return sent != QR_LOCAL_SENT_NEVER;
}

static void close_send(struct qr_call *base)
{
    struct qr_local_call *call = of(base);

    pthread_mutex_lock(&call->local->send_lock);
    if (qr_local_is_open(call)) /* else the number may be another call's soon */
        qr_local_want(call, QR_WANT_CLOSE);
    pthread_mutex_unlock(&call->local->send_lock);
    qr_local_flush(call);
}

static void cancel(struct qr_call *base)
{
    struct qr_local_call *call = of(base);

    pthread_mutex_lock(&call->local->lock);
    call->cancel_asked = true;
    pthread_mutex_unlock(&call->local->lock);
    qr_local_ask_attention(call->local);
}

static const struct qr_call_ops ops = {start_with, start_with, start_writer, send_one,
                                       close_send, cancel,     hold,         release};

void qr_local_make_calls(struct qr_local *local)
{
    memset(local->calls, 0, sizeof(local->calls));
    for (uint32_t i = 0; i < QR_LOCAL_CALLS_MAX; i++) {
        local->calls[i].base.ops = &ops;
        local->calls[i].local = local;
        local->calls[i].id = i;
    }
}

static enum qr_frame_method method_of(enum qr_method method)
{
    switch (method) {
    case QR_METHOD_APPEND:
        return QR_FRAME_APPEND;
    case QR_METHOD_APPEND_STREAM:
        return QR_FRAME_APPEND_STREAM;
    case QR_METHOD_FETCH:
        return QR_FRAME_FETCH;
    default:
        return QR_FRAME_METHODS;
    }
}

/* Under lock. */
static struct qr_local_call *free_call(struct qr_local *local)
{
    for (uint32_t i = 0; i < QR_LOCAL_CALLS_MAX; i++)
        if (is_free(&local->calls[i]))
            return &local->calls[i];
    return NULL;
}

struct qr_call *qr_local_call_new(struct qr_local *local, const struct qr_call_options *options,
                                  const struct qr_call_events *events, void *context)
{
    const enum qr_frame_method method = method_of(options->method);
    struct qr_local_call *call = NULL;

    if (method == QR_FRAME_METHODS || options->part_bytes == 0)
        return NULL;
    pthread_mutex_lock(&local->lock);
    if (local->state == QR_LOCAL_UP && options->part_bytes <= local->part_bytes_max)
        call = free_call(local);
    if (call) {
        local->used++;
        call->method = method;
        call->events = events;
        call->context = context;
        call->ordered = options->ordered;
        call->deadline_ns = options->deadline_ns;
        call->refs = 2;
        call->due = 0;
        call->started = call->requested = call->peer_ended = call->concluded = false;
        call->cancel_asked = call->given_up = call->draining = false;
        call->reply_first = call->reply_count = 0;
        call->details_bytes = 0;
    }
    pthread_mutex_unlock(&local->lock);
    return call ? &call->base : NULL;
}
