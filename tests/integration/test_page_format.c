/* SPDX-License-Identifier: Apache-2.0
 *
 * A page is what proto/README.md says: a decoder written from that page in another language
 * (page_format/decode) reads the values that the codecs expand, bit for bit.
 */
#include "tests/test.h"

#include <unistd.h>

#include "proto/quant.h"
#include "proto/spec_text.h"
#include "storage/codec/codec.h"

#define TOKENS 32
#define HEADS 2
#define KEY_DIM 40
#define VALUE_DIM 24
#define KEY_ELEMENTS (TOKENS * HEADS * KEY_DIM)
#define VALUE_ELEMENTS (TOKENS * HEADS * VALUE_DIM)

/* FP16 numbers of magnitude 1/16 to 8, either sign. */
static void random_rows(uint16_t *rows, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        const uint32_t exponent = 11 + (seed >> 20) % 7;
        rows[i] = (uint16_t)((seed >> 16 & 0x8000u) | exponent << 10 | (seed >> 8 & 0x3ffu));
    }
}

/* Uneven levels of up to 4 bits, others for keys than for values. */
static const uint16_t *make_levels(uint32_t bits, int which)
{
    static uint16_t levels[2][16];
    const double count = 1u << (bits < 4 ? bits : 4);
    for (uint32_t i = 0; i < count; i++) {
        const double z = 2 * i / (count - 1) - 1;
        levels[which][i] =
            qr_f16_from_f32((float)(which ? z * fabs(z) : z * (0.5 + z * z / 2)));
    }
    return levels[which];
}

static void *encode(const struct qr_codec_spec *key, const struct qr_codec_spec *value,
                    size_t *bytes)
{
    static uint16_t k[KEY_ELEMENTS], v[VALUE_ELEMENTS];
    const struct qr_page_identity id = {.layer = 1,
                                        .heads = HEADS,
                                        .key_dim = KEY_DIM,
                                        .value_dim = VALUE_DIM,
                                        .rope_stored = QR_ROPE_PRE,
                                        .rope_layout = QR_ROPE_HALF,
                                        .page_tokens = TOKENS,
                                        .key = *key,
                                        .value = *value,
                                        .key_levels = make_levels(key->bits, 0),
                                        .value_levels = make_levels(value->bits, 1)};
    const struct qr_policy policy = {
        .page_tokens = TOKENS, .sink_rows = 2, .outlier_rows = 4, .key = *key, .value = *value};
    const struct qr_rows key_rows = {k, HEADS * KEY_DIM, KEY_DIM};
    const struct qr_rows value_rows = {v, HEADS * VALUE_DIM, VALUE_DIM};
    random_rows(k, KEY_ELEMENTS, 1);
    random_rows(v, VALUE_ELEMENTS, 2);
    for (size_t i = 0; i < HEADS * KEY_DIM; i++)
        k[17 * HEADS * KEY_DIM + i] = 0x5000; /* token 17: an outlier */

    const size_t capacity = qr_page_bytes_max(&id, &policy);
    void *page = aligned_alloc(QR_PAGE_ALIGN, capacity);
    assert_non_null(page);
    assert_ok(
        qr_page_encode(&id, &policy, &key_rows, &value_rows, page, capacity, bytes, NULL));
    return page;
}

static void expand(const struct qr_page_view *view, enum qr_which which, uint32_t dim,
                   uint16_t *out)
{
    const struct qr_expand to = {.token_count = TOKENS,
                                 .head_count = HEADS,
                                 .dtype = QR_F16,
                                 .dst = out,
                                 .token_stride = 2ul * HEADS * dim,
                                 .head_stride = 2ul * dim};
    qr_page_expand(view, which, &to);
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void decode(const char *path, uint16_t *out, size_t elements)
{
    char command[4096];
    const char *source = getenv("QUIRE_SOURCE");
    snprintf(command, sizeof(command), "python3 '%s/tests/integration/page_format/decode' '%s'",
             source ? source : ".", path);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fread(out, 2, elements, pipe), elements);
    assert_int_equal(fgetc(pipe), EOF);
    assert_int_equal(pclose(pipe), 0);
}

static void a_stranger_reads_the_same_values(void **state)
{
    static const char *const pairs[][2] = {
        {"chan", "chan"},
        {"chan:bits=2,group=16", "chan:bits=3,group=16"},
        {"chan:bits=3,axis=token,group=128", "chan:bits=8,axis=channel,group=16"},
        {"chan:bits=8,axis=token,group=64", "chan:bits=2,axis=channel"},
        {"raw", "chan"},
        {"raw", "raw"},
        {"fp8", "fp8:format=e5m2"},
        {"fp8:format=e5m2,axis=head", "fp8:axis=head"},
        {"fp8:center,normalize", "chan:hybrid,bits=2"},
        {"chan:center", "chan:bits=3,axis=channel,normalize,hybrid"},
        {"chan:axis=token,normalize", "rot"},
        {"rot:bits=3,group=16,clip=0.9", "rot:bits=2,center"},
        {"rot:heads4", "rot:bits=8,group=128,reorder"},
        {"rot:heads4,reorder,normalize", "lm:bits=2"},
        {"nuq:group=16", "nuq"},
        {"nuq:axis=token,bits=2,outliers=0.1,group=16", "nuq:bits=3,axis=channel,outliers=0"},
        {"nuq:bits=3,center,normalize", "nuq:bits=2,group=128,outliers=0.05,center"},
        {"lm:bits=3,seed=7", "lm:center,seed=4294967295"},
    };
    static uint16_t ours[KEY_ELEMENTS + VALUE_ELEMENTS], theirs[KEY_ELEMENTS + VALUE_ELEMENTS];
    char path[64] = "/tmp/quire-page-XXXXXX";
    (void)state;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        struct qr_page_view view;
        size_t bytes;
        struct qr_codec_spec key, value;
        assert_ok(qr_spec_parse(pairs[i][0], true, &key, NULL));
        assert_ok(qr_spec_parse(pairs[i][1], false, &value, NULL));
        void *page = encode(&key, &value, &bytes);
        assert_ok(qr_page_open(page, bytes, &view, NULL));
        expand(&view, QR_KEY, KEY_DIM, ours);
        expand(&view, QR_VALUE, VALUE_DIM, ours + KEY_ELEMENTS);
        write_file(path, page, bytes);
        decode(path, theirs, ARRAY_LEN(theirs));
        for (size_t n = 0; n < ARRAY_LEN(ours); n++)
            if (ours[n] != theirs[n])
                fail_msg("%s, %s: value %zu is 0x%04x, decoded from README.md 0x%04x",
                         pairs[i][0], pairs[i][1], n, ours[n], theirs[n]);
        free(page);
    }
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_stranger_reads_the_same_values)};
    if (system("python3 -c 'import struct' >/dev/null 2>&1") != 0) {
        printf("skipped: no python3\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
