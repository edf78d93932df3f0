/* SPDX-License-Identifier: Apache-2.0
 *
 * See receipt.h. Attention of a few proxy queries over the page's own tokens, with its keys and
 * values before and after encoding, through the same kernels that serve attention.
 */
#include "receipt.h"

#include "attend.h"

#include <math.h>

#define PROXIES 2u /* a KV head; keys of the page itself, at one and two thirds of it */
#define ALIGN 64u

/** Both, keys alone, values alone: which rows of attention are encoded ones. */
enum { ORIGINAL, BOTH, KEYS, VALUES, WAYS };

struct space {
    uint16_t *key, *value; /* [tokens][dim] of one head, encoded and expanded */
    float *query, *acc;    /* [PROXIES][key_dim]; [PROXIES][padded value_dim] */
    float *output;         /* [WAYS][PROXIES][value_dim] */
    void *attend;
};

static size_t padded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t lay_out(const struct qr_page_identity *id, uint8_t *base, struct space *out)
{
    const size_t key = padded((size_t)id->page_tokens * id->key_dim * sizeof(uint16_t));
    const size_t value = padded((size_t)id->page_tokens * id->value_dim * sizeof(uint16_t));
    const size_t query = padded((size_t)PROXIES * id->key_dim * sizeof(float));
    const size_t acc =
        padded((size_t)PROXIES * ((id->value_dim + 15u) / 16 * 16) * sizeof(float));
    const size_t output = padded((size_t)WAYS * PROXIES * id->value_dim * sizeof(float));
    const size_t fixed = key + value + query + acc + output;
    if (out != NULL)
        *out = (struct space){.key = (uint16_t *)(void *)base,
                              .value = (uint16_t *)(void *)(base + key),
                              .query = (float *)(void *)(base + key + value),
                              .acc = (float *)(void *)(base + key + value + query),
                              .output = (float *)(void *)(base + key + value + query + acc),
                              .attend = base + fixed};
    return fixed + padded(qr_attend_scratch_bytes(id->page_tokens, id->key_dim, id->value_dim,
                                                  PROXIES));
}

bool qr_receipt_due(const struct qr_page_identity *id, uint32_t every)
{
    return every != 0 && (id->first_position / id->page_tokens + id->layer) % every == 0;
}

size_t qr_receipt_scratch_bytes(const struct qr_page_identity *id)
{
    return lay_out(id, NULL, NULL);
}

static void expand(const struct qr_page_view *view, enum qr_which which, uint32_t head,
                   uint32_t dim, uint16_t *dst)
{
    const struct qr_expand to = {.token_count = view->header->page_tokens,
                                 .first_head = head,
                                 .head_count = 1,
                                 .dtype = QR_F16,
                                 .dst = dst,
                                 .token_stride = dim * sizeof(*dst),
                                 .head_stride = dim * sizeof(*dst)};
    qr_page_expand(view, which, &to);
}

/** The proxies of one head: keys as they are stored, so RoPE plays no part. */
static void take_queries(const struct qr_rows *key, uint32_t head, uint32_t tokens,
                         uint32_t dim, float *query)
{
    for (uint32_t p = 0; p < PROXIES; p++) {
        const uint32_t token = (p + 1) * tokens / (PROXIES + 1);
        const struct qr_rows row = {key->data + token * key->token_stride +
                                        head * key->head_stride,
                                    key->token_stride, key->head_stride};
        const struct qr_expand to = {.token_count = 1,
                                     .head_count = 1,
                                     .dtype = QR_F32,
                                     .dst = query + (size_t)p * dim,
                                     .token_stride = dim * sizeof(float),
                                     .head_stride = dim * sizeof(float)};
        qr_rows_expand(&row, 1, 1, dim, &to);
    }
}

