/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding and expanding of every codec, as ratios to memcpy and memset of the same FP16 bytes
 * in the same run: 8 heads of 128 channels, pages of 128 tokens, FP16 out. Processor time of
 * the thread, best of several, so that other work on the machine counts little.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/cpu.h"
#include "proto/quant.h"
#include "proto/spec_text.h"
#include "storage/codec/codec.h"

#define TOKENS 128
#define HEADS 8
#define DIM 128
#define PAGES 64 /* 16 MiB of FP16: past the L2 cache */
#define PAGE_ELEMENTS ((size_t)TOKENS * HEADS * DIM)
#define ROUNDS 7

static uint16_t *rows, *out;
static uint8_t *codes, *scales;
static uint16_t levels[16];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct job {
    struct qr_tensor tensor;
    size_t codes_bytes, scales_bytes;
};

static void encode(const struct job *j)
{
    static const uint8_t raw[QR_PAGE_TOKENS_MAX / 8];
    for (size_t p = 0; p < PAGES; p++) {
        const struct qr_rows in = {rows + p * PAGE_ELEMENTS, (size_t)HEADS * DIM, DIM};
        qr_codec(j->tensor.spec.codec)
            ->encode(&j->tensor, &in, raw, codes + p * j->codes_bytes,
                     scales + p * j->scales_bytes);
    }
}

static void expand(const struct job *j)
{
    static const uint8_t raw[QR_PAGE_TOKENS_MAX / 8];
    for (size_t p = 0; p < PAGES; p++) {
        const struct qr_expand to = {.token_count = TOKENS,
                                     .head_count = HEADS,
                                     .raw_bitmap = raw,
                                     .dtype = QR_F16,
                                     .dst = out + p * PAGE_ELEMENTS,
                                     .token_stride = HEADS * DIM * 2,
                                     .head_stride = DIM * 2,
                                     .stream = true};
        qr_codec(j->tensor.spec.codec)
            ->expand(&j->tensor, codes + p * j->codes_bytes, scales + p * j->scales_bytes, &to);
    }
}

static void copy(const struct job *j)
{
    (void)j;
    memcpy(out, rows, PAGES * PAGE_ELEMENTS * sizeof(*rows));
}

static void set(const struct job *j)
{
    (void)j;
    memset(out, 1, PAGES * PAGE_ELEMENTS * sizeof(*rows));
}

static double best(void (*run)(const struct job *), const struct job *j)
{
    double least = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = now();
        run(j);
        const double took = now() - start;
        least = took < least ? took : least;
    }
    return least;
}

static void measure(const char *text, bool key)
{
    struct job j = {.tensor = {.tokens = TOKENS, .heads = HEADS, .dim = DIM, .levels = levels}};
    struct qr_error e;
    if (qr_spec_parse(text, key, &j.tensor.spec, &e)) {
        printf("%s: %s\n", text, e.text);
        exit(1);
    }
    const struct qr_codec_spec *s = &j.tensor.spec;
    for (uint32_t i = 0; i < 1u << (s->bits & 7u) && i < 16; i++)
        levels[i] = qr_f16_from_f32(2.0f * (float)i / (float)((1u << s->bits) - 1u) - 1.0f);
    j.codes_bytes = qr_spec_codes_bytes(s, TOKENS, HEADS, DIM);
    j.scales_bytes = (qr_spec_scales_bytes(s, TOKENS, HEADS, DIM) + 63) / 64 * 64;
    const double bits = (double)(j.codes_bytes + qr_spec_scales_bytes(s, TOKENS, HEADS, DIM)) *
                        8 / (double)PAGE_ELEMENTS;
    const double encoded = best(encode, &j), copied = best(copy, &j);
    const double expanded = best(expand, &j), filled = best(set, &j);
    printf("%-44s %6.3f %10.3f %10.3f\n", text, bits, copied / encoded, filled / expanded);
}

int main(void)
{
    static const char *const texts[] = {"chan",
                                        "chan:axis=token",
                                        "chan:hybrid",
                                        "chan:axis=token,center",
                                        "chan:axis=token,center,normalize",
                                        "fp8",
                                        "fp8:axis=head",
                                        "rot",
                                        "rot:clip=0.95",
                                        "rot:heads4",
                                        "rot:bits=2",
                                        "lm:bits=2",
                                        "lm:bits=4",
                                        "lm:bits=4,center",
                                        "nuq",
                                        "nuq:bits=2",
                                        "nuq:axis=token",
                                        "nuq:outliers=0"};
    const size_t elements = PAGES * PAGE_ELEMENTS;
    rows = aligned_alloc(64, elements * 2);
    out = aligned_alloc(64, elements * 2);
    codes = aligned_alloc(64, elements * 2);
    scales = aligned_alloc(64, elements * 2);
    if (!rows || !out || !codes || !scales)
        return 1;
    uint32_t seed = 1;
    for (size_t i = 0; i < elements; i++) {
        float sum = 0;
        for (int k = 0; k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (float)(seed >> 8) / 16777216.0f - 0.5f;
        }
        rows[i] = qr_f16_from_f32(sum + (i % DIM == 5 ? 4.0f : 0.0f));
    }
    memset(codes, 0, elements * 2);
    memset(scales, 0, elements * 2);
    printf("%s, %d heads of %d, pages of %d, %zu MiB of FP16; processor time, best of %d\n\n",
           qr_isa_name(qr_isa()), HEADS, DIM, TOKENS, elements * 2 >> 20, ROUNDS);
    printf("%-44s %6s %10s %10s\n", "codec (of keys)", "bits", "encode", "expand");
    printf("%-44s %6s %10s %10s\n", "", "", "x memcpy", "x memset");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        measure(texts[i], true);
    return 0;
}
