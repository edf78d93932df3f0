/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of rotation tables: a small table indexed by page, newest wins. Its
 * size is that of a cache level, not of a session: past it tables are made anew.
 */
#include "client_rotation.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "storage/codec/codec.h"

#define SLOTS 64
#define CACHE_BYTES (4u << 20)

struct qr_rotations {
    pthread_mutex_t lock;
    struct qr_rotation *slots[SLOTS]; /* guarded by lock; each holds one reference */
    struct qr_rotation *spare; /* guarded by lock: memory of the last one dropped, or NULL */
};

struct qr_rotations *qr_rotations_create(void)
{
    struct qr_rotations *r = calloc(1, sizeof(*r));

    if (r)
        pthread_mutex_init(&r->lock, NULL);
    return r;
}

static void rotation_free(struct qr_rotation *rotation)
{
    free(rotation->table);
    free(rotation);
}

void qr_rotations_destroy(struct qr_rotations **rotations)
{
    if (!*rotations)
        return;
    for (size_t i = 0; i < SLOTS; i++)
        if ((*rotations)->slots[i])
            rotation_free((*rotations)->slots[i]);
    if ((*rotations)->spare)
        rotation_free((*rotations)->spare);
    pthread_mutex_destroy(&(*rotations)->lock);
    free(*rotations);
    *rotations = NULL;
}

static size_t table_bytes(const struct qr_rotation_key *key, const struct qr_rope *rope)
{
    const size_t bytes = (size_t)key->tokens * rope->rotary_dim * sizeof(float);

    return (bytes + 63) & ~(size_t)63;
}

static size_t slot_of(const struct qr_rotation_key *key, size_t bytes)
{
    const size_t fit = CACHE_BYTES / bytes;
    const size_t slots = fit > SLOTS ? SLOTS : fit < 1 ? 1 : fit;

    return (size_t)(key->position / key->tokens) % slots;
}

static int same_key(const struct qr_rotation_key *a, const struct qr_rotation_key *b)
{
    return a->session == b->session && a->position == b->position && a->rope == b->rope &&
           a->tokens == b->tokens;
}

/* The spare one when it is large enough: a range past the cache makes a table a page, and
 * allocates none. */
static struct qr_rotation *take_memory(struct qr_rotations *rotations, size_t bytes)
{
    pthread_mutex_lock(&rotations->lock);
    struct qr_rotation *rotation = rotations->spare;
    if (rotation && rotation->bytes >= bytes)
        rotations->spare = NULL;
    else
        rotation = NULL;
    pthread_mutex_unlock(&rotations->lock);
    if (rotation)
        return rotation;

    rotation = malloc(sizeof(*rotation));
    if (!rotation)
        return NULL;
    rotation->bytes = bytes;
    rotation->table = aligned_alloc(64, bytes);
    if (!rotation->table) {
        free(rotation);
        return NULL;
    }
    return rotation;
}

static struct qr_rotation *make(struct qr_rotations *rotations,
                                const struct qr_rotation_key *key, const struct qr_rope *rope)
{
    struct qr_rotation *rotation = take_memory(rotations, table_bytes(key, rope));
    if (!rotation)
        return NULL;

    rotation->key = *key;
    rotation->refs = 2; /* the slot's and the caller's */
    qr_rotation_make(rope, key->position, key->tokens, rotation->table);
    return rotation;
}

struct qr_rotation *qr_rotation_get(struct qr_rotations *rotations,
                                    const struct qr_rotation_key *key,
                                    const struct qr_rope *rope)
{
    const size_t slot = slot_of(key, table_bytes(key, rope));

    pthread_mutex_lock(&rotations->lock);
    struct qr_rotation *found = rotations->slots[slot];
    if (found && same_key(&found->key, key))
        found->refs++;
    else
        found = NULL;
    pthread_mutex_unlock(&rotations->lock);
    if (found)
        return found;

    struct qr_rotation *made = make(rotations, key, rope);
    if (!made)
        return NULL;
    pthread_mutex_lock(&rotations->lock);
    struct qr_rotation *before = rotations->slots[slot];
    rotations->slots[slot] = made;
    pthread_mutex_unlock(&rotations->lock);
    if (before)
        qr_rotation_put(rotations, before);
    return made;
}

void qr_rotation_put(struct qr_rotations *rotations, struct qr_rotation *rotation)
{
    struct qr_rotation *drop = NULL;

    pthread_mutex_lock(&rotations->lock);
    if (--rotation->refs == 0) {
        drop = rotations->spare;
        rotations->spare = rotation;
    }
    pthread_mutex_unlock(&rotations->lock);
    if (drop)
        rotation_free(drop);
}
