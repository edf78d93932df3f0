/* SPDX-License-Identifier: Apache-2.0
 *
 * The search of `quire tune`: against trying everything on small random problems, and on the
 * real sample, where what it finds is written as a policy file that reads back.
 */
#include "client/cli/commands.h"
#include "client/cli/policy_file.h"
#include "client/cli/tune_search.h"
#include "tests/test.h"

#include <unistd.h>

#define ITEMS 4
#define CHOICES 4

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static double error_of(const struct qr_tune_item *items, const uint32_t *picks)
{
    double sum = 0;
    for (int i = 0; i < ITEMS; i++)
        sum += items[i].errors[picks[i]];
    return sum;
}

static double bits_of(const struct qr_tune_item *items, const uint32_t *picks)
{
    double sum = 0, elements = 0;
    for (int i = 0; i < ITEMS; i++) {
        sum += items[i].bits[picks[i]] * items[i].elements;
        elements += items[i].elements;
    }
    return sum / elements;
}

/** Least error of all combinations; the largest gain of one step of one item. */
static double brute_force(const struct qr_tune_item *items, double budget)
{
    double least = INFINITY;
    for (int code = 0; code < CHOICES * CHOICES * CHOICES * CHOICES; code++) {
        uint32_t picks[ITEMS];
        for (int i = 0, rest = code; i < ITEMS; i++, rest /= CHOICES)
            picks[i] = (uint32_t)(rest % CHOICES);
        if (bits_of(items, picks) <= budget && error_of(items, picks) < least)
            least = error_of(items, picks);
    }
    return least;
}

static void choices_are_close_to_the_best_of_all(void **state)
{
    uint32_t random = 7;
    double found_sum = 0, best_sum = 0;
    (void)state;
    for (int round = 0; round < 300; round++) {
        double bits[ITEMS][CHOICES], errors[ITEMS][CHOICES];
        struct qr_tune_item items[ITEMS];
        uint32_t picks[ITEMS];
        for (int i = 0; i < ITEMS; i++) {
            for (int c = 0; c < CHOICES; c++) {
                bits[i][c] = 2 + c + next_random(&random) % 100 / 200.0;
                errors[i][c] = (next_random(&random) % 900 + 100) / pow(4, c);
            }
            items[i] = (struct qr_tune_item){bits[i], errors[i], 1 + next_random(&random) % 3,
                                             CHOICES};
        }
        const double budget = 2.6 + next_random(&random) % 200 / 100.0;
        if (!qr_tune_choose(items, ITEMS, budget, picks)) {
            assert_true(isinf(brute_force(items, budget)));
            continue;
        }
        assert_true(bits_of(items, picks) <= budget + 1e-6);
        const double best = brute_force(items, budget), found = error_of(items, picks);
        assert_true(found >= best - 1e-9);
        found_sum += found;
        best_sum += best;
    }
    assert_true(found_sum <= 1.05 * best_sum); /* 1.006 was seen */
}

static void a_budget_met_exactly_is_met(void **state)
{
    const double bits[] = {2, 3, 5}, errors[] = {9, 4, 1};
    const struct qr_tune_item items[ITEMS] = {
        {bits, errors, 1, 3}, {bits, errors, 1, 3}, {bits, errors, 1, 3}, {bits, errors, 1, 3}};
    uint32_t picks[ITEMS];
    (void)state;
    assert_true(qr_tune_choose(items, ITEMS, 3, picks));
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(picks[i], 1);
    assert_true(qr_tune_choose(items, ITEMS, 16, picks));
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(picks[i], 2);
    assert_false(qr_tune_choose(items, ITEMS, 1.9, picks));
    assert_int_equal(picks[0], 0);
}

static char *printed;

static int run(const char *text)
{
    char words[1000], *line[32] = {"quire"}, *said;
    size_t printed_bytes, said_bytes;
    int argc = 1;
    free(printed);
    snprintf(words, sizeof(words), "%s", text);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        line[argc++] = word;
    FILE *out = open_memstream(&printed, &printed_bytes);
    FILE *err = open_memstream(&said, &said_bytes);
    const int result = qr_commands_main(argc, line, out, err);
    fclose(out);
    fclose(err);
    free(said);
    return result;
}

static void the_sample_gives_a_policy_that_reads_back(void **state)
{
    char folder[300], path[200], line[1000];
    const char *scratch = getenv("TMPDIR");
    struct quire_policy policy;
    struct qr_error e = {0};
    (void)state;
    if (getenv("QUIRE_DATA"))
        skip(); /* what is found is of our own sample */
    snprintf(path, sizeof(path), "%s/quire_tune_%ld.json", scratch ? scratch : "/tmp",
             (long)getpid());
    snprintf(line, sizeof(line),
             "tune --rope pre --rope-theta 100000 --uniform --json --bits 4 --queries 64 --out "
             "%s --key-codec chan:bits=2 "
             "--key-codec "
             "chan:bits=4,group=128 --key-codec chan:bits=8 --value-codec chan:bits=2 "
             "--value-codec chan:bits=3,group=64 %s/smollm2_kv.safetensors",
             path, test_data_dir(folder, sizeof(folder)));
    assert_int_equal(run(line), QR_EXIT_OK);
    if (qr_policy_file_read(path, &policy, &e) != QUIRE_OK)
        fail_msg("%s", e.text);
    unlink(path);
    /* 4.25 and 3.5: 3.88 bits, the only pair of the upper ones that 4 bits allow. */
    assert_int_equal(policy.key.bits, 4);
    assert_int_equal(policy.key.group, 128);
    assert_int_equal(policy.value.bits, 3);
    assert_int_equal(policy.value.group, 64);
    assert_int_equal(policy.sink_rows, 4);
    cJSON *root = cJSON_Parse(printed);
    const cJSON *tuned = cJSON_GetObjectItem(root, "tuned");
    const double bits = cJSON_GetObjectItem(tuned, "bits")->valuedouble;
    assert_true(fabs(bits - 3.875) < 1e-3);
    cJSON_Delete(root);
    /* With overrides: within the budget, and no worse. */
    snprintf(line, sizeof(line),
             "tune --rope pre --rope-theta 100000 --json --bits 3.2 --queries 64 "
             "%s/smollm2_kv.safetensors",
             folder);
    assert_int_equal(run(line), QR_EXIT_OK);
    root = cJSON_Parse(printed);
    assert_ok(qr_policy_file_parse(printed, &policy, NULL));
    assert_true(policy.override_count > 0);
    tuned = cJSON_GetObjectItem(root, "tuned");
    assert_true(cJSON_GetObjectItem(tuned, "bits")->valuedouble <= 3.2 + 1e-6);
    assert_true(cJSON_GetObjectItem(tuned, "output_error")->valuedouble <
                cJSON_GetObjectItem(tuned, "uniform_output_error")->valuedouble);
    cJSON_Delete(root);
    snprintf(line, sizeof(line),
             "tune --rope pre --bits 2 %s/smollm2_kv.safetensors --queries 16", folder);
    assert_int_equal(run(line), QR_EXIT_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_are_close_to_the_best_of_all),
        cmocka_unit_test(a_budget_met_exactly_is_met),
        cmocka_unit_test(the_sample_gives_a_policy_that_reads_back),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(printed);
    return failed;
}
