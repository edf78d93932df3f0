/* SPDX-License-Identifier: Apache-2.0
 *
 * Model files: every key reaches the model, mistakes are named by their key.
 */
#include "client/cli/model_file.h"
#include "tests/test.h"

static struct qr_model_file model;

static void every_key_reaches_the_model(void **state)
{
    static const char text[] =
        "{\"name\": \"m\", \"revision\": \"r\", \"adapter\": \"a\","
        " \"ropes\": [{\"type\": \"yarn\", \"layout\": \"interleaved\", \"rotary_dim\": 64,"
        "   \"theta\": 10000, \"factor\": 4, \"beta_fast\": 32, \"beta_slow\": 1,"
        "   \"original_max_position\": 4096, \"truncate\": false},"
        "  {\"type\": \"table\", \"rotary_dim\": 4, \"inv_freq\": [1, 0.5]}],"
        " \"layers\": [{\"count\": 30, \"query_heads\": 9, \"kv_heads\": 3, \"key_dim\": 64,"
        "   \"value_dim\": 32, \"rope\": 1, \"rope_stored\": \"post\","
        "   \"sliding_window\": 512}, {\"query_heads\": 4, \"kv_heads\": 0, \"key_dim\": 64,"
        "   \"value_dim\": 64}]}";
    struct qr_error e = {0};
    (void)state;
    assert_ok(qr_model_file_parse(text, &model, &e));
    assert_string_equal(model.model.name, "m");
    assert_string_equal(model.model.revision, "r");
    assert_string_equal(model.model.adapter, "a");
    assert_int_equal(model.model.rope_count, 2);
    assert_int_equal(model.model.ropes[0].type, QUIRE_ROPE_YARN);
    assert_true(model.model.ropes[0].truncate_off);
    assert_false(model.model.ropes[1].truncate_off);
    assert_int_equal(model.model.ropes[0].layout, QUIRE_ROPE_INTERLEAVED);
    assert_int_equal(model.model.ropes[0].original_max_position, 4096);
    assert_true(model.model.ropes[0].factor == 4);
    assert_true(model.model.ropes[1].inv_freq[1] == 0.5f);
    assert_int_equal(model.model.layer_runs, 2);
    assert_int_equal(model.model.layers[0].count, 30);
    assert_int_equal(model.model.layers[0].value_dim, 32);
    assert_int_equal(model.model.layers[0].rope_stored, QUIRE_ROPE_POST);
    assert_int_equal(model.model.layers[0].sliding_window, 512);
    assert_int_equal(model.model.layers[1].count, 1);
    assert_int_equal(model.model.layers[1].kv_heads, 0);
}

static void mistakes_are_named_by_their_key(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "not JSON"},
        {"{\"layers\": [{}], \"name\": \"x\", \"name\": \"y\"}", "name: is given twice"},
        {"{\"layers\": [{}], \"name\": \"x\", \"layers\": [{}]}", "layers: is given twice"},
        {"{\"layers\": [{\"kv_heads\": 1, \"kv_heads\": 2}]}",
         "layers[0].kv_heads: is given twice"},
        {"{\"layers\": [{}], \"ropes\": [{\"truncate\": 1}]}", "must be true or false"},
        {"[]", "not a JSON object"},
        {"{}", "layers: must list"},
        {"{\"layers\": [{}]}", "name: must be there"},
        {"{\"layers\": 3}", "layers: must be a list"},
        {"{\"layers\": [3]}", "layers[0]: must be an object"},
        {"{\"layers\": [{\"headz\": 1}]}", "layers[0]: unknown key 'headz'"},
        {"{\"layers\": [{\"kv_heads\": -1}]}", "layers[0].kv_heads: must be a whole"},
        {"{\"layers\": [{\"kv_heads\": 1.5}]}", "layers[0].kv_heads: must be a whole"},
        {"{\"layers\": [{\"rope_stored\": \"mid\"}]}", "must be one of none pre post"},
        {"{\"layers\": [{}], \"nam\": \"x\"}", "unknown key 'nam'"},
        {"{\"layers\": [{}], \"name\": 1}", "model.name: must be text"},
        {"{\"layers\": [{}], \"ropes\": [{\"type\": \"rotten\"}]}", "ropes[0].type 'rotten'"},
        {"{\"layers\": [{}], \"ropes\": [{\"theta\": \"x\"}]}",
         "ropes[0].theta: must be a num"},
        {"{\"layers\": [{}], \"ropes\": [{},{},{},{},{}]}", "more than 4"},
        {"{\"layers\": [{}], \"ropes\": [{\"rotary_dim\": 8, \"inv_freq\": [1]}]}", "needs 4"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_error e = {0};
        assert_status(QUIRE_EINVAL, qr_model_file_parse(cases[i].text, &model, &e));
        if (strstr(e.text, cases[i].says) == NULL)
            fail_msg("'%s' says '%s', not '%s'", cases[i].text, e.text, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_reaches_the_model),
        cmocka_unit_test(mistakes_are_named_by_their_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
