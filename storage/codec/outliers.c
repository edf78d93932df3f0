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

static float squared_norm(const struct qr_rows *rows, uint32_t token, uint32_t heads,
                          uint32_t dim)
{
    const uint16_t *x = rows->data + token * rows->token_stride;
    float sum = 0.0f;
    for (uint32_t head = 0; head < heads; head++)
        sum += qr_row_kernels()->square(x + head * rows->head_stride, dim);
    return sum;
}

/** The value that sorting would put at index `nth`; reorders x. */
static float select_nth(float *x, uint32_t n, uint32_t nth)
{
    uint32_t first = 0, last = n - 1;
    while (first < last) {
        const float pivot = x[first + (last - first) / 2];
        uint32_t i = first, j = last;
        for (;; i++, j--) {
            while (x[i] < pivot)
                i++;
            while (x[j] > pivot)
                j--;
            if (i >= j)
                break;
            const float swapped = x[i];
            x[i] = x[j];
            x[j] = swapped;
        }
        if (nth <= j)
            last = j;
        else
            first = j + 1;
    }
    return x[nth];
}

/** Raise scores to what the norms of these rows say; tokens before `first` take no part. */
static void score(const struct qr_rows *rows, uint32_t heads, uint32_t dim, uint32_t first,
                  uint32_t tokens, float *scores)
{
    float norms[QR_PAGE_TOKENS_MAX], order[QR_PAGE_TOKENS_MAX];
    const uint32_t count = tokens - first;
    for (uint32_t token = first; token < tokens; token++)
        norms[token] = squared_norm(rows, token, heads, dim);
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

uint32_t qr_page_choose_raw(const struct qr_page_identity *id, const struct qr_policy *policy,
                            const struct qr_rows *key, const struct qr_rows *value,
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
    score(key, id->heads, id->key_dim, sinks, tokens, scores);
    score(value, id->heads, id->value_dim, sinks, tokens, scores);
    for (uint32_t i = 0; i < policy->outlier_rows; i++, count++) {
        const uint32_t token = worst(scores, bitmap_out, sinks, tokens);
        if (token == tokens)
            break;
        mark(bitmap_out, token);
    }
    return count;
}
