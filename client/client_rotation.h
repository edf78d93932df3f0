/* SPDX-License-Identifier: Apache-2.0
 *
 * cos/sin tables of pages, kept for the next layers of the same range: a table
 * is made once per (session, RoPE table, page) and used by every head and layer.
 */
#ifndef QR_CLIENT_ROTATION_H
#define QR_CLIENT_ROTATION_H

#include <stddef.h>
#include <stdint.h>

struct qr_rotations;
struct qr_rope;

struct qr_rotation_key {
    uint64_t session;  /* serial */
    uint64_t position; /* of the page's first token, shifted */
    uint32_t rope, tokens;
};

/** A table in use. */
struct qr_rotation {
    float *table; /* [tokens][rotary_dim], as qr_rotation_make writes it; 64-byte aligned */
    size_t bytes; /* of the table's memory */
    struct qr_rotation_key key;
    unsigned refs; /* guarded by the cache's lock */
};

struct qr_rotations *qr_rotations_create(void);
void qr_rotations_destroy(struct qr_rotations **rotations);
/** The table of `key`; any thread; released by qr_rotation_put. NULL: out of memory. */
struct qr_rotation *qr_rotation_get(struct qr_rotations *rotations,
                                    const struct qr_rotation_key *key,
                                    const struct qr_rope *rope);
void qr_rotation_put(struct qr_rotations *rotations, struct qr_rotation *rotation);

#endif
