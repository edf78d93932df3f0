/* SPDX-License-Identifier: Apache-2.0
 *
 * What an attend means for each layer and lane, and how it is cut into units.
 */
#include "attend_plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNITS_PER_WORKER 4u /* so that workers end at about the same time */
#define UNIT_BLOCKS_MIN 8u  /* less than that is not worth a merge */
#define QUERIES_MAX (1u << 20)

static quire_status check_heads(const struct qr_attend *request, uint32_t number,
                                const struct qr_layer *layer, struct qr_error *e)
{
    const uint32_t group = (uint32_t)(layer->query_heads / layer->kv_heads);
    const uint32_t first = request->first_query_head;
    const uint32_t heads = request->query_heads;

    if (heads == 0 && first == 0)
        return QUIRE_OK;
    if (heads == 0 || first >= layer->query_heads || heads > layer->query_heads - first ||
        first % group != 0 || heads % group != 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "query heads [%u, +%u) of layer %u: need whole groups of %u out of "
                            "%u",
                            first, heads, number, group, layer->query_heads);
    return QUIRE_OK;
}

static quire_status check_request(const struct qr_session *session,
                                  const struct qr_attend *request, struct qr_error *e)
{
    const uint32_t layers = session->model->layer_count;

    if (request->layers < 1 || request->first_layer >= layers ||
        request->layers > layers - request->first_layer)
        return qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u): the model has %u",
                            request->first_layer, request->layers, layers);
    if (request->queries < 1 || request->queries > QUERIES_MAX)
        return qr_error_set(e, QUIRE_EINVAL, "%u queries: need 1 to %u", request->queries,
                            QUERIES_MAX);
    if (!isfinite(request->scale) || request->scale < 0 || !isfinite(request->softcap) ||
        request->softcap < 0)
        return qr_error_set(e, QUIRE_EINVAL,
                            "scale %g, softcap %g: need finite numbers of at least 0",
                            (double)request->scale, (double)request->softcap);
    if (request->last_token != 0 && request->last_token < request->first_token)
        return qr_error_set(e, QUIRE_EINVAL, "tokens [%" PRIu64 ", %" PRIu64 ") are no range",
                            request->first_token, request->last_token);
    return QUIRE_OK;
}

quire_status qr_attend_check(const struct qr_session *session, const struct qr_attend *request,
                             size_t *query_out, size_t *output_out, size_t *lse_out,
                             struct qr_error *e)
{
    size_t query = 0, output = 0, lse = 0;
    quire_status status = check_request(session, request, e);

    for (uint32_t i = 0; status == QUIRE_OK && i < request->layers; i++) {
        const uint32_t number = request->first_layer + i;
        const struct qr_layer *layer = &session->model->layers[number];
        if (layer->kv_heads == 0)
            continue;
        status = check_heads(request, number, layer, e);
        const size_t heads = request->query_heads ? request->query_heads : layer->query_heads;
        const size_t rows = heads * request->queries;
        query += rows * layer->key_dim;
        output += rows * layer->value_dim;
        lse += rows;
    }
    if (status == QUIRE_OK && lse == 0)
        status = qr_error_set(e, QUIRE_EINVAL, "layers [%u, +%u) have no KV cache",
                              request->first_layer, request->layers);
    if (status != QUIRE_OK)
        return status;
    *query_out = query;
    *output_out = output;
    *lse_out = lse;
    return QUIRE_OK;
}

/* A query that is NaN or infinite would make every output of its row so. */
static quire_status check_queries(const struct qr_attend_plan *plan, struct qr_error *e)
{
    for (uint32_t i = 0; i < plan->layer_count; i++) {
        const struct qr_attend_layer *layer = &plan->layers[i];
        const size_t dim = plan->session->model->layers[layer->layer].key_dim;
        const size_t n = (size_t)plan->request->queries * layer->query_heads * dim;
        size_t at = 0;
        while (at < n && isfinite(layer->query[at]))
            at++;
        if (at == n)
            continue;
        const uint32_t head = (uint32_t)(at / dim % layer->query_heads);
        const struct qr_error bad = {
            .layer = layer->layer,
            .head = layer->first_query_head + head,
            .position = plan->request->positions[at / dim / layer->query_heads],
            .channel = (uint32_t)(at % dim)};
        qr_error_set(e, QUIRE_EVALUE,
                     "query of layer %u, query head %u, position %" PRIu64
                     ", channel %u is %g: need finite numbers",
                     bad.layer, bad.head, bad.position, bad.channel, (double)layer->query[at]);
        if (e) {
            e->layer = bad.layer;
            e->head = bad.head;
            e->position = bad.position;
            e->channel = bad.channel;
        }
        return QUIRE_EVALUE;
    }
    return QUIRE_OK;
}

