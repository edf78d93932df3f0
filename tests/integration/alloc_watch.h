/* SPDX-License-Identifier: Apache-2.0
 *
 * What a process under watch writes and its test reads: a file that both map. Used by
 * alloc_watch.c and test_allocations.c alone.
 */
#ifndef QR_ALLOC_WATCH_H
#define QR_ALLOC_WATCH_H

#include <stdatomic.h>
#include <stdint.h>

#define ALLOC_FRAMES 8
#define ALLOC_SAMPLES 16

struct alloc_watch {
    atomic_bool counts;      /* set by the test */
    _Atomic uint64_t ours;   /* allocations that the program's own code asked for */
    _Atomic uint64_t others; /* those of the libraries that it calls */
    char samples[ALLOC_SAMPLES][ALLOC_FRAMES][160]; /* of ours: program+offset */
};

/** Watch this process, too; the variable of a program that alloc_watch.so is preloaded to. */
void alloc_watch_start(struct alloc_watch *watch);
#define ALLOC_WATCH_VARIABLE "QUIRE_TEST_ALLOC_WATCH" /* path of the file */

#endif
