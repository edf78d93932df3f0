/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys, values and queries are found by their names; files that do not fit together are
 * refused with the tensor that does not.
 */
#include "client/cli/kv_file.h"
#include "tests/test.h"

#include <unistd.h>

static char path[300];

/** One tensor of a file to be written; rank 0 ends the list. */
struct spec {
    const char *name;
    enum qr_element element;
    uint32_t rank;
    uint64_t shape[3];
};

static void write_file(const struct spec *specs)
{
    struct qr_safetensors_writer *writer;
    size_t index;
    assert_ok(qr_safetensors_writer_create(&writer, NULL));
    for (; specs->rank != 0; specs++) {
        struct qr_safetensor t = {.name = specs->name, .element = specs->element};
        t.rank = specs->rank;
        memcpy(t.shape, specs->shape, sizeof(specs->shape));
        assert_ok(qr_safetensors_declare(writer, &t, &index, NULL));
    }
    assert_ok(qr_safetensors_begin(writer, path, NULL));
    assert_ok(qr_safetensors_commit(writer, NULL));
    qr_safetensors_writer_destroy(&writer);
}

#define KV(number, tokens)                                                                     \
    {"k_layer" number, QR_ELEMENT_F16, 3, {tokens, 2, 16}},                                    \
    {                                                                                          \
        "v_layer" number, QR_ELEMENT_F16, 3,                                                   \
        {                                                                                      \
            tokens, 2, 24                                                                      \
        }                                                                                      \
    }

static void the_real_sample_is_read(void **state)
{
    char name[600], folder[500];
    struct qr_kv_file kv;
    struct qr_error e = {0};
    (void)state;
    snprintf(name, sizeof(name), "%s/smollm2_kv.safetensors",
             test_data_dir(folder, sizeof(folder)));
    assert_ok(qr_kv_file_open(name, QR_KV_NEED_KV | QR_KV_NEED_QUERY, &kv, &e));
    assert_true(kv.count > 0);
    assert_true(kv.tokens > 0);
    assert_int_equal(kv.dtype, QUIRE_F16);
    if (!getenv("QUIRE_DATA")) /* another file may have none */
        assert_non_null(kv.token_ids);
    for (uint32_t i = 1; i < kv.count; i++)
        assert_true(kv.layers[i - 1].number < kv.layers[i].number);
    qr_kv_file_close(&kv);
}

static void layers_map_densely_only_when_all_are_there(void **state)
{
    static const struct spec specs[] = {KV("03", 4), KV("11", 4), {0}};
    struct qr_kv_file kv;
    (void)state;
    write_file(specs);
    assert_ok(qr_kv_file_open(path, QR_KV_NEED_KV, &kv, NULL));
    assert_int_equal(kv.count, 2);
    assert_int_equal(qr_kv_model_layer(&kv, 1, 2), 1);
    assert_int_equal(qr_kv_model_layer(&kv, 1, 30), 11);
    assert_int_equal(qr_kv_token_bytes(kv.layers[0].value), 2 * 24 * 2);
    qr_kv_file_close(&kv);
}

static void wide_token_ids_are_narrowed(void **state)
{
    static const struct spec specs[] = {
        KV("00", 4), {"token_ids", QR_ELEMENT_I64, 1, {4, 0, 0}}, {0}};
    struct qr_kv_file kv;
    (void)state;
    write_file(specs);
    assert_ok(qr_kv_file_open(path, QR_KV_NEED_KV, &kv, NULL));
    assert_non_null(kv.token_ids);
    assert_int_equal(kv.token_ids[3], 0);
    qr_kv_file_close(&kv);
}

static void files_that_do_not_fit_are_refused(void **state)
{
    static const struct {
        struct spec specs[4];
        const char *says;
    } cases[] = {
        {{{"other", QR_ELEMENT_F16, 3, {4, 2, 16}}, {0}}, "no tensor named k_layerNN"},
        {{{"k_layer00", QR_ELEMENT_F16, 3, {4, 2, 16}}, {0}}, "no v_layer00"},
        {{{"v_layer00", QR_ELEMENT_F16, 3, {4, 2, 16}}, {0}}, "no k_layer00"},
        {{KV("00", 4), {"k_layer01", QR_ELEMENT_F16, 3, {5, 2, 16}}, {0}}, "has 5 tokens"},
        {{KV("00", 4), {"k_layer01", QR_ELEMENT_F32, 3, {4, 2, 16}}, {0}}, "is F32"},
        {{{"k_layer00", QR_ELEMENT_I32, 3, {4, 2, 16}}, {0}}, "must be F16, BF16 or F32"},
        {{{"k_layer00", QR_ELEMENT_F16, 2, {4, 2, 0}}, {0}}, "rank 2"},
        {{{"k_layer00", QR_ELEMENT_F16, 3, {4, 0, 16}}, {0}}, "empty dimension"},
        {{KV("00", 4), {"k_layer0", QR_ELEMENT_F16, 3, {4, 2, 16}}, {0}}, "name one tensor"},
        {{{"k_layer00", QR_ELEMENT_F16, 3, {4, 1, 16}},
          {"v_layer00", QR_ELEMENT_F16, 3, {4, 2, 16}},
          {0}},
         "1 key heads and 2 value heads"},
        {{KV("00", 4), {"token_ids", QR_ELEMENT_I32, 1, {3, 0, 0}}, {0}}, "token_ids must be"},
        {{KV("00", 4), {"token_ids", QR_ELEMENT_F32, 1, {4, 0, 0}}, {0}}, "token_ids must be"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_kv_file kv;
        struct qr_error e = {0};
        write_file(cases[i].specs);
        assert_status(QUIRE_EINVAL, qr_kv_file_open(path, QR_KV_NEED_KV, &kv, &e));
        if (strstr(e.text, cases[i].says) == NULL)
            fail_msg("case %zu: '%s' does not say '%s'", i, e.text, cases[i].says);
    }
}

static void queries_alone_are_enough_for_attend(void **state)
{
    static const struct spec specs[] = {{"q_layer00", QR_ELEMENT_BF16, 3, {4, 8, 16}}, {0}};
    struct qr_kv_file kv;
    (void)state;
    write_file(specs);
    assert_ok(qr_kv_file_open(path, QR_KV_NEED_QUERY, &kv, NULL));
    assert_int_equal(kv.dtype, QUIRE_BF16);
    qr_kv_file_close(&kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_sample_is_read),
        cmocka_unit_test(layers_map_densely_only_when_all_are_there),
        cmocka_unit_test(wide_token_ids_are_narrowed),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
        cmocka_unit_test(queries_alone_are_enough_for_attend),
    };
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof(path), "%s/quire_kv_file_%ld", folder ? folder : "/tmp",
             (long)getpid());
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
