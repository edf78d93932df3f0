/* SPDX-License-Identifier: Apache-2.0
 *
 * A calibration survives its file and its trip with the model, changes the fingerprint, and is
 * refused by name when it is another model's, damaged, or holds a table that is none.
 */
#include "wire_fixture.h"

#include "proto/page.h"
#include "proto/quant.h"

static struct qr_model model, back;
static struct qr_calibration calibration, read;
static uint8_t bytes[QR_CALIBRATION_BYTES_MAX + 1];

static void fill_tables(void)
{
    for (uint32_t layer = 0; layer < calibration.layers; layer++)
        for (int which = 0; which < 2; which++)
            for (uint32_t bits = 2; bits <= 4; bits++)
                for (uint32_t i = 0; i < 1u << bits; i++)
                    calibration.levels[layer][which][(1u << bits) - 4 + i] = qr_f16_from_f32(
                        (float)(2.0 * i / ((1 << bits) - 1) - 1) * (which ? 1.0f : 0.875f));
}

static int make(void **state)
{
    (void)state;
    memset(&model, 0, sizeof(model));
    strcpy(model.name, "m");
    model.layer_count = 2;
    for (uint32_t i = 0; i < 2; i++)
        model.layers[i] = (struct qr_layer){4, 2, 64, 64, 0, QR_ROPE_NONE, 0};
    assert_ok(qr_model_seal(&model, NULL));
    memset(&calibration, 0, sizeof(calibration));
    calibration.layers = 2;
    calibration.bits = 1u << 2 | 1u << 3 | 1u << 4;
    memcpy(calibration.model, model.fingerprint, sizeof(calibration.model));
    fill_tables();
    return 0;
}

static void files_read_back_as_written(void **state)
{
    struct qr_error e;
    (void)state;
    const size_t n = qr_calibration_write(&calibration, bytes);
    assert_int_equal(n, 64 + 2 * 2 * 28 * 2);
    assert_ok(qr_calibration_read(bytes, n, &read, &e));
    assert_memory_equal(&read, &calibration, sizeof(read));
    for (size_t cut = 0; cut < n; cut++)
        assert_int_not_equal(qr_calibration_read(bytes, cut, &read, NULL), QUIRE_OK);
    for (size_t at = 0; at < n; at++) {
        bytes[at] ^= 0x10;
        assert_int_not_equal(qr_calibration_read(bytes, n, &read, NULL), QUIRE_OK);
        bytes[at] ^= 0x10;
    }
    assert_non_null(qr_calibration_levels(&calibration, 1, 1, 4));
    assert_null(qr_calibration_levels(&calibration, 2, 0, 4));
    calibration.bits = 1u << 3;
    assert_null(qr_calibration_levels(&calibration, 0, 0, 4));
    assert_int_equal(qr_calibration_write(&calibration, bytes), 64 + 2 * 2 * 8 * 2);
}

static void expect_table(uint32_t layer, int which, uint32_t level, uint16_t value,
                         const char *text)
{
    struct qr_error e = {0};
    make(NULL);
    calibration.levels[layer][which][level] = value;
    const size_t n = qr_calibration_write(&calibration, bytes);
    assert_status(QUIRE_EINVAL, qr_calibration_read(bytes, n, &read, &e));
    if (!strstr(e.text, text))
        fail_msg("'%s' does not contain '%s'", e.text, text);
}

static void tables_that_are_none_are_named(void **state)
{
    (void)state;
    expect_table(1, 0, 5, 0x7e00, "keys of layer 1 of 3 bits: level 1 is 0x7e00 (nan)");
    expect_table(0, 1, 27, 0x3c01, "values of layer 0 of 4 bits: level 15 is 0x3c01");
    expect_table(0, 0, 1, 0x3b00, "keys of layer 0 of 2 bits: level 2 is");
    expect_table(0, 0, 3, 0xfc00, "level 3 is 0xfc00 (-inf)");
}

static void models_carry_theirs(void **state)
{
    static struct qr_wire_model wire;
    static uint8_t packed[QR_MODEL_PACKED_MAX];
    uint8_t plain[QR_HASH_BYTES];
    (void)state;
    memcpy(plain, model.fingerprint, sizeof(plain));
    model.calibration = calibration;
    assert_ok(qr_model_seal(&model, NULL));
    assert_memory_not_equal(plain, model.fingerprint, sizeof(plain));
    qr_wire_model_to(&model, &wire);
    assert_ok(qr_wire_model_from(&wire.message, &back, NULL));
    assert_memory_equal(&back, &model, sizeof(model));
    assert_ok(qr_model_unpack(packed, qr_model_pack(&model, packed), &back, NULL));
    assert_memory_equal(&back, &model, sizeof(model));
    memcpy(plain, model.fingerprint, sizeof(plain));
    model.calibration.levels[1][1][0] = 0xb800;
    assert_ok(qr_model_seal(&model, NULL));
    assert_memory_not_equal(plain, model.fingerprint, sizeof(plain));
}

static void other_models_are_refused(void **state)
{
    struct qr_error e;
    (void)state;
    model.calibration = calibration;
    strcpy(model.revision, "2");
    assert_status(QUIRE_EMISMATCH, qr_model_seal(&model, &e));
    assert_non_null(strstr(e.text, "calibration is of model"));
    make(NULL);
    model.calibration = calibration;
    model.calibration.layers = 1;
    assert_status(QUIRE_EMISMATCH, qr_model_seal(&model, &e));
    assert_non_null(strstr(e.text, "calibration has 1 layers: the model has 2"));
}

static void identities_take_the_layer_s_tables(void **state)
{
    struct qr_page_identity id = {.layer = 1,
                                  .key = {.codec = QR_CODEC_NUQ, .bits = 3},
                                  .value = {.codec = QR_CODEC_CHAN, .bits = 3}};
    (void)state;
    model.calibration = calibration;
    qr_page_identity_levels(&id, &model);
    assert_ptr_equal(id.key_levels, &model.calibration.levels[1][0][4]);
    assert_null(id.value_levels);
    id.key.bits = 5;
    qr_page_identity_levels(&id, &model);
    assert_null(id.key_levels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(files_read_back_as_written, make),
        cmocka_unit_test(tables_that_are_none_are_named),
        cmocka_unit_test_setup(models_carry_theirs, make),
        cmocka_unit_test_setup(other_models_are_refused, make),
        cmocka_unit_test_setup(identities_take_the_layer_s_tables, make),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
