/* SPDX-License-Identifier: Apache-2.0
 *
 * Every value is looked at before anything of a long append is sent. For blocks
 * that will be sealed the look is the survey that sealing needs, so that the rows
 * are not read once more for it. Must not know messages.
 */
#include <stdatomic.h>
#include <string.h>

#include "client_op.h"
#include "storage/codec/codec.h"

/* Scratch of a scan: stays in the L1 cache. */
#define SCAN_BYTES (16u << 10)
/* Most memory for a survey: of about 5 GiB of FP16 (8 heads, dim 128). */
#define SURVEY_BYTES_MAX (16u << 20)

/* Units: for each layer its blocks to be sealed, then all its other rows. */
struct scan {
    struct quire_op *op;
    uint32_t blocks; /* to be sealed, of a layer */
    atomic_bool bad; /* atomic: something was found, and is to be named */
};

/* Any NaN or infinity among `n` FP16 values (a multiple of 4)? An exponent of all ones carries
 * into the sign's bit when the next lower one is added; four values at a time. */
static bool any_infinite(const void *values, size_t n)
{
    const uint64_t exponents = 0x7c007c007c007c00u, one = 0x0400040004000400u;
    const uint8_t *at = values;
    uint64_t found = 0;

    for (size_t i = 0; i < n / 4; i++) {
        uint64_t four;
        memcpy(&four, at + i * sizeof(four), sizeof(four));
        found |= (four & exponents) + one;
    }
    return (found & 0x8000800080008000u) != 0;
}

/* FP16 is judged where it lies. */
static bool rows_are_finite(const struct quire_op *op, const struct qr_append_span *span)
{
    const struct qr_rows rows = qr_append_rows(op, span);
    const struct qr_layer *l = &op->session->model.layers[span->layer];
    const size_t dim = span->which ? l->value_dim : l->key_dim;
    const uint32_t heads = qr_plan_heads(op->session, span->layer);
    const bool dense = rows.head_stride == dim;

    for (uint32_t t = 0; t < span->tokens; t++)
        for (uint32_t h = 0; h < (dense ? 1 : heads); h++)
            if (any_infinite(rows.data + t * rows.token_stride + h * rows.head_stride,
                             dense ? heads * dim : dim))
                return false;
    return true;
}

static bool range_is_finite(const struct quire_op *op, uint32_t layer, uint32_t token,
                            uint32_t end)
{
    for (int which = 0; which < 2; which++) {
        const struct qr_append_span span = {layer, token, end - token, which};
        if (end > token && !rows_are_finite(op, &span))
            return false;
    }
    return true;
}

static bool survey_block(const struct quire_op *op, uint32_t layer, uint32_t token)
{
    const struct qr_append_span keys = {layer, token, op->session->policy.page_tokens, 0};
    const struct qr_append_span values = {layer, token, keys.tokens, 1};
    const struct qr_rows key = qr_append_rows(op, &keys);
    const struct qr_rows value = qr_append_rows(op, &values);
    struct qr_page_identity id;

    qr_plan_identity(op->session, layer, &id);
    return qr_page_survey(&id, &key, &value, qr_append_survey(op, layer, token));
}

static void scan_unit(void *arg, uint32_t unit)
{
    struct scan *scan = arg;
    const struct quire_op *op = scan->op;
    const struct qr_append_state *a = &op->u.append;
    const uint32_t layer = a->args.first_layer + unit / (scan->blocks + 1);
    const uint32_t block = unit % (scan->blocks + 1);
    bool good;

    if (qr_plan_heads(op->session, layer) == 0)
        return;
    if (block < scan->blocks && op->request && qr_plan_seals(op->session, layer))
        good = survey_block(op, layer, a->plan.page_first + block * a->plan.page_tokens);
    else if (block < scan->blocks)
        good = range_is_finite(op, layer, a->plan.page_first + block * a->plan.page_tokens,
                               a->plan.page_first + (block + 1) * a->plan.page_tokens);
    else
        good = range_is_finite(op, layer, 0, a->plan.page_first) &&
               range_is_finite(op, layer, a->plan.page_end, a->args.tokens);
    if (!good)
        atomic_store(&scan->bad, true);
}

/* Convert, and forget: what does not pass is named. */
static quire_status scan_tensor(struct quire_op *op, uint32_t layer, int which,
                                struct qr_error *e)
{
    const struct quire_append *args = &op->u.append.args;
    const struct qr_origin from = qr_append_origin(op->session, args, layer, which);
    const size_t row = (size_t)qr_plan_heads(op->session, layer) * from.dim * 2;
    const uint32_t step = row < SCAN_BYTES ? (uint32_t)(SCAN_BYTES / row) : 1;
    struct qr_buffer *scratch = qr_pool_take(op->client->buffers, step * row);
    quire_status status = QUIRE_OK;

    if (!scratch)
        return qr_error_set(e, QUIRE_ENOMEM, "out of memory for an append");
    for (uint32_t t = 0; !status && t < args->tokens; t += step) {
        const uint32_t n = args->tokens - t < step ? args->tokens - t : step;
        const struct qr_append_span span = {layer, t, n, which};
        status = qr_append_convert(op, &span, (uint16_t *)(void *)scratch->data, e);
    }
    qr_pool_put(scratch);
    return status;
}

static quire_status scan_slowly(struct quire_op *op, struct qr_error *e)
{
    const struct quire_append *args = &op->u.append.args;
    quire_status status = QUIRE_OK;

    for (uint32_t i = 0; !status && i < args->layers; i++)
        for (int which = 0; !status && which < 2; which++)
            if (qr_plan_heads(op->session, args->first_layer + i) > 0)
                status = scan_tensor(op, args->first_layer + i, which, e);
    return status;
}

/* Memory for the survey; without, sealing looks at the rows again itself. */
static void take_survey(struct quire_op *op, uint32_t blocks)
{
    const struct qr_append_state *a = &op->u.append;
    const size_t bytes =
        (size_t)a->args.layers * blocks * a->plan.page_tokens * sizeof(struct qr_token_survey);

    if (bytes > 0 && bytes <= SURVEY_BYTES_MAX)
        op->request = qr_pool_take(op->client->buffers, bytes);
}

quire_status qr_append_scan(struct quire_op *op, struct qr_error *e)
{
    struct qr_append_state *a = &op->u.append;
    const struct qr_plan *plan = &a->plan;
    struct scan scan = {.op = op,
                        .blocks = (plan->page_end - plan->page_first) / plan->page_tokens};

    if (a->args.dtype != QUIRE_F16)
        return scan_slowly(op, e);
    take_survey(op, scan.blocks);
    qr_helper_run(op->client->helper, a->args.layers * (scan.blocks + 1), scan_unit, &scan);
    return atomic_load(&scan.bad) ? scan_slowly(op, e) : QUIRE_OK;
}

struct qr_token_survey *qr_append_survey(const struct quire_op *op, uint32_t layer,
                                         uint32_t token)
{
    const struct qr_append_state *a = &op->u.append;
    const size_t sealed = a->plan.page_end - a->plan.page_first;

    if (!op->request)
        return NULL;
    return (struct qr_token_survey *)(void *)op->request->data +
           (layer - a->args.first_layer) * sealed + (token - a->plan.page_first);
}
