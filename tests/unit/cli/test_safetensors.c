/* SPDX-License-Identifier: Apache-2.0
 *
 * Safetensors: what is written is read back; the real sample opens; each way of being
 * malformed is an error that names it.
 */
#include "client/cli/safetensors.h"
#include "tests/test.h"

#include <unistd.h>

/** A file in memory: header text, then data_bytes bytes. */
static quire_status parse(const char *header, size_t data_bytes, struct qr_error *e)
{
    const size_t length = strlen(header);
    struct qr_safetensors file = {0};
    uint8_t *bytes = calloc(1, 8 + length + data_bytes + 1);
    assert_non_null(bytes);
    bytes[0] = (uint8_t)length;
    bytes[1] = (uint8_t)(length >> 8);
    memcpy(bytes + 8, header, length);
    const quire_status status = qr_safetensors_parse(bytes, 8 + length + data_bytes, &file, e);
    if (status == QUIRE_OK)
        qr_safetensors_close(&file);
    free(bytes);
    return status;
}

static void the_real_sample_opens(void **state)
{
    char path[600], folder[500];
    struct qr_safetensors file;
    struct qr_error e = {0};
    (void)state;
    snprintf(path, sizeof(path), "%s/smollm2_kv.safetensors",
             test_data_dir(folder, sizeof(folder)));
    assert_ok(qr_safetensors_open(path, &file, &e));
    const struct qr_safetensor *ids = qr_safetensors_find(&file, "token_ids");
    if (ids || !getenv("QUIRE_DATA")) { /* another file may have none */
        assert_non_null(ids);
        assert_int_equal(ids->rank, 1);
        assert_int_equal(ids->bytes, ids->shape[0] * 4);
    }
    assert_null(qr_safetensors_find(&file, "token_idz"));
    qr_safetensors_close(&file);
}

static void malformed_headers_are_named(void **state)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *says;
    } cases[] = {
        {"", 0, "does not begin"},
        {"[]", 0, "does not begin"},
        {"{\"a\":", 0, "not JSON"},
        {"{} x", 0, "goes on"},
        {"{\"a\":1}", 0, "not an object"},
        {"{\"a\":{}}", 0, "no dtype"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1]}}", 2, "no data_offsets"},
        {"{\"a\":{\"dtype\":\"F17\",\"shape\":[1],\"data_offsets\":[0,2]}}", 2,
         "unknown dtype 'F17'"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,2]}}", 2, "dtype is not"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":1,\"data_offsets\":[0,2]}}", 2, "not a list"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[-1],\"data_offsets\":[0,2]}}", 2, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[0.5],\"data_offsets\":[0,1]}}", 1,
         "dimension 0"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,2]}}", 2,
         "more than 8"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         0, "overflows"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "needs 4"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 3, "holds 3"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[4,2]}}", 4,
         "before it begins"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two whole"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,1e300]}}", 4,
         "two whole"},
        {"{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2],\"x\":1}}", 2,
         "unknown key 'x'"},
        {"{\"a\":{\"dtype\":\"F16\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,2]}}",
         2, "repeated key 'dtype'"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "inside the tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
         5, "hole"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
         4, "two tensors"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 3, "1 bytes after"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "'k' is not a string"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct qr_error e = {0};
        assert_int_not_equal(parse(cases[i].header, cases[i].data_bytes, &e), QUIRE_OK);
        if (strstr(e.text, cases[i].says) == NULL)
            fail_msg("case %zu: '%s' does not say '%s'", i, e.text, cases[i].says);
    }
}

static void well_formed_headers_are_taken(void **state)
{
    static const char *const headers[] = {
        "{}",
        "{\"__metadata__\":{\"k\":\"v\"}}   ",
        ("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}"),
    };
    static const size_t data_bytes[] = {0, 0, 1};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
        struct qr_error e = {0};
        assert_ok(parse(headers[i], data_bytes[i], &e));
    }
}