/* ---- layers ------------------------------------------------------------------------------ */

static uint64_t window_of(const struct qr_attend *request, const struct qr_layer *layer)
{
    if (request->window == UINT32_MAX)
        return 0;
    return request->window ? request->window : layer->sliding_window;
}

static void make_layers(struct qr_attend_plan *plan, float *output, float *lse)
{
    const struct qr_attend *request = plan->request;
    const float *query = request->query;

    for (uint32_t i = 0; i < request->layers; i++) {
        const uint32_t number = request->first_layer + i;
        const struct qr_layer *layer = &plan->session->model->layers[number];
        if (layer->kv_heads == 0)
            continue;
        const uint32_t group = (uint32_t)(layer->query_heads / layer->kv_heads);
        const uint32_t heads = request->query_heads ? request->query_heads : layer->query_heads;
        plan->layers[plan->layer_count++] = (struct qr_attend_layer){
            .layer = number,
            .group_heads = group,
            .first_query_head = request->first_query_head,
            .query_heads = heads,
            .first_head = request->first_query_head / group,
            .heads = heads / group,
            .window = window_of(request, layer),
            .scale = request->scale > 0 ? request->scale : 1.0f / sqrtf((float)layer->key_dim),
            .query = query,
            .output = output,
            .lse = lse,
        };
        const size_t rows = (size_t)heads * request->queries;
        query += rows * layer->key_dim;
        output += rows * layer->value_dim;
        lse += rows;
    }
}

/* ---- units ------------------------------------------------------------------------------- */

/* The tokens of a lane that some query can see. */
static void visible(const struct qr_attend_plan *plan, const struct qr_attend_layer *layer,
                    const struct qr_lane *lane, uint64_t *first, uint64_t *last)
{
    const struct qr_attend *request = plan->request;
    uint64_t lowest = UINT64_MAX, highest = 0;

    for (uint32_t i = 0; i < request->queries; i++) {
        lowest = qr_min_u64(lowest, request->positions[i]);
        highest = qr_max_u64(highest, request->positions[i]);
    }
    *first = request->first_token;
    *last = request->last_token ? request->last_token : lane->length;
    if (request->causal && highest < *last)
        *last = highest + 1;
    if (layer->window > 0 && lowest >= layer->window)
        *first = qr_max_u64(*first, lowest - layer->window + 1);
    if (*first > *last)
        *first = *last;
}

static quire_status add_unit(struct qr_attend_plan *plan, const struct qr_attend_unit *unit,
                             struct qr_error *e)
{
    if (plan->unit_count == plan->unit_capacity) {
        const size_t capacity = plan->unit_capacity * 2 + 64;
        struct qr_attend_unit *units = realloc(plan->units, capacity * sizeof(*units));
        if (!units)
            return qr_error_set(e, QUIRE_ENOMEM, "no memory for %zu attend units", capacity);
        plan->units = units;
        plan->unit_capacity = capacity;
    }
    plan->units[plan->unit_count++] = *unit;
    return QUIRE_OK;
}

/* Ranges of whole blocks, as many as keep the workers busy. */
static quire_status cut_lane(struct qr_attend_plan *plan, struct qr_attend_unit unit,
                             uint32_t lanes, struct qr_error *e)
{
    const uint64_t page_tokens = plan->session->policy.page_tokens;
    const uint32_t workers = qr_workers_count(plan->session->store->workers);
    const uint64_t wanted = (UNITS_PER_WORKER * workers + lanes - 1) / lanes;
    const uint64_t blocks = (unit.last - unit.first + page_tokens - 1) / page_tokens;
    uint64_t step = (blocks + wanted - 1) / wanted;
    const uint64_t end = unit.last;
    quire_status status = QUIRE_OK;

    if (step < UNIT_BLOCKS_MIN)
        step = UNIT_BLOCKS_MIN;
    do {
        const uint64_t border = (unit.first / page_tokens + step) * page_tokens;
        unit.last = qr_min_u64(end, border);
        status = add_unit(plan, &unit, e);
        unit.first = unit.last;
    } while (status == QUIRE_OK && unit.first < end);
    return status;
}

static quire_status past_end(const struct qr_attend *request, const struct qr_lane *lane,
                             struct qr_error *e)
{
    qr_error_set(e, QUIRE_ERANGE,
                 "tokens [%" PRIu64 ", %" PRIu64 ") of layer %u, which has %" PRIu64,
                 request->first_token, request->last_token, lane->layer, lane->length);
    if (e) {
        e->length = lane->length;
        e->layer = lane->layer;
    }
    return QUIRE_ERANGE;
}

