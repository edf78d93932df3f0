/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a safetensors file: the reader must refuse them or give tensors that lie
 * inside the bytes, which is shown by reading each one's ends.
 */
#include "client/cli/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct qr_safetensors file;
    struct qr_error e;
    volatile uint8_t sum = 0;
    if (qr_safetensors_parse(data, size, &file, &e) != QUIRE_OK)
        return 0;
    for (size_t i = 0; i < file.count; i++) {
        const struct qr_safetensor *t = &file.tensors[i];
        if (t->data < data || t->bytes > size || t->data + t->bytes > data + size)
            abort();
        if (t->bytes > 0)
            sum = (uint8_t)(sum + t->data[0] + t->data[t->bytes - 1]);
        if (qr_safetensors_find(&file, t->name) == NULL)
            abort();
    }
    qr_safetensors_close(&file);
    return 0;
}
