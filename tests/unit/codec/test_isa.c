/* SPDX-License-Identifier: Apache-2.0
 *
 * Every instruction set gives the bytes of the scalar reference, for random
 * shapes, contents, ranges, strides and output types. QUIRE_SEED repeats a run.
 */
#include <time.h>

#include "proto/cpu.h"
#include "proto/quant.h"
#include "storage/codec/codec.h"
#include "storage/codec/kernels.h"
#include "tests/test.h"

#define ROUNDS 500
#define ELEMENTS (128 * 3 * 1024) /* most of a tensor here */
#define GUARD 64

static uint64_t seed, random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

static uint32_t pick(const uint32_t *of, uint32_t n)
{
    return of[random_below(n)];
}

/** A finite FP16 value of one of several kinds: what real groups and nasty ones look like. */
static uint16_t random_f16(uint32_t kind)
{
    const uint32_t r = random_below(65536);
    switch (kind) {
    case 0: /* anything finite */
        return (uint16_t)((r & 0x7fff) < 0x7c00 ? r : r & 0x83ff);
    case 1: /* around 1 */
        return qr_f16_from_f32((float)((int)r - 32768) / 16384.0f);
    case 2: /* zeros of both signs, and few others */
        return (uint16_t)(r % 16 ? (r & 1) << 15 : (uint16_t)(r >> 4 & 0x3ff));
    case 3: /* subnormals */
        return (uint16_t)(r & 0x83ff);
    case 4: /* ties of coarse codes */
        return qr_f16_from_f32((float)(r % 31) * 0.5f);
    default: /* the ends of the range */
        return (uint16_t)(0x7bff - r % 4 + ((r & 0x8000) ? 0x8000 : 0));
    }
}

struct job {
    struct qr_tensor tensor;
    struct qr_rows in;
    struct qr_expand to;
    uint8_t bitmap[QR_PAGE_TOKENS_MAX / 8];
    size_t codes_bytes, scales_bytes, dst_bytes;
};

static uint16_t input[ELEMENTS], raw_rows[ELEMENTS];
static _Alignas(64) float rotation[128 * 1024];
static _Alignas(64) uint8_t codes[2][ELEMENTS * 2 + GUARD], scales[2][ELEMENTS * 2 + GUARD];
static _Alignas(64) uint8_t dst[2][ELEMENTS * 4 + 4 * GUARD];

static uint16_t levels[16];

static void fill(const struct job *j)
{
    const uint32_t dim = j->tensor.dim;
    const bool zeros = random_below(2); /* groups with a minimum of -0 leave the fast paths */
    for (size_t i = 0; i < (size_t)j->tensor.tokens * j->tensor.heads; i++)
        for (uint32_t c = 0; c < dim;) {
            const uint32_t drawn = random_below(6), kind = drawn == 2 && !zeros ? 1 : drawn;
            const uint32_t run = 8 * (1 + random_below(4));
            for (uint32_t end = c + run < dim ? c + run : dim; c < end; c++) {
                input[i * dim + c] = random_f16(kind);
                raw_rows[i * dim + c] = random_f16(0);
            }
        }
}

static uint32_t some_of(uint32_t flags)
{
    return random_below(2) ? 0 : random_below(32) & flags;
}

static void random_spec(struct qr_codec_spec *s)
{
    static const uint32_t bits[] = {2, 3, 4, 8}, groups[] = {16, 32, 64, 128};
    const uint32_t common = QR_SPEC_CENTER | QR_SPEC_NORMALIZE;
    uint32_t *flags = &s->param[QR_PARAM_FLAGS], *number = &s->param[QR_PARAM_NUMBER];
    *s = (struct qr_codec_spec){.codec = (uint16_t)(1 + random_below(6)),
                                .bits = (uint8_t)pick(bits, 4),
                                .axis = QR_AXIS_TOKEN,
                                .group = (uint16_t)pick(groups, 4)};
    switch (s->codec) {
    case QR_CODEC_RAW:
        *s = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
        break;
    case QR_CODEC_FP8:
        s->bits = 8;
        s->group = 0;
        s->axis = (uint8_t)(2 + random_below(2));
        *number = random_below(2);
        *flags = some_of(common);
        break;
    case QR_CODEC_ROT:
        *number = random_below(2) ? 0 : QR_CLIP_MIN + random_below(500);
        *flags = some_of(common | QR_SPEC_HEADS4 | QR_SPEC_REORDER);
        break;
    case QR_CODEC_LM:
        s->bits = (uint8_t)pick(bits, 3);
        s->group = 0;
        *number = random_below(1000);
        *flags = some_of(common);
        break;
    case QR_CODEC_NUQ:
        s->bits = (uint8_t)pick(bits, 3);
        s->axis = (uint8_t)(1 + random_below(2));
        *number = random_below(2) ? random_below(QR_OUTLIER_RATE_MAX + 1) : random_below(200);
        *flags = some_of(common);
        break;
    default:
        s->axis = (uint8_t)(1 + random_below(2));
        *flags = some_of(common | QR_SPEC_HYBRID);
        break;
    }
    assert_ok(qr_spec_check(s, "random", NULL));
}

