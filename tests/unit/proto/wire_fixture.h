/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages cut into fragments in every way, for the tests of the wire.
 */
#ifndef QR_WIRE_FIXTURE_H
#define QR_WIRE_FIXTURE_H

#include "tests/test.h"

#include "proto/wire.h"

#define FIXTURE_FRAGMENTS_MAX 512

struct fixture_cut {
    struct qr_wire_fragment fragments[FIXTURE_FRAGMENTS_MAX];
    size_t count;
};

/* Each fragment is an allocation of its own length: a read past it is seen by ASan. */
static inline void fixture_add(struct fixture_cut *cut, const uint8_t *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, data, bytes);
    assert_true(cut->count < FIXTURE_FRAGMENTS_MAX);
    cut->fragments[cut->count++] = (struct qr_wire_fragment){.data = copy, .bytes = bytes};
}

static inline void fixture_free(struct fixture_cut *cut)
{
    for (size_t i = 0; i < cut->count; i++)
        free((void *)(uintptr_t)cut->fragments[i].data);
    cut->count = 0;
}

/* [0, i) [i, j) [j, n): empty ones too. */
static inline void fixture_cut_at(struct fixture_cut *cut, const uint8_t *data, size_t n,
                                  size_t i, size_t j)
{
    cut->count = 0;
    fixture_add(cut, data, i);
    fixture_add(cut, data + i, j - i);
    fixture_add(cut, data + j, n - j);
}

static inline void fixture_cut_bytes(struct fixture_cut *cut, const uint8_t *data, size_t n)
{
    cut->count = 0;
    for (size_t i = 0; i < n; i++)
        fixture_add(cut, data + i, 1);
}

static inline size_t fixture_pack(const ProtobufCMessage *message, uint8_t *out,
                                  size_t capacity)
{
    size_t bytes = 0;
    assert_ok(qr_wire_pack(message, out, capacity, &bytes, NULL));
    return bytes;
}

static inline void expect_text(const struct qr_error *e, const char *text)
{
    if (!strstr(e->text, text))
        fail_msg("'%s' does not contain '%s'", e->text, text);
}

#endif
