/* SPDX-License-Identifier: Apache-2.0
 *
 * Reflection from the descriptors that quired has: every service, file and symbol is found,
 * what is not there is said, and malformed or cut requests are refused.
 */
#include "tests/test.h"

#include "proto/wire_reflection.h"
#include "server/descriptor_set.h"

enum { HOST = 1, FILE_NAME = 3, SYMBOL = 4, EXTENSION = 5, NUMBERS = 6, SERVICES = 7 };

static uint8_t answer[1 << 16];
static size_t answer_bytes;

/* A request with one string. */
static size_t ask(uint32_t field, const char *text, uint8_t *out)
{
    const size_t n = strlen(text);

    out[0] = (uint8_t)(field << 3 | 2);
    out[1] = (uint8_t)n;
    assert_true(n < 128);
    memcpy(out + 2, text, n);
    return n + 2;
}

static quire_status reflect(const uint8_t *request, size_t n, size_t capacity,
                            struct qr_error *e)
{
    /* Byte by byte: a request may come in any pieces. */
    struct qr_wire_fragment pieces[256];

    for (size_t i = 0; i < n; i++)
        pieces[i] = (struct qr_wire_fragment){.data = request + i, .bytes = 1};
    memset(answer, 0xee, sizeof(answer));
    return qr_wire_reflect(qr_descriptor_set, qr_descriptor_set_bytes, pieces, n, answer,
                           capacity, &answer_bytes, e);
}

/* The only LEN field `number` of a message; its bytes and length. */
static const uint8_t *field_of(const uint8_t *at, size_t n, uint32_t number, size_t *length)
{
    const uint8_t *end = at + n;

    while (at < end) {
        uint64_t v[2] = {0, 0};
        for (int i = 0; i < 2; i++)
            for (unsigned shift = 0;; shift += 7) {
                assert_true(at < end);
                v[i] |= (uint64_t)(*at & 0x7f) << shift;
                if (*at++ < 0x80)
                    break;
            }
        if ((v[0] & 7) == 0) /* the error's code: `v[1]` was it */
            continue;
        assert_int_equal(v[0] & 7, 2);
        assert_true(v[1] <= (uint64_t)(end - at));
        if (v[0] >> 3 == number) {
            *length = (size_t)v[1];
            return at;
        }
        at += v[1];
    }
    return NULL;
}

static const uint8_t *ask_for(uint32_t field, const char *text, uint32_t answered, size_t *n)
{
    uint8_t request[160];
    struct qr_error e = {0};
    const size_t bytes = ask(field, text, request);
    size_t echoed;

    if (reflect(request, bytes, sizeof(answer), &e))
        fail_msg("%s", e.text);
    const uint8_t *echo = field_of(answer, answer_bytes, 2, &echoed);
    assert_int_equal(echoed, bytes);
    assert_memory_equal(echo, request, bytes);
    return field_of(answer, answer_bytes, answered, n);
}

static bool is_file(const uint8_t *response, size_t n, const char *name)
{
    size_t file_bytes, name_bytes;
    const uint8_t *file = field_of(response, n, 1, &file_bytes);

    assert_non_null(file);
    const uint8_t *got = field_of(file, file_bytes, 1, &name_bytes);
    return name_bytes == strlen(name) && memcmp(got, name, name_bytes) == 0;
}

#define OURS "quire/v1/quire.proto"

static void files_are_found_by_name_and_by_symbol(void **state)
{
    static const struct {
        uint32_t field;
        const char *text, *file;
    } cases[] = {
        {FILE_NAME, OURS, OURS},
        {FILE_NAME, "grpc/health/v1/health.proto", "grpc/health/v1/health.proto"},
        {SYMBOL, "quire.v1.Quire", OURS},
        {SYMBOL, "quire.v1.Quire.Append", OURS},
        {SYMBOL, "quire.v1.AppendRequest", OURS},
        {SYMBOL, "quire.v1.AppendRequest.token_ids", OURS},
        {SYMBOL, "quire.v1.DType", OURS},
        {SYMBOL, "quire.v1.BF16", OURS},
        {SYMBOL, "grpc.health.v1.Health.Check", "grpc/health/v1/health.proto"},
        {SYMBOL, "grpc.health.v1.HealthCheckResponse.ServingStatus",
         "grpc/health/v1/health.proto"},
        {SYMBOL, "grpc.health.v1.HealthCheckResponse.SERVING", "grpc/health/v1/health.proto"},
        {SYMBOL, "grpc.reflection.v1.ServerReflectionRequest.message_request",
         "grpc/reflection/v1/reflection.proto"},
        {SYMBOL, "grpc.reflection.v1alpha.ServerReflection",
         "grpc/reflection/v1alpha/reflection.proto"},
    };
    size_t n;
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const uint8_t *files = ask_for(cases[i].field, cases[i].text, 4, &n);
        if (!files || !is_file(files, n, cases[i].file))
            fail_msg("%s is not found in %s", cases[i].text, cases[i].file);
    }
}