static void header_length_is_bounded(void **state)
{
    uint8_t bytes[16] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'};
    struct qr_safetensors file;
    struct qr_error e = {0};
    (void)state;
    assert_status(QUIRE_ETOOBIG, qr_safetensors_parse(bytes, sizeof(bytes), &file, &e));
    memset(bytes, 0, 8);
    bytes[0] = 9;
    assert_status(QUIRE_ECORRUPT, qr_safetensors_parse(bytes, sizeof(bytes), &file, &e));
    assert_non_null(strstr(e.text, "cut short"));
    for (size_t size = 0; size < 8; size++)
        assert_status(QUIRE_ECORRUPT, qr_safetensors_parse(bytes, size, &file, &e));
}

static void files_that_are_none_are_named(void **state)
{
    struct qr_safetensors file;
    struct qr_error e = {0};
    (void)state;
    assert_status(QUIRE_EIO, qr_safetensors_open("no/such/file", &file, &e));
    assert_non_null(strstr(e.text, "no/such/file: No such file"));
    assert_status(QUIRE_EIO, qr_safetensors_open("/", &file, &e));
    assert_non_null(strstr(e.text, "not a regular file"));
}

static void make_path(char *path, size_t size)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, size, "%s/quire_safetensors_%ld", folder ? folder : "/tmp", (long)getpid());
}

static void what_is_written_is_read(void **state)
{
    char path[300];
    struct qr_safetensors_writer *writer;
    struct qr_safetensors file;
    struct qr_error e = {0};
    size_t a, b;
    (void)state;
    make_path(path, sizeof(path));
    assert_ok(qr_safetensors_writer_create(&writer, &e));
    const struct qr_safetensor first = {
        .name = "a", .element = QR_ELEMENT_F16, .rank = 2, .shape = {3, 5}};
    const struct qr_safetensor second = {
        .name = "b", .element = QR_ELEMENT_I32, .rank = 1, .shape = {7}};
    assert_ok(qr_safetensors_declare(writer, &first, &a, &e));
    assert_status(QUIRE_EINVAL, qr_safetensors_declare(writer, &first, &a, &e));
    assert_ok(qr_safetensors_declare(writer, &second, &b, &e));
    assert_ok(qr_safetensors_note(writer, "key", "quoted \"text\"", &e));
    assert_ok(qr_safetensors_begin(writer, path, &e));
    memset(qr_safetensors_data(writer, a), 0x11, 30);
    memset(qr_safetensors_data(writer, b), 0x22, 28);
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(qr_safetensors_commit(writer, &e));
    qr_safetensors_writer_destroy(&writer);

    assert_ok(qr_safetensors_open(path, &file, &e));
    assert_int_equal(file.count, 2);
    const struct qr_safetensor *t = qr_safetensors_find(&file, "a");
    assert_non_null(t);
    assert_int_equal(t->element, QR_ELEMENT_F16);
    assert_int_equal(t->shape[1], 5);
    assert_int_equal(t->bytes, 30);
    assert_int_equal(t->data[29], 0x11);
    t = qr_safetensors_find(&file, "b");
    assert_non_null(t);
    assert_int_equal(t->data[0], 0x22);
    qr_safetensors_close(&file);
    unlink(path);
}

static void an_abandoned_file_leaves_nothing(void **state)
{
    char path[300], part[340];
    struct qr_safetensors_writer *writer;
    struct qr_error e = {0};
    (void)state;
    make_path(path, sizeof(path));
    snprintf(part, sizeof(part), "%s.%ld.part", path, (long)getpid());
    assert_ok(qr_safetensors_writer_create(&writer, &e));
    assert_ok(qr_safetensors_begin(writer, path, &e));
    assert_int_equal(access(part, F_OK), 0);
    qr_safetensors_writer_destroy(&writer);
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_real_sample_opens),
        cmocka_unit_test(malformed_headers_are_named),
        cmocka_unit_test(well_formed_headers_are_taken),
        cmocka_unit_test(header_length_is_bounded),
        cmocka_unit_test(files_that_are_none_are_named),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(an_abandoned_file_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
