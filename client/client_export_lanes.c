/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages and rows of an export: while one window is written, the next one is fetched. Windows
 * are calls of their own, so that a slow writer holds up no stream of the server.
 */
#include <stdlib.h>
#include <string.h>

#include "client_export.h"

#define MARK_BYTES sizeof(struct qr_export_mark)

static size_t page_stride(const struct qr_export_walk *walk,
                          const struct qr_export_record *record)
{
    return MARK_BYTES + QR_EXPORT_PADDED(qr_export_page_max(walk, record));
}

/* Rows of a record from `position` on: to the block's end, unless that is too much. */
static uint32_t rows_at(const struct qr_export_walk *walk,
                        const struct qr_export_record *record, uint64_t position)
{
    const uint32_t page_tokens = walk->head.page_tokens;
    const uint64_t left = walk->head.length - position;
    const size_t fit = QR_MOVE_ROWS_BYTES / qr_export_row_bytes(walk, record);
    uint64_t n = page_tokens - position % page_tokens;

    n = n < left ? n : left;
    n = n < fit ? n : fit;
    return n ? (uint32_t)n : 1;
}

uint64_t qr_exporter_rows_bytes(const struct qr_export_walk *walk, const uint32_t *sealed,
                                uint32_t lane_count)
{
    uint64_t bytes = 0;
    struct qr_export_record r;

    for (uint32_t lane = 0; lane < lane_count && qr_export_lane(walk, lane, &r); lane++) {
        uint64_t position = (uint64_t)sealed[lane] * walk->head.page_tokens;
        while (position < walk->head.length) {
            const uint32_t n = rows_at(walk, &r, position);
            bytes += MARK_BYTES + QR_EXPORT_PADDED(n * qr_export_row_bytes(walk, &r));
            position += n;
        }
    }
    return bytes;
}

/* ---- fetching -----------------------------------------------------------------------------
 */

static void plan_pages(const struct qr_exporter *x, struct qr_export_window *w, uint32_t blocks)
{
    const size_t stride = page_stride(&x->move->walk, &w->first);
    uint32_t n = (uint32_t)(x->window_bytes / stride);

    n = n < QR_EXPORT_WINDOW_PAGES ? n : QR_EXPORT_WINDOW_PAGES;
    n = n < blocks ? n : blocks;
    w->first.type = QR_EXPORT_PAGE;
    w->fetch.pages = true;
    w->fetch.tokens = n * x->move->walk.head.page_tokens;
    w->fetch.stride = stride;
    w->fetch.page_max = stride - MARK_BYTES;
    w->fetch.page_bytes = w->page_bytes;
}

static void plan_rows(const struct qr_exporter *x, struct qr_export_window *w)
{
    const struct qr_export_walk *walk = &x->move->walk;
    uint8_t *payload = w->buffer + MARK_BYTES;

    w->first.type = QR_EXPORT_ROWS;
    w->first.count = w->fetch.tokens = rows_at(walk, &w->first, x->position);
    w->first.bytes = w->first.count * qr_export_row_bytes(walk, &w->first);
    memset(payload + w->first.bytes, 0, QR_EXPORT_PADDED(w->first.bytes) - w->first.bytes);
}

/* The next window of this place, begun; nothing when all lanes are through. */
static quire_status fetch_next(struct qr_exporter *x, struct qr_export_window *w)
{
    const struct qr_export_head *head = &x->move->walk.head;

    w->op = NULL;
    memset(&w->first, 0, sizeof(w->first));
    memset(&w->fetch, 0, sizeof(w->fetch));
    if (head->length == 0 || !qr_export_lane(&x->move->walk, x->lane, &w->first))
        return QUIRE_OK;
    const uint64_t end = (uint64_t)x->sealed[x->lane] * head->page_tokens;
    w->first.position = x->position;
    if (x->position < end)
        plan_pages(x, w, (uint32_t)((end - x->position) / head->page_tokens));
    else
        plan_rows(x, w);
    w->fetch.layer = w->first.layer;
    w->fetch.first_head = w->first.first_head;
    w->fetch.heads = w->first.heads;
    w->fetch.position = x->position;
    w->fetch.place = w->buffer + MARK_BYTES;
    x->position += w->fetch.tokens;
    if (x->position == head->length) {
        x->lane++;
        x->position = 0;
    }
    return qr_raw_fetch_submit(x->session, &w->fetch, qr_move_timeout_ms(x->move), &w->op);
}

/* ---- writing ------------------------------------------------------------------------------
 */

static quire_status write_pages(struct qr_exporter *x, struct qr_export_window *w)
{
    const uint32_t page_tokens = x->move->walk.head.page_tokens;
    struct qr_export_record r = w->first;
    quire_status status = QUIRE_OK;

    r.count = page_tokens;
    for (uint32_t i = 0; i < w->fetch.tokens / page_tokens && !status; i++) {
        r.position = w->first.position + (uint64_t)i * page_tokens;
        r.bytes = w->page_bytes[i];
        status = qr_exporter_emit(x, &r, w->buffer + i * w->fetch.stride);
        x->move->transfer.pages++;
    }
    return status;
}

static quire_status write_window(struct qr_exporter *x, struct qr_export_window *w)
{
    quire_status status = qr_raw_join(&w->op);

    if (!status)
        status = w->fetch.pages ? write_pages(x, w) : qr_exporter_emit(x, &w->first, w->buffer);
    return status ? status : qr_move_tell(x->move);
}

static quire_status make_buffers(struct qr_exporter *x)
{
    struct qr_export_record r;

    x->window_bytes = QR_MOVE_BATCH_BYTES;
    for (uint32_t lane = 0; qr_export_lane(&x->move->walk, lane, &r);
         lane += x->move->walk.head.head_shards) {
        const size_t stride = page_stride(&x->move->walk, &r);
        x->window_bytes = x->window_bytes > stride ? x->window_bytes : stride;
    }
    for (int i = 0; i < 2; i++) {
        x->windows[i].buffer = aligned_alloc(64, QR_EXPORT_PADDED(x->window_bytes));
        if (!x->windows[i].buffer)
            return qr_client_fail_text(QUIRE_ENOMEM, "out of memory for %zu bytes of pages",
                                       x->window_bytes);
    }
    return QUIRE_OK;
}

/* An operation that nobody waits for any more still writes to its window. */
static void drop_windows(struct qr_exporter *x)
{
    for (int i = 0; i < 2; i++) {
        struct qr_export_window *w = &x->windows[i];
        if (w->op)
            quire_op_cancel(w->op);
        quire_op_free(&w->op);
        free(w->buffer);
        w->buffer = NULL;
    }
}

quire_status qr_exporter_lanes(struct qr_exporter *x)
{
    quire_status status = make_buffers(x);
    int turn = 0;

    x->lane = x->move->walk.lane;
    x->position = x->move->walk.position;
    if (!status)
        status = fetch_next(x, &x->windows[0]);
    for (; !status && x->windows[turn].op; turn ^= 1) {
        status = fetch_next(x, &x->windows[turn ^ 1]);
        if (!status)
            status = write_window(x, &x->windows[turn]);
    }
    drop_windows(x);
    return status;
}