static void what_is_not_there_is_an_error_response(void **state)
{
    static const struct {
        uint32_t field;
        const char *text;
    } cases[] = {
        {FILE_NAME, "quire/v1/quire"},
        {FILE_NAME, ""},
        {SYMBOL, "quire.v1"},
        {SYMBOL, "quire.v1."},
        {SYMBOL, "quire"},
        {SYMBOL, ""},
        {SYMBOL, "Quire"},
        {SYMBOL, "quire.v1.Quir"},
        {SYMBOL, "quire.v1.Quires"},
        {SYMBOL, "quire.v1.Quire.Append.x"},
        {SYMBOL, "quire.v1.AppendRequest."},
        {SYMBOL, "quire.v1.DType.BF16"},
        {SYMBOL, "quire.v1.AppendRequest.token_ids.x"},
        {NUMBERS, "quire.v1.Nothing"},
        {EXTENSION, "\x0a\x01x"},
        {HOST, "here"},
    };
    size_t n;
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const uint8_t *error = ask_for(cases[i].field, cases[i].text, 7, &n);
        if (!error)
            fail_msg("case %zu (%s): no error", i, cases[i].text);
        assert_int_equal(error[0], 1 << 3);
        assert_int_equal(error[1], cases[i].field == HOST ? 3 : 5);
        assert_null(field_of(answer, answer_bytes, 4, &n));
    }
    const uint8_t *numbers = ask_for(NUMBERS, "quire.v1.Model", 5, &n);
    assert_non_null(numbers);
    assert_int_equal(n, 2 + strlen("quire.v1.Model")); /* the type, and no numbers */
}

static void services_are_listed(void **state)
{
    static const char *const names[] = {"quire.v1.Quire", "grpc.health.v1.Health",
                                        "grpc.reflection.v1.ServerReflection",
                                        "grpc.reflection.v1alpha.ServerReflection"};
    size_t n, total = 0;
    (void)state;

    const uint8_t *services = ask_for(SERVICES, "", 6, &n);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const size_t length = strlen(names[i]);
        assert_non_null(memmem(services, n, names[i], length));
        total += length + 4;
    }
    assert_int_equal(total, n); /* and no others */
}

static void requests_that_cannot_be_are_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        {"\x22\x05quir", 6},         /* cut */
        {"\x22", 1},                 /* cut */
        {"\x03", 1},                 /* a group */
        {"\x22\x02\xff\xfe", 4},     /* not UTF-8 */
        {"\x0a\x01\xc3\x3a\x00", 5}, /* a host that is not */
    };
    struct qr_error e;
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        memset(&e, 0, sizeof(e));
        if (reflect((const uint8_t *)cases[i].bytes, cases[i].n, sizeof(answer), &e) !=
            QUIRE_EINVAL)
            fail_msg("case %zu is not refused", i);
        assert_true(e.text[0] != 0);
    }
    static uint8_t large[QR_REFLECTION_REQUEST_MAX + 1];
    const struct qr_wire_fragment whole = {.data = large, .bytes = sizeof(large)};
    assert_status(QUIRE_EINVAL,
                  qr_wire_reflect(qr_descriptor_set, qr_descriptor_set_bytes, &whole, 1, answer,
                                  sizeof(answer), &answer_bytes, &e));
    assert_non_null(strstr(e.text, "4097"));
}

static void an_answer_stays_in_its_room(void **state)
{
    uint8_t request[64];
    struct qr_error e;
    const size_t n = ask(FILE_NAME, OURS, request);
    (void)state;

    for (size_t capacity = 0; capacity < sizeof(answer); capacity += 97) {
        if (reflect(request, n, capacity, &e) == QUIRE_OK)
            assert_true(answer_bytes <= capacity);
        for (size_t i = capacity; i < sizeof(answer); i++)
            assert_int_equal(answer[i], 0xee);
    }
    assert_status(QUIRE_ETOOBIG, reflect(request, n, 10000, &e));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_found_by_name_and_by_symbol),
        cmocka_unit_test(what_is_not_there_is_an_error_response),
        cmocka_unit_test(services_are_listed),
        cmocka_unit_test(requests_that_cannot_be_are_refused),
        cmocka_unit_test(an_answer_stays_in_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
