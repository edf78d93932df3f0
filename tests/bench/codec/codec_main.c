/* SPDX-License-Identifier: Apache-2.0
 *
 * Speed of encode and expand, as ratios to memset and memcpy of the same run:
 * 1,024 channels of heads of one dim, pages of 128 tokens, groups of 32. One thread.
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
#include "storage/codec/receipt.h"

#define CHANNELS 1024 /* heads x dim */
#define PACKING_DIM 128
#define TOKENS 128
#define PAGE_ELEMENTS (CHANNELS * TOKENS)
#define PAGE_FP16 (PAGE_ELEMENTS * 2u)
#define REPEATS 9
#define CACHE_REPEATS 3000
#define L2_BYTES (256u << 10) /* output of one page: codes, scales and it fit L2 */

static size_t pages;
static uint16_t *rows, *dst;
static uint8_t *codes, *scales, *other;
static float *rotation;
static const uint8_t no_raw[QR_PAGE_TOKENS_MAX / 8];
static struct qr_tensor tensor;
static enum qr_rope_layout layout = QR_ROPE_HALF;
static uint32_t rotary_percent = 100;

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** FP16 bytes of a page: not all channels belong to a head when dim does not divide them. */
static double page_bytes(void)
{
    return 2.0 * TOKENS * tensor.heads * tensor.dim;
}

/** Best GB/s of FP16 bytes over REPEATS runs of `work` through all pages. Time of this thread
 * only: other work on the machine does not count, its cache misses do. */
static double through_memory(void (*work)(size_t page_count))
{
    double best = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        const double start = seconds(CLOCK_THREAD_CPUTIME_ID);
        work(pages);
        const double took = seconds(CLOCK_THREAD_CPUTIME_ID) - start;
        best = took < best ? took : best;
    }
    return (double)pages * page_bytes() / best * 1e-9;
}

/** The same for one page that stays in L2. Wall time of moments too short to be interrupted:
 * where a hypervisor steals time, that of threads is wrong by as much as they last. */
static double in_cache(void (*work)(size_t page_count))
{
    double best = 1e9;
    for (int i = 0; i < CACHE_REPEATS; i++) {
        const double start = seconds(CLOCK_MONOTONIC);
        work(1);
        work(1);
        const double took = seconds(CLOCK_MONOTONIC) - start;
        best = took < best ? took : best;
    }
    return 2.0 * page_bytes() / best * 1e-9;
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
                              .head_count = tensor.heads,
                              .raw_bitmap = no_raw,
                              .rotation = turn,
                              .rotary_dim = tensor.dim * rotary_percent / 100,
                              .rope_layout = layout,
                              .dtype = QR_F16,
                              .dst = dst + page * PAGE_ELEMENTS,
                              .token_stride = CHANNELS * 2,
                              .head_stride = tensor.dim * 2,
                              .stream = stream};
}

static size_t codes_of_page(void)
{
    return qr_spec_codes_bytes(&tensor.spec, TOKENS, tensor.heads, tensor.dim);
}

static size_t scales_of_page(void)
{
    return qr_spec_scales_bytes(&tensor.spec, TOKENS, tensor.heads, tensor.dim);
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
        const struct qr_rows in = {rows + page * PAGE_ELEMENTS, CHANNELS, tensor.dim};
        ops->encode(&tensor, &in, no_raw, codes + page * codes_of_page(),
                    scales + page * scales_of_page());
    }
}

static void do_page_encode(size_t n)
{
    struct qr_policy policy;
    qr_policy_default(&policy);
    for (size_t page = 0; page + 1 < n + (n == 1); page += 2) {
        const struct qr_page_identity id = {.heads = (uint16_t)tensor.heads,
                                            .key_dim = (uint16_t)tensor.dim,
                                            .value_dim = (uint16_t)tensor.dim,
                                            .page_tokens = TOKENS,
                                            .first_position = 1024,
                                            .key = policy.key,
                                            .value = policy.value};
        const struct qr_rows k = {rows + page * PAGE_ELEMENTS, CHANNELS, tensor.dim};
        const struct qr_rows v = {rows + (page + 1) * PAGE_ELEMENTS, CHANNELS, tensor.dim};
        size_t bytes;
        if (qr_page_encode(&id, &policy, &k, &v, other, qr_page_bytes_max(&id, &policy), &bytes,
                           NULL))
            abort();
    }
}

