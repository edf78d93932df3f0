/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention on the codes beside its two alternatives, one core, same pages,
 * same queries, same run: expand a block and attend to it, and expand everything
 * to FP16 and attend to that. Prints ratios; docs of the figures: README.md.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "proto/cpu.h"
#include "proto/quant.h"
#include "storage/codec/attend_kernels.h"

#define PAGES 128u
#define TOKENS 128u
#define HEADS 8u
#define DIM 128u
#define GROUP 4u /* query heads of a KV head */
#define ROUNDS 9u
#define TABLE ((size_t)TOKENS * DIM) /* floats of a page's rotation */
#define SCALE 0.08838835f

struct setup {
    const char *name;
    uint8_t bits;
    enum qr_rope_stored stored;
    uint8_t *pages;
    struct qr_page_view views[PAGES];
    float *by_token, *by_channel; /* [PAGES][TOKENS * DIM] */
    float *q;                     /* [HEADS][GROUP][DIM] */
    uint64_t positions[GROUP];
    uint16_t *key, *value; /* FP16 [HEADS][PAGES * TOKENS][DIM] */
    void *scratch;
    struct qr_attend_acc acc; /* [HEADS * GROUP] */
    size_t page_bytes;
};

/** Huge pages where the system has them, as the host tier uses. */
static void *must_alloc(size_t bytes)
{
    const size_t huge = (size_t)2 << 20, align = bytes >= huge ? huge : 64;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!p) {
        fprintf(stderr, "out of memory for %zu bytes\n", bytes);
        exit(1);
    }
    if (bytes >= huge)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}

static float noise(void)
{
    static uint64_t state = 88172645463325252u;
    float sum = -2.0f;
    for (int i = 0; i < 4; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(state >> 40) * 0x1p-24f;
    }
    return sum * 1.7320508f;
}

/** Processor time of this thread: other work on the machine does not count. */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void make_page(struct setup *s, uint32_t page, const struct qr_policy *policy)
{
    const size_t n = (size_t)TOKENS * HEADS * DIM;
    uint16_t *x = must_alloc(2 * n * sizeof(*x));
    for (size_t i = 0; i < 2 * n; i++)
        x[i] = qr_f16_from_f32(noise());
    const struct qr_page_identity id = {
        .heads = HEADS,
        .key_dim = DIM,
        .value_dim = DIM,
        .rope_stored = (uint8_t)s->stored,
        .rope_layout = QR_ROPE_HALF,
        .page_tokens = TOKENS,
        .first_position = (uint64_t)page * TOKENS,
        .key = policy->key,
        .value = policy->value,
    };
    const struct qr_rows key = {x, HEADS * DIM, DIM}, value = {x + n, HEADS * DIM, DIM};
    const size_t most = qr_page_bytes_max(&id, policy);
    struct qr_error e = {0};
    if (!s->pages)
        s->pages = must_alloc(PAGES * most);
    uint8_t *to = s->pages + page * most;
    if (qr_page_encode(&id, policy, &key, &value, to, most, &s->page_bytes, &e) ||
        qr_page_open(to, s->page_bytes, &s->views[page], &e)) {
        fprintf(stderr, "page %u: %s\n", page, e.text);
        exit(1);
    }
    free(x);
}

