/* SPDX-License-Identifier: Apache-2.0
 *
 * CPUID through the compiler's builtins, capped by QUIRE_ISA.
 */
#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int chosen = -1; /* atomic: -1 until first asked */

#if defined(__x86_64__)
/* clang 14's __builtin_cpu_supports does not know f16c. */
static _Bool has_f16c(void)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static enum qr_isa supported(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return QR_ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return QR_ISA_AVX512;
    return QR_ISA_AVX2;
#else
    return QR_ISA_SCALAR;
#endif
}

/* False: the name is of no level. */
static _Bool parse_name(const char *name, enum qr_isa *out)
{
    for (int isa = QR_ISA_SCALAR; isa <= QR_ISA_AVX512; isa++)
        if (strcmp(name, qr_isa_name((enum qr_isa)isa)) == 0) {
            *out = (enum qr_isa)isa;
            return 1;
        }
    return 0;
}

static enum qr_isa requested(void)
{
    const char *name = getenv("QUIRE_ISA");
    enum qr_isa isa;
    return name && parse_name(name, &isa) ? isa : QR_ISA_AVX512;
}

const char *qr_isa_unknown(void)
{
    const char *name = getenv("QUIRE_ISA");
    enum qr_isa isa;
    return name && !parse_name(name, &isa) ? name : NULL;
}

enum qr_isa qr_isa(void)
{
    int isa = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (isa < 0) {
        const enum qr_isa can = supported();
        const enum qr_isa want = requested();
        isa = (int)(want < can ? want : can);
        atomic_store_explicit(&chosen, isa, memory_order_relaxed);
    }
    return (enum qr_isa)isa;
}

const char *qr_isa_name(enum qr_isa isa)
{
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    return names[isa];
}

_Bool qr_isa_force(enum qr_isa isa)
{
    if (isa > supported())
        return 0;
    atomic_store_explicit(&chosen, (int)isa, memory_order_relaxed);
    return 1;
}
