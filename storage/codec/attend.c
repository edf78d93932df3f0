/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over any source of keys and values: which tokens each query row
 * sees, the running maximum, finishing and merging of partials. Must not know
 * how keys and values are stored.
 */
#include "attend_kernels.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "proto/cpu.h"

const struct qr_attend_kernels *qr_attend_kernels(void)
{
#if defined(__x86_64__)
    if (qr_isa() == QR_ISA_AVX512)
        return &qr_attend_avx512;
    if (qr_isa() == QR_ISA_AVX2)
        return &qr_attend_avx2;
#endif
    return &qr_attend_scalar;
}

static size_t round64(size_t bytes)
{
    return (bytes + 63u) & ~(size_t)63u;
}

#define Q_BYTES (QR_ATTEND_ROWS * QR_ATTEND_Q_STRIDE * sizeof(float))
_Static_assert(Q_BYTES % 64 == 0, "what follows is aligned");

static size_t z_bytes(uint32_t tokens)
{
    return (size_t)QR_ATTEND_ROWS * qr_attend_round16(tokens) * sizeof(float);
}

/** What the sources carve up: an expanded block, or the working set of the code kernels. */
static size_t source_bytes(uint32_t tokens, uint32_t key_dim, uint32_t value_dim)
{
    const size_t wide =
        qr_attend_round16(key_dim > value_dim ? key_dim : value_dim) * sizeof(float);
    const size_t block = (QR_ATTEND_BLOCK + 2u) * wide;
    const size_t value = (size_t)qr_attend_round16(tokens) * value_dim;
    return round64(block) + 4u * round64(value) + QR_ATTEND_TILE_BYTES;
}

size_t qr_attend_scratch_bytes(uint32_t page_tokens, uint32_t key_dim, uint32_t value_dim,
                               uint32_t count)
{
    (void)count; /* rows are taken QR_ATTEND_ROWS at a time, whatever their number */
    if (page_tokens > QR_PAGE_TOKENS_MAX)
        page_tokens = QR_PAGE_TOKENS_MAX; /* so are tokens of long tails */
    return Q_BYTES + round64(z_bytes(page_tokens)) +
           source_bytes(page_tokens, key_dim, value_dim);
}

void qr_attend_reset(struct qr_attend_acc *acc, uint32_t count, uint32_t value_dim)
{
    for (uint32_t row = 0; row < count; row++) {
        acc->max[row] = -INFINITY;
        acc->sum[row] = 0.0f;
        memset(acc->out + row * acc->out_stride, 0,
               qr_attend_round16(value_dim) * sizeof(float));
    }
}

/** Columns of a source, relative to its first token. */
struct span {
    uint32_t low, high;
};

/** The tokens of the source that a query at `position` sees; low >= high when none. */
static struct span visible(const struct qr_attend_source *source,
                           const struct qr_attend_queries *queries, uint64_t position)
{
    const uint64_t begin = source->first_position, end = begin + source->tokens;
    uint64_t low = queries->first > begin ? queries->first : begin;
    uint64_t high = queries->last < end ? queries->last : end;
    if (queries->causal && position < high)
        high = position + 1;
    if (queries->window && position >= queries->window) {
        const uint64_t oldest = position - queries->window + 1;
        low = oldest > low ? oldest : low;
    }
    if (low >= high)
        return (struct span){0, 0};
    return (struct span){(uint32_t)(low - begin), (uint32_t)(high - begin)};
}

static void copy_queries(const struct qr_attend_queries *queries, uint32_t row, uint32_t rows,
                         uint32_t key_dim, float *q)
{
    const uint32_t wide = qr_attend_round16(key_dim);
    for (uint32_t i = 0; i < rows; i++) {
        memcpy(q + i * QR_ATTEND_Q_STRIDE, queries->q + (row + i) * queries->q_stride,
               key_dim * sizeof(float));
        memset(q + i * QR_ATTEND_Q_STRIDE + key_dim, 0, (wide - key_dim) * sizeof(float));
    }
}