static void attend(const struct qr_page_header *h, const struct qr_rows *key,
                   const struct qr_rows *value, const struct space *s, float *output)
{
    static const uint64_t positions[PROXIES] = {0};
    float max[PROXIES], sum[PROXIES], lse[PROXIES];
    const struct qr_attend_queries queries = {.count = PROXIES,
                                              .q = s->query,
                                              .q_stride = h->key_dim,
                                              .positions = positions,
                                              .scale = (float)(1.0 / sqrt(h->key_dim)),
                                              .last = h->page_tokens};
    struct qr_attend_acc acc = {max, sum, s->acc, (h->value_dim + 15u) / 16 * 16};
    qr_attend_reset(&acc, PROXIES, h->value_dim);
    qr_attend_rows(key->data, key->token_stride, h->key_dim, value->data, value->token_stride,
                   h->value_dim, h->page_tokens, 0, &queries, NULL, 0, QR_ROPE_HALF, &acc,
                   s->attend);
    qr_attend_finish(&acc, PROXIES, h->value_dim, output, h->value_dim, lse);
}

/** Squared errors of one head's outputs, and what they are relative to. */
static void measure_head(const struct qr_page_view *view, uint32_t head,
                         const struct qr_rows *key, const struct qr_rows *value,
                         const struct space *s, double squares[WAYS])
{
    const struct qr_page_header *h = view->header;
    const size_t count = (size_t)PROXIES * h->value_dim;
    const struct qr_rows old_key = {key->data + head * key->head_stride, key->token_stride, 0};
    const struct qr_rows old_value = {value->data + head * value->head_stride,
                                      value->token_stride, 0};
    const struct qr_rows new_key = {s->key, h->key_dim, 0},
                         new_value = {s->value, h->value_dim, 0};
    expand(view, QR_KEY, head, h->key_dim, s->key);
    expand(view, QR_VALUE, head, h->value_dim, s->value);
    take_queries(key, head, h->page_tokens, h->key_dim, s->query);
    for (int way = 0; way < WAYS; way++)
        attend(h, way == BOTH || way == KEYS ? &new_key : &old_key,
               way == BOTH || way == VALUES ? &new_value : &old_value, s,
               s->output + (size_t)way * count);
    for (size_t i = 0; i < count; i++) {
        const double x = (double)s->output[i];
        squares[ORIGINAL] += x * x;
        for (int way = BOTH; way < WAYS; way++) {
            const double e = (double)s->output[(size_t)way * count + i] - x;
            squares[way] += e * e;
        }
    }
}

quire_status qr_receipt_measure(void *page, size_t bytes, const struct qr_rows *key,
                                const struct qr_rows *value, void *scratch, struct qr_error *e)
{
    struct qr_page_header *header = page;
    struct qr_page_identity id;
    struct qr_page_view view;
    struct space s;
    double squares[WAYS] = {0};
    const quire_status status = qr_page_open(page, bytes, &view, e);
    if (status != QUIRE_OK)
        return status;
    qr_page_identity_of(header, &id);
    lay_out(&id, scratch, &s);
    for (uint32_t head = 0; head < id.heads; head++)
        measure_head(&view, head, key, value, &s, squares);
    const double whole = squares[ORIGINAL] > 0 ? squares[ORIGINAL] : 1;
    header->receipt = (struct qr_receipt){.metric = 1,
                                          .queries = 2,
                                          .error = (float)sqrt(squares[BOTH] / whole),
                                          .key_error = (float)sqrt(squares[KEYS] / whole),
                                          .value_error = (float)sqrt(squares[VALUES] / whole)};
    qr_page_finish(page);
    return QUIRE_OK;
}

void qr_receipt_copy(void *to, const void *from)
{
    struct qr_page_header *header = to;
    const struct qr_page_header *other = from;
    const struct qr_receipt *a = &header->receipt, *b = &other->receipt;
    if (a->metric == b->metric && a->queries == b->queries && a->error == b->error &&
        a->key_error == b->key_error && a->value_error == b->value_error)
        return;
    header->receipt = other->receipt;
    qr_page_finish(to);
}

void qr_receipt_add(struct qr_receipt_sum *sum, const struct qr_receipt *receipt)
{
    if (receipt->metric == 0)
        return;
    sum->count++;
    sum->squares += (double)receipt->error * (double)receipt->error;
    sum->largest = receipt->error > sum->largest ? receipt->error : sum->largest;
}
