/* SPDX-License-Identifier: Apache-2.0
 *
 * Which vector instructions to use: CPUID, capped by the environment variable
 * QUIRE_ISA (scalar, avx2, avx512). Read once; the answer never changes. Programs
 * refuse an unknown name at their start (qr_isa_unknown).
 */
#ifndef QR_CPU_H
#define QR_CPU_H

enum qr_isa {
    QR_ISA_SCALAR = 0,
    QR_ISA_AVX2 = 1 /* AVX2, FMA, F16C */,
    QR_ISA_AVX512 = 2 /* F, BW, DQ, VL on top */
};

/** Widest usable level, at most QUIRE_ISA; an unknown name there caps nothing. */
enum qr_isa qr_isa(void);
/** The value of QUIRE_ISA when it names no level, else NULL. */
const char *qr_isa_unknown(void);
#define QR_ISA_NAMES "scalar, avx2 or avx512"
const char *qr_isa_name(enum qr_isa isa);
/** For tests and benchmarks only: use `isa` from now on (must be supported: false otherwise,
 * nothing changes). */
_Bool qr_isa_force(enum qr_isa isa);

#endif