static void weigh(const struct qr_attend_queries *queries, const struct qr_attend_part *part,
                  const struct span *spans, struct span all, struct qr_attend_acc *acc)
{
    const struct qr_attend_kernels *k = qr_attend_kernels();
    for (uint32_t i = 0; i < part->rows; i++) {
        struct qr_attend_softmax s = {
            .scale = queries->scale,
            .softcap = queries->softcap,
            .first = all.low & ~15u,
            .last = qr_attend_round16(all.high),
            .low = spans[i].low,
            .high = spans[i].high,
            .max = acc->max[i],
            .sum = acc->sum[i],
        };
        k->softmax(part->z + i * part->z_stride, &s);
        acc->max[i] = s.max;
        acc->sum[i] = s.sum;
        if (s.rescale != 1.0f)
            k->scale(part->out + i * part->out_stride, part->value_dim, s.rescale);
    }
}

static void run_rows(const struct qr_attend_source *source,
                     const struct qr_attend_queries *queries, uint32_t row, uint32_t rows,
                     struct qr_attend_acc acc, uint8_t *scratch)
{
    struct span spans[QR_ATTEND_ROWS], all = {UINT32_MAX, 0};
    for (uint32_t i = 0; i < rows; i++) {
        spans[i] = visible(source, queries, queries->positions[row + i]);
        if (spans[i].low >= spans[i].high)
            continue;
        all.low = spans[i].low < all.low ? spans[i].low : all.low;
        all.high = spans[i].high > all.high ? spans[i].high : all.high;
    }
    if (all.low >= all.high)
        return;

    float *q = (float *)(void *)scratch;
    float *z = (float *)(void *)(scratch + Q_BYTES);
    const struct qr_attend_part part = {
        .rows = rows,
        .key_dim = qr_attend_round16(source->key_dim),
        .value_dim = qr_attend_round16(source->value_dim),
        .q = q,
        .z = z,
        .z_stride = qr_attend_round16(source->tokens),
        .out = acc.out,
        .out_stride = acc.out_stride,
        .scratch = (uint8_t *)z + round64(z_bytes(source->tokens)),
    };
    copy_queries(queries, row, rows, source->key_dim, q);
    source->scores(source, &part, all.low, all.high);
    weigh(queries, &part, spans, all, &acc);
    source->add(source, &part, all.low, all.high);
}

void qr_attend_run(const struct qr_attend_source *source,
                   const struct qr_attend_queries *queries, struct qr_attend_acc *acc,
                   void *scratch)
{
    assert((uintptr_t)scratch % 64 == 0 && acc->out_stride % 16 == 0);
    for (uint32_t row = 0, rows; row < queries->count; row += rows) {
        rows = queries->count - row;
        rows = rows < QR_ATTEND_ROWS ? rows : QR_ATTEND_ROWS;
        const struct qr_attend_acc at = {acc->max + row, acc->sum + row,
                                         acc->out + row * acc->out_stride, acc->out_stride};
        run_rows(source, queries, row, rows, at, scratch);
    }
}

void qr_attend_finish(const struct qr_attend_acc *acc, uint32_t count, uint32_t value_dim,
                      float *out, size_t out_stride, float *lse)
{
    for (uint32_t row = 0; row < count; row++) {
        const float sum = acc->sum[row];
        const float inverse = sum > 0.0f ? 1.0f / sum : sum; /* 0 when empty; NaN stays */
        const float *from = acc->out + row * acc->out_stride;
        for (uint32_t i = 0; i < value_dim; i++)
            out[row * out_stride + i] = from[i] * inverse;
        lse[row] = sum == 0.0f ? -INFINITY : acc->max[row] + logf(sum);
    }
}

void qr_attend_merge(float *out_a, float *lse_a, const float *out_b, const float *lse_b,
                     size_t rows, size_t value_dim)
{
    for (size_t row = 0; row < rows; row++) {
        const float a = lse_a[row], b = lse_b[row];
        const float top = a > b ? a : b;
        if (b == -INFINITY || top == -INFINITY)
            continue;
        const float wa = expf(a - top), wb = expf(b - top);
        const float inverse = 1.0f / (wa + wb);
        float *to = out_a + row * value_dim;
        const float *from = out_b + row * value_dim;
        for (size_t i = 0; i < value_dim; i++)
            to[i] = (to[i] * wa + from[i] * wb) * inverse;
        lse_a[row] = top + logf(wa + wb);
    }
}