/** Ascending, -1 to 1, at least 1/32 apart in the mean. */
static void random_levels(uint32_t bits)
{
    float at = -1.0f;
    for (uint32_t i = 0; i < 1u << bits; i++) {
        levels[i] = qr_f16_from_f32(at);
        at += (float)(1 + random_below(1000)) / 500.0f / (float)(1u << bits);
    }
}

static void random_tensor(struct job *j)
{
    static const uint32_t dims[] = {16, 24, 64, 72, 80, 96, 128, 128, 128, 256, 512, 576};
    random_spec(&j->tensor.spec);
    j->tensor.dim = random_below(3) ? pick(dims, 12) : 16 + 8 * random_below(127);
    j->tensor.heads = 1 + random_below(3);
    j->tensor.tokens = 128;
    j->tensor.levels = NULL;
    if (j->tensor.spec.codec == QR_CODEC_NUQ) {
        random_levels(j->tensor.spec.bits);
        j->tensor.levels = levels;
        j->tensor.dim = j->tensor.dim > 512 ? 512 : j->tensor.dim;
    }
    j->in = (struct qr_rows){input, (size_t)j->tensor.heads * j->tensor.dim, j->tensor.dim};
    const uint32_t raw_every = random_below(4); /* 0: none, 1: all, else some */
    for (uint32_t t = 0; t < 128; t++)
        if (raw_every && random_below(raw_every * raw_every * raw_every) == 0)
            j->bitmap[t / 8] = (uint8_t)(j->bitmap[t / 8] | 1u << t % 8);
}

static void random_target(struct job *j)
{
    struct qr_expand *to = &j->to;
    const struct qr_tensor *t = &j->tensor;
    to->first_token = random_below(2) ? 0 : random_below(t->tokens);
    to->token_count = random_below(2) ? t->tokens - to->first_token
                                      : 1 + random_below(t->tokens - to->first_token);
    to->first_head = random_below(t->heads);
    to->head_count = t->heads - to->first_head;
    to->raw_bitmap = j->bitmap;
    to->raw_rows = raw_rows;
    to->dtype = (enum qr_dtype)(1 + random_below(3));
    to->stream = random_below(2);
    to->rope_layout = (enum qr_rope_layout)(1 + random_below(2));
    const uint32_t rotary[] = {t->dim, t->dim / 2, 2 * (1 + random_below(t->dim / 2))};
    to->rotary_dim = pick(rotary, 3);
    to->rotation = random_below(2) ? rotation : NULL;
    const size_t row = t->dim * qr_dtype_bytes(to->dtype);
    if (random_below(2)) { /* token-major */
        to->head_stride = row;
        to->token_stride = row * to->head_count;
    } else {
        to->token_stride = row;
        to->head_stride = row * to->token_count;
    }
    j->dst_bytes = row * to->head_count * to->token_count;
}

static void random_job(struct job *j)
{
    memset(j, 0, sizeof(*j));
    random_tensor(j);
    fill(j);
    random_target(j);
    j->codes_bytes = qr_spec_codes_bytes(&j->tensor.spec, 128, j->tensor.heads, j->tensor.dim);
    j->scales_bytes =
        qr_spec_scales_bytes(&j->tensor.spec, 128, j->tensor.heads, j->tensor.dim);
    for (uint32_t i = 0; i < 128 * j->to.rotary_dim; i++)
        rotation[i] = (float)((int)random_below(65536) - 32768) / 32768.0f;
}

static void run(struct job *j, enum qr_isa isa, int slot, size_t offset)
{
    const struct qr_codec_ops *ops = qr_codec(j->tensor.spec.codec);
    assert_true(qr_isa_force(isa));
    memset(codes[slot], 0xa5, j->codes_bytes + GUARD);
    memset(scales[slot], 0xa5, j->scales_bytes + GUARD);
    memset(dst[slot], 0xa5, j->dst_bytes + 4 * GUARD);
    ops->encode(&j->tensor, &j->in, j->bitmap, codes[slot], scales[slot]);
    j->to.dst = dst[slot] + offset;
    ops->expand(&j->tensor, codes[slot], scales[slot], &j->to);
}