static uint32_t receipts_every; /* of do_page_receipts */

/** do_page_encode with one page in `receipts_every` measured. */
static void do_page_receipts(size_t n)
{
    static _Alignas(64) uint8_t scratch[4u << 20];
    struct qr_policy policy;
    qr_policy_default(&policy);
    for (size_t page = 0; page + 1 < n + (n == 1); page += 2) {
        const struct qr_page_identity id = {.heads = (uint16_t)tensor.heads,
                                            .key_dim = (uint16_t)tensor.dim,
                                            .value_dim = (uint16_t)tensor.dim,
                                            .page_tokens = TOKENS,
                                            .first_position = page / 2 * TOKENS,
                                            .key = policy.key,
                                            .value = policy.value};
        const struct qr_rows k = {rows + page * PAGE_ELEMENTS, CHANNELS, tensor.dim};
        const struct qr_rows v = {rows + (page + 1) * PAGE_ELEMENTS, CHANNELS, tensor.dim};
        size_t bytes;
        if (qr_page_encode(&id, &policy, &k, &v, other, qr_page_bytes_max(&id, &policy), &bytes,
                           NULL) ||
            qr_receipt_scratch_bytes(&id) > sizeof(scratch) ||
            (qr_receipt_due(&id, receipts_every) &&
             qr_receipt_measure(other, bytes, &k, &v, scratch, NULL)))
            abort();
    }
}

static struct qr_rope rope;

static void do_rotation(size_t n)
{
    for (size_t page = 0; page < n; page++)
        qr_rotation_make(&rope, page * TOKENS, TOKENS, rotation);
}

static void use(const char *name, uint32_t dim)
{
    const bool key = name[0] == 'K';
    tensor = (struct qr_tensor){.spec = {QR_CODEC_CHAN,
                                         (uint8_t)(name[1] - '0'),
                                         (uint8_t)(key ? QR_AXIS_CHANNEL : QR_AXIS_TOKEN),
                                         32,
                                         0,
                                         {0, 0}},
                                .tokens = TOKENS,
                                .heads = CHANNELS / dim,
                                .dim = dim};
}

/** What results are compared with, measured in the same run. */
static struct {
    double set, copy, copy_cached;
} reference;

static void report_tensor(const char *name, uint32_t dim)
{
    use(name, dim);
    const double encode = through_memory(do_encode), encode_cached = in_cache(do_encode);
    const double memory = through_memory(do_expand), cached = in_cache(do_expand);
    printf("%s %3u  %6.1f %6.2f  | ", name, dim, memory, memory / reference.set);
    if (name[0] == 'K') {
        const double turned = through_memory(do_expand_rope);
        const double turned_cached = in_cache(do_expand_rope);
        printf("%5.1f %6.2f %6.2f  | ", turned, turned / reference.set,
               turned_cached / reference.copy_cached);
    } else {
        printf("%21s | ", "");
    }
    printf("%5.1f %6.2f  | %5.1f %6.2f  | %5.1f %6.2f\n", cached,
           cached / reference.copy_cached, encode, encode / reference.copy, encode_cached,
           encode_cached / reference.copy_cached);
}