static void make(struct setup *s)
{
    struct qr_policy policy;
    struct qr_rope rope = {.layout = QR_ROPE_HALF, .rotary_dim = DIM, .attention_factor = 1.0f};
    for (uint32_t i = 0; i < DIM / 2; i++)
        rope.inv_freq[i] = powf(500000.0f, -2.0f * (float)i / DIM);
    qr_policy_default(&policy);
    policy.key.bits = policy.value.bits = s->bits;
    s->by_token = must_alloc(PAGES * TABLE * sizeof(float));
    s->by_channel = must_alloc(PAGES * TABLE * sizeof(float));
    for (uint32_t p = 0; p < PAGES; p++) {
        make_page(s, p, &policy);
        qr_rotation_make(&rope, (uint64_t)p * TOKENS, TOKENS, s->by_token + p * TABLE);
        qr_attend_rotation_by_channel(s->by_token + p * TABLE, TOKENS, DIM,
                                      s->by_channel + p * TABLE);
    }
    s->q = must_alloc(HEADS * GROUP * DIM * sizeof(float));
    for (uint32_t i = 0; i < HEADS * GROUP * DIM; i++)
        s->q[i] = noise();
    for (uint32_t i = 0; i < GROUP; i++)
        s->positions[i] = PAGES * TOKENS;
    const size_t all = (size_t)HEADS * PAGES * TOKENS * DIM;
    s->key = must_alloc(all * sizeof(uint16_t));
    s->value = must_alloc(all * sizeof(uint16_t));
    s->scratch = must_alloc(qr_attend_scratch_bytes(TOKENS, DIM, DIM, GROUP));
    s->acc.out_stride = DIM;
    s->acc.max = must_alloc(HEADS * GROUP * sizeof(float));
    s->acc.sum = must_alloc(HEADS * GROUP * sizeof(float));
    s->acc.out = must_alloc(HEADS * GROUP * DIM * sizeof(float));
}

static void drop(struct setup *s)
{
    free(s->pages);
    free(s->by_token);
    free(s->by_channel);
    free(s->q);
    free(s->key);
    free(s->value);
    free(s->scratch);
    free(s->acc.max);
    free(s->acc.sum);
    free(s->acc.out);
}

static struct qr_attend_queries queries_of(const struct setup *s, uint32_t head)
{
    return (struct qr_attend_queries){
        .count = GROUP,
        .q = s->q + head * GROUP * DIM,
        .q_stride = DIM,
        .positions = s->positions,
        .scale = SCALE,
        .causal = true,
        .first = 0,
        .last = PAGES * TOKENS,
    };
}

static struct qr_attend_acc acc_of(const struct setup *s, uint32_t head)
{
    const uint32_t row = head * GROUP;
    return (struct qr_attend_acc){s->acc.max + row, s->acc.sum + row, s->acc.out + row * DIM,
                                  DIM};
}

static const float *rotation_of(const struct setup *s, uint32_t page)
{
    return s->stored == QR_ROPE_PRE ? s->by_token + page * TABLE : NULL;
}

static void on_codes(struct setup *s, uint32_t page, uint32_t head, uint32_t unused)
{
    (void)unused;
    struct qr_attend_queries q = queries_of(s, head);
    struct qr_attend_acc acc = acc_of(s, head);
    q.rotation_by_channel = s->by_channel + page * TABLE;
    qr_attend_page(&s->views[page], head, &q, rotation_of(s, page), DIM, &acc, s->scratch);
}

static void on_codes_by_token(struct setup *s, uint32_t page, uint32_t head, uint32_t unused)
{
    (void)unused;
    const struct qr_attend_queries q = queries_of(s, head);
    struct qr_attend_acc acc = acc_of(s, head);
    qr_attend_page(&s->views[page], head, &q, rotation_of(s, page), DIM, &acc, s->scratch);
}

static void expand(struct setup *s, uint32_t page, uint32_t head, struct qr_expand *to,
                   enum qr_which which)
{
    to->first_head = head;
    to->head_count = 1;
    to->rotation = which == QR_KEY ? rotation_of(s, page) : NULL;
    to->rotary_dim = DIM;
    to->rope_layout = QR_ROPE_HALF;
    to->token_stride = DIM * qr_dtype_bytes(to->dtype);
    qr_page_expand(&s->views[page], which, to);
}

/** Expand `block` tokens to FP32 in cache, attend with the FP32 kernels. */
struct block_source {
    struct qr_attend_source base;
    struct setup *s;
    uint32_t page, head, block;
};

