/* SPDX-License-Identifier: Apache-2.0
 *
 * Models and policies survive the trip over the wire, equal layers travel as one run, and what
 * does not fit is refused by field.
 */
#include "wire_fixture.h"

#include "proto/spec_text.h"

static struct qr_model model, back;
static struct qr_wire_model box;

static int hybrid_model(void **state)
{
    (void)state;
    memset(&model, 0, sizeof(model));
    strcpy(model.name, "hybrid");
    strcpy(model.adapter, "lora-7");
    model.layer_count = 10;
    model.rope_count = 2;
    for (uint32_t i = 0; i < model.layer_count; i++)
        model.layers[i] = (struct qr_layer){.query_heads = 16,
                                            .kv_heads = 4,
                                            .key_dim = 64,
                                            .value_dim = 48,
                                            .rope = i == 9,
                                            .rope_stored = QR_ROPE_PRE,
                                            .sliding_window = i % 5 == 4 ? 0 : 1024};
    for (uint32_t r = 0; r < 2; r++) {
        model.ropes[r].layout = r ? QR_ROPE_INTERLEAVED : QR_ROPE_HALF;
        model.ropes[r].rotary_dim = 32 + 16 * r;
        model.ropes[r].attention_factor = 1 + (float)r;
        for (uint32_t i = 0; i < 24; i++)
            model.ropes[r].inv_freq[i] = 1 / (float)(i + 1);
    }
    memset(model.ropes[0].inv_freq + 16, 0, 8 * sizeof(float));
    assert_ok(qr_model_seal(&model, NULL));
    qr_wire_model_to(&model, &box);
    return 0;
}

static void model_survives_the_trip(void **state)
{
    static uint8_t wire[4096];
    static _Alignas(16) uint8_t memory[1 << 16];
    struct qr_wire_arena arena;
    ProtobufCMessage *out;
    (void)state;
    const size_t n = fixture_pack(&box.message.base, wire, sizeof(wire));
    const struct qr_wire_fragment fragment = {.data = wire, .bytes = n};
    qr_wire_arena_init(&arena, memory, sizeof(memory));
    assert_ok(qr_wire_unpack(&quire__v1__model__descriptor, &fragment, 1, &arena, &out, NULL));
    memset(&back, 0xff, sizeof(back));
    assert_ok(qr_wire_model_from((const Quire__V1__Model *)(const void *)out, &back, NULL));
    assert_memory_equal(&back, &model, sizeof(model));
}

static void equal_layers_are_one_run(void **state)
{
    (void)state;
    assert_int_equal(box.message.n_layers, 4); /* 4 windowed, 1 full, 4 windowed, 1 full */
    assert_int_equal(box.layers[0].count, 4);
    assert_int_equal(box.layers[1].count, 1);
    assert_int_equal(box.layers[2].count, 4);
    assert_int_equal(box.layers[3].rope, 1);
}

static void expect_refused(const char *text)
{
    struct qr_error e;
    assert_status(QUIRE_EINVAL, qr_wire_model_from(&box.message, &back, &e));
    expect_text(&e, text);
    hybrid_model(NULL);
}

static void misfits_are_named(void **state)
{
    static char long_name[QR_NAME_MAX + 2];
    struct qr_error e;
    (void)state;
    memset(long_name, 'n', sizeof(long_name) - 1);
    box.message.revision = long_name;
    expect_refused("Model.revision has 256 bytes");
    box.layers[1].kv_heads = 65536 + 4; /* would be 4 if it were cut to 16 bits */
    expect_refused("Model.layers[1].kv_heads is 65540");
    box.layers[1].rope = 256;
    expect_refused("Model.layers[1].rope is 256");
    box.layers[2].count = 508;
    expect_refused("Model.layers[2].count is 508 after 5 layers");
    box.layers[0].count = 0;
    expect_refused("Model.layers[0].count is 0");
    box.layers[0].count = UINT32_MAX;
    expect_refused("Model.layers[0].count is 4294967295");
    box.ropes[0].n_inv_freq = 15;
    expect_refused("Model.ropes[0].inv_freq has 15 entries: rotary_dim/2 = 16");
    box.ropes[1].rotary_dim = 4096;
    box.ropes[1].n_inv_freq = 2048;
    expect_refused("Model.ropes[1].rotary_dim is 4096");
    box.message.n_ropes = 5;
    expect_refused("Model.ropes has 5 entries");
    box.message.n_layers = 0;
    expect_refused("model has 0 layers");
    box.layers[0].key_dim = 7;
    expect_refused("layers[0]: key_dim 7");
    assert_status(QUIRE_EINVAL, qr_wire_model_from(NULL, &back, &e));
    expect_text(&e, "Model is missing");
}

