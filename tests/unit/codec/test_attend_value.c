/* SPDX-License-Identifier: Apache-2.0
 *
 * The integer sums of the value kernel are the same bits with and without VNNI,
 * at every vector width, code width, group and number of rows.
 */
#include "attend_reference.h"

#include "storage/codec/attend_kernels.h"

#define TOKENS 64u

struct shape {
    uint32_t dim, bits, group, rows;
};

/* Rows of 64, 32 and 16 bytes and multiples, 4 and 2 bits; groups that fill vectors and half.
 */
static const struct shape shapes[] = {
    {128, 4, 32, 4}, {256, 4, 64, 3}, {128, 4, 16, 2}, {64, 4, 32, 1},  {96, 4, 32, 4},
    {32, 4, 16, 5},  {256, 2, 32, 4}, {128, 2, 32, 9}, {64, 2, 128, 2}, {192, 2, 16, 4},
};

struct buffers {
    uint8_t *codes, *scratch;
    uint16_t *scales;
    float *z, *out;
};

static struct buffers make(const struct shape *s, struct random *r)
{
    const uint32_t groups = (s->dim + s->group - 1) / s->group;
    struct buffers b;
    b.codes = test_alloc(TOKENS * s->dim);
    b.scales = test_alloc((size_t)TOKENS * groups * 4);
    b.z = test_alloc(QR_ATTEND_ROWS * TOKENS * sizeof(float));
    b.out = test_alloc(QR_ATTEND_ROWS * s->dim * sizeof(float));
    b.scratch = test_alloc(qr_attend_scratch_bytes(TOKENS, s->dim, s->dim, s->rows));
    for (uint32_t i = 0; i < TOKENS * s->dim; i++)
        b.codes[i] = (uint8_t)random_below(r, 256);
    for (uint32_t i = 0; i < TOKENS * groups; i++) {
        b.scales[2 * i] = qr_f16_from_f32((float)random_unit(r));
        b.scales[2 * i + 1] = qr_f16_from_f32(random_normal(r));
    }
    for (uint32_t i = 0; i < QR_ATTEND_ROWS * TOKENS; i++)
        b.z[i] = (float)random_unit(r);
    return b;
}

static void release(struct buffers *b)
{
    free(b->codes);
    free(b->scales);
    free(b->z);
    free(b->out);
    free(b->scratch);
}

static void run(const struct shape *s, const struct buffers *b, bool plain)
{
    const struct qr_attend_part part = {.rows = s->rows,
                                        .value_dim = s->dim,
                                        .z = b->z,
                                        .z_stride = TOKENS,
                                        .out = b->out,
                                        .out_stride = s->dim,
                                        .scratch = b->scratch};
    const struct qr_attend_value_codes value = {.codes = b->codes,
                                                .scales = b->scales,
                                                .dim = s->dim,
                                                .bits = s->bits,
                                                .group = s->group,
                                                .groups = (s->dim + s->group - 1) / s->group,
                                                .row_bytes = s->dim * s->bits / 8,
                                                .plain = plain};
    memset(b->out, 0, QR_ATTEND_ROWS * s->dim * sizeof(float));
    qr_attend_kernels()->value_codes(&part, &value, 0, TOKENS);
}

static void gives_the_same_bits_without_vnni(void **state)
{
    (void)state;
    if (!qr_attend_kernels()->value_codes)
        skip();
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        const size_t bytes = QR_ATTEND_ROWS * s->dim * sizeof(float);
        struct random r = {test_seed() + i};
        struct buffers b = make(s, &r);
        float *with = test_alloc(bytes);
        run(s, &b, false);
        memcpy(with, b.out, bytes);
        run(s, &b, true);
        if (memcmp(with, b.out, bytes) != 0 || with[0] == 0.0f)
            fail_msg("seed %llu: dim %u, %u bits, group %u, %u rows",
                     (unsigned long long)(test_seed() + i), s->dim, s->bits, s->group, s->rows);
        free(with);
        release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_same_bits_without_vnni),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
