/* SPDX-License-Identifier: Apache-2.0
 *
 * Receipts: the figures against attention written out in FP64 over what the page decodes to,
 * raw pages err nowhere, sampling, and pages that are equal but for their receipts.
 */
#include "storage/codec/receipt.h"
#include "tests/test.h"

#define TOKENS 32
#define HEADS 2
#define KEY_DIM 24
#define VALUE_DIM 40

static uint16_t key[TOKENS][HEADS][KEY_DIM], value[TOKENS][HEADS][VALUE_DIM];
static _Alignas(64) uint8_t page[1 << 16], twin[1 << 16], scratch[1 << 20];

static struct qr_page_identity identity(uint16_t codec, uint8_t bits)
{
    struct qr_page_identity id = {.heads = HEADS,
                                  .key_dim = KEY_DIM,
                                  .value_dim = VALUE_DIM,
                                  .page_tokens = TOKENS,
                                  .first_position = 64,
                                  .layer = 3};
    id.key = (struct qr_codec_spec){.codec = codec, .bits = bits};
    if (codec == QR_CODEC_CHAN) {
        id.key.axis = QR_AXIS_CHANNEL;
        id.key.group = 32;
    }
    id.value = id.key;
    if (codec == QR_CODEC_CHAN)
        id.value.axis = QR_AXIS_TOKEN;
    return id;
}

static uint16_t any_half(uint32_t *random, uint32_t low, uint32_t span)
{
    *random = *random * 1664525u + 1013904223u;
    return (uint16_t)((low + (*random >> 18) % span) | *random >> 31 << 15);
}

static void fill(void)
{
    uint32_t random = 11;
    for (size_t i = 0; i < sizeof(key) / 2; i++)
        (&key[0][0][0])[i] = any_half(&random, 0x3800, 0x0a00);
    for (size_t i = 0; i < sizeof(value) / 2; i++)
        (&value[0][0][0])[i] = any_half(&random, 0x3400, 0x0c00);
}

static size_t make(const struct qr_page_identity *id, uint8_t *out)
{
    const struct qr_policy policy = {.page_tokens = TOKENS, .key = id->key, .value = id->value};
    const struct qr_rows k = {&key[0][0][0], HEADS * KEY_DIM, KEY_DIM};
    const struct qr_rows v = {&value[0][0][0], HEADS * VALUE_DIM, VALUE_DIM};
    size_t bytes;
    fill();
    assert_ok(qr_page_encode(id, &policy, &k, &v, out, sizeof(page), &bytes, NULL));
    return bytes;
}

static void measure(uint8_t *of, size_t bytes, const struct qr_page_identity *id)
{
    const struct qr_rows k = {&key[0][0][0], HEADS * KEY_DIM, KEY_DIM};
    const struct qr_rows v = {&value[0][0][0], HEADS * VALUE_DIM, VALUE_DIM};
    assert_true(qr_receipt_scratch_bytes(id) <= sizeof(scratch));
    assert_ok(qr_receipt_measure(of, bytes, &k, &v, scratch, NULL));
}

/** FP32 rows of a page, or of the originals when `view` is NULL. */
static void decode(const struct qr_page_view *view, enum qr_which which, float *out)
{
    const uint32_t dim = which == QR_KEY ? KEY_DIM : VALUE_DIM;
    const struct qr_rows in = {which == QR_KEY ? &key[0][0][0] : &value[0][0][0], HEADS * dim,
                               dim};
    const struct qr_expand to = {.token_count = TOKENS,
                                 .head_count = HEADS,
                                 .dtype = QR_F32,
                                 .dst = out,
                                 .token_stride = HEADS * dim * 4u,
                                 .head_stride = dim * 4u};
    if (view)
        qr_page_expand(view, which, &to);
    else
        qr_rows_expand(&in, TOKENS, HEADS, dim, &to);
}

static void attend(const float *q, const float *k, const float *v, uint32_t head, double *out)
{
    double p[TOKENS], sum = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        double z = 0;
        for (uint32_t d = 0; d < KEY_DIM; d++)
            z += (double)q[d] * (double)k[(t * HEADS + head) * KEY_DIM + d];
        p[t] = exp(z / sqrt(KEY_DIM));
        sum += p[t];
    }
    memset(out, 0, VALUE_DIM * sizeof(*out));
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t d = 0; d < VALUE_DIM; d++)
            out[d] += p[t] / sum * (double)v[(t * HEADS + head) * VALUE_DIM + d];
}

