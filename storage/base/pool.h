/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded pool of equal objects: after warm-up, taking and giving back touches
 * no allocator. Objects keep their address and, between uses, their contents,
 * so that they may own buffers that are worth keeping.
 */
#ifndef QR_POOL_H
#define QR_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

struct qr_pool;

/** Objects of `object_bytes`, at most `objects_max`; zeroed when made. ENOMEM. */
quire_status qr_pool_create(size_t object_bytes, size_t objects_max, struct qr_pool **out);
/** Every object must be back. `end` (may be NULL) is called for each object ever made. */
void qr_pool_destroy(struct qr_pool **pool, void (*end)(void *object));
/** An object, owned by the caller until given back; NULL when objects_max are out or memory is.
 * Any thread. */
void *qr_pool_take(struct qr_pool *pool);
/** Any thread. */
void qr_pool_give(struct qr_pool *pool, void *object);
/** Objects that are out now. */
size_t qr_pool_out(struct qr_pool *pool);
/** Objects ever made: the memory held. */
size_t qr_pool_made(struct qr_pool *pool);

#endif
