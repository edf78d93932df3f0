/* SPDX-License-Identifier: Apache-2.0
 *
 * Reusable 64-byte aligned buffers for messages and pages, most recently used
 * first, so that they stay in the cache. Must not know what is put into them.
 */
#ifndef QR_CLIENT_POOL_H
#define QR_CLIENT_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QR_POOL_KEEP 32                /* most idle buffers kept */
#define QR_POOL_KEEP_BYTES (64u << 20) /* and most bytes of them */

struct qr_pool;

/** A buffer taken from a pool; the bytes are its owner's. */
struct qr_buffer {
    uint8_t *data;        /* 64-byte aligned; const */
    size_t capacity;      /* const */
    size_t bytes;         /* in use, the owner's affair */
    atomic_uint lent;     /* atomic: releases still to come, see qr_buffer_lend */
    struct qr_pool *pool; /* const */
    struct qr_buffer *next;
};

/** NULL: out of memory. */
struct qr_pool *qr_pool_create(void);
/** Buffers still out may be put back later: the last one frees the pool. NULL allowed. */
void qr_pool_close(struct qr_pool **pool);
/** A buffer of at least `bytes`; NULL: out of memory. Any thread. */
struct qr_buffer *qr_pool_take(struct qr_pool *pool, size_t bytes);
/** Give back; NULL allowed. Any thread; takes the lock for an instant, never blocks for long.
 */
void qr_pool_put(struct qr_buffer *buffer);
/** The buffer is put back by the `times`-th qr_buffer_release. times >= 1. */
void qr_buffer_lend(struct qr_buffer *buffer, unsigned times);
/** void * so that it fits a qr_piece. */
void qr_buffer_release(void *buffer);

#endif
