/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention where the pages lie: workers run the units, each page is pinned and verified once
 * and serves all KV heads of its lane; partial results merge by log-sum-exp.
 */
#include "storage/codec/attend.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "attend_plan.h"
#include "durable.h"
#include "fetch.h"

/* What a unit needs while it runs; one allocation. */
struct unit_run {
    struct qr_attend_plan *plan;
    struct qr_attend_unit *unit;
    const struct qr_rope *rope; /* NULL: keys need no rotation */
    uint32_t rows;              /* queries x query heads of a group */
    uint32_t out_stride;
    float *queries;             /* [heads][rows][key_dim] */
    uint64_t *positions;        /* [rows] */
    float *rotation;            /* [page_tokens][rotary_dim] */
    float *by_channel;          /* the same, transposed */
    struct qr_attend_acc *accs; /* [heads] */
    float *acc_floats;
    void *scratch;
    void *memory;
    uint64_t asked; /* blocks below are asked for */
};

#define ATTEND_AHEAD 8u /* pages that each unit asks for ahead */

static void fail(struct qr_attend_plan *plan, const struct qr_error *cause)
{
    pthread_mutex_lock(&plan->lock);
    if (plan->status == QUIRE_OK) {
        plan->status = cause->status;
        plan->error = *cause;
    }
    pthread_mutex_unlock(&plan->lock);
}

