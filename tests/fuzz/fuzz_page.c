/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of strangers: any bytes are opened or refused, and what opens can be expanded without a
 * read outside it, into finite values where qr_page_check_values says so. Each input is tried
 * as it is, and again with its envelope (magic, version, length, checksum) made right, since no
 * fuzzer guesses a checksum.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/page.h"
#include "storage/codec/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OUTPUT_BYTES_MAX (64u << 20)

/* finite: what qr_page_check_values promised. */
static void expand(const struct qr_page_view *view, enum qr_which which, bool finite)
{
    const struct qr_page_header *header = view->header;
    const size_t dim = which == QR_KEY ? header->key_dim : header->value_dim;
    const size_t row_bytes = dim * sizeof(uint16_t);
    const size_t bytes = row_bytes * header->heads * header->page_tokens;
    if (bytes > OUTPUT_BYTES_MAX)
        return;
    const struct qr_expand to = {.token_count = header->page_tokens,
                                 .head_count = header->heads,
                                 .dtype = QR_F16,
                                 .dst = aligned_alloc(64, (bytes + 63) / 64 * 64),
                                 .token_stride = row_bytes * header->heads,
                                 .head_stride = row_bytes};
    assert(to.dst);
    qr_page_expand(view, which, &to);
    const uint16_t *values = to.dst;
    for (size_t i = 0; finite && i < bytes / sizeof(*values); i++)
        assert((values[i] & 0x7fffu) < 0x7c00u);
    free(to.dst);
}

static void open_page(const void *page, size_t size)
{
    struct qr_page_view view;
    struct qr_page_identity id;
    struct qr_error e = {0};
    const quire_status status = qr_page_open(page, size, &view, &e);
    if (status) {
        assert(status == QUIRE_ECORRUPT || status == QUIRE_EUNSUPPORTED);
        assert(e.status == status && e.text[0]);
        return;
    }
    qr_page_identity_of(view.header, &id);
    assert(qr_page_bytes(&id, view.header->raw_rows) == size);
    assert(qr_page_match(view.header, &id, NULL) == QUIRE_OK);
    if (qr_codec_check(&id, NULL))
        return;
    const bool finite = qr_page_check_values(&view, &e) == QUIRE_OK;
    expand(&view, QR_KEY, finite);
    expand(&view, QR_VALUE, finite);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *page;
    if (posix_memalign(&page, QR_PAGE_ALIGN, size ? size : 1))
        abort();
    if (size > 0)
        memcpy(page, data, size);
    open_page(page, size);
    if (size >= sizeof(struct qr_page_header)) {
        struct qr_page_header *header = page;
        memcpy(header->magic, QR_PAGE_MAGIC, sizeof(header->magic));
        header->version = QR_PAGE_VERSION;
        header->page_bytes = (uint32_t)size;
        qr_page_finish(page);
        open_page(page, size);
    }
    free(page);
    return 0;
}
