/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests for reflection: any bytes are answered or refused, in any pieces, and what is
 * answered carries the request back.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire_reflection.h"
#include "server/descriptor_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ANSWER_MAX (64u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *answer = malloc(ANSWER_MAX);
    struct qr_error e = {0};
    size_t n = 0;

    assert(answer);
    for (size_t cut = 0; cut <= size; cut += size / 3 + 1) {
        const struct qr_wire_fragment pieces[] = {{.data = data, .bytes = cut},
                                                  {.data = data + cut, .bytes = size - cut}};
        const quire_status status = qr_wire_reflect(qr_descriptor_set, qr_descriptor_set_bytes,
                                                    pieces, 2, answer, ANSWER_MAX, &n, &e);
        if (status) {
            assert(status == QUIRE_EINVAL && e.text[0]);
            continue;
        }
        assert(n <= ANSWER_MAX && n > size);
        assert(size == 0 || memmem(answer, n, data, size));
    }
    free(answer);
    return 0;
}