static double expected(const struct qr_page_view *view, bool encoded_key, bool encoded_value)
{
    static float k[TOKENS * HEADS * KEY_DIM], v[TOKENS * HEADS * VALUE_DIM];
    static float k2[TOKENS * HEADS * KEY_DIM], v2[TOKENS * HEADS * VALUE_DIM];
    double errors = 0, squares = 0;
    decode(NULL, QR_KEY, k);
    decode(NULL, QR_VALUE, v);
    decode(encoded_key ? view : NULL, QR_KEY, k2);
    decode(encoded_value ? view : NULL, QR_VALUE, v2);
    for (uint32_t head = 0; head < HEADS; head++)
        for (uint32_t proxy = 1; proxy <= 2; proxy++) {
            double x[VALUE_DIM], y[VALUE_DIM];
            const float *q = &k[((proxy * TOKENS / 3) * HEADS + head) * KEY_DIM];
            attend(q, k, v, head, x);
            attend(q, k2, v2, head, y);
            for (uint32_t d = 0; d < VALUE_DIM; d++) {
                errors += (y[d] - x[d]) * (y[d] - x[d]);
                squares += x[d] * x[d];
            }
        }
    return sqrt(errors / squares);
}

static void figures_are_those_of_attention(void **state)
{
    const struct qr_page_identity id = identity(QR_CODEC_CHAN, 2);
    struct qr_page_view view;
    (void)state;
    const size_t bytes = make(&id, page);
    measure(page, bytes, &id);
    assert_ok(qr_page_open(page, bytes, &view, NULL)); /* finished anew */
    const struct qr_receipt *r = &view.header->receipt;
    assert_int_equal(r->metric, 1);
    assert_int_equal(r->queries, 2);
    /* Rows are rounded to FP16 for the kernels: 2^-11 of a value. */
    assert_true(fabs((double)r->error / expected(&view, true, true) - 1) < 5e-3);
    assert_true(fabs((double)r->key_error / expected(&view, true, false) - 1) < 5e-3);
    assert_true(fabs((double)r->value_error / expected(&view, false, true) - 1) < 5e-3);
    assert_true(r->error > 0.05f);
}

static void raw_pages_err_nowhere(void **state)
{
    const struct qr_page_identity id = identity(QR_CODEC_RAW, 16);
    (void)state;
    const size_t bytes = make(&id, page);
    measure(page, bytes, &id);
    const struct qr_receipt *r = &((struct qr_page_header *)(void *)page)->receipt;
    assert_int_equal(r->metric, 1);
    assert_true(r->error == 0 && r->key_error == 0 && r->value_error == 0);
}

static void pages_are_equal_but_for_receipts(void **state)
{
    const struct qr_page_identity id = identity(QR_CODEC_CHAN, 4);
    (void)state;
    const size_t bytes = make(&id, page);
    assert_int_equal(make(&id, twin), bytes);
    measure(twin, bytes, &id);
    assert_memory_not_equal(page, twin, bytes);
    qr_receipt_copy(page, twin);
    assert_memory_equal(page, twin, bytes);
}

static void a_damaged_page_is_left_as_it_is(void **state)
{
    const struct qr_page_identity id = identity(QR_CODEC_CHAN, 4);
    const struct qr_rows rows = {&key[0][0][0], HEADS * KEY_DIM, KEY_DIM};
    (void)state;
    const size_t bytes = make(&id, page);
    page[600] ^= 1;
    memcpy(twin, page, bytes);
    assert_status(QUIRE_ECORRUPT, qr_receipt_measure(page, bytes, &rows, &rows, scratch, NULL));
    assert_memory_equal(page, twin, bytes);
}

static void one_page_in_so_many_is_due(void **state)
{
    struct qr_page_identity id = identity(QR_CODEC_CHAN, 4);
    uint32_t due[3] = {0};
    (void)state;
    for (uint32_t block = 0; block < 64; block++)
        for (id.layer = 0; id.layer < 8; id.layer++) {
            id.first_position = (uint64_t)block * TOKENS;
            due[0] += qr_receipt_due(&id, 0);
            due[1] += qr_receipt_due(&id, 1);
            due[2] += qr_receipt_due(&id, 8);
        }
    assert_int_equal(due[0], 0);
    assert_int_equal(due[1], 512);
    assert_int_equal(due[2], 64);
}

static void sums_leave_out_what_was_not_measured(void **state)
{
    struct qr_receipt_sum sum = {0};
    (void)state;
    qr_receipt_add(&sum, &(struct qr_receipt){.error = 9});
    qr_receipt_add(&sum, &(struct qr_receipt){.metric = 1, .error = 3});
    qr_receipt_add(&sum, &(struct qr_receipt){.metric = 1, .error = 1});
    assert_int_equal(sum.count, 2);
    assert_true(sum.squares == 10 && sum.largest == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_attention),
        cmocka_unit_test(raw_pages_err_nowhere),
        cmocka_unit_test(pages_are_equal_but_for_receipts),
        cmocka_unit_test(a_damaged_page_is_left_as_it_is),
        cmocka_unit_test(one_page_in_so_many_is_due),
        cmocka_unit_test(sums_leave_out_what_was_not_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
