/* SPDX-License-Identifier: Apache-2.0
 *
 * The check of the tail log: each segment is read whole, as a start would, and
 * the rows that count are laid beside the lanes that they belong to. Writes
 * nothing, and deletes no segment.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "disk_check_impl.h"
#include "tail_log_impl.h"

/** Rows of a lane that count. */
struct rows {
    uint32_t lane; /* in check->lanes */
    uint32_t tokens;
    uint64_t position;
};

struct tail_walk {
    struct qr_check *check;
    int folder_fd;
    uint64_t number; /* of the segment */
    struct qr_check_list rows;
};

/* ---- records ---------------------------------------------------------------------------- */

static void take_record(struct tail_walk *walk, const struct qr_tail_record *record)
{
    struct qr_check *check = walk->check;
    const struct qr_check_session *session = qr_check_session(check, record->session);
    struct qr_check_lane *lane =
        session
            ? qr_check_lane(check, (uint32_t)(session - qr_check_sessions(check)), record->lane)
            : NULL;
    uint64_t end = record->position + record->tokens;

    check->result->tail_records++;
    if (!lane)
        return; /* dropped, or never made durable */
    if (record->sequence < lane->cut_sequence && end > lane->cut_length)
        end = lane->cut_length;
    if (end <= (uint64_t)lane->sealed * session->policy.page_tokens || end <= record->position)
        return; /* sealed, or cut off */
    struct rows *rows = qr_check_add(check, &walk->rows, sizeof(*rows));
    if (!rows)
        return;
    *rows = (struct rows){(uint32_t)(lane - qr_check_lanes(check)),
                          (uint32_t)(end - record->position), record->position};
    check->result->tail_live++;
}

static void found_segment(struct tail_walk *walk, enum qr_disk_finding_kind kind, size_t at,
                          const char *what)
{
    struct qr_disk_finding finding = {.kind = kind};

    (void)snprintf(finding.text, sizeof(finding.text), "segment %" PRIu64 " at byte %zu: %s",
                   walk->number, at, what);
    qr_check_found(walk->check, &finding);
}

/* Its own fields cannot be trusted, but may help: whose rows it probably was. */
static void found_damaged(struct tail_walk *walk, const uint8_t *at, size_t offset)
{
    struct qr_disk_finding finding = {.kind = QR_DISK_TAIL_DAMAGED};
    uint8_t uuid[QR_DISK_UUID_BYTES];
    uint32_t tokens;

    memcpy(uuid, at + 32, sizeof(uuid));
    memcpy(&finding.lane, at + 48, 4);
    memcpy(&tokens, at + 52, 4);
    memcpy(&finding.first_token, at + 56, 8);
    const struct qr_check_session *session = qr_check_session(walk->check, uuid);
    if (session && tokens <= QR_PAGE_TOKENS_MAX) {
        finding.session = session->name;
        finding.ns = session->ns;
        finding.end_token = finding.first_token + tokens;
    } else {
        finding.lane = 0;
        finding.first_token = 0;
    }
    (void)snprintf(finding.text, sizeof(finding.text),
                   "segment %" PRIu64 " at byte %zu: one record", walk->number, offset);
    qr_check_found(walk->check, &finding);
}

static void read_records(struct tail_walk *walk, const uint8_t *contents, size_t bytes)
{
    for (size_t at = QR_DISK_BLOCK; at < bytes;) {
        struct qr_tail_record record;
        uint32_t size = qr_tail_record_decode(contents + at, bytes - at, walk->number, &record);
        if (size > 0) {
            take_record(walk, &record);
            at += size;
            continue;
        }
        size = qr_tail_record_skip(contents, at, bytes, walk->number);
        if (size == 0) {
            const bool lost = qr_tail_record_follows(contents, at, bytes, walk->number);
            if (!lost && qr_tail_is_clean_end(contents, at, bytes))
                return;
            found_segment(walk, lost ? QR_DISK_TAIL_DAMAGED : QR_DISK_TAIL_TORN, at,
                          lost ? "records that follow cannot be reached"
                               : "not a whole record");
            return;
        }
        found_damaged(walk, contents + at, at);
        at += size;
    }
}

/* ---- segments --------------------------------------------------------------------------- */

