/* SPDX-License-Identifier: Apache-2.0
 *
 * The two queues of groups and the choice between them.
 *
 * Invariants: a group is queued exactly when it has pages; its pages are linked in ascending
 * order up to WALK_MAX misplacements; queue bytes are the sum over its groups.
 */
#include "evict.h"

#include <assert.h>
#include <stdlib.h>

#define NONE QR_EVICT_NONE
#define WALK_MAX 64u      /* steps to a page's place in its group; approximate past that */
#define PINNED_MAX 32u    /* pinned pages to look past before trying another group */
#define SMALL_PERCENT 10u /* of all bytes: what S3-FIFO gives to pages not read again yet */
#define PROMOTE_READS 2u  /* reads in the small queue that make a group worth keeping */

enum queue_name { SMALL = 0, MAIN = 1 };

struct group {
    uint32_t older, younger; /* in its queue, or the free list through `older` */
    uint32_t first, last;    /* pages */
    uint64_t bytes;
    uint32_t pages;
    uint8_t queue;
    bool open;
};

struct queue {
    uint32_t oldest, youngest;
    uint64_t bytes;
    uint32_t groups;
};

struct qr_evict {
    struct qr_evict_config config;
    struct queue queues[2];
    struct group *groups;
    uint32_t groups_used, free;
};

static struct qr_evict_node *node_of(struct qr_evict *evict, uint32_t page)
{
    return evict->config.node(evict->config.arg, page);
}

struct qr_evict *qr_evict_create(const struct qr_evict_config *config)
{
    struct qr_evict *evict = calloc(1, sizeof(*evict));

    if (!evict)
        return NULL;
    evict->config = *config;
    evict->free = NONE;
    for (int q = 0; q < 2; q++)
        evict->queues[q] = (struct queue){.oldest = NONE, .youngest = NONE};
    evict->groups = calloc(config->groups_max, sizeof(*evict->groups));
    if (!evict->groups)
        qr_evict_destroy(&evict);
    return evict;
}

void qr_evict_destroy(struct qr_evict **evict)
{
    if (!*evict)
        return;
    free((*evict)->groups);
    free(*evict);
    *evict = NULL;
}

static void queue_push(struct qr_evict *evict, uint32_t g, enum queue_name name)
{
    struct queue *queue = &evict->queues[name];
    struct group *group = &evict->groups[g];

    group->queue = (uint8_t)name;
    group->younger = NONE;
    group->older = queue->youngest;
    if (queue->youngest != NONE)
        evict->groups[queue->youngest].younger = g;
    else
        queue->oldest = g;
    queue->youngest = g;
    queue->bytes += group->bytes;
    queue->groups++;
}

static void queue_remove(struct qr_evict *evict, uint32_t g)
{
    struct group *group = &evict->groups[g];
    struct queue *queue = &evict->queues[group->queue];

    if (group->older != NONE)
        evict->groups[group->older].younger = group->younger;
    else
        queue->oldest = group->younger;
    if (group->younger != NONE)
        evict->groups[group->younger].older = group->older;
    else
        queue->youngest = group->older;
    queue->bytes -= group->bytes;
    queue->groups--;
}

uint32_t qr_evict_group_open(struct qr_evict *evict)
{
    uint32_t g = evict->free;

    if (g != NONE)
        evict->free = evict->groups[g].older;
    else if (evict->groups_used < evict->config.groups_max)
        g = evict->groups_used++;
    else
        return NONE;
    evict->groups[g] = (struct group){.first = NONE, .last = NONE, .open = true};
    return g;
}

static void group_retire(struct qr_evict *evict, uint32_t g)
{
    if (evict->groups[g].open || evict->groups[g].pages > 0)
        return;
    evict->groups[g].older = evict->free;
    evict->free = g;
}

void qr_evict_group_close(struct qr_evict *evict, uint32_t group)
{
    assert(evict->groups[group].open);
    evict->groups[group].open = false;
    group_retire(evict, group);
}

bool qr_evict_group_is_open(const struct qr_evict *evict, uint32_t group)
{
    return group != NONE && evict->groups[group].open;
}

