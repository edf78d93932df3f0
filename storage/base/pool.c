/* SPDX-License-Identifier: Apache-2.0
 *
 * A free list under a mutex; objects are made in slabs and live as long as the pool.
 */
#include "pool.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#define SLAB_BYTES 65536u

struct node { /* stands before each object */
    struct node *next;
    struct qr_pool *pool; /* const: the owner, to catch a wrong give */
};

struct slab {
    struct slab *next;
    size_t objects;
    _Alignas(16) unsigned char bytes[];
};

struct qr_pool {
    size_t stride;      /* const: node and object, multiple of 16 */
    size_t objects_max; /* const */
    pthread_mutex_t lock;
    struct node *free;  /* guarded by lock */
    struct slab *slabs; /* guarded by lock */
    size_t made, out;   /* guarded by lock */
};

_Static_assert(sizeof(struct node) == 16, "objects stay 16-byte aligned");

quire_status qr_pool_create(size_t object_bytes, size_t objects_max, struct qr_pool **out)
{
    struct qr_pool *pool = calloc(1, sizeof(*pool));

    if (!pool)
        return QUIRE_ENOMEM;
    pool->stride = (sizeof(struct node) + object_bytes + 15u) & ~(size_t)15u;
    pool->objects_max = objects_max;
    pthread_mutex_init(&pool->lock, NULL);
    *out = pool;
    return QUIRE_OK;
}

void qr_pool_destroy(struct qr_pool **pool, void (*end)(void *object))
{
    struct qr_pool *p = *pool;

    if (!p)
        return;
    assert(p->out == 0);
    while (p->slabs) {
        struct slab *slab = p->slabs;
        p->slabs = slab->next;
        for (size_t i = 0; end && i < slab->objects; i++)
            end(slab->bytes + i * p->stride + sizeof(struct node));
        free(slab);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
    *pool = NULL;
}

static void grow(struct qr_pool *pool)
{
    size_t objects = SLAB_BYTES / pool->stride;

    if (objects == 0)
        objects = 1;
    if (objects > pool->objects_max - pool->made)
        objects = pool->objects_max - pool->made;
    if (objects == 0)
        return;
    struct slab *slab = calloc(1, sizeof(*slab) + objects * pool->stride);
    if (!slab)
        return;
    slab->objects = objects;
    slab->next = pool->slabs;
    pool->slabs = slab;
    pool->made += objects;
    for (size_t i = 0; i < objects; i++) {
        struct node *node = (struct node *)(void *)(slab->bytes + i * pool->stride);
        node->pool = pool;
        node->next = pool->free;
        pool->free = node;
    }
}

void *qr_pool_take(struct qr_pool *pool)
{
    struct node *node;

    pthread_mutex_lock(&pool->lock);
    if (!pool->free)
        grow(pool);
    node = pool->free;
    if (node) {
        pool->free = node->next;
        pool->out++;
    }
    pthread_mutex_unlock(&pool->lock);
    return node ? node + 1 : NULL;
}

void qr_pool_give(struct qr_pool *pool, void *object)
{
    struct node *node = (struct node *)object - 1;

    assert(node->pool == pool);
    pthread_mutex_lock(&pool->lock);
    node->next = pool->free;
    pool->free = node;
    pool->out--;
    pthread_mutex_unlock(&pool->lock);
}

size_t qr_pool_out(struct qr_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    const size_t out = pool->out;
    pthread_mutex_unlock(&pool->lock);
    return out;
}

size_t qr_pool_made(struct qr_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    const size_t made = pool->made;
    pthread_mutex_unlock(&pool->lock);
    return made;
}
