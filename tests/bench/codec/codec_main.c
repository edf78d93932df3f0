/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed of encode and expand, as ratios to memset and memcpy of the same run:
 * 8 heads, dim 128, pages of 128 tokens, groups of 32. One thread.
 * usage: codec [mib]   (size of the runs through memory, default 256)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "packings.h"
#include "proto/cpu.h"
#include "proto/quant.h"
#include "storage/codec/codec.h"

#define HEADS 8
#define DIM 128
#define TOKENS 128
#define PAGE_ELEMENTS (HEADS * DIM * TOKENS)
#define PAGE_FP16 (PAGE_ELEMENTS * 2u)
#define REPEATS 9
#define L2_BYTES (256u << 10) /* output of one page: codes, scales and it fit L2 */

static size_t pages;
static uint16_t *rows, *dst;
static uint8_t *codes, *scales, *other;
static float *rotation;
static const uint8_t no_raw[QR_PAGE_TOKENS_MAX / 8];
static struct qr_tensor tensor;

/** Time of this thread only: other work on the machine does not count, its cache misses do. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** Best GB/s of FP16 bytes over REPEATS runs of `work`, which handles `bytes` each time. */
static double measure(void (*work)(size_t page_count), size_t page_count, size_t inner)
{
    const int repeats = page_count > 1 ? REPEATS : REPEATS * 20;
    double best = 1e9;
    for (int i = 0; i < repeats; i++) {
        const double start = now();
        for (size_t k = 0; k < inner; k++)
            work(page_count);
        const double took = now() - start;
        best = took < best ? took : best;
    }
    return (double)(page_count * PAGE_FP16 * inner) / best * 1e-9;
}

static void do_memset(size_t n)
{
    memset(dst, 0x5a, n * PAGE_FP16); /* not zero: machines may shortcut zeros */
    __asm__ volatile("" ::"r"(dst) : "memory");
}

static void do_memcpy(size_t n)
{
    memcpy(dst, rows, n * PAGE_FP16);
    __asm__ volatile("" ::"r"(dst) : "memory");
}

static struct qr_expand target(size_t page, bool stream, const float *turn)
{
    return (struct qr_expand){.token_count = TOKENS,
                              .head_count = HEADS,
                              .raw_bitmap = no_raw,
                              .rotation = turn,
                              .rotary_dim = DIM,
                              .rope_layout = QR_ROPE_HALF,
                              .dtype = QR_F16,
                              .dst = dst + page * PAGE_ELEMENTS,
                              .token_stride = HEADS * DIM * 2,
                              .head_stride = DIM * 2,
                              .stream = stream};
}

static size_t codes_of_page(void)
{
    return qr_spec_codes_bytes(&tensor.spec, TOKENS, HEADS, DIM);
}

static size_t scales_of_page(void)
{
    return qr_spec_scales_bytes(&tensor.spec, TOKENS, HEADS, DIM);
}

static void expand_pages(size_t n, bool stream, const float *turn)
{
    const struct qr_codec_ops *ops = qr_codec(tensor.spec.codec);
    for (size_t page = 0; page < n; page++) {
        const struct qr_expand to = target(page, stream, turn);
        ops->expand(&tensor, codes + page * codes_of_page(), scales + page * scales_of_page(),
                    &to);
    }
}

static void do_expand(size_t n)
{
    expand_pages(n, n > 1, NULL);
}

static void do_expand_rope(size_t n)
{
    expand_pages(n, n > 1, rotation);
}

static void do_encode(size_t n)
{
    const struct qr_codec_ops *ops = qr_codec(tensor.spec.codec);
    for (size_t page = 0; page < n; page++) {
        const struct qr_rows in = {rows + page * PAGE_ELEMENTS, HEADS * DIM, DIM};
        ops->encode(&tensor, &in, no_raw, codes + page * codes_of_page(),
                    scales + page * scales_of_page());
    }
}

static void do_page_encode(size_t n)
{
    struct qr_policy policy;
    qr_policy_default(&policy);
    for (size_t page = 0; page + 1 < n + (n == 1); page += 2) {
        const struct qr_page_identity id = {.heads = HEADS,
                                            .key_dim = DIM,
                                            .value_dim = DIM,
                                            .page_tokens = TOKENS,
                                            .first_position = 1024,
                                            .key = policy.key,
                                            .value = policy.value};
        const struct qr_rows k = {rows + page * PAGE_ELEMENTS, HEADS * DIM, DIM};
        const struct qr_rows v = {rows + (page + 1) * PAGE_ELEMENTS, HEADS * DIM, DIM};
        size_t bytes;
        if (qr_page_encode(&id, &policy, &k, &v, other, qr_page_bytes_max(&id, &policy), &bytes,
                           NULL))
            abort();
    }
}

static struct qr_rope rope;

static void do_rotation(size_t n)
{
    for (size_t page = 0; page < n; page++)
        qr_rotation_make(&rope, page * TOKENS, TOKENS, rotation);
}