static bool stopped(struct qr_attend_plan *plan)
{
    if (plan->cancel && atomic_load_explicit(plan->cancel, memory_order_relaxed)) {
        struct qr_error e;
        (void)qr_error_set(&e, QUIRE_ECANCELED, "attend was canceled");
        fail(plan, &e);
    }
    pthread_mutex_lock(&plan->lock);
    const bool failed = plan->status != QUIRE_OK;
    pthread_mutex_unlock(&plan->lock);
    return failed;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static bool make_room(struct unit_run *run)
{
    const struct qr_lane *lane = run->unit->lane;
    const uint32_t page_tokens = run->plan->session->policy.page_tokens;
    const size_t heads = run->unit->heads, rows = run->rows;
    const size_t rotation_bytes =
        run->rope ? (size_t)page_tokens * run->rope->rotary_dim * sizeof(float) : 0;
    size_t at[7] = {0};
    const size_t bytes[6] = {
        heads * rows * lane->key_dim * sizeof(float),
        rows * sizeof(uint64_t),
        rotation_bytes,
        rotation_bytes,
        heads * rows * (2 + (size_t)run->out_stride) * sizeof(float),
        qr_attend_scratch_bytes(page_tokens, lane->key_dim, lane->value_dim, run->rows),
    };

    for (int i = 0; i < 6; i++)
        at[i + 1] = at[i] + round_up(bytes[i], 64);
    run->memory = aligned_alloc(64, at[6] + 64);
    run->accs = calloc(heads, sizeof(*run->accs));
    run->unit->output = malloc(heads * rows * (lane->value_dim + (size_t)1) * sizeof(float));
    if (!run->memory || !run->accs || !run->unit->output)
        return false;
    uint8_t *memory = run->memory;
    run->queries = (float *)(void *)(memory + at[0]);
    run->positions = (uint64_t *)(void *)(memory + at[1]);
    run->rotation = run->rope ? (float *)(void *)(memory + at[2]) : NULL;
    run->by_channel = run->rope ? (float *)(void *)(memory + at[3]) : NULL;
    run->acc_floats = (float *)(void *)(memory + at[4]);
    run->scratch = memory + at[5];
    run->unit->lse = run->unit->output + heads * rows * lane->value_dim;
    return true;
}

/* Row r of KV head h is query r / group of query head h * group + r % group. */
static void gather(struct unit_run *run)
{
    const struct qr_attend_layer *layer = run->unit->layer;
    const struct qr_attend *request = run->plan->request;
    const uint32_t group = layer->group_heads, dim = run->unit->lane->key_dim;
    const uint32_t first = run->unit->head - layer->first_head;
    float *to = run->queries;

    for (uint32_t r = 0; r < run->rows; r++)
        run->positions[r] = request->positions[r / group];
    for (uint32_t h = 0; h < run->unit->heads; h++) {
        for (uint32_t r = 0; r < run->rows; r++, to += dim) {
            const size_t head = (first + h) * (size_t)group + r % group;
            const float *from =
                layer->query + ((size_t)(r / group) * layer->query_heads + head) * dim;
            memcpy(to, from, dim * sizeof(float));
        }
    }
}

static void reset(struct unit_run *run)
{
    const size_t rows = run->rows;
    const uint32_t heads = run->unit->heads;
    float *out = run->acc_floats; /* aligned rows first */
    float *rest = out + (size_t)heads * rows * run->out_stride;

    for (uint32_t h = 0; h < heads; h++) {
        run->accs[h] = (struct qr_attend_acc){.max = rest + 2 * h * rows,
                                              .sum = rest + (2 * h + 1) * rows,
                                              .out = out + h * rows * run->out_stride,
                                              .out_stride = run->out_stride};
        qr_attend_reset(&run->accs[h], run->rows, run->unit->lane->value_dim);
    }
}

static struct qr_attend_queries queries_of(const struct unit_run *run, uint32_t h)
{
    const struct qr_attend *request = run->plan->request;
    const uint32_t dim = run->unit->lane->key_dim;

    return (struct qr_attend_queries){
        .count = run->rows,
        .q = run->queries + (size_t)h * run->rows * dim,
        .q_stride = dim,
        .positions = run->positions,
        .scale = run->unit->layer->scale,
        .softcap = request->softcap,
        .causal = request->causal,
        .window = run->unit->layer->window,
        .first = run->unit->first,
        .last = run->unit->last,
    };
}

static void attend_part(struct unit_run *run, const struct qr_part *part)
{
    const struct qr_lane *lane = run->unit->lane;
    const uint32_t page_tokens = run->plan->session->policy.page_tokens;
    const uint32_t rotary_dim = run->rope ? run->rope->rotary_dim : 0;
    const uint64_t first =
        part->page ? part->position / page_tokens * page_tokens : part->position;

    if (run->rope)
        qr_rotation_make(run->rope, first, part->page ? page_tokens : part->tokens,
                         run->rotation);
    if (run->rope && part->page)
        qr_attend_rotation_by_channel(run->rotation, page_tokens, rotary_dim, run->by_channel);
    for (uint32_t h = 0; h < run->unit->heads; h++) {
        struct qr_attend_queries queries = queries_of(run, h);
        const uint32_t in_lane = run->unit->head - lane->first_head + h;
        queries.rotation_by_channel = part->page ? run->by_channel : NULL;
        if (part->page)
            qr_attend_page(&part->view, in_lane, &queries, run->rotation, rotary_dim,
                           &run->accs[h], run->scratch);
        else
            qr_attend_rows(part->key_rows + (size_t)in_lane * lane->key_dim,
                           (size_t)lane->heads * lane->key_dim, lane->key_dim,
                           part->value_rows + (size_t)in_lane * lane->value_dim,
                           (size_t)lane->heads * lane->value_dim, lane->value_dim, part->tokens,
                           part->position, &queries, run->rotation, rotary_dim,
                           run->rope ? run->rope->layout : QR_ROPE_HALF, &run->accs[h],
                           run->scratch);
    }
}

static void note_missing(struct qr_attend_plan *plan, const struct qr_part *part)
{
    struct qr_attend_missing *missing = plan->missing;

    if (!plan->request->allow_missing) {
        struct qr_error e;
        const struct qr_error hole = {
            .layer = part->layer, .position = part->position, .tokens = part->tokens};
        (void)qr_attend_hole(&hole, &e); /* evicted since the plan was made */
        fail(plan, &e);
        return;
    }
    pthread_mutex_lock(&plan->lock);
    if (missing && missing->count < missing->capacity)
        missing->ranges[missing->count++] =
            (struct qr_token_range){.position = part->position,
                                    .tokens = part->tokens,
                                    .layer = part->layer,
                                    .shard = part->first_head / part->heads};
    else if (missing)
        missing->more = true;
    pthread_mutex_unlock(&plan->lock);
}

/* The next pages of the unit, while this one is computed. */
static void ask_ahead(struct unit_run *run, uint64_t position, struct qr_ahead *ahead)
{
    struct qr_session *session = run->plan->session;
    const uint32_t page_tokens = session->policy.page_tokens;
    const uint64_t block = position / page_tokens;
    const uint64_t end = (run->unit->last + page_tokens - 1) / page_tokens;

    qr_ahead_pass(session->store, ahead, block);
    for (uint64_t b = run->asked > block ? run->asked : block;
         b < end && b < block + ATTEND_AHEAD; b++) {
        if (!qr_ahead_ask(session, run->unit->lane, (uint32_t)b, b, ahead))
            break;
        run->asked = b + 1;
    }
}

/* A truncate took part of the unit: the attend that was asked for cannot be computed any more,
 * over holes or over the rows that came after it. */
static void note_cut(struct qr_attend_plan *plan, const struct qr_attend_unit *unit)
{
    struct qr_session *session = plan->session;
    const uint64_t length = atomic_load(&plan->reading.cut_to);
    struct qr_error e;

    pthread_mutex_lock(&session->lock);
    const bool dead = session->dead;
    pthread_mutex_unlock(&session->lock);
    if (dead) {
        (void)qr_session_gone(&e, session->name);
    } else {
        (void)qr_error_set(&e, QUIRE_ERANGE,
                           "session \"%s\" was cut to %" PRIu64 " tokens while tokens [%" PRIu64
                           ", %" PRIu64 ") of layer %u were attended to",
                           session->name, length, unit->first, unit->last, unit->lane->layer);
        e.length = length;
        e.layer = unit->lane->layer;
    }
    fail(plan, &e);
}

static void walk(struct unit_run *run)
{
    struct qr_attend_plan *plan = run->plan;
    struct qr_store *store = plan->session->store;
    uint64_t position = run->unit->first;
    uint64_t pages = 0;
    struct qr_ahead ahead = {.first = 0};

    while (position < run->unit->last && !stopped(plan)) {
        struct qr_part part;
        ask_ahead(run, position, &ahead);
        qr_lane_read(plan->session, run->unit->lane, position, run->unit->last, true, &part);
        if (qr_reading_is_cut(&plan->reading, run->unit->last))
            note_cut(plan, run->unit);
        else if (part.status == QR_PART_OK)
            attend_part(run, &part);
        else
            note_missing(plan, &part);
        qr_part_release(store, part.pin);
        position += part.tokens;
        pages += part.page != NULL;
    }
    qr_ahead_clear(store, &ahead);
    qr_counter_add(&store->counters.attend_pages, pages);
}

static void finish_unit(struct unit_run *run)
{
    const uint32_t dim = run->unit->lane->value_dim;

    for (uint32_t h = 0; h < run->unit->heads; h++)
        qr_attend_finish(&run->accs[h], run->rows, dim,
                         run->unit->output + (size_t)h * run->rows * dim, dim,
                         run->unit->lse + (size_t)h * run->rows);
}

static void run_unit(void *arg, size_t number, uint32_t worker)
{
    struct qr_attend_plan *plan = arg;
    struct qr_attend_unit *unit = &plan->units[number];
    const struct qr_layer *layer = &plan->session->model->layers[unit->lane->layer];
    struct unit_run run = {
        .plan = plan,
        .unit = unit,
        .rope = layer->rope_stored == QR_ROPE_PRE ? &plan->session->model->ropes[layer->rope]
                                                  : NULL,
        .rows = plan->request->queries * unit->layer->group_heads,
        .out_stride = (uint32_t)round_up(unit->lane->value_dim, 16),
    };
    (void)worker;

    if (stopped(plan))
        return;
    if (make_room(&run)) {
        gather(&run);
        reset(&run);
        walk(&run);
        finish_unit(&run);
    } else {
        struct qr_error e;
        (void)qr_error_set(&e, QUIRE_ENOMEM, "no memory to attend with %u rows", run.rows);
        fail(plan, &e);
    }
    free(run.accs);
    free(run.memory);
}

/* ---- results ----------------------------------------------------------------------------- */

/* Merge the ranges of a lane into its first unit, then put rows where the caller wants them. */
static size_t deliver_lane(const struct qr_attend_plan *plan, size_t first)
{
    struct qr_attend_unit *unit = &plan->units[first];
    const struct qr_attend_layer *layer = unit->layer;
    const uint32_t group = layer->group_heads, dim = unit->lane->value_dim;
    const uint32_t rows = plan->request->queries * group;
    size_t next = first + 1;

    for (; next < plan->unit_count && plan->units[next].lane == unit->lane; next++)
        qr_attend_merge(unit->output, unit->lse, plan->units[next].output,
                        plan->units[next].lse, (size_t)unit->heads * rows, dim);
    for (uint32_t h = 0; h < unit->heads; h++) {
        for (uint32_t r = 0; r < rows; r++) {
            const size_t from = (size_t)h * rows + r;
            const size_t head =
                (unit->head - layer->first_head + h) * (size_t)group + r % group;
            const size_t to = (size_t)(r / group) * layer->query_heads + head;
            memcpy(layer->output + to * dim, unit->output + from * dim, dim * sizeof(float));
            layer->lse[to] = unit->lse[from];
        }
    }
    return next;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct qr_token_range *x = a, *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* Units ran in any order: sort what they found, and join neighbours. */
static void tidy_missing(struct qr_attend_missing *missing)
{
    struct qr_token_range *ranges = missing->ranges;
    size_t n = 0;

    if (missing->count == 0)
        return;
    qsort(ranges, missing->count, sizeof(*ranges), compare_ranges);
    for (size_t i = 1; i < missing->count; i++) {
        if (ranges[i].layer == ranges[n].layer && ranges[i].shard == ranges[n].shard &&
            ranges[i].position == ranges[n].position + ranges[n].tokens)
            ranges[n].tokens += ranges[i].tokens;
        else
            ranges[++n] = ranges[i];
    }
    missing->count = n + 1;
}

static quire_status compute(struct qr_attend_plan *plan, float *output, float *lse,
                            struct qr_error *e)
{
    quire_status status = qr_attend_plan_make(plan, output, lse, e);

    if (status != QUIRE_OK)
        return status;
    qr_workers_run(plan->session->store->workers, plan->unit_count, run_unit, plan);
    if (plan->status != QUIRE_OK) {
        if (e)
            *e = plan->error;
        return plan->status;
    }
    for (size_t i = 0; i < plan->unit_count;)
        i = deliver_lane(plan, i);
    if (plan->missing)
        tidy_missing(plan->missing);
    qr_counter_add(&plan->session->store->counters.attends, 1);
    return QUIRE_OK;
}

quire_status qr_store_attend(struct qr_store *store, uint32_t ns,
                             const struct qr_attend *attend, float *output, float *lse,
                             struct qr_attend_missing *missing, const atomic_bool *cancel,
                             struct qr_error *e)
{
    struct qr_attend_plan plan = {.request = attend, .cancel = cancel, .missing = missing};
    size_t sizes[3];
    quire_status status = qr_session_acquire(store, ns, attend->session, &plan.session, e);

    if (status != QUIRE_OK)
        return status;
    qr_session_used(plan.session);
    status = qr_session_load(plan.session, e);
    if (status == QUIRE_OK)
        status = qr_attend_check(plan.session, attend, &sizes[0], &sizes[1], &sizes[2], e);
    if (status == QUIRE_OK) {
        if (missing) {
            missing->count = 0;
            missing->more = false;
        }
        pthread_mutex_init(&plan.lock, NULL);
        status = compute(&plan, output, lse, e);
        qr_attend_plan_free(&plan);
        pthread_mutex_destroy(&plan.lock);
    }
    qr_session_release(plan.session);
    return status;
}

quire_status qr_attend_sizes(struct qr_store *store, uint32_t ns,
                             const struct qr_attend *attend, size_t *query_out,
                             size_t *output_out, size_t *lse_out, struct qr_error *e)
{
    struct qr_session *session;
    quire_status status = qr_session_acquire(store, ns, attend->session, &session, e);

    if (status != QUIRE_OK)
        return status;
    status = qr_attend_check(session, attend, query_out, output_out, lse_out, e);
    qr_session_release(session);
    return status;
}