static void block_scores(const struct qr_attend_source *source,
                         const struct qr_attend_part *part, uint32_t first, uint32_t last)
{
    const struct block_source *b = (const struct block_source *)source;
    static _Alignas(64) float rows[TOKENS * DIM];
    for (uint32_t at = first; at < last; at += b->block) {
        struct qr_expand to = {
            .first_token = at, .token_count = b->block, .dtype = QR_F32, .dst = rows};
        expand(b->s, b->page, b->head, &to, QR_KEY);
        qr_attend_kernels()->scores(part, at, b->block,
                                    &(struct qr_attend_block){rows, DIM, false});
    }
}

static void block_add(const struct qr_attend_source *source, const struct qr_attend_part *part,
                      uint32_t first, uint32_t last)
{
    const struct block_source *b = (const struct block_source *)source;
    static _Alignas(64) float rows[TOKENS * DIM];
    for (uint32_t at = first; at < last; at += b->block) {
        struct qr_expand to = {
            .first_token = at, .token_count = b->block, .dtype = QR_F32, .dst = rows};
        expand(b->s, b->page, b->head, &to, QR_VALUE);
        qr_attend_kernels()->add(part, at, b->block,
                                 &(struct qr_attend_block){rows, DIM, false});
    }
}

static void by_block(struct setup *s, uint32_t page, uint32_t head, uint32_t block)
{
    const struct qr_attend_queries q = queries_of(s, head);
    struct qr_attend_acc acc = acc_of(s, head);
    const struct block_source source = {
        {TOKENS, DIM, DIM, (uint64_t)page * TOKENS, block_scores, block_add},
        s,
        page,
        head,
        block};
    qr_attend_run(&source.base, &q, &acc, s->scratch);
}

/** The same through FP16 rows. */
static void by_block_f16(struct setup *s, uint32_t page, uint32_t head, uint32_t block)
{
    const struct qr_attend_queries q = queries_of(s, head);
    struct qr_attend_acc acc = acc_of(s, head);
    static _Alignas(64) uint16_t key[TOKENS * DIM], value[TOKENS * DIM];
    for (uint32_t at = 0; at < TOKENS; at += block) {
        struct qr_expand k = {
            .first_token = at, .token_count = block, .dtype = QR_F16, .dst = key};
        struct qr_expand v = {
            .first_token = at, .token_count = block, .dtype = QR_F16, .dst = value};
        expand(s, page, head, &k, QR_KEY);
        expand(s, page, head, &v, QR_VALUE);
        qr_attend_rows(key, DIM, DIM, value, DIM, DIM, block, (uint64_t)page * TOKENS + at, &q,
                       NULL, 0, QR_ROPE_HALF, &acc, s->scratch);
    }
}

static void expand_all(struct setup *s, uint32_t page, uint32_t head, uint32_t stream)
{
    const size_t at = ((size_t)head * PAGES + page) * TOKENS * DIM;
    struct qr_expand k = {
        .token_count = TOKENS, .dtype = QR_F16, .dst = s->key + at, .stream = stream};
    struct qr_expand v = {
        .token_count = TOKENS, .dtype = QR_F16, .dst = s->value + at, .stream = stream};
    expand(s, page, head, &k, QR_KEY);
    expand(s, page, head, &v, QR_VALUE);
}

static void attend_expanded(struct setup *s, uint32_t page, uint32_t head, uint32_t unused)
{
    (void)unused;
    const size_t at = ((size_t)head * PAGES + page) * TOKENS * DIM;
    const struct qr_attend_queries q = queries_of(s, head);
    struct qr_attend_acc acc = acc_of(s, head);
    qr_attend_rows(s->key + at, DIM, DIM, s->value + at, DIM, DIM, TOKENS,
                   (uint64_t)page * TOKENS, &q, NULL, 0, QR_ROPE_HALF, &acc, s->scratch);
}

typedef void (*step)(struct setup *, uint32_t page, uint32_t head, uint32_t argument);