static void use(const char *name)
{
    const bool key = name[0] == 'K';
    tensor = (struct qr_tensor){.spec = {QR_CODEC_CHAN,
                                         (uint8_t)(name[1] - '0'),
                                         (uint8_t)(key ? QR_AXIS_CHANNEL : QR_AXIS_TOKEN),
                                         32,
                                         0,
                                         {0, 0}},
                                .tokens = TOKENS,
                                .heads = HEADS,
                                .dim = DIM};
}

static void report_isa(enum qr_isa isa)
{
    static const char *const names[] = {"K2", "V2", "K3", "V3", "K4", "V4", "K8", "V8"};
    if (!qr_isa_force(isa))
        return;
    const double set = measure(do_memset, pages, 1), copy = measure(do_memcpy, pages, 1);
    const double copy_l2 = measure(do_memcpy, 1, 50);
    printf("\n%s: memset %.1f GB/s, memcpy %.1f; in L2 memcpy %.1f\n", qr_isa_name(isa), set,
           copy, copy_l2);
    printf("      expand, through memory  |  with RoPE        |  in L2            |  encode    "
           "       |  encode in L2\n");
    printf("      GB/s     x memset       |  GB/s   x memset  |  GB/s   x memcpy  |  GB/s   x "
           "memcpy\n");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        use(names[i]);
        const double encode = measure(do_encode, pages, 1);
        const double encode_l2 = measure(do_encode, 1, 50);
        const double memory = measure(do_expand, pages, 1);
        const double turned = measure(do_expand_rope, pages, 1);
        const double cached = measure(do_expand, 1, 50);
        printf("%s  %6.1f    %5.2f          | %5.1f    %5.2f    | %5.1f    %5.2f    | %5.1f    "
               "%5.2f    | %5.1f\n",
               names[i], memory, memory / set, turned, turned / set, cached, cached / copy_l2,
               encode, encode / copy, encode_l2);
    }
    use("K4");
    const double turned = measure(do_expand_rope, 1, 50);
    const double page = measure(do_page_encode, pages, 1);
    const double table = measure(do_rotation, 1, 50);
    printf("K4 with RoPE in L2 %.1f GB/s, %.2f x memcpy; whole pages K4/V4 with digests and "
           "checksum "
           "%.1f GB/s, %.2f x memcpy; rotation table of a page %.1f us\n",
           turned, turned / copy_l2, page, page / copy, (double)PAGE_FP16 / table * 1e-3);
}

static const struct packing *packing;

static void do_packing(size_t n)
{
    static const float scale[DIM] = {0.5f}, minimum[DIM] = {-1.0f};
    const size_t row = DIM * packing->bits / 8;
    (void)n;
    for (size_t head = 0; head < HEADS; head++)
        for (size_t t = 0; t < TOKENS; t += 32)
            packing->expand(codes + (head * TOKENS + t) * row, scale, minimum,
                            dst + t * HEADS * DIM + head * DIM, HEADS * DIM);
}

static void report_packings(void)
{
    if (!qr_isa_force(QR_ISA_AVX512))
        return;
    printf("\npackings, codes to FP32 to FP16 in L2 (AVX-512)\n");
    for (size_t i = 0; i < packing_count; i++) {
        packing = &packings[i];
        printf("%u bits, %-26s %5.1f GB/s\n", packing->bits, packing->name,
               measure(do_packing, 1, 50));
    }
}

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(1u << 21, (bytes + (1u << 21) - 1) >> 21 << 21);
    if (!p)
        abort();
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

int main(int argc, char **argv)
{
    const size_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 256;
    pages = (mib << 20) / PAGE_FP16;
    if (pages < 2)
        return 2;
    rows = allocate(pages * PAGE_FP16);
    dst = allocate(pages * PAGE_FP16);
    codes = allocate(pages * PAGE_FP16 / 2);
    scales = allocate(pages * PAGE_FP16 / 4);
    other = allocate(4 * PAGE_FP16);
    rotation = allocate(TOKENS * DIM * sizeof(float));
    rope = (struct qr_rope){.layout = QR_ROPE_HALF, .rotary_dim = DIM, .attention_factor = 1};
    for (uint32_t i = 0; i < DIM / 2; i++)
        rope.inv_freq[i] = 1.0f / (float)(1 + i * i);
    uint32_t state = 1;
    for (size_t i = 0; i < pages * PAGE_ELEMENTS; i++) {
        state = state * 1664525u + 1013904223u;
        rows[i] = qr_f16_from_f32((float)((int)(state >> 16) - 32768) / 8192.0f);
    }
    do_rotation(1);
    printf("%zu MiB of FP16 through memory, %u KiB in L2; best of %d\n", mib, L2_BYTES >> 10,
           REPEATS);
    report_isa(QR_ISA_AVX512);
    report_isa(QR_ISA_AVX2);
    report_packings();
    return 0;
}