/** Rotations other than the half layout of whole rows. */
static void report_rotations(void)
{
    static const struct {
        const char *name;
        uint32_t dim;
        enum qr_rope_layout layout;
        uint32_t percent;
    } kinds[] = {{"interleaved", 128, QR_ROPE_INTERLEAVED, 100},
                 {"half, half of the row", 128, QR_ROPE_HALF, 50},
                 {"half, half of the row", 64, QR_ROPE_HALF, 50},
                 {"half, quarter of the row", 80, QR_ROPE_HALF, 25}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        use("K4", kinds[i].dim);
        layout = kinds[i].layout;
        rotary_percent = kinds[i].percent;
        const double turned = through_memory(do_expand_rope);
        const double cached = in_cache(do_expand_rope);
        printf("K4 %3u  RoPE %-25s %5.1f GB/s, %.2f x memset; in L2 %.2f x memcpy\n",
               kinds[i].dim, kinds[i].name, turned, turned / reference.set,
               cached / reference.copy_cached);
    }
    layout = QR_ROPE_HALF;
    rotary_percent = 100;
}

static void report_pages(uint32_t dim)
{
    use("K4", dim);
    const double page = through_memory(do_page_encode);
    printf("K4/V4 %3u  whole pages with digests and checksum: %.1f GB/s, %.2f x memcpy\n", dim,
           page, page / reference.copy);
    receipts_every = 8;
    const double sampled = through_memory(do_page_receipts);
    receipts_every = 1;
    const double all = through_memory(do_page_receipts);
    printf("K4/V4 %3u  the same with receipts, one page in 8: %.2f x the time; all: %.2f x\n",
           dim, page / sampled, page / all);
}

static void report_isa(enum qr_isa isa)
{
    static const char *const names[] = {"K2", "V2", "K3", "V3", "K4", "V4", "K8", "V8"};
    if (!qr_isa_force(isa))
        return;
    use("K4", 128);
    reference.set = through_memory(do_memset);
    reference.copy = through_memory(do_memcpy);
    reference.copy_cached = in_cache(do_memcpy);
    printf("\n%s: memset %.1f GB/s, memcpy %.1f; in L2 memcpy %.1f\n", qr_isa_name(isa),
           reference.set, reference.copy, reference.copy_cached);
    printf("        expand           with RoPE               expand in L2    encode          "
           "encode in L2\n"
           "          GB/s x memset   GB/s x memset x memcpy   GB/s x memcpy   GB/s x memcpy   "
           "GB/s x memcpy\n");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        report_tensor(names[i], 128);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i][1] == '2' || names[i][1] == '4')
            report_tensor(names[i], 64);
    report_tensor("K4", 80);
    report_tensor("V4", 80);
    report_tensor("K4", 96);
    report_tensor("V4", 96);
    report_rotations();
    report_pages(128);
    report_pages(64);
    printf("rotation table of a page, dim 128: %.1f us\n",
           page_bytes() / in_cache(do_rotation) * 1e-3);
}

static const struct packing *packing;

static void do_packing(size_t n)
{
    static const float scale[PACKING_DIM] = {0.5f}, minimum[PACKING_DIM] = {-1.0f};
    const size_t row = PACKING_DIM * packing->bits / 8;
    (void)n;
    for (size_t head = 0; head < CHANNELS / PACKING_DIM; head++)
        for (size_t t = 0; t < TOKENS; t += 32)
            packing->expand(codes + (head * TOKENS + t) * row, scale, minimum,
                            dst + t * CHANNELS + head * PACKING_DIM, CHANNELS);
}

static void report_packings(void)
{
    if (!qr_isa_force(QR_ISA_AVX512))
        return;
    printf("\npackings, codes to FP32 to FP16 in L2 (AVX-512)\n");
    for (size_t i = 0; i < packing_count; i++) {
        packing = &packings[i];
        printf("%u bits, %-26s %5.1f GB/s\n", packing->bits, packing->name,
               in_cache(do_packing));
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
    rotation = allocate(TOKENS * CHANNELS * sizeof(float));
    rope = (struct qr_rope){
        .layout = QR_ROPE_HALF, .rotary_dim = PACKING_DIM, .attention_factor = 1};
    for (uint32_t i = 0; i < PACKING_DIM / 2; i++)
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
    use("K4", PACKING_DIM);
    report_packings();
    return 0;
}
