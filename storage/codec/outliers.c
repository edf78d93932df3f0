/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens of a page stay FP16: attention sinks and outliers (the rule and
 * what it was measured on: README.md). The arithmetic has a fixed order, so
 * that every instruction set chooses the same tokens. Must not know codecs.
 */
#include "kernels.h"

#include <string.h>

/** Norm ratio to the median, squared, from which a token is an outlier: 2, either way. */
#define OUTLIER_RATIO_SQUARED 4.0f

float qr_token_squares(const struct qr_rows *rows, uint32_t token, uint32_t heads, uint32_t dim)
{
    return qr_row_kernels()->squares(rows->data + token * rows->token_stride, rows->head_stride,
                                     heads, dim);
}

/** Move the values below pivot (or not above it) to the front of x[first, last); where the
 * others start. No branch depends on the values: they are as good as random. */
static uint32_t partition(float *x, uint32_t first, uint32_t last, float pivot, bool equal_too)
{
    uint32_t split = first;
    for (uint32_t i = first; i < last; i++) {
        const float value = x[i];
        x[i] = x[split];
        x[split] = value;
        split += equal_too ? value <= pivot : value < pivot;
    }
    return split;
}

/** The value that sorting would put at index `nth`; reorders x. */
static float select_nth(float *x, uint32_t n, uint32_t nth)
{
    uint32_t first = 0, last = n;
    for (;;) {
        const float pivot = x[first + (last - first) / 2];
        const uint32_t below = partition(x, first, last, pivot, false);
        if (nth < below) {
            last = below;
            continue;
        }
        first = partition(x, below, last, pivot, true);
        if (nth < first)
            return pivot;
    }
}

/** Raise scores to what these squared norms say; tokens before `first` take no part. */
static void score(const float *norms, uint32_t first, uint32_t tokens, float *scores)
{
    float order[QR_PAGE_TOKENS_MAX];
    const uint32_t count = tokens - first;
    memcpy(order, norms + first, count * sizeof(*order));
    const float median = select_nth(order, count, (count - 1) / 2);
    for (uint32_t token = first; token < tokens; token++) {
        const float low = norms[token] < median ? norms[token] : median;
        const float high = norms[token] < median ? median : norms[token];
        const float ratio = high > 0.0f ? high / low : 1.0f;
        scores[token] = ratio > scores[token] ? ratio : scores[token];
    }
}

/** The unmarked token with the highest score, the earliest of equals; `tokens` when none is an
 * outlier. */
static uint32_t worst(const float *scores, const uint8_t *bitmap, uint32_t first,
                      uint32_t tokens)
{
    uint32_t found = tokens;
    for (uint32_t token = first; token < tokens; token++) {
        if (qr_page_is_raw(bitmap, token) || scores[token] < OUTLIER_RATIO_SQUARED)
            continue;
        if (found == tokens || scores[token] > scores[found])
            found = token;
    }
    return found;
}

static void mark(uint8_t *bitmap, uint32_t token)
{
    bitmap[token / 8] = (uint8_t)(bitmap[token / 8] | 1u << token % 8);
}

uint32_t qr_page_choose_by_norms(const struct qr_page_identity *id,
                                 const struct qr_policy *policy, const float *key_norms,
                                 const float *value_norms,
                                 uint8_t bitmap_out[QR_PAGE_TOKENS_MAX / 8])
{
    const uint32_t tokens = id->page_tokens;
    float scores[QR_PAGE_TOKENS_MAX] = {0};
    uint32_t count = 0;
    memset(bitmap_out, 0, QR_PAGE_TOKENS_MAX / 8);
    if (id->key.codec == QR_CODEC_RAW && id->value.codec == QR_CODEC_RAW)
        return 0;
    while (count < tokens && id->first_position + count < policy->sink_rows)
        mark(bitmap_out, count++);
    const uint32_t sinks = count;
    if (policy->outlier_rows == 0 || sinks == tokens)
        return count;
    score(key_norms, sinks, tokens, scores);
    score(value_norms, sinks, tokens, scores);
    for (uint32_t i = 0; i < policy->outlier_rows; i++, count++) {
        const uint32_t token = worst(scores, bitmap_out, sinks, tokens);
        if (token == tokens)
            break;
        mark(bitmap_out, token);
    }
    return count;
}

uint32_t qr_page_choose_raw(const struct qr_page_identity *id, const struct qr_policy *policy,
                            const struct qr_rows *key, const struct qr_rows *value,
                            uint8_t bitmap_out[QR_PAGE_TOKENS_MAX / 8])
{
    float key_norms[QR_PAGE_TOKENS_MAX], value_norms[QR_PAGE_TOKENS_MAX];
    for (uint32_t token = 0; token < id->page_tokens; token++) {
        key_norms[token] = qr_token_squares(key, token, id->heads, id->key_dim);
        value_norms[token] = qr_token_squares(value, token, id->heads, id->value_dim);
    }
    return qr_page_choose_by_norms(id, policy, key_norms, value_norms, bitmap_out);
}
