/* SPDX-License-Identifier: Apache-2.0
 *
 * Error details come back as they were sent, any protobuf reader can read them, and damaged
 * ones are not taken for details.
 */
#include "wire_fixture.h"

static const struct qr_error full = {.status = QUIRE_EVALUE,
                                     .length = UINT64_MAX,
                                     .position = UINT64_MAX,
                                     .tokens = UINT64_MAX,
                                     .layer = UINT32_MAX,
                                     .head = UINT32_MAX,
                                     .channel = UINT32_MAX,
                                     .retry_after_ms = UINT32_MAX,
                                     .epoch = UINT64_MAX,
                                     .limit = UINT64_MAX};

static void details_survive_the_trip(void **state)
{
    struct qr_error e = full, back;
    uint8_t wire[QR_WIRE_STATUS_BYTES_MAX];
    (void)state;
    memset(e.text, 't', sizeof(e.text) - 1);
    const size_t n = qr_wire_status_pack(&e, wire);
    assert_true(n <= sizeof(wire));
    assert_true(qr_wire_status_parse(wire, n, &back));
    assert_memory_equal(&back, &e, sizeof(e));
}

static void every_status_survives_the_trip(void **state)
{
    (void)state;
    for (quire_status status = 1; status < QUIRE_STATUS_COUNT; status++) {
        struct qr_error e, back;
        uint8_t wire[QR_WIRE_STATUS_BYTES_MAX];
        qr_error_set(&e, status, "status %d", status);
        assert_true(qr_wire_status_parse(wire, qr_wire_status_pack(&e, wire), &back));
        assert_int_equal(back.status, status);
        assert_string_equal(back.text, e.text);
    }
}

/* Length-prefixed field `number` (< 16) at *at; NULL when there is another field. */
static const uint8_t *enter(const uint8_t *at, unsigned number, size_t *n)
{
    if (*at++ != (number << 3 | 2))
        return NULL;
    size_t bytes = *at & 0x7f;
    if (*at++ & 0x80)
        bytes |= (size_t)(*at++ & 0x7f) << 7;
    *n = bytes;
    return at;
}

static void bytes_are_google_rpc_status(void **state)
{
    static const char url[] = "type.googleapis.com/quire.v1.ErrorDetail";
    struct qr_error e = {.status = QUIRE_EGAP, .length = 12, .layer = 3, .text = "gap"};
    uint8_t wire[QR_WIRE_STATUS_BYTES_MAX];
    size_t n = 0, any_bytes = 0;
    (void)state;
    qr_wire_status_pack(&e, wire);
    assert_int_equal(wire[0], 0x08);
    assert_int_equal(wire[1], qr_status_grpc(QUIRE_EGAP));
    const uint8_t *at = enter(wire + 2, 2, &n);
    assert_int_equal(n, 3);
    assert_memory_equal(at, "gap", 3);
    at = enter(at + n, 3, &any_bytes);
    assert_non_null(at);
    const uint8_t *end = at + any_bytes;
    at = enter(at, 1, &n);
    assert_int_equal(n, sizeof(url) - 1);
    assert_memory_equal(at, url, n);
    at = enter(at + n, 2, &n);
    assert_ptr_equal(at + n, end);

    Quire__V1__ErrorDetail *detail = quire__v1__error_detail__unpack(NULL, n, at);
    assert_non_null(detail);
    assert_int_equal(detail->code, QUIRE_EGAP);
    assert_string_equal(detail->name, "EGAP");
    assert_int_equal(detail->length, 12);
    assert_int_equal(detail->layer, 3);
    quire__v1__error_detail__free_unpacked(detail, NULL);
}

static void text_becomes_utf8(void **state)
{
    struct qr_error e = {.status = QUIRE_EINVAL, .text = "ok \xc3\xa9, bad \xff\xc3"}, back;
    uint8_t wire[QR_WIRE_STATUS_BYTES_MAX];
    (void)state;
    assert_true(qr_wire_status_parse(wire, qr_wire_status_pack(&e, wire), &back));
    assert_string_equal(back.text, "ok \xc3\xa9, bad ??");
}

static void each_truncation_is_no_detail(void **state)
{
    struct qr_error e = full, back = {.status = 99};
    uint8_t wire[QR_WIRE_STATUS_BYTES_MAX];
    (void)state;
    strcpy(e.text, "text");
    const size_t n = qr_wire_status_pack(&e, wire);
    for (size_t cut = 0; cut < n; cut++)
        assert_false(qr_wire_status_parse(wire, cut, &back));
    assert_int_equal(back.status, 99);
}

static void other_details_are_skipped(void **state)
{
    static const uint8_t other[] = {0x1a, 6, 0x0a, 4, 'a', '/', 'b', '.'};
    struct qr_error e = full, back;
    uint8_t wire[sizeof(other) + QR_WIRE_STATUS_BYTES_MAX];
    (void)state;
    memcpy(wire, other, sizeof(other));
    assert_false(qr_wire_status_parse(wire, sizeof(other), &back));
    const size_t n = qr_wire_status_pack(&e, wire + sizeof(other));
    assert_true(qr_wire_status_parse(wire, sizeof(other) + n, &back));
    assert_int_equal(back.status, QUIRE_EVALUE);
}

static void unknown_codes_are_internal(void **state)
{
    struct qr_error e = {.status = 100, .text = "from the future"}, back;
    uint8_t wire[QR_WIRE_STATUS_BYTES_MAX];
    (void)state;
    assert_true(qr_wire_status_parse(wire, qr_wire_status_pack(&e, wire), &back));
    assert_int_equal(back.status, QUIRE_EINTERNAL);
    assert_string_equal(back.text, "from the future");
}

static void grpc_codes_have_a_status(void **state)
{
    (void)state;
    assert_int_equal(qr_wire_status_of_grpc(0), QUIRE_OK);
    assert_int_equal(qr_wire_status_of_grpc(4), QUIRE_ETIMEOUT);
    assert_int_equal(qr_wire_status_of_grpc(14), QUIRE_EUNAVAILABLE);
    assert_int_equal(qr_wire_status_of_grpc(17), QUIRE_EINTERNAL);
    assert_int_equal(qr_wire_status_of_grpc(-1), QUIRE_EINTERNAL);
    for (int code = 1; code <= 16; code++)
        assert_int_not_equal(qr_wire_status_of_grpc(code), QUIRE_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(details_survive_the_trip),
        cmocka_unit_test(every_status_survives_the_trip),
        cmocka_unit_test(bytes_are_google_rpc_status),
        cmocka_unit_test(text_becomes_utf8),
        cmocka_unit_test(each_truncation_is_no_detail),
        cmocka_unit_test(other_details_are_skipped),
        cmocka_unit_test(unknown_codes_are_internal),
        cmocka_unit_test(grpc_codes_have_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
