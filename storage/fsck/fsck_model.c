/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's entry in the index is its wire message, and its key the fingerprint:
 * one must give the other.
 */
#include "fsck.h"

#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

#define ARENA_BYTES (4u << 20)

bool qr_fsck_is_model(void *arg, const uint8_t fingerprint[QR_HASH_BYTES], const uint8_t *bytes,
                      size_t n)
{
    const struct qr_wire_fragment fragment = {.data = bytes, .bytes = n};
    struct qr_model *model = malloc(sizeof(*model));
    void *memory = aligned_alloc(64, ARENA_BYTES);
    struct qr_wire_arena arena;
    ProtobufCMessage *message = NULL;
    bool good = false;

    (void)arg;
    if (model && memory) {
        qr_wire_arena_init(&arena, memory, ARENA_BYTES);
        good = qr_wire_unpack(&quire__v1__model__descriptor, &fragment, 1, &arena, &message,
                              NULL) == QUIRE_OK &&
               qr_wire_model_from((const Quire__V1__Model *)(const void *)message, model,
                                  NULL) == QUIRE_OK &&
               memcmp(model->fingerprint, fingerprint, QR_HASH_BYTES) == 0;
    }
    free(memory);
    free(model);
    return good;
}