static void policy_survives_the_trip(void **state)
{
    struct qr_policy policy, got;
    struct qr_wire_policy wire;
    (void)state;
    qr_policy_default(&policy);
    policy.page_tokens = 64;
    policy.value = (struct qr_codec_spec){.codec = QR_CODEC_RAW, .bits = 16};
    assert_ok(
        qr_overrides_parse("1-3/kv=fp8:format=e5m2;0/v=rot:clip=0.9,heads4", &policy, NULL));
    qr_wire_policy_to(&policy, &wire);
    assert_ok(qr_wire_policy_from(&wire.message, &got, NULL));
    assert_memory_equal(&got, &policy, sizeof(policy));
    assert_ok(qr_wire_policy_from(NULL, &got, NULL));
    qr_policy_default(&policy);
    assert_memory_equal(&got, &policy, sizeof(policy));
}

static void bad_policies_are_named(void **state)
{
    struct qr_policy policy, got;
    struct qr_wire_policy wire;
    struct qr_error e;
    (void)state;
    qr_policy_default(&policy);
    const struct {
        uint32_t *field, value;
        const char *text;
    } cases[] = {
        {&wire.message.page_tokens, 65536 + 128, "Policy.page_tokens is 65664"},
        {&wire.message.window, 4097, "Policy.window is 4097"},
        {&wire.message.sink_rows, 513, "Policy.sink_rows is 513"},
        {&wire.message.outlier_rows, 5, "Policy.outlier_rows is 5"},
        {&wire.key.bits, 256 + 4, "Policy.key: codec 2, bits 260"},
        {&wire.value.group, 65536 + 32, "Policy.value: codec 2, bits 4, axis 2, group 65568"},
        {&wire.key.bits, 5, "key: chan with 5 bits"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        qr_wire_policy_to(&policy, &wire);
        *cases[i].field = cases[i].value;
        assert_status(QUIRE_EINVAL, qr_wire_policy_from(&wire.message, &got, &e));
        expect_text(&e, cases[i].text);
    }
    qr_wire_policy_to(&policy, &wire);
    wire.message.value = NULL;
    assert_status(QUIRE_EINVAL, qr_wire_policy_from(&wire.message, &got, &e));
    expect_text(&e, "Policy.value is missing");
}

static void fingerprints_have_their_length(void **state)
{
    uint8_t bytes[33] = {1, 2, 3}, out[32];
    struct qr_error e;
    (void)state;
    assert_ok(qr_wire_fingerprint(&(ProtobufCBinaryData){32, bytes}, "fingerprint", out, NULL));
    assert_memory_equal(out, bytes, 32);
    assert_status(QUIRE_EINVAL, qr_wire_fingerprint(&(ProtobufCBinaryData){33, bytes},
                                                    "OpenSessionRequest.fingerprint", out, &e));
    assert_string_equal(e.text, "OpenSessionRequest.fingerprint has 33 bytes: 32 expected");
    assert_status(QUIRE_EINVAL,
                  qr_wire_fingerprint(&(ProtobufCBinaryData){0, NULL}, "f", out, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(model_survives_the_trip, hybrid_model),
        cmocka_unit_test_setup(equal_layers_are_one_run, hybrid_model),
        cmocka_unit_test_setup(misfits_are_named, hybrid_model),
        cmocka_unit_test(policy_survives_the_trip),
        cmocka_unit_test(bad_policies_are_named),
        cmocka_unit_test(fingerprints_have_their_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
