/* SPDX-License-Identifier: Apache-2.0
 *
 * A loop on several threads. Must not know what is computed.
 */
#ifndef QR_EVAL_THREADS_H
#define QR_EVAL_THREADS_H

#include <stddef.h>
#include <stdint.h>

#define QR_EVAL_THREADS_MAX 256u

/** One round of the loop; `worker` is in [0, threads). */
typedef void qr_eval_unit(void *arg, size_t unit, uint32_t worker);

/** Processors that this process may run on, at most QR_EVAL_THREADS_MAX. */
uint32_t qr_eval_threads(void);
/** Run unit(arg, 0 .. units - 1, worker), each exactly once, in any order, on up to `threads`
 * threads (1 .. QR_EVAL_THREADS_MAX), the caller's among them; returns when all are done. A
 * thread that cannot be started is done without. */
void qr_eval_parallel(uint32_t threads, size_t units, qr_eval_unit *unit, void *arg);

#endif
