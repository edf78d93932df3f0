/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks: messages whose large ranges are slices over pinned memory. The pin is
 * given back when the transport has destroyed the last slice, on whatever thread
 * that happens.
 */
#include <assert.h>
#include <string.h>

#include "rpc_call.h"

static bool has_room(const struct qr_chunk *base)
{
    const struct qr_rpc_chunk *chunk = (const struct qr_rpc_chunk *)base;

    return chunk->count + 1 + QR_CHUNK_RANGES_MAX <= QR_CHUNK_PIECES_MAX &&
           qr_rpc_chunk_may_pin(chunk->call);
}

bool qr_rpc_chunk_may_pin(const struct qr_call *call)
{
    const uint32_t pins = atomic_load_explicit(&call->pins, memory_order_relaxed);

    return pins < call->worker->rpc->config.pins_max;
}

static void push(struct qr_rpc_chunk *chunk, grpc_slice slice)
{
    assert(chunk->count < QR_CHUNK_PIECES_MAX);
    chunk->slices[chunk->count++] = slice;
    chunk->base.bytes += GRPC_SLICE_LENGTH(slice);
}

static uint8_t *write_copied(struct qr_chunk *base, size_t n)
{
    struct qr_rpc_chunk *chunk = (struct qr_rpc_chunk *)base;

    if (chunk->count >= QR_CHUNK_PIECES_MAX)
        return NULL;
    push(chunk, grpc_slice_malloc(n));
    return GRPC_SLICE_START_PTR(chunk->slices[chunk->count - 1]);
}

/* The transport is done with one slice of a holder. */
static void slice_gone(void *arg)
{
    struct qr_holder *holder = arg;

    if (atomic_fetch_sub_explicit(&holder->slices, 1, memory_order_acq_rel) != 1)
        return;
    struct qr_call *call = holder->call;
    struct qr_rpc *rpc = call->worker->rpc;
    rpc->config.release(rpc->config.service, holder->pin);
    qr_pool_give(rpc->holders, holder);
    qr_counter_sub(&rpc->pins, 1);
    atomic_fetch_sub_explicit(&call->pins, 1, memory_order_relaxed);
    qr_call_unref(call);
}

/* Everything in one copied slice: cheaper than pinning for short parts. */
static bool copy_all(struct qr_rpc_chunk *chunk, const uint8_t *head, size_t head_bytes,
                     const struct qr_range *ranges, size_t count, void *pin)
{
    const struct qr_rpc *rpc = chunk->call->worker->rpc;
    size_t n = head_bytes;

    for (size_t i = 0; i < count; i++)
        n += ranges[i].n;
    uint8_t *to = write_copied(&chunk->base, n);
    if (!to)
        return false;
    memcpy(to, head, head_bytes);
    to += head_bytes;
    for (size_t i = 0; i < count; i++) {
        memcpy(to, ranges[i].bytes, ranges[i].n);
        to += ranges[i].n;
    }
    rpc->config.release(rpc->config.service, pin);
    return true;
}

static bool is_short(const struct qr_range *ranges, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (ranges[i].n > QR_COPY_BYTES_MAX)
            return false;
    return true;
}

static bool pinned(struct qr_chunk *base, const uint8_t *head, size_t head_bytes,
                   const struct qr_range *ranges, size_t count, void *pin)
{
    struct qr_rpc_chunk *chunk = (struct qr_rpc_chunk *)base;
    struct qr_call *call = chunk->call;
    struct qr_rpc *rpc = call->worker->rpc;

    assert(head_bytes <= QR_WIRE_PART_HEAD_MAX && count <= QR_CHUNK_RANGES_MAX);
    if (is_short(ranges, count))
        return copy_all(chunk, head, head_bytes, ranges, count, pin);
    struct qr_holder *holder = qr_pool_take(rpc->holders);
    if (!holder)
        return false;

    holder->call = call;
    holder->pin = pin;
    memcpy(holder->head, head, head_bytes);
    atomic_store_explicit(&holder->slices, (unsigned)(1 + count), memory_order_release);
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&call->pins, 1, memory_order_relaxed);
    qr_counter_add(&rpc->pins, 1);
    push(chunk, grpc_slice_new_with_user_data(holder->head, head_bytes, slice_gone, holder));
    for (size_t i = 0; i < count; i++)
        push(chunk, grpc_slice_new_with_user_data((void *)(uintptr_t)ranges[i].bytes,
                                                  ranges[i].n, slice_gone, holder));
    return true;
}

static const struct qr_chunk_ops chunk_ops = {has_room, write_copied, pinned};

void qr_rpc_chunk_reset(struct qr_rpc_chunk *chunk, struct qr_call *call)
{
    chunk->base = (struct qr_chunk){.ops = &chunk_ops, .most = SIZE_MAX};
    chunk->call = call;
    chunk->count = 0;
}

grpc_byte_buffer *qr_rpc_chunk_take(struct qr_rpc_chunk *chunk)
{
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(chunk->slices, chunk->count);

    for (size_t i = 0; i < chunk->count; i++)
        grpc_slice_unref(chunk->slices[i]);
    chunk->count = 0;
    chunk->base.bytes = 0;
    return message;
}
