/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole pages: FP16 rows in, a finished page out, and back. Layout and checksum
 * are proto/page.h's, arithmetic the codecs'. Must not know sessions or tiers.
 */
#include "kernels.h"

#include <math.h>
#include <string.h>

size_t qr_page_bytes_max(const struct qr_page_identity *id, const struct qr_policy *policy)
{
    const uint32_t rows = (uint32_t)policy->sink_rows + policy->outlier_rows;
    return qr_page_bytes(id, rows < id->page_tokens ? rows : id->page_tokens);
}

static struct qr_tensor tensor_of(const struct qr_page_identity *id, enum qr_which which)
{
    const bool key = which == QR_KEY;
    return (struct qr_tensor){key ? id->key : id->value, id->page_tokens, id->heads,
                              key ? id->key_dim : id->value_dim,
                              key ? id->key_levels : id->value_levels};
}

static void copy_raw_rows(const struct qr_rows *in, const struct qr_tensor *t,
                          const uint8_t *bitmap, uint16_t *out)
{
    for (uint32_t token = 0; token < t->tokens; token++)
        if (qr_page_is_raw(bitmap, token))
            for (uint32_t head = 0; head < t->heads; head++, out += t->dim)
                memcpy(out, in->data + token * in->token_stride + head * in->head_stride,
                       t->dim * sizeof(*out));
}

static void encode_tensor(const struct qr_tensor *t, const struct qr_rows *in,
                          const uint8_t *bitmap, uint8_t *codes, uint8_t *scales, uint16_t *raw)
{
    qr_codec(t->spec.codec)->encode(t, in, bitmap, codes, scales);
    if (raw)
        copy_raw_rows(in, t, bitmap, raw);
}

/** All heads of a token; one piece when they follow each other. */
static struct qr_span token_span(const struct qr_rows *rows, const struct qr_tensor *t,
                                 uint32_t token)
{
    const uint16_t *x = rows->data + token * rows->token_stride;
    const size_t bytes = t->dim * sizeof(*x);
    if (rows->head_stride == t->dim)
        return (struct qr_span){x, bytes * t->heads, 0, 1};
    return (struct qr_span){x, bytes, rows->head_stride * sizeof(*x), t->heads};
}

bool qr_page_survey(const struct qr_page_identity *id, const struct qr_rows *key,
                    const struct qr_rows *value, struct qr_token_survey *out)
{
    const struct qr_tensor k = tensor_of(id, QR_KEY), v = tensor_of(id, QR_VALUE);
    bool finite = true;
    for (uint32_t token = 0; token < id->page_tokens; token++) {
        const struct qr_span spans[] = {token_span(key, &k, token),
                                        token_span(value, &v, token)};
        struct qr_token_survey *t = &out[token];
        t->key_squares = qr_token_squares(key, token, k.heads, k.dim);
        t->value_squares = qr_token_squares(value, token, v.heads, v.dim);
        t->digest = (uint32_t)qr_checksum_spans(spans, 2);
        /* Squares of finite FP16 values add up to far less than FP32 holds. */
        finite &= isfinite(t->key_squares) && isfinite(t->value_squares);
    }
    return finite;
}

/** Everything behind the header: both tensors, raw rows, digests. */
static void fill_sections(const struct qr_page_identity *id, const struct qr_rows *key,
                          const struct qr_rows *value, const uint8_t *bitmap,
                          const struct qr_page_sections *out)
{
    const struct qr_tensor k = tensor_of(id, QR_KEY), v = tensor_of(id, QR_VALUE);
    encode_tensor(&k, key, bitmap, out->key_codes, out->key_scales, out->key_raw);
    encode_tensor(&v, value, bitmap, out->value_codes, out->value_scales, out->value_raw);
}

static uint32_t choose_raw(const struct qr_surveyed *rows,
                           uint8_t bitmap_out[QR_PAGE_TOKENS_MAX / 8])
{
    float keys[QR_PAGE_TOKENS_MAX], values[QR_PAGE_TOKENS_MAX];
    for (uint32_t token = 0; token < rows->id->page_tokens; token++) {
        keys[token] = rows->survey[token].key_squares;
        values[token] = rows->survey[token].value_squares;
    }
    return qr_page_choose_by_norms(rows->id, rows->policy, keys, values, bitmap_out);
}

quire_status qr_page_encode_surveyed(const struct qr_surveyed *rows, void *page,
                                     size_t capacity, size_t *bytes_out, struct qr_error *e)
{
    const struct qr_page_identity *id = rows->id;
    uint8_t bitmap[QR_PAGE_TOKENS_MAX / 8];
    struct qr_page_sections sections;
    quire_status status = qr_codec_check_encode(id, e);
    if (status)
        return status;
    const uint32_t raw_rows = choose_raw(rows, bitmap);
    const size_t bytes = qr_page_bytes(id, raw_rows);
    if (bytes > capacity)
        return qr_error_set(e, QUIRE_ETOOBIG, "page of %zu bytes in a buffer of %zu", bytes,
                            capacity);
    status = qr_page_begin(page, bytes, id, bitmap, &sections, e);
    if (status)
        return status;
    fill_sections(id, rows->key, rows->value, bitmap, &sections);
    for (uint32_t token = 0; token < id->page_tokens; token++)
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): the survey filled it */
        sections.digests[token] = rows->survey[token].digest;
    qr_page_finish(page);
    *bytes_out = bytes;
    return QUIRE_OK;
}

/* Surveying is one pass over the rows: memory is read there, the codecs then find them in the
 * caches. */
quire_status qr_page_encode(const struct qr_page_identity *id, const struct qr_policy *policy,
                            const struct qr_rows *key, const struct qr_rows *value, void *page,
                            size_t capacity, size_t *bytes_out, struct qr_error *e)
{
    struct qr_token_survey survey[QR_PAGE_TOKENS_MAX];
    const struct qr_surveyed rows = {id, policy, key, value, survey};
    const quire_status status = qr_codec_check_encode(id, e);
    if (status)
        return status;
    (void)qr_page_survey(id, key, value, survey);
    return qr_page_encode_surveyed(&rows, page, capacity, bytes_out, e);
}

void qr_page_expand(const struct qr_page_view *page, enum qr_which which,
                    const struct qr_expand *to)
{
    const bool key = which == QR_KEY;
    struct qr_page_identity id;
    struct qr_expand range = *to;
    qr_page_identity_of(page->header, &id);
    const struct qr_tensor t = tensor_of(&id, which);
    range.raw_bitmap = page->header->raw_bitmap;
    range.raw_rows = key ? page->key_raw : page->value_raw;
    qr_codec(t.spec.codec)
        ->expand(&t, key ? page->key_codes : page->value_codes,
                 key ? page->key_scales : page->value_scales, &range);
}