static double pass(struct setup *s, step each, uint32_t argument)
{
    const double start = seconds();
    for (uint32_t p = 0; p < PAGES; p++)
        for (uint32_t h = 0; h < HEADS; h++)
            each(s, p, h, argument);
    return seconds() - start;
}

struct way {
    const char *name;
    step first, second; /* second: a pass of its own after the first; may be NULL */
    uint32_t argument;
    int role; /* 0 ours, 1 block-wise, 2 everything */
};

static const struct way ways[] = {
    {"on the codes", on_codes, NULL, 0, 0},
    {"on the codes, rotation by token", on_codes_by_token, NULL, 0, 3},
    {"block-wise, FP32, 32 tokens", by_block, NULL, 32, 1},
    {"block-wise, FP32, 128 tokens", by_block, NULL, 128, 1},
    {"block-wise, FP16, 32 tokens", by_block_f16, NULL, 32, 1},
    {"block-wise, FP16, 128 tokens", by_block_f16, NULL, 128, 1},
    {"everything, cached stores", expand_all, attend_expanded, 0, 2},
    {"everything, streamed stores", expand_all, attend_expanded, 1, 2},
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

static double run_way(struct setup *s, const struct way *w, float *out, float *lse)
{
    qr_attend_reset(&s->acc, HEADS * GROUP, DIM);
    double t = pass(s, w->first, w->argument);
    if (w->second)
        t += pass(s, w->second, w->argument);
    qr_attend_finish(&s->acc, HEADS * GROUP, DIM, out, DIM, lse);
    return t;
}

static float difference(const float *a, const float *b)
{
    float worst = 0.0f, top = 0.0f;
    for (uint32_t i = 0; i < HEADS * GROUP * DIM; i++) {
        worst = fmaxf(worst, fabsf(a[i] - b[i]));
        top = fmaxf(top, fabsf(b[i]));
    }
    return worst / top;
}

static void bench(struct setup *s)
{
    static float out[WAYS][HEADS * GROUP * DIM], lse[HEADS * GROUP];
    double best[WAYS], role[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    make(s);
    for (size_t w = 0; w < WAYS; w++)
        best[w] = INFINITY;
    for (uint32_t round = 0; round < ROUNDS; round++)
        for (size_t w = 0; w < WAYS; w++)
            best[w] = fmin(best[w], run_way(s, &ways[w], out[w], lse));
    printf("%s\n", s->name);
    for (size_t w = 0; w < WAYS; w++) {
        printf("  %-34s %6.1f M tokens/s  (differs %.1e)\n", ways[w].name,
               PAGES * TOKENS * HEADS / best[w] * 1e-6,
               (double)difference(out[w], out[WAYS - 1]));
        role[ways[w].role] = fmin(role[ways[w].role], best[w]);
    }
    printf("  ratio on the codes / best block-wise   %.2f\n", role[1] / role[0]);
    printf("  ratio on the codes / best everything   %.2f\n", role[2] / role[0]);
    drop(s);
}

int main(void)
{
    static struct setup setups[] = {
        {.name = "K4/V4, keys before RoPE", .bits = 4, .stored = QR_ROPE_PRE},
        {.name = "K4/V4, keys after RoPE", .bits = 4, .stored = QR_ROPE_POST},
        {.name = "K2/V2, keys before RoPE", .bits = 2, .stored = QR_ROPE_PRE},
        {.name = "K2/V2, keys after RoPE", .bits = 2, .stored = QR_ROPE_POST},
    };
    printf("attend, %s, one core, %u KV heads x %u query heads, d %u, %u tokens\n",
           qr_isa_name(qr_isa()), HEADS, GROUP, DIM, PAGES * TOKENS);
    printf("(a token counts once per KV head; best of %u; rotation tables made before)\n",
           ROUNDS);
    if (!qr_attend_kernels()->key_codes)
        printf("(no kernels on codes here: \"on the codes\" expands blocks, too)\n");
    for (size_t i = 0; i < sizeof(setups) / sizeof(setups[0]); i++)
        bench(&setups[i]);
    return 0;
}
