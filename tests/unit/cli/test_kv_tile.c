/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiled samples: the first repeat is the sample itself, later ones differ from it and from
 * each other by little, blocks can be made again at any cut, and nothing is ever not finite.
 */
#include "client/cli/kv_tile.h"
#include "client/cli/reference.h"
#include "tests/test.h"

static struct qr_kv_file kv;
static struct qr_kv_tile tile;

static int open_sample(void **state)
{
    char path[600], folder[500];
    (void)state;
    snprintf(path, sizeof(path), "%s/smollm2_kv.safetensors",
             test_data_dir(folder, sizeof(folder)));
    tile = (struct qr_kv_tile){&kv, 7};
    return qr_kv_file_open(path, QR_KV_NEED_KV, &kv, NULL);
}

static int close_sample(void **state)
{
    (void)state;
    qr_kv_file_close(&kv);
    return 0;
}

static struct qr_kv_tile_shape sample_shape(uint32_t layer, bool key)
{
    const struct qr_safetensor *t = key ? kv.layers[layer].key : kv.layers[layer].value;
    return (struct qr_kv_tile_shape){layer, (uint32_t)t->shape[1], (uint32_t)t->shape[2], key};
}

static void the_first_repeat_is_the_sample(void **state)
{
    const struct qr_kv_tile_shape shape = sample_shape(1, true);
    const uint32_t tokens = (uint32_t)kv.tokens;
    const size_t bytes = (size_t)kv.layers[1].key->bytes;
    uint16_t *rows = malloc(bytes);
    (void)state;
    assert_non_null(rows);
    qr_kv_tile_rows(&tile, &shape, 0, tokens, rows);
    assert_memory_equal(rows, kv.layers[1].key->data, bytes);
    free(rows);
}

static void later_repeats_differ_by_little(void **state)
{
    const struct qr_kv_tile_shape shape = sample_shape(0, false);
    const size_t width = (size_t)shape.heads * shape.dim;
    uint16_t *rows = malloc(3 * width * sizeof(*rows));
    struct qr_deviation sum = {0};
    (void)state;
    assert_non_null(rows);
    for (uint64_t repeat = 0; repeat < 3; repeat++)
        qr_kv_tile_rows(&tile, &shape, repeat * kv.tokens + 5, 1, rows + repeat * width);
    assert_memory_not_equal(rows, rows + width, width * 2);
    assert_memory_not_equal(rows + width, rows + 2 * width, width * 2);
    for (size_t i = 0; i < width; i++)
        qr_deviation_add(&sum, (double)qr_reference_element(rows, QUIRE_F16, width + i),
                         (double)qr_reference_element(rows, QUIRE_F16, i));
    const double error = qr_deviation_frobenius(&sum);
    assert_true(isfinite(error) && error > 0 && error < 7.0 / 1024);
    free(rows);
}

static void blocks_are_equal_at_any_cut(void **state)
{
    const struct qr_kv_tile_shape shape = {5, 8, 128, true};
    uint16_t *whole = calloc(64 * 8 * 128, 2), *piece = calloc(8 * 128, 2);
    const uint64_t position = 3 * kv.tokens - 20;
    (void)state;
    assert_non_null(whole);
    assert_non_null(piece);
    qr_kv_tile_rows(&tile, &shape, position, 64, whole);
    for (uint32_t t = 0; t < 64; t++) {
        qr_kv_tile_rows(&tile, &shape, position + t, 1, piece);
        assert_memory_equal(whole + (size_t)t * 8 * 128, piece, 8 * 128 * 2);
    }
    free(whole);
    free(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_repeat_is_the_sample),
        cmocka_unit_test(later_repeats_differ_by_little),
        cmocka_unit_test(blocks_are_equal_at_any_cut),
    };
    return cmocka_run_group_tests(tests, open_sample, close_sample);
}
