/* SPDX-License-Identifier: Apache-2.0
 *
 * Worker threads for computation: a job is a number of independent units, run
 * by the workers while the caller waits. Must not know what is computed.
 */
#ifndef QR_WORKERS_H
#define QR_WORKERS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

#define QR_WORKERS_MAX 256

struct qr_workers;

/** One unit; `worker` is the number of the thread that runs it, in [0, qr_workers_count).
 * Called with no lock held. */
typedef void qr_workers_unit(void *arg, size_t unit, uint32_t worker);

/** Start `threads` (1 .. QR_WORKERS_MAX) threads. EINVAL, ENOMEM. */
quire_status qr_workers_create(uint32_t threads, struct qr_workers **out, struct qr_error *e);
/** No job may be running. */
void qr_workers_destroy(struct qr_workers **workers);
uint32_t qr_workers_count(const struct qr_workers *workers);
/**
 * Run unit(arg, 0 .. units-1, worker), each exactly once, and return when all are done. Jobs of
 * several callers share the workers in the order they came. Must not be called from a unit.
 */
void qr_workers_run(struct qr_workers *workers, size_t units, qr_workers_unit *unit, void *arg);

#endif
