/* SPDX-License-Identifier: Apache-2.0
 *
 * Every pair of FP16 values as minimum and maximum of a group: vector kernels
 * give the scalar scale, codes and values. Without arguments a random sample
 * (QUIRE_SEED repeats it); `test_chan_pairs all BITS [PART PARTS]` takes all
 * 2 x 10^9 pairs of one width, or one part of them.
 */
#include <time.h>

#include "proto/cpu.h"
#include "proto/quant.h"
#include "storage/codec/codec.h"
#include "tests/test.h"

#define DIM 128
#define GROUP 32
#define TOKENS 32
#define PAIRS DIM    /* of a tensor, either axis: 32 tokens x 4 groups, or 128 channels */
#define FINITE 63488 /* FP16 values, by order */

static uint64_t seed, random_state;
static uint16_t rows[TOKENS * DIM], values[2][TOKENS * DIM];
static _Alignas(64) uint8_t codes[2][TOKENS * DIM], scales[2][PAIRS * 4];
static const uint8_t no_raw[QR_PAGE_TOKENS_MAX / 8];

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

/** The finite FP16 value of rank 0 .. FINITE - 1: from -65504 over -0 and +0 to 65504. */
static uint16_t ranked(uint32_t rank)
{
    const uint32_t half = FINITE / 2;
    return (uint16_t)(rank < half ? 0x8000 | (half - 1 - rank) : rank - half);
}

/** Group `pair` of the tensor: both ends at random places, members between them elsewhere. */
static void fill_group(const struct qr_tensor *t, uint32_t pair, uint32_t low, uint32_t high)
{
    const bool channels = t->spec.axis == QR_AXIS_CHANNEL;
    const uint32_t at_low = random_below(GROUP);
    const uint32_t at_high = (at_low + 1 + random_below(GROUP - 1)) % GROUP;
    uint16_t *first = rows + (channels ? pair : pair / 4 * DIM + pair % 4 * GROUP);
    for (uint32_t i = 0; i < GROUP; i++) {
        const uint32_t rank = i == at_low    ? low
                              : i == at_high ? high
                                             : low + random_below(high - low + 1);
        first[channels ? i * DIM : i] = ranked(rank);
    }
}

static void run(const struct qr_tensor *t, enum qr_isa isa, int slot)
{
    const struct qr_codec_ops *ops = qr_codec(QR_CODEC_CHAN);
    const struct qr_rows in = {rows, DIM, DIM};
    const struct qr_expand to = {.token_count = TOKENS,
                                 .head_count = 1,
                                 .raw_bitmap = no_raw,
                                 .dtype = QR_F16,
                                 .dst = values[slot],
                                 .token_stride = DIM * 2,
                                 .head_stride = DIM * 2};
    (void)qr_isa_force(isa);
    ops->encode(t, &in, no_raw, codes[slot], scales[slot]);
    ops->expand(t, codes[slot], scales[slot], &to);
}

static int same(const struct qr_tensor *t)
{
    return memcmp(scales[0], scales[1], sizeof(scales[0])) == 0 &&
           memcmp(codes[0], codes[1], TOKENS * qr_spec_row_bytes(&t->spec, DIM)) == 0 &&
           memcmp(values[0], values[1], sizeof(values[0])) == 0;
}

/** Name of the first instruction set that differs from scalar, NULL when none does. */
static const char *differing(const struct qr_tensor *t)
{
    run(t, QR_ISA_SCALAR, 0);
    for (int isa = QR_ISA_AVX2; isa <= QR_ISA_AVX512 && qr_isa_force((enum qr_isa)isa); isa++) {
        run(t, (enum qr_isa)isa, 1);
        if (!same(t))
            return qr_isa_name((enum qr_isa)isa);
    }
    return NULL;
}

static struct qr_tensor tensor_of(uint32_t bits, uint32_t axis)
{
    return (struct qr_tensor){
        .spec = {QR_CODEC_CHAN, (uint8_t)bits, (uint8_t)axis, GROUP, 0, {0, 0}},
        .tokens = TOKENS,
        .heads = 1,
        .dim = DIM};
}

static void sample_agrees(void **state)
{
    static const uint32_t all_bits[] = {2, 3, 4, 8};
    (void)state;
    for (uint32_t i = 0; i < 2 * 4 * 100; i++) {
        const struct qr_tensor t = tensor_of(all_bits[i % 4], 1 + i / 4 % 2);
        for (uint32_t pair = 0; pair < PAIRS; pair++) {
            const uint32_t a = random_below(FINITE), near = random_below(64);
            const uint32_t far = random_below(FINITE);
            const uint32_t b = random_below(4) ? far : (a + near < FINITE ? a + near : a);
            fill_group(&t, pair, a < b ? a : b, a < b ? b : a);
        }
        const char *isa = differing(&t);
        if (isa)
            fail_msg("QUIRE_SEED=%llu: %s differs at %u bits, axis %u",
                     (unsigned long long)seed, isa, t.spec.bits, t.spec.axis);
    }
}

/** Both axes in turns; the last tensor of a row of pairs is filled up with repeats. */
static int all_pairs(uint32_t bits, uint32_t part, uint32_t parts)
{
    for (uint32_t low = part; low < FINITE; low += parts)
        for (uint32_t high = low; high < FINITE; high += PAIRS) {
            const struct qr_tensor t = tensor_of(bits, 1 + high / PAIRS % 2);
            for (uint32_t pair = 0; pair < PAIRS; pair++)
                fill_group(&t, pair, low, high + pair < FINITE ? high + pair : FINITE - 1);
            const char *isa = differing(&t);
            if (isa) {
                printf("%s differs: minimum %04x, maxima from %04x, %u bits, axis %u\n", isa,
                       ranked(low), ranked(high), bits, t.spec.axis);
                return 1;
            }
        }
    printf("%u bits, part %u of %u: all pairs agree\n", bits, part, parts);
    return 0;
}

int main(int argc, char **argv)
{
    const char *given = getenv("QUIRE_SEED");
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    random_state = seed;
    printf("QUIRE_SEED=%llu\n", (unsigned long long)seed);
    if (argc >= 3 && strcmp(argv[1], "all") == 0) {
        const uint32_t parts = argc >= 5 ? (uint32_t)strtoul(argv[4], NULL, 10) : 1;
        const uint32_t part = argc >= 5 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
        return all_pairs((uint32_t)strtoul(argv[2], NULL, 10), part, parts ? parts : 1);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(sample_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
