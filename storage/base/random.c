/* SPDX-License-Identifier: Apache-2.0
 *
 * getrandom(2), repeated over interruptions and short reads.
 */
#include "random.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>

quire_status qr_random_fill(void *out, size_t n, struct qr_error *e)
{
    uint8_t *at = out;

    while (n > 0) {
        const ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return qr_error_set(e, QUIRE_EIO, "getrandom failed: %s", strerror(errno));
        at += got;
        n -= (size_t)got;
    }
    return QUIRE_OK;
}