/* The page to stand after, NONE for the front. */
static uint32_t place_of(struct qr_evict *evict, uint32_t g, uint32_t order, uint32_t hint)
{
    uint32_t at = evict->groups[g].last;

    if (hint != NONE) {
        const struct qr_evict_node *near = node_of(evict, hint);
        if (near->linked && near->group == g)
            at = hint;
    }
    for (uint32_t i = 0; i < WALK_MAX && at != NONE; i++) {
        const struct qr_evict_node *node = node_of(evict, at);
        if (node->order > order) {
            at = node->previous;
            continue;
        }
        if (node->next == NONE || node_of(evict, node->next)->order > order)
            break;
        at = node->next;
    }
    return at;
}

void qr_evict_link(struct qr_evict *evict, uint32_t page, uint32_t group_number, uint32_t order,
                   size_t bytes, uint32_t hint)
{
    struct group *group = &evict->groups[group_number];
    struct qr_evict_node *node = node_of(evict, page);

    assert(!node->linked && order <= QR_EVICT_ORDER_MAX);
    const uint32_t before = place_of(evict, group_number, order, hint);
    node->group = group_number;
    node->order = order & QR_EVICT_ORDER_MAX;
    node->reads = 0;
    node->linked = 1;
    node->previous = before;
    node->next = before == NONE ? group->first : node_of(evict, before)->next;
    if (before == NONE)
        group->first = page;
    else
        node_of(evict, before)->next = page;
    if (node->next == NONE)
        group->last = page;
    else
        node_of(evict, node->next)->previous = page;

    /* A session that grows is in use: it moves to the young end of its queue. */
    enum queue_name name = node->ghost ? MAIN : SMALL;
    if (group->pages > 0) {
        name = node->ghost ? MAIN : (enum queue_name)group->queue;
        queue_remove(evict, group_number);
    }
    node->ghost = 0;
    group->pages++;
    group->bytes += bytes;
    queue_push(evict, group_number, name);
}

void qr_evict_unlink(struct qr_evict *evict, uint32_t page, size_t bytes)
{
    struct qr_evict_node *node = node_of(evict, page);

    if (!node->linked)
        return;
    struct group *group = &evict->groups[node->group];
    if (node->previous != NONE)
        node_of(evict, node->previous)->next = node->next;
    else
        group->first = node->next;
    if (node->next != NONE)
        node_of(evict, node->next)->previous = node->previous;
    else
        group->last = node->previous;
    node->linked = 0;

    group->pages--;
    evict->queues[group->queue].bytes -= bytes;
    group->bytes -= bytes;
    if (group->pages == 0) {
        queue_remove(evict, node->group);
        group_retire(evict, node->group);
    }
}

static enum queue_name queue_due(const struct qr_evict *evict)
{
    const struct queue *small = &evict->queues[SMALL], *large = &evict->queues[MAIN];

    if (large->groups == 0)
        return SMALL;
    if (small->groups == 0)
        return MAIN;
    return small->bytes * 100u > (small->bytes + large->bytes) * SMALL_PERCENT ? SMALL : MAIN;
}

static uint32_t last_unpinned(struct qr_evict *evict, const struct group *group)
{
    uint32_t page = group->last;

    for (uint32_t i = 0; i < PINNED_MAX && page != NONE; i++) {
        const struct qr_evict_node *node = node_of(evict, page);
        if (node->pins == 0)
            return page;
        page = node->previous;
    }
    return NONE;
}

uint32_t qr_evict_pick(struct qr_evict *evict)
{
    const uint64_t groups = (uint64_t)evict->queues[SMALL].groups + evict->queues[MAIN].groups;

    /* Reads saturate at 3, so a group is passed over at most 4 times unless pinned. */
    for (uint64_t looks = 0; looks < groups * 5; looks++) {
        const enum queue_name name = queue_due(evict);
        const uint32_t g = evict->queues[name].oldest;
        const uint32_t page = last_unpinned(evict, &evict->groups[g]);
        struct qr_evict_node *node = page == NONE ? NULL : node_of(evict, page);

        if (node && node->reads < (name == SMALL ? PROMOTE_READS : 1u)) {
            node->ghost = name == SMALL;
            return page;
        }
        if (node)
            node->reads = name == SMALL ? 0 : (node->reads - 1u) & 3u;
        queue_remove(evict, g);
        queue_push(evict, g, node ? MAIN : name);
    }
    return NONE;
}
