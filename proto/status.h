/* SPDX-License-Identifier: Apache-2.0
 *
 * Status codes, shared by every floor. client/quire.h repeats the numbers for
 * its users (it is installed alone); tests/unit/proto checks that they agree.
 */
#ifndef QR_STATUS_H
#define QR_STATUS_H

#include <stdint.h>

#ifndef QUIRE_STATUS_DEFINED
#define QUIRE_STATUS_DEFINED
typedef int quire_status;
enum {
#define X(name, number, grpc, retry, text) QUIRE_##name = number,
#include "status.def"
#undef X
    QUIRE_STATUS_COUNT
};
#endif

/** One lower-case phrase for a status; never NULL, "unknown status" for a number of no code. */
const char *qr_status_text(quire_status status);
/** "QUIRE_EGAP" and the like; never NULL. */
const char *qr_status_name(quire_status status);
/** gRPC status code (0..16) that carries `status` on the wire. */
int qr_status_grpc(quire_status status);
/** True when the same call may succeed later unchanged. */
int qr_status_retryable(quire_status status);

#define QR_ERROR_TEXT_MAX 256

/**
 * What went wrong, for a person and for a program. Callees fill it on failure only;
 * a NULL error is allowed everywhere. Fields that do not apply are zero.
 */
struct qr_error {
    quire_status status;
    uint64_t length;   /* EGAP, ERANGE: current length of the lane or session, tokens;
                          ETOOBIG of a message: its bytes */
    uint64_t position; /* EVALUE, ECONFLICT, EMISSING: first token concerned */
    uint64_t tokens;   /* EMISSING: tokens concerned from `position` on */
    uint32_t layer;    /* EVALUE, EGAP, ECONFLICT, EMISSING */
    uint32_t head;     /* EVALUE */
    uint32_t channel;  /* EVALUE */
    uint32_t
        retry_after_ms; /* EFULL, ELEASE, EUNAVAILABLE: earliest time a retry makes sense */
    uint64_t epoch;     /* ELEASE, EFENCED: the epoch that holds the session */
    uint64_t limit;     /* ETOOBIG of a message: most bytes accepted */
    char text[QR_ERROR_TEXT_MAX]; /* what was wrong, with the value, and what would be right */
};

/** Set status and a printf-style text (truncated to fit), zero the rest; returns `status`. `e`
 * may be NULL. */
quire_status qr_error_set(struct qr_error *e, quire_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__ /* it looks into one file at a time: tell it what comes back */
#define qr_error_set(e, status, ...) ((void)qr_error_set(e, status, __VA_ARGS__), (status))
#endif

#endif
