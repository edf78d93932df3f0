/* SPDX-License-Identifier: Apache-2.0
 *
 * Calibration files of strangers: any bytes are read or refused, and what is read writes to the
 * same bytes. Each input is tried as it is, and again with its checksum made right.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_file(const uint8_t *bytes, size_t size)
{
    static struct qr_calibration calibration;
    static uint8_t again[QR_CALIBRATION_BYTES_MAX];
    struct qr_error e = {0};
    memset(&calibration, 0, sizeof(calibration));
    if (qr_calibration_read(bytes, size, &calibration, &e)) {
        assert(e.text[0] && calibration.layers == 0);
        return;
    }
    assert(qr_calibration_write(&calibration, again) == size);
    assert(memcmp(bytes + 20, again + 20, size - 20) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *bytes = calloc(size ? size : 1, 1);
    assert(bytes);
    if (size > 0)
        memcpy(bytes, data, size);
    read_file(bytes, size);
    if (size >= QR_CALIBRATION_HEAD_BYTES) {
        memcpy(bytes, QR_CALIBRATION_MAGIC, 8);
        bytes[16] = QR_CALIBRATION_VERSION;
        bytes[17] = 0;
        const uint64_t sum = qr_checksum(bytes + 16, size - 16);
        memcpy(bytes + 8, &sum, sizeof(sum));
        read_file(bytes, size);
    }
    free(bytes);
    return 0;
}