static void compare(const struct job *j, enum qr_isa isa)
{
    const struct qr_codec_spec *s = &j->tensor.spec;
    const int bad = memcmp(codes[0], codes[1], j->codes_bytes + GUARD)      ? 1
                    : memcmp(scales[0], scales[1], j->scales_bytes + GUARD) ? 2
                    : memcmp(dst[0], dst[1], j->dst_bytes + 4 * GUARD)      ? 3
                                                                            : 0;
    if (bad)
        fail_msg("QUIRE_SEED=%llu: %s differ on %s: codec %u bits %u axis %u group %u dim %u "
                 "flags %u number %u heads %u, tokens %u+%u, dtype %d, rotary %u layout %d %s, "
                 "stream %d",
                 (unsigned long long)seed,
                 bad == 1   ? "codes"
                 : bad == 2 ? "scales"
                            : "values",
                 qr_isa_name(isa), s->codec, s->bits, s->axis, s->group, j->tensor.dim,
                 s->param[0], s->param[1], j->tensor.heads, j->to.first_token,
                 j->to.token_count, (int)j->to.dtype, j->to.rotary_dim, (int)j->to.rope_layout,
                 j->to.rotation ? "on" : "off", j->to.stream);
}

static void every_isa_gives_the_scalar_bytes(void **state)
{
    static struct job j;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        random_job(&j);
        const size_t offset = random_below(2) ? 0 : 4u * random_below(16);
        run(&j, QR_ISA_SCALAR, 0, offset);
        for (int isa = QR_ISA_AVX2; isa <= QR_ISA_AVX512 && qr_isa_force((enum qr_isa)isa);
             isa++) {
            run(&j, (enum qr_isa)isa, 1, offset);
            compare(&j, (enum qr_isa)isa);
        }
    }
}

static void conversion_agrees_and_names_the_first_bad_value(void **state)
{
    static uint16_t out[2][64 * 1024];
    static const uint32_t bad_f32[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x477ff000,
                                       0xc7800000};
    (void)state;
    for (int round = 0; round < 200; round++) {
        const uint32_t dim = 16 + 8 * random_below(127), bad = random_below(5);
        const enum qr_dtype dtype = (enum qr_dtype)(1 + random_below(3));
        static uint8_t src[64 * 1024 * 4];
        uint32_t at = random_below(2) ? random_below(8 * dim) : 8 * dim;
        for (uint32_t i = 0; i < 8 * dim; i++) {
            const uint16_t h = random_f16(1 + 2 * random_below(2));
            float x = i == at ? qr_f32_from_bits(bad_f32[bad]) : qr_f16_to_f32(h) * 0.999f;
            const uint16_t half =
                dtype == QR_F16 ? (i == at ? 0x7c00 : h) : qr_bf16_from_f32(x);
            if (dtype == QR_F32)
                memcpy(src + 4 * i, &x, 4);
            else
                memcpy(src + 2 * i, &half, 2);
        }
        const size_t row = dim * qr_dtype_bytes(dtype);
        for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512 && qr_isa_force((enum qr_isa)isa);
             isa++) {
            struct qr_error e = {0};
            uint16_t *to = out[isa != QR_ISA_SCALAR];
            const quire_status status =
                qr_rows_convert(src, dtype, 4 * row, row, 2, 4, dim, to, 4 * dim, dim, &e);
            if (at < 8 * dim) {
                assert_int_equal(status, QUIRE_EVALUE);
                assert_int_equal(e.position, at / dim / 4);
                assert_int_equal(e.head, at / dim % 4);
                assert_int_equal(e.channel, at % dim);
            } else {
                assert_int_equal(status, 0);
                assert_memory_equal(out[0], to, 8 * dim * 2);
            }
        }
    }
}

static void sums_of_squares_have_the_scalar_bits(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const uint32_t dim = 16 + 8 * random_below(127), rows = 1 + random_below(9);
        const uint32_t stride = dim + 8 * random_below(3), kind = random_below(6);
        for (uint32_t i = 0; i < rows * stride; i++)
            input[i] = random_f16(kind);
        assert_true(qr_isa_force(QR_ISA_SCALAR));
        const float expected = qr_row_kernels()->squares(input, stride, rows, dim);
        for (int isa = QR_ISA_AVX2; isa <= QR_ISA_AVX512 && qr_isa_force((enum qr_isa)isa);
             isa++) {
            const float sum = qr_row_kernels()->squares(input, stride, rows, dim);
            if (qr_f32_bits(sum) != qr_f32_bits(expected))
                fail_msg("QUIRE_SEED=%llu: %s sums %u rows of %u to %a, scalar to %a",
                         (unsigned long long)seed, qr_isa_name((enum qr_isa)isa), rows, dim,
                         (double)sum, (double)expected);
        }
    }
}

int main(void)
{
    const char *given = getenv("QUIRE_SEED");
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    random_state = seed;
    printf("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_gives_the_scalar_bytes),
        cmocka_unit_test(conversion_agrees_and_names_the_first_bad_value),
        cmocka_unit_test(sums_of_squares_have_the_scalar_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
