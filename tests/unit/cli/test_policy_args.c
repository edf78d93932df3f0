/* SPDX-License-Identifier: Apache-2.0
 *
 * Policies and models from options, and the memory that a session of them needs.
 */
#include "client/cli/bench.h"
#include "proto/page.h"
#include "tests/test.h"

static void defaults_are_the_library_s(void **state)
{
    static struct qr_policy_args args;
    struct quire_policy standard;
    (void)state;
    quire_policy_default(&standard);
    qr_policy_args_init(&args);
    const struct quire_policy *policy = qr_policy_args_take(&args, NULL);
    assert_int_equal(policy->page_tokens, standard.page_tokens);
    assert_int_equal(policy->key.bits, standard.key.bits);
    assert_int_equal(policy->key.axis, standard.key.axis);
    assert_int_equal(policy->value.axis, standard.value.axis);
    assert_int_equal(policy->value.group, standard.value.group);
}

static void sixteen_bits_are_raw(void **state)
{
    static struct qr_policy_args args;
    (void)state;
    qr_policy_args_init(&args);
    args.key_bits = 16;
    const struct quire_policy *policy = qr_policy_args_take(&args, NULL);
    assert_int_equal(policy->key.codec, QUIRE_CODEC_RAW);
    assert_int_equal(policy->value.codec, QUIRE_CODEC_CHAN);
}

static void codecs_are_taken_whole(void **state)
{
    static struct qr_policy_args args;
    struct qr_error e = {0};
    (void)state;
    qr_policy_args_init(&args);
    args.key_codec = "fp8:format=e5m2,axis=head";
    args.value_bits = 3;
    const struct quire_policy *policy = qr_policy_args_take(&args, &e);
    assert_non_null(policy);
    assert_int_equal(policy->key.codec, QUIRE_CODEC_FP8);
    assert_int_equal(policy->key.axis, QUIRE_AXIS_HEAD);
    assert_int_equal(policy->key.number, 1);
    assert_int_equal(policy->value.codec, QUIRE_CODEC_CHAN);
    assert_int_equal(policy->value.bits, 3);
    args.value_codec = "chan:bitz=4";
    assert_null(qr_policy_args_take(&args, &e));
    assert_non_null(strstr(e.text, "--value-codec: codec chan: \"bitz=4\""));
}

static void geometry_comes_from_the_file(void **state)
{
    char path[600], folder[500];
    static struct qr_model_args args;
    static struct qr_model_file model;
    static struct qr_kv_file kv;
    (void)state;
    snprintf(path, sizeof(path), "%s/smollm2_kv.safetensors",
             test_data_dir(folder, sizeof(folder)));
    assert_ok(qr_kv_file_open(path, QR_KV_NEED_KV, &kv, NULL));
    qr_model_args_init(&args);
    assert_false(qr_model_args_given(&args));
    args.stored = QUIRE_ROPE_PRE;
    args.theta = 1e5;
    assert_true(qr_model_args_given(&args));
    assert_ok(qr_model_args_take(&args, &kv, &model, NULL));
    assert_int_equal(model.model.layer_runs, kv.count);
    assert_int_equal(model.model.layers[0].kv_heads, kv.layers[0].key->shape[1]);
    assert_int_equal(model.model.layers[0].query_heads, kv.layers[0].query->shape[1]);
    assert_int_equal(model.model.ropes[0].rotary_dim, kv.layers[0].key->shape[2]);
    assert_true(model.model.ropes[0].theta == 1e5);
    args.stored = QUIRE_ROPE_NONE;
    assert_ok(qr_model_args_take(&args, &kv, &model, NULL));
    assert_int_equal(model.model.rope_count, 0);
    qr_kv_file_close(&kv);
}

static void needed_memory_counts_pages_and_tail(void **state)
{
    static struct qr_bench bench;
    struct qr_error e = {0};
    (void)state;
    bench.tokens = 1024;
    bench.layers = 2;
    bench.kv_heads = 3;
    bench.key_dim = 64;
    bench.value_dim = 64;
    qr_policy_args_init(&bench.policy);
    bench.policy.key_bits = bench.policy.value_bits = 16;
    assert_non_null(qr_policy_args_take(&bench.policy, NULL));
    const uint64_t fp16 = 1024ull * 2 * 3 * 128 * 2, needed = qr_bench_needed(&bench, &e);
    assert_true(needed > fp16);
    assert_true(needed < fp16 * 5 / 4);
    bench.key_dim = 65;
    assert_int_equal(qr_bench_needed(&bench, &e), 0);
    assert_non_null(strstr(e.text, "65"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_the_library_s),
        cmocka_unit_test(sixteen_bits_are_raw),
        cmocka_unit_test(codecs_are_taken_whole),
        cmocka_unit_test(geometry_comes_from_the_file),
        cmocka_unit_test(needed_memory_counts_pages_and_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
