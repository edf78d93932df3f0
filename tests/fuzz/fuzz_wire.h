/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzz targets of the wire share: cutting an input into fragments of their own, and
 * unpacking it with protobuf-c for comparison.
 */
#ifndef QR_FUZZ_WIRE_H
#define QR_FUZZ_WIRE_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_ARENA_BYTES (8u << 20)

/* Two fragments of exact size, cut at `at`. */
static inline void fuzz_cut(const uint8_t *data, size_t size, size_t at,
                            struct qr_wire_fragment out[2])
{
    const size_t bytes[2] = {at, size - at};
    for (size_t i = 0; i < 2; i++) {
        uint8_t *copy = malloc(bytes[i] ? bytes[i] : 1);
        assert(copy);
        if (bytes[i] > 0)
            memcpy(copy, data + (i ? at : 0), bytes[i]);
        out[i] = (struct qr_wire_fragment){.data = copy, .bytes = bytes[i]};
    }
}

static inline void fuzz_uncut(struct qr_wire_fragment fragments[2])
{
    free((void *)(uintptr_t)fragments[0].data);
    free((void *)(uintptr_t)fragments[1].data);
}

/* NULL when it is refused. Valid until the next call. */
static inline const void *fuzz_unpack(const ProtobufCMessageDescriptor *type,
                                      const struct qr_wire_fragment *fragments, size_t count)
{
    static _Alignas(16) uint8_t memory[FUZZ_ARENA_BYTES];
    struct qr_wire_arena arena;
    struct qr_error e = {0};
    ProtobufCMessage *out = NULL;
    qr_wire_arena_init(&arena, memory, sizeof(memory));
    const quire_status status = qr_wire_unpack(type, fragments, count, &arena, &out, &e);
    assert(status == QUIRE_OK ||
           ((status == QUIRE_EINVAL || status == QUIRE_ETOOBIG) && e.text[0]));
    return status ? NULL : out;
}

static inline void fuzz_same_bytes(struct qr_wire_cursor cursor,
                                   const ProtobufCBinaryData *want)
{
    uint64_t left = cursor.bytes;
    assert(left == want->len);
    for (const uint8_t *at = want->data; left > 0; left = cursor.bytes) {
        size_t run;
        const uint8_t *bytes = qr_wire_cursor_peek(&cursor, &run);
        assert(run > 0 && memcmp(bytes, at, run) == 0);
        at += run;
        assert(qr_wire_cursor_skip(&cursor, run));
    }
}

#endif