static quire_status segment_bytes(struct tail_walk *walk, uint8_t **out, size_t *bytes_out)
{
    struct qr_disk_io *io = walk->check->io;
    char name[QR_TAIL_NAME_BYTES];
    struct stat st = {0};
    uint8_t *contents = NULL;

    qr_tail_segment_name(walk->number, name);
    const int fd = io->open(io, walk->folder_fd, name, O_RDONLY, 0);
    int error = fd < 0 ? fd : fstat(fd, &st) != 0 ? -errno : 0;
    if (error == 0) {
        contents = malloc((size_t)st.st_size + 1);
        error = contents ? qr_disk_read_all(io, fd, contents, (size_t)st.st_size, 0) : -ENOMEM;
    }
    if (fd >= 0)
        io->close(io, fd);
    if (error != 0) {
        free(contents);
        return qr_error_set(walk->check->e, qr_disk_status(error),
                            "tail log: cannot read segment %" PRIu64 ": %s", walk->number,
                            strerror(-error));
    }
    *out = contents;
    *bytes_out = (size_t)st.st_size;
    return QUIRE_OK;
}

static quire_status read_segment(struct tail_walk *walk)
{
    uint8_t *contents = NULL;
    size_t bytes = 0;
    uint64_t base;
    const quire_status status = segment_bytes(walk, &contents, &bytes);

    if (status != QUIRE_OK)
        return status;
    walk->check->result->tail_segments++;
    const quire_status head =
        bytes < QR_DISK_BLOCK
            ? QUIRE_ECORRUPT
            : qr_tail_segment_check(walk->check->home.store, walk->number, contents, &base);
    if (head == QUIRE_OK)
        read_records(walk, contents, bytes);
    else if (head == QUIRE_EMISMATCH)
        found_segment(walk, QR_DISK_TAIL_DAMAGED, 0, "of another store, or renamed");
    else if (head == QUIRE_EUNSUPPORTED)
        found_segment(walk, QR_DISK_TAIL_DAMAGED, 0, "of a newer Quire");
    else if (bytes > 0)
        found_segment(walk,
                      qr_tail_record_follows(contents, QR_DISK_BLOCK, bytes, walk->number)
                          ? QR_DISK_TAIL_DAMAGED
                          : QR_DISK_TAIL_TORN,
                      0, "its header is not whole");
    free(contents);
    return QUIRE_OK;
}

/* ---- gaps ------------------------------------------------------------------------------- */

static int by_lane(const void *a, const void *b)
{
    const struct rows *x = a, *y = b;

    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static void found_gap(struct tail_walk *walk, uint32_t lane_number, uint64_t from, uint64_t to)
{
    const struct qr_check_lane *lane = &qr_check_lanes(walk->check)[lane_number];
    const struct qr_check_session *session = &qr_check_sessions(walk->check)[lane->session];
    const struct qr_disk_finding finding = {
        .kind = QR_DISK_TAIL_GAP,
        .session = session->name,
        .ns = session->ns,
        .lane = lane->lane,
        .first_token = from,
        .end_token = to,
        .text = "never acknowledged, or lost with a damaged record: those behind are not used"};
    qr_check_found(walk->check, &finding);
}

/* Rows of a lane follow its sealed blocks, and each other. */
static void find_gaps(struct tail_walk *walk)
{
    struct rows *rows = walk->rows.items;
    uint64_t end = 0;

    if (walk->rows.count > 1)
        qsort(rows, walk->rows.count, sizeof(*rows), by_lane);
    for (size_t i = 0; i < walk->rows.count; i++) {
        const struct qr_check_lane *lane = &qr_check_lanes(walk->check)[rows[i].lane];
        if (i == 0 || rows[i].lane != rows[i - 1].lane)
            end = (uint64_t)lane->sealed *
                  qr_check_sessions(walk->check)[lane->session].policy.page_tokens;
        if (rows[i].position > end)
            found_gap(walk, rows[i].lane, end, rows[i].position);
        if (rows[i].position + rows[i].tokens > end)
            end = rows[i].position + rows[i].tokens;
    }
}

quire_status qr_check_tail(struct qr_check *check)
{
    struct tail_walk walk = {.check = check};
    uint64_t *numbers = NULL;
    size_t count = 0;

    walk.folder_fd = check->io->open(check->io, check->home.devices[0].folder_fd, "tail",
                                     O_RDONLY | O_DIRECTORY, 0);
    if (walk.folder_fd == -ENOENT) /* nothing was ever appended */
        return QUIRE_OK;
    if (walk.folder_fd < 0)
        return qr_error_set(check->e, qr_disk_status(walk.folder_fd),
                            "tail log: cannot open its folder: %s", strerror(-walk.folder_fd));
    quire_status status = qr_tail_segments_list(walk.folder_fd, &numbers, &count, check->e);
    for (size_t i = 0; i < count && status == QUIRE_OK; i++) {
        walk.number = numbers[i];
        status = read_segment(&walk);
    }
    if (status == QUIRE_OK)
        find_gaps(&walk);
    free(numbers);
    free(walk.rows.items);
    check->io->close(check->io, walk.folder_fd);
    return status;
}