static quire_status cut_layer(struct qr_attend_plan *plan, const struct qr_attend_layer *layer,
                              struct qr_error *e)
{
    struct qr_session *session = plan->session;
    const struct qr_attend *request = plan->request;
    const uint32_t head_end = layer->first_head + layer->heads;
    quire_status status = QUIRE_OK;

    for (uint32_t shard = 0; shard < session->head_shards && status == QUIRE_OK; shard++) {
        const struct qr_lane *lane = qr_session_lane(session, layer->layer, shard);
        const uint32_t lane_end = (uint32_t)lane->first_head + lane->heads;
        struct qr_attend_unit unit = {.layer = layer, .lane = lane};
        unit.head = layer->first_head > lane->first_head ? layer->first_head : lane->first_head;
        const uint32_t end = head_end < lane_end ? head_end : lane_end;
        if (unit.head >= end)
            continue;
        unit.heads = end - unit.head;
        if (request->last_token > lane->length || request->first_token > lane->length)
            return past_end(request, lane, e);
        visible(plan, layer, lane, &unit.first, &unit.last);
        status = cut_lane(plan, unit, plan->layer_count * session->head_shards, e);
    }
    return status;
}

/* The first hole, before anything is computed: what workers meet first is a matter of chance.
 */
static quire_status check_there(const struct qr_attend_plan *plan, struct qr_error *e)
{
    const uint64_t page_tokens = plan->session->policy.page_tokens;
    struct qr_error hole = {0};

    for (size_t i = 0; i < plan->unit_count; i++) {
        const struct qr_attend_unit *unit = &plan->units[i];
        for (uint64_t p = unit->first; p < unit->last;) {
            const uint64_t next = qr_min_u64((p / page_tokens + 1) * page_tokens, unit->last);
            const bool gone = qr_lane_lost(plan->session, unit->lane, p / page_tokens);
            if (gone && hole.tokens == 0) {
                hole.layer = unit->lane->layer;
                hole.head = unit->lane->first_head;
                hole.position = p;
            }
            const bool in_hole = gone && hole.layer == unit->lane->layer &&
                                 hole.head == unit->lane->first_head &&
                                 hole.position + hole.tokens == p;
            if (hole.tokens > 0 && !in_hole)
                return qr_attend_hole(&hole, e);
            if (in_hole)
                hole.tokens += next - p;
            p = next;
        }
    }
    return hole.tokens > 0 ? qr_attend_hole(&hole, e) : QUIRE_OK;
}

quire_status qr_attend_hole(const struct qr_error *hole, struct qr_error *e)
{
    qr_error_set(e, QUIRE_EMISSING,
                 "layer %u lost tokens [%" PRIu64 ", +%" PRIu64
                 "): append them again, or allow missing tokens",
                 hole->layer, hole->position, hole->tokens);
    if (e) {
        e->layer = hole->layer;
        e->position = hole->position;
        e->tokens = hole->tokens;
    }
    return QUIRE_EMISSING;
}

quire_status qr_attend_plan_make(struct qr_attend_plan *plan, float *output, float *lse,
                                 struct qr_error *e)
{
    quire_status status = QUIRE_OK;

    plan->layers = calloc(plan->request->layers, sizeof(*plan->layers));
    if (!plan->layers)
        return qr_error_set(e, QUIRE_ENOMEM, "no memory for %u layers", plan->request->layers);
    make_layers(plan, output, lse);
    status = check_queries(plan, e);
    if (status != QUIRE_OK)
        return status;
    pthread_mutex_lock(&plan->session->lock);
    if (plan->session->dead)
        status = qr_session_gone(e, plan->session->name);
    for (uint32_t i = 0; i < plan->layer_count && status == QUIRE_OK; i++)
        status = cut_layer(plan, &plan->layers[i], e);
    if (status == QUIRE_OK && !plan->request->allow_missing)
        status = check_there(plan, e);
    plan->is_reading = status == QUIRE_OK;
    if (plan->is_reading)
        qr_reading_begin(plan->session, &plan->reading);
    pthread_mutex_unlock(&plan->session->lock);
    return status;
}

void qr_attend_plan_free(struct qr_attend_plan *plan)
{
    if (plan->is_reading)
        qr_reading_end(plan->session, &plan->reading);
    for (size_t i = 0; i < plan->unit_count; i++)
        free(plan->units[i].output);
    free(plan->units);
    free(plan->layers);
}
